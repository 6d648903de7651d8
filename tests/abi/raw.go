package main

import (
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// heap is where pointer puts what it is given, so that the compiler keeps it off
// stacks, which move.
var heap atomic.Pointer[any]

// pointer gives the address of a value for a system call. The caller keeps the value
// alive and uses it afterwards, if only by runtime.KeepAlive.
func pointer[V any](v *V) uintptr {
	var kept any = v
	heap.Store(&kept)
	return uintptr(unsafe.Pointer(v))
}

// address gives the address of a slice's first element, like pointer.
func address[E any](s []E) uintptr { return pointer(unsafe.SliceData(s)) }

// syscall makes a system call that unix has no function for.
func syscall(number uintptr, args ...uintptr) (uintptr, error) {
	var a [6]uintptr
	copy(a[:], args)
	for {
		r, _, e := unix.Syscall6(number, a[0], a[1], a[2], a[3], a[4], a[5])
		switch e {
		case 0:
			return r, nil
		case unix.EINTR: // by a signal of Go's scheduler
		default:
			return r, e
		}
	}
}

// cstring is s with a NUL behind it.
func cstring(s string) []byte { return append([]byte(s), 0) }

// badAddress lies in no mapping.
const badAddress = 8

// atFDCWD is AT_FDCWD as a system call's argument.
const atFDCWD = ^uintptr(-unix.AT_FDCWD - 1)
