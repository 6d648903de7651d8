package format

// Geometry of groups.
const (
	// bitmapBitsOff is where the bits begin in a bitmap block.
	bitmapBitsOff = 64
	// BitmapBytes is the number of bytes of bits in a bitmap block.
	BitmapBytes = BlockSizeBytes - bitmapBitsOff
	// GroupBlocks is the number of blocks of a group: one bit each.
	GroupBlocks = BitmapBytes * 8 // 32256
	// bitmapSlot0 is the block of a group that holds its bitmap slot 0; slot 1 follows.
	bitmapSlot0 = 16
	// minGroupBlocks is the smallest last group; a shorter rest stays unused.
	minGroupBlocks = 64
)

// UsableBlocks rounds a device size in blocks down to what a volume can use.
func UsableBlocks(deviceBlocks uint64) uint64 {
	if deviceBlocks > MaxBlocks {
		deviceBlocks = MaxBlocks
	}
	if rest := deviceBlocks % GroupBlocks; rest < minGroupBlocks {
		deviceBlocks -= rest
	}
	return deviceBlocks
}

// Groups returns the number of groups of a volume.
func Groups(volumeBlocks uint64) uint64 { return (volumeBlocks + GroupBlocks - 1) / GroupBlocks }

// GroupOf returns the group that block a lies in, and its index there.
func GroupOf(a Addr) (group uint64, index int) {
	return a.Block() / GroupBlocks, int(a.Block() % GroupBlocks)
}

// GroupStart returns the first block of a group.
func GroupStart(group uint64) Addr { return Addr(group * GroupBlocks) }

// GroupSize returns the number of blocks of a group in a volume.
func GroupSize(group, volumeBlocks uint64) int {
	return int(min(volumeBlocks-group*GroupBlocks, GroupBlocks))
}

// BitmapAddr returns the address of one of a group's two bitmap slots.
func BitmapAddr(group uint64, slot int) Addr {
	return GroupStart(group) + bitmapSlot0 + Addr(slot)
}

// GroupItem is the value of a KindGroup item: the state of a group's bitmap.
//
//	 0        4      5        8        12                20
//	┌────────┬──────┬────────┬────────┬─────────────────┐
//	│ free   │ slot │ zero   │ CRC    │ generation      │
//	└────────┴──────┴────────┴────────┴─────────────────┘
//
// A group without an item is pristine: only its fixed blocks are in use.
type GroupItem struct {
	Free       uint32 // blocks of the group that are not in use
	Slot       uint8  // the bitmap slot that is valid, 0 or 1
	CRC        uint32 // CRC32C of that bitmap block
	Generation uint64 // generation of that bitmap block
}

// GroupItemBytes is the size of a GroupItem on disk.
const GroupItemBytes = 20

// GroupKey returns the key of a group's item.
func GroupKey(group uint64) Key { return Key{0, KindGroup, group} }

// Append encodes g behind b.
func (g GroupItem) Append(b []byte) []byte {
	b = le.AppendUint32(b, g.Free)
	b = append(b, g.Slot, 0, 0, 0)
	b = le.AppendUint32(b, g.CRC)
	return le.AppendUint64(b, g.Generation)
}

// DecodeGroupItem decodes and validates the value of a KindGroup item.
func DecodeGroupItem(key Key, v []byte, volumeBlocks uint64) (GroupItem, error) {
	if key.Object != 0 || key.Kind != KindGroup || key.Offset >= Groups(volumeBlocks) {
		return GroupItem{}, Corruptf("group item %v: no such group", key)
	}
	if len(v) != GroupItemBytes {
		return GroupItem{}, Corruptf("group item %v: value has %d bytes, not %d", key, len(v), GroupItemBytes)
	}
	g := GroupItem{
		Free:       le.Uint32(v),
		Slot:       v[4],
		CRC:        le.Uint32(v[8:]),
		Generation: le.Uint64(v[12:]),
	}
	switch {
	case g.Slot > 1 || v[5] != 0 || v[6] != 0 || v[7] != 0:
		return g, Corruptf("group item %v: bad slot", key)
	case int(g.Free) > GroupSize(key.Offset, volumeBlocks):
		return g, Corruptf("group item %v: %d free blocks in a group of %d", key, g.Free, GroupSize(key.Offset, volumeBlocks))
	}
	return g, nil
}

// A bitmap block says which blocks of one group are in use, a set bit each:
//
//	 0                              40      64
//	┌──────────────────────────────┬───────┬──────────────────────────────────┐
//	│ header                       │ zero  │ 32,256 bits, lowest bit first    │
//	└──────────────────────────────┴───────┴──────────────────────────────────┘
//
// Bits behind the end of the volume are zero and mean nothing.

// EncodeBitmap makes the bitmap block of a group from its bits and returns
// the block's CRC. b has BlockSizeBytes, bits BitmapBytes bytes.
func EncodeBitmap(b []byte, uuid UUID, addr Addr, generation uint64, bits []byte) uint32 {
	clear(b[:bitmapBitsOff])
	putHeader(b, Header{Magic: MagicBitmap, UUID: uuid, Addr: addr, Generation: generation})
	copy(b[bitmapBitsOff:BlockSizeBytes], bits[:BitmapBytes])
	return Seal(b[:BlockSizeBytes])
}

// DecodeBitmap verifies the bitmap block b of a group against the group's
// item and returns its bits, a part of b.
func DecodeBitmap(b []byte, uuid UUID, group uint64, item GroupItem) ([]byte, error) {
	addr := BitmapAddr(group, int(item.Slot))
	h, err := CheckHeader(b, "bitmap", MagicBitmap, uuid, addr)
	switch {
	case err != nil:
		return nil, err
	case h.Generation != item.Generation || h.CRC != item.CRC:
		return nil, Corruptf("bitmap at block %v: not the one that group %d names (generation %d, not %d)",
			addr, group, h.Generation, item.Generation)
	}
	return b[bitmapBitsOff:BlockSizeBytes], nil
}
