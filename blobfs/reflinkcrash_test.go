package blobfs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"runsc-fs/blobfs/format"
	"runsc-fs/nvme"
	"runsc-fs/nvme/crashdev"
)

var (
	reflinkSeed   = flag.Uint64("reflink.seed", 0, "seed of the crash test of shared blocks; 0: from the clock")
	reflinkStates = flag.Int("reflink.states", 120, "power cuts that the crash test of shared blocks looks at")
)

const (
	sharedFiles  = 5
	sharedBlocks = 24
)

// sharedRun is a workload of files that share blocks, on a recording disk. Each
// write has a number, which fills its block; 0 stands for zeroes.
type sharedWorkload struct {
	*env
	disk  *crashdev.Disk
	rng   *rand.Rand
	files [sharedFiles]*Inode
	state [sharedFiles][sharedBlocks]blockHistory
	next  uint64
}

// blockHistory is what a block of a file has held, and from which point of the
// disk's history on it may hold it.
type blockHistory struct {
	values []at
	synced []at // indexes of values: a sync has made at least this one durable
}

func (h *blockHistory) last() int { return h.values[len(h.values)-1].value }

// allowed reports whether the block may hold a value after a crash at a point.
func (h *blockHistory) allowed(value, point int) bool {
	for _, v := range h.values[lastAt(h.synced, point):] {
		if v.value == value && v.point <= point {
			return true
		}
	}
	return false
}

func newSharedWorkload(t *testing.T, seed uint64, wrap func(nvme.BlockDevice) nvme.BlockDevice) *sharedWorkload {
	disk, err := crashdev.New(crashdev.Options{SizeBytes: 24 << 20})
	if err != nil {
		t.Fatal(err)
	}
	arena, err := nvme.NewArena(nvme.ArenaOptions{SizeBytes: 32 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { arena.Close() })
	w := &sharedWorkload{
		env:  &env{t: t, dev: wrap(disk.Device(arena)), now: 1 << 60},
		disk: disk, rng: rand.New(rand.NewPCG(seed, 7)),
	}
	w.must(Mkfs(w.dev, MkfsOptions{}))
	w.mount()
	t.Cleanup(func() { w.fs.Close() })
	root := w.fs.Root()
	defer root.DecRef()
	for k := range w.files {
		w.files[k] = w.create(root, fmt.Sprintf("f%d", k), ModeRegular)
		w.must(w.files[k].Truncate(sharedBlocks * BlockSizeBytes))
		for b := range w.state[k] {
			w.state[k][b].values = []at{{0, 0}}
		}
	}
	w.must(w.fs.Sync(nil))
	disk.Restart()
	return w
}

// change notes that blocks of a file are about to hold other values.
func (w *sharedWorkload) change(k, block int, values ...int) {
	for n, v := range values {
		h := &w.state[k][block+n]
		h.values = append(h.values, at{w.disk.Points(), v})
	}
}

func (w *sharedWorkload) synced(k int) {
	for b := range w.state[k] {
		h := &w.state[k][b]
		h.synced = append(h.synced, at{w.disk.Points(), len(h.values) - 1})
	}
}

func (w *sharedWorkload) values(k, block, n int) []int {
	list := make([]int, n)
	for m := range list {
		list[m] = w.state[k][block+m].last()
	}
	return list
}

// span returns a run of blocks.
func (w *sharedWorkload) span() (block, n int) {
	block = w.rng.IntN(sharedBlocks)
	return block, 1 + w.rng.IntN(min(sharedBlocks-block, 8))
}

func (w *sharedWorkload) step() {
	k, j := w.rng.IntN(sharedFiles), w.rng.IntN(sharedFiles)
	f := w.files[k]
	block, n := w.span()
	off := int64(block) * BlockSizeBytes
	switch w.rng.IntN(12) {
	case 0, 1, 2:
		var data []byte
		var list []int
		for range n {
			w.next++
			data = append(data, bytes.Repeat(binary.LittleEndian.AppendUint64(nil, w.next), BlockSizeBytes/8)...)
			list = append(list, int(w.next))
		}
		w.change(k, block, list...)
		w.write(f, off, data, []IOFlags{0, IODirect, IODirect}[w.rng.IntN(3)])
	case 3, 4, 5, 6:
		from := w.rng.IntN(sharedBlocks - n + 1)
		if k == j && from < block+n && block < from+n {
			return
		}
		w.change(k, block, w.values(j, from, n)...)
		w.must(f.CloneRange(w.files[j], int64(from)*BlockSizeBytes, off, int64(n)*BlockSizeBytes))
	case 7: // the whole file
		if k != j {
			w.change(k, 0, w.values(j, 0, sharedBlocks)...)
			w.must(f.CloneRange(w.files[j], 0, 0, 0))
		}
	case 8:
		w.change(k, block, make([]int, n)...)
		w.must(f.Fallocate(FallocPunchHole|FallocKeepSize, off, int64(n)*BlockSizeBytes))
	case 9:
		if _, err := f.DedupeRange(w.files[j], off, off, int64(n)*BlockSizeBytes); k != j && err != nil && !errors.Is(err, ErrDiffers) {
			w.t.Fatal(err)
		}
	case 10:
		w.must(f.Fsync(nil, w.rng.IntN(2) == 0))
		w.synced(k)
	case 11:
		if w.rng.IntN(3) > 0 {
			w.must(f.Fallocate(FallocUnshare|FallocKeepSize, off, int64(n)*BlockSizeBytes))
			return
		}
		w.must(w.fs.Sync(nil))
		for k := range w.files {
			w.synced(k)
		}
		if w.rng.IntN(2) == 0 {
			w.must(w.fs.store.Checkpoint())
		}
	}
}

// check looks at what a power cut has left.
func (w *sharedWorkload) check(crash crashdev.Crash, img *crashdev.Disk, arena *nvme.Arena) error {
	e := &env{t: w.t, dev: img.Device(arena), now: 1 << 61}
	if err := checkVolume(e.dev); err != nil {
		return fmt.Errorf("before mounting: %w", err)
	}
	opts := e.testOptions()
	opts.CacheBytes = 2 << 20
	fs, err := Mount(e.dev, opts)
	if err != nil {
		return fmt.Errorf("mounting: %w", err)
	}
	e.fs = fs
	root := fs.Root()
	for k := range w.state {
		f, err := root.Lookup(fmt.Sprintf("f%d", k))
		if err != nil {
			return err
		}
		got := e.read(f, 0, sharedBlocks*BlockSizeBytes, 0)
		for off := 0; off < len(got); off += 8 {
			v := int(binary.LittleEndian.Uint64(got[off:]))
			if h := &w.state[k][off/BlockSizeBytes]; !h.allowed(v, crash.Point) {
				return fmt.Errorf("file %d, byte %d: holds write %d; of %v from %d on", k, off, v, h.values, lastAt(h.synced, crash.Point))
			}
		}
		// The counts must also be good for giving all up again.
		if err := root.Unlink(fmt.Sprintf("f%d", k), nil); err != nil {
			return err
		}
		f.DecRef()
	}
	if err := fs.store.Verify(); err != nil {
		return err
	}
	root.DecRef()
	if err := fs.Close(); err != nil {
		return err
	}
	return checkVolume(e.dev)
}

func (w *sharedWorkload) cuts(seed uint64, n int) error {
	arena, err := nvme.NewArena(nvme.ArenaOptions{SizeBytes: 16 << 20})
	w.must(err)
	defer arena.Close()
	for crash, img := range w.disk.Samples(seed, n) {
		if err := w.check(crash, img, arena); err != nil {
			return fmt.Errorf("%v of %d: %w", crash, w.disk.Points(), err)
		}
	}
	return nil
}

// TestPowerCutsShared cuts the power at random points of a workload of shared
// blocks: counts are exact, and no file shows what was written to another.
func TestPowerCutsShared(t *testing.T) {
	seed := *reflinkSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("-reflink.seed %d", seed)
	w := newSharedWorkload(t, seed, func(d nvme.BlockDevice) nvme.BlockDevice { return d })
	for range 300 {
		w.step()
	}
	if err := w.cuts(seed, *reflinkStates); err != nil {
		t.Fatal(err)
	}
}

// TestPowerCutsSharedCanary leaves one change of a count out of a log record,
// which the test above must notice.
func TestPowerCutsSharedCanary(t *testing.T) {
	for seed := range uint64(20) {
		var f *forgetful
		w := newSharedWorkload(t, seed, func(d nvme.BlockDevice) nvme.BlockDevice {
			f = &forgetful{BlockDevice: d}
			return f
		})
		for f.armed = true; f.armed; {
			w.step()
		}
		w.must(w.fs.Sync(nil))
		if err := w.cuts(seed, 60); err != nil {
			t.Logf("noticed: %v", err)
			return
		}
	}
	t.Error("a change of a count that was not logged went unnoticed")
}

// forgetful is a device that takes one put of a refcount item out of the log.
type forgetful struct {
	nvme.BlockDevice
	armed bool
}

func (f *forgetful) Do(reqs []nvme.Request) error {
	for n := range reqs {
		if r := &reqs[n]; f.armed && r.Op == nvme.OpWrite && len(r.Vec) == 1 {
			f.forget(r.Vec[0])
		}
	}
	return f.BlockDevice.Do(reqs)
}

// forget rewrites a log record without the first put of a refcount item, if it
// has one and takes as many blocks without it.
func (f *forgetful) forget(b []byte) {
	h := format.ReadHeader(b)
	rec, ok := format.DecodeRecordHeader(b, h.UUID, h.Addr, h.Generation)
	if !ok || !rec.CheckCRC(b) {
		return
	}
	out := make([]byte, format.RecordHeaderBytes, len(b))
	start, ops, lsn, done := 0, 0, uint64(0), false
	finish := func() {
		if ops > 0 {
			format.PutTxHeader(out[start:], ops, lsn)
		}
	}
	err := rec.Transactions(b, func(n uint64) error {
		finish()
		start, ops, lsn = len(out), 0, n
		out = append(out, make([]byte, format.TxHeaderBytes)...)
		return nil
	}, func(o *format.Op) error {
		switch {
		case o.Code == format.OpPut && o.Key.Kind == format.KindRefcount && !done:
			done = true
			return nil
		case o.Code == format.OpPut:
			out = format.AppendPut(out, o.Key, o.Value)
		case o.Code == format.OpDelete:
			out = format.AppendDelete(out, o.Key)
		case o.Code == format.OpClaim:
			out = format.AppendClaim(out, o.Run)
		case o.Code == format.OpFree:
			out = format.AppendFree(out, o.Run)
		}
		ops++
		return nil
	})
	finish()
	blocks := rec.Blocks()
	rec.Length = uint32(len(out))
	if err != nil || !done || rec.Blocks() != blocks {
		return
	}
	copy(b, out)
	rec.Encode(b)
	f.armed = false
}
