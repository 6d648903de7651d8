package blobfs

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"runsc-fs/nvme"
)

const (
	// slabPages is how many frames the cache takes from the arena at a time,
	// contiguous, so that neighbouring pages of a file tend to be neighbours
	// in the arena too.
	slabPages = 256
	// evictBatch is how many frames one pass of the clock hand tries to free.
	evictBatch = 64
	// allocPatience bounds the wait for a frame when all are dirty or mapped.
	allocPatience = 2 * time.Second
)

// PageCache holds the cached pages of one file system: frames of the arena,
// bounded in number. Frames of clean, unmapped pages are reused by a clock
// that spares what was used more than once since the hand last passed, so that
// one pass over a big file does not displace everything else.
type PageCache struct {
	arena  *nvme.Arena
	base   []byte
	limit  int // frames
	byPage []atomic.Pointer[page]
	waits  waitTable

	// dirty counts pages with pageDirty, mapped those with pageFaulted.
	dirty  atomic.Int64
	mapped atomic.Int64

	mu     sync.Mutex
	free   frameSet // numbers as in byPage
	total  int      // frames taken from the arena
	slabs  [][]page
	closed bool

	clockMu sync.Mutex
	hand    int // see nextFrame
}

func newPageCache(arena *nvme.Arena, limitBytes int64) *PageCache {
	c := &PageCache{
		arena:  arena,
		base:   arena.Bytes(),
		limit:  int(max(limitBytes/BlockSizeBytes, 16)),
		byPage: make([]atomic.Pointer[page], arena.SizeBytes()/BlockSizeBytes),
	}
	c.free = newFrameSet(len(c.byPage))
	c.waits.init()
	return c
}

// IncRef keeps the pages in [arenaOffset, arenaOffset+length) in memory until
// DecRef. It must follow a Fault that returned them before the locks that the
// invalidator needs are released.
func (c *PageCache) IncRef(arenaOffset, length int64) {
	for off := arenaOffset &^ (BlockSizeBytes - 1); off < arenaOffset+length; off += BlockSizeBytes {
		if p := c.at(off); p != nil {
			p.refs.Add(1)
		}
	}
}

// DecRef undoes IncRef.
func (c *PageCache) DecRef(arenaOffset, length int64) {
	for off := arenaOffset &^ (BlockSizeBytes - 1); off < arenaOffset+length; off += BlockSizeBytes {
		if p := c.at(off); p != nil {
			c.unpin(p)
		}
	}
}

// frameData is the memory of p with capacity up to the end of the arena, so that
// neighbouring frames can be joined in one buffer.
func (c *PageCache) frameData(p *page) []byte { return c.base[p.off : p.off+BlockSizeBytes] }

func (c *PageCache) at(off int64) *page {
	if off < 0 || off/BlockSizeBytes >= int64(len(c.byPage)) {
		return nil
	}
	return c.byPage[off/BlockSizeBytes].Load()
}

// tryPin keeps the page from being evicted or reused. It fails on a frame that
// is free or just being evicted.
func (c *PageCache) tryPin(p *page) bool {
	if p.refs.Add(1) > 0 {
		return true
	}
	c.unpin(p)
	return false
}

// unpin gives up a pin, or the tree's reference after the page left the tree.
func (c *PageCache) unpin(p *page) {
	if p.refs.Add(-1) == 0 && p.refs.CompareAndSwap(0, frozenRefs) {
		c.release(p)
	}
}

// release makes a frozen frame that is in no tree free.
func (c *PageCache) release(p *page) {
	c.scrub(p)
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.free.put(p.number())
		return
	}
	c.slabs = slices.DeleteFunc(c.slabs, func(slab []page) bool {
		return slab[0].off <= p.off && p.off <= slab[len(slab)-1].off && c.freeSlabLocked(slab)
	})
}

func (c *PageCache) scrub(p *page) {
	if p.has(pageFaulted) {
		c.mapped.Add(-1)
	}
	p.flags.Store(0)
	p.owner.Store(nil)
}

// take returns a free frame, or one from the arena, pinned once and in no
// tree, or nil.
func (c *PageCache) take() *page {
	c.mu.Lock()
	n := c.free.take()
	if n < 0 {
		c.growLocked()
		n = c.free.take()
	}
	c.mu.Unlock()
	if n < 0 {
		return nil
	}
	p := c.byPage[n].Load()
	p.refs.Add(1 - frozenRefs)
	return p
}

// growLocked adds the frames of a slab, if limit and arena allow. When most
// frames are mapped the limit is higher: mappings are taken back by the
// flusher, which needs time and locks that a Fault may be holding up.
func (c *PageCache) growLocked() {
	limit := c.limit
	if limit > 0 && c.mapped.Load() > int64(limit)*3/4 {
		limit += limit / 4
	}
	n := min(slabPages, limit-c.total)
	var frames []byte
	for ; n > 0; n /= 2 {
		var err error
		if frames, err = c.arena.Alloc(n); err == nil {
			break
		}
	}
	if n <= 0 {
		return
	}
	off, _ := c.arena.Offset(frames)
	slab := make([]page, n)
	for k := range slab {
		p := &slab[k]
		p.frame = (*[BlockSizeBytes]byte)(frames[k*BlockSizeBytes:])
		p.off = off + int64(k)*BlockSizeBytes
		p.refs.Store(frozenRefs)
		c.byPage[p.number()].Store(p)
		c.free.put(p.number())
	}
	c.total += n
	c.slabs = append(c.slabs, slab)
}

// close gives the frames back to the arena, and hands out no more. Slabs with a
// page that is still referenced follow when that reference goes.
func (c *PageCache) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed, c.limit, c.total = true, 0, 0
	c.free.clear()
	c.slabs = slices.DeleteFunc(c.slabs, c.freeSlabLocked)
}

// freeSlabLocked gives the frames of a slab back to the arena, unless one of
// them is referenced.
func (c *PageCache) freeSlabLocked(slab []page) bool {
	for k := range slab {
		if slab[k].refs.Load() >= 0 {
			return false
		}
	}
	for k := range slab {
		c.byPage[slab[k].number()].Store(nil)
	}
	first := slab[0].off
	c.arena.Free(c.base[first : first+int64(len(slab))*BlockSizeBytes])
	return true
}

// evict frees up to want frames of clean pages that nobody uses and reports
// how many it freed. Pages that Fault handed out are spared: reclaimMapped
// takes those back first.
func (c *PageCache) evict(want int) int {
	c.clockMu.Lock()
	defer c.clockMu.Unlock()
	c.mu.Lock()
	slabs := c.slabs
	c.mu.Unlock()
	freed := 0
	for steps := 2 * len(slabs) * slabPages; steps > 0 && freed < want; steps-- {
		p := c.nextFrame(slabs)
		if p == nil || p.refs.Load() != 1 || p.any(pageLocked|pageDirty|pageFaulted) {
			continue
		}
		if p.has(pageAccessed) {
			p.clear(pageAccessed)
			continue
		}
		if c.evictPage(p) {
			freed++
		}
	}
	return freed
}

// nextFrame advances the clock hand, which counts slots of slabPages a slab: it
// returns nil for one that a short slab does not have.
func (c *PageCache) nextFrame(slabs [][]page) *page {
	if c.hand++; c.hand >= len(slabs)*slabPages {
		c.hand = 0
	}
	if slab := slabs[c.hand/slabPages]; c.hand%slabPages < len(slab) {
		return &slab[c.hand%slabPages]
	}
	return nil
}

// evictPage takes one clean page out of its file and frees the frame, unless
// somebody uses it or it was handed out by Fault.
func (c *PageCache) evictPage(p *page) bool {
	i := p.owner.Load()
	if i == nil {
		return false
	}
	i.treeMu.Lock()
	if p.owner.Load() != i || i.pages.get(p.index) != p || !p.refs.CompareAndSwap(1, frozenRefs) {
		i.treeMu.Unlock()
		return false
	}
	if p.any(pageLocked | pageDirty | pageFaulted) {
		// Became so between the look and the freeze. Pins that came in
		// meanwhile have seen a negative count and look again.
		p.refs.Add(1 - frozenRefs)
		i.treeMu.Unlock()
		return false
	}
	i.pages.remove(p.index)
	i.cached.Add(-1)
	reserved := p.has(pageReserved) // of a write that failed before it changed the page
	if reserved {
		i.reserved.Add(-1)
	}
	i.treeMu.Unlock()
	c.release(p)
	if reserved {
		i.fs.store.Unreserve(1)
	}
	return true
}

// tryAllocPage is allocPage for those who hold frames already: they must not
// wait for others who do the same. It returns nil rather than wait.
func (fs *FS) tryAllocPage() *page {
	c := fs.cache
	p := c.take()
	if p == nil && c.evict(evictBatch) > 0 {
		p = c.take()
	}
	return p
}

// allocPage returns a frame with undefined content, pinned once and in no tree.
// When the cache is full it evicts, then writes back, then waits a bounded
// time for mapped pages to be taken back, and gives ErrNoMemory at last. The
// caller may hold ioMu of an inode, and nothing below it, nor other frames.
func (fs *FS) allocPage() (*page, error) {
	if p := fs.tryAllocPage(); p != nil {
		return p, nil
	}
	c := fs.cache
	for start := time.Now(); ; {
		freed := c.evict(evictBatch)
		if p := c.take(); p != nil {
			return p, nil
		}
		if freed > 0 {
			continue
		}
		fs.kickFlusher()
		if c.dirty.Load() > 0 {
			fs.writeBackSome(evictBatch)
		} else {
			runtime.Gosched()
		}
		if fs.gate.shut.Load() {
			return nil, ErrClosed // Close waits for us
		}
		if time.Since(start) > allocPatience {
			return nil, fmt.Errorf("%w: all pages are dirty or mapped", ErrNoMemory)
		}
		if c.dirty.Load() == 0 || c.mapped.Load() > 0 {
			time.Sleep(200 * time.Microsecond)
		}
	}
}
