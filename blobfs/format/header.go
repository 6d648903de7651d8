package format

import (
	"encoding/binary"
	"hash/crc32"
)

// Header begins every metadata block:
//
//	 0       4       8                24        32        40
//	┌───────┬───────┬────────────────┬─────────┬─────────┐
//	│ magic │ CRC   │ UUID           │ address │ gener-  │ …
//	│       │ 32C   │                │         │ ation   │
//	└───────┴───────┴────────────────┴─────────┴─────────┘
//
// The CRC covers the whole block (for a log record, the whole record) except
// the CRC field itself. The address is the block's own: a block written to, or
// read from, the wrong place is noticed. The generation is that of the
// checkpoint which wrote the block; for log records it is the log epoch.
type Header struct {
	Magic      uint32
	CRC        uint32
	UUID       UUID
	Addr       Addr
	Generation uint64
}

// HeaderBytes is the size of Header on disk.
const HeaderBytes = 40

// Magic numbers of the kinds of metadata blocks, as they read in a hex dump.
const (
	MagicSuperblock = 'B' | 'F'<<8 | 'S'<<16 | 'B'<<24
	MagicNode       = 'B' | 'F'<<8 | 'N'<<16 | 'D'<<24
	MagicBitmap     = 'B' | 'F'<<8 | 'B'<<16 | 'M'<<24
	MagicRecord     = 'B' | 'F'<<8 | 'L'<<16 | 'G'<<24
)

const (
	hdrMagic = 0
	hdrCRC   = 4
	hdrUUID  = 8
	hdrAddr  = 24
	hdrGen   = 32
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// le is short for the byte order of everything but keys.
var le = binary.LittleEndian

// ReadHeader decodes the header of b, which has at least HeaderBytes bytes.
func ReadHeader(b []byte) Header {
	return Header{
		Magic:      le.Uint32(b[hdrMagic:]),
		CRC:        le.Uint32(b[hdrCRC:]),
		UUID:       UUID(b[hdrUUID:hdrAddr]),
		Addr:       Addr(le.Uint64(b[hdrAddr:])),
		Generation: le.Uint64(b[hdrGen:]),
	}
}

// putHeader encodes everything but the CRC.
func putHeader(b []byte, h Header) {
	le.PutUint32(b[hdrMagic:], h.Magic)
	copy(b[hdrUUID:hdrAddr], h.UUID[:])
	le.PutUint64(b[hdrAddr:], uint64(h.Addr))
	le.PutUint64(b[hdrGen:], h.Generation)
}

// Checksum computes the CRC of a block or record.
func Checksum(b []byte) uint32 {
	crc := crc32.Update(0, castagnoli, b[:hdrCRC])
	return crc32.Update(crc, castagnoli, b[hdrUUID:])
}

// Seal computes the CRC of b, stores it in b's header and returns it. It is
// the last thing done to a block before it is written.
func Seal(b []byte) uint32 {
	crc := Checksum(b)
	le.PutUint32(b[hdrCRC:], crc)
	return crc
}

// CheckHeader verifies magic, checksum, UUID and address of a block that was
// read from addr, and returns the header. what names the kind in errors.
func CheckHeader(b []byte, what string, magic uint32, uuid UUID, addr Addr) (Header, error) {
	h := ReadHeader(b)
	switch {
	case h.Magic != magic:
		return h, Corruptf("%s at block %v: magic is %#08x, not %#08x", what, addr, h.Magic, magic)
	case h.CRC != Checksum(b):
		return h, Corruptf("%s at block %v: checksum mismatch", what, addr)
	case h.UUID != uuid:
		return h, Corruptf("%s at block %v: belongs to volume %v, not %v", what, addr, h.UUID, uuid)
	case h.Addr != addr:
		return h, Corruptf("%s at block %v: was written for block %v", what, addr, h.Addr)
	}
	return h, nil
}
