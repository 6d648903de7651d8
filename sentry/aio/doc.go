// Package aio is Linux's asynchronous I/O (io_submit(2) and its family) for the
// sandbox. It takes the place of gVisor's, which starts a goroutine for each
// request and hides the completion ring.
//
// Requests are carried out at submission, on the thread that submits them, and
// those of one call go to their file together (package rw): on a blobfs file
// with O_DIRECT a batch of reads is one doorbell. Only IOCB_CMD_POLL is left
// pending; it costs nothing until its file becomes ready. As on Linux, a request
// on a file that has to wait (a pipe, a socket) makes io_submit wait.
//
// Results go to a ring that the application has mapped (struct aio_ring). It
// may reap them by moving the head without a system call, as fio and QEMU
// do. What it writes there is never trusted: positions are reduced to the ring,
// and the tail is kept here.
//
// A context belongs to one address space and ends when its ring is unmapped
// there, at the latest by exec or exit. A child has the mapping and no
// context, as on Linux.
//
// Lock order:
//
//	*** mm.MemoryManager.mappingMu
//	  table.mu
//	    Context.mu
//
// Events are posted without locks of files; a poll that has been notified goes
// on in a goroutine of its own, because its notifier holds any locks.
package aio

import (
	"gvisor.dev/gvisor/pkg/sentry/kernel"
)

// Syscalls are the functions for the system call table, by system call number.
func Syscalls() map[uintptr]kernel.SyscallFn {
	return map[uintptr]kernel.SyscallFn{
		sysIOSetup:      ioSetup,
		sysIODestroy:    ioDestroy,
		sysIOSubmit:     ioSubmit,
		sysIOCancel:     ioCancel,
		sysIOGetevents:  ioGetevents,
		sysIOPgetevents: ioPgetevents,
	}
}
