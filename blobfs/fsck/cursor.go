package fsck

import (
	"sort"

	"runsc-fs/blobfs/format"
)

// cursor moves over the items of the published tree in the order of their
// keys. What is unreadable is passed over: checkTree has reported it.
type cursor struct {
	c      *checker
	frames [format.MaxLevel + 1]frame
	leaf   int // depth of the leaf; -1 behind the last item
}

// frame is a node on the path to the current item.
type frame struct {
	node format.Node
	ptr  format.ChildPtr // of node; zero if it holds none
	keys keyRange
	i    int // item or entry
}

// load makes frame d the node behind ptr.
func (cu *cursor) load(d int, ptr format.ChildPtr, keys keyRange) bool {
	f := &cu.frames[d]
	if f.ptr == ptr && f.keys == keys {
		return true
	}
	f.ptr = format.ChildPtr{}
	if code, _ := cu.c.loadNode(&f.node, ptr, int(cu.c.sb.RootLevel)-d, keys); code != "" {
		return false
	}
	f.ptr, f.keys = ptr, keys
	return true
}

// loadChild makes the frame below d the node behind d's current entry.
func (cu *cursor) loadChild(d int) bool {
	f := &cu.frames[d]
	return cu.load(d+1, f.node.Child(f.i), childRange(&f.node, f.i, f.keys))
}

// seek moves to the first item whose key is not less than k.
func (cu *cursor) seek(k format.Key) {
	cu.leaf = -1
	if !cu.load(0, cu.c.sb.Root, wholeTree) {
		return
	}
	d := 0
	for ; cu.frames[d].node.Level() > 0; d++ {
		f := &cu.frames[d]
		f.i = f.node.ChildIndex(k)
		if !cu.loadChild(d) {
			cu.nextLeaf(d)
			return
		}
	}
	f := &cu.frames[d]
	f.i, _ = f.node.Search(k)
	cu.leaf = d
	if f.i >= f.node.Count() {
		cu.nextLeaf(d - 1)
	}
}

// next moves to the next item.
func (cu *cursor) next() {
	f := &cu.frames[cu.leaf]
	if f.i++; f.i >= f.node.Count() {
		cu.nextLeaf(cu.leaf - 1)
	}
}

// nextLeaf moves to the first item behind the current entry of frame d.
func (cu *cursor) nextLeaf(d int) {
	cu.leaf = -1
	for d >= 0 {
		f := &cu.frames[d]
		if f.i++; f.i >= f.node.Count() {
			d--
			continue
		}
		if !cu.loadChild(d) {
			continue
		}
		child := &cu.frames[d+1]
		if child.node.Level() > 0 {
			child.i = -1
			d++
			continue
		}
		if child.i = 0; child.node.Count() > 0 {
			cu.leaf = d + 1
			return
		}
	}
}

func (cu *cursor) valid() bool { return cu.leaf >= 0 }

// key and value are those of the current item; value is a part of a buffer
// that the next move may overwrite.
func (cu *cursor) key() format.Key {
	f := &cu.frames[cu.leaf]
	return f.node.Key(f.i)
}

func (cu *cursor) value() []byte {
	f := &cu.frames[cu.leaf]
	return f.node.Value(f.i)
}

// items moves over the items as a mount would find them: those of the tree
// with the log's changes.
type items struct {
	cu  cursor
	ov  int // next change of the overlay
	key format.Key
	// value is valid until the next move.
	value []byte
	// fromLog says that the item is one that the log puts.
	fromLog bool
	// missing, if set, is called for each key that the log deletes although
	// the tree, as far as it can be read, does not have it.
	missing func(k format.Key)
	started bool
}

func (c *checker) newItems() *items { return &items{cu: cursor{c: c, leaf: -1}} }

// seek makes next return the first item whose key is not less than k.
func (it *items) seek(k format.Key) {
	c := it.cu.c
	it.cu.seek(k)
	it.ov = sort.Search(len(c.overlay), func(i int) bool { return !c.overlay[i].key.Less(k) })
	it.started = false
}

// next moves to the next item and reports whether there is one.
func (it *items) next() bool {
	if it.started && !it.fromLog {
		it.cu.next()
	}
	it.started = true
	c := it.cu.c
	for it.ov < len(c.overlay) {
		o := &c.overlay[it.ov]
		inTree := false
		if it.cu.valid() {
			switch k := it.cu.key(); k.Compare(o.key) {
			case -1:
				return it.take()
			case 0:
				inTree = true
				it.cu.next()
			}
		}
		it.ov++
		if !inTree && o.deletesFirst && it.missing != nil {
			it.missing(o.key)
		}
		if !o.deleted {
			it.key, it.value, it.fromLog = o.key, o.value(c), true
			return true
		}
	}
	if !it.cu.valid() {
		it.fromLog = true // nothing to move on from
		return false
	}
	return it.take()
}

func (it *items) take() bool {
	it.key, it.value, it.fromLog = it.cu.key(), it.cu.value(), false
	return true
}
