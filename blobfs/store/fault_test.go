package store

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"runsc-fs/blobfs/format"
	"runsc-fs/nvme"
)

var errInjected = errors.New("injected fault")

// TestFaults makes one device operation fail, each in turn, or all from it on.
func TestFaults(t *testing.T) {
	sticky, transient := 0, 0
	for n := range 60 {
		for _, forever := range []bool{false, true} {
			failed := faultRun(t, n*5, forever)
			if failed {
				sticky++
			} else {
				transient++
			}
		}
	}
	if sticky == 0 || transient == 0 {
		t.Errorf("%d faults made the store read-only, %d did not", sticky, transient)
	}
}

func faultRun(t *testing.T, n int, forever bool) (failed bool) {
	t.Helper()
	at := fmt.Sprintf("fault at operation %d, forever %v", n, forever)
	rig := newCrashRig(t, 7, 8<<20, true)
	rig.dev.hook = nil
	rig.s.maxResident = 10
	if err := rig.run(40); err != nil {
		t.Fatal(err)
	}
	ops := 0
	rig.dev.fail = func(r *nvme.Request) error {
		ops++
		if ops-1 == n || forever && ops > n {
			return errInjected
		}
		return nil
	}
	for range 120 {
		rig.faultStep(t, at)
	}
	rig.dev.fail = nil
	failed = rig.s.failure() != nil

	// Reading goes on and shows all completed transactions.
	if err := compareModel(rig.s, rig.history[len(rig.history)-1]); err != nil {
		t.Fatalf("%s: %v", at, err)
	}
	if failed {
		_, err := rig.s.Update(func(tx *Tx) error { return nil })
		if !errors.Is(err, ErrReadOnly) || !errors.Is(err, errInjected) {
			t.Fatalf("%s: update on a failed store: %v", at, err)
		}
		if err := rig.s.Commit(rig.s.LastLSN()); !errors.Is(err, errInjected) {
			t.Fatalf("%s: commit on a failed store: %v", at, err)
		}
	} else if err := rig.s.Verify(); err != nil {
		t.Fatalf("%s: %v", at, err)
	}
	image := rig.dev.crash(t, rig.crash)
	if _, err := rig.recovered(image, rig.acked, Options{}); err != nil {
		t.Fatalf("%s: after recovery: %v", at, err)
	}
	if err := rig.s.Close(); failed != (err != nil) {
		t.Fatalf("%s: close: %v", at, err)
	}
	return failed
}

// faultStep does one step, of which any part may fail.
func (rig *crashRig) faultStep(t *testing.T, at string) {
	t.Helper()
	var lsn LSN
	var err error
	if rig.rnd.IntN(3) == 0 {
		lsn, err = rig.file(rig.rnd, 1000+uint64(rig.rnd.IntN(rig.files)))
	} else {
		lsn, err = rig.items(rig.rnd, 0, 60)
	}
	if err == nil && rig.rnd.IntN(6) == 0 {
		if err = rig.s.Commit(lsn); err == nil {
			rig.ack(lsn)
		}
	}
	if err == nil && rig.rnd.IntN(40) == 0 {
		err = rig.s.Checkpoint()
	}
	if err != nil && !errors.Is(err, errInjected) && !errors.Is(err, ErrNoSpace) {
		t.Fatalf("%s: %v", at, err)
	}
}

// TestBadBitmap shows that a bitmap that cannot be read costs its group, not
// the volume.
func TestBadBitmap(t *testing.T) {
	dev := newTestDevice(t, 300<<20, true) // three groups
	formatTest(t, dev)
	s := openTest(t, dev, Options{})
	goal := format.GroupStart(1) + 100
	run, err := s.Allocate(10, goal, false)
	if err != nil || run.Start != goal {
		t.Fatalf("allocated %v near %v: %v", run, goal, err)
	}
	k := format.Key{Object: 5, Kind: format.KindExtent}
	if _, err := s.Update(func(tx *Tx) error {
		return errors.Join(tx.Claim(run), tx.Put(k, format.ExtentItem{Start: run.Start, Blocks: 10}.Append(nil)))
	}); err != nil {
		t.Fatal(err)
	}
	closeTest(t, s)
	for slot := range 2 {
		dev.setBlock(format.BitmapAddr(1, slot), make([]byte, format.BlockSizeBytes))
	}

	s = openTest(t, dev, Options{})
	for i := range 3 {
		run, err := s.Allocate(10, goal, false)
		if err != nil {
			t.Fatal(err)
		}
		if g, _ := format.GroupOf(run.Start); g == 1 {
			t.Fatalf("allocated %v in the damaged group", run)
		}
		if _, err := s.Update(func(tx *Tx) error {
			k := format.Key{Object: 10 + uint64(i), Kind: format.KindExtent}
			return errors.Join(tx.Claim(run), tx.Put(k, format.ExtentItem{Start: run.Start, Blocks: 10}.Append(nil)))
		}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.UpdateFreeing(func(tx *Tx) error { return errors.Join(tx.Free(run), tx.Delete(k)) }); err != nil {
		t.Errorf("freeing in the damaged group: %v", err)
	}
	if got := s.Stats().LeakedBlocks; got != 10 {
		t.Errorf("%d blocks leaked, want 10", got)
	}
	closeTest(t, s)
}

// TestBadBitmapInReplay damages a bitmap that the log changes: the group must
// stay out of use, even when the old bitmap can be read again.
func TestBadBitmapInReplay(t *testing.T) {
	dev := newTestDevice(t, 300<<20, true)
	formatTest(t, dev)
	s := openTest(t, dev, Options{})
	goal := format.GroupStart(1) + 100
	claim := func(object uint64) format.Run {
		run, err := s.Allocate(10, goal, false)
		if err != nil {
			t.Fatal(err)
		}
		lsn, err := s.Update(func(tx *Tx) error {
			k := format.Key{Object: object, Kind: format.KindExtent}
			return errors.Join(tx.Claim(run), tx.Put(k, format.ExtentItem{Start: run.Start, Blocks: 10}.Append(nil)))
		})
		if err = errors.Join(err, s.Commit(lsn)); err != nil {
			t.Fatal(err)
		}
		return run
	}
	claim(1)
	closeTest(t, s)
	s = openTest(t, dev, Options{})
	second := claim(2)
	var good [2][]byte
	for slot := range good {
		good[slot] = dev.block(format.BitmapAddr(1, slot))
		dev.setBlock(format.BitmapAddr(1, slot), make([]byte, format.BlockSizeBytes))
	}
	s = openTest(t, dev, Options{}) // as after a crash
	closeTest(t, s)
	for slot := range good {
		dev.setBlock(format.BitmapAddr(1, slot), good[slot])
	}
	s = openTest(t, dev, Options{})
	for i := range uint64(3) {
		if run := claim(10 + i); run.Start < second.End() && run.End() > second.Start {
			t.Fatalf("%v were allocated twice", run)
		}
	}
	closeTest(t, s)
}

// TestBadBitmapLeavesNoSpace damages the only bitmap: the lack of space that
// follows is reported as the damage that it is.
func TestBadBitmapLeavesNoSpace(t *testing.T) {
	dev := newTestDevice(t, 16<<20, true)
	formatTest(t, dev)
	s := openTest(t, dev, Options{})
	run, err := s.Allocate(10, format.GroupStart(0), false)
	if err != nil {
		t.Fatal(err)
	}
	lsn, err := s.Update(func(tx *Tx) error {
		k := format.Key{Object: 1, Kind: format.KindExtent}
		return errors.Join(tx.Claim(run), tx.Put(k, format.ExtentItem{Start: run.Start, Blocks: 10}.Append(nil)))
	})
	if err = errors.Join(err, s.Commit(lsn)); err != nil {
		t.Fatal(err)
	}
	for slot := range 2 {
		dev.setBlock(format.BitmapAddr(0, slot), make([]byte, format.BlockSizeBytes))
	}
	_, err = Open(dev, Options{}) // as after a crash
	if !errors.Is(err, format.ErrCorrupt) || !strings.Contains(err.Error(), "bitmap of group 0") {
		t.Errorf("error %v, want one that blames the bitmap of group 0", err)
	}
}

// TestReadOnly shows that a read-only store refuses all changes.
func TestReadOnly(t *testing.T) {
	dev := newTestDevice(t, 8<<20, true)
	formatTest(t, dev)
	s := openTest(t, dev, Options{ReadOnly: true})
	defer closeTest(t, s)
	_, err := s.Update(func(tx *Tx) error { return nil })
	for what, err := range map[string]error{
		"update":     err,
		"reserve":    s.Reserve(1),
		"checkpoint": s.Checkpoint(),
		"write":      s.WriteData(nil),
	} {
		if !errors.Is(err, ErrReadOnly) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := s.Commit(s.LastLSN()); err != nil {
		t.Errorf("commit: %v", err)
	}
}

// TestDataRange shows that data requests cannot reach the store's own blocks.
func TestDataRange(t *testing.T) {
	dev := newTestDevice(t, 300<<20, true)
	formatTest(t, dev)
	s := openTest(t, dev, Options{})
	defer closeTest(t, s)
	buf, err := dev.Arena().Alloc(4)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Arena().Free(buf)
	first := s.sb.LogStart + format.Addr(s.sb.LogBlocks)
	for addr, ok := range map[format.Addr]bool{
		0: false, 4: false, format.BitmapAddr(0, 0): false, s.sb.LogStart: false, first - 4: false, first: true,
		format.BitmapAddr(1, 0) - 4: true, format.BitmapAddr(1, 0) - 3: false, format.BitmapAddr(1, 1): false, format.BitmapAddr(1, 1) + 1: true,
		format.Addr(s.VolumeBlocks()) - 4: true, format.Addr(s.VolumeBlocks()) - 3: false, 1 << 50: false,
	} {
		for _, op := range []nvme.Op{nvme.OpRead, nvme.OpWrite} {
			reqs := []nvme.Request{{Op: op, OffsetBytes: addr.OffsetBytes(), Vec: [][]byte{buf}}}
			do := s.ReadData
			if op == nvme.OpWrite {
				do = s.WriteData
			}
			if err := do(reqs); ok != (err == nil) || !ok && !errors.Is(err, ErrBadRange) {
				t.Errorf("operation %d at block %v: %v", op, addr, err)
			}
		}
	}
	if err := s.ReadData([]nvme.Request{{Op: nvme.OpFlush}}); !errors.Is(err, ErrBadRange) {
		t.Errorf("flush as data: %v", err)
	}
	if err := s.WriteData([]nvme.Request{{Op: nvme.OpWriteZeroes, OffsetBytes: 1 << 25, LengthBytes: -4096}}); !errors.Is(err, ErrBadRange) {
		t.Errorf("negative length: %v", err)
	}
}

// TestFaultsOnOpen makes each operation of opening fail.
func TestFaultsOnOpen(t *testing.T) {
	rig := newCrashRig(t, 9, 8<<20, true)
	rig.dev.hook = nil
	if err := rig.run(100); err != nil {
		t.Fatal(err)
	}
	rnd := rand.New(rand.NewPCG(1, 9))
	for n := range 60 {
		image := rig.dev.crash(t, rnd)
		ops := 0
		image.fail = func(r *nvme.Request) error {
			if ops++; ops-1 == n {
				return errInjected
			}
			return nil
		}
		free := image.arena.FreePages()
		s, err := Open(image, Options{Now: testNow})
		if err == nil {
			err = s.Close()
		}
		if err != nil && !errors.Is(err, errInjected) {
			t.Fatalf("fault at operation %d: %v", n, err)
		}
		if got := image.arena.FreePages(); got != free {
			t.Fatalf("fault at operation %d: %d pages of the arena are lost", n, free-got)
		}
		image.fail = nil
		if _, err := rig.recovered(image, rig.acked, Options{}); err != nil {
			t.Fatalf("after a fault at operation %d: %v", n, err)
		}
	}
}
