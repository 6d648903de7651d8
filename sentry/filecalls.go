package sentry

import (
	"math"

	"golang.org/x/sys/unix"
	abi "gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/fspath"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/syscalls/linux"
	"gvisor.dev/gvisor/pkg/sentry/vfs"

	"runsc-fs/blobfs"
)

// System calls that gVisor lacks, or that differ from Linux in what they refuse.

// fileCalls are the calls of this file and their names.
var fileCalls = map[uintptr]kernel.Syscall{
	unix.SYS_OPENAT2:           {Name: "openat2", Fn: openat2},
	unix.SYS_FCHMODAT2:         {Name: "fchmodat2", Fn: fchmodat2},
	unix.SYS_READAHEAD:         {Name: "readahead", Fn: readahead},
	unix.SYS_SYNC_FILE_RANGE:   {Name: "sync_file_range", Fn: syncFileRange},
	unix.SYS_FTRUNCATE:         {Name: "ftruncate", Fn: ftruncate},
	unix.SYS_MMAP:              {Name: "mmap", Fn: mmap},
	unix.SYS_STATX:             {Name: "statx", Fn: statx},
	unix.SYS_INOTIFY_ADD_WATCH: {Name: "inotify_add_watch", Fn: inotifyAddWatch},
}

// withPath calls fn with the file that a path leads to.
func withPath(t *kernel.Task, dirfd int32, addr hostarch.Addr, empty, follow bool, fn func(pop *vfs.PathOperation) error) error {
	name, err := t.CopyInString(addr, abi.PATH_MAX)
	if err != nil {
		return err
	}
	pop := vfs.PathOperation{Path: fspath.Parse(name), FollowFinalSymlink: follow}
	pop.Root = t.FSContext().RootDirectory()
	defer pop.Root.DecRef(t)
	pop.Start = pop.Root
	switch {
	case pop.Path.Absolute:
	case name == "" && !empty:
		return linuxerr.ENOENT
	case dirfd == abi.AT_FDCWD:
		pop.Start = t.FSContext().WorkingDirectory()
		defer pop.Start.DecRef(t)
	default:
		file := t.GetFile(dirfd)
		if file == nil {
			return linuxerr.EBADF
		}
		defer file.DecRef(t)
		pop.Start = file.VirtualDentry()
	}
	return fn(&pop)
}

// fchmodat2 is fchmodat(2) with the flags that the library only pretends to have.
func fchmodat2(t *kernel.Task, sysno uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
	mode, flags := args[2].ModeT(), args[3].Uint()
	if flags&^(abi.AT_SYMLINK_NOFOLLOW|abi.AT_EMPTY_PATH) != 0 {
		return 0, nil, linuxerr.EINVAL
	}
	opts := vfs.SetStatOptions{Stat: abi.Statx{Mask: abi.STATX_MODE, Mode: uint16(mode & 0o7777)}}
	vfsObj, creds := t.Kernel().VFS(), t.Credentials()
	return 0, nil, withPath(t, args[0].Int(), args[1].Pointer(), flags&abi.AT_EMPTY_PATH != 0, flags&abi.AT_SYMLINK_NOFOLLOW == 0, func(pop *vfs.PathOperation) error {
		st, err := vfsObj.StatAt(t, creds, pop, &vfs.StatOptions{Mask: abi.STATX_TYPE})
		switch {
		case err != nil:
			return err
		case st.Mode&abi.S_IFMT == abi.S_IFLNK:
			return linuxerr.EOPNOTSUPP
		}
		return vfsObj.SetStatAt(t, creds, pop, &opts)
	})
}

// readahead brings a range of a blobfs file into the cache.
func readahead(t *kernel.Task, sysno uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
	file := t.GetFile(args[0].Int())
	if file == nil {
		return 0, nil, linuxerr.EBADF
	}
	defer file.DecRef(t)
	fd, ours := file.Impl().(*regularFD)
	switch {
	case !ours:
		return linux.Readahead(t, sysno, args)
	case !file.IsReadable():
		return 0, nil, linuxerr.EBADF
	}
	offset, n := args[1].Int64(), int64(args[2].SizeT())
	if offset < 0 || n <= 0 || fd.fs().usable() != nil {
		return 0, nil, nil // a hint that leads nowhere
	}
	n = min(n, maxReadaheadBytes, math.MaxInt64-offset)
	fd.inode.blob.ReadAt(nowhere{}, offset, n, blobfs.IONoAtime) // errors come with the read itself
	return 0, nil, nil
}

// maxReadaheadBytes bounds what one call of readahead(2) reads.
const maxReadaheadBytes = 2 << 20

// nowhere is a blobfs.Sink for data that are only wanted in the cache.
type nowhere struct{}

// CopyOut implements blobfs.Sink.
func (nowhere) CopyOut(b []byte) (int, error) { return len(b), nil }

// syncFileRange makes sure that blobfs has written the range, as far as its
// caller wants to wait for that. It promises less than fdatasync(2), see
// sync_file_range(2), and here it does more: what is written is durable.
func syncFileRange(t *kernel.Task, sysno uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
	file := t.GetFile(args[0].Int())
	if file == nil {
		return 0, nil, linuxerr.EBADF
	}
	defer file.DecRef(t)
	offset, n, flags := args[1].Int64(), args[2].Int64(), args[3].Uint()
	const known = abi.SYNC_FILE_RANGE_WAIT_BEFORE | abi.SYNC_FILE_RANGE_WRITE | abi.SYNC_FILE_RANGE_WAIT_AFTER
	if file.StatusFlags()&abi.O_PATH != 0 {
		return 0, nil, linuxerr.EBADF
	}
	if flags&^uint32(known) != 0 || offset < 0 || n < 0 || offset > math.MaxInt64-n {
		return 0, nil, linuxerr.EINVAL
	}
	st, err := file.Stat(t, vfs.StatOptions{Mask: abi.STATX_TYPE})
	if err != nil {
		return 0, nil, err
	}
	switch st.Mode & abi.S_IFMT {
	case abi.S_IFREG, abi.S_IFDIR, abi.S_IFBLK, abi.S_IFLNK:
	default:
		return 0, nil, linuxerr.ESPIPE
	}
	fd, ours := file.Impl().(*regularFD)
	if !ours {
		return linux.SyncFileRange(t, sysno, args)
	}
	if flags&abi.SYNC_FILE_RANGE_WAIT_AFTER == 0 {
		return 0, nil, nil // write-back that nobody waits for can wait itself
	}
	return 0, nil, fd.sync(true /* dataOnly */)
}

// ftruncate gives the error of open(2) for descriptors that are no open files.
func ftruncate(t *kernel.Task, sysno uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
	if file := t.GetFile(args[0].Int()); file != nil {
		path := file.StatusFlags()&abi.O_PATH != 0
		file.DecRef(t)
		if path && args[1].Int64() >= 0 {
			return 0, nil, linuxerr.EBADF
		}
	}
	return linux.Ftruncate(t, sysno, args)
}

// Flags of mmap(2) that gVisor has no names for.
const (
	mapTypeMask       = 0x0f
	mapSharedValidate = 0x03
	// mapLegacyFlags are those that were there before MAP_SHARED_VALIDATE.
	mapLegacyFlags = abi.MAP_SHARED | abi.MAP_PRIVATE | abi.MAP_FIXED | abi.MAP_ANONYMOUS | unix.MAP_DENYWRITE | unix.MAP_EXECUTABLE |
		abi.MAP_GROWSDOWN | abi.MAP_LOCKED | abi.MAP_NORESERVE | abi.MAP_POPULATE | abi.MAP_NONBLOCK | abi.MAP_STACK |
		abi.MAP_HUGETLB | abi.MAP_32BIT | 0x3f<<unix.MAP_HUGE_SHIFT
)

// mmap adds MAP_SHARED_VALIDATE: MAP_SHARED that refuses flags it does not know.
// MAP_SYNC, the only one of them, is for memory that needs no write-back.
func mmap(t *kernel.Task, sysno uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
	flags := args[3].Uint()
	if flags&mapTypeMask == mapSharedValidate && flags&abi.MAP_ANONYMOUS == 0 {
		if flags&^uint32(mapLegacyFlags) != 0 {
			return 0, nil, linuxerr.EOPNOTSUPP
		}
		args[3].Value = args[3].Value&^mapTypeMask | abi.MAP_SHARED
	}
	return linux.Mmap(t, sysno, args)
}

// Places in struct statx behind what gVisor knows of it.
const (
	statxMaskOffset       = 0
	statxAlignmentsOffset = 152 // of memory, and of offset and length, 32 bits each
	statxDirectIO         = 0x2000
	// directMemoryAlign is what the addresses of buffers for O_DIRECT have to be
	// multiples of: nothing, since blobfs copies, but programs allocate by it.
	directMemoryAlign = 8
)

// statx adds what direct I/O on a blobfs file has to be aligned to.
func statx(t *kernel.Task, sysno uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
	ret, ctl, err := linux.Statx(t, sysno, args)
	if err != nil || args[3].Uint()&statxDirectIO == 0 {
		return ret, ctl, err
	}
	flags, addr := args[2].Uint(), args[4].Pointer()
	err = withPath(t, args[0].Int(), args[1].Pointer(), flags&abi.AT_EMPTY_PATH != 0, flags&abi.AT_SYMLINK_NOFOLLOW == 0, func(pop *vfs.PathOperation) error {
		vd, err := t.Kernel().VFS().GetDentryAt(t, t.Credentials(), pop, &vfs.GetDentryOptions{})
		if err != nil {
			return err
		}
		defer vd.DecRef(t)
		d, ours := vd.Dentry().Impl().(*dentry)
		if !ours || !d.inode.isRegular() {
			return nil
		}
		var b [8]byte
		hostarch.ByteOrder.PutUint32(b[0:], directMemoryAlign)
		hostarch.ByteOrder.PutUint32(b[4:], uint32(d.fs.directAlign))
		if _, err := t.CopyOutBytes(addr+statxAlignmentsOffset, b[:]); err != nil {
			return err
		}
		if _, err := t.CopyInBytes(addr+statxMaskOffset, b[:4]); err != nil {
			return err
		}
		hostarch.ByteOrder.PutUint32(b[:], hostarch.ByteOrder.Uint32(b[:])|statxDirectIO)
		_, err = t.CopyOutBytes(addr+statxMaskOffset, b[:4])
		return err
	})
	return 0, nil, err
}

// inotifyAddWatch wants to be allowed to read what is to be watched.
func inotifyAddWatch(t *kernel.Task, sysno uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
	file := t.GetFile(args[0].Int())
	if file != nil {
		_, isInotify := file.Impl().(*vfs.Inotify)
		file.DecRef(t)
		if isInotify && args[2].Uint()&abi.ALL_INOTIFY_BITS != 0 {
			follow := args[2].Uint()&abi.IN_DONT_FOLLOW == 0
			err := withPath(t, abi.AT_FDCWD, args[1].Pointer(), false, follow, func(pop *vfs.PathOperation) error {
				return t.Kernel().VFS().AccessAt(t, t.Credentials(), vfs.MayRead, pop)
			})
			if err != nil {
				return 0, nil, err
			}
		}
	}
	return linux.InotifyAddWatch(t, sysno, args)
}
