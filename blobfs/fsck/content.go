package fsck

import (
	"bytes"
	"fmt"

	"runsc-fs/blobfs/format"
)

// inlineState follows the inline items of one inode.
type inlineState struct {
	bytes uint64
	bad   bool
}

func (o *object) inlineItem(it *items) {
	if !o.good {
		return
	}
	s := &o.inline
	switch {
	case o.typ() != format.ModeSymlink:
		o.misplaced(it.key.Kind)
	case s.bad:
	case it.key.Offset != s.bytes && !o.c.damagedObject(o.ino):
		s.bad = true
		o.found(Error, CodeSymlink, "a piece of the target is at byte %d in place of %d", it.key.Offset, s.bytes)
	case len(it.value) == 0 || bytes.IndexByte(it.value, 0) >= 0:
		s.bad = true
		o.found(Error, CodeSymlink, "the piece of the target at byte %d is empty or has a NUL byte", it.key.Offset)
	}
	s.bytes += uint64(len(it.value))
}

func (o *object) finishSymlink(complete bool) {
	if s := &o.inline; s.bytes != o.node.Size && !s.bad && complete {
		o.found(Error, CodeSymlink, "the target has %d bytes, the inode says %d", s.bytes, o.node.Size)
	}
}

// extentState follows the extents of one inode.
type extentState struct {
	blocks uint64
	end    uint64 // behind the last extent, in file blocks
	beyond bool   // written blocks beyond the end of the file were reported
}

func (o *object) extentItem(it *items) {
	c, k := o.c, it.key
	e, err := format.DecodeExtentItem(k, it.value, c.sb.VolumeBlocks)
	if err != nil {
		o.found(Error, CodeExtentItem, "%s", reason(err))
		return
	}
	c.rep.Counters.Extents++
	s := &o.extents
	if k.Offset < s.end {
		o.found(Error, CodeExtentOverlap, "its extent at file block %d overlaps the one before it, which ends at %d", k.Offset, s.end)
	}
	s.blocks += uint64(e.Blocks)
	s.end = max(s.end, k.Offset+uint64(e.Blocks))
	if k.Offset+uint64(e.Blocks) > format.MaxFileBlocks || e.Blocks > format.MaxExtentBlocks {
		o.found(Error, CodeExtentBounds, "its extent of %d blocks at file block %d is larger than any extent or file", e.Blocks, k.Offset)
	}
	if e.Birth > c.maxBirth+birthSlack(it.fromLog) {
		o.found(Error, CodeExtentBirth, "its extent at file block %d was born in generation %d, but the volume is at %d", k.Offset, e.Birth, c.sb.Generation)
	}
	if text := c.checkDataRun(e.Run()); text != "" {
		o.found(Error, CodeExtentBounds, "its extent at file block %d: %s", k.Offset, text)
		return
	}
	if e.Shared() {
		c.checkSharing(fmt.Sprintf("inode %d", o.ino))
	} else {
		c.rep.Counters.DataBlocks += uint64(e.Blocks)
	}
	c.holdExtent(&e)
	if !o.good {
		return
	}
	if o.typ() != format.ModeRegular {
		o.misplaced(k.Kind)
		return
	}
	sizeBlocks := (o.node.Size + format.BlockSizeBytes - 1) / format.BlockSizeBytes
	if k.Offset+uint64(e.Blocks) > sizeBlocks && !e.Unwritten() && o.orphan == 0 && !s.beyond {
		s.beyond = true
		o.found(Error, CodeExtentSize, "its extent of %d written blocks at file block %d reaches beyond the size of %d bytes",
			e.Blocks, k.Offset, o.node.Size)
	}
}

// birthSlack is how far a birth may be ahead of the superblock: transactions
// in the log belong to the generation after it, or to the one after that if
// they came while a checkpoint was being written.
func birthSlack(fromLog bool) uint64 {
	if fromLog {
		return 2
	}
	return 0
}
