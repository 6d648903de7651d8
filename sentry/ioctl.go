package sentry

import (
	"math"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/usermem"

	"runsc-fs/blobfs"
)

// Requests of ioctl(2) that gVisor has no names for.
const (
	fibmap       = 0x1
	figetbsz     = 0x2
	fitrim       = 0xc0185879
	fsGetFlags   = 0x80086601
	fsSetFlags   = 0x40086602
	fsGetVersion = 0x80087601
	fsGetXattr   = 0x801c581f
	fsSetXattr   = 0x401c5820
	fsGetLabel   = 0x81009431
	fsMap        = 0xc020660b
)

// userArgument is the memory that the argument of an ioctl points to.
type userArgument struct {
	ctx  context.Context
	uio  usermem.IO
	addr hostarch.Addr
}

func (u *userArgument) copyIn(b []byte) error {
	_, err := u.uio.CopyIn(u.ctx, u.addr, b, usermem.IOOpts{})
	return err
}

func (u *userArgument) copyOut(b []byte) error { return u.copyOutAt(0, b) }

func (u *userArgument) copyOutAt(offset uint64, b []byte) error {
	addr, ok := u.addr.AddLength(offset)
	if !ok {
		return linuxerr.EFAULT
	}
	_, err := u.uio.CopyOut(u.ctx, addr, b, usermem.IOOpts{})
	return err
}

func (u *userArgument) copyOutUint32(v uint32) error {
	var b [4]byte
	hostarch.ByteOrder.PutUint32(b[:], v)
	return u.copyOut(b[:])
}

// Ioctl implements vfs.FileDescriptionImpl.Ioctl.
func (fd *directoryFD) Ioctl(ctx context.Context, uio usermem.IO, sysno uintptr, args arch.SyscallArguments) (uintptr, error) {
	return fd.ioctl(ctx, uio, sysno, args)
}

// Ioctl implements vfs.FileDescriptionImpl.Ioctl.
func (fd *regularFD) Ioctl(ctx context.Context, uio usermem.IO, sysno uintptr, args arch.SyscallArguments) (uintptr, error) {
	arg := &userArgument{ctx, uio, args[2].Pointer()}
	switch args[1].Uint() {
	case linux.FIONREAD:
		fd.offMu.Lock()
		left := fd.inode.size() - fd.off
		fd.offMu.Unlock()
		return 0, arg.copyOutUint32(uint32(left)) // as Linux does, whatever is lost
	case fibmap:
		// What a program would do with an address of the device, it must not do.
		if !auth.CredentialsFromContext(ctx).HasRootCapability(linux.CAP_SYS_RAWIO) {
			return 0, linuxerr.EPERM
		}
		return 0, linuxerr.EINVAL
	case fsMap:
		return 0, fd.fiemap(arg)
	}
	return fd.ioctl(ctx, uio, sysno, args)
}

// ioctl serves the requests that files and directories have in common.
func (fd *fileDescription) ioctl(ctx context.Context, uio usermem.IO, sysno uintptr, args arch.SyscallArguments) (uintptr, error) {
	i := fd.inode
	creds := auth.CredentialsFromContext(ctx)
	arg := &userArgument{ctx, uio, args[2].Pointer()}
	switch args[1].Uint() {
	case figetbsz:
		return 0, arg.copyOutUint32(blobfs.BlockSizeBytes)
	case fsGetFlags:
		return 0, arg.copyOutUint32(i.flags.Load())
	case fsSetFlags:
		var b [4]byte
		if err := arg.copyIn(b[:]); err != nil {
			return 0, err
		}
		return 0, fd.setFlags(creds, hostarch.ByteOrder.Uint32(b[:]), nil)
	case fsGetXattr:
		return 0, fd.getFsxattr(arg)
	case fsSetXattr:
		return 0, fd.setFsxattr(creds, arg)
	case fsGetVersion:
		return 0, arg.copyOutUint32(i.blob.Generation())
	case fsGetLabel:
		var b [256]byte
		copy(b[:len(b)-1], i.fs.blob.Label())
		return 0, arg.copyOut(b[:])
	case fitrim:
		return 0, fd.trim(creds, arg)
	case fsMap:
		return 0, linuxerr.EOPNOTSUPP
	}
	return fd.Ioctl(ctx, uio, sysno, args)
}

// Places in struct fsxattr.
const (
	fsxXflags     = 0
	fsxExtents    = 8
	fsxProjectID  = 12
	fsxAttrBytes  = 28
	countedAtOnce = 1024
)

func (fd *fileDescription) getFsxattr(arg *userArgument) error {
	attr := fd.inode.blob.Attr()
	var b [fsxAttrBytes]byte
	hostarch.ByteOrder.PutUint32(b[fsxXflags:], fsxOf(attr.Flags))
	hostarch.ByteOrder.PutUint32(b[fsxProjectID:], attr.ProjectID)
	if fd.inode.isRegular() {
		n, err := fd.countExtents()
		if err != nil {
			return err
		}
		hostarch.ByteOrder.PutUint32(b[fsxExtents:], n)
	}
	return arg.copyOut(b[:])
}

func (fd *fileDescription) countExtents() (n uint32, err error) {
	for off, more := int64(0), true; more; {
		var list []blobfs.Extent
		list, more, err = fd.inode.blob.Extents(off, math.MaxInt64, countedAtOnce)
		if err != nil || len(list) == 0 {
			return n, errno(err)
		}
		n += uint32(len(list))
		off = list[len(list)-1].Offset + list[len(list)-1].Length
	}
	return n, nil
}

func (fd *fileDescription) setFsxattr(creds *auth.Credentials, arg *userArgument) error {
	var b [fsxAttrBytes]byte
	if err := arg.copyIn(b[:]); err != nil {
		return err
	}
	flags, err := flagsOf(hostarch.ByteOrder.Uint32(b[fsxXflags:]))
	if err != nil {
		return err
	}
	project := hostarch.ByteOrder.Uint32(b[fsxProjectID:])
	return fd.setFlags(creds, flags, &project)
}

// trim is FITRIM: struct fstrim_range has the bytes of the volume that are to be
// looked at and the shortest run that counts, and gets the bytes that were
// discarded.
func (fd *fileDescription) trim(creds *auth.Credentials, arg *userArgument) error {
	if !creds.HasRootCapability(linux.CAP_SYS_ADMIN) {
		return linuxerr.EPERM
	}
	fs := fd.fs()
	if err := fs.usable(); err != nil {
		return err
	}
	var b [24]byte
	if err := arg.copyIn(b[:]); err != nil {
		return err
	}
	le := hostarch.ByteOrder
	start, length, minimum := le.Uint64(b[0:]), le.Uint64(b[8:]), le.Uint64(b[16:])
	volumeBytes := uint64(fs.blob.StatFS().TotalBlocks) * blobfs.BlockSizeBytes
	if start >= volumeBytes || length < blobfs.BlockSizeBytes || minimum > volumeBytes {
		return linuxerr.EINVAL
	}
	trimmed, err := fs.blob.Trim(start, length, minimum)
	if err != nil {
		return errno(err)
	}
	le.PutUint64(b[8:], trimmed)
	return arg.copyOut(b[:])
}
