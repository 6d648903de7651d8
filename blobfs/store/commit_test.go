package store

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"runsc-fs/blobfs/format"
	"runsc-fs/nvme"
)

// traceOps records what reaches the device, reads aside.
func traceOps(dev *testDevice) func() string {
	var mu sync.Mutex
	var ops []string
	dev.before = func(r *nvme.Request) {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case r.Op == nvme.OpWrite && r.FUA:
			ops = append(ops, "write-fua")
		case r.Op == nvme.OpWrite:
			ops = append(ops, "write")
		case r.Op == nvme.OpFlush:
			ops = append(ops, "flush")
		}
	}
	return func() string {
		mu.Lock()
		defer mu.Unlock()
		defer func() { ops = nil }()
		return strings.Join(ops, " ")
	}
}

// TestCommitCost pins which commands a commit needs, and in which order.
func TestCommitCost(t *testing.T) {
	for _, volatileCache := range []bool{true, false} {
		dev := newTestDevice(t, 8<<20, volatileCache)
		formatTest(t, dev)
		s := openTest(t, dev, Options{})
		buf, err := dev.Arena().Alloc(1)
		if err != nil {
			t.Fatal(err)
		}
		run, err := s.Allocate(1, 0, false)
		if err != nil {
			t.Fatal(err)
		}
		var lsn LSN
		write := func() {
			if err := s.WriteData([]nvme.Request{{Op: nvme.OpWrite, OffsetBytes: run.Start.OffsetBytes(), Vec: [][]byte{buf}}}); err != nil {
				t.Fatal(err)
			}
		}
		update := func() {
			if lsn, err = s.Update(func(tx *Tx) error { return tx.Put(format.Key{Object: 1}, []byte("x")) }); err != nil {
				t.Fatal(err)
			}
		}
		alone := func() {
			if lsn, err = s.Update(func(tx *Tx) error { tx.Independent(); return tx.Put(format.Key{Object: 1}, []byte("x")) }); err != nil {
				t.Fatal(err)
			}
		}
		commit := func() {
			if err := s.Commit(lsn); err != nil {
				t.Fatal(err)
			}
		}
		ops := traceOps(dev)
		for _, step := range []struct {
			name          string
			do            []func()
			cached, plain string
		}{
			{"nothing", []func(){commit}, "", ""},
			{"overwritten data", []func(){write, commit}, "write flush", "write"},
			{"a transaction", []func(){update, commit}, "write-fua", "write"},
			{"two transactions", []func(){update, update, commit}, "write-fua", "write"},
			{"data and a transaction", []func(){write, update, commit}, "write flush write-fua", "write write"},
			{"again", []func(){commit, commit}, "", ""},
			{"data and an independent transaction", []func(){write, alone, commit}, "write write flush", "write write"},
			{"an independent transaction", []func(){alone, commit}, "write-fua", "write"},
			{"data and transactions of both kinds", []func(){write, alone, update, alone, commit}, "write flush write-fua", "write write"},
			{"an independent one after that", []func(){write, alone, commit}, "write write flush", "write write"},
		} {
			for _, f := range step.do {
				f()
			}
			want := step.plain
			if volatileCache {
				want = step.cached
			}
			if got := ops(); got != want {
				t.Errorf("cache %v: commit of %s took %q, want %q", volatileCache, step.name, got, want)
			}
		}
		dev.before = nil
		if err := s.Release(run); err != nil {
			t.Fatal(err)
		}
		dev.Arena().Free(buf)
		closeTest(t, s)
	}
}

// TestGroupCommit holds up one log write: transactions go on meanwhile, and
// all who wait are then served by one more write.
func TestGroupCommit(t *testing.T) {
	dev := newTestDevice(t, 8<<20, true)
	formatTest(t, dev)
	s := openTest(t, dev, Options{})
	defer closeTest(t, s)
	entered, leave := make(chan struct{}, 64), make(chan struct{})
	dev.before = func(r *nvme.Request) {
		if r.Op == nvme.OpWrite {
			entered <- struct{}{}
			<-leave
		}
	}
	put := func(i uint64) LSN {
		lsn, err := s.Update(func(tx *Tx) error { return tx.Put(format.Key{Object: i}, []byte("x")) })
		if err != nil {
			t.Error(err)
		}
		return lsn
	}
	var wg sync.WaitGroup
	commit := func(lsn LSN) {
		wg.Go(func() {
			if err := s.Commit(lsn); err != nil {
				t.Error(err)
			}
		})
	}
	wait := func(what string) {
		select {
		case <-entered:
		case <-time.After(30 * time.Second):
			t.Fatalf("%s never reached the device", what)
		}
	}
	before := s.Stats().LogRecords
	commit(put(1))
	wait("the first record")
	for i := range uint64(20) {
		commit(put(10 + i)) // would not return if the write held the tree
	}
	leave <- struct{}{}
	wait("the second record")
	close(leave)
	wg.Wait()
	if got := s.Stats().LogRecords - before; got != 2 {
		t.Errorf("21 commits took %d records, want 2", got)
	}
}

// TestTxLimits pins what a transaction may hold.
func TestTxLimits(t *testing.T) {
	dev := newTestDevice(t, 64<<20, true)
	formatTest(t, dev)
	s := openTest(t, dev, Options{})
	defer closeTest(t, s)
	put := func(n, size int) error {
		_, err := s.Update(func(tx *Tx) error {
			for i := range n {
				if err := tx.Put(format.Key{Object: 9, Kind: format.KindXattr, Offset: uint64(i)}, make([]byte, size)); err != nil {
					return err
				}
			}
			return nil
		})
		return err
	}
	for _, c := range []struct {
		n, size int
		want    error
	}{
		{1, format.MaxValueBytes, nil}, {1, format.MaxValueBytes + 1, ErrTooBig}, {180, format.MaxValueBytes, nil},
		{200, format.MaxValueBytes, ErrTooBig}, {1000, 0, nil},
	} {
		if err := put(c.n, c.size); err != c.want {
			t.Errorf("%d values of %d bytes: %v, want %v", c.n, c.size, err, c.want)
		}
	}
	verifyTest(t, s)
	for name, key := range map[string]format.Key{"group": format.GroupKey(0), "missing": {Object: 77}} {
		want := ErrNotFound
		if name == "group" {
			want = ErrBadKey
		}
		if _, err := s.Update(func(tx *Tx) error { return tx.Delete(key) }); err != want {
			t.Errorf("deleting %s item: %v, want %v", name, err, want)
		}
	}
	var leaked *Tx
	if _, err := s.Update(func(tx *Tx) error { leaked = tx; return nil }); err != nil {
		t.Fatal(err)
	}
	if err := leaked.Put(format.Key{Object: 1}, nil); err != ErrClosed {
		t.Errorf("put after the transaction: %v", err)
	}
}

// TestNextObject shows that numbers in durable transactions are not given out again.
func TestNextObject(t *testing.T) {
	dev := newTestDevice(t, 8<<20, true)
	formatTest(t, dev)
	s := openTest(t, dev, Options{})
	var used []uint64
	for round := range 4 {
		for range 3 {
			n := s.NextObject()
			if slices.Contains(used, n) || n < format.FirstFreeObject {
				t.Fatalf("object %d given out twice or reserved", n)
			}
			used = append(used, n)
			if _, err := s.Update(func(tx *Tx) error { return tx.Put(format.Key{Object: n}, nil) }); err != nil {
				t.Fatal(err)
			}
		}
		if round%2 == 0 {
			if err := s.Commit(s.LastLSN()); err != nil {
				t.Fatal(err)
			}
			s = openTest(t, dev, Options{}) // as after a crash
			continue
		}
		closeTest(t, s)
		s = openTest(t, dev, Options{})
	}
	if got := fmt.Sprint(s.NextObject()); got != fmt.Sprint(format.FirstFreeObject+len(used)) {
		t.Errorf("next object is %s after %d", got, len(used))
	}
	closeTest(t, s)
}
