package nvme

import (
	"errors"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
)

func newTestArena(t testing.TB, pages int) *Arena {
	t.Helper()
	a, err := NewArena(ArenaOptions{SizeBytes: int64(pages) * PageSizeBytes})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close() })
	return a
}

func TestArenaRefusesBadSizes(t *testing.T) {
	for _, size := range []int64{-1, 0, 1, PageSizeBytes - 1, maxArenaBytes + 1} {
		if a, err := NewArena(ArenaOptions{SizeBytes: size}); err == nil {
			a.Close()
			t.Errorf("size %d accepted", size)
		}
	}
	a, err := NewArena(ArenaOptions{SizeBytes: PageSizeBytes + 1, HugePages: true})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if a.SizeBytes() != 2*PageSizeBytes {
		t.Errorf("size not rounded up: %d", a.SizeBytes())
	}
	if _, err := a.Alloc(0); err == nil {
		t.Error("allocation of no pages accepted")
	}
}

// TestArenaModel compares the allocator with a plain set of pages.
func TestArenaModel(t *testing.T) {
	const pages = 64*70 + 17 // three levels, the last word partial
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 1))
	a := newTestArena(t, pages)
	owner := make([]bool, pages)
	var runs [][]byte
	free := pages
	longest := func() int {
		best, run := 0, 0
		for _, used := range owner {
			if run++; used {
				run = 0
			}
			best = max(best, run)
		}
		return best
	}
	for step := range 6000 {
		if rng.IntN(100) < 55 {
			n := 1
			switch rng.IntN(4) {
			case 0:
				n = 1 + rng.IntN(8)
			case 1:
				n = 1 + rng.IntN(200)
			}
			b, err := a.Alloc(n)
			if err != nil {
				if !errors.Is(err, ErrArenaFull) {
					t.Fatalf("seed %d step %d: %v", seed, step, err)
				}
				if l := longest(); l >= n {
					t.Fatalf("seed %d step %d: no run of %d found, but there is one of %d", seed, step, n, l)
				}
				continue
			}
			off, ok := a.Offset(b)
			if !ok || off%PageSizeBytes != 0 || len(b) != n*PageSizeBytes || cap(b) != len(b) {
				t.Fatalf("seed %d step %d: bad run: offset %d, %v, len %d cap %d", seed, step, off, ok, len(b), cap(b))
			}
			for p := range n {
				if owner[int(off/PageSizeBytes)+p] {
					t.Fatalf("seed %d step %d: page handed out twice", seed, step)
				}
				owner[int(off/PageSizeBytes)+p] = true
			}
			free -= n
			runs = append(runs, b)
		} else if len(runs) > 0 {
			i := rng.IntN(len(runs))
			b := runs[i]
			runs[i] = runs[len(runs)-1]
			runs = runs[:len(runs)-1]
			if n := len(b) / PageSizeBytes; n > 1 && rng.IntN(2) == 0 { // free a part only
				cut := (1 + rng.IntN(n-1)) * PageSizeBytes
				runs = append(runs, b[cut:])
				b = b[:cut]
			}
			off, _ := a.Offset(b)
			a.Free(b)
			free += len(b) / PageSizeBytes
			for p := range len(b) / PageSizeBytes {
				owner[int(off/PageSizeBytes)+p] = false
			}
		}
		if got := a.FreePages(); got != free {
			t.Fatalf("seed %d step %d: %d free pages, want %d", seed, step, got, free)
		}
	}
	for _, b := range runs {
		a.Free(b)
	}
	if b, err := a.Alloc(pages); err != nil || len(b) != pages*PageSizeBytes {
		t.Errorf("seed %d: whole arena not allocatable at the end: %v", seed, err)
	}
}

func TestArenaConcurrent(t *testing.T) {
	a := newTestArena(t, 512)
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := range 500 {
				b, err := a.Alloc(1 + i%5)
				if err != nil {
					t.Error(err)
					return
				}
				for j := range b {
					b[j] = byte(g)
				}
				for j := range b {
					if b[j] != byte(g) {
						t.Error("page shared by two owners")
						return
					}
				}
				a.Free(b)
			}
		}()
	}
	wg.Wait()
	if a.FreePages() != 512 {
		t.Errorf("%d pages free at the end", a.FreePages())
	}
}

func TestArenaLongRunsReturnToTheHost(t *testing.T) {
	a := newTestArena(t, 256)
	b, err := a.Alloc(punchPages)
	if err != nil {
		t.Fatal(err)
	}
	b[5] = 77
	a.Free(b)
	if b[5] != 0 {
		t.Error("memory of a long run was kept")
	}
}

func TestArenaMisuse(t *testing.T) {
	a := newTestArena(t, 8)
	b, _ := a.Alloc(2)
	if _, ok := a.Offset(make([]byte, 16)); ok {
		t.Error("foreign memory has an offset")
	}
	if off, ok := a.Offset(b[4096:]); !ok || off%PageSizeBytes != 0 {
		t.Error("part of a run has no offset")
	}
	mustPanic := func(what string, f func()) {
		t.Helper()
		defer func() {
			if recover() == nil {
				t.Errorf("%s did not panic", what)
			}
		}()
		f()
	}
	mustPanic("unaligned free", func() { a.Free(b[1:4097]) })
	mustPanic("foreign free", func() { a.Free(make([]byte, PageSizeBytes)) })
	a.Free(b)
	mustPanic("double free", func() { a.Free(b) })
}

func TestArenaFromFile(t *testing.T) {
	const page = PageSizeBytes
	f, err := os.CreateTemp(t.TempDir(), "ram")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(100 * page); err != nil {
		t.Fatal(err)
	}
	for _, bad := range [][2]int64{{0, 0}, {0, 101 * page}, {96 * page, 5 * page}, {-page, page}, {1, page}, {0, page + 1}, {200 * page, page}} {
		if a, err := NewArenaFromFile(f, bad[0], bad[1]); err == nil {
			a.Close()
			t.Errorf("an arena of %d bytes at %d", bad[1], bad[0])
		}
	}
	a, err := NewArenaFromFile(f, 16*page, 80*page)
	if err != nil {
		t.Fatal(err)
	}
	if a.SizeBytes() != 80*page || a.FileOffset() != 16*page {
		t.Errorf("%d bytes at %d", a.SizeBytes(), a.FileOffset())
	}
	run, err := a.Alloc(punchPages)
	if err != nil {
		t.Fatal(err)
	}
	off, ok := a.Offset(run)
	run[3] = 42
	var b [1]byte
	if _, err := f.ReadAt(b[:], 16*page+off+3); err != nil || !ok || b[0] != 42 {
		t.Errorf("the file has %d at the place of 42: %v", b[0], err)
	}
	if _, err := f.WriteAt([]byte{7}, 16*page-1); err != nil {
		t.Fatal(err)
	}
	a.Free(run) // gives back its own range of the file, nothing else
	if _, err := f.ReadAt(b[:], 16*page+off+3); err != nil || b[0] != 0 {
		t.Errorf("the file has %d at a place given back: %v", b[0], err)
	}
	if _, err := f.ReadAt(b[:], 16*page-1); err != nil || b[0] != 7 {
		t.Errorf("the file lost what lies before the arena: %d, %v", b[0], err)
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	if _, err := f.Stat(); err != nil {
		t.Errorf("closing the arena closed the file: %v", err)
	}
}
