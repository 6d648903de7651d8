package store

import (
	"crypto/rand"
	"fmt"
	"time"

	"runsc-fs/blobfs/format"
	"runsc-fs/nvme"
)

// FormatOptions are the parameters of Format. The zero value is usable.
type FormatOptions struct {
	// Label is a name for people, at most 64 bytes.
	Label string
	// UUID identifies the volume; the zero UUID means a random one.
	UUID format.UUID
	// HashSeed keys the hashes of names; all zero means random.
	HashSeed [16]byte
	// LogBytes is the size of the log; 0 means 1/64 of the volume, within
	// 2 MiB and 64 MiB, which are also the limits.
	LogBytes int64
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

func (o *FormatOptions) setDefaults() error {
	if err := format.CheckLabel(o.Label); err != nil {
		return err
	}
	if o.LogBytes != 0 && (o.LogBytes < format.MinLogBlocks*format.BlockSizeBytes || o.LogBytes > format.MaxLogBlocks*format.BlockSizeBytes) {
		return fmt.Errorf("store: log of %d bytes; 2 MiB to 64 MiB are possible", o.LogBytes)
	}
	if o.UUID == (format.UUID{}) {
		if _, err := rand.Read(o.UUID[:]); err != nil {
			return err
		}
		o.UUID[6] = o.UUID[6]&0x0f | 0x40 // version 4, random
		o.UUID[8] = o.UUID[8]&0x3f | 0x80
	}
	if o.HashSeed == ([16]byte{}) {
		if _, err := rand.Read(o.HashSeed[:]); err != nil {
			return err
		}
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return nil
}

// Format writes an empty volume to dev, whatever is there. A crash leaves
// either no volume or the new one.
func Format(dev nvme.BlockDevice, opts FormatOptions) error {
	if err := opts.setDefaults(); err != nil {
		return err
	}
	if err := checkGeometry(dev); err != nil {
		return err
	}
	s := &Store{dev: dev, volatileCache: dev.Geometry().VolatileWriteCache}
	s.writer.s = s
	if err := s.allocateMemory(); err != nil {
		return err
	}
	defer s.releaseMemory()

	now := opts.Now().UnixNano()
	blocks := format.UsableBlocks(uint64(dev.Geometry().SizeBytes()) >> format.BlockShift)
	s.sb = &format.Superblock{
		Header:       format.Header{UUID: opts.UUID, Generation: 1},
		VolumeBlocks: blocks, Flags: format.FlagClean,
		Nodes: 1, LogEpoch: 1, LogSeq: 1, NextObject: format.FirstFreeObject,
		CreatedNs: now, MountedNs: now, WrittenNs: now,
		Label: opts.Label, HashSeed: opts.HashSeed,
	}
	s.sb.LogStart, s.sb.LogBlocks = format.DefaultLog(blocks, uint64(opts.LogBytes)>>format.BlockShift)
	s.sb.Root = format.ChildPtr{Addr: s.sb.LogStart + format.Addr(s.sb.LogBlocks), Generation: 1}

	// No superblock of an earlier volume may lead to what is overwritten here,
	// and no log record of one with the same UUID may be taken for ours.
	for slot := range format.SuperblockSlots {
		if err := s.formatBlock(format.SuperblockAddr(slot), nil); err != nil {
			return err
		}
	}
	if err := s.writer.write(false); err != nil {
		return err
	}
	if err := s.flush(); err != nil {
		return err
	}
	if err := s.zeroLog(); err != nil {
		return err
	}
	if err := s.formatTree(); err != nil {
		return err
	}
	if err := s.writer.write(false); err != nil {
		return err
	}
	if err := s.flush(); err != nil {
		return err
	}
	s.pair = 1
	if err := s.writeSuperblock(s.sb); err != nil {
		return err
	}
	return s.flush()
}

// formatBlock gathers a block to be written; nil stands for zeroes.
func (s *Store) formatBlock(addr format.Addr, b []byte) error {
	page, err := s.writer.next(addr)
	if err != nil {
		return err
	}
	clear(page)
	copy(page, b)
	return nil
}

// formatTree makes the first node, a leaf with the item of group 0, and the
// bitmap that the item names. All other groups are pristine.
func (s *Store) formatTree() error {
	var used bitmap
	for _, r := range s.sb.FixedRuns(0) {
		setBits(&used, int(r.Start), int(r.Blocks), true)
	}
	setBits(&used, int(s.sb.Root.Addr), 1, true)
	var raw [format.BitmapBytes]byte
	wordsToBytes(raw[:], &used)
	var block [format.BlockSizeBytes]byte
	size := format.GroupSize(0, s.sb.VolumeBlocks)
	item := format.GroupItem{
		Free: uint32(size - countBits(&used, 0, size)), Generation: 1,
		CRC: format.EncodeBitmap(block[:], s.sb.UUID, format.BitmapAddr(0, 0), 1, raw[:]),
	}
	if err := s.formatBlock(format.BitmapAddr(0, 0), block[:]); err != nil {
		return err
	}
	var root format.Node
	root.Init(0)
	root.Insert(0, format.GroupKey(0), item.Append(nil))
	root.SetIdentity(s.sb.UUID, s.sb.Root.Addr, 1)
	s.sb.RootCRC = format.Seal(root[:])
	return s.formatBlock(s.sb.Root.Addr, root[:])
}

// zeroLog writes zeroes over the log region.
func (s *Store) zeroLog() error {
	size := int64(s.sb.LogBlocks) << format.BlockShift
	if s.dev.Geometry().WriteZeroes {
		req := [1]nvme.Request{{Op: nvme.OpWriteZeroes, OffsetBytes: s.sb.LogStart.OffsetBytes(), LengthBytes: size}}
		return s.dev.Do(req[:])
	}
	for i := range s.sb.LogBlocks {
		if err := s.formatBlock(s.sb.LogStart+format.Addr(i), nil); err != nil {
			return err
		}
	}
	return s.writer.write(false)
}
