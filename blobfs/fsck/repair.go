package fsck

import (
	"errors"
	"fmt"

	"runsc-fs/blobfs/format"
	"runsc-fs/nvme"
)

// ErrRepair says that a volume cannot be repaired, and why.
var ErrRepair = errors.New("fsck: cannot be repaired")

// blockChange is the content of a block before and after a repair.
type blockChange struct {
	addr          format.Addr
	before, after []byte
}

// Repair is what would make a volume sound: whole blocks to write. Only slots
// of superblocks are written, from the best of them, and only if all that it
// leads to is sound: then the best slot is certainly the right one. The best
// slot itself is never written, so that a repair that breaks off leaves the
// volume as usable as it was.
type Repair struct {
	deviceBlocks uint64
	changes      []blockChange
}

// Empty tells whether there is nothing to write.
func (r *Repair) Empty() bool { return len(r.changes) == 0 }

// Blocks returns the addresses of what is written.
func (r *Repair) Blocks() []uint64 {
	var blocks []uint64
	for _, c := range r.changes {
		blocks = append(blocks, uint64(c.addr))
	}
	return blocks
}

// PlanRepair returns what repairs the volume on dev, whose report is what
// Check has just returned for it. It writes nothing. Where the report has
// defects of other kinds than PlanRepair can repair it returns an ErrRepair.
func PlanRepair(dev nvme.BlockDevice, report *Report) (*Repair, error) {
	switch {
	case report.Omitted > 0:
		return nil, fmt.Errorf("%w: there are too many findings", ErrRepair)
	case !report.Complete:
		return nil, fmt.Errorf("%w: not everything could be checked", ErrRepair)
	}
	for i := range report.Findings {
		f := &report.Findings[i]
		if f.Code == CodeFeature || f.Severity != Note && f.Repair == "" {
			return nil, fmt.Errorf("%w: of %s [%s] is no repair, and slots of superblocks are repaired only where all else is sound", ErrRepair, f.Object, f.Code)
		}
	}
	io, err := newBlockReader(dev)
	if err != nil {
		return nil, err
	}
	defer io.close()
	c := &checker{io: io}
	slots := c.readSlots(false)
	sb, best, err := format.BestSuperblock(slots, io.blocks)
	if err != nil {
		return nil, err
	}
	r := &Repair{deviceBlocks: io.blocks}
	for slot, b := range slots {
		source := slotSource(slots, slot, sb, best, io.blocks)
		if source == nil {
			continue
		}
		after := make([]byte, format.BlockSizeBytes)
		source.Encode(after, slot)
		r.changes = append(r.changes, blockChange{format.SuperblockAddr(slot), b, after})
	}
	return r, nil
}

// slotSource returns what is to be written into a slot, nil if it is as it
// should be: what the other slot of its pair says, as far as that is valid, or
// else the best. A slot that cannot be read, or that only a newer program
// understands, is left alone.
func slotSource(slots [format.SuperblockSlots][]byte, slot int, sb *format.Superblock, best int, blocks uint64) *format.Superblock {
	if slots[slot] == nil {
		return nil
	}
	own, err := format.DecodeSuperblock(slots[slot], slot, blocks)
	switch {
	case errors.Is(err, format.ErrVersion), errors.Is(err, format.ErrFeature):
		return nil
	case err == nil && own.UUID == sb.UUID && (slot%2 != best%2 || own.Generation == sb.Generation):
		return nil
	case slot%2 == best%2:
		return sb
	}
	twin := (slot + format.SuperblockSlots/2) % format.SuperblockSlots
	if slots[twin] != nil {
		if other, err := format.DecodeSuperblock(slots[twin], twin, blocks); err == nil && other.UUID == sb.UUID {
			return other
		}
	}
	return sb
}

// Apply writes the repair to dev and makes it durable. What it overwrites is
// in the undo file, which has to be durable before.
func (r *Repair) Apply(dev nvme.BlockDevice) error {
	return r.write(dev, func(c *blockChange) []byte { return c.after })
}

// Undo writes to dev what was there before the repair, and makes it durable.
// It refuses with an ErrUndo, and writes nothing, if one of the blocks is
// neither as the repair found it nor as it left it, nor a mixture of both as
// after a power cut: then the volume has been used since.
func (r *Repair) Undo(dev nvme.BlockDevice) error {
	io, err := newBlockReader(dev)
	if err != nil {
		return err
	}
	defer io.close()
	if io.blocks != r.deviceBlocks {
		return fmt.Errorf("%w: it belongs to a volume of %d blocks, not %d", ErrUndo, r.deviceBlocks, io.blocks)
	}
	now := make([]byte, format.BlockSizeBytes)
	for i := range r.changes {
		c := &r.changes[i]
		if err := io.read(c.addr, now); err != nil {
			return err
		}
		if !isMixture(now, c.before, c.after) {
			return fmt.Errorf("%w: block %d has changed since the repair: the volume has been used, or is another", ErrUndo, c.addr.Block())
		}
	}
	return r.write(dev, func(c *blockChange) []byte { return c.before })
}

// tornBytes is the smallest piece of a block that a device writes as a whole.
const tornBytes = 512

// isMixture tells whether each sector of b is that of one of two blocks.
func isMixture(b, one, other []byte) bool {
	for at := 0; at < len(b); at += tornBytes {
		s := string(b[at : at+tornBytes])
		if s != string(one[at:at+tornBytes]) && s != string(other[at:at+tornBytes]) {
			return false
		}
	}
	return true
}

// write writes one content of each block, and then flushes.
func (r *Repair) write(dev nvme.BlockDevice, content func(*blockChange) []byte) error {
	buf, err := dev.Arena().Alloc(1)
	if err != nil {
		return fmt.Errorf("fsck: no memory for writing: %w", err)
	}
	defer dev.Arena().Free(buf)
	for i := range r.changes {
		c := &r.changes[i]
		copy(buf, content(c))
		err := dev.Do([]nvme.Request{{Op: nvme.OpWrite, OffsetBytes: c.addr.OffsetBytes(), Vec: [][]byte{buf[:format.BlockSizeBytes]}}})
		if err != nil {
			return fmt.Errorf("writing block %d: %w", c.addr.Block(), err)
		}
	}
	if err := dev.Do([]nvme.Request{{Op: nvme.OpFlush}}); err != nil {
		return fmt.Errorf("flushing: %w", err)
	}
	return nil
}
