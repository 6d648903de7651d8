package sentry

import (
	"io"
	"math"

	abi "gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/marshal/primitive"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/usermem"
)

// copyFileRange implements copy_file_range(2), which gVisor does not have.
// Files of one volume share blocks where they can; all others are copied here.
// As in Linux both files must be on one file system.
func copyFileRange(t *kernel.Task, sysno uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
	in, err := getFile(t, args[0].Int())
	if err != nil {
		return 0, nil, err
	}
	defer in.DecRef(t)
	out, err := getFile(t, args[2].Int())
	if err != nil {
		return 0, nil, err
	}
	defer out.DecRef(t)
	from := filePosition{file: in, addr: args[1].Pointer()}
	to := filePosition{file: out, addr: args[3].Pointer()}
	for _, p := range []*filePosition{&from, &to} {
		if err := p.load(t); err != nil {
			return 0, nil, err
		}
	}
	if args[5].Uint() != 0 {
		return 0, nil, linuxerr.EINVAL
	}
	done, err := copyRange(t, &from, &to, args[4].SizeT())
	if done == 0 {
		return 0, nil, err
	}
	notifyCopied(t, in, out)
	for _, p := range []*filePosition{&from, &to} {
		if err := p.store(t, done); err != nil {
			return 0, nil, err
		}
	}
	return uintptr(done), nil, nil // what stopped it comes up again with the next call
}

// filePosition is a place in a file: in the caller's memory, or the
// description's own if addr is 0.
type filePosition struct {
	file *vfs.FileDescription
	addr hostarch.Addr
	off  int64
}

func (p *filePosition) load(t *kernel.Task) error {
	if p.addr == 0 {
		var err error
		if p.off, err = p.file.Seek(t, 0, abi.SEEK_CUR); err != nil {
			p.off = 0 // no file that copyRange takes
		}
		return nil
	}
	_, err := primitive.CopyInt64In(t, p.addr, &p.off)
	return err
}

// store moves the position on.
func (p *filePosition) store(t *kernel.Task, n int64) error {
	if p.addr == 0 {
		_, err := p.file.Seek(t, p.off+n, abi.SEEK_SET)
		return err
	}
	_, err := primitive.CopyInt64Out(t, p.addr, p.off+n)
	return err
}

// copyRange copies up to length bytes and returns how many it did.
func copyRange(t *kernel.Task, from, to *filePosition, length uint) (int64, error) {
	in, out := from.file, to.file
	inStat, err := in.Stat(t, vfs.StatOptions{Mask: abi.STATX_TYPE | abi.STATX_SIZE | abi.STATX_INO})
	if err != nil {
		return 0, err
	}
	outStat, err := out.Stat(t, vfs.StatOptions{Mask: abi.STATX_TYPE | abi.STATX_INO})
	if err != nil {
		return 0, err
	}
	if err := checkTypes(uint32(inStat.Mode)&abi.S_IFMT, uint32(outStat.Mode)&abi.S_IFMT); err != nil {
		return 0, err
	}
	if err := checkModes(in, out); err != nil {
		return 0, err
	}
	if in.Mount().Filesystem() != out.Mount().Filesystem() {
		return 0, linuxerr.EXDEV
	}
	src, onVolume := in.Impl().(*regularFD)
	dst, _ := out.Impl().(*regularFD)
	if onVolume && dst.inode.immutable() {
		return 0, linuxerr.EPERM
	}
	for _, off := range [2]int64{from.off, to.off} {
		switch {
		case uint64(off)+uint64(length) < uint64(off):
			return 0, linuxerr.EOVERFLOW
		case off < 0:
			return 0, linuxerr.EINVAL
		}
	}
	n := int64(min(uint64(length), uint64(max(int64(inStat.Size)-from.off, 0)), math.MaxInt64-uint64(to.off)))
	if n, err = limitSize(t, to.off, n); err != nil {
		return 0, err
	}
	same := inStat.Ino == outStat.Ino && inStat.DevMajor == outStat.DevMajor && inStat.DevMinor == outStat.DevMinor
	if same && from.off < to.off+n && to.off < from.off+n {
		return 0, linuxerr.EINVAL
	}
	if n = min(n, int64(abi.MAX_RW_COUNT)); n == 0 {
		return 0, nil
	}
	if onVolume {
		return src.copyTo(t, dst, from.off, to.off, n)
	}
	return copyThroughMemory(t, from, to, n)
}

// copyTo copies n bytes to a file of the same volume.
func (fd *regularFD) copyTo(t *kernel.Task, dst *regularFD, off, dstOff, n int64) (done int64, err error) {
	if err := fd.fs().usable(); err != nil {
		return 0, err
	}
	if err := dst.inode.dropPrivs(auth.CredentialsFromContext(t)); err != nil {
		return 0, err
	}
	for done < n && err == nil {
		var m int64
		m, err = dst.inode.blob.CopyRange(fd.inode.blob, off+done, dstOff+done, n-done)
		if done += m; m == 0 {
			break
		}
		if err == nil && t.Interrupted() {
			err = linuxerr.ErrInterrupted
		}
	}
	if done == 0 {
		return 0, errno(err)
	}
	if err := dst.syncAsOpened(); err != nil {
		return 0, err
	}
	return done, nil
}

// copyBufferBytes is how much copyThroughMemory reads at once.
const copyBufferBytes = 256 << 10

// copyThroughMemory copies n bytes between files of any one file system.
func copyThroughMemory(t *kernel.Task, from, to *filePosition, n int64) (done int64, err error) {
	buf := make([]byte, min(n, copyBufferBytes))
	for done < n {
		part := usermem.BytesIOSequence(buf[:min(n-done, int64(len(buf)))])
		got, err := from.file.PRead(t, part, from.off+done, vfs.ReadOptions{})
		if got == 0 {
			if err == io.EOF {
				err = nil
			}
			return done, err
		}
		for part = part.TakeFirst64(got); part.NumBytes() > 0; {
			m, err := to.file.PWrite(t, part, to.off+done, vfs.WriteOptions{})
			done += m
			if err != nil || m == 0 {
				return done, err
			}
			part = part.DropFirst64(m)
		}
		if t.Interrupted() {
			return done, linuxerr.ErrInterrupted
		}
	}
	return done, nil
}
