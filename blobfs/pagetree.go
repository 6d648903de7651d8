package blobfs

import (
	"math/bits"
	"sync/atomic"
)

const (
	treeBits   = 6
	treeFanout = 1 << treeBits
	treeLevels = 7 // 42 bits of index: more than MaxFileSizeBytes needs
)

// pageTree maps page indexes of one file to cached pages. get takes no lock;
// everything else needs treeMu of the inode. Nodes leave the tree when they
// become empty; a reader inside such a node sees nil and looks again under the
// lock.
type pageTree struct {
	root atomic.Pointer[treeNode]
}

// treeNode has either children (level > 0) or pages (level 0). Bit n of
// present and dirty belongs to slot n and is set when anything below is.
type treeNode struct {
	level   uint8
	present uint64
	dirty   uint64
	kids    []atomic.Pointer[treeNode]
	pages   []atomic.Pointer[page]
}

func newTreeNode(level uint8) *treeNode {
	n := &treeNode{level: level}
	if level == 0 {
		n.pages = make([]atomic.Pointer[page], treeFanout)
	} else {
		n.kids = make([]atomic.Pointer[treeNode], treeFanout)
	}
	return n
}

// covers reports whether index lies below a root of n's level.
func (n *treeNode) covers(index uint64) bool {
	return index>>(treeBits*(uint(n.level)+1)) == 0
}

func (n *treeNode) slot(index uint64) uint64 {
	return index >> (treeBits * uint(n.level)) % treeFanout
}

// get returns the page at index, or nil.
func (t *pageTree) get(index uint64) *page {
	n := t.root.Load()
	if n == nil || !n.covers(index) {
		return nil
	}
	for n.level > 0 {
		if n = n.kids[n.slot(index)].Load(); n == nil {
			return nil
		}
	}
	return n.pages[index%treeFanout].Load()
}

// path fills nodes from the root (at its level) down to the leaf of index and
// returns the leaf, or nil when there is none.
func (t *pageTree) path(index uint64, nodes *[treeLevels]*treeNode) *treeNode {
	n := t.root.Load()
	if n == nil || !n.covers(index) {
		return nil
	}
	for {
		nodes[n.level] = n
		if n.level == 0 {
			return n
		}
		if n = n.kids[n.slot(index)].Load(); n == nil {
			return nil
		}
	}
}

// insert adds p at index, which must be empty.
func (t *pageTree) insert(index uint64, p *page) {
	root := t.root.Load()
	if root == nil {
		level := uint8(0)
		for !(&treeNode{level: level}).covers(index) {
			level++
		}
		root = newTreeNode(level)
		t.root.Store(root)
	}
	for !root.covers(index) {
		up := newTreeNode(root.level + 1)
		up.kids[0].Store(root)
		if root.present != 0 {
			up.present = 1
		}
		if root.dirty != 0 {
			up.dirty = 1
		}
		t.root.Store(up)
		root = up
	}
	n := root
	for n.level > 0 {
		s := n.slot(index)
		n.present |= 1 << s
		kid := n.kids[s].Load()
		if kid == nil {
			kid = newTreeNode(n.level - 1)
			n.kids[s].Store(kid)
		}
		n = kid
	}
	n.present |= 1 << (index % treeFanout)
	n.pages[index%treeFanout].Store(p)
}

// remove takes the page at index out, with its dirty mark.
func (t *pageTree) remove(index uint64) {
	var nodes [treeLevels]*treeNode
	leaf := t.path(index, &nodes)
	if leaf == nil {
		return
	}
	leaf.pages[index%treeFanout].Store(nil)
	for level := 0; level < treeLevels && nodes[level] != nil; level++ {
		n := nodes[level]
		s := n.slot(index)
		if level == 0 || nodes[level-1].present == 0 {
			n.present &^= 1 << s
		}
		if level == 0 || nodes[level-1].dirty == 0 {
			n.dirty &^= 1 << s
		}
		if level > 0 && nodes[level-1].present == 0 {
			n.kids[s].Store(nil)
		}
	}
	if root := t.root.Load(); root.present == 0 {
		t.root.Store(nil)
	}
}

// mark sets the dirty mark of a page that is in the tree.
func (t *pageTree) mark(index uint64) {
	var nodes [treeLevels]*treeNode
	if t.path(index, &nodes) == nil {
		return
	}
	for level := 0; level < treeLevels && nodes[level] != nil; level++ {
		nodes[level].dirty |= 1 << nodes[level].slot(index)
	}
}

// unmark clears the dirty mark of a page.
func (t *pageTree) unmark(index uint64) {
	var nodes [treeLevels]*treeNode
	if t.path(index, &nodes) == nil {
		return
	}
	for level := 0; level < treeLevels && nodes[level] != nil; level++ {
		if level == 0 || nodes[level-1].dirty == 0 {
			nodes[level].dirty &^= 1 << nodes[level].slot(index)
		}
	}
}

// next returns the first page at or behind index, or nil.
func (t *pageTree) next(index uint64) *page { return t.find(index, false) }

// nextDirty returns the first dirty page at or behind index, or nil.
func (t *pageTree) nextDirty(index uint64) *page { return t.find(index, true) }

func (t *pageTree) find(index uint64, dirty bool) *page {
	root := t.root.Load()
	if root == nil || !root.covers(index) {
		return nil
	}
	return root.find(index, dirty)
}

// find looks below n, of whose range index selects the beginning.
func (n *treeNode) find(index uint64, dirty bool) *page {
	marks := n.present
	if dirty {
		marks = n.dirty
	}
	first := n.slot(index)
	marks &= ^uint64(0) << first
	for marks != 0 {
		s := uint64(bits.TrailingZeros64(marks))
		marks &= marks - 1
		if n.level == 0 {
			return n.pages[s].Load()
		}
		from := index
		if s != first {
			from = 0 // only the low bits below this level matter
		}
		if p := n.kids[s].Load().find(from, dirty); p != nil {
			return p
		}
	}
	return nil
}
