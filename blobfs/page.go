package blobfs

import (
	"sync"
	"sync/atomic"
)

// pageFlags is the state of a cached page.
type pageFlags uint32

const (
	// pageLocked: the content is being read from the device. Whoever needs it
	// waits; the page cannot leave the cache.
	pageLocked pageFlags = 1 << iota
	// pageUptodate: the content is that of the file.
	pageUptodate
	// pageDirty: the content must still be written. Changes under treeMu of
	// the owner, together with the mark in the tree.
	pageDirty
	// pageReserved: one block of the store is reserved for this page, which lies
	// in a hole or on a shared block. Changes under treeMu of the owner.
	pageReserved
	// pageFaulted: Fault has handed the page out since the invalidator last
	// took it back, so it may be mapped.
	pageFaulted
	// pageMappedWrite: Fault has handed the page out for writing: its content
	// may change at any time, so it stays dirty.
	pageMappedWrite
	// pageRevoking: the mappings are being taken back, and Fault has not handed
	// the page out since that began.
	pageRevoking
	// pageAccessed: used since the clock hand last passed.
	pageAccessed
)

// frozenRefs is the bias of the reference count of pages that nobody may pin:
// free ones, and those being evicted. A pin that comes too late is recognised
// by the count staying negative.
const frozenRefs = -1 << 30

// page is one page frame of the arena. The structure outlives its use for one
// file, so that readers may look at it without a lock: they pin it first and
// then make sure that it is still the page they wanted.
type page struct {
	// refs counts 1 for the tree, and each pin and mapping.
	refs  atomic.Int32
	flags atomic.Uint32
	owner atomic.Pointer[Inode]
	// index is the page's place in the owner: stable under the owner's treeMu.
	index uint64
	// warm is how often the page may be mapped for writing on suspicion, next to
	// one that is written. Guarded by the owner's treeMu.
	warm  uint8
	frame *[BlockSizeBytes]byte
	off   int64 // of the frame in the arena
}

// number is the frame's number in the arena.
func (p *page) number() int { return int(p.off / BlockSizeBytes) }

func (p *page) data() []byte { return p.frame[:] }

func (p *page) has(f pageFlags) bool { return pageFlags(p.flags.Load())&f == f }

func (p *page) any(f pageFlags) bool { return pageFlags(p.flags.Load())&f != 0 }

func (p *page) set(f pageFlags) { p.flags.Or(uint32(f)) }

func (p *page) clear(f pageFlags) { p.flags.And(^uint32(f)) }

// touch tells the clock hand that the page is in use.
func (p *page) touch() {
	if !p.has(pageAccessed) {
		p.set(pageAccessed)
	}
}

// waitTable lets callers sleep until a locked page is unlocked.
type waitTable [32]struct {
	mu   sync.Mutex
	cond sync.Cond
	_    [32]byte
}

func (w *waitTable) init() {
	for n := range w {
		w[n].cond.L = &w[n].mu
	}
}

func (w *waitTable) wait(p *page) {
	if !p.has(pageLocked) {
		return
	}
	b := &w[(p.off/BlockSizeBytes)%int64(len(w))]
	b.mu.Lock()
	for p.has(pageLocked) {
		b.cond.Wait()
	}
	b.mu.Unlock()
}

func (w *waitTable) unlock(p *page) {
	b := &w[(p.off/BlockSizeBytes)%int64(len(w))]
	b.mu.Lock()
	p.clear(pageLocked)
	b.mu.Unlock()
	b.cond.Broadcast()
}
