package crashdev

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"runsc-fs/nvme"
	"runsc-fs/nvme/soft"
)

const testSize = 64 << 10

func newArena(t testing.TB) *nvme.Arena {
	t.Helper()
	a, err := nvme.NewArena(nvme.ArenaOptions{SizeBytes: 8 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close() })
	return a
}

// stamped writes blocks that carry the number of their write, so that a block of
// an image tells which write it is from.
type stamped struct {
	t      *testing.T
	dev    nvme.BlockDevice
	buf    []byte
	unit   int
	writes uint64
	// For each unit: the write that is durable, and those that came later.
	durable []uint64
	later   [][]uint64
}

func newStamped(t *testing.T, dev nvme.BlockDevice, unit int) *stamped {
	buf, err := dev.Arena().Alloc(4)
	if err != nil {
		t.Fatal(err)
	}
	return &stamped{t: t, dev: dev, buf: buf, unit: unit, durable: make([]uint64, testSize/unit), later: make([][]uint64, testSize/unit)}
}

func (s *stamped) write(first, units int, fua bool) {
	s.writes++
	b := s.buf[:units*s.unit]
	for i := 0; i < len(b); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], s.writes)
	}
	if err := s.dev.Do([]nvme.Request{{Op: nvme.OpWrite, FUA: fua, OffsetBytes: int64(first * s.unit), Vec: [][]byte{b}}}); err != nil {
		s.t.Fatal(err)
	}
	for u := first; u < first+units; u++ {
		if fua {
			s.durable[u], s.later[u] = s.writes, nil
		} else {
			s.later[u] = append(s.later[u], s.writes)
		}
	}
}

func (s *stamped) flush() {
	if err := s.dev.Do([]nvme.Request{{Op: nvme.OpFlush}}); err != nil {
		s.t.Fatal(err)
	}
	for u, l := range s.later {
		if len(l) > 0 {
			s.durable[u], s.later[u] = l[len(l)-1], nil
		}
	}
}

// check looks whether every unit of an image is one that may be there, and
// counts the units that lost something.
func (s *stamped) check(c Crash, img *Disk) (lost int) {
	s.t.Helper()
	b := make([]byte, s.unit)
	for u := range s.durable {
		if _, err := img.ReadAt(b, int64(u*s.unit)); err != nil {
			s.t.Fatal(err)
		}
		got := binary.LittleEndian.Uint64(b)
		for i := 8; i < len(b); i += 8 {
			if binary.LittleEndian.Uint64(b[i:]) != got {
				s.t.Fatalf("%v: unit %d is torn", c, u)
			}
		}
		ok := got == s.durable[u]
		for _, w := range s.later[u] {
			ok = ok || got == w
		}
		if !ok {
			s.t.Fatalf("%v: unit %d is from write %d; durable is %d, later %d", c, u, got, s.durable[u], s.later[u])
		}
		if n := len(s.later[u]); n > 0 && got != s.later[u][n-1] {
			lost++
		}
	}
	return lost
}

// TestImagesKeepThePromise runs random histories, directly and through the
// controller, and checks images at their ends.
func TestImagesKeepThePromise(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 2))
	t.Logf("seed %d", seed)
	arena := newArena(t)
	for round := range 30 {
		unit := 512 << rng.IntN(4)
		d, err := New(Options{SizeBytes: testSize, AtomicWriteBytes: unit})
		if err != nil {
			t.Fatal(err)
		}
		dev := d.Device(arena)
		if round%3 == 0 {
			if dev, err = soft.Open(d.Backing(), arena, soft.Options{}); err != nil {
				t.Fatal(err)
			}
		}
		if got := dev.Geometry().AtomicWriteBytes; got != unit {
			t.Fatalf("atomic unit %d, want %d", got, unit)
		}
		s := newStamped(t, dev, unit)
		lost := 0
		for range 40 {
			units := 1 + rng.IntN(4096*4/unit)
			first := rng.IntN(testSize/unit - units + 1)
			s.write(first, units, rng.IntN(5) == 0)
			if rng.IntN(8) == 0 {
				s.flush()
			}
			for range 3 {
				c := Crash{Point: d.Points(), Seed: rng.Uint64()}
				if rng.IntN(2) == 0 {
					c.Seed = uint64(rng.IntN(12))
				}
				lost += s.check(c, d.Image(c))
			}
		}
		if lost == 0 {
			t.Errorf("round %d: no image lost anything", round)
		}
		c := Crash{Point: d.Points(), Seed: rng.Uint64()}
		a, b := make([]byte, testSize), make([]byte, testSize)
		d.Image(c).ReadAt(a, 0)
		d.Image(Crash{Point: 3, Seed: 9}) // goes back in between
		d.Image(c).ReadAt(b, 0)
		if !bytes.Equal(a, b) {
			t.Errorf("%v gives two images", c)
		}
		s.flush()
		d.PowerCut(0)
		if n := s.check(Crash{}, d); n != 0 {
			t.Errorf("flushed data lost in %d units", n)
		}
		arena.Free(s.buf)
		if err := dev.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestSystematicSeeds enumerates what the first seeds promise.
func TestSystematicSeeds(t *testing.T) {
	arena := newArena(t)
	d, _ := New(Options{SizeBytes: testSize})
	s := newStamped(t, d.Device(arena), 512)
	for i := range 3 {
		s.write(i, 1, false)
	}
	survivors := func(seed uint64) (n int) {
		img := d.Image(Crash{Point: 3, Seed: seed})
		b := make([]byte, 512)
		for i := range 3 {
			img.ReadAt(b, int64(i*512))
			if b[0] != 0 {
				n |= 1 << i
			}
		}
		return n
	}
	for seed, want := range []int{0: 0b000, 1: 0b111, 2: 0b110, 3: 0b101, 4: 0b011, 5: 0b001, 6: 0b010, 7: 0b100} {
		if got := survivors(uint64(seed)); got != want {
			t.Errorf("seed %d: survivors %03b, want %03b", seed, got, want)
		}
	}
}

func TestCommandsInFlightMaySurvive(t *testing.T) {
	arena := newArena(t)
	d, _ := New(Options{SizeBytes: testSize})
	dev := d.Device(arena)
	buf, _ := arena.Alloc(1)
	buf[0], buf[512] = 1, 2
	if err := dev.Do([]nvme.Request{
		{Op: nvme.OpWrite, FUA: true, Vec: [][]byte{buf[:512]}},
		{Op: nvme.OpWrite, FUA: true, OffsetBytes: 512, Vec: [][]byte{buf[512:1024]}},
	}); err != nil {
		t.Fatal(err)
	}
	if got := d.Uncertain(0); len(got) != 2 {
		t.Errorf("before completion uncertain events are %v, want both", got)
	}
	if got := d.Uncertain(2); len(got) != 0 {
		t.Errorf("after completion uncertain events are %v, want none", got)
	}
	b := make([]byte, 1024)
	d.Image(Crash{Point: 0, Seed: 2}).ReadAt(b, 0)
	if b[0] != 0 || b[512] != 2 {
		t.Errorf("second write alone did not survive: %d %d", b[0], b[512])
	}
}

// TestLyingDiskIsNoticed is the canary: without the promises of Flush and FUA
// the checks above must fail.
func TestLyingDiskIsNoticed(t *testing.T) {
	arena := newArena(t)
	d, _ := New(Options{SizeBytes: testSize, IgnoreFlush: true})
	s := newStamped(t, d.Device(arena), 512)
	s.write(0, 1, true)
	s.flush()
	b := make([]byte, 512)
	d.Image(Crash{Point: d.Points(), Seed: 0}).ReadAt(b, 0)
	if b[0] != 0 {
		t.Error("a disk that ignores FUA and Flush kept the data")
	}
}

func TestImagesAreIndependent(t *testing.T) {
	arena := newArena(t)
	d, _ := New(Options{SizeBytes: testSize})
	s := newStamped(t, d.Device(arena), 512)
	s.write(0, 1, true)
	img := d.Image(Crash{Point: 1})
	s2 := newStamped(t, img.Device(arena), 512)
	s2.writes = 100
	s2.write(0, 1, false)
	again := img.Image(Crash{Point: 1, Seed: 0}) // a cut during what follows the cut
	b := make([]byte, 512)
	for _, c := range []struct {
		d    *Disk
		want byte
	}{{d, 1}, {img, 101}, {again, 1}} {
		c.d.ReadAt(b, 0)
		if b[0] != c.want {
			t.Errorf("disk has write %d, want %d", b[0], c.want)
		}
	}
}

// TestSums checks that fingerprints tell contents apart, and nothing else.
func TestSums(t *testing.T) {
	a, _ := New(Options{SizeBytes: testSize})
	empty := a.Sum()
	a.WriteAt([]byte{1}, 5000)
	one := a.Sum()
	b := a.Clone()
	b.WriteAt([]byte{2}, 5000)
	c, _ := New(Options{SizeBytes: testSize})
	c.WriteAt([]byte{1}, 5000+4096) // the same page elsewhere
	for _, other := range []uint64{empty, b.Sum(), c.Sum()} {
		if other == one {
			t.Error("different contents have one sum")
		}
	}
	b.WriteAt([]byte{1}, 5000)
	if b.Sum() != one || a.Sum() != one {
		t.Error("equal contents have different sums")
	}
	a.WriteAt([]byte{0}, 5000)
	if a.Sum() != empty {
		t.Error("a page of zeroes differs from none")
	}
}

// TestSabotage leaves out one flush and the durability of one write.
func TestSabotage(t *testing.T) {
	arena := newArena(t)
	d, _ := New(Options{SizeBytes: testSize, Sabotage: func(n int, e *Event) bool {
		e.FUA = e.FUA && n != 2
		return n != 1
	}})
	s := newStamped(t, d.Device(arena), 512)
	s.write(0, 1, false)
	s.flush()
	s.write(1, 1, true)
	if got := d.Uncertain(d.Points()); len(got) != 2 || d.Points() != 2 {
		t.Errorf("of %d commands %v may be lost", d.Points(), got)
	}
}

// TestSavedDisk checks that a disk from a file has the same crashes.
func TestSavedDisk(t *testing.T) {
	arena := newArena(t)
	d, _ := New(Options{SizeBytes: testSize})
	d.WriteAt([]byte("before"), 9000)
	s := newStamped(t, d.Device(arena), 512)
	for n := range 40 {
		s.write(n%16, 1+n%3, n%5 == 0)
		if n%9 == 0 {
			s.flush()
		}
	}
	var file bytes.Buffer
	if err := d.Save(&file); err != nil {
		t.Fatal(err)
	}
	again, err := Load(&file)
	if err != nil {
		t.Fatal(err)
	}
	if again.Sum() != d.Sum() || again.Points() != d.Points() {
		t.Error("another disk was loaded")
	}
	for seed := range uint64(50) {
		c := Crash{Point: int(seed) % (d.Points() + 1), Seed: seed * 77}
		if d.Image(c).Sum() != again.Image(c).Sum() {
			t.Errorf("%v has another image", c)
		}
	}
}
