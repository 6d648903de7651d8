package format

import (
	"bytes"
	"errors"
	"fmt"
)

// SuperblockSlots is the number of superblock slots; slots n and n+2 form a pair.
const SuperblockSlots = 4

// superblockStride is the distance of the slots in blocks: far enough that no
// flash page or RAID sector below us holds two of them.
const superblockStride = 4

// SuperblockAddr returns the address of a superblock slot.
func SuperblockAddr(slot int) Addr { return Addr(slot * superblockStride) }

// LabelBytes bounds the label of a volume.
const LabelBytes = 64

// Limits of the log region.
const (
	MinLogBlocks = 512   // 2 MiB
	MaxLogBlocks = 16384 // 64 MiB: the log lies in group 0
	logStart     = bitmapSlot0 + 2
)

// Features that this version knows. A volume with an unknown Incompat bit
// cannot be opened, with an unknown ReadOnlyCompat bit only be read; unknown
// Compat bits are kept and ignored.
const (
	KnownCompat         uint64 = 0
	KnownReadOnlyCompat uint64 = 0
	KnownIncompat              = IncompatReflink
)

// IncompatReflink says that there may be blocks with several owners: extents
// with ExtentShared, and refcount items. It is set before the first of them.
const IncompatReflink uint64 = 1 << 0

// Superblock names the published tree and all that is needed to open it.
//
//	  0   header            40 version u32        44 block size u32
//	 48   compat u64        56 read-only compat   64 incompat u64
//	 72   volume blocks     80 group blocks u32   84 flags u32
//	 88   root address      96 root generation   104 root CRC u32   108 root level u8
//	112   nodes u64        120 log start         128 log blocks u32 132 log position u32
//	136   log epoch u64    144 log sequence u64  152 LSN u64        160 next object u64
//	168   created ns i64   176 mounted ns i64    184 written ns i64 192 mounts u64
//	200   label [64]       264 hash seed [16]    280 zero …
type Superblock struct {
	Header
	Compat         uint64
	ReadOnlyCompat uint64
	Incompat       uint64
	VolumeBlocks   uint64
	Flags          uint32

	Root      ChildPtr
	RootCRC   uint32
	RootLevel uint8
	Nodes     uint64 // nodes of the tree, the root included

	LogStart  Addr   // first block of the log region
	LogBlocks uint32 // its size
	LogPos    uint32 // block in the region where the next record is looked for
	LogEpoch  uint64 // new with every read-write mount
	LogSeq    uint64 // sequence number of that record
	LSN       uint64 // last transaction that the tree contains

	NextObject uint64 // lowest object number never given out
	CreatedNs  int64  // Unix time of formatting
	MountedNs  int64  // Unix time of the last read-write mount
	WrittenNs  int64  // Unix time of writing this superblock
	Mounts     uint64 // read-write mounts so far
	Label      string
	HashSeed   [16]byte // keys the hashes of names
}

// Superblock flags.
const (
	// FlagClean says that the volume was closed: the log is empty.
	FlagClean uint32 = 1 << 0
)

const (
	sbVersion    = 40
	sbBlockSize  = 44
	sbCompat     = 48
	sbROCompat   = 56
	sbIncompat   = 64
	sbBlocks     = 72
	sbGroup      = 80
	sbFlags      = 84
	sbRootAddr   = 88
	sbRootGen    = 96
	sbRootCRC    = 104
	sbRootLevel  = 108
	sbNodes      = 112
	sbLogStart   = 120
	sbLogBlocks  = 128
	sbLogPos     = 132
	sbLogEpoch   = 136
	sbLogSeq     = 144
	sbLSN        = 152
	sbNextObject = 160
	sbCreated    = 168
	sbMounted    = 176
	sbWritten    = 184
	sbMounts     = 192
	sbLabel      = 200
	sbHashSeed   = 264
	sbEnd        = 280
)

// Frozen: the fields fill their places exactly, the slots stay in front of
// the bitmaps, and the largest log in group 0.
var (
	_ = [1]struct{}{}[HeaderBytes-sbVersion]
	_ = [1]struct{}{}[sbLabel+LabelBytes-sbHashSeed]
	_ = [1]struct{}{}[sbHashSeed+16-sbEnd]
	_ = [1]struct{}{}[SuperblockSlots*superblockStride-bitmapSlot0]
	_ = [GroupBlocks]struct{}{}[logStart+MaxLogBlocks]
)

// CheckLabel says whether a label can be stored.
func CheckLabel(label string) error {
	if len(label) > LabelBytes {
		return fmt.Errorf("label has %d bytes, more than %d", len(label), LabelBytes)
	}
	for i := 0; i < len(label); i++ {
		if label[i] == 0 {
			return fmt.Errorf("label contains a NUL byte")
		}
	}
	return nil
}

// DefaultLog returns the log region of a new volume. logBlocks 0 chooses the
// size: 1/64 of the volume.
func DefaultLog(volumeBlocks, logBlocks uint64) (start Addr, blocks uint32) {
	if logBlocks == 0 {
		logBlocks = volumeBlocks / 64
	}
	return logStart, uint32(min(max(logBlocks, MinLogBlocks), MaxLogBlocks))
}

// Encode writes the superblock for the given slot into b, sealed.
func (s *Superblock) Encode(b []byte, slot int) {
	clear(b[:BlockSizeBytes])
	s.Header.Magic = MagicSuperblock
	s.Header.Addr = SuperblockAddr(slot)
	putHeader(b, s.Header)
	le.PutUint32(b[sbVersion:], Version)
	le.PutUint32(b[sbBlockSize:], BlockSizeBytes)
	le.PutUint64(b[sbCompat:], s.Compat)
	le.PutUint64(b[sbROCompat:], s.ReadOnlyCompat)
	le.PutUint64(b[sbIncompat:], s.Incompat)
	le.PutUint64(b[sbBlocks:], s.VolumeBlocks)
	le.PutUint32(b[sbGroup:], GroupBlocks)
	le.PutUint32(b[sbFlags:], s.Flags)
	le.PutUint64(b[sbRootAddr:], uint64(s.Root.Addr))
	le.PutUint64(b[sbRootGen:], s.Root.Generation)
	le.PutUint32(b[sbRootCRC:], s.RootCRC)
	b[sbRootLevel] = s.RootLevel
	le.PutUint64(b[sbNodes:], s.Nodes)
	le.PutUint64(b[sbLogStart:], uint64(s.LogStart))
	le.PutUint32(b[sbLogBlocks:], s.LogBlocks)
	le.PutUint32(b[sbLogPos:], s.LogPos)
	le.PutUint64(b[sbLogEpoch:], s.LogEpoch)
	le.PutUint64(b[sbLogSeq:], s.LogSeq)
	le.PutUint64(b[sbLSN:], s.LSN)
	le.PutUint64(b[sbNextObject:], s.NextObject)
	le.PutUint64(b[sbCreated:], uint64(s.CreatedNs))
	le.PutUint64(b[sbMounted:], uint64(s.MountedNs))
	le.PutUint64(b[sbWritten:], uint64(s.WrittenNs))
	le.PutUint64(b[sbMounts:], s.Mounts)
	copy(b[sbLabel:sbLabel+LabelBytes], s.Label)
	copy(b[sbHashSeed:sbEnd], s.HashSeed[:])
	s.Header.CRC = Seal(b[:BlockSizeBytes])
}

// DecodeSuperblock decodes and validates the superblock read from a slot of a
// device of deviceBlocks blocks. The error wraps ErrNotBlobfs when the magic
// is another, ErrVersion and ErrFeature when the block is sound but too new
// for us, and ErrCorrupt otherwise. An unknown read-only-compatible feature is
// no error here: see Superblock.CheckWritable.
func DecodeSuperblock(b []byte, slot int, deviceBlocks uint64) (*Superblock, error) {
	h := ReadHeader(b)
	if h.Magic != MagicSuperblock {
		return nil, fmt.Errorf("%w: superblock slot %d has magic %#08x", ErrNotBlobfs, slot, h.Magic)
	}
	h, err := CheckHeader(b, "superblock", MagicSuperblock, h.UUID, SuperblockAddr(slot))
	if err != nil {
		return nil, err
	}
	// The version comes before everything whose place or meaning it may change.
	if v := le.Uint32(b[sbVersion:]); v != Version {
		return nil, fmt.Errorf("%w: %d (this program knows %d)", ErrVersion, v, Version)
	}
	if f := le.Uint64(b[sbIncompat:]) &^ KnownIncompat; f != 0 {
		return nil, fmt.Errorf("%w: incompatible feature bits %#x", ErrFeature, f)
	}
	s := &Superblock{
		Header:         h,
		Compat:         le.Uint64(b[sbCompat:]),
		ReadOnlyCompat: le.Uint64(b[sbROCompat:]),
		Incompat:       le.Uint64(b[sbIncompat:]),
		VolumeBlocks:   le.Uint64(b[sbBlocks:]),
		Flags:          le.Uint32(b[sbFlags:]),
		Root:           ChildPtr{Addr(le.Uint64(b[sbRootAddr:])), le.Uint64(b[sbRootGen:])},
		RootCRC:        le.Uint32(b[sbRootCRC:]),
		RootLevel:      b[sbRootLevel],
		Nodes:          le.Uint64(b[sbNodes:]),
		LogStart:       Addr(le.Uint64(b[sbLogStart:])),
		LogBlocks:      le.Uint32(b[sbLogBlocks:]),
		LogPos:         le.Uint32(b[sbLogPos:]),
		LogEpoch:       le.Uint64(b[sbLogEpoch:]),
		LogSeq:         le.Uint64(b[sbLogSeq:]),
		LSN:            le.Uint64(b[sbLSN:]),
		NextObject:     le.Uint64(b[sbNextObject:]),
		CreatedNs:      int64(le.Uint64(b[sbCreated:])),
		MountedNs:      int64(le.Uint64(b[sbMounted:])),
		WrittenNs:      int64(le.Uint64(b[sbWritten:])),
		Mounts:         le.Uint64(b[sbMounts:]),
		Label:          string(bytes.TrimRight(b[sbLabel:sbLabel+LabelBytes], "\x00")),
		HashSeed:       [16]byte(b[sbHashSeed:sbEnd]),
	}
	if bs, gb := le.Uint32(b[sbBlockSize:]), le.Uint32(b[sbGroup:]); bs != BlockSizeBytes || gb != GroupBlocks {
		return nil, Corruptf("superblock slot %d: block size %d, group size %d", slot, bs, gb)
	}
	if err := s.check(deviceBlocks); err != nil {
		return nil, Corruptf("superblock slot %d: %v", slot, err)
	}
	return s, nil
}

// maxCounter bounds generations, sequence numbers and the like that are read
// from a volume: no sound program gets there, and no addition overflows.
const maxCounter = 1 << 62

// check validates the fields against each other and the device.
func (s *Superblock) check(deviceBlocks uint64) error {
	switch {
	case s.VolumeBlocks < MinBlocks || s.VolumeBlocks != UsableBlocks(s.VolumeBlocks):
		return fmt.Errorf("impossible volume size of %d blocks", s.VolumeBlocks)
	case s.VolumeBlocks > deviceBlocks:
		return fmt.Errorf("volume has %d blocks, the device only %d", s.VolumeBlocks, deviceBlocks)
	case s.RootLevel > MaxLevel:
		return fmt.Errorf("impossible root level %d", s.RootLevel)
	case s.Root.Generation > s.Generation:
		return fmt.Errorf("root is of generation %d, later than the superblock's %d", s.Root.Generation, s.Generation)
	case s.LogBlocks < MinLogBlocks || s.LogBlocks > MaxLogBlocks || s.LogStart != logStart:
		return fmt.Errorf("impossible log region: %d blocks at %v", s.LogBlocks, s.LogStart)
	case uint64(s.LogStart)+uint64(s.LogBlocks) > s.VolumeBlocks:
		return fmt.Errorf("log region of %d blocks at %v lies outside the volume", s.LogBlocks, s.LogStart)
	case s.LogPos >= s.LogBlocks:
		return fmt.Errorf("log position %d lies outside the log of %d blocks", s.LogPos, s.LogBlocks)
	case s.Nodes == 0 || s.Nodes > s.VolumeBlocks:
		return fmt.Errorf("impossible number of nodes %d", s.Nodes)
	case s.Generation > maxCounter || s.LogEpoch > maxCounter || s.LogSeq > maxCounter || s.LSN > maxCounter ||
		s.NextObject > maxCounter || s.Mounts > maxCounter:
		return fmt.Errorf("a counter is impossibly high")
	}
	if s.IsFixed(s.Root.Addr) {
		return fmt.Errorf("root at block %v lies on a fixed structure", s.Root.Addr)
	}
	return CheckRun(Run{s.Root.Addr, 1}, s.VolumeBlocks)
}

// CheckWritable returns an error that wraps ErrReadOnlyFeature if the volume
// has features that forbid us to write to it.
func (s *Superblock) CheckWritable() error {
	if f := s.ReadOnlyCompat &^ KnownReadOnlyCompat; f != 0 {
		return fmt.Errorf("%w: feature bits %#x", ErrReadOnlyFeature, f)
	}
	return nil
}

// IsFixed reports whether a block belongs to a superblock slot, the log or a
// bitmap slot, and so never to the tree or to a file.
func (s *Superblock) IsFixed(a Addr) bool {
	if a < s.LogStart+Addr(s.LogBlocks) {
		return true
	}
	_, i := GroupOf(a)
	return i == bitmapSlot0 || i == bitmapSlot0+1
}

// FixedRuns returns the fixed blocks of a group, in ascending order.
func (s *Superblock) FixedRuns(group uint64) []Run {
	if group == 0 {
		return []Run{{0, uint64(s.LogStart) + uint64(s.LogBlocks)}}
	}
	return []Run{{BitmapAddr(group, 0), 2}}
}

// BestSuperblock chooses the newest valid superblock among the contents of
// all slots, and the slot it came from. If none is valid the error is that of
// the slot that came closest: a sound one that is too new for us, then a
// corrupt one, then a foreign one.
func BestSuperblock(slots [SuperblockSlots][]byte, deviceBlocks uint64) (*Superblock, int, error) {
	var best *Superblock
	var bestErr error
	bestSlot := -1
	for i, b := range slots {
		if b == nil {
			continue // unreadable
		}
		s, err := DecodeSuperblock(b, i, deviceBlocks)
		if err != nil {
			if errRank(err) > errRank(bestErr) {
				bestErr = err
			}
			continue
		}
		if best == nil || s.Generation > best.Generation {
			best, bestSlot = s, i
		}
	}
	if errRank(bestErr) == errRankTooNew {
		// A program that knows more wrote here last: its tree, not an older one.
		return nil, -1, bestErr
	}
	if best != nil {
		return best, bestSlot, nil
	}
	if bestErr == nil {
		bestErr = Corruptf("no superblock slot is readable")
	}
	return nil, -1, bestErr
}

// How close a superblock slot came to being valid.
const (
	errRankNone = iota
	errRankForeign
	errRankCorrupt
	errRankTooNew
)

func errRank(err error) int {
	switch {
	case err == nil:
		return errRankNone
	case errors.Is(err, ErrVersion), errors.Is(err, ErrFeature):
		return errRankTooNew
	case errors.Is(err, ErrNotBlobfs):
		return errRankForeign
	}
	return errRankCorrupt
}
