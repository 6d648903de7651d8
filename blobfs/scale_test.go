package blobfs

import (
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"runsc-fs/blobfs/format"
	"runsc-fs/nvme"
	"runsc-fs/nvme/soft"
)

// By hand, with what docs/performance.md says: bigger trees and files than a test
// run should wait for.
var (
	scaleFiles   = flag.Int("scale.files", 100_000, "TestScaleOfTree: files to make")
	scaleExtents = flag.Int("scale.extents", 20_000, "TestScaleOfExtents: extents of the file")
)

// meter counts what goes to a device. When it is dead nothing does: to the file
// system on it that is a power cut.
type meter struct {
	nvme.BlockDevice
	reads, writes, others, readBytes atomic.Int64
	dead                             atomic.Bool
}

func (m *meter) Do(reqs []nvme.Request) error {
	if m.dead.Load() {
		for i := range reqs {
			reqs[i].Err = nvme.ErrClosed
		}
		return nvme.ErrClosed
	}
	for i := range reqs {
		switch r := &reqs[i]; r.Op {
		case nvme.OpRead:
			m.reads.Add(1)
			for _, v := range r.Vec {
				m.readBytes.Add(int64(len(v)))
			}
		case nvme.OpWrite:
			m.writes.Add(1)
		default:
			m.others.Add(1)
		}
	}
	return m.BlockDevice.Do(reqs)
}

// stopwatch logs what operations cost each: processor time, which other programs
// disturb less than the clock, and requests to the device.
type stopwatch struct {
	t    *testing.T
	dev  *meter
	cpu  time.Duration
	reqs int64
}

func (w *stopwatch) sample() (cpu time.Duration, reqs int64) {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		w.t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), w.dev.reads.Load() + w.dev.writes.Load() + w.dev.others.Load()
}

func (w *stopwatch) start() { w.cpu, w.reqs = w.sample() }

func (w *stopwatch) log(what string, n int) {
	cpu, reqs := w.sample()
	w.t.Logf("%-30s %8d ns, %6.3f requests", what, int(cpu-w.cpu)/n, float64(reqs-w.reqs)/float64(n))
	w.start()
}

// costs are counts of a device by what they were for.
type costs map[string]string

// measure adds what the device does during fn.
func (m *meter) measure(c costs, what string, fn func()) {
	reads, writes, others, bytes := m.reads.Load(), m.writes.Load(), m.others.Load(), m.readBytes.Load()
	fn()
	c[what] = fmt.Sprintf("%d reads of %d bytes, %d writes, %d others",
		m.reads.Load()-reads, m.readBytes.Load()-bytes, m.writes.Load()-writes, m.others.Load()-others)
}

// TestScaleOfVolume does the same on volumes of three sizes, and wants the same
// requests to the device: nothing depends on the size of the volume.
func TestScaleOfVolume(t *testing.T) {
	sizes := []int64{16 << 30, 512 << 30, 4 << 40}
	all := make([]costs, len(sizes))
	for n, size := range sizes {
		all[n] = volumeCosts(t, size)
	}
	for what, want := range all[0] {
		for n := range sizes {
			if got := all[n][what]; got != want {
				t.Errorf("%s: with %d GiB %s, with %d GiB %s", what, sizes[0]>>30, want, sizes[n]>>30, got)
			}
		}
		t.Logf("%-16s %s", what, want)
	}
}

func volumeCosts(t *testing.T, sizeBytes int64) costs {
	device, err := soft.NewMemory(sizeBytes)
	if err != nil {
		t.Fatal(err)
	}
	e := &env{t: t, dev: device, now: 1 << 60}
	dev := &meter{BlockDevice: device}
	e.dev = dev
	t.Cleanup(func() { device.Close() })
	c := costs{}
	dev.measure(c, "mkfs", func() {
		e.must(Mkfs(dev, MkfsOptions{LogBytes: 2 << 20, UUID: [16]byte{1}, HashSeed: [16]byte{1}}))
	})
	dev.measure(c, "mount", e.mount)
	dev.measure(c, "unmount", func() { e.must(e.fs.Close()) })
	e.mount()
	root := e.fs.Root()
	var f *Inode
	dev.measure(c, "create, fsync", func() {
		f = e.create(root, "f", ModeRegular|0o644)
		e.must(f.Fsync(nil, false))
	})
	data := pattern(1, 1<<20)
	dev.measure(c, "write, fsync", func() {
		e.write(f, 0, data, 0)
		e.must(f.Fsync(nil, false))
	})
	dev.measure(c, "statfs", func() { e.fs.StatFS() })
	for k := range 200 {
		e.create(root, fmt.Sprint("name", k), ModeRegular|0o644).DecRef()
	}
	e.must(e.fs.Sync(nil))

	// A power cut, with a log to be replayed.
	f.DecRef()
	root.DecRef()
	dev.dead.Store(true)
	_ = e.fs.Close()
	dev = &meter{BlockDevice: device}
	e.dev = dev
	dev.measure(c, "mount after crash", e.mount)
	root = e.fs.Root()
	dev.measure(c, "lookup", func() { f = e.lookup(root, "f") })
	dev.measure(c, "read", func() { e.expect(f, 0, data, IODirect) })
	dev.measure(c, "unlink, sync", func() {
		e.must(root.Unlink("f", f))
		f.DecRef()
		e.must(e.fs.Sync(nil))
	})
	root.DecRef()
	dev.measure(c, "unmount in the end", func() { e.must(e.fs.Close()) })
	e.fs = nil
	return c
}

// TestScaleOfFile writes at the end of sparse files of up to 16 TiB less a block.
func TestScaleOfFile(t *testing.T) {
	sizes := []int64{1 << 30, 1 << 40, MaxFileSizeBytes - BlockSizeBytes}
	all := make([]costs, len(sizes))
	for n, size := range sizes {
		e := newEnv(t, 64<<20)
		e.must(e.fs.Close())
		dev := &meter{BlockDevice: e.dev}
		e.dev = dev
		e.mount()
		root := e.fs.Root()
		f := e.create(root, "f", ModeRegular|0o644)
		c := costs{}
		last := pattern(3, BlockSizeBytes)
		dev.measure(c, "write at the end", func() {
			e.write(f, size-BlockSizeBytes, last, 0)
			e.must(f.Fsync(nil, false))
		})
		if got := f.Attr(); got.Size != size || got.Blocks > 64 {
			t.Errorf("%d bytes, %d sectors", got.Size, got.Blocks)
		}
		f.DecRef()
		root.DecRef()
		e.remount()
		root = e.fs.Root()
		f = e.lookup(root, "f")
		dev.measure(c, "seek", func() {
			at, err := f.SeekData(0)
			e.must(err)
			if at != size-BlockSizeBytes {
				t.Errorf("data at %d, not at %d", at, size-BlockSizeBytes)
			}
			if at, err = f.SeekHole(at); err != nil || at != size {
				t.Errorf("hole at %d, %v", at, err)
			}
		})
		dev.measure(c, "read", func() {
			e.expect(f, size-BlockSizeBytes, last, 0)
			e.expect(f, size/2&^(BlockSizeBytes-1), make([]byte, BlockSizeBytes), 0)
		})
		dev.measure(c, "truncate", func() {
			e.must(f.Truncate(size / 3))
			e.must(f.Fsync(nil, false))
			e.must(f.Truncate(0))
			e.must(f.Fsync(nil, false))
		})
		if n == len(sizes)-1 {
			if _, err := f.WriteAt(&bytesSource{last}, MaxFileSizeBytes, 1, 0); err == nil {
				t.Error("a byte was written behind the largest size")
			}
		}
		f.DecRef()
		root.DecRef()
		all[n] = c
	}
	for what, want := range all[0] {
		for n := range sizes {
			if got := all[n][what]; got != want {
				t.Errorf("%s: with %d bytes %s, with %d bytes %s", what, sizes[0], want, sizes[n], got)
			}
		}
		t.Logf("%-16s %s", what, want)
	}
}

// checkBounds wants no more objects in memory than the options say.
func (e *env) checkBounds() {
	e.t.Helper()
	inodes := 0
	for n := range e.fs.inodes.shards {
		s := &e.fs.inodes.shards[n]
		s.mu.Lock()
		inodes += len(s.m)
		s.mu.Unlock()
	}
	if limit := e.fs.opts.MaxIdleInodes + 16; inodes > limit {
		e.t.Errorf("%d inodes in memory, the bound is %d", inodes, limit)
	}
	c := e.fs.cache
	c.mu.Lock()
	pages := c.total
	c.mu.Unlock()
	if limit := int(e.fs.opts.CacheBytes / BlockSizeBytes); pages > limit {
		e.t.Errorf("%d pages in memory, the bound is %d", pages, limit)
	}
	st := e.fs.store.Stats()
	if limit := e.fs.opts.NodeCacheBytes/BlockSizeBytes + 8192; st.ResidentNodes > limit {
		e.t.Errorf("%d nodes in memory, the bound is %d", st.ResidentNodes, limit)
	}
	if st.LoadedBitmaps > 1024 {
		e.t.Errorf("%d bitmaps in memory, the bound is 1024", st.LoadedBitmaps)
	}
}

// TestScaleOfTree makes trees of files, a thousand times as many and one directory
// with all of them, and compares what each operation asks of the device: it grows
// with the levels of the tree, not with its size. Memory stays bounded.
func TestScaleOfTree(t *testing.T) {
	for _, files := range []int{*scaleFiles / 100, *scaleFiles / 10, *scaleFiles} {
		e := newEnv(t, max(256<<20, int64(files)*2048))
		e.must(e.fs.Close())
		dev := &meter{BlockDevice: e.dev}
		e.dev = dev
		mount := func() {
			opts := e.testOptions()
			opts.MaxIdleInodes, opts.NodeCacheBytes = 1024, 64<<20
			fs, err := Mount(dev, opts)
			e.must(err)
			e.fs = fs
		}
		mount()
		root := e.fs.Root()
		name := func(k int) string { return fmt.Sprintf("file-%08d", k) }
		watch := stopwatch{t: t, dev: dev}
		watch.start()
		per := func(what string, n int) { watch.log(fmt.Sprintf("%9d files: %s", files, what), n) }
		for k := range files {
			e.create(root, name(k), ModeRegular|0o644).DecRef()
		}
		e.must(e.fs.Sync(nil))
		per("create", files)
		e.checkBounds()
		listed := 0
		e.must(root.ReadDir(0, func(Dirent) bool { listed++; return true }))
		if listed != files {
			t.Errorf("%d of %d entries listed", listed, files)
		}
		per("readdir", files)
		root.DecRef()
		e.must(e.fs.Close())
		watch.start()
		mount()
		per("mount", 1)
		root = e.fs.Root()
		rng := rand.New(rand.NewPCG(1, 1))
		const lookups = 1000
		before := dev.reads.Load()
		for range lookups {
			e.lookup(root, name(rng.IntN(files))).DecRef()
		}
		if reads := dev.reads.Load() - before; reads > lookups*5 {
			t.Errorf("%d files: %d lookups with a cold cache read %d blocks", files, lookups, reads)
		}
		per("lookup", lookups)
		e.checkBounds()
		before = dev.reads.Load() + dev.writes.Load()
		removed := min(files, 10_000)
		for k := range removed {
			e.must(root.Unlink(name(k*(files/removed)), nil))
		}
		e.must(e.fs.Sync(nil))
		if io := dev.reads.Load() + dev.writes.Load() - before; io > int64(removed)*6 {
			t.Errorf("%d files: %d removals cost %d requests", files, removed, io)
		}
		per("unlink", removed)
		e.checkBounds()
		root.DecRef()
		e.must(e.fs.Close())
		e.fs = nil
		e.dev.Close()
	}
}

// TestScaleOfExtents makes a file of very many extents by random writes, and reads
// and cuts it.
func TestScaleOfExtents(t *testing.T) {
	for _, extents := range []int{*scaleExtents / 10, *scaleExtents} {
		e := newEnv(t, max(128<<20, int64(extents)*3*BlockSizeBytes))
		e.must(e.fs.Close())
		dev := &meter{BlockDevice: e.dev}
		e.dev = dev
		e.mount()
		root := e.fs.Root()
		f := e.create(root, "f", ModeRegular|0o644)
		rng := rand.New(rand.NewPCG(1, 2))
		watch := stopwatch{t: t, dev: dev}
		watch.start()
		per := func(what string, n int) { watch.log(fmt.Sprintf("%7d extents: %s", extents, what), n) }
		for _, k := range rng.Perm(extents) {
			e.write(f, int64(k)*2*BlockSizeBytes, []byte{byte(k), byte(k >> 8), 1}, 0)
		}
		e.must(f.Fsync(nil, false))
		per("write", extents)
		if windows := len(f.ext.win); windows > maxWindows {
			t.Errorf("%d windows of extents in memory, the bound is %d", windows, maxWindows)
		}
		f.DecRef()
		root.DecRef()
		e.remount()
		root = e.fs.Root()
		f = e.lookup(root, "f")
		watch.start()
		const reads = 1000
		before := dev.reads.Load()
		for range reads {
			k := rng.IntN(extents)
			if b := e.read(f, int64(k)*2*BlockSizeBytes, BlockSizeBytes, IODirect); b[0] != byte(k) || b[1] != byte(k>>8) {
				t.Fatalf("extent %d reads %v", k, b[:2])
			}
		}
		per("read", reads)
		// A window is 512 extents; once all windows that fit are there, a read is one request.
		if n := dev.reads.Load() - before; n > int64(reads+extents/20)*2 {
			t.Errorf("%d extents: %d reads cost %d requests", extents, reads, n)
		}
		if windows := len(f.ext.win); windows > maxWindows {
			t.Errorf("%d windows of extents in memory, the bound is %d", windows, maxWindows)
		}
		before = dev.writes.Load()
		watch.start()
		e.must(f.Truncate(int64(extents) * BlockSizeBytes)) // half of them
		e.must(f.Fsync(nil, false))
		per("truncate, half", extents/2)
		if n := dev.writes.Load() - before; n > int64(extents)/10 {
			t.Errorf("%d extents: cutting half of them off cost %d writes", extents, n)
		}
		if st := f.Attr().Blocks / 8; st > int64(extents/2)+int64(extents)/20+8 {
			t.Errorf("%d blocks are left of %d", st, extents)
		}
		e.must(root.Unlink("f", f))
		f.DecRef()
		e.must(e.fs.Sync(nil))
		e.checkBounds()
		root.DecRef()
		e.must(e.fs.Close())
		e.fs = nil
		e.dev.Close()
	}
}

// TestScaleOfTrim trims volumes and looks at what that keeps in memory, and that each
// step is as large as it may be.
func TestScaleOfTrim(t *testing.T) {
	for _, size := range []int64{16 << 30, 256 << 30} {
		device, err := soft.NewMemory(size)
		if err != nil {
			t.Fatal(err)
		}
		e := &env{t: t, dev: device, now: 1 << 60}
		dev := &meter{BlockDevice: device}
		e.dev = dev
		e.must(Mkfs(dev, MkfsOptions{}))
		e.mount()
		before := dev.others.Load()
		began := time.Now()
		trimmed, err := e.fs.Trim(0, math.MaxUint64, 0)
		e.must(err)
		groups := int64(trimmed) / (format.GroupBlocks * BlockSizeBytes)
		if steps := dev.others.Load() - before; steps > (groups+2)*18 {
			t.Errorf("%d GiB: %d commands for %d groups", size>>30, steps, groups)
		}
		t.Logf("%d GiB: %d bytes in %v", size>>30, trimmed, time.Since(began))
		e.checkBounds()
		e.must(e.fs.Close())
		device.Close()
	}
}
