package blobfs

import (
	"fmt"
	"runtime"
	"time"
)

const (
	// faultAhead is how many pages a fault that misses reads at once.
	faultAhead = 16
	// warmth is how many times a page that was mapped because it was written is
	// mapped for writing along with one before it, after it has become clean.
	// Each time may write it back for nothing, or save a fault.
	warmth = 3
)

// Fault makes the page at off ready to be mapped and returns where it is in the
// arena; the run covers more pages, up to n bytes, if they are there anyway.
// With write set, a block is allocated or reserved first, so that a full volume
// shows here (ErrNoSpace) and not later, and the page counts as dirty until the
// invalidator takes it back. More pages are then those that are dirty anyway, or
// likely to be written, and have a block.
//
// The run stays valid without a reference only as long as the caller holds the
// lock that the invalidator needs: it must take its references (PageCache.IncRef)
// before giving that up. Errors: ErrBeyondEOF, ErrNoSpace, ErrNoMemory,
// ErrReadOnly, ErrCorrupt, ErrIO.
func (i *Inode) Fault(off, n int64, write bool) (PageRun, error) {
	g, err := i.fs.gate.enter()
	if err != nil {
		return PageRun{}, err
	}
	defer g.leave()
	if err := i.checkIO(off, n); err != nil {
		return PageRun{}, err
	}
	if write && i.fs.ReadOnly() {
		return PageRun{}, ErrReadOnly
	}
	i.fs.throttleFault()
	index := uint64(off) / BlockSizeBytes
	const rounds = 1000
	for range rounds {
		// A writer may have a page behind the end that is not the file's yet.
		if index >= blocksOf(i.size.Load()) {
			return PageRun{}, fmt.Errorf("%w: offset %d", ErrBeyondEOF, off)
		}
		p, err := i.pageAt(index, faultAhead)
		if err != nil {
			return PageRun{}, err
		}
		if p == nil {
			continue
		}
		if write {
			if _, err := i.reservePage(index, p); err != nil {
				i.fs.cache.unpin(p)
				return PageRun{}, err
			}
		}
		run, ok := i.handOut(p, n+off%BlockSizeBytes, write)
		i.fs.cache.unpin(p)
		if ok {
			return run, nil
		}
	}
	return PageRun{}, fmt.Errorf("%w: page %d does not stay mapped", ErrNoMemory, index)
}

const (
	// revokerPatience bounds the wait for the flusher to begin taking
	// mappings back.
	revokerPatience = 100 * time.Millisecond
	// handOverTime is long enough for a mutex to be handed over to who waits,
	// instead of being taken again by who has just released it.
	handOverTime = 2 * time.Millisecond
)

// throttleFault keeps faults from mapping all pages before the flusher can take
// some back. The flusher needs a lock that our caller holds: it must be waiting
// for it, and be next in line, before the last frame is mapped.
func (fs *FS) throttleFault() {
	c := fs.cache
	limit := int64(c.limit)
	if c.mapped.Load() <= limit/2 {
		return
	}
	fs.kickFlusher()
	runtime.Gosched()
	if c.mapped.Load() <= limit*3/4 {
		return
	}
	for start := time.Now(); fs.revoking.Load() == 0 && c.mapped.Load() > limit*3/4; {
		if time.Since(start) > revokerPatience {
			return
		}
		time.Sleep(100 * time.Microsecond)
	}
	time.Sleep(handOverTime)
}

// handOut marks the pinned page, and cached neighbours up to n bytes, as mapped.
// It reports false if the page has left the file.
func (i *Inode) handOut(p *page, n int64, write bool) (PageRun, bool) {
	i.fillMu.RLock()
	defer i.fillMu.RUnlock()
	index := p.index
	if i.pages.get(index) != p {
		return PageRun{}, false
	}
	end := blocksOf(i.size.Load())
	if index >= end {
		return PageRun{}, false
	}
	allocated := index // all blocks from index up to here can be written in place
	if write {
		m, err := i.mapBlock(index, blocksOf(n))
		if err == nil && !m.needsBlocks() {
			allocated += m.blocks
		} else if !p.any(pageReserved | pageDirty) {
			// A hole may have been punched here, or the block been shared, since
			// it was found.
			return PageRun{}, false
		}
	}
	run := PageRun{ArenaOffset: p.off, FileOffset: int64(index) * BlockSizeBytes, Length: BlockSizeBytes, Writable: write}
	i.treeMu.Lock()
	sequential := index == i.wfNext
	if write && !p.has(pageMappedWrite) {
		p.warm = warmth
	}
	i.markFaultedLocked(p, write)
	for index++; run.Length < n && index < end; index++ {
		q := i.pages.get(index)
		if q == nil || !q.has(pageUptodate) || q.off != run.ArenaOffset+run.Length {
			break
		}
		if write && !q.any(pageReserved|pageDirty) {
			if index >= allocated || !sequential && q.warm == 0 {
				break
			}
			if !sequential {
				q.warm--
			}
		}
		i.markFaultedLocked(q, write)
		run.Length += BlockSizeBytes
	}
	if write {
		i.wfNext = index
	}
	i.treeMu.Unlock()
	p.touch()
	if write {
		i.modified() // as far as we can tell
	}
	return run, true
}

// markFaultedLocked needs treeMu. A page whose mappings are just being taken
// back is handed out anew: whoever does that will notice.
func (i *Inode) markFaultedLocked(p *page, write bool) {
	p.clear(pageRevoking)
	if !p.has(pageFaulted) {
		p.set(pageFaulted)
		i.nFaulted.Add(1)
		i.fs.cache.mapped.Add(1)
	}
	if !write {
		return
	}
	if !p.has(pageMappedWrite) {
		p.set(pageMappedWrite)
		i.nMapped.Add(1)
	}
	i.dirtyLocked(p)
}

// revoke takes back all pages of the inode that Fault has handed out, so that
// they can be evicted, and written back for good. Pages faulted again meanwhile
// stay. Needs no lock held that Fault or the invalidator needs.
func (i *Inode) revoke() {
	if i.nFaulted.Load() == 0 {
		return
	}
	// Two at once would each take the other's marks for their own.
	i.revokeMu.Lock()
	defer i.revokeMu.Unlock()
	i.treeMu.Lock()
	for p := i.pages.next(0); p != nil; p = i.pages.next(p.index + 1) {
		if p.has(pageFaulted) {
			p.set(pageRevoking)
		}
	}
	i.treeMu.Unlock()
	i.fs.revoking.Add(1)
	i.invalidate(0, MaxFileSizeBytes)
	i.fs.revoking.Add(-1)
	written := false
	i.treeMu.Lock()
	for p := i.pages.next(0); p != nil; p = i.pages.next(p.index + 1) {
		if !p.has(pageRevoking) || !p.has(pageFaulted) {
			continue
		}
		p.clear(pageRevoking | pageFaulted)
		i.nFaulted.Add(-1)
		i.fs.cache.mapped.Add(-1)
		if p.has(pageMappedWrite) {
			p.clear(pageMappedWrite)
			i.nMapped.Add(-1)
			// A write-back that is under way may have missed the last stores.
			i.dirtyLocked(p)
			written = true
		}
	}
	i.treeMu.Unlock()
	if written {
		i.fs.markDirty(i)
	}
}
