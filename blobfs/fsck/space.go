package fsck

import (
	"encoding/binary"
	"fmt"
	"math/bits"

	"runsc-fs/blobfs/format"
)

// bitmap has a bit for each block of a group.
type bitmap [format.GroupBlocks / 64]uint64

// set sets or clears n bits from i on and calls differ for each run of them
// that was so before.
func (b *bitmap) set(i, n int, v bool, already func(i, n int)) {
	start, length := 0, 0
	flush := func() {
		if length > 0 {
			already(start, length)
			length = 0
		}
	}
	for end := i + n; i < end; {
		w, lo := i/64, i%64
		size := min(64-lo, end-i)
		mask := (^uint64(0) >> (64 - size)) << lo
		was := b[w] & mask
		if !v {
			was = ^b[w] & mask
		}
		if was != 0 {
			for j := range size {
				if was&(1<<(lo+j)) == 0 {
					flush()
				} else if length == 0 {
					start, length = i+j, 1
				} else {
					length++
				}
			}
		} else {
			flush()
		}
		if v {
			b[w] |= mask
		} else {
			b[w] &^= mask
		}
		i += size
	}
	flush()
}

func (b *bitmap) mark(r format.Run) {
	_, i := format.GroupOf(r.Start)
	b.set(i, int(r.Blocks), true, func(int, int) {})
}

func (b *bitmap) count() int {
	n := 0
	for _, w := range b {
		n += bits.OnesCount64(w)
	}
	return n
}

// runs calls fn for each run of set bits below size.
func (b *bitmap) runs(size int, fn func(i, n int)) {
	start := -1
	for i := 0; i < size; {
		w := b[i/64] >> (i % 64)
		if start < 0 {
			if w == 0 {
				i = (i/64 + 1) * 64
				continue
			}
			i += bits.TrailingZeros64(w)
			if i < size {
				start = i
			}
			continue
		}
		n := bits.TrailingZeros64(^w)
		if n >= 64-i%64 {
			i = (i/64 + 1) * 64
			continue
		}
		fn(start, min(i+n, size)-start)
		start = -1
		i += n
	}
	if start >= 0 {
		fn(start, size-start)
	}
}

// window holds, for a number of groups, which of their blocks have an owner.
type window struct {
	first, end uint64          // groups
	owned      []*bitmap       // nil: none has
	others     map[uint64]bool // first groups of other windows that owned blocks lie in
	edges      []edge          // of shared blocks
}

func (w *window) init(first uint64, groups int, volumeBlocks uint64) {
	w.first, w.end = first, min(first+uint64(groups), format.Groups(volumeBlocks))
	n := int(w.end - w.first)
	if cap(w.owned) < n {
		w.owned = make([]*bitmap, n)
		w.others = map[uint64]bool{}
	}
	w.owned = w.owned[:n]
	clear(w.owned)
	w.edges = w.edges[:0]
}

// eachGroup calls fn for the part of r in each group of the window. r does not
// reach over a fixed structure, and so into two groups at most.
func (w *window) eachGroup(r format.Run, fn func(g uint64, i, n int)) {
	for r.Blocks > 0 {
		g, i := format.GroupOf(r.Start)
		n := min(r.Blocks, uint64(format.GroupBlocks-i))
		if g >= w.first && g < w.end {
			fn(g, i, int(n))
		}
		r.Start += format.Addr(n)
		r.Blocks -= n
	}
}

// own notes that the blocks of r, which are not fixed, have an owner, and
// reports those that had one before.
func (w *window) own(c *checker, r format.Run) {
	w.noteOthers(c, r)
	w.eachGroup(r, func(g uint64, i, n int) {
		b := &w.owned[g-w.first]
		if *b == nil {
			*b = new(bitmap)
		}
		(*b).set(i, n, true, func(i, n int) {
			c.foundBlocks(Error, CodeBlockTwice, format.Run{Start: format.GroupStart(g) + format.Addr(i), Blocks: uint64(n)}, "have several owners: data written by one overwrites the others'")
		})
	})
}

// noteOthers notes, in the first window, which ones r lies in.
func (w *window) noteOthers(c *checker, r format.Run) {
	if w.first > 0 {
		return
	}
	size := uint64(c.opts.WindowGroups)
	for _, a := range [2]format.Addr{r.Start, r.End() - 1} {
		g, _ := format.GroupOf(a)
		w.others[g-g%size] = true
	}
}

func blocksName(r format.Run) string {
	if r.Blocks == 1 {
		return fmt.Sprintf("block %v", r.Start)
	}
	return fmt.Sprintf("blocks %v to %v", r.Start, r.End()-1)
}

// foundBlocks reports blocks whose owners are to be looked up.
func (c *checker) foundBlocks(s Severity, code Code, r format.Run, text string) {
	if i := c.found(s, code, blocksName(r), "%s", text); i >= 0 {
		c.queries = append(c.queries, ownerQuery{run: r, finding: i})
	}
}

// checkSpace compares owners and bitmaps, window by window. The extents of the
// first window are owned already.
func (c *checker) checkSpace() {
	groups := format.Groups(c.sb.VolumeBlocks)
	for first := uint64(0); first < groups; first = c.win.end {
		if first > 0 {
			c.win.init(first, c.opts.WindowGroups, c.sb.VolumeBlocks)
		}
		if first > 0 && c.win.others[first] {
			c.eachExtent(func(_ format.Key, e *format.ExtentItem) { c.holdExtent(e) })
		}
		if first == 0 || c.win.others[first] {
			c.eachNode(func(a format.Addr) {
				if c.checkDataRun(format.Run{Start: a, Blocks: 1}) == "" {
					c.win.own(c, format.Run{Start: a, Blocks: 1})
				}
			})
		}
		c.checkShared()
		c.checkWindow()
	}
}

// eachExtent calls fn for every valid extent outside the fixed structures.
func (c *checker) eachExtent(fn func(k format.Key, e *format.ExtentItem)) {
	it := c.newItems()
	it.seek(format.Key{Object: 1})
	for it.next() {
		if it.key.Kind != format.KindExtent {
			continue
		}
		e, err := format.DecodeExtentItem(it.key, it.value, c.sb.VolumeBlocks)
		if err == nil && c.checkDataRun(e.Run()) == "" {
			fn(it.key, &e)
		}
	}
}

// groupState is what the published tree says of a group.
type groupState struct {
	item    format.GroupItem
	has     bool // false: pristine
	unknown bool // its item or bitmap cannot be trusted
}

func groupName(g uint64) string { return fmt.Sprintf("group %d", g) }

// checkWindow checks the bitmaps of the window's groups.
func (c *checker) checkWindow() {
	states := c.readGroupItems()
	touched := map[uint64]*bitmap{}
	for _, op := range c.runs {
		c.applyRun(op, states, touched)
	}
	var used bitmap
	for g := c.win.first; g < c.win.end; g++ {
		st := &states[g-c.win.first]
		b, owned := touched[g], c.win.owned[g-c.win.first]
		if b == nil {
			if !st.has && !st.unknown && owned == nil {
				c.countPristine(g)
				continue
			}
			if !c.readBitmap(g, st, &used) {
				c.rep.Counters.UnknownGroups++
				continue
			}
			b = &used
		}
		c.compareGroup(g, b, owned)
	}
}

// countPristine counts the blocks of a group of which only the fixed ones are
// in use, as in most groups of a large volume.
func (c *checker) countPristine(g uint64) {
	fixed := uint64(0)
	for _, r := range c.sb.FixedRuns(g) {
		fixed += r.Blocks
	}
	c.rep.Counters.UsedBlocks += fixed
	c.rep.Counters.FreeBlocks += uint64(format.GroupSize(g, c.sb.VolumeBlocks)) - fixed
}

// readGroupItems returns what the published tree says of the window's groups.
func (c *checker) readGroupItems() []groupState {
	states := make([]groupState, c.win.end-c.win.first)
	for g := c.win.first; g < c.win.end && len(c.damage) > 0; g++ {
		states[g-c.win.first].unknown = c.damaged(format.GroupKey(g), format.GroupKey(g))
	}
	cu := &cursor{c: c, leaf: -1}
	cu.seek(format.GroupKey(c.win.first))
	for ; cu.valid(); cu.next() {
		k := cu.key()
		if k.Object != 0 || k.Kind != format.KindGroup {
			break
		}
		g := k.Offset
		if g >= c.win.end && c.win.end < format.Groups(c.sb.VolumeBlocks) {
			break // of a later window
		}
		item, err := format.DecodeGroupItem(k, cu.value(), c.sb.VolumeBlocks)
		if err == nil && item.Generation > c.sb.Generation {
			err = fmt.Errorf("names a bitmap of generation %d, later than the superblock's %d", item.Generation, c.sb.Generation)
		}
		if err != nil {
			c.found(Error, CodeGroupItem, groupName(g), "%s", reason(err))
		}
		if g < c.win.end {
			states[g-c.win.first] = groupState{item: item, has: true, unknown: err != nil}
		}
	}
	return states
}

// readBitmap makes b the published bitmap of a group. It returns false, after
// reporting why, if there is none that can be trusted.
func (c *checker) readBitmap(g uint64, st *groupState, b *bitmap) bool {
	if st.unknown {
		return false
	}
	clear(b[:])
	if !st.has {
		for _, r := range c.sb.FixedRuns(g) {
			b.mark(r)
		}
		return true
	}
	st.unknown = true
	block := make([]byte, format.BlockSizeBytes)
	if err := c.io.read(format.BitmapAddr(g, int(st.item.Slot)), block); err != nil {
		c.found(Error, CodeBitmapIO, groupName(g), "%v", err)
		return false
	}
	raw, err := format.DecodeBitmap(block, c.sb.UUID, g, st.item)
	if err != nil {
		c.found(Error, CodeBitmapCorrupt, groupName(g), "%s", reason(err))
		return false
	}
	st.unknown = false
	if !allZero(block[format.HeaderBytes : format.BlockSizeBytes-format.BitmapBytes]) {
		c.found(Warning, CodeReserved, groupName(g), "reserved bytes of the bitmap are set")
	}
	for i := range b {
		b[i] = binary.LittleEndian.Uint64(raw[i*8:])
	}
	c.checkBitmap(g, st, b)
	return true
}

// checkBitmap checks a bitmap by itself and clears what lies behind the end.
func (c *checker) checkBitmap(g uint64, st *groupState, b *bitmap) {
	size := format.GroupSize(g, c.sb.VolumeBlocks)
	all := b.count()
	b.set(size, format.GroupBlocks-size, false, func(int, int) {})
	if n := b.count(); n != all {
		c.found(Error, CodeBitmapFixed, groupName(g), "%d blocks behind the end of the volume are marked in use", all-n)
	}
	if free := size - b.count(); free != int(st.item.Free) {
		c.found(Error, CodeBitmapCount, groupName(g), "has %d free blocks, its item says %d", free, st.item.Free)
	}
	free := 0
	for _, r := range c.sb.FixedRuns(g) {
		_, i := format.GroupOf(r.Start)
		free += int(r.Blocks)
		b.set(i, int(r.Blocks), true, func(_, n int) { free -= n })
	}
	if free > 0 {
		c.found(Error, CodeBitmapFixed, groupName(g), "%d blocks of fixed structures are marked free", free)
	}
}

// applyRun carries out a claim or free of the log on the bitmaps of the window.
func (c *checker) applyRun(op runOp, states []groupState, touched map[uint64]*bitmap) {
	run := format.Run{Start: op.start, Blocks: uint64(op.blocks)}
	c.win.eachGroup(run, func(g uint64, i, n int) {
		b := touched[g]
		if b == nil {
			b = new(bitmap)
			if !c.readBitmap(g, &states[g-c.win.first], b) {
				return
			}
			touched[g] = b
		}
		b.set(i, n, !op.free, func(i, n int) {
			bad := format.Run{Start: format.GroupStart(g) + format.Addr(i), Blocks: uint64(n)}
			object := fmt.Sprintf("log record %d", c.sb.LogSeq+uint64(op.record))
			if op.free {
				c.found(Error, CodeLogFree, object, "frees %s, not in use", blocksName(bad))
			} else {
				c.found(Error, CodeLogClaim, object, "claims %s, already in use", blocksName(bad))
			}
		})
	})
}

// compareGroup compares the bitmap of a group with the owners of its blocks.
func (c *checker) compareGroup(g uint64, used, owned *bitmap) {
	size := format.GroupSize(g, c.sb.VolumeBlocks)
	n := used.count()
	c.rep.Counters.UsedBlocks += uint64(n)
	c.rep.Counters.FreeBlocks += uint64(size - n)
	var expect, unmarked, leaked bitmap
	if owned != nil {
		expect = *owned
	}
	for _, r := range c.sb.FixedRuns(g) {
		expect.mark(r)
	}
	if expect == *used {
		return
	}
	for i := range used {
		unmarked[i] = expect[i] &^ used[i]
		leaked[i] = used[i] &^ expect[i]
	}
	run := func(i, n int) format.Run {
		return format.Run{Start: format.GroupStart(g) + format.Addr(i), Blocks: uint64(n)}
	}
	unmarked.runs(size, func(i, n int) {
		c.foundBlocks(Error, CodeBlockUnmarked, run(i, n), "marked free although in use: they may be given to another owner and overwritten")
	})
	if len(c.damage) > 0 {
		return // the owners may be unreadable
	}
	leaked.runs(size, func(i, n int) {
		c.rep.Counters.LeakedBlocks += uint64(n)
		c.found(Warning, CodeBlockLeaked, blocksName(run(i, n)), "marked in use, but nothing uses them: space is lost, no data")
	})
}
