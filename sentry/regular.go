package sentry

import (
	"errors"
	"io"
	"math"
	"sync"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/usermem"

	"runsc-fs/blobfs"
	"runsc-fs/nvme/trace"
	"runsc-fs/sentry/volumestats"
)

// Flags of preadv2(2) and pwritev2(2) that gVisor has no names for. It passes
// them on unseen.
const (
	rwfNoWait   = 0x08
	rwfAppend   = 0x10
	rwfNoAppend = 0x20

	readFlags  = linux.RWF_HIPRI | linux.RWF_DSYNC | linux.RWF_SYNC | rwfNoWait
	writeFlags = readFlags | rwfAppend | rwfNoAppend
)

// regularFD implements vfs.FileDescriptionImpl for regular files.
type regularFD struct {
	fileDescription

	// offMu guards off and serialises what uses it: POSIX wants reads and
	// writes through one description to follow each other.
	offMu sync.Mutex
	off   int64
}

// userMemory lets the volume copy from and to the memory of an application. It
// implements blobfs.Sink and blobfs.Source.
type userMemory struct {
	ctx context.Context
	seq usermem.IOSequence
}

var userMemoryPool = sync.Pool{New: func() any { return new(userMemory) }}

func getUserMemory(ctx context.Context, seq usermem.IOSequence) *userMemory {
	u := userMemoryPool.Get().(*userMemory)
	u.ctx, u.seq = ctx, seq
	return u
}

func putUserMemory(u *userMemory) {
	*u = userMemory{}
	userMemoryPool.Put(u)
}

// CopyOut implements blobfs.Sink.
func (u *userMemory) CopyOut(b []byte) (int, error) {
	was := trace.Enter(trace.Copy)
	n, err := u.seq.CopyOut(u.ctx, b)
	trace.Leave(was)
	u.seq = u.seq.DropFirst(n)
	return n, err
}

// CopyIn implements blobfs.Source.
func (u *userMemory) CopyIn(b []byte) (int, error) {
	was := trace.Enter(trace.Copy)
	n, err := u.seq.CopyIn(u.ctx, b)
	trace.Leave(was)
	u.seq = u.seq.DropFirst(n)
	return n, err
}

// readFlags checks the flags of a read and gives those for the volume.
func (fd *regularFD) readFlags(flags uint32) (blobfs.IOFlags, error) {
	if flags&^readFlags != 0 {
		return 0, linuxerr.EOPNOTSUPP
	}
	if err := fd.fs().usable(); err != nil {
		return 0, err
	}
	var io blobfs.IOFlags
	if fd.keepsAtime() {
		io |= blobfs.IONoAtime
	}
	if flags&rwfNoWait != 0 {
		io |= blobfs.IONoWait
	}
	if fd.vfsfd.StatusFlags()&linux.O_DIRECT != 0 {
		io |= blobfs.IODirect // the volume checks offset and length
	}
	return io, nil
}

// failed says whether a read or write counts as failed. One that must not wait and
// would have to is tried again.
func failed(err error) bool { return err != nil && !errors.Is(err, blobfs.ErrWouldBlock) }

// readResult gives the outcome of a read that the volume has carried out.
func readResult(done int64, err error) (int64, error) {
	switch {
	case done > 0:
		return done, nil // what stopped it comes up again with the next read
	case err != nil:
		return 0, errno(err)
	}
	return 0, io.EOF
}

// PRead implements vfs.FileDescriptionImpl.PRead.
func (fd *regularFD) PRead(ctx context.Context, dst usermem.IOSequence, offset int64, opts vfs.ReadOptions) (int64, error) {
	if offset < 0 {
		return 0, linuxerr.EINVAL
	}
	flags, err := fd.readFlags(opts.Flags)
	n := dst.NumBytes()
	if err != nil || n == 0 {
		return 0, err
	}
	u := getUserMemory(ctx, dst)
	was := trace.Enter(trace.FS)
	call := fd.stats.Begin(volumestats.Read)
	done, err := fd.inode.blob.ReadAt(u, offset, min(n, math.MaxInt64-offset), flags)
	call.End(done, failed(err))
	trace.Leave(was)
	putUserMemory(u)
	return readResult(done, err)
}

// Read implements vfs.FileDescriptionImpl.Read.
func (fd *regularFD) Read(ctx context.Context, dst usermem.IOSequence, opts vfs.ReadOptions) (int64, error) {
	fd.offMu.Lock()
	n, err := fd.PRead(ctx, dst, fd.off, opts)
	fd.off += n
	fd.offMu.Unlock()
	return n, err
}

// PWrite implements vfs.FileDescriptionImpl.PWrite.
func (fd *regularFD) PWrite(ctx context.Context, src usermem.IOSequence, offset int64, opts vfs.WriteOptions) (int64, error) {
	_, n, err := fd.write(ctx, src, offset, opts)
	return n, err
}

// Write implements vfs.FileDescriptionImpl.Write.
func (fd *regularFD) Write(ctx context.Context, src usermem.IOSequence, opts vfs.WriteOptions) (int64, error) {
	fd.offMu.Lock()
	at, n, err := fd.write(ctx, src, fd.off, opts)
	if n > 0 {
		fd.off = at + n
	}
	fd.offMu.Unlock()
	return n, err
}

// write writes src at offset, or at the end of the file if the description or
// opts say so, and returns where and how much it has written.
func (fd *regularFD) write(ctx context.Context, src usermem.IOSequence, offset int64, opts vfs.WriteOptions) (at, done int64, err error) {
	p, err := fd.planWrite(ctx, offset, src.NumBytes(), opts.Flags)
	if err != nil {
		return 0, 0, err
	}
	if p.n == 0 {
		return p.offset, 0, nil
	}
	u := getUserMemory(ctx, src)
	was := trace.Enter(trace.FS)
	call := fd.stats.Begin(volumestats.Write)
	if p.atEnd {
		at, done, err = fd.inode.blob.Append(u, p.n, p.flags)
	} else {
		at = p.offset
		done, err = fd.inode.blob.WriteAt(u, p.offset, p.n, p.flags)
	}
	call.End(done, failed(err))
	trace.Leave(was)
	putUserMemory(u)
	done, err = p.result(done, err)
	return at, done, err
}

// writePlan is a write that may be carried out.
type writePlan struct {
	offset, n int64
	atEnd     bool
	flags     blobfs.IOFlags
}

// planWrite checks a write of n bytes, all but whether the volume has room for
// it, and prepares the inode.
func (fd *regularFD) planWrite(ctx context.Context, offset, n int64, opts uint32) (p writePlan, err error) {
	if offset < 0 {
		return p, linuxerr.EINVAL
	}
	const bothAppends = rwfAppend | rwfNoAppend
	if opts&bothAppends == bothAppends {
		return p, linuxerr.EINVAL
	}
	if opts&^writeFlags != 0 {
		return p, linuxerr.EOPNOTSUPP
	}
	p.offset = offset
	if n == 0 {
		return p, nil
	}
	i := fd.inode
	if err := i.fs.usable(); err != nil {
		return p, err
	}
	if err := i.mutable(immutableFlag); err != nil {
		return p, err // opened before it became immutable
	}
	status := fd.vfsfd.StatusFlags()
	p.atEnd = status&linux.O_APPEND != 0 && opts&rwfNoAppend == 0 || opts&rwfAppend != 0
	if p.atEnd {
		// Where exactly it goes is decided by the volume; the limits are
		// checked against the end as it is now.
		p.offset = i.size()
	}
	n = min(n, math.MaxInt64-p.offset)
	if n, err = vfs.CheckLimit(ctx, p.offset, n); err != nil {
		return p, err
	}
	if p.offset >= blobfs.MaxFileSizeBytes {
		return p, linuxerr.EFBIG
	}
	p.n = min(n, blobfs.MaxFileSizeBytes-p.offset)

	if status&linux.O_DIRECT != 0 {
		if !fd.fs().directAligned(p.offset, p.n) {
			return p, linuxerr.EINVAL
		}
		p.flags |= blobfs.IODirect
	}
	if opts&rwfNoWait != 0 {
		p.flags |= blobfs.IONoWait
	}
	// O_SYNC includes the bit of O_DSYNC.
	if status&linux.O_SYNC != 0 || i.fs.sync || opts&linux.RWF_SYNC != 0 {
		p.flags |= blobfs.IOSync
	} else if status&linux.O_DSYNC != 0 || opts&linux.RWF_DSYNC != 0 {
		p.flags |= blobfs.IODSync
	}
	if !i.unprivileged() {
		if err := i.dropPrivs(auth.CredentialsFromContext(ctx)); err != nil {
			return p, err
		}
	}
	return p, nil
}

// result gives the outcome of the write that the volume has carried out.
func (p *writePlan) result(done int64, err error) (int64, error) {
	if err != nil && done > 0 && p.flags&(blobfs.IOSync|blobfs.IODSync) == 0 {
		err = nil // what stopped it comes up again with the next write
	}
	if err != nil {
		return 0, errno(err)
	}
	return done, nil
}

// Seek implements vfs.FileDescriptionImpl.Seek.
func (fd *regularFD) Seek(ctx context.Context, offset int64, whence int32) (int64, error) {
	fd.offMu.Lock()
	defer fd.offMu.Unlock()
	var err error
	switch whence {
	case linux.SEEK_SET:
	case linux.SEEK_CUR:
		offset, err = addOffsets(fd.off, offset)
	case linux.SEEK_END:
		offset, err = addOffsets(fd.inode.size(), offset)
	case linux.SEEK_DATA, linux.SEEK_HOLE:
		if offset < 0 {
			return 0, linuxerr.ENXIO
		}
		if whence == linux.SEEK_DATA {
			offset, err = fd.inode.blob.SeekData(offset)
		} else {
			offset, err = fd.inode.blob.SeekHole(offset)
		}
		err = errno(err)
	default:
		return 0, linuxerr.EINVAL
	}
	if err != nil {
		return 0, err
	}
	if offset < 0 || offset > blobfs.MaxFileSizeBytes {
		return 0, linuxerr.EINVAL
	}
	fd.off = offset
	return offset, nil
}

func addOffsets(a, b int64) (int64, error) {
	if b > 0 && a > math.MaxInt64-b {
		return 0, linuxerr.EOVERFLOW
	}
	return a + b, nil
}

// Allocate implements vfs.FileDescriptionImpl.Allocate.
func (fd *regularFD) Allocate(ctx context.Context, mode, offset, length uint64) error {
	return fd.inode.settle(fd.allocate(ctx, mode, offset, length))
}

func (fd *regularFD) allocate(ctx context.Context, mode, offset, length uint64) error {
	const known = uint64(blobfs.FallocKeepSize | blobfs.FallocPunchHole | blobfs.FallocZeroRange | blobfs.FallocUnshare)
	if mode&^(known|shiftModes) != 0 {
		return linuxerr.EOPNOTSUPP
	}
	if end := offset + length; end < offset || end > blobfs.MaxFileSizeBytes {
		return linuxerr.EFBIG
	}
	forbidden := uint32(immutableFlag)
	if mode&^uint64(blobfs.FallocKeepSize) != 0 {
		forbidden |= appendFlag
	}
	if err := fd.inode.mutable(forbidden); err != nil {
		return err
	}
	if err := fd.fs().usable(); err != nil {
		return err
	}
	if err := fd.inode.dropPrivs(auth.CredentialsFromContext(ctx)); err != nil {
		return err
	}
	switch mode {
	case linux.FALLOC_FL_COLLAPSE_RANGE:
		err := fd.inode.blob.Collapse(int64(offset), int64(length))
		if err == nil {
			fd.inode.invalidateBeyond(uint64(fd.inode.size()))
		}
		return errno(err)
	case linux.FALLOC_FL_INSERT_RANGE:
		return errno(fd.inode.blob.Insert(int64(offset), int64(length)))
	}
	return errno(fd.inode.blob.Fallocate(blobfs.FallocateMode(mode), int64(offset), int64(length)))
}

// directAligned says whether O_DIRECT may transfer n bytes at offset.
func (fs *filesystem) directAligned(offset, n int64) bool {
	return (offset|n)&(fs.directAlign-1) == 0
}
