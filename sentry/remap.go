package sentry

import (
	"errors"
	"math"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/context"
	gverrors "gvisor.dev/gvisor/pkg/errors"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/usermem"

	"runsc-fs/blobfs"
)

// The ioctls that make files share blocks: ioctl_ficlonerange(2) and
// ioctl_fideduperange(2). Errors come in Linux's order.

// Ioctl implements vfs.FileDescriptionImpl.Ioctl.
func (fd *fileDescription) Ioctl(ctx context.Context, uio usermem.IO, sysno uintptr, args arch.SyscallArguments) (uintptr, error) {
	t := kernel.TaskFromContext(ctx)
	if t == nil {
		return 0, linuxerr.ENOTTY
	}
	var buf [cloneRangeBytes]byte
	switch args[1].Uint() {
	case linux.FICLONE:
		return 0, fd.clone(t, args[2].Int(), 0, 0, 0)
	case linux.FICLONERANGE:
		if _, err := uio.CopyIn(ctx, args[2].Pointer(), buf[:], usermem.IOOpts{}); err != nil {
			return 0, err
		}
		word := func(n int) int64 { return int64(hostarch.ByteOrder.Uint64(buf[n*8:])) }
		return 0, fd.clone(t, int32(word(0)), word(1), word(2), word(3))
	case linux.FIDEDUPERANGE:
		return 0, fd.dedupe(t, uio, args[2].Pointer())
	}
	return fd.FileDescriptionDefaultImpl.Ioctl(ctx, uio, sysno, args)
}

// cloneRangeBytes is the size of struct file_clone_range: the source's
// descriptor and offset, the length, the target's offset.
const cloneRangeBytes = 32

// getFile is t.GetFile for calls that use the file itself, which those opened
// with O_PATH do not allow.
func getFile(t *kernel.Task, fd int32) (*vfs.FileDescription, error) {
	file := t.GetFile(fd)
	if file == nil {
		return nil, linuxerr.EBADF
	}
	if file.StatusFlags()&linux.O_PATH != 0 {
		file.DecRef(t)
		return nil, linuxerr.EBADF
	}
	return file, nil
}

// descriptionOf returns the description of a file or directory on a volume, or nil.
func descriptionOf(file *vfs.FileDescription) *fileDescription {
	switch fd := file.Impl().(type) {
	case *regularFD:
		return &fd.fileDescription
	case *directoryFD:
		return &fd.fileDescription
	}
	return nil
}

// checkTypes says whether data can go from one file to the other by their types.
func checkTypes(in, out uint32) error {
	switch {
	case in == linux.S_IFDIR || out == linux.S_IFDIR:
		return linuxerr.EISDIR
	case in != linux.S_IFREG || out != linux.S_IFREG:
		return linuxerr.EINVAL
	}
	return nil
}

// checkModes says whether data can go from in to out by how they were opened.
func checkModes(in, out *vfs.FileDescription) error {
	if !in.IsReadable() || !out.IsWritable() || out.StatusFlags()&linux.O_APPEND != 0 {
		return linuxerr.EBADF
	}
	return nil
}

// checkSpan refuses offsets and lengths that no file can have.
func checkSpan(off, n int64) error {
	if off < 0 || n < 0 || off > math.MaxInt64-n {
		return linuxerr.EINVAL
	}
	return nil
}

// limitSize cuts what is to be written to a file down to the task's limit.
func limitSize(t *kernel.Task, off, n int64) (int64, error) {
	n, err := vfs.CheckLimit(t, off, n)
	if err == linuxerr.ErrExceedsFileSizeLimit {
		t.SendSignal(kernel.SignalInfoNoInfo(linux.SIGXFSZ, t, t))
		err = linuxerr.EFBIG
	}
	return n, err
}

func (i *inode) immutable() bool { return i.has(immutableFlag) }

// clone makes n bytes at dstOff of fd's file the same as those at off of the
// file that srcFD names; n 0 means up to its end.
func (fd *fileDescription) clone(t *kernel.Task, srcFD int32, off, n, dstOff int64) error {
	file, err := getFile(t, srcFD)
	if err != nil {
		return err
	}
	defer file.DecRef(t)
	if file.Mount().Filesystem() != fd.vfsfd.Mount().Filesystem() {
		return linuxerr.EXDEV
	}
	src := descriptionOf(file)
	if src == nil {
		return linuxerr.EINVAL // a FIFO or a device on the volume
	}
	if err := checkTypes(src.inode.fileType(), fd.inode.fileType()); err != nil {
		return err
	}
	if err := checkModes(file, &fd.vfsfd); err != nil {
		return err
	}
	if err := errors.Join(checkSpan(off, n), checkSpan(dstOff, n)); err != nil {
		return linuxerr.EINVAL
	}
	switch {
	case fd.inode.immutable():
		return linuxerr.EPERM
	case (off|dstOff)%blobfs.BlockSizeBytes != 0:
		return linuxerr.EINVAL
	}
	if err := fd.fs().usable(); err != nil {
		return err
	}
	want := n
	if n == 0 {
		want = src.inode.size() - off
	}
	if want > 0 {
		switch m, err := limitSize(t, dstOff, want); {
		case err != nil:
			return err
		case m < want:
			return linuxerr.EINVAL
		}
	}
	if err := fd.inode.dropPrivs(auth.CredentialsFromContext(t)); err != nil {
		return err
	}
	if err := fd.inode.blob.CloneRange(src.inode.blob, off, dstOff, n); err != nil {
		return errno(err)
	}
	notifyCopied(t, file, &fd.vfsfd)
	return fd.syncAsOpened()
}

// notifyCopied tells those who watch that data has gone from one file to another.
func notifyCopied(ctx context.Context, in, out *vfs.FileDescription) {
	in.Dentry().InotifyWithParent(ctx, linux.IN_ACCESS, 0, vfs.PathEvent)
	out.Dentry().InotifyWithParent(ctx, linux.IN_MODIFY, 0, vfs.PathEvent)
}

// syncAsOpened makes a change durable if the file was opened for that.
func (fd *fileDescription) syncAsOpened() error {
	status := fd.vfsfd.StatusFlags()
	if status&linux.O_DSYNC == 0 { // O_SYNC includes it
		return fd.inode.settle(nil)
	}
	return fd.sync(status&linux.O_SYNC != linux.O_SYNC)
}

// struct file_dedupe_range: source offset and length, number of targets and
// reserved bytes; and then for each target its descriptor and offset, and the
// number of bytes and the status that are returned, and reserved bytes.
const (
	dedupeHeadBytes   = 24
	dedupeTargetBytes = 32
	dedupeDiffers     = 1 // FILE_DEDUPE_RANGE_DIFFERS
)

// dedupe makes ranges of other files share blocks with one of fd's file.
func (fd *fileDescription) dedupe(t *kernel.Task, uio usermem.IO, addr hostarch.Addr) error {
	order := hostarch.ByteOrder
	var head [dedupeHeadBytes]byte
	if _, err := uio.CopyIn(t, addr, head[:], usermem.IOOpts{}); err != nil {
		return err
	}
	count := int(order.Uint16(head[16:]))
	size := dedupeHeadBytes + count*dedupeTargetBytes
	if size > hostarch.PageSize {
		return linuxerr.ENOMEM
	}
	buf := make([]byte, size)
	if _, err := uio.CopyIn(t, addr, buf, usermem.IOOpts{}); err != nil {
		return err
	}
	off, n := int64(order.Uint64(buf)), int64(order.Uint64(buf[8:]))
	switch {
	case !fd.vfsfd.IsReadable(), order.Uint16(buf[18:]) != 0 || order.Uint32(buf[20:]) != 0:
		return linuxerr.EINVAL
	case fd.inode.isDir():
		return linuxerr.EISDIR
	case checkSpan(off, n) != nil, off+n > fd.inode.size():
		return linuxerr.EINVAL
	}
	for k := range count {
		target := buf[dedupeHeadBytes+k*dedupeTargetBytes:][:dedupeTargetBytes]
		var done, status int64
		var err error
		if order.Uint32(target[28:]) != 0 {
			err = linuxerr.EINVAL
		} else {
			done, err = fd.dedupeOne(t, int32(order.Uint64(target)), off, n, int64(order.Uint64(target[8:])))
		}
		switch {
		case errors.Is(err, blobfs.ErrDiffers):
			status = dedupeDiffers
		case err != nil:
			status = -int64(toErrno(err))
		}
		order.PutUint64(target[16:], uint64(done))
		order.PutUint32(target[24:], uint32(int32(status)))
		if t.Interrupted() {
			break
		}
	}
	_, err := uio.CopyOut(t, addr, buf, usermem.IOOpts{})
	return err
}

func toErrno(err error) unix.Errno {
	var e *gverrors.Error
	if errors.As(err, &e) {
		return unix.Errno(e.Errno())
	}
	return unix.EIO
}

// dedupeOne shares blocks with one target. It changes no content, so who could
// write to the target may do it without having opened it for writing.
func (fd *fileDescription) dedupeOne(t *kernel.Task, dstFD int32, off, n, dstOff int64) (int64, error) {
	file, err := getFile(t, dstFD)
	if err != nil {
		return 0, err
	}
	defer file.DecRef(t)
	mnt := file.Mount()
	if err := mnt.CheckBeginWrite(); err != nil {
		return 0, err
	}
	defer mnt.EndWrite()
	if err := checkSpan(dstOff, n); err != nil {
		return 0, err
	}
	if mnt.Filesystem() != fd.vfsfd.Mount().Filesystem() {
		return 0, linuxerr.EXDEV
	}
	dst := descriptionOf(file)
	if dst == nil {
		return 0, linuxerr.EINVAL
	}
	creds := auth.CredentialsFromContext(t)
	switch {
	case !creds.HasRootCapability(linux.CAP_SYS_ADMIN) && !file.IsWritable() && creds.EffectiveKUID != dst.inode.kuid() &&
		dst.inode.checkPermissions(creds, vfs.MayWrite) != nil:
		return 0, linuxerr.EPERM
	case dst.inode.isDir():
		return 0, linuxerr.EISDIR
	case n == 0:
		return 0, nil
	case dst.inode.immutable():
		return 0, linuxerr.EPERM
	}
	if err := fd.fs().usable(); err != nil {
		return 0, err
	}
	done, err := dst.inode.blob.DedupeRange(fd.inode.blob, off, dstOff, n)
	if err != nil && !errors.Is(err, blobfs.ErrDiffers) {
		err = errno(err)
	}
	if err == nil {
		err = dst.syncAsOpened()
	}
	return done, err
}
