package format

// RefcountItem is the value of a KindRefcount item: a run of blocks that
// several extents hold. Its key has the address of the first block.
//
//	 0        4        8                 16
//	┌────────┬────────┬─────────────────┐
//	│ blocks │ zero   │ owners          │
//	└────────┴────────┴─────────────────┘
//
// Items do not overlap. Blocks in use that no item covers have one owner. A
// block with more has ExtentShared set in each extent that holds it; an extent
// keeps the flag when it has become the only owner.
type RefcountItem struct {
	Blocks uint32
	Owners uint64 // at least 2
}

// RefcountItemBytes is the size of a RefcountItem on disk.
const RefcountItemBytes = 16

// MaxRefcountBlocks bounds the blocks of one RefcountItem.
const MaxRefcountBlocks = MaxExtentBlocks

// RefcountKey returns the key of the item for the run that begins at a.
func RefcountKey(a Addr) Key { return Key{0, KindRefcount, uint64(a)} }

// Append encodes r behind b.
func (r RefcountItem) Append(b []byte) []byte {
	b = le.AppendUint32(b, r.Blocks)
	b = le.AppendUint32(b, 0)
	return le.AppendUint64(b, r.Owners)
}

// DecodeRefcountItem decodes and validates the value of a KindRefcount item
// with the given key in a volume of volumeBlocks blocks.
func DecodeRefcountItem(key Key, v []byte, volumeBlocks uint64) (RefcountItem, error) {
	if len(v) != RefcountItemBytes {
		return RefcountItem{}, Corruptf("refcount %v: value has %d bytes, not %d", key, len(v), RefcountItemBytes)
	}
	r := RefcountItem{Blocks: le.Uint32(v), Owners: le.Uint64(v[8:])}
	switch {
	case le.Uint32(v[4:]) != 0:
		return r, Corruptf("refcount %v: reserved bytes are set", key)
	case r.Owners < 2 || r.Owners > maxCounter:
		return r, Corruptf("refcount %v: %d owners", key, r.Owners)
	case r.Blocks > MaxRefcountBlocks:
		return r, Corruptf("refcount %v: %d blocks", key, r.Blocks)
	}
	if err := CheckRun(Run{Addr(key.Offset), uint64(r.Blocks)}, volumeBlocks); err != nil {
		return r, Corruptf("refcount %v: %v", key, err)
	}
	return r, nil
}
