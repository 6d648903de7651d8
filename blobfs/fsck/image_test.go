package fsck

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"runsc-fs/blobfs/format"
	"runsc-fs/nvme"
)

// memDevice is a namespace in memory, of which only written blocks exist. With
// a volatile cache it knows what a power cut may leave.
type memDevice struct {
	arena    *nvme.Arena
	blocks   uint64
	volatile bool
	// Lies of the device.
	ignoreFlush, ignoreFUA bool
	failing                map[uint64]bool // blocks that cannot be read
	hook                   func()          // called after each write and flush, with nothing locked

	mu      sync.Mutex
	data    map[uint64]*blockData
	durable map[uint64]*blockData // of blocks written since the last flush: what was there before; nil: zeroes
	writes  int
}

type blockData = [format.BlockSizeBytes]byte

var testArena = sync.OnceValue(func() *nvme.Arena {
	a, err := nvme.NewArena(nvme.ArenaOptions{SizeBytes: 64 << 20})
	if err != nil {
		panic(err)
	}
	return a
})

func newMemDevice(blocks uint64) *memDevice {
	return &memDevice{
		arena: testArena(), blocks: blocks,
		data: map[uint64]*blockData{}, durable: map[uint64]*blockData{}, failing: map[uint64]bool{},
	}
}

const sectorBytes = 512

func (d *memDevice) Geometry() nvme.Geometry {
	return nvme.Geometry{
		LBASizeBytes: sectorBytes, Blocks: int64(d.blocks) * format.BlockSizeBytes / sectorBytes, MaxTransferBytes: 1 << 20,
		AtomicWriteBytes: sectorBytes, VolatileWriteCache: d.volatile, WriteZeroes: true, Deallocate: true,
	}
}

func (d *memDevice) Arena() *nvme.Arena { return d.arena }
func (d *memDevice) Close() error       { return nil }

func (d *memDevice) Do(reqs []nvme.Request) error {
	var first error
	for i := range reqs {
		r := &reqs[i]
		if r.Err = d.one(r); r.Err != nil && first == nil {
			first = r.Err
		}
		if d.hook != nil && r.Op != nvme.OpRead {
			d.hook()
		}
	}
	return first
}

func (d *memDevice) one(r *nvme.Request) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	off := uint64(r.OffsetBytes)
	switch r.Op {
	case nvme.OpRead, nvme.OpWrite:
		for _, v := range r.Vec {
			for len(v) > 0 {
				at, in := off/format.BlockSizeBytes, off%format.BlockSizeBytes
				n := min(len(v), int(format.BlockSizeBytes-in))
				switch {
				case at >= d.blocks:
					return errors.New("beyond the end of the device")
				case r.Op == nvme.OpWrite:
					copy(d.change(at, r.FUA)[in:], v[:n])
				case d.failing[at]:
					return errors.New("medium error")
				case d.data[at] == nil:
					clear(v[:n])
				default:
					copy(v[:n], d.data[at][in:])
				}
				v, off = v[n:], off+uint64(n)
			}
		}
	case nvme.OpWriteZeroes, nvme.OpDeallocate:
		for end := off + uint64(r.LengthBytes); off < end; {
			at, in := off/format.BlockSizeBytes, off%format.BlockSizeBytes
			n := min(end-off, format.BlockSizeBytes-in)
			clear(d.change(at, r.FUA)[in : in+n])
			off += n
		}
	case nvme.OpFlush:
		if !d.ignoreFlush {
			clear(d.durable)
		}
	}
	return nil
}

// change returns the content of a block that is about to be written: a copy,
// so that clones may share what was there.
func (d *memDevice) change(at uint64, fua bool) *blockData {
	d.writes++
	before := d.data[at]
	b := new(blockData)
	if before != nil {
		*b = *before
	}
	d.data[at] = b
	if !d.volatile || fua && !d.ignoreFUA {
		delete(d.durable, at)
	} else if _, known := d.durable[at]; !known {
		d.durable[at] = before
	}
	return b
}

// block is the content of a block, for changing it.
func (d *memDevice) block(a format.Addr) []byte { return d.change(uint64(a), true)[:] }

// clone returns a device with the same content, all of it durable.
func (d *memDevice) clone() *memDevice {
	d.mu.Lock()
	defer d.mu.Unlock()
	c := newMemDevice(d.blocks)
	c.data = maps.Clone(d.data)
	return c
}

// crash returns what a power cut now may leave: of each block that was not
// flushed all, nothing, or some sectors.
func (d *memDevice) crash(rnd *rand.Rand) *memDevice {
	c := d.clone()
	d.mu.Lock()
	defer d.mu.Unlock()
	share := []float64{0, 1, 0.1, 0.5, 0.9}[rnd.IntN(5)]
	for _, at := range slices.Sorted(maps.Keys(d.durable)) {
		b, before := c.change(at, true), d.durable[at]
		if before == nil {
			before = new(blockData)
		}
		for off := 0; off < format.BlockSizeBytes; off += sectorBytes {
			if rnd.Float64() >= share {
				copy(b[off:off+sectorBytes], before[off:])
			}
		}
	}
	c.volatile = true
	return c
}

// image writes volumes on the level of the disk format. It is not the store:
// it lays out a given set of items, right or wrong, and the bitmaps for them.
type image struct {
	dev   *memDevice
	sb    format.Superblock
	items map[format.Key][]byte
	used  []format.Run                    // further blocks marked in use
	free  []format.Run                    // blocks marked free, whatever owns them
	group func(*format.GroupItem, uint64) // changes group items

	nodes  []format.Addr // of the built tree, leaves first
	levels [][]builtNode
	log    uint32 // blocks of log records so far
	seq    uint64
	lsn    uint64
}

type builtNode struct {
	node *format.Node
	addr format.Addr
	low  format.Key
}

const (
	imageBlocks = 2*format.GroupBlocks + 1000
	imageGen    = 7
	imageLog    = format.MinLogBlocks
	dataStart   = format.Addr(20000) // blocks of files in test images
)

var imageSeed = [16]byte{3, 1, 4, 1, 5}

func newImage() *image {
	im := &image{dev: newMemDevice(imageBlocks), items: map[format.Key][]byte{}}
	im.sb = format.Superblock{
		Header:       format.Header{UUID: format.UUID{0xfe, 0xed, 1}, Generation: imageGen},
		VolumeBlocks: format.UsableBlocks(imageBlocks), Label: "test", HashSeed: imageSeed,
		LogPos: 5, LogEpoch: 3, LogSeq: 40, LSN: 90, NextObject: 1000, Mounts: 2,
		CreatedNs: 1e18, MountedNs: 2e18, WrittenNs: 2e18 + 1,
	}
	im.sb.LogStart, im.sb.LogBlocks = format.DefaultLog(im.sb.VolumeBlocks, imageLog)
	im.seq, im.lsn = im.sb.LogSeq, im.sb.LSN
	im.log = im.sb.LogPos
	return im
}

// build lays the items out, with perLeaf items in each leaf.
func (im *image) build(perLeaf int) *image {
	groups := format.Groups(im.sb.VolumeBlocks)
	for g := range groups {
		im.items[format.GroupKey(g)] = make([]byte, format.GroupItemBytes)
	}
	im.layout(perLeaf) // where nodes lie depends on sizes only
	im.bitmaps()
	im.layout(perLeaf)
	im.superblocks()
	return im
}

func (im *image) layout(perLeaf int) {
	im.nodes, im.levels = nil, nil
	next := im.sb.LogStart + format.Addr(im.sb.LogBlocks) + 3
	place := func(n *format.Node, low format.Key) builtNode {
		addr := next
		next++
		im.nodes = append(im.nodes, addr)
		n.SetIdentity(im.sb.UUID, addr, imageGen)
		format.Seal(n[:])
		copy(im.dev.block(addr), n[:])
		return builtNode{n, addr, low}
	}
	keys := slices.SortedFunc(maps.Keys(im.items), format.Key.Compare)
	var level []builtNode
	for len(keys) > 0 {
		n := new(format.Node)
		n.Init(0)
		i := 0
		for i < len(keys) && i < perLeaf && n.Insert(i, keys[i], im.items[keys[i]]) {
			i++
		}
		level = append(level, place(n, keys[0]))
		keys = keys[i:]
	}
	im.levels = append(im.levels, level)
	for height := 1; len(level) > 1; height++ {
		var upper []builtNode
		for len(level) > 0 {
			n := new(format.Node)
			n.Init(height)
			i := 0
			for i < len(level) && i < format.MaxChildren {
				n.InsertChild(i, level[i].low, format.ChildPtr{Addr: level[i].addr, Generation: imageGen})
				i++
			}
			upper = append(upper, place(n, level[0].low))
			level = level[i:]
		}
		level = upper
		im.levels = append(im.levels, level)
	}
	root := level[0]
	im.sb.Root = format.ChildPtr{Addr: root.addr, Generation: imageGen}
	im.sb.RootCRC = format.ReadHeader(root.node[:]).CRC
	im.sb.RootLevel = uint8(root.node.Level())
	im.sb.Nodes = uint64(len(im.nodes))
}

// reseal writes a node that was changed, and all above it, whose checksums do
// not depend on it except the superblock's.
func (im *image) reseal(n builtNode) {
	format.Seal(n.node[:])
	copy(im.dev.block(n.addr), n.node[:])
	im.sb.RootCRC = format.ReadHeader(im.dev.block(im.sb.Root.Addr)).CRC
	im.superblocks()
}

// leafOf is the leaf that holds a key.
func (im *image) leafOf(k format.Key) builtNode {
	leaves := im.levels[0]
	i := len(leaves) - 1
	for i > 0 && k.Less(leaves[i].low) {
		i--
	}
	return leaves[i]
}

func (im *image) bitmaps() {
	groups := format.Groups(im.sb.VolumeBlocks)
	bits := make([][format.BitmapBytes]byte, groups)
	set := func(r format.Run, v bool) {
		for b := r.Start; b < r.End(); b++ {
			g, i := format.GroupOf(b)
			if v {
				bits[g][i/8] |= 1 << (i % 8)
			} else {
				bits[g][i/8] &^= 1 << (i % 8)
			}
		}
	}
	for g := range groups {
		for _, r := range im.sb.FixedRuns(g) {
			set(r, true)
		}
	}
	for _, a := range im.nodes {
		set(format.Run{Start: a, Blocks: 1}, true)
	}
	for k, v := range im.items {
		if k.Kind == format.KindExtent {
			if e, err := format.DecodeExtentItem(k, v, im.sb.VolumeBlocks); err == nil && e.Blocks < 30000 {
				set(e.Run(), true)
			}
		}
	}
	for _, r := range im.used {
		set(r, true)
	}
	for _, r := range im.free {
		set(r, false)
	}
	for g := range groups {
		slot := uint8(g % 2)
		size := format.GroupSize(g, im.sb.VolumeBlocks)
		item := format.GroupItem{Slot: slot, Generation: imageGen}
		for i := range size {
			if bits[g][i/8]>>(i%8)&1 == 0 {
				item.Free++
			}
		}
		addr := format.BitmapAddr(g, int(slot))
		item.CRC = format.EncodeBitmap(im.dev.block(addr), im.sb.UUID, addr, imageGen, bits[g][:])
		if im.group != nil {
			im.group(&item, g)
		}
		im.items[format.GroupKey(g)] = item.Append(nil)
	}
}

// superblocks writes the valid pair, {0, 2}, and an older one into {1, 3}.
func (im *image) superblocks() {
	for slot := range format.SuperblockSlots {
		sb := im.sb
		if slot%2 == 1 {
			sb.Generation--
			sb.Root.Generation--
		}
		sb.Encode(im.dev.block(format.SuperblockAddr(slot)), slot)
	}
}

// tx is a transaction of the log under construction.
type tx struct {
	b   []byte
	ops int
}

func newTx() *tx { return &tx{b: make([]byte, format.TxHeaderBytes)} }

func (t *tx) put(k format.Key, v []byte) *tx {
	t.b, t.ops = format.AppendPut(t.b, k, v), t.ops+1
	return t
}

func (t *tx) del(k format.Key) *tx {
	t.b, t.ops = format.AppendDelete(t.b, k), t.ops+1
	return t
}

func (t *tx) claim(a format.Addr, n uint64) *tx {
	t.b, t.ops = format.AppendClaim(t.b, format.Run{Start: a, Blocks: n}), t.ops+1
	return t
}

func (t *tx) release(a format.Addr, n uint64) *tx {
	t.b, t.ops = format.AppendFree(t.b, format.Run{Start: a, Blocks: n}), t.ops+1
	return t
}

// record appends a log record with the transactions.
func (im *image) record(txs ...*tx) *image {
	first := im.lsn + 1
	b := make([]byte, format.RecordHeaderBytes)
	for _, t := range txs {
		im.lsn++
		format.PutTxHeader(t.b, t.ops, im.lsn)
		b = append(b, t.b...)
	}
	im.writeRecord(b, first, uint32(len(txs)))
	return im
}

func (im *image) writeRecord(b []byte, first uint64, txs uint32) {
	r := format.Record{
		Header: format.Header{UUID: im.sb.UUID, Generation: im.sb.LogEpoch},
		Seq:    im.seq, Length: uint32(len(b)), Txs: txs, FirstLSN: first, LastLSN: im.lsn, NextObject: im.sb.NextObject + 10,
	}
	if im.log+r.Blocks() > im.sb.LogBlocks {
		im.log = 0
	}
	r.Addr = im.sb.LogStart + format.Addr(im.log)
	b = r.Encode(append(b, make([]byte, format.BlockSizeBytes)...))
	for i := range r.Blocks() {
		copy(im.dev.block(r.Addr+format.Addr(i)), b[i*format.BlockSizeBytes:][:format.BlockSizeBytes])
	}
	im.log += r.Blocks()
	im.seq++
}

// Items of file systems.

func (im *image) inode(ino uint64, n format.Inode) {
	var b [format.InodeBytes]byte
	n.Encode(b[:])
	im.items[inodeKey(ino)] = b[:]
}

func direntItem(dir uint64, name string, ino uint64, typ uint32) (format.Key, []byte) {
	off := format.DirentOffset(format.NameHash(&imageSeed, []byte(name)))
	return format.Key{Object: dir, Kind: format.KindDirent, Offset: off},
		format.AppendDirent(nil, &format.Dirent{Type: uint8(typ >> 12), Ino: ino, Name: []byte(name)})
}

func (im *image) dirent(dir uint64, name string, ino uint64, typ uint32) format.Key {
	k, v := direntItem(dir, name, ino, typ)
	im.items[k] = v
	return k
}

func extentItem(ino, block uint64, start format.Addr, blocks, flags uint32) (format.Key, []byte) {
	return format.Key{Object: ino, Kind: format.KindExtent, Offset: block},
		format.ExtentItem{Start: start, Blocks: blocks, Flags: flags, Birth: imageGen}.Append(nil)
}

func (im *image) extent(ino, block uint64, start format.Addr, blocks, flags uint32) format.Key {
	k, v := extentItem(ino, block, start, blocks, flags)
	im.items[k] = v
	return k
}

func (im *image) xattr(ino uint64, name string, value []byte) format.Key {
	k := format.Key{Object: ino, Kind: format.KindXattr, Offset: format.XattrOffset(format.NameHash(&imageSeed, []byte(name)))}
	n := min(len(value), format.XattrHeadSpace(len(name)))
	im.items[k] = format.AppendXattrHead(nil, &format.XattrHead{Name: []byte(name), ValueBytes: len(value), Value: value[:n]})
	for c := k; n < len(value); {
		c.Offset++
		m := min(len(value)-n, format.MaxValueBytes)
		im.items[c] = value[n : n+m]
		n += m
	}
	return k
}

func orphanItem(ino uint64, kind format.OrphanKind) (format.Key, []byte) {
	b := make([]byte, format.OrphanBytes)
	(&format.Orphan{Kind: kind}).Encode(b)
	return format.Key{Kind: format.KindOrphan, Offset: ino}, b
}

func (im *image) orphan(ino uint64, kind format.OrphanKind) format.Key {
	k, v := orphanItem(ino, kind)
	im.items[k] = v
	return k
}

// Inode numbers of the sample.
const (
	inoRoot, inoFile, inoDir, inoLink, inoFIFO = 1, 16, 17, 18, 19
	inoDeleted, inoShrinking, inoSub, inoDev   = 20, 21, 22, 23
)

// sample is a file system with one of everything:
//
//	/file    two extents and a hole, unwritten blocks beyond the end, xattrs
//	/dir     /dir/again is a second name of /file; /dir/sub
//	/link    a long symbolic link
//	/fifo    /dev
//
// and one inode without a name, one in the middle of a truncation.
func sample() *image {
	im := newImage()
	im.inode(inoRoot, format.Inode{Mode: format.ModeDir | 0o755, Nlink: 3, Size: 6, Parent: inoRoot})
	im.dirent(inoRoot, "file", inoFile, format.ModeRegular)
	im.dirent(inoRoot, "dir", inoDir, format.ModeDir)
	im.dirent(inoRoot, "link", inoLink, format.ModeSymlink)
	im.dirent(inoRoot, "fifo", inoFIFO, format.ModeFIFO)
	im.dirent(inoRoot, "shrinking", inoShrinking, format.ModeRegular)
	im.dirent(inoRoot, "dev", inoDev, format.ModeChar)

	im.inode(inoFile, sampleFile())
	im.extent(inoFile, 0, dataStart, 4, 0)
	im.extent(inoFile, 8, dataStart+100, 2, 0)
	im.extent(inoFile, 10, dataStart+200, 6, format.ExtentUnwritten)
	im.xattr(inoFile, "user.small", []byte("value"))
	im.xattr(inoFile, "user.big", bytes.Repeat([]byte("big"), 1000))
	im.xattr(inoFile, "user.empty", nil)

	im.inode(inoDir, format.Inode{Mode: format.ModeDir | 0o700, Nlink: 3, Size: 2, Parent: inoRoot})
	im.dirent(inoDir, "again", inoFile, format.ModeRegular)
	im.dirent(inoDir, "sub", inoSub, format.ModeDir)
	im.inode(inoSub, format.Inode{Mode: format.ModeDir | 0o700, Nlink: 2, Parent: inoDir})

	target := bytes.Repeat([]byte("target/"), 200)
	im.inode(inoLink, format.Inode{Mode: format.ModeSymlink | 0o777, Nlink: 1, Size: uint64(len(target)), Internal: format.InodeInlineData})
	im.items[format.Key{Object: inoLink, Kind: format.KindInline}] = target[:format.MaxValueBytes]
	im.items[format.Key{Object: inoLink, Kind: format.KindInline, Offset: format.MaxValueBytes}] = target[format.MaxValueBytes:]

	im.inode(inoFIFO, format.Inode{Mode: format.ModeFIFO | 0o600, Nlink: 1})
	im.inode(inoDev, format.Inode{Mode: format.ModeChar | 0o600, Nlink: 1, Rdev: 0x103})

	im.inode(inoDeleted, format.Inode{Mode: format.ModeRegular | 0o600, Size: 4096, Blocks: 1, Internal: format.InodeOrphan})
	im.extent(inoDeleted, 0, dataStart+300, 1, 0)
	im.orphan(inoDeleted, format.OrphanUnlinked)

	im.inode(inoShrinking, format.Inode{Mode: format.ModeRegular | 0o600, Nlink: 1, Size: 100, Blocks: 5, Internal: format.InodeOrphan})
	// This one lies in two groups, around the bitmaps.
	im.extent(inoShrinking, 0, 2*format.GroupBlocks-5, 5, 0)
	im.orphan(inoShrinking, format.OrphanTruncate)
	return im
}

func sampleFile() format.Inode {
	return format.Inode{
		Mode: format.ModeRegular | 0o644, Nlink: 2, Size: 10*format.BlockSizeBytes - 3, Blocks: 12, Internal: format.InodeHasXattrs,
	}
}

func check(t testing.TB, dev nvme.BlockDevice, opts Options) *Report {
	t.Helper()
	d := dev.(*memDevice)
	before := d.writes
	defer func() {
		if d.writes != before {
			t.Fatal("Check wrote to the device")
		}
	}()
	r, err := Check(dev, opts)
	if err != nil {
		t.Fatalf("Check: %v", err)
	}
	return r
}

// codes returns the codes of the findings, sorted, notes in parentheses.
func codes(r *Report) []string {
	list := []string{}
	for _, f := range r.Findings {
		code := string(f.Code)
		switch f.Severity {
		case Note:
			code = "(" + code + ")"
		case Warning:
			code += "?"
		}
		list = append(list, code)
	}
	slices.SortFunc(list, cmp.Compare[string])
	return list
}

func wantClean(t testing.TB, r *Report) {
	t.Helper()
	if !r.Clean || !r.Complete || len(r.Findings) > 0 {
		for i := range r.Findings {
			t.Errorf("%v", &r.Findings[i])
		}
		t.Fatalf("not clean: %d errors, %d warnings, %d notes, complete %v", r.Errors, r.Warnings, r.Notes, r.Complete)
	}
}

// patch changes bytes of a block and puts its checksum right.
func (im *image) patch(a format.Addr, off int, b ...byte) {
	block := im.dev.block(a)
	copy(block[off:], b)
	format.Seal(block)
}

func le64(v uint64) []byte { return binary.LittleEndian.AppendUint64(nil, v) }
func le32(v uint32) []byte { return binary.LittleEndian.AppendUint32(nil, v) }

func fileName(i int) string { return fmt.Sprintf("file-%06d", i) }
