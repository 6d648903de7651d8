// Package format is the disk format of a blobfs volume: layouts, encoding,
// decoding and validation, and nothing that does I/O or keeps state. The
// store and the file system write through it; the checker shares it with them
// and shares nothing else.
//
// A volume is an array of 4 KiB blocks, cut into groups of GroupBlocks blocks:
//
//	block   0        4        8        12       16     17     18 …
//	       ┌────────┬────────┬────────┬────────┬──────┬──────┬───────────┬────────────────
//	 group │ super- │ super- │ super- │ super- │bitmap│bitmap│ log       │ nodes and
//	   0   │ block 0│ block 1│ block 2│ block 3│slot 0│slot 1│ region    │ file data
//	       └────────┴────────┴────────┴────────┴──────┴──────┴───────────┴────────────────
//	       ┌───────────────────────────────────┬──────┬──────┬────────────────────────────
//	 group │ nodes and file data               │bitmap│bitmap│ nodes and
//	   n   │                                   │slot 0│slot 1│ file data
//	       └───────────────────────────────────┴──────┴──────┴────────────────────────────
//
// The superblock slots form two pairs, {0, 2} and {1, 3}. A checkpoint writes
// one pair, alternately, so that the pair before it is intact whatever happens
// during the write, and each superblock exists twice.
//
// All metadata lives in one copy-on-write B+tree of nodes (Node) whose root is
// named by the superblock. Which blocks are in use is kept in one bitmap per
// group; which of a group's two bitmap slots is the valid one, and its
// checksum, is an item of the tree (GroupItem). So superblock, tree and
// bitmaps are one chain, published as a whole by writing a superblock. What
// happened after the last published tree stands in the log (Record).
//
// Every metadata block begins with the same header (Header): magic, CRC32C,
// the volume's UUID, the block's own address and a generation. Integers are
// little-endian, except in keys, which are big-endian so that they sort as
// bytes.
//
// Everything in this package is frozen: a change needs a new Version or a
// feature flag.
package format

import (
	"errors"
	"fmt"
	"strings"
)

// Frozen sizes.
const (
	// BlockSizeBytes is the unit of allocation and of metadata.
	BlockSizeBytes = 4096
	// BlockShift is log2 of BlockSizeBytes.
	BlockShift = 12
	// Version is the disk format version that this package reads and writes.
	Version = 1
	// MaxValueBytes bounds the value of one tree item, so that a node holds at
	// least three items and a split always makes room.
	MaxValueBytes = 1024
	// MaxBlocks is the largest volume: 2^40 blocks of 4 KiB are 4 PiB.
	MaxBlocks = 1 << 40
	// MinBlocks is the smallest volume: 8 MiB.
	MinBlocks = 2048
)

// Sentinel errors of decoding. Each is wrapped with the block and the reason.
var (
	// ErrCorrupt says that a structure on the volume is not what was written
	// there or cannot have been written by a sound program.
	ErrCorrupt = errors.New("corrupt blobfs structure")
	// ErrNotBlobfs says that no superblock slot looks like blobfs.
	ErrNotBlobfs = errors.New("not a blobfs volume")
	// ErrVersion says that the volume has a format version we do not know.
	ErrVersion = errors.New("unsupported blobfs format version")
	// ErrFeature says that the volume uses an incompatible feature we do not know.
	ErrFeature = errors.New("unsupported blobfs feature")
	// ErrReadOnlyFeature says that the volume uses a feature that we may read
	// but must not write.
	ErrReadOnlyFeature = errors.New("blobfs feature allows read-only mounts only")
	// ErrTooSmall says that the device cannot hold a volume.
	ErrTooSmall = errors.New("device too small for blobfs")
)

// Corruptf makes an error that wraps ErrCorrupt. Its text says so once, also if
// an argument is such an error itself.
func Corruptf(text string, args ...any) error {
	said := strings.ReplaceAll(fmt.Sprintf(text, args...), ErrCorrupt.Error()+": ", "")
	return fmt.Errorf("%w: %s", ErrCorrupt, said)
}

// Addr is the address of a block. The low 48 bits are the block number, the
// high 16 bits name the layer that holds it. Layer 0 is the volume itself; no
// other layer exists yet. Address 0 is the first superblock slot and so serves
// as "none" everywhere else.
type Addr uint64

const (
	addrBlockBits = 48
	addrBlockMask = 1<<addrBlockBits - 1
)

// Block returns the block number within the layer.
func (a Addr) Block() uint64 { return uint64(a) & addrBlockMask }

// Layer returns the layer.
func (a Addr) Layer() uint16 { return uint16(a >> addrBlockBits) }

// OffsetBytes returns the byte offset of the block in its layer.
func (a Addr) OffsetBytes() int64 { return int64(a.Block()) << BlockShift }

func (a Addr) String() string {
	if a.Layer() != 0 {
		return fmt.Sprintf("%d:%d", a.Layer(), a.Block())
	}
	return fmt.Sprintf("%d", a.Block())
}

// Run is a contiguous range of blocks.
type Run struct {
	Start  Addr
	Blocks uint64
}

// End returns the address behind the last block.
func (r Run) End() Addr { return r.Start + Addr(r.Blocks) }

func (r Run) String() string { return fmt.Sprintf("blocks %v+%d", r.Start, r.Blocks) }

// UUID identifies a volume; it stands in every metadata block.
type UUID [16]byte

func (u UUID) String() string {
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[0:4], u[4:6], u[6:8], u[8:10], u[10:16])
}

// ParseUUID reads the usual text form, 8-4-4-4-12 hexadecimal digits.
func ParseUUID(s string) (UUID, error) {
	var u UUID
	bad := fmt.Errorf("%q is not a UUID", s)
	if len(s) != 36 {
		return u, bad
	}
	n := 0
	for i := 0; i < len(s); i++ {
		if i == 8 || i == 13 || i == 18 || i == 23 {
			if s[i] != '-' {
				return u, bad
			}
			continue
		}
		v, ok := hexDigit(s[i])
		if !ok {
			return u, bad
		}
		u[n/2] |= v << (4 * uint(1-n%2))
		n++
	}
	return u, nil
}

func hexDigit(c byte) (byte, bool) {
	switch {
	case c >= '0' && c <= '9':
		return c - '0', true
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10, true
	case c >= 'A' && c <= 'F':
		return c - 'A' + 10, true
	}
	return 0, false
}
