package blobfs

import (
	"math/rand/v2"
	"testing"
)

// writableSpace is an address space that maps a file for writing and counts
// faults. Once mapped, stores cost nothing until the invalidator has come.
type writableSpace struct {
	e      *env
	f      *Inode
	mapped map[int64]int64 // file offset of a page: arena offset
	faults int
}

func newWritableSpace(e *env, f *Inode) *writableSpace {
	s := &writableSpace{e: e, f: f, mapped: map[int64]int64{}}
	f.SetInvalidator(func(off, length int64) {
		for at, arenaOff := range s.mapped {
			if at >= off && at-off < length {
				e.fs.Pages().DecRef(arenaOff, BlockSizeBytes)
				delete(s.mapped, at)
			}
		}
	})
	return s
}

// store stores a byte in a page.
func (s *writableSpace) store(index int, b byte) {
	off := int64(index) * BlockSizeBytes
	if _, ok := s.mapped[off]; !ok {
		s.faults++
		run, err := s.f.Fault(off, 16*BlockSizeBytes, true)
		s.e.must(err)
		for k := int64(0); k < run.Length; k += BlockSizeBytes {
			if _, ok := s.mapped[off+k]; !ok {
				s.e.fs.Pages().IncRef(run.ArenaOffset+k, BlockSizeBytes)
				s.mapped[off+k] = run.ArenaOffset + k
			}
		}
	}
	s.e.dev.Arena().Bytes()[s.mapped[off]] = b
}

// interval lets one periodic commit pass and returns the faults before it.
func (s *writableSpace) interval() int {
	n := s.faults
	s.e.fs.periodicCommit()
	s.faults = 0
	if len(s.mapped) != 0 || s.f.nDirty.Load() != 0 {
		s.e.t.Errorf("after a commit %d pages are mapped, %d dirty", len(s.mapped), s.f.nDirty.Load())
	}
	return n
}

const storePages = 256

func newStores(t *testing.T, allocated bool) *writableSpace {
	e := newEnv(t, 64<<20)
	root := e.fs.Root()
	f := e.create(root, "f", ModeRegular|0o644)
	if allocated {
		e.write(f, 0, pattern(1, storePages*BlockSizeBytes), 0)
		e.must(f.Fsync(nil, false))
		f.dropAllPages()
		for off := int64(0); off < storePages; off += faultAhead {
			e.read(f, off*BlockSizeBytes, faultAhead*BlockSizeBytes, 0)
		}
	} else {
		e.must(f.Truncate(storePages * BlockSizeBytes))
	}
	s := newWritableSpace(e, f)
	t.Cleanup(func() {
		f.SetInvalidator(nil)
		f.DecRef()
		root.DecRef()
	})
	return s
}

// TestSequentialStores stores to one page after the other.
func TestSequentialStores(t *testing.T) {
	s := newStores(t, true)
	for range 3 {
		for n := range storePages {
			s.store(n, byte(n)+7)
		}
		if got := s.interval(); got > storePages/16+2 {
			t.Errorf("%d faults for %d pages", got, storePages)
		}
	}
	s.f.dropAllPages()
	for n := range storePages {
		s.e.expect(s.f, int64(n)*BlockSizeBytes, []byte{byte(n) + 7}, 0)
	}
}

// TestRandomStores stores to the same pages in another order in each interval.
func TestRandomStores(t *testing.T) {
	s := newStores(t, true)
	rng := rand.New(rand.NewPCG(1, 2))
	total, first := 0, 0
	const intervals = 12
	for k := range intervals {
		for _, n := range rng.Perm(storePages) {
			s.store(n, byte(n+k))
		}
		got := s.interval()
		t.Logf("interval %d: %d faults", k, got)
		if total += got; k == 0 {
			first = got
		}
	}
	if first < storePages*9/10 {
		t.Errorf("%d faults for the first stores to %d pages: clean neighbours were made dirty", first, storePages)
	}
	if limit := intervals * storePages / 2; total > limit {
		t.Errorf("%d faults in %d intervals, more than %d", total, intervals, limit)
	}
}

// TestWarmPagesCool stores to all pages once, and then to one only: the others
// must stop being written back with it.
func TestWarmPagesCool(t *testing.T) {
	s := newStores(t, true)
	for n := storePages - 1; n >= 0; n-- {
		s.store(n, 1)
	}
	s.interval()
	for k := range 6 {
		s.store(32, byte(k))
		dirty := s.f.nDirty.Load()
		if k >= warmth && dirty != 1 {
			t.Errorf("interval %d: %d pages are dirty after a store to one", k, dirty)
		}
		s.interval()
	}
}

// TestStoresInHoles stores to some pages of a sparse file: no other page gets a
// block.
func TestStoresInHoles(t *testing.T) {
	s := newStores(t, false)
	for n := 0; n < storePages; n += 8 {
		s.store(n, 1)
		s.store(n+1, 1)
	}
	if got := s.interval(); got != storePages/4 {
		t.Errorf("%d faults for %d pages", got, storePages/4)
	}
	if got := s.f.Attr().Blocks; got != storePages/4*8 {
		t.Errorf("the file has %d sectors, not %d", got, storePages/4*8)
	}
}

// TestSyncsWriteWhatWasStored syncs a file of which much is mapped for writing:
// the next sync must not write all of it again.
func TestSyncsWriteWhatWasStored(t *testing.T) {
	s := newStores(t, true)
	for n := range storePages {
		s.store(n, 1)
	}
	s.e.must(s.f.Fsync(nil, true))
	for k := range 5 {
		s.store(100, byte(k))
		if dirty := s.f.nDirty.Load(); dirty > faultAhead {
			t.Errorf("%d pages are dirty after a store to one", dirty)
		}
		s.e.must(s.f.Fsync(nil, true))
	}
	s.f.revoke()
	s.e.must(s.f.Fsync(nil, true))
	s.f.dropAllPages()
	s.e.expect(s.f, 100*BlockSizeBytes, []byte{4}, 0)
	s.e.expect(s.f, 101*BlockSizeBytes, []byte{1}, 0)
}
