package store

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"runsc-fs/blobfs/format"
)

// model is what the tree should contain.
type model map[format.Key]string

func (m model) sorted() []format.Key {
	return slices.SortedFunc(maps.Keys(m), format.Key.Compare)
}

// checkModel compares all items but the store's own with a model.
func checkModel(t testing.TB, s *Store, m model) {
	t.Helper()
	if err := compareModel(s, m); err != nil {
		t.Fatal(err)
	}
}

func compareModel(s *Store, m model) error {
	keys := m.sorted()
	i := 0
	return s.View(func(r *Reader) error {
		err := r.Scan(format.Key{Object: 1}, format.MaxKey, func(k format.Key, v []byte) (bool, error) {
			if i >= len(keys) {
				return false, fmt.Errorf("unexpected item %v", k)
			}
			if k != keys[i] || string(v) != m[k] {
				return false, fmt.Errorf("item %d is %v of %d bytes, should be %v of %d", i, k, len(v), keys[i], len(m[keys[i]]))
			}
			i++
			return true, nil
		})
		if err == nil && i != len(keys) {
			err = fmt.Errorf("item %v and %d more are missing", keys[i], len(keys)-i-1)
		}
		return err
	})
}

func randKey(rnd *rand.Rand, n int) format.Key {
	return format.Key{Object: 1 + uint64(rnd.IntN(n)), Kind: format.Kind(1 + rnd.IntN(4)), Offset: uint64(rnd.IntN(4))}
}

func randValue(rnd *rand.Rand) []byte {
	n := rnd.IntN(64)
	if rnd.IntN(16) == 0 {
		n = rnd.IntN(format.MaxValueBytes + 1)
	}
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rnd.Uint32())
	}
	return b
}

var errAbort = errors.New("abort")

// randomTx does up to ops operations in one transaction, sometimes aborts, and
// keeps the model in step.
func randomTx(t testing.TB, s *Store, rnd *rand.Rand, m model, ops, keys int) LSN {
	t.Helper()
	next := maps.Clone(m)
	abort := rnd.IntN(8) == 0
	lsn, err := s.Update(func(tx *Tx) error {
		for range 1 + rnd.IntN(ops) {
			k := randKey(rnd, keys)
			if _, ok := next[k]; ok && rnd.IntN(3) > 0 {
				if err := tx.Delete(k); err != nil {
					return err
				}
				delete(next, k)
				continue
			}
			v := randValue(rnd)
			if err := tx.Put(k, v); err != nil {
				return err
			}
			next[k] = string(v)
		}
		k := randKey(rnd, keys)
		v, ok, err := tx.Get(k, nil)
		if want, has := next[k]; err != nil || ok != has || string(v) != want {
			return fmt.Errorf("get %v in transaction: %v, %v", k, ok, err)
		}
		if abort {
			return errAbort
		}
		return nil
	})
	if abort && errors.Is(err, errAbort) {
		return 0
	}
	if err != nil {
		t.Fatal(err)
	}
	clear(m)
	maps.Copy(m, next)
	return lsn
}

func TestRandomTransactions(t *testing.T) {
	for seed := range uint64(2) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 1))
			dev := newTestDevice(t, 16<<20, true)
			formatTest(t, dev)
			s := openTest(t, dev, Options{NodeCacheBytes: 1 << 20})
			s.maxResident = 20
			m := model{}
			for i := range 1500 {
				keys := 2000
				if i > 1000 {
					keys = 200 // many hits: shrinks
				}
				randomTx(t, s, rnd, m, 20, keys)
				switch rnd.IntN(200) {
				case 0:
					if err := s.Checkpoint(); err != nil {
						t.Fatal(err)
					}
				case 1:
					closeTest(t, s)
					s = openTest(t, dev, Options{})
					s.maxResident = 20
				case 2:
					if err := s.Commit(s.LastLSN()); err != nil {
						t.Fatal(err)
					}
				}
				if i%300 == 0 {
					verifyTest(t, s)
					checkModel(t, s, m)
				}
			}
			verifyTest(t, s)
			checkModel(t, s, m)
			for k := range m {
				if _, err := s.Update(func(tx *Tx) error { return tx.Delete(k) }); err != nil {
					t.Fatal(err)
				}
			}
			verifyTest(t, s)
			checkModel(t, s, model{})
			closeTest(t, s)
			s = openTest(t, dev, Options{ReadOnly: true})
			verifyTest(t, s)
			checkModel(t, s, model{})
			if s.nodes != 1 {
				t.Errorf("empty tree has %d nodes", s.nodes)
			}
			closeTest(t, s)
		})
	}
}

// TestTreeShapes grows and shrinks a tree of few items a node, so of many
// levels, in all orders.
func TestTreeShapes(t *testing.T) {
	rnd := rand.New(rand.NewPCG(6, 6))
	dev := newTestDevice(t, 48<<20, true)
	formatTest(t, dev)
	s := openTest(t, dev, Options{})
	s.maxResident = 200
	m := model{}
	const keys = 6000
	value := make([]byte, format.MaxValueBytes)
	for phase := range 24 {
		insert := phase%3 != 2
		from, n := rnd.IntN(keys), 200+rnd.IntN(keys/3)
		order := rnd.IntN(3)
		for i := range n {
			at := (from + i) % keys
			switch order {
			case 1:
				at = (from + n - i) % keys
			case 2:
				at = rnd.IntN(keys)
			}
			k := format.Key{Object: 1 + uint64(at/16), Kind: format.Kind(1 + at%16/4), Offset: uint64(at % 4)}
			_, err := s.UpdateFreeing(func(tx *Tx) error {
				if _, ok := m[k]; !insert && ok {
					delete(m, k)
					return tx.Delete(k)
				} else if !insert {
					return nil
				}
				v := value[:rnd.IntN(len(value))]
				m[k] = string(v)
				return tx.Put(k, v)
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		verifyTest(t, s)
		checkModel(t, s, m)
	}
	if s.height() < 3 {
		t.Errorf("the tree has only %d levels", s.height())
	}
	closeTest(t, s)
}

func TestGetScanSeek(t *testing.T) {
	rnd := rand.New(rand.NewPCG(5, 5))
	dev := newTestDevice(t, 16<<20, true)
	formatTest(t, dev)
	s := openTest(t, dev, Options{})
	defer closeTest(t, s)
	m := model{}
	for range 300 {
		randomTx(t, s, rnd, m, 20, 500)
	}
	keys := m.sorted()
	buf := make([]byte, 0, format.MaxValueBytes)
	for range 2000 {
		from, to := randKey(rnd, 500), randKey(rnd, 500)
		err := s.View(func(r *Reader) error {
			v, ok, err := r.Get(from, buf)
			if want, has := m[from]; ok != has || err != nil || !bytes.Equal(v, []byte(want)) {
				t.Errorf("get %v: %v %v", from, ok, err)
			}
			var want []format.Key
			for _, k := range keys {
				if !k.Less(from) && !to.Less(k) {
					want = append(want, k)
				}
			}
			var got []format.Key
			err = r.Scan(from, to, func(k format.Key, v []byte) (bool, error) { got = append(got, k); return true, nil })
			if err != nil || !slices.Equal(got, want) {
				t.Errorf("scan %v to %v: %d items, want %d, %v", from, to, len(got), len(want), err)
			}
			k, v, ok, err := r.SeekLast(from, to, nil)
			if ok != (len(want) > 0) || err != nil || ok && (k != want[len(want)-1] || string(v) != m[k]) {
				t.Errorf("seek last %v to %v: %v %v %v", from, to, k, ok, err)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	// A scan that deletes what it sees, in one transaction.
	_, err := s.Update(func(tx *Tx) error {
		return tx.Scan(format.Key{Object: 1}, format.Key{Object: 40}, func(k format.Key, v []byte) (bool, error) {
			delete(m, k)
			return true, tx.Delete(k)
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	checkModel(t, s, m)
	verifyTest(t, s)
}
