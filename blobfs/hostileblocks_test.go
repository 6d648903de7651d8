package blobfs

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"testing"
	"time"

	"runsc-fs/blobfs/format"
	"runsc-fs/nvme"
	"runsc-fs/nvme/crashdev"
)

// unclosedBase is hostileBase, used again and not closed: its log is to be
// replayed.
func unclosedBase(t testing.TB, arena *nvme.Arena) *crashdev.Disk {
	disk := hostileBase(t, arena)
	e := &env{t: t, dev: disk.Device(arena), now: 1 << 61}
	e.mount()
	root := e.fs.Root()
	d := e.lookup(root, "d")
	for n := range 30 {
		f := e.create(d, fmt.Sprintf("logged%d", n), ModeRegular|0o644)
		e.write(f, int64(n)*1000, pattern(byte(n), 9000), 0)
		if n%3 == 0 {
			e.must(e.fs.Sync(nil))
			e.must(d.Unlink(fmt.Sprintf("logged%d", n), f))
		}
		f.DecRef()
	}
	d.DecRef()
	root.DecRef()
	e.must(e.fs.Sync(nil))
	crashed := disk.Clone()
	e.must(e.fs.Close())
	return crashed
}

// rawImage is a disk whose metadata blocks are changed behind the back of the
// file system.
type rawImage struct {
	disk   *crashdev.Disk
	blocks []int64 // that begin with a magic number
}

func openRaw(disk *crashdev.Disk) *rawImage {
	r := &rawImage{disk: disk}
	for n := range disk.Options().SizeBytes / BlockSizeBytes {
		switch format.ReadHeader(r.read(n, 1)).Magic {
		case format.MagicSuperblock, format.MagicNode, format.MagicBitmap, format.MagicRecord:
			r.blocks = append(r.blocks, n)
		}
	}
	return r
}

func (r *rawImage) read(block int64, blocks int) []byte {
	b := make([]byte, blocks*BlockSizeBytes)
	if _, err := r.disk.ReadAt(b, block*BlockSizeBytes); err != nil {
		panic(err)
	}
	return b
}

// reseal gives a changed block its checksum, and puts the new one wherever
// another block names the old one: bitmaps in their group's item, the root in
// the superblock.
func (r *rawImage) reseal(block int64, b []byte, depth int) {
	was := format.ReadHeader(b).CRC
	covered := b
	if format.ReadHeader(b).Magic == format.MagicRecord {
		if n := binary.LittleEndian.Uint32(b[48:]); n >= format.RecordHeaderBytes && int(n) <= len(b) {
			covered = b[:n]
		}
	}
	now := format.Seal(covered)
	if _, err := r.disk.WriteAt(b, block*BlockSizeBytes); err != nil {
		panic(err)
	}
	if was == now || was == 0 || depth > 4 {
		return
	}
	var old, new [4]byte
	binary.LittleEndian.PutUint32(old[:], was)
	binary.LittleEndian.PutUint32(new[:], now)
	for _, n := range r.blocks {
		if other := r.read(n, 1); n != block && bytes.Contains(other[format.HeaderBytes:], old[:]) {
			rest := bytes.ReplaceAll(other[format.HeaderBytes:], old[:], new[:])
			r.reseal(n, append(other[:format.HeaderBytes:format.HeaderBytes], rest...), depth+1)
		}
	}
}

// mutate changes one metadata block in a few places, or puts another in its place.
func (r *rawImage) mutate(rng *rand.Rand) {
	n := r.blocks[rng.IntN(len(r.blocks))]
	blocks := 1
	if h := r.read(n, 1); format.ReadHeader(h).Magic == format.MagicRecord {
		blocks = min(max(1, int(binary.LittleEndian.Uint32(h[48:])+BlockSizeBytes-1)/BlockSizeBytes), format.MaxRecordBlocks)
		blocks = min(blocks, int(r.disk.Options().SizeBytes/BlockSizeBytes-n))
	}
	b := r.read(n, blocks)
	used := len(b)
	if rng.IntN(2) == 0 {
		used = min(used, 320) // where the fields are
	}
	for range 1 + rng.IntN(4) {
		k := 8 + rng.IntN(used-16)
		switch rng.IntN(8) {
		case 0:
			b[k] ^= 1 << rng.IntN(8)
		case 1:
			b[k]++
		case 2:
			b[k] = 0
		case 3:
			b[k] = byte(rng.IntN(20))
		case 4:
			binary.LittleEndian.PutUint64(b[k&^7:], []uint64{0, 1, 1<<63 - 1, 1 << 63, 1<<64 - 1, 1 << 47, 4095, 4096}[rng.IntN(8)])
		case 5:
			binary.LittleEndian.PutUint32(b[k&^3:], uint32(rng.IntN(8000)))
		case 6: // part of it twice
			from := 8 + rng.IntN(used-16)
			copy(b[k:min(k+rng.IntN(100), used)], b[from:used])
		case 7:
			binary.LittleEndian.PutUint16(b[k&^1:], uint16(rng.Uint32()))
		}
	}
	if rng.IntN(6) == 0 {
		copy(b[format.HeaderBytes:], r.read(r.blocks[rng.IntN(len(r.blocks))], 1)[format.HeaderBytes:])
	}
	r.reseal(n, b, 0)
}

// TestHostileBlocks mounts and uses images whose metadata blocks are wrong and
// carry correct checksums. There may be errors, but no panic and no hang.
func TestHostileBlocks(t *testing.T) {
	arena, err := nvme.NewArena(nvme.ArenaOptions{SizeBytes: 48 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer arena.Close()
	bases := []*crashdev.Disk{hostileBase(t, arena), unclosedBase(t, arena)}
	seed := *hostileSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("-hostile.seed %d", seed)
	for n := range *hostileImages {
		runHostileBlocks(t, bases, arena, seed+uint64(n))
	}
}

func runHostileBlocks(t testing.TB, bases []*crashdev.Disk, arena *nvme.Arena, seed uint64) {
	defer func() {
		if r := recover(); r != nil {
			t.Errorf("seed %d: %v\n%s", seed, r, debug.Stack())
		}
	}()
	rng := rand.New(rand.NewPCG(seed, 5))
	raw := openRaw(bases[rng.IntN(len(bases))].Clone())
	for range 1 + rng.IntN(3) {
		raw.mutate(rng)
	}
	start := time.Now()
	e := &env{t: t, dev: raw.disk.Device(arena), now: 1 << 62}
	opts := e.testOptions()
	opts.CacheBytes = 2 << 20
	opts.Logf = func(string, ...any) {}
	opts.ReadOnly = rng.IntN(8) == 0
	fs, err := Mount(e.dev, opts)
	if err == nil {
		exercise(fs, rng)
		_ = fs.Close()
	}
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("seed %d: took %v", seed, took)
	}
}
