package blobfs

import (
	"math"
	"slices"
	"sync/atomic"
	"testing"

	"runsc-fs/blobfs/format"
	"runsc-fs/nvme"
)

// extents is Extents with addresses and what is behind the last one checked
// and left out.
func (e *env) extents(f *Inode, off, end int64, limit int) (list []Extent, more bool) {
	e.t.Helper()
	list, more, err := f.Extents(off, end, limit)
	e.must(err)
	for n := range list {
		if x := &list[n]; x.Delayed != (x.Address == 0) || x.Address%BlockSizeBytes != 0 {
			e.t.Errorf("extent %+v has no good address", *x)
		}
		list[n].Address = 0
	}
	return list, more
}

func TestExtents(t *testing.T) {
	e := newEnv(t, 32<<20)
	f := e.create(e.fs.Root(), "f", ModeRegular|0o644)
	defer f.DecRef()
	const block = BlockSizeBytes
	want := func(off, end int64, limit int, wantMore bool, want ...Extent) {
		t.Helper()
		if got, more := e.extents(f, off, end, limit); !slices.Equal(got, want) || more != wantMore {
			t.Errorf("[%d, %d), at most %d: %+v, more: %v; not %+v", off, end, limit, got, more, want)
		}
	}
	want(0, math.MaxInt64, 10, false)
	e.write(f, 0, pattern(1, 3*block), 0)
	e.write(f, 8*block, pattern(2, 100), 0)
	want(0, math.MaxInt64, 10, false, Extent{Length: 3 * block, Delayed: true}, Extent{Offset: 8 * block, Length: block, Delayed: true})
	cursor := f.ErrCursor()
	e.must(f.Fsync(&cursor, true))
	e.must(f.Fallocate(FallocKeepSize, 16*block, 4*block))
	e.write(f, 5*block, pattern(3, block), 0) // in memory only
	first, delayed := Extent{Length: 3 * block}, Extent{Offset: 5 * block, Length: block, Delayed: true}
	tail, unwritten := Extent{Offset: 8 * block, Length: block}, Extent{Offset: 16 * block, Length: 4 * block, Unwritten: true}
	want(0, math.MaxInt64, 10, false, first, delayed, tail, unwritten)
	want(0, math.MaxInt64, 4, false, first, delayed, tail, unwritten)
	want(0, math.MaxInt64, 2, true, first, delayed)
	want(block, 2*block, 10, true, Extent{Offset: block, Length: block})
	want(6*block, 9*block, 10, true, tail)
	want(17*block, 1<<40, 10, false, Extent{Offset: 17 * block, Length: 3 * block, Unwritten: true})
	want(20*block, 1<<40, 10, false)
	// Many extents do not fit what is read from the tree at a time.
	for n := range int64(600) {
		e.write(f, (100+2*n)*block, pattern(4, block), 0)
	}
	e.must(f.Fsync(&cursor, true))
	if list, more := e.extents(f, 100*block, math.MaxInt64, 1000); len(list) != 600 || more {
		t.Errorf("%d extents, more: %v", len(list), more)
	}
}

// trimCounter counts what is deallocated and checks that nothing of it is in use.
type trimCounter struct {
	nvme.BlockDevice
	blocks, longest atomic.Int64
	during          func()
}

func (d *trimCounter) Do(reqs []nvme.Request) error {
	for n := range reqs {
		if r := &reqs[n]; r.Op == nvme.OpDeallocate {
			d.blocks.Add(r.LengthBytes / BlockSizeBytes)
			d.longest.Store(max(d.longest.Load(), r.LengthBytes/BlockSizeBytes))
			if d.during != nil {
				d.during()
			}
		}
	}
	return d.BlockDevice.Do(reqs)
}

// TestTrim deallocates what is free, and nothing else.
func TestTrim(t *testing.T) {
	e := newEnv(t, 200<<20)
	e.must(e.fs.Close())
	dev := &trimCounter{BlockDevice: e.dev}
	e.dev = dev
	e.mount()
	root := e.fs.Root()
	defer root.DecRef()
	data := pattern(7, 1<<20)
	f := e.create(root, "f", ModeRegular|0o644)
	for off := int64(0); off < 20<<20; off += 2 << 20 {
		e.write(f, off, data, 0)
	}
	gone := e.create(root, "gone", ModeRegular|0o644)
	e.write(gone, 0, data, 0)
	var cursor ErrCursor
	e.must(e.fs.Sync(&cursor))
	e.must(root.Unlink("gone", gone))
	gone.DecRef()

	trimmed, err := e.fs.Trim(0, math.MaxUint64, 0)
	e.must(err)
	free := e.fs.StatFS().FreeBlocks
	if got := dev.blocks.Load(); got*BlockSizeBytes != int64(trimmed) || got > free || got < free*9/10 {
		t.Errorf("trimmed %d bytes, %d blocks of them, of %d free blocks", trimmed, got, free)
	}
	if got := dev.longest.Load(); got > 2048 {
		t.Errorf("one step of %d blocks", got)
	}
	for off := int64(0); off < 20<<20; off += 2 << 20 {
		e.expect(f, off, data, IODirect)
	}
	f.DecRef()

	dev.blocks.Store(0)
	trimmed, err = e.fs.Trim(0, math.MaxUint64, format.GroupBlocks*BlockSizeBytes)
	e.must(err)
	if trimmed != 0 {
		t.Errorf("%d bytes in runs longer than there can be", trimmed)
	}
	trimmed, err = e.fs.Trim(100<<20, 10<<20, 0)
	e.must(err)
	if trimmed == 0 || trimmed > 10<<20 {
		t.Errorf("trimmed %d bytes of a range of 10 MiB", trimmed)
	}
	e.must(e.fs.store.Verify())
}

// TestTrimTakesNoSpace writes until the volume is full while it is being trimmed.
func TestTrimTakesNoSpace(t *testing.T) {
	e := newEnv(t, 24<<20)
	e.must(e.fs.Close())
	dev := &trimCounter{BlockDevice: e.dev}
	e.dev = dev
	e.mount()
	root := e.fs.Root()
	defer root.DecRef()
	before := e.fs.StatFS().AvailableBlocks
	f := e.create(root, "f", ModeRegular|0o644)
	defer f.DecRef()
	dev.during = func() {
		dev.during = nil
		e.must(f.Fallocate(0, 0, before*BlockSizeBytes*3/4))
	}
	_, err := e.fs.Trim(0, math.MaxUint64, 0)
	e.must(err)
	if dev.during != nil {
		t.Fatal("nothing was trimmed")
	}
	e.must(e.fs.store.Verify())
}
