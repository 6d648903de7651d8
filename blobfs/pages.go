package blobfs

import (
	"sync"

	"runsc-fs/nvme"
)

// batchPages is how many pages one round of reading ahead, writing back or
// direct I/O handles.
const batchPages = 128

// batch is the scratch memory of such a round. Batches are reused, so that
// rounds allocate nothing.
type batch struct {
	n     int
	pages [batchPages]*page
	reqs  []nvme.Request
	vecs  [][]byte
	runs  [maxRuns]newRun
	nRuns int
	// nLogged is how many of the runs are part of the file already.
	nLogged int
}

var batches = sync.Pool{New: func() any {
	return &batch{
		reqs: make([]nvme.Request, 0, batchPages),
		vecs: make([][]byte, 0, batchPages),
	}
}}

func getBatch() *batch {
	b := batches.Get().(*batch)
	b.reset()
	return b
}

func (b *batch) reset() {
	clear(b.pages[:b.n])
	b.n = 0
	b.resetIO()
}

// resetIO forgets the I/O, and keeps the pages.
func (b *batch) resetIO() {
	clear(b.reqs)
	clear(b.vecs)
	b.reqs, b.vecs, b.nRuns, b.nLogged = b.reqs[:0], b.vecs[:0], 0, 0
}

func (b *batch) put() {
	b.reset()
	batches.Put(b)
}

// add appends data to the I/O of the batch, at an offset of the volume. What
// continues the last request on the volume becomes part of it, and what
// continues its last buffer in the arena extends that.
func (b *batch) add(op nvme.Op, offset int64, data []byte) {
	if n := len(b.reqs); n > 0 {
		r := &b.reqs[n-1]
		if r.OffsetBytes+r.LengthBytes == offset {
			last := &r.Vec[len(r.Vec)-1]
			if follows(*last, data) {
				*last = (*last)[:len(*last)+len(data)]
			} else {
				b.vecs = append(b.vecs, data)
				r.Vec = r.Vec[:len(r.Vec)+1]
			}
			r.LengthBytes += int64(len(data))
			return
		}
	}
	b.vecs = append(b.vecs, data)
	n := len(b.vecs)
	// A batch adds at most batchPages buffers, so vecs never moves.
	b.reqs = append(b.reqs, nvme.Request{Op: op, OffsetBytes: offset, LengthBytes: int64(len(data)), Vec: b.vecs[n-1 : n : cap(b.vecs)]})
}

// follows reports whether b lies directly behind a in one mapping with room
// for it in a's capacity.
func follows(a, b []byte) bool {
	return cap(a)-len(a) >= len(b) && &a[:len(a)+1][len(a)] == &b[0]
}

// pinPage returns the cached page at index, pinned, or nil. It takes no lock
// unless the page is just being evicted.
func (i *Inode) pinPage(index uint64) *page {
	c := i.fs.cache
	for {
		p := i.pages.get(index)
		if p == nil {
			return nil
		}
		if !c.tryPin(p) {
			// Whoever evicts it holds treeMu until it has left the tree.
			i.treeMu.Lock()
			i.treeMu.Unlock() //nolint:staticcheck // waiting is all
			continue
		}
		if i.pages.get(index) == p {
			return p
		}
		c.unpin(p)
	}
}

// pinUptodate is pinPage for a page whose content is valid; it waits for one
// that is being read. It returns nil also when that reading failed.
func (i *Inode) pinUptodate(index uint64) *page {
	p := i.pinPage(index)
	if p == nil || p.has(pageUptodate) {
		return p
	}
	i.fs.cache.waits.wait(p)
	if p.has(pageUptodate) {
		return p
	}
	i.fs.cache.unpin(p)
	return nil
}

// insertPage puts a private frame into the tree and reports whether it did: if
// there is a page already, the frame stays private. The frame stays pinned.
func (i *Inode) insertPage(index uint64, p *page, flags pageFlags) bool {
	i.treeMu.Lock()
	defer i.treeMu.Unlock()
	return i.insertPageLocked(index, p, flags)
}

func (i *Inode) insertPageLocked(index uint64, p *page, flags pageFlags) bool {
	if i.pages.get(index) != nil {
		return false
	}
	p.index, p.warm = index, 0
	p.owner.Store(i)
	p.flags.Store(uint32(flags))
	p.refs.Add(1)
	i.pages.insert(index, p)
	i.cached.Add(1)
	if flags&pageReserved != 0 {
		i.reserved.Add(1)
	}
	return true
}

// removePageLocked takes a page out of the tree and gives up the tree's
// reference; treeMu is held. It returns the blocks to unreserve.
func (i *Inode) removePageLocked(p *page) int64 {
	c := i.fs.cache
	i.cleanLocked(p)
	i.pages.remove(p.index)
	i.cached.Add(-1)
	if p.has(pageFaulted) {
		i.nFaulted.Add(-1)
	}
	if p.has(pageMappedWrite) {
		i.nMapped.Add(-1)
	}
	unreserve := int64(0)
	if p.has(pageReserved) {
		p.clear(pageReserved)
		i.reserved.Add(-1)
		unreserve = 1
	}
	c.unpin(p)
	return unreserve
}

// cleanLocked removes the dirty mark of a page, if it has one; treeMu is held.
func (i *Inode) cleanLocked(p *page) {
	if p.has(pageDirty) {
		p.clear(pageDirty)
		i.pages.unmark(p.index)
		i.nDirty.Add(-1)
		i.fs.cache.dirty.Add(-1)
	}
}

// markPageDirty notes that the content of a pinned page has changed, or may
// change from now on. A block for it must be allocated or reserved.
func (i *Inode) markPageDirty(p *page) {
	// The exchange, rather than a load, orders the change of the content
	// before the look: write-back clears the mark before it reads the content.
	if pageFlags(p.flags.Or(0))&pageDirty != 0 {
		return
	}
	i.treeMu.Lock()
	i.dirtyLocked(p)
	i.treeMu.Unlock()
	i.fs.markDirty(i)
}

func (i *Inode) dirtyLocked(p *page) {
	if p.has(pageDirty) || i.pages.get(p.index) != p {
		return
	}
	p.set(pageDirty)
	i.pages.mark(p.index)
	i.nDirty.Add(1)
	i.fs.cache.dirty.Add(1)
}

// reservePage makes sure that the page at index can be written back: a block of
// its own is allocated or reserved. p is the page if it is in the tree; a reservation
// then stays with it whatever happens, until it is written back or leaves the
// cache. If p is nil, the result says whether the new page gets pageReserved.
func (i *Inode) reservePage(index uint64, p *page) (pageFlags, error) {
	if p != nil && p.any(pageReserved|pageDirty) {
		return 0, nil
	}
	m, err := i.mapBlock(index, 1)
	if err != nil || !m.needsBlocks() {
		return 0, err
	}
	if p != nil {
		return 0, i.reserveBlock(index, p)
	}
	if err := i.fs.store.Reserve(1); err != nil {
		return 0, err
	}
	return pageReserved, nil
}

// reserveBlock reserves a block for a pinned page, unless it has one or has left
// the file.
func (i *Inode) reserveBlock(index uint64, p *page) error {
	if err := i.fs.store.Reserve(1); err != nil {
		return err
	}
	i.treeMu.Lock()
	mine := i.pages.get(index) == p && !p.has(pageReserved)
	if mine {
		p.set(pageReserved)
		i.reserved.Add(1)
	}
	i.treeMu.Unlock()
	if !mine {
		i.fs.store.Unreserve(1)
	}
	return nil
}

// dropPages takes all pages in [from, to) out of the cache without writing them
// back. The caller makes sure that none is being read or written back, and
// with keepFaulted that the others stay coherent.
func (i *Inode) dropPages(from, to uint64, keepFaulted bool) {
	if i.cached.Load() == 0 {
		return
	}
	const slice = 1024 // pages dropped without giving treeMu to others
	for {
		i.treeMu.Lock()
		unreserve := int64(0)
		n := 0
		for ; n < slice; n++ {
			p := i.pages.next(from)
			if p == nil || p.index >= to {
				break
			}
			from = p.index + 1
			if keepFaulted && p.has(pageFaulted) {
				continue
			}
			unreserve += i.removePageLocked(p)
		}
		i.treeMu.Unlock()
		if unreserve > 0 {
			i.fs.store.Unreserve(unreserve)
		}
		if n < slice {
			return
		}
	}
}

// dropAllPages empties the cache of an inode that nobody uses.
func (i *Inode) dropAllPages() { i.dropPages(0, endOfBlocks, false) }

// fill reads the pages [first, first+count) that are not cached and lie within
// the file, at most batchPages. It needs no lock of the inode held but ioMu.
// The error is that of the device or of the mapping; the pages are then not in
// the cache.
func (i *Inode) fill(first uint64, count int) error {
	fs := i.fs
	c := fs.cache
	b := getBatch()
	defer b.put()
	// Frames come first: getting one may write back or wait, which must not
	// happen under fillMu.
	count = min(count, batchPages, max(c.limit/8, 1))
	var frames [batchPages]*page
	var err error
	n := 0
	for k := range count {
		if i.pages.get(first+uint64(k)) != nil {
			continue
		}
		if n > 0 {
			if frames[n] = fs.tryAllocPage(); frames[n] == nil {
				break
			}
		} else if frames[0], err = fs.allocPage(); err != nil {
			return err
		}
		n++
	}
	used := 0
	i.cacheMu.enter(filling)
	i.fillMu.RLock()
	end := min(first+uint64(count), blocksOf(i.size.Load()))
	i.treeMu.Lock()
	for index := first; index < end && used < n; index++ {
		if i.insertPageLocked(index, frames[used], pageLocked) {
			b.pages[b.n] = frames[used]
			b.n++
			used++
		}
	}
	i.treeMu.Unlock()
	err = i.readPages(b)
	i.fillMu.RUnlock()
	i.cacheMu.leave(filling)
	for _, p := range frames[used:n] {
		c.unpin(p)
	}
	return err
}

// readPages gives the locked pages of the batch their content, unlocks and
// unpins them. Needs fillMu shared.
func (i *Inode) readPages(b *batch) error {
	c := i.fs.cache
	err := i.planRead(b)
	if err == nil && len(b.reqs) > 0 {
		err = i.fs.readData(b)
	}
	size := i.size.Load()
	for _, p := range b.pages[:b.n] {
		if err != nil {
			i.treeMu.Lock()
			i.removePageLocked(p)
			i.treeMu.Unlock()
		} else {
			if rest := size - int64(p.index)*BlockSizeBytes; rest < BlockSizeBytes {
				clear(p.data()[max(rest, 0):])
			}
			p.set(pageUptodate)
		}
		c.waits.unlock(p)
		c.unpin(p)
	}
	return err
}

// planRead adds the reads for the pages of the batch, which are in order of
// index, and clears those that lie in holes.
func (i *Inode) planRead(b *batch) error {
	for k := 0; k < b.n; {
		index := b.pages[k].index
		m, err := i.mapBlock(index, uint64(b.n-k))
		if err != nil {
			return err
		}
		for ; k < b.n && b.pages[k].index < index+m.blocks; k++ {
			p := b.pages[k]
			if !m.hasData() {
				clear(p.data())
				continue
			}
			block := int64(p.index - index)
			b.add(nvme.OpRead, m.addr.OffsetBytes()+block*BlockSizeBytes, i.fs.cache.frameData(p))
		}
	}
	return nil
}
