package blobfs

import (
	"slices"
	"sort"
	"sync"

	"runsc-fs/blobfs/format"
)

// extent maps a run of file blocks to blocks of the volume, as in memory.
type extent struct {
	first     uint64 // file block
	addr      format.Addr
	blocks    uint32
	unwritten bool
	shared    bool // other extents may hold the blocks, too
}

func (e extent) end() uint64 { return e.first + uint64(e.blocks) }

func (e extent) addrOf(block uint64) format.Addr { return e.addr + format.Addr(block-e.first) }

// cut returns the part of e that lies in [from, to), which must overlap e.
func (e extent) cut(from, to uint64) extent {
	from, to = max(from, e.first), min(to, e.end())
	e.addr, e.first, e.blocks = e.addrOf(from), from, uint32(to-from)
	return e
}

// follows reports whether f continues e in the file and on the volume.
func (e extent) follows(f extent) bool {
	return e.end() == f.first && e.addr+format.Addr(e.blocks) == f.addr &&
		e.unwritten == f.unwritten && e.shared == f.shared &&
		uint64(e.blocks)+uint64(f.blocks) <= format.MaxExtentBlocks
}

// blockState says what a file block is on disk.
type blockState uint8

const (
	blockHole blockState = iota
	blockUnwritten
	blockWritten
	blockShared // written, and not to be overwritten: others may hold the block, too
)

// mapping is a run of file blocks of one state. addr is set unless it is a hole.
type mapping struct {
	state  blockState
	addr   format.Addr
	blocks uint64
}

// hasData reports whether the run has content on disk; else it reads as zeroes.
func (m mapping) hasData() bool { return m.state == blockWritten || m.state == blockShared }

// needsBlocks reports whether the run cannot be written where it is.
func (m mapping) needsBlocks() bool { return m.state == blockHole || m.state == blockShared }

const (
	// windowExtents is how many extents are loaded at a time.
	windowExtents = 512
	// maxWindows bounds the memory of one file's extents, together with
	// twice windowExtents, the size at which a window is split.
	maxWindows = 64
	// endOfBlocks lies behind every file block.
	endOfBlocks = 1 << 40
)

// extWindow holds all extents of the file blocks [from, to).
type extWindow struct {
	from, to uint64
	ext      []extent
}

// extMap caches the extents of one file, in windows of which everything is
// known. It only ever mirrors the store, so that it can forget anything.
type extMap struct {
	mu  sync.RWMutex
	seq uint64      // changes with every change of the mapping
	win []extWindow // in order, disjoint
}

// find looks up the run that begins at block, at most limit blocks long. It
// reports false when the cache does not know.
func (m *extMap) find(block, limit uint64) (mapping, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	w := sort.Search(len(m.win), func(n int) bool { return m.win[n].to > block })
	if w == len(m.win) || m.win[w].from > block {
		return mapping{}, false
	}
	win := &m.win[w]
	n := win.search(block)
	if n == len(win.ext) {
		return mapping{blocks: min(limit, win.to-block)}, true
	}
	e := win.ext[n]
	if e.first > block {
		return mapping{blocks: min(limit, e.first-block)}, true
	}
	found := mapping{state: blockWritten, addr: e.addrOf(block), blocks: min(limit, e.end()-block)}
	switch {
	case e.unwritten:
		found.state = blockUnwritten
	case e.shared:
		found.state = blockShared
	}
	return found, true
}

// search returns the first extent that ends behind block.
func (w *extWindow) search(block uint64) int {
	// Written out because a closure would cost more than the search.
	lo, hi := 0, len(w.ext)
	for lo < hi {
		mid := int(uint(lo+hi) / 2)
		if w.ext[mid].end() > block {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	return lo
}

// sequence is to be read before loading a window from the store.
func (m *extMap) sequence() uint64 {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.seq
}

// install adds a window that was loaded when the sequence was seq. It reports
// false if the mapping has changed since.
func (m *extMap) install(seq uint64, w extWindow) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.seq != seq {
		return false
	}
	m.dropLocked(w.from, w.to)
	if len(m.win) >= maxWindows {
		m.win = m.win[:0]
	}
	n := sort.Search(len(m.win), func(n int) bool { return m.win[n].from >= w.from })
	m.win = slices.Insert(m.win, n, w)
	return true
}

// replace records that [from, to) is now mapped by the extents in with, which
// are in order and lie in that range, and that the rest of it is a hole.
func (m *extMap) replace(from, to uint64, with ...extent) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.seq++
	n := sort.Search(len(m.win), func(n int) bool { return m.win[n].to > from })
	if n == len(m.win) || m.win[n].from > from || m.win[n].to < to {
		m.dropLocked(from, to)
		return
	}
	w := &m.win[n]
	w.splice(from, to, with)
	if len(w.ext) > 2*windowExtents {
		half := len(w.ext) / 2
		at := w.ext[half].first
		upper := extWindow{from: at, to: w.to, ext: slices.Clone(w.ext[half:])}
		w.to, w.ext = at, slices.Clone(w.ext[:half])
		m.win = slices.Insert(m.win, n+1, upper)
		if len(m.win) > maxWindows {
			m.win = slices.Delete(m.win, 0, len(m.win)/2)
		}
	}
}

func (w *extWindow) splice(from, to uint64, with []extent) {
	lo := w.search(from)
	hi := lo
	for hi < len(w.ext) && w.ext[hi].first < to {
		hi++
	}
	var buf [8]extent
	list := buf[:0]
	add := func(e extent) {
		if k := len(list); k > 0 && list[k-1].follows(e) {
			list[k-1].blocks += e.blocks
			return
		}
		list = append(list, e)
	}
	// The neighbours take part, so that what touches grows together.
	if lo > 0 && w.ext[lo-1].end() == from {
		lo--
		add(w.ext[lo])
	} else if lo < hi && w.ext[lo].first < from {
		add(w.ext[lo].cut(0, from))
	}
	for _, e := range with {
		add(e)
	}
	if hi > lo && w.ext[hi-1].end() > to {
		add(w.ext[hi-1].cut(to, endOfBlocks))
	} else if hi < len(w.ext) && w.ext[hi].first == to {
		add(w.ext[hi])
		hi++
	}
	w.ext = slices.Replace(w.ext, lo, hi, list...)
}

// dropLocked forgets what it knows of [from, to).
func (m *extMap) dropLocked(from, to uint64) {
	m.win = slices.DeleteFunc(m.win, func(w extWindow) bool { return w.from < to && w.to > from })
}

// idleExtents is how many extents an inode that nobody uses may keep in memory.
const idleExtents = 32

// shed forgets everything if that is worth it.
func (m *extMap) shed() {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := 0
	for k := range m.win {
		n += len(m.win[k].ext)
	}
	if n > idleExtents || len(m.win) > idleExtents {
		m.win = nil
	}
}

// reset forgets everything.
func (m *extMap) reset() {
	m.mu.Lock()
	m.seq++
	m.win = nil
	m.mu.Unlock()
}
