package soft

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// fileBacking keeps the namespace in an image file. Data moves straight
// between the arena and the file.
//
// System calls while open: pread64, pwrite64, preadv, pwritev, fdatasync and
// fallocate (punch hole, zero range); fstat while opening and growing, fcntl only
// while opening.
type fileBacking struct {
	file    *os.File
	fd      int
	props   Properties   // but for SizeBytes
	size    atomic.Int64 // of the file as far as it is served
	noZero  atomic.Bool  // the host's file system has no FALLOC_FL_ZERO_RANGE
	noPunch atomic.Bool  // the host's file system cannot punch holes

	syncMu       sync.Mutex
	syncErr      error         // first failure, never forgotten
	syncsStarted atomic.Uint64 // written under syncMu
}

// maxIovecs bounds one preadv or pwritev, well below the host's IOV_MAX.
const maxIovecs = 64

var iovecPool = sync.Pool{New: func() any { return new([maxIovecs]unix.Iovec) }}

// zeroChunk is what Zero writes where the host cannot zero a range.
var zeroChunk [64 << 10]byte

// NewFileBacking serves a namespace from an image file, which must be open for
// reading, and unless readOnly for writing. It takes f over. The size is that
// of the file at this moment. A file that is shortened later gives errors for
// what is missing.
//
// Flush is fdatasync and FUA is a write followed by fdatasync. After one
// fdatasync failed, all later ones fail too: the kernel forgets which pages it
// could not write, so that a success would mean nothing.
func NewFileBacking(f *os.File, readOnly bool) (Backing, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("soft: %w", err)
	}
	size := info.Size()
	if !info.Mode().IsRegular() {
		if info.Mode()&os.ModeDevice == 0 || info.Mode()&os.ModeCharDevice != 0 {
			return nil, fmt.Errorf("soft: %s is neither a regular file nor a block device", f.Name())
		}
		if size, err = f.Seek(0, 2); err != nil {
			return nil, fmt.Errorf("soft: size of %s: %w", f.Name(), err)
		}
	}
	flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0)
	if err != nil {
		return nil, fmt.Errorf("soft: flags of %s: %w", f.Name(), err)
	}
	if mode := flags & unix.O_ACCMODE; mode == unix.O_WRONLY || (mode == unix.O_RDONLY && !readOnly) {
		return nil, fmt.Errorf("soft: %s is not open for reading and writing", f.Name())
	}
	if flags&unix.O_APPEND != 0 {
		return nil, fmt.Errorf("soft: %s is open for appending, which would move every write to its end", f.Name())
	}
	b := &fileBacking{
		file:  f,
		fd:    int(f.Fd()),
		props: Properties{ReadOnly: readOnly, VolatileWriteCache: true},
	}
	b.size.Store(size)
	return b, nil
}

// Grow implements Grower: the file has been made longer.
func (b *fileBacking) Grow(sizeBytes int64) error {
	info, err := b.file.Stat()
	if err != nil {
		return fmt.Errorf("soft: %w", err)
	}
	switch size := info.Size(); {
	case sizeBytes <= b.size.Load():
		return nil
	case size < sizeBytes:
		return fmt.Errorf("soft: %s has %d bytes, not %d", b.file.Name(), size, sizeBytes)
	}
	b.size.Store(sizeBytes)
	return nil
}

func (b *fileBacking) String() string { return "image " + b.file.Name() }

// Properties implements Backing.
func (b *fileBacking) Properties() Properties {
	p := b.props
	p.SizeBytes = b.size.Load()
	return p
}

func (b *fileBacking) ReadV(vec [][]byte, off int64) error {
	return b.transfer(unix.SYS_PREAD64, unix.SYS_PREADV, vec, off)
}

func (b *fileBacking) WriteV(vec [][]byte, off int64, fua bool) error {
	if b.props.ReadOnly {
		return errReadOnly
	}
	if err := b.transfer(unix.SYS_PWRITE64, unix.SYS_PWRITEV, vec, off); err != nil {
		return err
	}
	if fua {
		return b.Flush()
	}
	return nil
}

// transfer moves all of vec, going on after short transfers.
func (b *fileBacking) transfer(single, vector uintptr, vec [][]byte, off int64) error {
	skip := 0 // bytes of vec[0] already moved
	for len(vec) > 0 {
		if skip == len(vec[0]) {
			vec, skip = vec[1:], 0
			continue
		}
		var n uintptr
		var errno unix.Errno
		if len(vec) == 1 {
			p := vec[0][skip:]
			n, _, errno = unix.Syscall6(single, uintptr(b.fd), uintptr(unsafe.Pointer(&p[0])), uintptr(len(p)), uintptr(off), 0, 0)
		} else {
			iov := iovecPool.Get().(*[maxIovecs]unix.Iovec)
			count := 0
			for i := 0; i < len(vec) && count < maxIovecs; i++ {
				p := vec[i]
				if i == 0 {
					p = p[skip:]
				}
				if len(p) > 0 {
					iov[count].Base = &p[0]
					iov[count].SetLen(len(p))
					count++
				}
			}
			// The kernel wants the offset in two halves; on 64-bit machines
			// the first holds all of it.
			n, _, errno = unix.Syscall6(vector, uintptr(b.fd), uintptr(unsafe.Pointer(iov)), uintptr(count), uintptr(off), 0, 0)
			clear(iov[:count])
			iovecPool.Put(iov)
		}
		switch {
		case errno == unix.EINTR || errno == unix.EAGAIN:
			continue
		case errno != 0:
			return errno
		case n == 0:
			return errShortFile
		}
		off += int64(n)
		for rest := int(n); rest > 0; {
			step := min(rest, len(vec[0])-skip)
			rest -= step
			if skip += step; skip == len(vec[0]) && rest > 0 {
				vec, skip = vec[1:], 0
			}
		}
	}
	return nil
}

func (b *fileBacking) Zero(off, n int64, fua bool) error {
	if b.props.ReadOnly {
		return errReadOnly
	}
	if err := b.zero(off, n); err != nil {
		return err
	}
	if fua {
		return b.Flush()
	}
	return nil
}

func (b *fileBacking) zero(off, n int64) error {
	if !b.noZero.Load() {
		err := b.fallocate(unix.FALLOC_FL_ZERO_RANGE|unix.FALLOC_FL_KEEP_SIZE, off, n)
		if !isUnsupported(err) {
			return err
		}
		b.noZero.Store(true)
	}
	if !b.noPunch.Load() {
		err := b.fallocate(unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
		if !isUnsupported(err) {
			return err
		}
		b.noPunch.Store(true)
	}
	for n > 0 {
		step := min(n, int64(len(zeroChunk)))
		if err := b.transfer(unix.SYS_PWRITE64, unix.SYS_PWRITEV, [][]byte{zeroChunk[:step]}, off); err != nil {
			return err
		}
		off, n = off+step, n-step
	}
	return nil
}

func (b *fileBacking) Deallocate(off, n int64) error {
	_, err := b.Punch(off, n) // a hint that the host may not be able to take
	return err
}

// Punch implements Puncher.
func (b *fileBacking) Punch(off, n int64) (done bool, err error) {
	if b.props.ReadOnly {
		return false, errReadOnly
	}
	if b.noPunch.Load() {
		return false, nil
	}
	err = b.fallocate(unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, n)
	if isUnsupported(err) {
		b.noPunch.Store(true)
		return false, nil
	}
	return err == nil, err
}

func (b *fileBacking) fallocate(mode uint32, off, n int64) error {
	for {
		if err := unix.Fallocate(b.fd, mode, off, n); err != unix.EINTR {
			return err
		}
	}
}

func isUnsupported(err error) bool {
	return errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENODEV)
}

// Flush shares one fdatasync among all callers that arrive before it starts.
// The calls run one at a time: of two at once on one descriptor the kernel
// would tell only one about a failed write-back.
func (b *fileBacking) Flush() error {
	if b.props.ReadOnly {
		return nil
	}
	want := b.syncsStarted.Load() + 1
	b.syncMu.Lock()
	defer b.syncMu.Unlock()
	if b.syncErr != nil || b.syncsStarted.Load() >= want {
		return b.syncErr
	}
	b.syncsStarted.Add(1)
	err := unix.Fdatasync(b.fd)
	for err == unix.EINTR {
		err = unix.Fdatasync(b.fd)
	}
	if err != nil {
		b.syncErr = fmt.Errorf("soft: fdatasync of %s: %w", b.file.Name(), err)
	}
	return b.syncErr
}

func (b *fileBacking) Close() error { return b.file.Close() }
