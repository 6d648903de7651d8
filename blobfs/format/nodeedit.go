package format

// Insert puts an item at index i of a leaf, where Search says that the key
// belongs. It returns false, and changes nothing, if the item does not fit.
func (n *Node) Insert(i int, k Key, value []byte) bool {
	count := n.Count()
	if n.UsedBytes()+leafSlotBytes+len(value) > NodeBodyBytes {
		return false
	}
	if n.heap()-(nodeBody+count*leafSlotBytes) < leafSlotBytes+len(value) {
		n.compact()
	}
	n.openSlot(i, count, leafSlotBytes)
	s := n.slot(i)
	PutKey(s, k)
	n.placeValue(s, value)
	return true
}

// Replace gives item i of a leaf a new value. It returns false, and changes
// nothing, if the value does not fit.
func (n *Node) Replace(i int, value []byte) bool {
	s := n.slot(i)
	off, old := int(le.Uint16(s[KeyBytes:])), int(le.Uint16(s[KeyBytes+2:]))
	if len(value) <= old {
		copy(n[off:], value)
		le.PutUint16(s[KeyBytes+2:], uint16(len(value)))
		n.setGarbage(n.garbage() + old - len(value))
		return true
	}
	if n.UsedBytes()-old+len(value) > NodeBodyBytes {
		return false
	}
	le.PutUint16(s[KeyBytes+2:], 0)
	n.setGarbage(n.garbage() + old)
	if n.heap()-(nodeBody+n.Count()*leafSlotBytes) < len(value) {
		n.compact()
	}
	n.placeValue(s, value)
	return true
}

// placeValue appends value to the heap, where there is room for it, and points
// slot s there.
func (n *Node) placeValue(s []byte, value []byte) {
	heap := n.heap() - len(value)
	copy(n[heap:], value)
	n.setHeap(heap)
	le.PutUint16(s[KeyBytes:], uint16(heap))
	le.PutUint16(s[KeyBytes+2:], uint16(len(value)))
}

// Remove deletes item or entry i.
func (n *Node) Remove(i int) {
	if n[nodeLevel] == 0 {
		n.setGarbage(n.garbage() + len(n.Value(i)))
	}
	count, size := n.Count(), n.stride()
	from := nodeBody + (i+1)*size
	copy(n[from-size:], n[from:nodeBody+count*size])
	n.setCount(count - 1)
	if count == 1 {
		n.setHeap(BlockSizeBytes)
		n.setGarbage(0)
	}
}

// InsertChild puts an entry at index i of an interior node. It returns false
// if the node is full.
func (n *Node) InsertChild(i int, k Key, ptr ChildPtr) bool {
	count := n.Count()
	if count == MaxChildren {
		return false
	}
	n.openSlot(i, count, childSlotBytes)
	PutKey(n.slot(i), k)
	n.SetChild(i, ptr)
	return true
}

// SetChild changes the pointer of entry i of an interior node.
func (n *Node) SetChild(i int, ptr ChildPtr) {
	s := n.slot(i)
	le.PutUint64(s[KeyBytes:], uint64(ptr.Addr))
	le.PutUint64(s[KeyBytes+8:], ptr.Generation)
}

// SetKey changes the key of item or entry i; the order must stay the same.
func (n *Node) SetKey(i int, k Key) { PutKey(n.slot(i), k) }

// openSlot makes room for slot i and counts it.
func (n *Node) openSlot(i, count, size int) {
	from := nodeBody + i*size
	copy(n[from+size:], n[from:nodeBody+count*size])
	n.setCount(count + 1)
}

// compact moves all values of a leaf to the end of the block.
func (n *Node) compact() {
	var tmp [BlockSizeBytes]byte
	heap := BlockSizeBytes
	for i := range n.Count() {
		v := n.Value(i)
		heap -= len(v)
		copy(tmp[heap:], v)
		le.PutUint16(n.slot(i)[KeyBytes:], uint16(heap))
	}
	copy(n[heap:], tmp[heap:])
	n.setHeap(heap)
	n.setGarbage(0)
}

// itemBytes returns what item or entry i takes of the body.
func (n *Node) itemBytes(i int) int {
	if n[nodeLevel] == 0 {
		return leafSlotBytes + len(n.Value(i))
	}
	return childSlotBytes
}

// SplitPoint says how to divide a node so that an item of size bytes (value
// and overhead) then fits at index i: items from the returned index on go to
// the right node, and the new item goes there if right is true. A node that
// grows at its end, as when a file is written in order, is left full.
func (n *Node) SplitPoint(i, size int) (from int, right bool) {
	count := n.Count()
	if i == count {
		return count, true
	}
	total := n.UsedBytes() + size
	sum := 0
	for j := range count {
		if j == i {
			// The new item stands before item j.
			if sum > 0 && sum+size/2 >= total/2 {
				return j, true
			}
			sum += size
			if sum >= total/2 {
				return j, false
			}
		}
		b := n.itemBytes(j)
		if sum > 0 && sum+b/2 >= total/2 {
			return j, i >= j && i != j
		}
		sum += b
	}
	return count, true
}

// CopyTail appends the items from index from on to dst, a node of the same
// level with room for them.
func (n *Node) CopyTail(dst *Node, from int) {
	count, base := n.Count(), dst.Count()
	if n[nodeLevel] != 0 {
		copy(dst[nodeBody+base*childSlotBytes:], n[nodeBody+from*childSlotBytes:nodeBody+count*childSlotBytes])
		dst.setCount(base + count - from)
		return
	}
	for i := from; i < count; i++ {
		dst.Insert(base+i-from, n.Key(i), n.Value(i))
	}
}

// Truncate removes the items from index from on.
func (n *Node) Truncate(from int) {
	if n[nodeLevel] == 0 {
		garbage := n.garbage()
		for i := from; i < n.Count(); i++ {
			garbage += len(n.Value(i))
		}
		n.setGarbage(garbage)
		if from == 0 {
			n.setHeap(BlockSizeBytes)
			n.setGarbage(0)
		}
	}
	n.setCount(from)
}
