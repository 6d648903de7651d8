package layers

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/bits"
)

const (
	// BlockBytes is the unit in which a layer has data or has it not.
	BlockBytes = 1 << blockShift
	blockShift = 12

	// MaxDepth bounds the layers of a stack, the base included. A block's layer
	// is one byte in the table of a stack.
	MaxDepth = 64

	sectorBytes   = 512
	mapOffset     = 4096
	dataAlign     = 1 << 20
	formatVersion = 1

	// growthFactor and maxBlocks say for how many blocks the map has room: the
	// volume may grow without moving its data.
	growthFactor = 64
	maxBlocks    = 1 << 34 // 64 TiB
)

// Errors of this package, to be recognised with errors.Is.
var (
	// ErrNotLayer says that a file is no layer file at all.
	ErrNotLayer = errors.New("layers: not a layer file")
	// ErrDamaged says that a header or a part of a map is damaged.
	ErrDamaged = errors.New("layers: damaged")
	// ErrVersion says that a file was made by a later program.
	ErrVersion = errors.New("layers: unknown format version")
	// ErrParent says that a layer does not lie on what it was made for.
	ErrParent = errors.New("layers: wrong parent")
	// ErrTooDeep says that a stack would have more than MaxDepth layers.
	ErrTooDeep = errors.New("layers: too many layers")
	// ErrTooLarge says that a layer has no room for what a volume shall have.
	ErrTooLarge = errors.New("layers: no room for so many blocks")
)

// failure is an error with a text of its own that belongs to a class.
type failure struct {
	class error
	text  string
}

func (f *failure) Error() string { return f.text }
func (f *failure) Unwrap() error { return f.class }

func failf(class error, text string, args ...any) error {
	return &failure{class, fmt.Sprintf(text, args...)}
}

var (
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
	magic      = [8]byte{'b', 'l', 'o', 'b', 'f', 's', 'L', 'Y'}
)

// identity tells a frozen file from any other and from what it becomes when it
// is changed.
type identity struct {
	id        [16]byte // of a layer file; zero for a plain image
	sizeBytes int64    // length of the file
	mtimeNs   int64    // last change
	headCRC   uint32   // CRC32C of the first headBytes
}

// headBytes of a file are compared with what they were: the superblocks of a
// plain image, the header of a layer file and the beginning of its map.
const headBytes = 64 << 10

// header is what the first sector of a layer file says.
//
//	 0  magic          8 bytes
//	 8  version        u32
//	12  features       u32, none is known
//	16  id             16 bytes, random
//	32  parent         16 bytes: its id, zero for a plain image
//	48  parent size    u64, bytes of its file
//	56  parent mtime   i64, ns
//	64  parent head    u32, CRC32C
//	68  block size     u32
//	72  capacity       u64, blocks that the map has room for
//	80  data offset    u64, bytes
//	88  zeroes
//	508 CRC32C of bytes 0 to 507
type header struct {
	id             [16]byte
	parent         identity
	capacityBlocks int64
	dataOffset     int64
}

func newHeader(parent identity, sizeBytes int64) *header {
	h := &header{parent: parent}
	rand.Read(h.id[:]) // never fails: crypto/rand ends the program instead
	h.capacityBlocks = min(sizeBytes>>blockShift*growthFactor, maxBlocks)
	h.dataOffset = alignUp(mapOffset+sectorsFor(h.capacityBlocks)*sectorBytes, dataAlign)
	return h
}

func alignUp(n, to int64) int64 { return (n + to - 1) / to * to }

func (h *header) encode() []byte {
	b := make([]byte, sectorBytes)
	le := binary.LittleEndian
	copy(b, magic[:])
	le.PutUint32(b[8:], formatVersion)
	copy(b[16:], h.id[:])
	copy(b[32:], h.parent.id[:])
	le.PutUint64(b[48:], uint64(h.parent.sizeBytes))
	le.PutUint64(b[56:], uint64(h.parent.mtimeNs))
	le.PutUint32(b[64:], h.parent.headCRC)
	le.PutUint32(b[68:], BlockBytes)
	le.PutUint64(b[72:], uint64(h.capacityBlocks))
	le.PutUint64(b[80:], uint64(h.dataOffset))
	le.PutUint32(b[508:], crc32.Checksum(b[:508], castagnoli))
	return b
}

// decodeHeader reads the first sector of a file. ErrNotLayer if it does not even
// begin like a layer file.
func decodeHeader(b []byte) (*header, error) {
	le := binary.LittleEndian
	if len(b) < sectorBytes || !bytes.Equal(b[:8], magic[:]) {
		return nil, ErrNotLayer
	}
	if crc32.Checksum(b[:508], castagnoli) != le.Uint32(b[508:]) {
		return nil, failf(ErrDamaged, "its header is damaged")
	}
	if v, f := le.Uint32(b[8:]), le.Uint32(b[12:]); v != formatVersion || f != 0 {
		return nil, failf(ErrVersion, "its format version %d with features %#x is not known to this program", v, f)
	}
	h := &header{
		parent:         identity{sizeBytes: int64(le.Uint64(b[48:])), mtimeNs: int64(le.Uint64(b[56:])), headCRC: le.Uint32(b[64:])},
		capacityBlocks: int64(le.Uint64(b[72:])),
		dataOffset:     int64(le.Uint64(b[80:])),
	}
	copy(h.id[:], b[16:])
	copy(h.parent.id[:], b[32:])
	switch {
	case le.Uint32(b[68:]) != BlockBytes,
		h.capacityBlocks < 1 || h.capacityBlocks > maxBlocks,
		h.dataOffset%BlockBytes != 0 || h.dataOffset < mapOffset+sectorsFor(h.capacityBlocks)*sectorBytes || h.dataOffset > 1<<50,
		h.id == [16]byte{}:
		return nil, failf(ErrDamaged, "its header contradicts itself")
	}
	return h, nil
}

// A map sector describes bitsPerSector blocks.
//
//	0   CRC32C of bytes 4 to 511
//	4   number of the sector, u32
//	8   first 8 bytes of the layer's id
//	16  bits, the first block in the lowest bit of the first byte
//
// A sector of zeroes has no blocks.
const (
	sectorHeadBytes = 16
	bitsPerSector   = (sectorBytes - sectorHeadBytes) * 8
)

func sectorsFor(blocks int64) int64 { return (blocks + bitsPerSector - 1) / bitsPerSector }

// sealSector completes a map sector whose bits are set.
func sealSector(b []byte, id *[16]byte, number int64) {
	binary.LittleEndian.PutUint32(b[4:], uint32(number))
	copy(b[8:16], id[:])
	binary.LittleEndian.PutUint32(b, crc32.Checksum(b[4:sectorBytes], castagnoli))
}

// checkSector tells whether a sector of a map is whole and in its place. empty
// says that it has no blocks.
func checkSector(b []byte, id *[16]byte, number int64) (empty, ok bool) {
	if isZero(b) {
		return true, true
	}
	return false, binary.LittleEndian.Uint32(b) == crc32.Checksum(b[4:sectorBytes], castagnoli) &&
		binary.LittleEndian.Uint32(b[4:]) == uint32(number) && bytes.Equal(b[8:16], id[:8])
}

func isZero(b []byte) bool {
	for ; len(b) >= 8; b = b[8:] {
		if binary.LittleEndian.Uint64(b) != 0 {
			return false
		}
	}
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

// eachRun calls do for each run of set bits of a map sector; from and to count
// from the sector's first block.
func eachRun(sector []byte, do func(from, to int64)) {
	bitmap := sector[sectorHeadBytes:]
	from := int64(-1)
	for i := 0; i < len(bitmap); i += 8 {
		word, base := binary.LittleEndian.Uint64(bitmap[i:]), int64(i)*8
		for at := 0; at < 64; {
			if from < 0 {
				skip := bits.TrailingZeros64(word >> at)
				if at += skip; at >= 64 {
					break
				}
				from = base + int64(at)
			}
			ones := bits.TrailingZeros64(^(word >> at))
			if at+ones >= 64 {
				break // the run may go on in the next word
			}
			at += ones
			do(from, base+int64(at))
			from = -1
		}
	}
	if from >= 0 {
		do(from, bitsPerSector)
	}
}
