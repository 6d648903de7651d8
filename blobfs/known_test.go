package blobfs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"runsc-fs/nvme"
	"runsc-fs/nvme/crashdev"
	"runsc-fs/nvme/soft"
)

// Failures that other file systems and block stores are known for; more of
// them are in crashrig.

// TestWritersOfOneHole has two writers write halves of the same new blocks,
// each with O_DSYNC, and cuts the power after each acknowledgement.
func TestWritersOfOneHole(t *testing.T) {
	disk, err := crashdev.New(crashdev.Options{SizeBytes: 16 << 20})
	if err != nil {
		t.Fatal(err)
	}
	arena, err := nvme.NewArena(nvme.ArenaOptions{SizeBytes: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer arena.Close()
	e := &env{t: t, dev: disk.Device(arena), now: 1 << 60}
	e.must(Mkfs(e.dev, MkfsOptions{}))
	e.mount()
	root := e.fs.Root()
	f := e.create(root, "f", ModeRegular|0o644)
	e.must(f.Truncate(1 << 20))
	e.must(e.fs.Sync(nil))
	disk.Restart()
	const blocks, half = 40, BlockSizeBytes / 2
	var acked [blocks][2]int // points
	var group sync.WaitGroup
	for side := range 2 {
		group.Go(func() {
			for k := range blocks {
				b := bytes.Repeat([]byte{byte(1 + side)}, half)
				flags := []IOFlags{IODSync, IODSync | IODirect}[(k+side)%2]
				n, err := f.WriteAt(&bytesSource{b}, int64(k)*BlockSizeBytes+int64(side)*half, half, flags)
				if n != half || err != nil {
					t.Errorf("write %d: %d, %v", k, n, err)
				}
				acked[k][side] = disk.Points()
			}
		})
	}
	group.Wait()
	f.DecRef()
	root.DecRef()
	points := disk.Points()
	e.must(e.fs.Close())
	for point := range points + 1 {
		e := &env{t: t, dev: disk.Image(crashdev.Crash{Point: point, Seed: uint64(point % 3 * 999)}).Device(arena), now: 1 << 61}
		e.mount()
		root := e.fs.Root()
		f := e.lookup(root, "f")
		got := e.read(f, 0, 1<<20, 0)
		for k := range blocks {
			for side := range 2 {
				off := k*BlockSizeBytes + side*half
				if acked[k][side] <= point && !bytes.Equal(got[off:off+half], bytes.Repeat([]byte{byte(1 + side)}, half)) {
					t.Fatalf("cut at %d of %d: what writer %d wrote to block %d was acknowledged at %d and is not there", point, points, side, k, acked[k][side])
				}
			}
		}
		f.DecRef()
		root.DecRef()
		e.must(e.fs.Close())
	}
}

// TestFlushGoesToTheMedium follows a Flush from fsync through driver and
// controller to a medium with a volatile cache.
func TestFlushGoesToTheMedium(t *testing.T) {
	disk, err := crashdev.New(crashdev.Options{SizeBytes: 16 << 20})
	if err != nil {
		t.Fatal(err)
	}
	arena, err := nvme.NewArena(nvme.ArenaOptions{SizeBytes: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer arena.Close()
	dev, err := soft.Open(disk.Backing(), arena, soft.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	e := &env{t: t, dev: dev, now: 1 << 60}
	e.must(Mkfs(e.dev, MkfsOptions{}))
	e.mount()
	root := e.fs.Root()
	f := e.create(root, "f", ModeRegular|0o644)
	data := pattern(1, 30000)
	e.write(f, 0, data, 0)
	flushes := func() (n int) {
		for _, event := range disk.Events() {
			if event.Op == nvme.OpFlush {
				n++
			}
		}
		return n
	}
	before := flushes()
	e.must(f.Fsync(nil, true))
	if flushes() == before {
		t.Error("fsync has flushed nothing")
	}
	e.write(f, 0, data[:BlockSizeBytes], 0) // in place: Flush is all there is to do
	before = flushes()
	e.must(f.Fsync(nil, true))
	if flushes() != before+1 {
		t.Errorf("fdatasync after writing in place has flushed %d times", flushes()-before)
	}
	f.DecRef()
	root.DecRef()
	left := disk.Image(crashdev.Crash{Point: disk.Points(), Seed: 0})
	e.must(e.fs.Close())
	e = &env{t: t, dev: left.Device(arena), now: 1 << 61}
	e.mount()
	root = e.fs.Root()
	f = e.lookup(root, "f")
	e.expect(f, 0, data, 0)
	f.DecRef()
	root.DecRef()
	e.must(e.fs.Close())
}

// TestStaleNodeCostsWhatLiesBelow puts back, one at a time, an older node of
// the tree at its address, as a device does that acknowledges a write and
// forgets it. That is an error for what lies below the node, and for nothing else.
func TestStaleNodeCostsWhatLiesBelow(t *testing.T) {
	disk, err := crashdev.New(crashdev.Options{SizeBytes: 8 << 20})
	if err != nil {
		t.Fatal(err)
	}
	arena, err := nvme.NewArena(nvme.ArenaOptions{SizeBytes: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer arena.Close()
	e := &env{t: t, dev: disk.Device(arena), now: 1 << 60}
	e.must(Mkfs(e.dev, MkfsOptions{}))
	e.mount()
	const files, rounds = 300, 40 // enough to use places of nodes again
	older := []*crashdev.Disk{}
	for round := range rounds {
		root := e.fs.Root()
		for k := range files {
			name := fmt.Sprint("file", k)
			f, err := root.Lookup(name)
			if errors.Is(err, ErrNotExist) {
				f, err = root.Create(name, NewInode{Mode: ModeRegular})
			}
			e.must(err)
			e.write(f, 0, fmt.Appendf(nil, "%d %d", k, round), 0)
			e.must(f.SetXattr("user.round", bytes.Repeat([]byte{byte(round)}, 600), 0))
			f.DecRef()
		}
		root.DecRef()
		e.must(e.fs.Sync(nil))
		e.must(e.fs.store.Checkpoint())
		older = append(older, disk.Clone())
	}
	e.must(e.fs.Close())
	e.fs = nil
	stale, some := 0, 0
	now, before := make([]byte, BlockSizeBytes), make([]byte, BlockSizeBytes)
	for off := int64(0); off < 8<<20 && some < 3; off += BlockSizeBytes {
		disk.ReadAt(now, off)
		if binary.LittleEndian.Uint32(now) != binary.LittleEndian.Uint32([]byte("BFND")) {
			continue
		}
		for _, old := range older {
			old.ReadAt(before, off)
			if bytes.Equal(now, before) || !bytes.Equal(now[:4], before[:4]) {
				continue
			}
			img := disk.Clone()
			img.WriteAt(before, off)
			stale++
			if readable := readDamaged(t, img.Device(arena), files, rounds-1); readable > 0 && readable < files {
				some++
			}
			break
		}
	}
	if some < 3 {
		t.Errorf("%d nodes had an older version, %d of them cost some files and not all", stale, some)
	}
}

// readDamaged counts the files of a damaged volume that can be read. The others
// must give an error that says what they are.
func readDamaged(t *testing.T, dev nvme.BlockDevice, files, round int) (readable int) {
	t.Helper()
	e := &env{t: t, dev: dev, now: 1 << 61}
	fs, err := Mount(dev, MountOptions{CacheBytes: 1 << 20, CommitInterval: -1, ReadOnly: true})
	if err != nil {
		if !errors.Is(err, ErrCorrupt) {
			t.Errorf("mounting: %v", err)
		}
		return 0
	}
	e.fs = fs
	root := fs.Root()
	for k := range files {
		f, err := root.Lookup(fmt.Sprint("file", k))
		if err != nil {
			if !errors.Is(err, ErrCorrupt) {
				t.Errorf("file %d: %v", k, err)
			}
			continue
		}
		var s memSink
		if _, err := f.ReadAt(&s, 0, 100, 0); err == nil && string(s.b) == fmt.Sprintf("%d %d", k, round) {
			readable++
		} else if !errors.Is(err, ErrCorrupt) {
			t.Errorf("file %d reads %q, %v", k, s.b, err)
		}
		f.DecRef()
	}
	root.DecRef()
	if err := fs.Close(); err != nil {
		t.Error(err)
	}
	return readable
}

// TestReaderOfAGrowingFile reads all there is of a file, again and again, while
// another appends: it never sees zeroes, nor less than before.
func TestReaderOfAGrowingFile(t *testing.T) {
	for _, flags := range []IOFlags{0, IODirect} {
		e := newEnv(t, 64<<20)
		root := e.fs.Root()
		f := e.create(root, "f", ModeRegular|0o644)
		var done atomic.Bool
		var group sync.WaitGroup
		group.Go(func() {
			defer done.Store(true)
			for k := range 400 {
				n := int64(1 + k*7919%9000)
				if flags != 0 {
					n = (n + BlockSizeBytes - 1) &^ (BlockSizeBytes - 1)
				}
				b := bytes.Repeat([]byte{byte(1 + k%255)}, int(n))
				if _, done, err := f.Append(&bytesSource{b}, n, flags); done != n || err != nil {
					t.Errorf("append %d: %d, %v", k, done, err)
					return
				}
				if k%50 == 0 {
					if err := f.Fsync(nil, true); err != nil {
						t.Error(err)
					}
				}
			}
		})
		for seen := int64(0); ; {
			last := done.Load()
			from := max(seen-20000, 0)
			var s memSink
			n, err := f.ReadAt(&s, from, 1<<20, 0)
			if err != nil || from+n < seen {
				t.Fatalf("read %d bytes at %d, after %d had been there: %v", n, from, seen, err)
			}
			if at := bytes.IndexByte(s.b, 0); at >= 0 {
				t.Fatalf("flags %d: byte %d is zero, with %d bytes in the file", flags, from+int64(at), from+n)
			}
			if seen = from + n; last && seen == f.Size() {
				break
			}
		}
		group.Wait()
		f.DecRef()
		root.DecRef()
	}
}

// hookedDevice calls a function before each batch of requests that has a write.
type hookedDevice struct {
	nvme.BlockDevice
	onWrite atomic.Pointer[func()]
}

func (d *hookedDevice) Do(reqs []nvme.Request) error {
	for k := range reqs {
		if hook := d.onWrite.Load(); hook != nil && reqs[k].Op == nvme.OpWrite {
			(*hook)()
			break
		}
	}
	return d.BlockDevice.Do(reqs)
}

// TestTruncateDuringWriteBack truncates a file while write-back is between two
// transactions, and cuts the power there: no block may lie beyond the logged
// size, or it would show up when the file grows again.
func TestTruncateDuringWriteBack(t *testing.T) {
	const sizeBytes, blocks, newSize = 16 << 20, 4 * maxRuns, 100
	e := newEnv(t, sizeBytes)
	e.must(e.fs.Close())
	d := &hookedDevice{BlockDevice: e.dev}
	e.dev = d
	e.mount()
	root := e.fs.Root()
	defer root.DecRef()
	f := e.create(root, "f", ModeRegular|0o644)
	defer f.DecRef()
	for k := range blocks { // each needs an extent of its own
		e.write(f, int64(1+2*k)*BlockSizeBytes, pattern(byte(k), BlockSizeBytes), 0)
	}
	cut, err := soft.NewMemory(sizeBytes)
	e.must(err)
	defer cut.Close()
	truncated := make(chan error, 1)
	second := func() {
		d.onWrite.Store(nil)
		e.must(e.fs.store.Commit(e.fs.store.LastLSN()))
		copyDevice(t, cut, d)
	}
	first := func() {
		d.onWrite.Store(&second)
		go func() { truncated <- f.Truncate(newSize) }()
		for f.Size() != newSize {
			runtime.Gosched()
		}
	}
	d.onWrite.Store(&first)
	e.must(f.writeBackAll())
	e.must(<-truncated)
	e.must(checkVolume(cut))
	e.must(e.fs.Sync(nil))
	e.expect(f, 0, make([]byte, newSize), 0)
	e.must(checkVolume(d))
}

// copyDevice makes dst, which is of the same size, show what src does.
func copyDevice(t *testing.T, dst, src nvme.BlockDevice) {
	t.Helper()
	const pages = 64
	from, err := src.Arena().Alloc(pages)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Arena().Free(from)
	to, err := dst.Arena().Alloc(pages)
	if err != nil {
		t.Fatal(err)
	}
	defer dst.Arena().Free(to)
	for off := int64(0); off < src.Geometry().SizeBytes(); off += int64(len(from)) {
		req := []nvme.Request{{Op: nvme.OpRead, OffsetBytes: off, Vec: [][]byte{from}}}
		if err := src.Do(req); err != nil {
			t.Fatal(err)
		}
		copy(to, from)
		req[0].Op, req[0].Vec[0] = nvme.OpWrite, to
		if err := dst.Do(req); err != nil {
			t.Fatal(err)
		}
	}
}
