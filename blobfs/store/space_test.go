package store

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"runsc-fs/blobfs/format"
)

// addFile allocates up to blocks for an object and records them; false if the
// volume is full.
func addFile(t testing.TB, s *Store, object uint64, blocks int64) bool {
	t.Helper()
	if err := s.Reserve(blocks); err != nil {
		if !errors.Is(err, ErrNoSpace) {
			t.Fatal(err)
		}
		return false
	}
	// What was reserved must be there, whatever its shape.
	off := uint64(0)
	for left := blocks; left > 0; {
		run, err := s.Allocate(left, 0, true)
		if err != nil {
			t.Fatalf("allocating %d of %d reserved blocks: %v", left, blocks, err)
		}
		_, err = s.UpdateFreeing(func(tx *Tx) error {
			if err := tx.Claim(run); err != nil {
				return err
			}
			return tx.Put(format.Key{Object: object, Kind: format.KindExtent, Offset: off},
				format.ExtentItem{Start: run.Start, Blocks: uint32(run.Blocks)}.Append(nil))
		})
		if err != nil {
			t.Fatal(err)
		}
		left -= int64(run.Blocks)
		off += run.Blocks
	}
	return true
}

// removeFile frees all extents of an object.
func removeFile(t testing.TB, s *Store, object uint64) {
	t.Helper()
	for more := true; more; {
		_, err := s.UpdateFreeing(func(tx *Tx) error {
			more = false
			n := 0
			return tx.Scan(format.Key{Object: object, Kind: format.KindExtent}, format.Key{Object: object, Kind: format.KindExtent, Offset: ^uint64(0)},
				func(k format.Key, v []byte) (bool, error) {
					if n++; n > guaranteedOps/2 {
						more = true
						return false, nil
					}
					e, err := format.DecodeExtentItem(k, v, s.VolumeBlocks())
					if err != nil {
						return false, err
					}
					if err := tx.Free(e.Run()); err != nil {
						return false, err
					}
					return true, tx.Delete(k)
				})
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestFillDeleteFill fills a volume with data and empties it, again and again.
func TestFillDeleteFill(t *testing.T) {
	dev := newTestDevice(t, 8<<20, true)
	formatTest(t, dev)
	s := openTest(t, dev, Options{})
	rnd := rand.New(rand.NewPCG(1, 1))
	empty := s.StatFS()
	var first uint64
	for round := range 12 {
		objects := uint64(0)
		for addFile(t, s, 100+objects, 1+int64(rnd.IntN(20))) {
			objects++
		}
		for addFile(t, s, 100+objects, 1) {
			objects++
		}
		full := s.StatFS()
		if full.AvailBlocks != 0 {
			t.Errorf("round %d: full volume has %d blocks available", round, full.AvailBlocks)
		}
		used := empty.FreeBlocks - full.FreeBlocks
		if round == 0 {
			first = used
		} else if used+used/16 < first {
			t.Errorf("round %d: only %d blocks could be used, %d in the first", round, used, first)
		}
		verifyTest(t, s)
		for _, o := range rnd.Perm(int(objects)) {
			removeFile(t, s, 100+uint64(o))
		}
		if err := s.Checkpoint(); err != nil {
			t.Fatal(err)
		}
		verifyTest(t, s)
		if got := s.StatFS(); got != empty {
			t.Fatalf("round %d: emptied volume has %+v, at first it had %+v", round, got, empty)
		}
	}
	closeTest(t, s)
}

// TestFillWithItems fills a volume with metadata and empties it.
func TestFillWithItems(t *testing.T) {
	dev := newTestDevice(t, 8<<20, true)
	formatTest(t, dev)
	s := openTest(t, dev, Options{})
	s.dirtySoft, s.dirtyHard = 1<<20, 1<<20 // space alone calls for checkpoints
	rnd := rand.New(rand.NewPCG(2, 2))
	value := make([]byte, format.MaxValueBytes)
	for round := range 4 {
		m := model{}
		full := 0
		for full < 20 {
			n := 1 + rnd.IntN(guaranteedOps)
			if round == 3 {
				n = 1 + rnd.IntN(150) // may meet ErrNoSpace half way
			}
			next := model{}
			_, err := s.Update(func(tx *Tx) error {
				for range n {
					k := randKey(rnd, 100000)
					v := value[:rnd.IntN(len(value))]
					if err := tx.Put(k, v); err != nil {
						return fmt.Errorf("operation %d: %w", len(next), err)
					}
					next[k] = string(v)
				}
				return nil
			})
			switch {
			case err == nil:
				for k, v := range next {
					m[k] = v
				}
			case errors.Is(err, ErrNoSpace):
				if len(next) > 0 && n <= guaranteedOps {
					t.Fatalf("%d operations: no space after %d", n, len(next))
				}
				full++
			default:
				t.Fatal(err)
			}
		}
		verifyTest(t, s)
		checkModel(t, s, m)
		if round == 1 {
			closeTest(t, s)
			s = openTest(t, dev, Options{})
			checkModel(t, s, m)
		}
		for _, k := range m.sorted() {
			if _, err := s.UpdateFreeing(func(tx *Tx) error { return tx.Delete(k) }); err != nil {
				t.Fatalf("deleting on a full volume: %v", err)
			}
		}
		verifyTest(t, s)
		checkModel(t, s, model{})
	}
	closeTest(t, s)
}

// TestReserveIsExact reserves all there is, block by block, and uses it in the
// most fragmented way.
func TestReserveIsExact(t *testing.T) {
	dev := newTestDevice(t, 8<<20, true)
	formatTest(t, dev)
	s := openTest(t, dev, Options{})
	reserved := int64(0)
	for {
		err := s.Reserve(1)
		if errors.Is(err, ErrNoSpace) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		reserved++
	}
	if _, err := s.Allocate(1, 0, false); !errors.Is(err, ErrNoSpace) {
		t.Errorf("allocated what is reserved: %v", err)
	}
	// Ordinary transactions cannot eat it either.
	for i := 0; ; i++ {
		_, err := s.Update(func(tx *Tx) error {
			return tx.Put(format.Key{Object: 1, Kind: format.KindXattr, Offset: uint64(i)}, make([]byte, 1000))
		})
		if errors.Is(err, ErrNoSpace) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	var runs []format.Run
	for i := range uint64(reserved) {
		run, err := s.Allocate(1, 0, true)
		if err != nil {
			t.Fatalf("block %d of %d reserved: %v", i, reserved, err)
		}
		runs = append(runs, run)
		if _, err := s.UpdateFreeing(func(tx *Tx) error {
			if err := tx.Claim(run); err != nil {
				return err
			}
			return tx.Put(format.Key{Object: 1000 + i*7919%100000, Kind: format.KindExtent}, format.ExtentItem{Start: run.Start, Blocks: 1}.Append(nil))
		}); err != nil {
			t.Fatal(err)
		}
	}
	verifyTest(t, s)
	if st := s.StatFS(); st.ReservedBlocks != 0 {
		t.Errorf("%d blocks are still reserved", st.ReservedBlocks)
	}
	if err := s.Release(runs[0]); !errors.Is(err, ErrBadRun) {
		t.Errorf("released a run that is in use: %v", err)
	}
	closeTest(t, s)
}
