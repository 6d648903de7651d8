package store

import (
	"fmt"

	"runsc-fs/blobfs/format"
)

// Changes to the tree. All functions here need mu held exclusively.
//
// Before a change, the whole path from the root to the leaf is made dirty:
// each node on it moves to a new address, once per generation. The address
// comes from the allocator's pool, which prepareTree has filled for the worst
// case, so that nothing fails once the first byte is changed.

// step is one node on the path from the root to a leaf, and the entry that
// leads on.
type step struct {
	n *node
	i int
}

// treePath is a path with the root first and the leaf last.
type treePath struct {
	steps [format.MaxLevel + 1]step
	depth int // index of the leaf
	sp    span
}

func (p *treePath) leaf() *node { return p.steps[p.depth].n }

// spanAt returns the span of the node at depth d.
func (p *treePath) spanAt(d int) span {
	sp := wholeTree
	for j := range d {
		sp = childSpan(p.steps[j].n, p.steps[j].i, sp)
	}
	return sp
}

// mergeBelow is the fill, in bytes of the body, below which a node is merged
// with a neighbour, and mergeInto how full the result may be.
const (
	mergeBelow = format.NodeBodyBytes / 4
	mergeInto  = format.NodeBodyBytes * 3 / 4
)

// height returns the number of levels.
func (s *Store) height() int { return s.root.data.Level() + 1 }

// opBlocks is the largest number of blocks that one put or delete allocates:
// each node of the path moves, and each is split or has its neighbour move.
func (s *Store) opBlocks() int { return 2*s.height() + 1 }

// prepareTree makes sure that one put or delete cannot fail once it has begun
// to change the tree.
func (s *Store) prepareTree() error {
	if s.height() > format.MaxLevel {
		// A sound tree is never as high, and it must not grow beyond treePath.
		return format.Corruptf("tree has %d levels", s.height())
	}
	return s.alloc.fillPool(s.opBlocks())
}

// walk fills p with the path to k.
func (s *Store) walk(p *treePath, k format.Key) error {
	n, sp := s.root, wholeTree
	for d := 0; ; d++ {
		p.steps[d] = step{n: n}
		if n.kids == nil {
			p.depth, p.sp = d, sp
			return nil
		}
		i := n.data.ChildIndex(k)
		p.steps[d].i = i
		sp = childSpan(n, i, sp)
		kid, err := s.child(n, i, sp)
		if err != nil {
			return err
		}
		n = kid
	}
}

// makeDirty makes every node of the path dirty.
func (s *Store) makeDirty(p *treePath) {
	for d := 0; d <= p.depth; d++ {
		n := p.steps[d].n
		if n.gen == s.gen {
			continue
		}
		n = s.moveNode(n)
		p.steps[d].n = n
		if d == 0 {
			s.root = n
		} else {
			s.link(p.steps[d-1].n, p.steps[d-1].i, n)
		}
	}
}

// link makes entry i of the dirty node parent lead to n.
func (s *Store) link(parent *node, i int, n *node) {
	parent.data.SetChild(i, n.ptr())
	parent.kids[i].Store(n)
}

// moveNode gives a clean node a new address in the current generation. A node
// that a checkpoint is writing stays as it is and a copy moves.
func (s *Store) moveNode(n *node) *node {
	s.alloc.freeNode(n.addr)
	if n.writing {
		data := *n.data
		c := newNode(&data, 0, 0)
		if n.kids != nil {
			for i := range n.data.Count() {
				c.kids[i].Store(n.kids[i].Load())
			}
		}
		n = c
	}
	n.addr, n.gen = s.alloc.takeNode(), s.gen
	s.dirty++
	return n
}

// addNode makes a new, empty, dirty node.
func (s *Store) addNode(level int) *node {
	data := new(format.Node)
	data.Init(level)
	s.dirty++
	s.nodes++
	s.resident.Add(1)
	return newNode(data, s.alloc.takeNode(), s.gen)
}

// dropNode forgets a node that nothing leads to any more.
func (s *Store) dropNode(n *node) {
	if n.gen == s.gen {
		s.alloc.freeNewNode(n.addr)
		s.dirty--
	} else {
		s.alloc.freeNode(n.addr)
	}
	s.nodes--
	s.resident.Add(-1)
}

// putAt stores an item at the path to its key, which walk has found.
func (s *Store) putAt(p *treePath, k format.Key, value []byte) {
	if invariants {
		defer s.checkPath(k)
	}
	s.makeDirty(p)
	s.changes++
	leaf := p.leaf()
	i, found := leaf.data.Search(k)
	if found {
		if leaf.data.Replace(i, value) {
			return
		}
		leaf.data.Remove(i)
	}
	if leaf.data.Insert(i, k, value) {
		return
	}
	from, right := leaf.data.SplitPoint(i, format.ItemOverheadBytes+len(value))
	sibling := s.addNode(0)
	leaf.data.CopyTail(sibling.data, from)
	leaf.data.Truncate(from)
	separator := k
	target := leaf
	if right {
		target, i = sibling, i-from
	}
	ok := target.data.Insert(i, k, value)
	if sibling.data.Count() > 0 {
		separator = sibling.data.Key(0)
	}
	if !ok {
		panic(fmt.Sprintf("store: item %v of %d bytes does not fit a split leaf", k, len(value)))
	}
	s.insertSibling(p, p.depth-1, separator, sibling)
}

// insertSibling links a new node behind the one that the path leads to below
// depth d, splitting upwards as needed.
func (s *Store) insertSibling(p *treePath, d int, k format.Key, sibling *node) {
	if d < 0 {
		s.growRoot(k, sibling)
		return
	}
	n, i := p.steps[d].n, p.steps[d].i+1
	if i == 1 {
		// The first child holds keys from the node's own lower bound on, and
		// k may be below the key that its entry has had so far.
		n.data.SetKey(0, p.spanAt(d).low)
	}
	if n.data.Count() < format.MaxChildren {
		n.insertKid(i, n.data.Count(), sibling)
		n.data.InsertChild(i, k, sibling.ptr())
		return
	}
	from, right := n.data.SplitPoint(i, format.KeyBytes+16)
	upper := s.addNode(n.data.Level())
	count := n.data.Count()
	n.data.CopyTail(upper.data, from)
	n.data.Truncate(from)
	n.moveKids(upper, from, count, 0)
	target := n
	if right {
		target, i = upper, i-from
	}
	target.insertKid(i, target.data.Count(), sibling)
	target.data.InsertChild(i, k, sibling.ptr())
	s.insertSibling(p, d-1, upper.data.Key(0), upper)
}

// growRoot puts a new root above the old one and its new sibling.
func (s *Store) growRoot(k format.Key, sibling *node) {
	old := s.root
	root := s.addNode(old.data.Level() + 1)
	root.data.InsertChild(0, format.Key{}, old.ptr())
	root.data.InsertChild(1, k, sibling.ptr())
	root.kids[0].Store(old)
	root.kids[1].Store(sibling)
	s.root = root
}

// deleteAt removes item i of the leaf that the path leads to.
func (s *Store) deleteAt(p *treePath, i int) {
	if invariants {
		defer s.checkPath(p.leaf().data.Key(i))
	}
	s.makeDirty(p)
	s.changes++
	leaf := p.leaf()
	leaf.data.Remove(i)
	d := p.depth
	for d > 0 {
		n := p.steps[d].n
		parent, at := p.steps[d-1].n, p.steps[d-1].i
		if n.data.Count() == 0 {
			s.unlinkChild(parent, at)
			s.dropNode(n)
		} else if n.data.UsedBytes() >= mergeBelow || !s.mergeChild(p, d-1) {
			break
		}
		d--
	}
	s.shrinkRoot()
}

// unlinkChild removes entry i of a dirty node.
func (s *Store) unlinkChild(parent *node, i int) {
	parent.removeKid(i, parent.data.Count())
	parent.data.Remove(i)
}

// mergeChild merges the dirty node behind entry at of the dirty node at depth
// d with a neighbour if both fit one node, and reports whether it did. A
// neighbour that cannot be read is left alone: its damage is not ours.
func (s *Store) mergeChild(p *treePath, d int) bool {
	if s.undoing {
		return false
	}
	parent, at := p.steps[d].n, p.steps[d].i
	n := p.steps[d+1].n
	sp := p.spanAt(d)
	if at+1 < parent.data.Count() {
		right, err := s.child(parent, at+1, childSpan(parent, at+1, sp))
		if err == nil && n.data.UsedBytes()+right.data.UsedBytes() <= mergeInto {
			s.merge(parent, at, n, right)
			return true
		}
	}
	if at > 0 {
		left, err := s.child(parent, at-1, childSpan(parent, at-1, sp))
		if err == nil && left.data.UsedBytes()+n.data.UsedBytes() <= mergeInto {
			if left.gen != s.gen {
				left = s.moveNode(left)
				s.link(parent, at-1, left)
			}
			s.merge(parent, at-1, left, n)
			return true
		}
	}
	return false
}

// merge appends right, the node behind entry i+1, to left, the dirty node
// behind entry i. right's data stays as it is: a checkpoint may be writing it.
func (s *Store) merge(parent *node, i int, left, right *node) {
	base, count := left.data.Count(), right.data.Count()
	right.data.CopyTail(left.data, 0)
	if left.kids != nil {
		// The first entry of right stood for all of right's range.
		left.data.SetKey(base, parent.data.Key(i+1))
		right.moveKids(left, 0, count, base)
	}
	s.unlinkChild(parent, i+1)
	s.dropNode(right)
}

// shrinkRoot removes levels that have become superfluous.
func (s *Store) shrinkRoot() {
	for s.root.kids != nil {
		switch s.root.data.Count() {
		case 0:
			s.root.data.Init(0)
			s.root.kids = nil
		case 1:
			// A clean root may lose a level only in a change of its own.
			only := s.root.kids[0].Load()
			if only == nil || s.root.gen != s.gen {
				return
			}
			old := s.root
			s.root = only
			s.dropNode(old)
		default:
			return
		}
	}
}
