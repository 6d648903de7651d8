package store

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"runsc-fs/blobfs/format"
	"runsc-fs/nvme"
)

// crashRig runs transactions on a device and, after its writes and flushes,
// checks what power cuts at that point may leave.
type crashRig struct {
	t     testing.TB
	dev   *testDevice
	s     *Store
	rnd   *rand.Rand // of the workload
	crash *rand.Rand // of the cuts
	every int        // check one device operation in so many
	cuts  int        // images to check at each
	big   bool       // large values, to fill the log
	files int        // number of objects with data
	opts  Options

	stamps atomic.Uint64 // of data writes; stands in the extent's Birth

	mu      sync.Mutex
	history []model // history[lsn] is the state after transaction lsn
	acked   LSN     // last transaction that was acknowledged as durable
	states  int     // images checked
	err     error   // first violation
	full    int     // steps that found no space

	discarded uint64 // blocks
	commit    bool   // a Commit is in progress (single-threaded workloads)
}

func newCrashRig(t testing.TB, seed uint64, sizeBytes int64, volatileCache bool) *crashRig {
	rig := &crashRig{
		t: t, rnd: rand.New(rand.NewPCG(seed, 2)), crash: rand.New(rand.NewPCG(seed, 3)), every: 1, cuts: 2, files: 30,
		history: []model{{}},
	}
	rig.dev = newTestDevice(t, sizeBytes, volatileCache)
	formatTest(t, rig.dev)
	rig.opts = Options{NodeCacheBytes: 1 << 20, Now: testNow}
	rig.s = openTest(t, rig.dev, rig.opts)
	rig.s.inline = true
	t.Cleanup(func() { rig.s.Close() })
	rig.dev.hook = rig.cut
	return rig
}

func (rig *crashRig) fail(err error) {
	rig.mu.Lock()
	defer rig.mu.Unlock()
	if rig.err == nil {
		rig.err = err
	}
}

func (rig *crashRig) failed() error {
	rig.mu.Lock()
	defer rig.mu.Unlock()
	return rig.err
}

// cut is called after each device operation.
func (rig *crashRig) cut() {
	rig.mu.Lock()
	if rig.err != nil || rig.crash.IntN(rig.every) != 0 {
		rig.mu.Unlock()
		return
	}
	// The acknowledged transaction is read before the image is taken, the
	// history is read after it.
	acked := rig.acked
	var images []*testDevice
	var seeds []uint64
	for range rig.cuts {
		seed := rig.crash.Uint64()
		images = append(images, rig.dev.crash(rig.t, rand.New(rand.NewPCG(seed, 4))))
		seeds = append(seeds, seed)
	}
	rig.states += len(images)
	rig.mu.Unlock()
	for i, image := range images {
		if err := rig.check(image, acked, seeds[i]); err != nil {
			rig.fail(fmt.Errorf("image %d of the run: %w", rig.states, err))
			return
		}
	}
}

// check recovers an image three ways: reading only, writing, and writing with
// another power cut on the way.
func (rig *crashRig) check(image *testDevice, acked LSN, seed uint64) error {
	rnd := rand.New(rand.NewPCG(seed, 5))
	again := image.clone(rig.t)
	again.geometry.VolatileWriteCache = rig.dev.geometry.VolatileWriteCache

	before := image.writes
	ro, err := rig.recovered(image, acked, Options{ReadOnly: true})
	if err != nil {
		return fmt.Errorf("read-only: %w", err)
	}
	if image.writes != before || image.flushes != 0 {
		return errors.New("a read-only store wrote")
	}
	rw, err := rig.recovered(image, acked, Options{})
	if err != nil {
		return fmt.Errorf("read-write: %w", err)
	}
	if ro != rw {
		return fmt.Errorf("read-only found transaction %d, read-write %d", ro, rw)
	}
	stop := 1 + rnd.IntN(6)
	var second *testDevice
	again.hook = func() {
		if stop--; stop == 0 {
			second = again.crash(rig.t, rnd)
		}
	}
	if _, err := rig.recovered(again, acked, Options{}); err != nil {
		return fmt.Errorf("read-write again: %w", err)
	}
	if second != nil {
		l, err := rig.recovered(second, acked, Options{})
		// The write that recovered stores are tested with may be there.
		if err != nil && l <= rw {
			return fmt.Errorf("after a second cut: %w", err)
		}
	}
	return nil
}

// recovered opens an image, checks everything and tries a transaction. It
// returns the last transaction that the image contains.
func (rig *crashRig) recovered(image *testDevice, acked LSN, opts Options) (LSN, error) {
	opts.Now = testNow
	opts.NodeCacheBytes = 1 << 20
	s, err := Open(image, opts)
	if err != nil {
		return 0, err
	}
	lsn := s.LastLSN()
	err = rig.checkState(s, image, acked, lsn)
	if err == nil && !opts.ReadOnly {
		err = tryTransaction(s)
	}
	return lsn, errors.Join(err, s.Close())
}

func (rig *crashRig) checkState(s *Store, image *testDevice, acked, lsn LSN) error {
	if lsn < acked {
		return fmt.Errorf("transaction %d was acknowledged, only %d are there", acked, lsn)
	}
	if err := s.Verify(); err != nil {
		return err
	}
	rig.mu.Lock()
	var want model
	if int(lsn) < len(rig.history) {
		want = rig.history[lsn]
	}
	rig.mu.Unlock()
	if want == nil {
		return fmt.Errorf("transaction %d never happened", lsn)
	}
	if err := compareModel(s, want); err != nil {
		return fmt.Errorf("transaction %d: %w", lsn, err)
	}
	for k, v := range want {
		if k.Kind != format.KindExtent {
			continue
		}
		e, err := format.DecodeExtentItem(k, []byte(v), s.VolumeBlocks())
		if err != nil {
			return err
		}
		for i := range e.Blocks {
			b := image.block(e.Start + format.Addr(i))
			for at := 0; at < len(b); at += sectorBytes {
				if got := binary.LittleEndian.Uint64(b[at:]); got != e.Birth {
					return fmt.Errorf("transaction %d: block %v of %v holds data of write %d, not %d", lsn, e.Start+format.Addr(i), k, got, e.Birth)
				}
			}
		}
	}
	return nil
}

// tryTransaction shows that a recovered store can be changed.
func tryTransaction(s *Store) error {
	lsn, err := s.UpdateFreeing(func(tx *Tx) error { return tx.Put(format.Key{Object: 1 << 40}, []byte("recovered")) })
	if err != nil {
		return err
	}
	if err := s.Commit(lsn); err != nil {
		return err
	}
	if _, err := s.UpdateFreeing(func(tx *Tx) error { return tx.Delete(format.Key{Object: 1 << 40}) }); err != nil {
		return err
	}
	return s.Verify()
}

// update runs a transaction on the store and on the latest state of the model,
// which together grow by one state.
func (rig *crashRig) update(fn func(tx *Tx, m model) error) (LSN, error) {
	return rig.s.UpdateFreeing(func(tx *Tx) error {
		rig.mu.Lock()
		m := maps.Clone(rig.history[len(rig.history)-1])
		rig.mu.Unlock()
		if err := fn(tx, m); err != nil {
			return err
		}
		rig.mu.Lock()
		rig.history = append(rig.history, m)
		rig.mu.Unlock()
		return nil
	})
}

func (rig *crashRig) ack(lsn LSN) {
	rig.mu.Lock()
	rig.acked = max(rig.acked, lsn)
	rig.mu.Unlock()
}

// items changes some items of objects in [from, from+n).
func (rig *crashRig) items(rnd *rand.Rand, from uint64, n int) (LSN, error) {
	return rig.update(func(tx *Tx, m model) error {
		for range 1 + rnd.IntN(12) {
			k := randKey(rnd, n)
			k.Object += from
			if _, ok := m[k]; ok && rnd.IntN(2) == 0 {
				if err := tx.Delete(k); err != nil {
					return err
				}
				delete(m, k)
				continue
			}
			v := randValue(rnd)
			if rig.big || rnd.IntN(4) == 0 {
				v = make([]byte, format.MaxValueBytes)
			}
			if err := tx.Put(k, v); err != nil {
				return err
			}
			m[k] = string(v)
		}
		return nil
	})
}

// file replaces the data of an object: new blocks are written, then claimed by
// the transaction that frees the old ones.
func (rig *crashRig) file(rnd *rand.Rand, object uint64) (LSN, error) {
	run, err := rig.s.Allocate(1+int64(rnd.IntN(12)), 0, false)
	if err != nil {
		return 0, err
	}
	stamp := rig.stamps.Add(1)
	if err := rig.writeRun(run, stamp); err != nil {
		return 0, errors.Join(err, rig.s.Release(run))
	}
	k := format.Key{Object: object, Kind: format.KindExtent}
	lsn, err := rig.update(func(tx *Tx, m model) error {
		if old, ok := m[k]; ok {
			e, err := format.DecodeExtentItem(k, []byte(old), rig.s.VolumeBlocks())
			if err != nil {
				return err
			}
			if err := tx.Free(e.Run()); err != nil {
				return err
			}
		}
		if err := tx.Claim(run); err != nil {
			return err
		}
		v := format.ExtentItem{Start: run.Start, Blocks: uint32(run.Blocks), Birth: stamp}.Append(nil)
		m[k] = string(v)
		return tx.Put(k, v)
	})
	if err != nil {
		err = errors.Join(err, rig.s.Release(run))
	}
	return lsn, err
}

// writeRun fills a run with sectors that begin with a stamp.
func (rig *crashRig) writeRun(run format.Run, stamp uint64) error {
	buf, err := rig.dev.Arena().Alloc(int(run.Blocks))
	if err != nil {
		return err
	}
	defer rig.dev.Arena().Free(buf)
	for at := 0; at < len(buf); at += sectorBytes {
		binary.LittleEndian.PutUint64(buf[at:], stamp)
	}
	return rig.s.WriteData([]nvme.Request{{Op: nvme.OpWrite, OffsetBytes: run.Start.OffsetBytes(), Vec: [][]byte{buf}}})
}

// run does a seeded sequence of steps in one goroutine until a check fails.
func (rig *crashRig) run(steps int) error {
	rnd := rig.rnd
	for range steps {
		var lsn LSN
		var err error
		if rnd.IntN(3) == 0 {
			lsn, err = rig.file(rnd, 1000+uint64(rnd.IntN(rig.files)))
		} else {
			lsn, err = rig.items(rnd, 0, 60)
		}
		if errors.Is(err, ErrNoSpace) {
			rig.full++
			continue
		}
		if err != nil {
			return err
		}
		switch rnd.IntN(12) {
		case 0, 1, 2:
			rig.commit = true
			if err = rig.s.Commit(lsn); err == nil {
				rig.ack(lsn)
			}
			rig.commit = false
		case 3:
			if rnd.IntN(4) == 0 {
				last := rig.s.LastLSN()
				if err = rig.s.Checkpoint(); err == nil {
					rig.ack(last)
				}
			}
		case 5, 6:
			if rig.opts.Discard {
				if lsn, err = rig.s.LastLSN(), nil; rnd.IntN(2) == 0 {
					err = rig.s.Commit(lsn)
				}
				n, discardErr := rig.s.Discard()
				rig.discarded += n
				err = errors.Join(err, discardErr)
			}
		case 4:
			if rnd.IntN(8) == 0 {
				last := rig.s.LastLSN()
				if err = rig.s.Close(); err != nil {
					return err
				}
				rig.ack(last)
				if rig.s, err = Open(rig.dev, rig.opts); err == nil {
					rig.s.inline = true
				}
			}
		}
		if err != nil {
			return err
		}
		if err := rig.failed(); err != nil {
			return err
		}
	}
	return rig.s.Verify()
}

// crashSeeds returns n seeds. A failure is replayed with CRASH_SEED=seed go test
// -run TestCrash, and CRASH_SEEDS=n explores n times as many.
func crashSeeds(t testing.TB, n uint64) []uint64 {
	number := func(name string, or uint64) uint64 {
		v, err := strconv.ParseUint(cmp.Or(os.Getenv(name), fmt.Sprint(or)), 10, 64)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return v
	}
	if os.Getenv("CRASH_SEED") != "" {
		return []uint64{number("CRASH_SEED", 0)}
	}
	seeds := make([]uint64, n*number("CRASH_SEEDS", 1))
	for i := range seeds {
		seeds[i] = uint64(i)
	}
	return seeds
}

func TestCrash(t *testing.T) {
	for _, seed := range crashSeeds(t, 2) {
		for _, volatileCache := range []bool{true, false} {
			t.Run(fmt.Sprintf("%d/cache=%v", seed, volatileCache), func(t *testing.T) {
				rig := newCrashRig(t, seed, 8<<20, volatileCache)
				rig.every = 3
				if err := rig.run(250); err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
				t.Logf("%d transactions, %d images, %+v", len(rig.history)-1, rig.states, rig.s.Stats())
			})
		}
	}
}

// TestCrashFull works on a volume that is full most of the time, where every
// block that is freed is used again at once.
func TestCrashFull(t *testing.T) {
	for _, seed := range crashSeeds(t, 1) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rig := newCrashRig(t, seed, 8<<20, true)
			rig.every, rig.cuts, rig.files = 30, 1, 400
			if err := rig.run(2500); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			if rig.full < 100 {
				t.Errorf("the volume was full only %d times", rig.full)
			}
			t.Logf("%d transactions, %d images, full %d times, %+v", len(rig.history)-1, rig.states, rig.full, rig.s.StatFS())
		})
	}
}

// TestCrashLogWrap goes round the log several times.
func TestCrashLogWrap(t *testing.T) {
	for _, seed := range crashSeeds(t, 1) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rig := newCrashRig(t, seed, 16<<20, true)
			rig.every, rig.cuts, rig.big = 25, 1, true
			if err := rig.run(1500); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			end := rig.s.log.mark(0)
			t.Logf("%d transactions, %d images, log record %d at block %d", len(rig.history)-1, rig.states, end.seq, end.pos)
		})
	}
}

// TestCrashConcurrent has several writers that commit at the same time.
func TestCrashConcurrent(t *testing.T) {
	for _, seed := range crashSeeds(t, 1) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rig := newCrashRig(t, seed, 8<<20, true)
			rig.every, rig.cuts = 12, 1
			rig.s.inline = false
			rig.s.dirtySoft = 20
			var wg sync.WaitGroup
			for w := range uint64(4) {
				rnd := rand.New(rand.NewPCG(seed, 100+w))
				wg.Go(func() {
					if err := rig.writer(rnd, w); err != nil {
						rig.fail(err)
					}
				})
			}
			wg.Wait()
			if err := errors.Join(rig.failed(), rig.s.Verify()); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			t.Logf("%d transactions, %d images, %+v", len(rig.history)-1, rig.states, rig.s.Stats())
		})
	}
}

// writer is one of several writers, each with objects of its own.
func (rig *crashRig) writer(rnd *rand.Rand, w uint64) error {
	for i := range 150 {
		var lsn LSN
		var err error
		if rnd.IntN(3) == 0 {
			lsn, err = rig.file(rnd, 1000+w*100+uint64(rnd.IntN(10)))
		} else {
			lsn, err = rig.items(rnd, w*100, 20)
		}
		if errors.Is(err, ErrNoSpace) {
			continue
		}
		if err == nil && rnd.IntN(3) == 0 {
			if err = rig.s.Commit(lsn); err == nil {
				rig.ack(lsn)
			}
		}
		if err == nil && w == 0 && i%50 == 49 {
			err = rig.s.Checkpoint()
		}
		if err = errors.Join(err, rig.failed()); err != nil {
			return err
		}
	}
	return nil
}

// TestCrashCanary shows that the rig notices a device, and so a store, that
// leaves out what durability needs.
func TestCrashCanary(t *testing.T) {
	for name, spoil := range map[string]func(rig *crashRig){
		"no flush before the log record":  func(rig *crashRig) { rig.dev.dropFlush = func() bool { return rig.commit } },
		"no flush before the superblock":  func(rig *crashRig) { rig.dev.dropFlush = func() bool { return !rig.commit } },
		"log and superblocks without FUA": func(rig *crashRig) { rig.dev.dropFUA = true },
	} {
		t.Run(name, func(t *testing.T) {
			rig := newCrashRig(t, 1, 8<<20, true)
			rig.cuts = 4
			spoil(rig)
			err := rig.run(2000)
			if err == nil {
				t.Fatal("nothing was noticed")
			}
			t.Log(err)
		})
	}
}
