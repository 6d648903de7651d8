package store

import (
	"errors"
	"testing"

	"runsc-fs/blobfs/format"
)

// newGrowRig makes a rig on a device of which the volume takes only the beginning.
func newGrowRig(t testing.TB, seed uint64, volumeBytes, deviceBytes int64) *crashRig {
	rig := newCrashRig(t, seed, deviceBytes, true)
	rig.dev.hook = nil
	closeTest(t, rig.s)
	rig.dev.geometry.Blocks = volumeBytes / sectorBytes
	formatTest(t, rig.dev)
	rig.dev.geometry.Blocks = deviceBytes / sectorBytes
	rig.s = openTest(t, rig.dev, Options{NodeCacheBytes: 1 << 20})
	rig.s.inline = true
	rig.dev.hook = rig.cut
	return rig
}

// TestCrashGrow makes a volume larger several times, within its last group and
// by whole groups, with and without items, while it is full and while it is not.
// The power is cut after each write.
func TestCrashGrow(t *testing.T) {
	const group = format.GroupBlocks * format.BlockSizeBytes
	for name, sizes := range map[string][]int64{
		"in the last group":   {8 << 20, 12<<20 + 4096},
		"over the last group": {8 << 20, group + 100*4096},
		"behind a full group": {group, group + 70*4096},
	} {
		t.Run(name, func(t *testing.T) {
			for _, seed := range crashSeeds(t, 1) {
				rig := newGrowRig(t, seed, sizes[0], sizes[len(sizes)-1]+40*4096)
				rig.files = 400
				rig.cuts = 1
				for _, sizeBytes := range sizes[1:] {
					rig.every = 200
					if err := rig.run(200); err != nil {
						t.Fatalf("seed %d: %v", seed, err)
					}
					rig.every = 1
					last := rig.s.LastLSN()
					if err := rig.growBusy(sizeBytes); err != nil {
						t.Fatal(err)
					}
					rig.ack(last)
					if got, want := rig.s.VolumeBlocks(), format.UsableBlocks(uint64(sizeBytes)/4096); got != want {
						t.Fatalf("%d blocks, not %d", got, want)
					}
					if err := errors.Join(rig.failed(), rig.s.Verify()); err != nil {
						t.Fatalf("seed %d: %v", seed, err)
					}
				}
				if err := rig.run(100); err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
				closeTest(t, rig.s)
				s := openTest(t, rig.dev, Options{})
				if got, want := s.VolumeBlocks(), format.UsableBlocks(uint64(sizes[len(sizes)-1])/4096); got != want {
					t.Fatalf("%d blocks after opening, not %d", got, want)
				}
				verifyTest(t, s)
				t.Logf("%d images", rig.states)
			}
		})
	}
}

// growBusy makes the volume larger while transactions go on that would like to
// have blocks behind its end.
func (rig *crashRig) growBusy(sizeBytes int64) error {
	old := rig.s.VolumeBlocks()
	busy := false
	rig.dev.hook = func() {
		rig.cut()
		if busy {
			return
		}
		busy = true
		defer func() { busy = false }()
		rig.s.alloc.mu.Lock()
		rig.s.alloc.dataGoal = format.Addr(old + 20)
		rig.s.alloc.mu.Unlock()
		lsn, err := rig.file(rig.rnd, 1000+uint64(rig.rnd.IntN(rig.files)))
		if err == nil {
			err = rig.s.Commit(lsn)
		}
		if err == nil {
			rig.ack(lsn)
		} else if !errors.Is(err, ErrNoSpace) {
			rig.fail(err)
		}
	}
	defer func() { rig.dev.hook = rig.cut }()
	return rig.s.Grow(sizeBytes)
}

// TestGrowAnIdleGroup grows a last group that has an item and that nothing else
// changes: the item must say what the group has now.
func TestGrowAnIdleGroup(t *testing.T) {
	const group = format.GroupBlocks * format.BlockSizeBytes
	rig := newGrowRig(t, 1, group+4<<20, 2*group)
	rig.dev.hook = nil
	last := format.Addr(rig.s.VolumeBlocks() - 100)
	run, err := rig.s.Allocate(10, last, false)
	if err != nil || run.Start != last {
		t.Fatalf("allocated %v: %v", run, err)
	}
	if _, err := rig.s.Update(func(tx *Tx) error {
		key := format.Key{Object: 1000, Kind: format.KindExtent}
		return errors.Join(tx.Claim(run), tx.Put(key, format.ExtentItem{Start: run.Start, Blocks: uint32(run.Blocks)}.Append(nil)))
	}); err != nil {
		t.Fatal(err)
	}
	if err := rig.s.Checkpoint(); err != nil {
		t.Fatal(err)
	}
	if err := rig.s.Grow(2*group - 8<<20); err != nil {
		t.Fatal(err)
	}
	closeTest(t, rig.s)
	s := openTest(t, rig.dev, Options{})
	verifyTest(t, s)
}

// TestGrow uses all that a volume has got, and asks for what it cannot get.
func TestGrow(t *testing.T) {
	const group = format.GroupBlocks * format.BlockSizeBytes
	rig := newGrowRig(t, 1, 8<<20, 3*group)
	rig.dev.hook = nil
	s := rig.s
	fill := func() (blocks uint64) {
		for {
			run, err := s.Allocate(1<<20, 0, false)
			if errors.Is(err, ErrNoSpace) {
				return blocks
			}
			if err != nil {
				t.Fatal(err)
			}
			blocks += run.Blocks
		}
	}
	had := fill()
	if err := s.Grow(3*group + 4096); !errors.Is(err, ErrBadRange) {
		t.Fatalf("growing beyond the device: %v", err)
	}
	for _, sizeBytes := range []int64{0, 4 << 20, 8 << 20} { // it never shrinks
		if err := s.Grow(sizeBytes); err != nil || s.VolumeBlocks() != 2048 {
			t.Fatalf("Grow(%d): %v, %d blocks", sizeBytes, err, s.VolumeBlocks())
		}
	}
	before := s.StatFS()
	if err := s.Grow(3 * group); err != nil {
		t.Fatal(err)
	}
	after := s.StatFS()
	more := uint64(3*format.GroupBlocks-2048) - 4 // two bitmaps in each of two groups
	if after.FreeBlocks-before.FreeBlocks != more {
		t.Errorf("%d blocks more are free, not %d", after.FreeBlocks-before.FreeBlocks, more)
	}
	if got := fill(); got < more-100 || got > more {
		t.Errorf("%d blocks were allocated after %d, of %d", got, had, more)
	}
	verifyTest(t, s)
}

// TestGrowNeedsTheLastBitmap leaves a volume alone whose last bitmap is damaged:
// its item could not be brought up to date.
func TestGrowNeedsTheLastBitmap(t *testing.T) {
	rig := newGrowRig(t, 1, 8<<20, 32<<20)
	rig.dev.hook = nil
	closeTest(t, rig.s)
	for slot := range 2 {
		rig.dev.setBlock(format.BitmapAddr(0, slot), make([]byte, format.BlockSizeBytes))
	}
	s, err := Open(rig.dev, Options{Now: testNow})
	if err != nil {
		return // nothing could be placed for the superblock of this life
	}
	defer s.Close()
	if err := s.Grow(32 << 20); !errors.Is(err, format.ErrCorrupt) {
		t.Errorf("growing: %v", err)
	}
}
