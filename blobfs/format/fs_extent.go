package format

import "encoding/binary"

// MaxExtentBlocks is the length of the longest extent item.
const MaxExtentBlocks = 1 << 20

// FileExtent is the item of key {ino, KindExtent, first file block}. Extents of
// one file never overlap; file blocks in none are holes.
//
//	 0       1       2               4               8                              16                              24
//	+-------+-------+---------------+---------------+-------------------------------+-------------------------------+
//	|ver = 1| flags | 0             | blocks        | first block on the volume     | birth generation              |
//	+-------+-------+---------------+---------------+-------------------------------+-------------------------------+
//
// flags: bit 0 unwritten (reads as zeroes, whatever the blocks hold).
type FileExtent struct {
	Unwritten bool
	Blocks    uint32
	Addr      Addr
	// Birth is the store's generation when the extent was made; it tells
	// later whether a snapshot shares it.
	Birth uint64
}

// FileExtentBytes is the size of an extent item.
const FileExtentBytes = 24

const (
	extentVersion   = 1
	extentUnwritten = 1
)

// Encode writes the item into b, which must have FileExtentBytes bytes.
func (e *FileExtent) Encode(b []byte) {
	_ = b[FileExtentBytes-1]
	b[0], b[1], b[2], b[3] = extentVersion, 0, 0, 0
	if e.Unwritten {
		b[1] = extentUnwritten
	}
	binary.LittleEndian.PutUint32(b[4:], e.Blocks)
	binary.LittleEndian.PutUint64(b[8:], uint64(e.Addr))
	binary.LittleEndian.PutUint64(b[16:], e.Birth)
}

// DecodeFileExtent reads and checks an extent that begins at file block first.
// That its blocks lie in the volume's data area is not checked here. The error
// wraps ErrCorrupt.
func DecodeFileExtent(first uint64, b []byte) (FileExtent, error) {
	var e FileExtent
	if len(b) != FileExtentBytes || b[0] != extentVersion {
		return e, itemError("extent", b, "length or version")
	}
	e = FileExtent{
		Unwritten: b[1]&extentUnwritten != 0,
		Blocks:    binary.LittleEndian.Uint32(b[4:]),
		Addr:      Addr(binary.LittleEndian.Uint64(b[8:])),
		Birth:     binary.LittleEndian.Uint64(b[16:]),
	}
	switch {
	case b[1]&^extentUnwritten != 0 || b[2] != 0 || b[3] != 0:
		return e, itemError("extent", b, "flags or reserved bytes")
	case e.Blocks == 0 || e.Blocks > MaxExtentBlocks:
		return e, itemError("extent", b, "length")
	case first >= MaxFileBlocks || first+uint64(e.Blocks) > MaxFileBlocks:
		return e, itemError("extent", b, "place in the file")
	case e.Addr == 0 || uint64(e.Addr)+uint64(e.Blocks) < uint64(e.Addr):
		return e, itemError("extent", b, "address")
	}
	return e, nil
}
