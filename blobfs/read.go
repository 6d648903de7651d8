package blobfs

import (
	"fmt"

	"runsc-fs/nvme/trace"
)

const (
	minReadahead = 4          // pages
	maxReadahead = batchPages // pages
)

// checkIO says whether data can be read or written at all.
func (i *Inode) checkIO(off, n int64) error {
	switch {
	case i.typ == ModeDir:
		return ErrIsDir
	case i.typ != ModeRegular:
		return fmt.Errorf("%w: not a regular file", ErrInvalid)
	case off < 0 || n < 0:
		return fmt.Errorf("%w: offset %d, length %d", ErrInvalid, off, n)
	}
	return nil
}

// ReadAt hands up to n bytes from off to dst and returns how many dst took;
// fewer than n only at the end of the file, or when dst or the device stops it.
// A read of cached pages takes no lock. Errors: those of dst as they are,
// ErrCorrupt, ErrIO, ErrInvalid, ErrIsDir, ErrWouldBlock with IONoWait; an
// error after the first byte is reported with the count.
func (i *Inode) ReadAt(dst Sink, off, n int64, flags IOFlags) (int64, error) {
	g, err := i.fs.gate.enter()
	if err != nil {
		return 0, err
	}
	defer g.leave()
	if err := i.checkIO(off, n); err != nil {
		return 0, err
	}
	size := i.size.Load()
	if off >= size || n == 0 {
		return 0, nil
	}
	// The end of the file comes first: whoever reads a file to its end by direct
	// I/O asks once more at an end that need not be aligned.
	if flags&IODirect != 0 {
		if align := i.fs.DirectAlignBytes(); off%align != 0 || n%align != 0 {
			return 0, fmt.Errorf("%w: direct read of %d bytes at %d", ErrInvalid, n, off)
		}
	}
	n = min(n, size-off)
	var done int64
	if flags&IODirect != 0 {
		done, err = i.readDirect(dst, off, n)
	} else {
		was := trace.Enter(trace.Cache)
		done, err = i.readBuffered(dst, off, n, flags)
		trace.Leave(was)
	}
	if flags&IONoAtime == 0 && done > 0 {
		i.touchAtime()
	}
	return done, err
}

func (i *Inode) readBuffered(dst Sink, off, n int64, flags IOFlags) (done int64, err error) {
	c := i.fs.cache
	end := off + n
	for off < end {
		index := uint64(off) / BlockSizeBytes
		p := i.pages.get(index)
		if p != nil && c.tryPin(p) {
			if i.pages.get(index) != p || !p.has(pageUptodate) {
				c.unpin(p)
				p = nil
			}
		} else {
			p = nil
		}
		if p != nil {
			p.touch()
		} else {
			if flags&IONoWait != 0 {
				return done, ErrWouldBlock
			}
			if p, err = i.readPage(index, blocksOf(end)); p == nil || err != nil {
				return done, err
			}
		}
		first := off % BlockSizeBytes
		last := min(first+end-off, BlockSizeBytes)
		m, err := dst.CopyOut(p.data()[first:last])
		c.unpin(p)
		done += int64(m)
		off += int64(m)
		if err != nil || int64(m) < last-first {
			return done, err
		}
	}
	i.raNext.Store(uint64(end) / BlockSizeBytes)
	return done, nil
}

// readPage returns the page at index pinned and uptodate, after reading it and
// what is likely to be read next; end is the page behind the last one that is
// wanted for sure. It returns nil if the file ends before the page.
func (i *Inode) readPage(index, end uint64) (*page, error) {
	count := int(min(end-index, batchPages))
	if next := i.raNext.Load(); index == next || index == next+1 {
		window := min(max(2*i.raWindow.Load(), minReadahead), maxReadahead)
		i.raWindow.Store(window)
		count = max(count, int(window))
	} else {
		i.raWindow.Store(0)
	}
	return i.pageAt(index, count)
}

// pageAt is readPage with a fixed number of pages to read at once.
func (i *Inode) pageAt(index uint64, count int) (*page, error) {
	// Each round waits for somebody else's reading or does its own. More than
	// a few mean that pages are evicted as fast as they come.
	const rounds = 1000
	for range rounds {
		if p := i.pinUptodate(index); p != nil {
			return p, nil
		}
		if index >= blocksOf(i.size.Load()) {
			return nil, nil
		}
		if err := i.fill(index, count); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("%w: page %d does not stay", ErrNoMemory, index)
}
