package layers

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"runsc-fs/nvme"
	"runsc-fs/nvme/nvmetest"
	"runsc-fs/nvme/soft"
)

// newFile makes a sparse file.
func newFile(t testing.TB, sizeBytes int64) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "image"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if err := f.Truncate(sizeBytes); err != nil {
		t.Fatal(err)
	}
	return f
}

// reopen opens a file again, as another process would.
func reopen(t testing.TB, f *os.File, flags int) *os.File {
	t.Helper()
	g, err := os.OpenFile(f.Name(), flags, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Close() })
	return g
}

// addLayer puts a new layer on a stack.
func addLayer(t testing.TB, chain []*os.File, sizeBytes int64) []*os.File {
	t.Helper()
	f := newFile(t, 0)
	if err := Create(f, chain, sizeBytes); err != nil {
		t.Fatal(err)
	}
	return append(append([]*os.File{}, chain...), f)
}

// serve opens a stack through descriptors of its own.
func serve(t testing.TB, chain []*os.File, readOnly bool) (soft.Backing, error) {
	t.Helper()
	var files []*os.File
	for i, f := range chain {
		flags := os.O_RDONLY
		if i == len(chain)-1 && !readOnly {
			flags = os.O_RDWR
		}
		files = append(files, reopen(t, f, flags))
	}
	return Open(files, readOnly)
}

func mustServe(t testing.TB, chain []*os.File) *stack {
	t.Helper()
	b, err := serve(t, chain, false)
	if err != nil {
		t.Fatal(err)
	}
	return b.(*stack)
}

func write(t testing.TB, b soft.Backing, data []byte, off int64) {
	t.Helper()
	if err := b.WriteV([][]byte{data}, off, false); err != nil {
		t.Fatal(err)
	}
}

func content(t testing.TB, b soft.Backing) []byte {
	t.Helper()
	data := make([]byte, b.Properties().SizeBytes)
	if err := b.ReadV([][]byte{data}, 0); err != nil {
		t.Fatal(err)
	}
	return data
}

func random(rng *rand.Rand, n int64) []byte {
	b := make([]byte, n)
	for i := 0; i < len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], rng.Uint64())
	}
	return b
}

// TestConformance runs the suite of all controllers on two layers above an empty
// base.
func TestConformance(t *testing.T) {
	nvmetest.RunTransport(t, func(t testing.TB, c nvmetest.Config) nvme.Transport {
		t.Helper()
		arena, err := nvme.NewArena(nvme.ArenaOptions{SizeBytes: 64 << 20})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { arena.Close() })
		var backings []soft.Backing
		for range max(1, c.Namespaces) {
			chain := []*os.File{newFile(t, c.SizeBytes)}
			for range 2 {
				chain = addLayer(t, chain, c.SizeBytes)
			}
			backings = append(backings, mustServe(t, chain))
		}
		ctrl, err := soft.New(arena, backings, soft.Options{
			LBASizeBytes: c.LBASizeBytes, MDTS: c.MDTS, MaxQueueEntries: c.MaxQueueEntries, BoundaryBlocks: uint16(c.BoundaryBlocks), DoorbellBuffer: c.DoorbellBuffer,
		})
		if err != nil {
			t.Fatal(err)
		}
		return ctrl
	}, nvmetest.Options{})
}

// branch is a stack in the model test, with what it must contain.
type branch struct {
	chain []*os.File
	open  *stack
	want  []byte
}

// TestModel writes at random to several branches, takes snapshots and clones of
// them, grows them, and compares all with plain memory.
func TestModel(t *testing.T) {
	seeds := uint64(4)
	if testing.Short() {
		seeds = 2
	}
	for seed := range seeds {
		t.Run(fmt.Sprint("seed", seed), func(t *testing.T) { runModel(t, seed) })
	}
}

func runModel(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 1))
	size := int64(20<<20 + 4096*rng.IntN(100)) // two map sectors
	base := newFile(t, size)
	want := random(rng, size)
	if _, err := base.WriteAt(want, 0); err != nil {
		t.Fatal(err)
	}
	snapshot := func(chain []*os.File, content []byte) *branch {
		b := &branch{chain: addLayer(t, chain, int64(len(content))), want: bytes.Clone(content)}
		b.open = mustServe(t, b.chain)
		return b
	}
	branches := []*branch{snapshot([]*os.File{base}, want)}
	frozen := map[*os.File]int64{base: size}
	for step := range 400 {
		b := branches[rng.IntN(len(branches))]
		switch op := rng.IntN(40); {
		case op == 0 && len(branches) < 5: // freeze the layer, go on above it, and clone it
			if err := errors.Join(b.open.Flush(), b.open.Close()); err != nil {
				t.Fatal(err)
			}
			parent := b.chain
			info, err := parent[len(parent)-1].Stat()
			if err != nil {
				t.Fatal(err)
			}
			frozen[parent[len(parent)-1]] = info.ModTime().UnixNano()
			*b = *snapshot(parent, b.want)
			branches = append(branches, snapshot(parent, b.want))
		case op == 1: // an orderly restart
			if err := errors.Join(b.open.Flush(), b.open.Close()); err != nil {
				t.Fatal(err)
			}
			b.open = mustServe(t, b.chain)
		case op == 2 && rng.IntN(2) == 0: // grow while it is open
			b.want = append(b.want, make([]byte, 4096*rng.IntN(20))...)
			if err := Grow(b.chain[len(b.chain)-1], int64(len(b.want))); err != nil {
				t.Fatal(err)
			}
			if err := b.open.Grow(int64(len(b.want))); err != nil || b.open.Properties().SizeBytes != int64(len(b.want)) {
				t.Fatalf("%d bytes instead of %d: %v", b.open.Properties().SizeBytes, len(b.want), err)
			}
		case op == 2: // grow
			if err := errors.Join(b.open.Flush(), b.open.Close()); err != nil {
				t.Fatal(err)
			}
			b.want = append(b.want, make([]byte, 4096*rng.IntN(20))...)
			top := b.chain[len(b.chain)-1]
			if err := top.Truncate(b.open.layers[b.open.top].dataOffset + int64(len(b.want))); err != nil {
				t.Fatal(err)
			}
			b.open = mustServe(t, b.chain)
		default:
			if err := b.step(rng, op); err != nil {
				t.Fatalf("step %d: %v", step, err)
			}
		}
	}
	for i, b := range branches {
		if err := errors.Join(b.open.Flush(), b.open.Close()); err != nil {
			t.Fatal(err)
		}
		again, err := serve(t, b.chain, i%2 == 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := content(t, again); !bytes.Equal(got, b.want) {
			t.Errorf("branch %d of depth %d differs after opening it again", i, len(b.chain))
		}
		again.Close()
	}
	if got, err := os.ReadFile(base.Name()); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the base has changed (%v)", err)
	}
	if len(frozen) < 2 {
		t.Fatalf("seed %d took no snapshot", seed)
	}
}

// step does one random operation on a branch and compares what it reads.
func (b *branch) step(rng *rand.Rand, op int) error {
	const unit = 512
	length := int64(1+rng.IntN(64)) * unit
	if rng.IntN(3) == 0 {
		length = int64(1+rng.IntN(64)) * BlockBytes
	}
	off := rng.Int64N((int64(len(b.want))-length)/unit) * unit
	if rng.IntN(2) == 0 {
		off &^= BlockBytes - 1
	}
	part := b.want[off : off+length]
	switch {
	case op < 18:
		data := random(rng, length)
		copy(part, data)
		cut := rng.Int64N(length/unit+1) * unit
		return b.open.WriteV([][]byte{data[:cut], nil, data[cut:]}, off, op == 3)
	case op < 22:
		clear(part)
		return b.open.Zero(off, length, op == 18)
	case op < 26:
		clear(part)
		return b.open.Deallocate(off, length)
	case op < 30:
		return b.open.Flush()
	}
	got := make([]byte, length)
	cut := rng.Int64N(length/unit+1) * unit
	if err := b.open.ReadV([][]byte{got[:cut], nil, got[cut:]}, off); err != nil {
		return err
	}
	if !bytes.Equal(got, part) {
		return fmt.Errorf("%d bytes at %d differ", length, off)
	}
	return nil
}

// TestPartialWritesSideBySide: writes to different sectors of a block that is not
// present must not undo each other.
func TestPartialWritesSideBySide(t *testing.T) {
	const blocks = 64
	base := newFile(t, blocks*BlockBytes)
	old := bytes.Repeat([]byte{0xee}, blocks*BlockBytes)
	if _, err := base.WriteAt(old, 0); err != nil {
		t.Fatal(err)
	}
	s := mustServe(t, addLayer(t, []*os.File{base}, blocks*BlockBytes))
	defer s.Close()
	var group sync.WaitGroup
	for sector := range 7 { // the last sector of each block stays as it was
		group.Go(func() {
			data := bytes.Repeat([]byte{byte(sector)}, 512)
			for block := range int64(blocks) {
				if err := s.WriteV([][]byte{data}, block*BlockBytes+int64(sector)*512, sector == 0 && block%8 == 0); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	got := content(t, s)
	for i := range got {
		want := byte(i / 512 % 8)
		if want == 7 {
			want = 0xee
		}
		if got[i] != want {
			t.Fatalf("byte %d is %#x, want %#x", i, got[i], want)
		}
	}
}

// TestReadsDoNotAllocate covers reads that come from several layers.
func TestReadsDoNotAllocate(t *testing.T) {
	chain := []*os.File{newFile(t, 1<<20)}
	for range 3 {
		chain = addLayer(t, chain, 1<<20)
		s := mustServe(t, chain)
		for block := int64(len(chain)); block < 200; block += 3 {
			write(t, s, make([]byte, BlockBytes), block*BlockBytes)
		}
		if err := errors.Join(s.Flush(), s.Close()); err != nil {
			t.Fatal(err)
		}
	}
	s := mustServe(t, chain)
	defer s.Close()
	vec := [][]byte{make([]byte, 100<<10), make([]byte, 156<<10)}
	one := [][]byte{make([]byte, BlockBytes)}
	for what, do := range map[string]func(){
		"read of many layers":  func() { s.ReadV(vec, 0) },
		"read of one block":    func() { s.ReadV(one, 8192) },
		"write of one block":   func() { s.WriteV(one, 4*BlockBytes, false) },
		"flush with new block": func() { s.Flush() },
	} {
		if n := testing.AllocsPerRun(100, do); n >= 1 {
			t.Errorf("%s: %v allocations", what, n)
		}
	}
}

// TestRefusesWhatDoesNotFit changes and exchanges the files of a stack.
func TestRefusesWhatDoesNotFit(t *testing.T) {
	const size = 1 << 20
	make3 := func() []*os.File {
		chain := []*os.File{newFile(t, size)}
		chain = addLayer(t, chain, size)
		return addLayer(t, chain, size)
	}
	a, b := make3(), make3()
	for name, c := range map[string]struct {
		chain []*os.File
		class error
		text  string
	}{
		"good":            {a, nil, ""},
		"another base":    {[]*os.File{b[0], a[1], a[2]}, ErrParent, ""},
		"another layer":   {[]*os.File{a[0], b[1], a[2]}, ErrParent, ""},
		"layer left out":  {[]*os.File{a[0], a[2]}, ErrParent, "lies on another file"},
		"base left out":   {[]*os.File{a[1], a[2]}, ErrParent, "was not given"},
		"no layer on top": {[]*os.File{a[0], b[0]}, ErrNotLayer, ""},
		"wrong order":     {[]*os.File{a[0], a[2], a[1]}, ErrParent, ""},
	} {
		got, err := serve(t, c.chain, false)
		if c.class == nil && err != nil || !errors.Is(err, c.class) || err != nil && !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v, want %v with %q", name, err, c.class, c.text)
		}
		if err == nil {
			got.Close()
		}
	}

	// One byte in the data of the base: the time of the change tells.
	before, err := a[0].Stat()
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(20 * time.Millisecond) // the clock of the host's file system may be as coarse
	if _, err := a[0].WriteAt([]byte{1}, size-1); err != nil {
		t.Fatal(err)
	}
	if _, err := serve(t, a, false); !errors.Is(err, ErrParent) || !strings.Contains(err.Error(), "touch -d @") {
		t.Errorf("a base that was written to: %v", err)
	}
	if _, err := serve(t, a, true); !errors.Is(err, ErrParent) {
		t.Errorf("a base that was written to, for reading: %v", err)
	}
	// A faithful copy with its time set again is accepted …
	if _, err := a[0].WriteAt([]byte{0}, size-1); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(a[0].Name(), time.Time{}, before.ModTime()); err != nil {
		t.Fatal(err)
	}
	s := mustServe(t, a)
	s.Close()
	// … but no other beginning or length.
	for what, change := range map[string]func() error{
		"another beginning": func() error { _, err := a[0].WriteAt([]byte{1}, 5000); return err },
		"another length":    func() error { return a[0].Truncate(size + 4096) },
	} {
		if err := errors.Join(change(), os.Chtimes(a[0].Name(), time.Time{}, before.ModTime())); err != nil {
			t.Fatal(err)
		}
		if _, err := serve(t, a, false); !errors.Is(err, ErrParent) || strings.Contains(err.Error(), "touch") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestCreateRefuses(t *testing.T) {
	base := newFile(t, 1<<20)
	chain := []*os.File{base}
	for len(chain) < MaxDepth {
		chain = addLayer(t, chain, 1<<20)
	}
	if err := Create(newFile(t, 0), chain, 1<<20); !errors.Is(err, ErrTooDeep) {
		t.Errorf("layer %d: %v", MaxDepth+1, err)
	}
	s := mustServe(t, chain)
	write(t, s, []byte(strings.Repeat("x", 512)), 4096)
	if got := content(t, s); got[4096] != 'x' || got[4095] != 0 {
		t.Error("the deepest stack reads wrong data")
	}
	s.Close()
	for _, size := range []int64{0, -4096, 4097, 65 << 40} {
		if err := Create(newFile(t, 0), chain[:1], size); err == nil {
			t.Errorf("a size of %d is accepted", size)
		}
	}
	if err := Create(newFile(t, 0), nil, 1<<20); err == nil {
		t.Error("a layer on nothing is accepted")
	}
}

// TestReadOnly refuses changes, and needs no more than read access.
func TestReadOnly(t *testing.T) {
	chain := addLayer(t, []*os.File{newFile(t, 1<<20)}, 1<<20)
	b, err := serve(t, chain, true)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	data := [][]byte{make([]byte, BlockBytes)}
	for what, err := range map[string]error{
		"write": b.WriteV(data, 0, true), "zero": b.Zero(0, 4096, false), "deallocate": b.Deallocate(0, 4096),
	} {
		if soft.StatusOf(err, true) != errReadOnly.Status {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := errors.Join(b.Flush(), b.ReadV(data, 0)); err != nil {
		t.Error(err)
	}
}
