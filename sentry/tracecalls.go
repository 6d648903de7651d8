package sentry

import (
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/kernel"

	"runsc-fs/sentry/volumestats"
)

// tracedCalls are the system calls that a trace begins with. Those of AIO and io_uring
// are traced by package rw.
var tracedCalls = map[uintptr]volumestats.Op{
	unix.SYS_READ:      volumestats.Read,
	unix.SYS_PREAD64:   volumestats.Read,
	unix.SYS_READV:     volumestats.Read,
	unix.SYS_PREADV:    volumestats.Read,
	unix.SYS_PREADV2:   volumestats.Read,
	unix.SYS_WRITE:     volumestats.Write,
	unix.SYS_PWRITE64:  volumestats.Write,
	unix.SYS_WRITEV:    volumestats.Write,
	unix.SYS_PWRITEV:   volumestats.Write,
	unix.SYS_PWRITEV2:  volumestats.Write,
	unix.SYS_FSYNC:     volumestats.Sync,
	unix.SYS_FDATASYNC: volumestats.Sync,
}

// traceSyscalls puts a beginning of traces before them.
func traceSyscalls() {
	for sysno, op := range tracedCalls {
		entry := syscallTable.Table[sysno]
		entry.Fn = tracedCall(op, entry.Fn)
		syscallTable.Table[sysno] = entry
	}
}

func tracedCall(op volumestats.Op, fn kernel.SyscallFn) kernel.SyscallFn {
	return func(t *kernel.Task, sysno uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
		if !volumestats.Tracing() {
			return fn(t, sysno, args)
		}
		var traced volumestats.Traced
		if volumestats.Sampled() { // looking for the file costs a little
			if file := t.GetFile(args[0].Int()); file != nil {
				traced = volumestats.BeginSampled(file.Impl(), op)
				file.DecRef(t)
			}
		}
		n, control, err := fn(t, sysno, args)
		traced.End()
		return n, control, err
	}
}
