package blobfs

import (
	"errors"
	"fmt"

	"runsc-fs/nvme/trace"
)

// WriteAt takes up to n bytes from src for the file from off on, and returns
// how many it took; fewer than n only when src, the device or the volume's
// space stops it. Space is reserved before data is taken. Errors: those of src
// as they are, ErrNoSpace, ErrFileTooBig, ErrReadOnly, ErrInvalid, ErrIsDir,
// ErrIO; an error after the first byte is reported with the count.
func (i *Inode) WriteAt(src Source, off, n int64, flags IOFlags) (int64, error) {
	_, done, err := i.write(src, off, n, flags, false)
	return done, err
}

// Append writes at the end of the file, wherever that is by then, and returns
// the offset at which the data went.
func (i *Inode) Append(src Source, n int64, flags IOFlags) (off, written int64, err error) {
	return i.write(src, 0, n, flags, true)
}

func (i *Inode) write(src Source, off, n int64, flags IOFlags, appending bool) (at, done int64, err error) {
	g, err := i.fs.gate.enter()
	if err != nil {
		return off, 0, err
	}
	defer g.leave()
	if err := i.checkIO(off, n); err != nil {
		return off, 0, err
	}
	if i.fs.ReadOnly() {
		return off, 0, ErrReadOnly
	}
	sync := flags&(IODSync|IOSync) != 0
	durable, overwritten := false, false
	if flags&IODirect != 0 && !appending {
		if flags&IONoWait == 0 {
			i.ioMu.RLock()
		} else if !i.ioMu.TryRLock() {
			return off, 0, ErrWouldBlock
		}
		done, durable, overwritten, err = i.overwriteDirect(src, off, n, sync)
		i.ioMu.RUnlock()
	}
	if !overwritten {
		if flags&IONoWait == 0 {
			i.ioMu.Lock()
		} else if !i.ioMu.TryLock() {
			return off, 0, ErrWouldBlock
		}
		if appending {
			off = i.size.Load()
		}
		done, err = i.writeLocked(src, off, n, flags)
		i.ioMu.Unlock()
	}
	if done == 0 {
		return off, 0, err
	}
	var err2 error
	if sync {
		err2 = i.syncRange(off, off+done, flags&IOSync == 0, durable)
	} else {
		err2 = i.fs.balanceDirty(i)
	}
	if err == nil {
		err = err2
	}
	return off, done, err
}

// writeLocked needs ioMu.
func (i *Inode) writeLocked(src Source, off, n int64, flags IOFlags) (done int64, err error) {
	if flags&IODirect != 0 {
		if align := i.fs.DirectAlignBytes(); off%align != 0 || n%align != 0 {
			return 0, fmt.Errorf("%w: direct write of %d bytes at %d", ErrInvalid, n, off)
		}
	}
	if n == 0 {
		return 0, nil
	}
	if off >= MaxFileSizeBytes {
		return 0, ErrFileTooBig
	}
	n = min(n, MaxFileSizeBytes-off)
	if err := i.extendTo(off, flags&IODirect == 0); err != nil {
		return 0, err
	}
	if flags&IODirect != 0 {
		done, err = i.writeDirect(src, off, n)
	} else {
		was := trace.Enter(trace.Cache)
		done, err = i.writeBuffered(src, off, n)
		trace.Leave(was)
	}
	if done > 0 {
		i.modified()
	}
	return done, err
}

func (i *Inode) writeBuffered(src Source, off, n int64) (done int64, err error) {
	end := off + n
	for off < end {
		chunk := min(BlockSizeBytes-off%BlockSizeBytes, end-off)
		m, err := i.writePage(src, off, chunk)
		done += int64(m)
		off += int64(m)
		if err != nil || int64(m) < chunk {
			return done, err
		}
	}
	return done, nil
}

// writePage writes n bytes within one page. During CopyIn it holds ioMu and a
// pin, nothing else: src may fault on this very page.
func (i *Inode) writePage(src Source, off, n int64) (int, error) {
	index, first := uint64(off)/BlockSizeBytes, off%BlockSizeBytes
	p := i.pinUptodate(index)
	if p == nil {
		if first == 0 && (n == BlockSizeBytes || off+n >= i.size.Load()) {
			return i.writeNewPage(src, index, n)
		}
		if off-first >= i.size.Load() {
			if err := i.addZeroPage(index); err != nil {
				return 0, err
			}
		}
		var err error
		if p, err = i.pageAtPastEOF(index); err != nil {
			return 0, err
		}
	}
	defer i.fs.cache.unpin(p)
	if _, err := i.reservePage(index, p); err != nil {
		return 0, err
	}
	m, err := src.CopyIn(p.data()[first : first+n])
	if m > 0 {
		i.markPageDirty(p)
		i.grow(off + int64(m))
	}
	return m, err
}

// writeNewPage writes a page of which nothing needs to be read: the data goes
// to a private frame, which then becomes the page, unless one has appeared.
func (i *Inode) writeNewPage(src Source, index uint64, n int64) (int, error) {
	fs := i.fs
	flags, err := i.reservePage(index, nil)
	if err != nil {
		return 0, err
	}
	frame, err := fs.allocPage()
	if err != nil {
		if flags != 0 {
			fs.store.Unreserve(1)
		}
		return 0, err
	}
	defer fs.cache.unpin(frame)
	off := int64(index) * BlockSizeBytes
	m, err := src.CopyIn(frame.data()[:n])
	whole := m == BlockSizeBytes || off+int64(m) >= i.size.Load()
	if m > 0 && whole {
		clear(frame.data()[m:])
		if i.insertPage(index, frame, flags|pageUptodate) {
			i.markPageDirty(frame)
			i.grow(off + int64(m))
			return m, err
		}
	}
	if flags != 0 {
		fs.store.Unreserve(1)
	}
	if m == 0 {
		return 0, err
	}
	// Somebody made the page meanwhile, or src gave less than it said.
	m2, err2 := i.writePage(&bytesSource{frame.data()[:m]}, off, int64(m))
	if err == nil {
		err = err2
	}
	return m2, err
}

// bytesSource is a Source of bytes in memory.
type bytesSource struct{ b []byte }

func (s *bytesSource) CopyIn(b []byte) (int, error) {
	n := copy(b, s.b)
	s.b = s.b[n:]
	return n, nil
}

// addZeroPage adds a page beyond the end of the file, where nothing is on disk.
func (i *Inode) addZeroPage(index uint64) error {
	frame, err := i.fs.allocPage()
	if err != nil {
		return err
	}
	clear(frame.data())
	i.insertPage(index, frame, pageUptodate)
	i.fs.cache.unpin(frame)
	return nil
}

// pageAtPastEOF is pageAt for the holder of ioMu, who may have added the page
// himself. A page that is gone by then is added again.
func (i *Inode) pageAtPastEOF(index uint64) (*page, error) {
	for range 100 {
		p, err := i.pageAt(index, 1)
		if p != nil || err != nil {
			return p, err
		}
		if err := i.addZeroPage(index); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("%w: page %d behind the end does not stay", ErrNoMemory, index)
}

// grow raises the size to at least end. The data below is in the cache, dirty
// and pinned, or on the device. Needs ioMu.
func (i *Inode) grow(end int64) {
	if end <= i.size.Load() {
		return
	}
	i.mu.Lock()
	i.size.Store(end)
	i.attrChangedLocked()
	i.mu.Unlock()
}

// extendTo prepares a change of size to more than off. What lies behind the
// present end in its block becomes part of the file, and must be zero then:
// in the cache, and on disk before the new size is. With rewritten set the
// caller is about to make the page at off dirty himself. Needs ioMu.
func (i *Inode) extendTo(off int64, rewritten bool) error {
	size := i.size.Load()
	tail := size % BlockSizeBytes
	if off < size || tail == 0 {
		return nil
	}
	index := uint64(size) / BlockSizeBytes
	m, err := i.mapBlock(index, 1)
	if err != nil {
		return err
	}
	if m.hasData() && !(rewritten && off/BlockSizeBytes == int64(index)) {
		p, err := i.pageAt(index, 1)
		if err != nil || p == nil {
			return errors.Join(ErrIO, err)
		}
		defer i.fs.cache.unpin(p)
		if _, err := i.reservePage(index, p); err != nil {
			return err
		}
		clear(p.data()[tail:])
		i.markPageDirty(p)
		return nil
	}
	// Zeroes follow on disk, or the page is about to be written anyway. In a
	// cached page they follow too, unless a mapping has put something there.
	if p := i.pinUptodate(index); p != nil {
		if p.has(pageFaulted) {
			clear(p.data()[tail:])
		}
		i.fs.cache.unpin(p)
	}
	return nil
}
