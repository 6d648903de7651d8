// Package uring is io_uring for the sandbox: rings of submissions and
// completions in memory that is shared with applications. The host's io_uring is
// not used; nothing but this package looks at the rings.
//
// Requests are carried out where they are submitted, by the task that calls
// io_uring_enter(2) or by the ring's poller (IORING_SETUP_SQPOLL). Reads and
// writes that follow each other go to their files together (package rw), so that
// a batch on a blobfs file is one doorbell. A request whose file is not ready
// stays pending: it is registered with its file's waiters, and costs nothing
// until it is woken. What then has to be done is done by a task that waits in
// io_uring_enter, if there is one, else by a goroutine of the ring; there is at most
// one. Calls that need a task (names, sockets) are carried out by the task
// that submitted them, before it returns to its program.
//
// Nothing in the rings is trusted: each entry is copied before it is looked at,
// indices are checked, heads and tails that applications write are only compared.
// What the kernel side needs to be right it keeps here.
//
// Locks, in this order:
//
//	ring.turn   who carries out requests; held across system calls, never by notifiers
//	  *** all of gVisor and blobfs
//	    ring.mu   completions, pending requests; short, nothing is called with it
//
// Completions are posted, and files lose references, without ring.mu: both may
// wake others who look at a ring.
package uring

import (
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
)

// Syscalls are the functions for the system call table, by system call number.
func Syscalls() map[uintptr]kernel.SyscallFn {
	return map[uintptr]kernel.SyscallFn{
		unix.SYS_IO_URING_SETUP:    ioUringSetup,
		unix.SYS_IO_URING_ENTER:    ioUringEnter,
		unix.SYS_IO_URING_REGISTER: ioUringRegister,
	}
}
