package fsck

import (
	"bytes"
	"errors"
	"fmt"

	"runsc-fs/blobfs/format"
)

func slotName(slot int) string { return fmt.Sprintf("superblock slot %d", slot) }

// checkSuperblocks chooses the superblock and compares the slots. It returns
// false if there is none, and an error if the device holds no volume that we
// know.
func (c *checker) checkSuperblocks() (bool, error) {
	slots := c.readSlots(true)
	sb, best, err := format.BestSuperblock(slots, c.io.blocks)
	switch {
	case errors.Is(err, format.ErrCorrupt):
		c.found(Error, CodeSuperblock, "volume", "no superblock slot is valid: %s", reason(err))
		return false, nil
	case err != nil:
		return false, err
	}
	c.sb = sb
	c.nextObject = sb.NextObject
	c.maxBirth = sb.Generation
	r := c.rep
	r.UUID, r.Label, r.Version = sb.UUID.String(), sb.Label, format.Version
	r.Generation, r.VolumeBlocks = sb.Generation, sb.VolumeBlocks
	r.Closed = sb.Flags&format.FlagClean != 0
	if err := sb.CheckWritable(); err != nil {
		c.found(Note, CodeFeature, slotName(best), "%v", err)
	}
	if sb.Flags&^format.FlagClean != 0 || !allZero(slots[best][superblockEnd:]) {
		c.found(Warning, CodeReserved, slotName(best), "reserved flags or bytes are set")
	}
	c.compareSlots(slots, sb, best)
	return true, nil
}

// superblockEnd is where the fields of a superblock end.
const superblockEnd = 280

// readSlots reads all superblock slots; nil for those that cannot be read.
func (c *checker) readSlots(report bool) (slots [format.SuperblockSlots][]byte) {
	for slot := range slots {
		b := make([]byte, format.BlockSizeBytes)
		if err := c.io.read(format.SuperblockAddr(slot), b); err != nil {
			if report {
				c.found(Warning, CodeSuperblockIO, slotName(slot), "%v", err)
			}
			continue
		}
		slots[slot] = b
	}
	return slots
}

// compareSlots looks at the slots besides the chosen one. A power cut during
// the writing of a pair may leave it in any state, so there an invalid or old
// copy is no defect as long as the other pair is whole.
func (c *checker) compareSlots(slots [format.SuperblockSlots][]byte, sb *format.Superblock, best int) {
	valid := 0
	for slot, b := range slots {
		if b == nil {
			continue
		}
		repair := ""
		if slotSource(slots, slot, sb, best, c.io.blocks) != nil {
			repair = "the slot is written anew from a valid one"
		}
		other, err := format.DecodeSuperblock(b, slot, c.io.blocks)
		switch {
		case err != nil:
			c.rep.repairable(c.found(Note, CodeSuperblockCopy, slotName(slot),
				"holds no valid superblock (%s); slot %d is used, and a later checkpoint writes this one anew", reason(err), best), repair)
			continue
		case other.UUID != sb.UUID:
			c.rep.repairable(c.found(Warning, CodeSuperblockForeign, slotName(slot), "belongs to another volume, %v", other.UUID), repair)
			continue
		}
		valid++
		switch {
		case other.Generation == sb.Generation && !sameSuperblock(b, slots[best]):
			c.found(Error, CodeSuperblockDiffers, slotName(slot),
				"says something else than slot %d about the same generation %d", best, sb.Generation)
		case slot%2 == best%2 && other.Generation != sb.Generation:
			c.rep.repairable(c.found(Note, CodeSuperblockCopy, slotName(slot),
				"is of generation %d, its pair slot %d of generation %d: writing was interrupted", other.Generation, best, sb.Generation), repair)
		}
	}
	if valid == 1 {
		few := c.found(Warning, CodeSuperblockFew, slotName(best), "is the only valid one: copy the data while it can be read")
		for slot := range slots {
			if slotSource(slots, slot, sb, best, c.io.blocks) != nil {
				c.rep.repairable(few, "the other slots are written anew from it")
			}
		}
	}
}

// sameSuperblock compares two slots except what depends on the slot.
func sameSuperblock(a, b []byte) bool {
	return bytes.Equal(a[8:24], b[8:24]) && bytes.Equal(a[32:], b[32:])
}

func allZero(b []byte) bool {
	for _, x := range b {
		if x != 0 {
			return false
		}
	}
	return true
}
