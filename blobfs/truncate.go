package blobfs

import (
	"errors"
	"fmt"

	"runsc-fs/blobfs/format"
)

// Truncate sets the size of a file. What it cuts off is gone from mappings when
// it returns; what it adds reads as zeroes. Errors: ErrInvalid, ErrIsDir,
// ErrFileTooBig, ErrReadOnly, ErrIO.
func (i *Inode) Truncate(size int64) error {
	g, err := i.fs.gate.enter()
	if err != nil {
		return err
	}
	defer g.leave()
	if err := i.checkIO(0, size); err != nil {
		return err
	}
	switch {
	case size > MaxFileSizeBytes:
		return ErrFileTooBig
	case i.fs.ReadOnly():
		return ErrReadOnly
	}
	i.ioMu.Lock()
	defer i.ioMu.Unlock()
	old := i.size.Load()
	if size > old {
		if err := i.extendTo(size, false); err != nil {
			return err
		}
		i.grow(size)
	}
	i.modified()
	if size >= old {
		return nil
	}
	// From here on no Fault returns a page beyond the new end, and all that
	// have done so are over: the invalidator meets every mapping.
	i.fillMu.Lock()
	i.mu.Lock()
	i.size.Store(size)
	i.attrChangedLocked()
	i.mu.Unlock()
	i.fillMu.Unlock()
	end := blocksOf(size)
	i.invalidate(int64(end)*BlockSizeBytes, MaxFileSizeBytes-int64(end)*BlockSizeBytes)

	i.wbMu.Lock()
	defer i.wbMu.Unlock()
	i.fillMu.Lock()
	i.dropPages(end, endOfBlocks, false)
	i.clearTail(size)
	i.fillMu.Unlock()
	m, err := i.mapBlock(end, endOfBlocks)
	if err == nil && m.state == blockHole && end+m.blocks >= format.MaxFileBlocks && !i.sizeLogged(size) {
		return nil // nothing to free, and nothing logged to take back
	}
	return i.shrink(end)
}

// sizeLogged reports whether a size beyond size has been logged.
func (i *Inode) sizeLogged(size int64) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.diskSize > size
}

// clearTail zeroes what a cached page holds beyond the end of the file. On disk
// it may stay: reading clears it, and growing writes it (extendTo).
func (i *Inode) clearTail(size int64) {
	tail := size % BlockSizeBytes
	if tail == 0 {
		return
	}
	if p := i.pinPage(uint64(size) / BlockSizeBytes); p != nil {
		clear(p.data()[tail:])
		i.fs.cache.unpin(p)
	}
}

// Fallocate manages the space of [off, off+n), as fallocate(2) does: without
// FallocPunchHole or FallocZeroRange it allocates blocks, which read as zeroes
// until written; with FallocUnshare it also copies blocks that are shared, so
// that later writes need no space. FallocKeepSize leaves the size alone. Errors: ErrInvalid,
// ErrNotSupported, ErrIsDir, ErrFileTooBig, ErrNoSpace, ErrReadOnly, ErrIO.
func (i *Inode) Fallocate(mode FallocateMode, off, n int64) error {
	g, err := i.fs.gate.enter()
	if err != nil {
		return err
	}
	defer g.leave()
	if err := i.checkIO(off, n); err != nil {
		return err
	}
	const known = FallocKeepSize | FallocPunchHole | FallocZeroRange | FallocUnshare
	switch {
	case n == 0:
		return fmt.Errorf("%w: empty range", ErrInvalid)
	case mode&^known != 0, mode&FallocPunchHole != 0 && mode&FallocKeepSize == 0,
		mode&FallocPunchHole != 0 && mode&FallocZeroRange != 0,
		mode&FallocUnshare != 0 && mode&^(FallocUnshare|FallocKeepSize) != 0:
		return fmt.Errorf("%w: fallocate mode %#x", ErrNotSupported, mode)
	case off > MaxFileSizeBytes-n:
		return ErrFileTooBig
	case i.fs.ReadOnly():
		return ErrReadOnly
	}
	i.ioMu.Lock()
	defer i.ioMu.Unlock()
	size := i.size.Load()
	grows := mode&FallocKeepSize == 0 && off+n > size
	if grows {
		if err := i.extendTo(off+n, false); err != nil {
			return err
		}
	}
	first, end := uint64(off)/BlockSizeBytes, blocksOf(off+n)
	if mode&(FallocPunchHole|FallocZeroRange) != 0 {
		err = i.zeroRange(off, n)
	}
	if err == nil && mode&FallocPunchHole == 0 {
		err = i.allocateRange(first, end)
	}
	if err == nil && mode&FallocUnshare != 0 {
		err = i.unshare(first, min(end, blocksOf(size)))
	}
	if err != nil {
		return err
	}
	if grows {
		i.grow(off + n)
	}
	i.modified()
	return nil
}

// zeroRange makes [off, off+n) read as zeroes: whole blocks become a hole,
// parts of blocks are zeroed in the cache. Needs ioMu.
func (i *Inode) zeroRange(off, n int64) error {
	end := off + n
	firstWhole, endWhole := blocksOf(off), uint64(end)/BlockSizeBytes
	if off%BlockSizeBytes != 0 {
		if err := i.zeroPart(off, min(end, int64(firstWhole)*BlockSizeBytes)); err != nil {
			return err
		}
	}
	if end%BlockSizeBytes != 0 && endWhole >= firstWhole {
		if err := i.zeroPart(int64(endWhole)*BlockSizeBytes, end); err != nil {
			return err
		}
	}
	if firstWhole >= endWhole {
		return nil
	}
	return i.punch(firstWhole, endWhole)
}

// zeroPart zeroes bytes within one block, through the cache.
func (i *Inode) zeroPart(off, end int64) error {
	end = min(end, i.size.Load()) // beyond it all reads as zeroes anyway
	if off >= end {
		return nil
	}
	index := uint64(off) / BlockSizeBytes
	m, err := i.mapBlock(index, 1)
	if err != nil {
		return err
	}
	var p *page
	if m.hasData() {
		p, err = i.pageAt(index, 1)
	} else {
		p = i.pinUptodate(index)
	}
	if p == nil || err != nil {
		return err
	}
	defer i.fs.cache.unpin(p)
	dirty := m.hasData() || p.any(pageDirty|pageReserved)
	if dirty {
		if _, err := i.reservePage(index, p); err != nil {
			return err
		}
	}
	clear(p.data()[off%BlockSizeBytes : (end-1)%BlockSizeBytes+1])
	if dirty {
		i.markPageDirty(p)
	}
	return nil
}

// punch makes a hole of whole blocks. Pages that may be mapped stay, zeroed, so
// that mappings and file keep showing the same; the others leave the cache.
func (i *Inode) punch(first, end uint64) error {
	i.wbMu.Lock()
	defer i.wbMu.Unlock()
	// Nobody may read old blocks into the cache between dropping the pages
	// and freeing the blocks.
	i.fillMu.Lock()
	defer i.fillMu.Unlock()
	i.dropPages(first, end, true)
	kept := i.zeroFaulted(first, end)
	err := i.fs.updateInSteps(func(tx *txn, limit int) (bool, error) {
		tx.touch(i)
		next, err := tx.unmapFree(i, first, end, limit)
		return next >= end, err
	})
	if err != nil {
		i.ext.reset() // some of it may have been freed
		return err
	}
	i.ext.replace(first, end)
	if kept {
		err = i.reserveKept(first, end)
	}
	i.checkInvariants()
	return err
}

// zeroFaulted zeroes the cached pages in a range and reports whether there are any.
func (i *Inode) zeroFaulted(first, end uint64) bool {
	found := false
	i.treeMu.Lock()
	defer i.treeMu.Unlock()
	for p := i.pages.next(first); p != nil && p.index < end; p = i.pages.next(p.index + 1) {
		clear(p.data())
		found = true
	}
	return found
}

// reserveKept reserves blocks for pages in a new hole that must be written
// back: those that are mapped for writing. The others are clean now.
func (i *Inode) reserveKept(first, end uint64) error {
	var errs error
	for {
		i.treeMu.Lock()
		p := i.pages.next(first)
		if p == nil || p.index >= end {
			i.treeMu.Unlock()
			return errs
		}
		first = p.index + 1
		mapped, reserved := p.has(pageMappedWrite), p.has(pageReserved)
		if !mapped {
			i.cleanLocked(p)
		}
		p.refs.Add(1)
		i.treeMu.Unlock()
		switch {
		case mapped && !reserved:
			if err := i.fs.store.Reserve(1); err != nil {
				errs = errors.Join(errs, err) // it is tried again at write-back
				break
			}
			i.treeMu.Lock()
			p.set(pageReserved)
			i.reserved.Add(1)
			i.treeMu.Unlock()
		case !mapped && reserved:
			i.dropReservations([]*page{p}, true)
		}
		i.fs.cache.unpin(p)
	}
}

// allocateRange gives every hole in the blocks [first, end) unwritten blocks.
// What it has allocated when it fails stays, as on other file systems.
func (i *Inode) allocateRange(first, end uint64) error {
	fs := i.fs
	i.wbMu.Lock()
	defer i.wbMu.Unlock()
	// What cannot fit by far must not fill the volume first.
	i.mu.Lock()
	have := i.blocks
	i.mu.Unlock()
	if want := end - first; want > have && want-have > fs.store.StatFS().FreeBlocks {
		return ErrNoSpace
	}
	// Pages with reserved blocks get them first.
	if err := i.writeBackLocked(first, end); err != nil {
		return err
	}
	b := getBatch()
	defer b.put()
	for index := first; index < end; {
		b.nRuns, b.nLogged = 0, 0
		var err error
		for index < end && b.nRuns < maxRuns && err == nil {
			var m mapping
			if m, err = i.mapBlock(index, end-index); err != nil {
				break
			}
			if m.state == blockHole {
				var run format.Run
				if run, err = fs.store.Allocate(int64(m.blocks), i.goalAfter(b, index), false); err != nil {
					break
				}
				b.runs[b.nRuns] = newRun{first: index, run: run}
				b.nRuns++
				m.blocks = run.Blocks
			}
			index += m.blocks
		}
		if err2 := i.claimUnwritten(b); err2 != nil {
			return err2
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// goalAfter is allocGoal for a place that the runs of the batch may lead to.
func (i *Inode) goalAfter(b *batch, index uint64) format.Addr {
	if b.nRuns > 0 {
		if r := &b.runs[b.nRuns-1]; r.first+r.run.Blocks == index {
			return r.run.End()
		}
	}
	return i.allocGoal(index)
}

func (i *Inode) claimUnwritten(b *batch) error {
	if b.nRuns == 0 {
		return nil
	}
	// Until the extents are known, a Fault must not take the range for a hole
	// that is there to stay: it would keep a reservation for nothing.
	i.fillMu.Lock()
	defer i.fillMu.Unlock()
	err := i.fs.update(func(tx *txn) error {
		tx.touch(i)
		for _, r := range b.runs[:b.nRuns] {
			if err := tx.claim(i, r.first, r.run, true); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		i.releaseRuns(b)
		return err
	}
	for _, r := range b.runs[:b.nRuns] {
		i.ext.replace(r.first, r.first+r.run.Blocks,
			extent{first: r.first, addr: r.run.Start, blocks: uint32(r.run.Blocks), unwritten: true})
	}
	return nil
}

// SeekData returns the first offset at or behind off that is not in a hole.
// ErrNoData if there is none before the end of the file.
func (i *Inode) SeekData(off int64) (int64, error) { return i.seek(off, true) }

// SeekHole returns the first offset at or behind off that is in a hole; the end
// of the file counts as one. ErrNoData if off is not before the end.
func (i *Inode) SeekHole(off int64) (int64, error) { return i.seek(off, false) }

// seek takes blocks for data that are written or have a dirty page.
func (i *Inode) seek(off int64, data bool) (int64, error) {
	g, err := i.fs.gate.enter()
	if err != nil {
		return 0, err
	}
	defer g.leave()
	if err := i.checkIO(off, 0); err != nil {
		return 0, err
	}
	i.wbMu.Lock() // dirty marks and extents do not change places meanwhile
	defer i.wbMu.Unlock()
	size := i.size.Load()
	if off >= size {
		return 0, ErrNoData
	}
	for index, end := uint64(off)/BlockSizeBytes, blocksOf(size); index < end; {
		m, err := i.mapBlock(index, end-index)
		if err != nil {
			return 0, err
		}
		next := index + m.blocks
		isData := m.hasData()
		if !isData {
			i.treeMu.Lock()
			if p := i.pages.nextDirty(index); p != nil && p.index == index {
				isData, next = true, index+1
			} else if p != nil {
				next = min(next, p.index)
			}
			i.treeMu.Unlock()
		}
		if isData == data {
			return max(off, int64(index)*BlockSizeBytes), nil
		}
		index = next
	}
	if data {
		return 0, ErrNoData
	}
	return size, nil
}
