package store

import (
	"errors"
	"fmt"
	"testing"

	"runsc-fs/blobfs/format"
	"runsc-fs/nvme"
)

// discardAgain reopens the store of a rig with discarding.
func (rig *crashRig) discardAgain(t testing.TB) {
	t.Helper()
	hook := rig.dev.hook
	rig.dev.hook = nil
	closeTest(t, rig.s)
	rig.opts.Discard = true
	rig.s = openTest(t, rig.dev, rig.opts)
	rig.s.inline = true
	rig.dev.hook = hook
}

// TestCrashDiscard discards freed blocks, on a roomy volume and on one that is full
// most of the time; what is in use, before and after a power cut, is never touched.
func TestCrashDiscard(t *testing.T) {
	for name, files := range map[string]int{"roomy": 30, "full": 400} {
		for _, seed := range crashSeeds(t, 1) {
			t.Run(fmt.Sprintf("%s/%d", name, seed), func(t *testing.T) {
				rig := newCrashRig(t, seed, 8<<20, true)
				rig.discardAgain(t)
				rig.every, rig.cuts, rig.files = 3, 1, files
				steps := 400
				if files > 100 {
					rig.every, steps = 20, 2500
				}
				if err := rig.run(steps); err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
				if rig.discarded == 0 {
					t.Error("nothing was discarded")
				}
				t.Logf("%d transactions, %d images, %d blocks discarded, full %d times", len(rig.history)-1, rig.states, rig.discarded, rig.full)
			})
		}
	}
}

// TestDiscard tells the device of exactly what was freed, joined, and not before
// that is durable.
func TestDiscard(t *testing.T) {
	rig := newCrashRig(t, 1, 64<<20, true)
	rig.dev.hook = nil
	rig.discardAgain(t)
	s := rig.s
	var told []format.Run
	rig.dev.before = func(r *nvme.Request) {
		if r.Op == nvme.OpDeallocate {
			told = append(told, format.Run{Start: format.Addr(r.OffsetBytes / 4096), Blocks: uint64(r.LengthBytes / 4096)})
		}
	}
	discard := func(want ...format.Run) {
		t.Helper()
		told = nil
		if _, err := s.Discard(); err != nil {
			t.Fatal(err)
		}
		if fmt.Sprint(told) != fmt.Sprint(want) {
			t.Errorf("discarded %v, not %v", told, want)
		}
		verifyTest(t, s)
	}
	run, err := s.Allocate(100, 0, false)
	if err != nil || run.Blocks != 100 {
		t.Fatal(run, err)
	}
	item := func(r format.Run, n uint64) (format.Key, []byte) {
		return format.Key{Object: n, Kind: format.KindExtent}, format.ExtentItem{Start: r.Start, Blocks: uint32(r.Blocks)}.Append(nil)
	}
	if _, err := s.Update(func(tx *Tx) error {
		err := tx.Claim(run)
		for i := range uint64(10) {
			err = errors.Join(err, tx.Put(item(format.Run{Start: run.Start + format.Addr(10*i), Blocks: 10}, 1000+i)))
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	free := func(parts ...uint64) LSN {
		t.Helper()
		lsn, err := s.Update(func(tx *Tx) error {
			var err error
			for _, i := range parts {
				err = errors.Join(err, tx.Free(format.Run{Start: run.Start + format.Addr(10*i), Blocks: 10}), tx.Delete(format.Key{Object: 1000 + i, Kind: format.KindExtent}))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return lsn
	}
	lsn := free(7, 2, 3)
	before := s.StatFS().FreeBlocks
	discard() // not durable
	if err := s.Commit(lsn); err != nil {
		t.Fatal(err)
	}
	if got := s.StatFS().FreeBlocks; got != before {
		t.Errorf("%d blocks are free while they wait, %d before", got, before)
	}
	discard(format.Run{Start: run.Start + 70, Blocks: 10}, format.Run{Start: run.Start + 20, Blocks: 20})
	discard()

	// A device that refuses is not asked again, and the space is not lost.
	refusal := errors.New("no")
	rig.dev.fail = func(r *nvme.Request) error {
		if r.Op == nvme.OpDeallocate {
			return refusal
		}
		return nil
	}
	if err := s.Commit(free(4)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Discard(); !errors.Is(err, refusal) {
		t.Errorf("the device refused: %v", err)
	}
	rig.dev.fail = nil
	if err := s.Commit(free(5)); err != nil {
		t.Fatal(err)
	}
	discard()
	s.alloc.discard.on = true

	// Who needs the space gets it, and the device is told nothing.
	if err := s.Commit(free(0, 1)); err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = s.Allocate(1000, 0, false)
	}
	if !errors.Is(err, ErrNoSpace) {
		t.Fatal(err)
	}
	if left := s.alloc.discard.blocks; left != 0 {
		t.Errorf("%d blocks wait on a full volume", left)
	}
	discard()
	verifyTest(t, s)
}
