package format

// ExtentItem is the value of a KindExtent item: a run of blocks that holds a
// run of a file.
//
//	 0                 8        12       16                24
//	┌─────────────────┬────────┬────────┬─────────────────┐
//	│ address         │ blocks │ flags  │ birth           │
//	└─────────────────┴────────┴────────┴─────────────────┘
//
// Birth is the generation in which the item was written; a snapshot taken in
// that generation or later shares the blocks.
type ExtentItem struct {
	Start  Addr
	Blocks uint32
	Flags  uint32
	Birth  uint64
}

// ExtentItemBytes is the size of an ExtentItem on disk.
const ExtentItemBytes = 24

// Flags of an extent.
const (
	// ExtentUnwritten marks allocated blocks that read as zeroes: what the
	// blocks hold is not the file's.
	ExtentUnwritten uint32 = 1 << 0
	// ExtentShared marks blocks that other extents may hold, too: how many do
	// is in the refcount items. Such blocks are never overwritten in place.
	ExtentShared uint32 = 1 << 1

	extentFlags = ExtentUnwritten | ExtentShared
)

// Unwritten reports whether the extent reads as zeroes.
func (e ExtentItem) Unwritten() bool { return e.Flags&ExtentUnwritten != 0 }

// Shared reports whether other extents may hold the blocks, too.
func (e ExtentItem) Shared() bool { return e.Flags&ExtentShared != 0 }

// Run returns the blocks of the extent.
func (e ExtentItem) Run() Run { return Run{e.Start, uint64(e.Blocks)} }

// Append encodes e behind b.
func (e ExtentItem) Append(b []byte) []byte {
	b = le.AppendUint64(b, uint64(e.Start))
	b = le.AppendUint32(b, e.Blocks)
	b = le.AppendUint32(b, e.Flags)
	return le.AppendUint64(b, e.Birth)
}

// DecodeExtentItem decodes and validates the value of a KindExtent item with
// the given key in a volume of volumeBlocks blocks.
func DecodeExtentItem(key Key, v []byte, volumeBlocks uint64) (ExtentItem, error) {
	if len(v) != ExtentItemBytes {
		return ExtentItem{}, Corruptf("extent %v: value has %d bytes, not %d", key, len(v), ExtentItemBytes)
	}
	e := ExtentItem{
		Start:  Addr(le.Uint64(v)),
		Blocks: le.Uint32(v[8:]),
		Flags:  le.Uint32(v[12:]),
		Birth:  le.Uint64(v[16:]),
	}
	switch {
	case e.Blocks == 0:
		return e, Corruptf("extent %v: empty", key)
	case e.Flags&^extentFlags != 0:
		return e, Corruptf("extent %v: unknown flags %#x", key, e.Flags)
	case e.Flags&extentFlags == extentFlags:
		return e, Corruptf("extent %v: shared and unwritten", key)
	case key.Offset+uint64(e.Blocks) < key.Offset:
		return e, Corruptf("extent %v: %d blocks run past the end of any file", key, e.Blocks)
	}
	if err := CheckRun(e.Run(), volumeBlocks); err != nil {
		return e, Corruptf("extent %v: %v", key, err)
	}
	return e, nil
}

// CheckRun says whether r lies in a volume of volumeBlocks blocks.
func CheckRun(r Run, volumeBlocks uint64) error {
	switch {
	case r.Start.Layer() != 0:
		return Corruptf("%v: unknown layer %d", r, r.Start.Layer())
	case r.Start == 0 || r.Blocks == 0:
		return Corruptf("%v: empty or null", r)
	case r.Blocks > volumeBlocks || r.Start.Block() > volumeBlocks-r.Blocks:
		return Corruptf("%v: outside the volume of %d blocks", r, volumeBlocks)
	}
	return nil
}
