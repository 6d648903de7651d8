package store

import (
	"sync/atomic"

	"runsc-fs/blobfs/format"
)

// node is a tree node in memory. data, addr and gen change only under
// Store.mu held exclusively; kids are also filled by readers.
type node struct {
	data *format.Node
	addr format.Addr
	// gen is the generation that owns the address: the current one if the
	// node is dirty, an earlier one if it is, or is being, written.
	gen uint64
	// kids holds the nodes behind the entries of an interior node as far as
	// they are in memory. nil for leaves.
	kids *[format.MaxChildren]atomic.Pointer[node]
	// writing says that a checkpoint is writing data, which must not change.
	writing bool
	// hot says that the node was used since the last sweep.
	hot atomic.Bool
}

func newNode(data *format.Node, addr format.Addr, gen uint64) *node {
	n := &node{data: data, addr: addr, gen: gen}
	if data.Level() > 0 {
		n.kids = new([format.MaxChildren]atomic.Pointer[node])
	}
	n.hot.Store(true)
	return n
}

func (n *node) ptr() format.ChildPtr { return format.ChildPtr{Addr: n.addr, Generation: n.gen} }

// insertKid, removeKid and moveKids do for kids what the node edits do for
// entries.
func (n *node) insertKid(i, count int, kid *node) {
	for j := count; j > i; j-- {
		n.kids[j].Store(n.kids[j-1].Load())
	}
	n.kids[i].Store(kid)
}

func (n *node) removeKid(i, count int) {
	for j := i; j < count-1; j++ {
		n.kids[j].Store(n.kids[j+1].Load())
	}
	n.kids[count-1].Store(nil)
}

func (n *node) moveKids(right *node, from, count, base int) {
	for j := from; j < count; j++ {
		right.kids[base+j-from].Store(n.kids[j].Load())
		n.kids[j].Store(nil)
	}
}

// span is the range of keys, both ends included, that a node is responsible for.
type span struct{ low, high format.Key }

var wholeTree = span{format.Key{}, format.MaxKey}

// childSpan narrows sp to entry i of n.
func childSpan(n *node, i int, sp span) span {
	if i > 0 {
		sp.low = n.data.Key(i)
	}
	if i+1 < n.data.Count() {
		// Keys ascend, so the next one is not the zero key.
		sp.high, _ = n.data.Key(i + 1).Prev()
	}
	return sp
}

// child returns the node behind entry i of n, reading it if need be. The
// caller holds mu, shared or not.
func (s *Store) child(n *node, i int, sp span) (*node, error) {
	if kid := n.kids[i].Load(); kid != nil {
		if !kid.hot.Load() {
			kid.hot.Store(true)
		}
		return kid, nil
	}
	kid, err := s.loadNode(n.data.Child(i), n.data.Level()-1, sp)
	if err != nil {
		return nil, err
	}
	if !n.kids[i].CompareAndSwap(nil, kid) {
		return n.kids[i].Load(), nil
	}
	s.resident.Add(1)
	return kid, nil
}

// loadNode reads and validates a node.
func (s *Store) loadNode(ptr format.ChildPtr, level int, sp span) (*node, error) {
	if err := format.CheckRun(format.Run{Start: ptr.Addr, Blocks: 1}, s.VolumeBlocks()); err != nil {
		return nil, err
	}
	if s.sb.IsFixed(ptr.Addr) {
		return nil, format.Corruptf("node pointer %v leads to a fixed structure", ptr.Addr)
	}
	data := new(format.Node)
	if err := s.readBlock(ptr.Addr, data[:]); err != nil {
		return nil, err
	}
	s.stats.nodeReads.Add(1)
	if err := data.Validate(s.sb.UUID, ptr, level, sp.low, sp.high); err != nil {
		return nil, err
	}
	return newNode(data, ptr.Addr, ptr.Generation), nil
}

// findLeaf returns the leaf that k belongs to and its span. The caller holds
// mu, shared or not.
func (s *Store) findLeaf(k format.Key) (*node, span, error) {
	n, sp := s.root, wholeTree
	for n.kids != nil {
		i := n.data.ChildIndex(k)
		sp = childSpan(n, i, sp)
		kid, err := s.child(n, i, sp)
		if err != nil {
			return nil, sp, err
		}
		n = kid
	}
	return n, sp, nil
}

// cleanNodes is the number of nodes in memory that could be read again. mu is
// held, shared or not.
func (s *Store) cleanNodes() int64 { return s.resident.Load() - int64(s.dirty) - int64(s.frozen) }

// cacheFull reports whether it is time for a sweep.
func (s *Store) cacheFull() bool { return s.cleanNodes() > s.maxResident }

// sweepLocked drops clean nodes that were not used since the last sweep, until
// the cache is well within its bound. mu is held exclusively.
func (s *Store) sweepLocked() {
	target := s.maxResident - s.maxResident/8
	for range 2 { // the first round may only cool nodes down
		if s.root.kids == nil || s.cleanNodes() <= target {
			return
		}
		s.stats.sweeps.Add(1)
		count := s.root.data.Count()
		for range count {
			s.sweepPos = (s.sweepPos + 1) % count
			s.sweepChild(s.root, s.sweepPos, target)
			if s.cleanNodes() <= target {
				return
			}
		}
	}
}

// sweepChild sweeps below entry i of n, then drops its node if it is clean,
// cold and has no nodes below it in memory. It reports whether the entry has
// no node in memory afterwards.
func (s *Store) sweepChild(n *node, i int, target int64) bool {
	kid := n.kids[i].Load()
	if kid == nil {
		return true
	}
	empty := true
	if kid.kids != nil {
		for j := range kid.data.Count() {
			if !s.sweepChild(kid, j, target) {
				empty = false
			}
		}
	}
	if s.cleanNodes() <= target {
		return false
	}
	if kid.hot.Load() {
		kid.hot.Store(false)
		return false
	}
	if !empty || kid.gen == s.gen || kid.writing {
		return false
	}
	n.kids[i].Store(nil)
	s.resident.Add(-1)
	return true
}
