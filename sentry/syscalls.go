package sentry

import (
	"maps"
	"math"

	"golang.org/x/sys/unix"
	abi "gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/limits"
	"gvisor.dev/gvisor/pkg/sentry/syscalls/linux"
	"gvisor.dev/gvisor/pkg/sentry/vfs"

	"runsc-fs/sentry/aio"
	"runsc-fs/sentry/uring"
)

// gVisor's file interface knows less than Linux's: it cannot tell fdatasync(2)
// from fsync(2), and it has no modes of fallocate(2). The calls below do the
// whole job for blobfs files and leave all others to gVisor.

// replaceSyscalls puts them into gVisor's table. It is called before there are
// tasks.
func replaceSyscalls() {
	calls := aio.Syscalls()
	maps.Copy(calls, uring.Syscalls())
	uring.Fallocate = fallocateFile
	calls[unix.SYS_FDATASYNC] = fdatasync
	calls[unix.SYS_FALLOCATE] = fallocate
	calls[unix.SYS_COPY_FILE_RANGE] = copyFileRange
	for sysno, fn := range calls {
		entry := syscallTable.Table[sysno]
		entry.Fn = fn
		syscallTable.Table[sysno] = entry
	}
	for sysno, call := range fileCalls {
		entry := syscallTable.Table[sysno]
		entry.Name, entry.Fn = call.Name, call.Fn
		syscallTable.Table[sysno] = entry
	}
	traceSyscalls()
	syscallTable.Init()
}

// fdatasync makes the data of a file durable, and of its attributes only what
// is needed to read them.
func fdatasync(t *kernel.Task, sysno uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
	file := t.GetFile(args[0].Int())
	if file == nil {
		return 0, nil, linuxerr.EBADF
	}
	defer file.DecRef(t)
	if fd, ok := file.Impl().(*regularFD); ok {
		return 0, nil, fd.sync(true /* dataOnly */)
	}
	return 0, nil, file.Sync(t)
}

// Modes of fallocate(2) that Linux knows, whether a file system does or not.
const fallocateModes = abi.FALLOC_FL_KEEP_SIZE | abi.FALLOC_FL_PUNCH_HOLE | abi.FALLOC_FL_COLLAPSE_RANGE |
	abi.FALLOC_FL_ZERO_RANGE | abi.FALLOC_FL_INSERT_RANGE | abi.FALLOC_FL_UNSHARE_RANGE

// shiftModes change a file by moving what lies behind the range.
const shiftModes = abi.FALLOC_FL_COLLAPSE_RANGE | abi.FALLOC_FL_INSERT_RANGE

// fallocate adds the modes that gVisor refuses before a file system sees them.
func fallocate(t *kernel.Task, sysno uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
	mode, offset, length := args[1].Uint(), args[2].Int64(), args[3].Int64()
	file := t.GetFile(args[0].Int())
	if file == nil {
		return 0, nil, linuxerr.EBADF
	}
	defer file.DecRef(t)
	if _, ok := file.Impl().(*regularFD); !ok {
		return linux.Fallocate(t, sysno, args)
	}
	return 0, nil, fallocateFile(t, file, mode, offset, length)
}

// fallocateFile is fallocate(2) of an open file. Those of other file systems
// than blobfs have no modes.
func fallocateFile(t *kernel.Task, file *vfs.FileDescription, mode uint32, offset, length int64) error {
	const exclusive = abi.FALLOC_FL_PUNCH_HOLE | abi.FALLOC_FL_ZERO_RANGE
	_, ours := file.Impl().(*regularFD)
	switch {
	case offset < 0 || length <= 0:
		return linuxerr.EINVAL
	case mode&^uint32(fallocateModes) != 0, mode&exclusive == exclusive, mode != 0 && !ours,
		mode&abi.FALLOC_FL_PUNCH_HOLE != 0 && mode&abi.FALLOC_FL_KEEP_SIZE == 0:
		return linuxerr.EOPNOTSUPP
	case mode&shiftModes != 0 && mode != abi.FALLOC_FL_COLLAPSE_RANGE && mode != abi.FALLOC_FL_INSERT_RANGE:
		return linuxerr.EINVAL
	case !file.IsWritable():
		return linuxerr.EBADF
	case offset > math.MaxInt64-length:
		return linuxerr.EFBIG
	}
	if mode&(abi.FALLOC_FL_KEEP_SIZE|shiftModes) == 0 {
		if limit := limits.FromContext(t).Get(limits.FileSize).Cur; uint64(offset+length) > limit {
			t.SendSignal(kernel.SignalInfoNoInfo(abi.SIGXFSZ, t, t))
			return linuxerr.EFBIG
		}
	}
	return file.Allocate(t, uint64(mode), uint64(offset), uint64(length))
}
