package store

import (
	"math/rand/v2"
	"testing"

	"runsc-fs/blobfs/format"
	"runsc-fs/nvme"
	"runsc-fs/nvme/soft"
)

// TestLargeVolume uses a sparse volume of 4 TiB behind the software controller:
// what opening it reads must not depend on its size.
func TestLargeVolume(t *testing.T) {
	dev, err := soft.NewMemory(4 << 40)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	formatTest(t, dev)
	s := openTest(t, dev, Options{})
	rnd := rand.New(rand.NewPCG(1, 1))
	var runs []format.Run
	for i := range uint64(100) {
		goal := format.Addr(rnd.Uint64N(s.VolumeBlocks()))
		run, err := s.Allocate(1000, goal, false)
		if err != nil {
			t.Fatal(err)
		}
		runs = append(runs, run)
		if _, err := s.Update(func(tx *Tx) error {
			if err := tx.Claim(run); err != nil {
				return err
			}
			return tx.Put(format.Key{Object: 100 + i, Kind: format.KindExtent}, format.ExtentItem{Start: run.Start, Blocks: uint32(run.Blocks)}.Append(nil))
		}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Commit(s.LastLSN()); err != nil {
		t.Fatal(err)
	}
	if err := s.Checkpoint(); err != nil {
		t.Fatal(err)
	}
	full := s.StatFS()
	closeTest(t, s)

	s = openTest(t, dev, Options{})
	defer closeTest(t, s)
	if reads := s.Stats().NodeReads; reads > 20 {
		t.Errorf("opening read %d nodes", reads)
	}
	if s.alloc.loaded > 3 {
		t.Errorf("opening loaded %d bitmaps", s.alloc.loaded)
	}
	if got := s.StatFS(); got.FreeBlocks != full.FreeBlocks {
		t.Errorf("%d blocks free after opening, %d before", got.FreeBlocks, full.FreeBlocks)
	}
	buf, err := dev.Arena().Alloc(8)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Arena().Free(buf)
	for i, run := range runs {
		buf[0] = byte(i)
		req := []nvme.Request{{Op: nvme.OpWrite, OffsetBytes: run.Start.OffsetBytes(), Vec: [][]byte{buf}}}
		if err := s.WriteData(req); err != nil {
			t.Fatal(err)
		}
	}
	for i, run := range runs {
		req := []nvme.Request{{Op: nvme.OpRead, OffsetBytes: run.Start.OffsetBytes(), Vec: [][]byte{buf}}}
		if err := s.ReadData(req); err != nil || buf[0] != byte(i) {
			t.Fatalf("%v holds %d, want %d: %v", run, buf[0], i, err)
		}
	}
	// Bitmaps that can be read again are dropped when there are many.
	s.maxGroups = 8
	for i, run := range runs {
		if _, err := s.UpdateFreeing(func(tx *Tx) error {
			if err := tx.Free(run); err != nil {
				return err
			}
			return tx.Delete(format.Key{Object: 100 + uint64(i), Kind: format.KindExtent})
		}); err != nil {
			t.Fatal(err)
		}
		if i%10 == 9 {
			if err := s.Checkpoint(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if s.alloc.loaded > 20 {
		t.Errorf("%d bitmaps in memory, the bound is %d", s.alloc.loaded, s.maxGroups)
	}
}
