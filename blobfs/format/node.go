package format

import "encoding/binary"

// Node is one node of the tree, in the form in which it lies on disk and in
// memory alike. Leaves (level 0) hold items, interior nodes point to the nodes
// one level below.
//
//	 0         40      41     42      44      46        48     64
//	┌─────────┬───────┬──────┬───────┬───────┬─────────┬──────┬──────────────┐
//	│ header  │ level │ zero │ count │ heap  │ garbage │ zero │ body         │
//	└─────────┴───────┴──────┴───────┴───────┴─────────┴──────┴──────────────┘
//
// The body of a leaf is an array of slots, sorted by key, that grows upwards,
// and a heap of values that grows downwards from the end of the block:
//
//	┌────────┬────────┬───┬────────┬────────────┬──────────┬───┬──────────┐
//	│ slot 0 │ slot 1 │ … │ slot n │ free space │ value    │ … │ value    │
//	└────────┴────────┴───┴────────┴────────────┴──────────┴───┴──────────┘
//	slot:  key [17] │ value offset u16 │ value length u16      ▲ heap
//
// Heap is the offset of the lowest value, garbage the number of dead bytes
// behind it. The body of an interior node is an array of entries:
//
//	entry: key [17] │ child address u64 │ child generation u64
//
// The subtree of entry i holds keys from its key up to, not including, the key
// of entry i+1; that of the first entry begins where the node's own range
// begins, which may be below its key. The generation in an entry equals that
// in the child's header, so a child that was never written is noticed.
//
// Methods that read are safe after Validate succeeded; methods that change a
// node keep it valid. Nothing here is safe for concurrent use with a change.
type Node [BlockSizeBytes]byte

// ChildPtr points to a node: where it is and which generation wrote it.
type ChildPtr struct {
	Addr       Addr
	Generation uint64
}

const (
	nodeLevel   = 40
	nodeCount   = 42
	nodeHeap    = 44
	nodeGarbage = 46
	nodeBody    = 64

	leafSlotBytes  = KeyBytes + 4  // 21
	childSlotBytes = KeyBytes + 16 // 33

	// NodeBodyBytes is what slots and values of a node share.
	NodeBodyBytes = BlockSizeBytes - nodeBody
	// MaxChildren is the number of entries of a full interior node.
	MaxChildren = NodeBodyBytes / childSlotBytes // 122
	// MaxItems is the number of items of a leaf full of empty values.
	MaxItems = NodeBodyBytes / leafSlotBytes // 192
	// MaxLevel bounds the height of a tree: far above what MaxBlocks allows.
	MaxLevel = 15
	// ItemOverheadBytes is what an item takes in a leaf besides its value.
	ItemOverheadBytes = leafSlotBytes
)

// Frozen: three items of any size fit, and a node filled by a split half and
// one more item does not overflow.
var (
	_ = [NodeBodyBytes + 1]struct{}{}[3*(leafSlotBytes+MaxValueBytes)]
	_ = [1]struct{}{}[MaxChildren-122]
)

// Init makes n an empty node of the given level.
func (n *Node) Init(level int) {
	clear(n[:])
	n[nodeLevel] = byte(level)
	n.setHeap(BlockSizeBytes)
}

// SetIdentity stores what the header says of the node, except the CRC.
func (n *Node) SetIdentity(uuid UUID, addr Addr, generation uint64) {
	putHeader(n[:], Header{Magic: MagicNode, UUID: uuid, Addr: addr, Generation: generation})
}

// Level returns the distance to the leaves.
func (n *Node) Level() int { return int(n[nodeLevel]) }

// Count returns the number of items or entries.
func (n *Node) Count() int { return int(le.Uint16(n[nodeCount:])) }

// Generation returns the generation in the header.
func (n *Node) Generation() uint64 { return le.Uint64(n[hdrGen:]) }

func (n *Node) setCount(c int)   { le.PutUint16(n[nodeCount:], uint16(c)) }
func (n *Node) heap() int        { return int(le.Uint16(n[nodeHeap:])) }
func (n *Node) setHeap(h int)    { le.PutUint16(n[nodeHeap:], uint16(h)) }
func (n *Node) garbage() int     { return int(le.Uint16(n[nodeGarbage:])) }
func (n *Node) setGarbage(g int) { le.PutUint16(n[nodeGarbage:], uint16(g)) }

func (n *Node) stride() int {
	if n[nodeLevel] == 0 {
		return leafSlotBytes
	}
	return childSlotBytes
}

// slot returns the bytes of slot or entry i.
func (n *Node) slot(i int) []byte {
	s := n.stride()
	off := nodeBody + i*s
	return n[off : off+s : off+s]
}

// Key returns the key of item or entry i.
func (n *Node) Key(i int) Key { return GetKey(n.slot(i)) }

// Value returns the value of item i of a leaf, a part of n.
func (n *Node) Value(i int) []byte {
	s := n.slot(i)
	off, size := int(le.Uint16(s[KeyBytes:])), int(le.Uint16(s[KeyBytes+2:]))
	return n[off : off+size : off+size]
}

// Child returns the pointer of entry i of an interior node.
func (n *Node) Child(i int) ChildPtr {
	s := n.slot(i)
	return ChildPtr{Addr(le.Uint64(s[KeyBytes:])), le.Uint64(s[KeyBytes+8:])}
}

// Search returns the index of the first key that is not less than k, and
// whether it equals k.
func (n *Node) Search(k Key) (index int, found bool) {
	s := n.stride()
	lo, hi := 0, n.Count()
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		off := nodeBody + mid*s
		b := n[off : off+KeyBytes : off+KeyBytes]
		var less bool
		if object := binary.BigEndian.Uint64(b); object != k.Object {
			less = object < k.Object
		} else if kind := Kind(b[8]); kind != k.Kind {
			less = kind < k.Kind
		} else if offset := binary.BigEndian.Uint64(b[9:]); offset != k.Offset {
			less = offset < k.Offset
		} else {
			return mid, true
		}
		if less {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo, false
}

// ChildIndex returns the index of the entry whose subtree k belongs to.
func (n *Node) ChildIndex(k Key) int {
	i, found := n.Search(k)
	if !found && i > 0 {
		i--
	}
	return i
}

// UsedBytes returns how much of the body is taken, garbage not counted.
func (n *Node) UsedBytes() int {
	if n[nodeLevel] == 0 {
		return n.Count()*leafSlotBytes + BlockSizeBytes - n.heap() - n.garbage()
	}
	return n.Count() * childSlotBytes
}

// Validate checks a node that was read for the pointer ptr, at the given
// level, for keys from low up to and including high. After it no method of
// Node can go out of bounds, whatever the block holds.
func (n *Node) Validate(uuid UUID, ptr ChildPtr, level int, low, high Key) error {
	h, err := CheckHeader(n[:], "node", MagicNode, uuid, ptr.Addr)
	if err != nil {
		return err
	}
	at := ptr.Addr
	if h.Generation != ptr.Generation {
		return Corruptf("node at block %v: is of generation %d, not %d", at, h.Generation, ptr.Generation)
	}
	if n.Level() != level {
		return Corruptf("node at block %v: is of level %d, not %d", at, n.Level(), level)
	}
	count := n.Count()
	if level == 0 {
		if err := n.validateHeap(at); err != nil {
			return err
		}
		if count == 0 && (low != Key{} || high != MaxKey) {
			return Corruptf("node at block %v: empty leaf", at)
		}
	} else if count == 0 || count > MaxChildren {
		return Corruptf("node at block %v: interior with %d entries", at, count)
	}
	for i := range count {
		k := n.Key(i)
		if i == 0 {
			if k.Less(low) {
				return Corruptf("node at block %v: key %v below lower bound %v", at, k, low)
			}
		} else if !n.Key(i - 1).Less(k) {
			return Corruptf("node at block %v: keys out of order at %d: %v", at, i, k)
		}
	}
	if count > 0 && high.Less(n.Key(count-1)) {
		return Corruptf("node at block %v: key %v beyond upper bound %v", at, n.Key(count-1), high)
	}
	return nil
}

// validateHeap checks count, heap and value bounds of a leaf.
func (n *Node) validateHeap(at Addr) error {
	count, heap, garbage := n.Count(), n.heap(), n.garbage()
	if count > MaxItems || heap < nodeBody+count*leafSlotBytes || heap > BlockSizeBytes || garbage > BlockSizeBytes-heap {
		return Corruptf("node at block %v: %d items, heap at %d, %d bytes of garbage", at, count, heap, garbage)
	}
	sum := 0
	for i := range count {
		s := n.slot(i)
		off, size := int(le.Uint16(s[KeyBytes:])), int(le.Uint16(s[KeyBytes+2:]))
		if size > MaxValueBytes || off < heap || off+size > BlockSizeBytes {
			return Corruptf("node at block %v: item %d has its value at %d+%d", at, i, off, size)
		}
		sum += size
	}
	if sum+garbage != BlockSizeBytes-heap {
		return Corruptf("node at block %v: values take %d bytes and garbage %d, of %d", at, sum, garbage, BlockSizeBytes-heap)
	}
	return nil
}
