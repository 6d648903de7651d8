package fsck

import (
	"encoding/binary"
	"fmt"
	"sort"
	"strings"

	"runsc-fs/blobfs/format"
)

// keyRange is a range of keys, both ends included.
type keyRange struct{ low, high format.Key }

var wholeTree = keyRange{format.Key{}, format.MaxKey}

// childRange narrows r to entry i of a valid interior node.
func childRange(n *format.Node, i int, r keyRange) keyRange {
	if i > 0 {
		r.low = n.Key(i)
	}
	if i+1 < n.Count() {
		r.high, _ = n.Key(i + 1).Prev() // keys ascend: this one is not the first
	}
	return r
}

func nodeName(a format.Addr) string { return fmt.Sprintf("node at block %v", a) }

// treeWalk visits the nodes of the published tree, one buffer for each level.
type treeWalk struct {
	c    *checker
	bufs [format.MaxLevel + 1]format.Node
}

// checkTree checks every node of the published tree.
func (c *checker) checkTree() {
	w := &treeWalk{c: c}
	c.rep.Counters.TreeLevels = int(c.sb.RootLevel) + 1
	w.node(c.sb.Root, int(c.sb.RootLevel), wholeTree, c.sb.Generation)
	if n := c.rep.Counters.Nodes; n != c.sb.Nodes && len(c.damage) == 0 {
		c.found(Error, CodeNodeCount, "tree", "has %d nodes, the superblock says %d", n, c.sb.Nodes)
	}
}

// node checks the node behind ptr and all below it. A node that is no good is
// reported, and its keys count as damaged. maxGen is the parent's generation.
func (w *treeWalk) node(ptr format.ChildPtr, level int, keys keyRange, maxGen uint64) {
	c, n := w.c, &w.bufs[level]
	c.rep.Counters.Nodes++
	if code, text := c.loadNode(n, ptr, level, keys); code != "" {
		c.found(Error, code, nodeName(ptr.Addr), "%s; keys %v to %v are lost", text, keys.low, keys.high)
		c.addDamage(keys)
		return
	}
	if ptr.Generation > maxGen {
		c.found(Error, CodeNodeGeneration, nodeName(ptr.Addr), "is of generation %d, later than what leads to it: %d", ptr.Generation, maxGen)
	}
	if n[43] != 0 || !allZero(n[48:64]) {
		c.found(Warning, CodeReserved, nodeName(ptr.Addr), "reserved bytes are set")
	}
	if level == int(c.sb.RootLevel) {
		if crc := format.ReadHeader(n[:]).CRC; crc != c.sb.RootCRC {
			c.found(Error, CodeNodeCorrupt, nodeName(ptr.Addr), "is not the root that the superblock means: checksum %#08x, not %#08x", crc, c.sb.RootCRC)
		}
	}
	if level == 0 {
		w.leaf(ptr, n)
		return
	}
	for i := range n.Count() {
		w.node(n.Child(i), level-1, childRange(n, i, keys), ptr.Generation)
	}
}

// leaf checks that no two values share bytes.
func (w *treeWalk) leaf(ptr format.ChildPtr, n *format.Node) {
	const body = format.BlockSizeBytes - format.NodeBodyBytes
	var taken [format.BlockSizeBytes]bool
	for i := range n.Count() {
		slot := body + i*format.ItemOverheadBytes
		off := int(binary.LittleEndian.Uint16(n[slot+format.KeyBytes:]))
		for b := range n.Value(i) {
			if taken[off+b] {
				w.c.found(Error, CodeNodeContent, nodeName(ptr.Addr), "the value of item %v lies over another", n.Key(i))
				return
			}
			taken[off+b] = true
		}
	}
}

// loadNode reads and validates the node behind ptr. If it is no good, the
// result says why.
func (c *checker) loadNode(n *format.Node, ptr format.ChildPtr, level int, keys keyRange) (Code, string) {
	if err := format.CheckRun(format.Run{Start: ptr.Addr, Blocks: 1}, c.sb.VolumeBlocks); err != nil {
		return CodeNodePointer, reason(err)
	}
	if c.sb.IsFixed(ptr.Addr) {
		return CodeNodePointer, "lies on a fixed structure"
	}
	if err := c.io.read(ptr.Addr, n[:]); err != nil {
		return CodeNodeIO, err.Error()
	}
	if _, err := format.CheckHeader(n[:], "node", format.MagicNode, c.sb.UUID, ptr.Addr); err != nil {
		return CodeNodeCorrupt, nodeReason(err, ptr.Addr)
	}
	if g := n.Generation(); g != ptr.Generation {
		return CodeNodeGeneration, fmt.Sprintf("is of generation %d, expected is %d: a write was lost", g, ptr.Generation)
	}
	if l := n.Level(); l != level {
		return CodeNodeLevel, fmt.Sprintf("is of level %d, expected is %d", l, level)
	}
	if err := n.Validate(c.sb.UUID, ptr, level, keys.low, keys.high); err != nil {
		return CodeNodeContent, nodeReason(err, ptr.Addr)
	}
	return "", ""
}

// nodeReason is reason without the name of the node, which findings have anyway.
func nodeReason(err error, a format.Addr) string {
	return strings.TrimPrefix(reason(err), nodeName(a)+": ")
}

// eachNode calls fn with the address of every node that the published tree
// leads to, readable or not. Leaves are not read.
func (c *checker) eachNode(fn func(a format.Addr)) {
	w := &treeWalk{c: c}
	w.addresses(c.sb.Root, int(c.sb.RootLevel), wholeTree, fn)
}

func (w *treeWalk) addresses(ptr format.ChildPtr, level int, keys keyRange, fn func(a format.Addr)) {
	fn(ptr.Addr)
	n := &w.bufs[level]
	if level == 0 {
		return
	}
	if code, _ := w.c.loadNode(n, ptr, level, keys); code != "" {
		return
	}
	for i := range n.Count() {
		w.addresses(n.Child(i), level-1, childRange(n, i, keys), fn)
	}
}

// maxDamage bounds the ranges that are remembered; further damage counts as
// one range with all that lies between.
const maxDamage = 4096

// addDamage notes that the tree is unreadable in a range behind all earlier ones.
func (c *checker) addDamage(keys keyRange) {
	if n := len(c.damage); n == maxDamage {
		c.damage[n-1].high = keys.high
		return
	}
	c.damage = append(c.damage, keys)
}

// damaged reports whether items with keys in the range may be unreadable.
func (c *checker) damaged(low, high format.Key) bool {
	i := sort.Search(len(c.damage), func(i int) bool { return !c.damage[i].high.Less(low) })
	return i < len(c.damage) && !high.Less(c.damage[i].low)
}

// damagedObject reports whether items of an object may be unreadable.
func (c *checker) damagedObject(ino uint64) bool {
	r := objectRange(ino)
	return c.damaged(r.low, r.high)
}

func objectRange(ino uint64) keyRange {
	return keyRange{format.Key{Object: ino}, format.Key{Object: ino, Kind: 255, Offset: 1<<64 - 1}}
}
