package layers

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"

	"runsc-fs/nvme/crashdev"
	"runsc-fs/nvme/soft"
)

const (
	crashBlocks = 8000 // a little more than two map sectors
	unitBytes   = 512
)

// baseBacking is a base whose units carry numbers that no write has.
func baseBacking(t testing.TB) soft.Backing {
	t.Helper()
	b, err := soft.NewMemoryBacking(crashBlocks * BlockBytes)
	if err != nil {
		t.Fatal(err)
	}
	for unit := range int64(crashBlocks * BlockBytes / unitBytes) {
		write(t, b, stamp(baseNumber(unit)), unit*unitBytes)
	}
	return b
}

func baseNumber(unit int64) uint64 { return 1<<63 | uint64(unit) }

// stamp is a unit that carries a number.
func stamp(number uint64) []byte {
	b := make([]byte, unitBytes)
	for i := 0; i < unitBytes; i += 8 {
		binary.LittleEndian.PutUint64(b[i:], number)
	}
	return b
}

// history knows what each unit may hold after a power cut.
type history struct {
	durable map[int64]uint64   // by unit; absent: the base's
	later   map[int64][]uint64 // completed, not flushed
	wild    map[int64][]uint64 // what a cut that came before may have left
}

func (h *history) allowed(unit int64, number uint64) bool {
	want, ok := h.durable[unit]
	if !ok {
		want = baseNumber(unit)
	}
	for _, n := range append(h.later[unit], h.wild[unit]...) {
		if n == number {
			return true
		}
	}
	return number == want
}

// crashStack puts a layer on a recording disk above a base.
func crashStack(base soft.Backing, disk *crashdev.Disk, h *header) (*stack, error) {
	return newStack([]layer{{backing: keepOpen{base}}, {backing: disk.Backing(), header: h}}, false)
}

// keepOpen lets several stacks share a base.
type keepOpen struct{ soft.Backing }

func (keepOpen) Close() error { return nil }

// crashRig makes a fresh disk for a layer.
func crashRig(t testing.TB, lying bool) (*crashdev.Disk, *header) {
	t.Helper()
	h := newHeader(identity{}, crashBlocks*BlockBytes)
	disk, err := crashdev.New(crashdev.Options{SizeBytes: h.dataOffset + crashBlocks*BlockBytes, IgnoreFlush: lying})
	if err != nil {
		t.Fatal(err)
	}
	// What a cut may have left in blocks that are not in the map must not show.
	junk := stamp(0xdeadbeef)
	for unit := range int64(crashBlocks * BlockBytes / unitBytes) {
		if _, err := disk.WriteAt(junk, h.dataOffset+unit*unitBytes); err != nil {
			t.Fatal(err)
		}
	}
	disk.Restart()
	return disk, h
}

// crashWork writes, zeroes and flushes at random in a few places, and calls
// check before each step with what is so far.
func crashWork(t *testing.T, s *stack, rng *rand.Rand, h *history, steps int, check func()) {
	number := rng.Uint64() >> 2
	// Some areas, one across the border of two map sectors, so that blocks are
	// written again and again.
	areas := []int64{0, bitsPerSector*8 - 40, 7900 * 8}
	next := int64(3000 * 8) // a log, for copies ahead
	record := func(unit, units int64, n uint64) {
		for u := unit; u < unit+units; u++ {
			h.later[u] = append(h.later[u], n)
		}
	}
	for range steps {
		check()
		unit := areas[rng.IntN(len(areas))] + rng.Int64N(80)
		units := 1 + rng.Int64N(30)
		number++
		switch op := rng.IntN(10); {
		case op < 4:
			if rng.IntN(2) == 0 {
				unit, units = unit&^7, (units+7)&^7
			}
			record(unit, units, number)
			s.mustWrite(t, unit, units, number)
		case op < 6: // a record of a log, durable at once
			record(next, 8, number)
			s.mustWrite(t, next, 8, number)
			next += 8
			s.mustFlush(t, h)
		case op < 7:
			record(unit, units, 0)
			if err := s.Zero(unit*unitBytes, units*unitBytes, false); err != nil {
				t.Fatal(err)
			}
		case op < 8:
			record(unit, units, 0)
			if err := s.Deallocate(unit*unitBytes, units*unitBytes); err != nil {
				t.Fatal(err)
			}
		default:
			s.mustFlush(t, h)
		}
	}
	check()
}

func (s *stack) mustWrite(t *testing.T, unit, units int64, number uint64) {
	t.Helper()
	var data []byte
	for range units {
		data = append(data, stamp(number)...)
	}
	write(t, s, data, unit*unitBytes)
}

func (s *stack) mustFlush(t *testing.T, h *history) {
	t.Helper()
	if err := s.Flush(); err != nil {
		t.Fatal(err)
	}
	for u, l := range h.later {
		h.durable[u] = l[len(l)-1]
		delete(h.later, u)
		delete(h.wild, u)
	}
}

// verify opens what a cut left and looks at every unit.
func (h *history) verify(base soft.Backing, img *crashdev.Disk, hd *header) error {
	s, err := crashStack(base, img, hd)
	if err != nil {
		return err
	}
	defer s.Close()
	if n := Check(s); n != 0 {
		return fmt.Errorf("the map of %d blocks is damaged", n)
	}
	data := make([]byte, BlockBytes)
	for block := range int64(crashBlocks) {
		if !h.near(block) {
			continue
		}
		if err := s.ReadV([][]byte{data}, block*BlockBytes); err != nil {
			return err
		}
		for at := 0; at < BlockBytes; at += unitBytes {
			unit, b := (block*BlockBytes+int64(at))/unitBytes, data[at:at+unitBytes]
			number := binary.LittleEndian.Uint64(b)
			for i := 8; i < unitBytes; i += 8 {
				if binary.LittleEndian.Uint64(b[i:]) != number {
					return fmt.Errorf("unit %d is torn", unit)
				}
			}
			if !h.allowed(unit, number) {
				return fmt.Errorf("unit %d of block %d holds %#x; durable is %#x, later %#x", unit, block, number, h.durable[unit], h.later[unit])
			}
		}
	}
	return nil
}

// near tells whether to look at a block: at those where something was written, at
// their neighbours, and at some others.
func (h *history) near(block int64) bool {
	if block%64 == 0 {
		return true
	}
	for b := block - 1; b <= block+1; b++ {
		for unit := b * 8; unit < b*8+8; unit++ {
			if _, ok := h.durable[unit]; ok || len(h.later[unit])+len(h.wild[unit]) > 0 {
				return true
			}
		}
	}
	return false
}

// TestPowerCut cuts the power at many moments of random work, several times in
// the life of a layer, and wants every unit to be what it was made last or, if
// that was not flushed, one of its states before: the parent's until the first.
func TestPowerCut(t *testing.T) {
	base := baseBacking(t)
	rounds, images := 3, 25
	if testing.Short() {
		rounds, images = 1, 12
	}
	for round := range rounds {
		seed := uint64(round + 1)
		rng := rand.New(rand.NewPCG(seed, 7))
		disk, hd := crashRig(t, false)
		h := &history{durable: map[int64]uint64{}, later: map[int64][]uint64{}, wild: map[int64][]uint64{}}
		for life := range 3 {
			s, err := crashStack(base, disk, hd)
			if err != nil {
				t.Fatal(err)
			}
			steps := 60
			every := max(1, steps/images)
			step := 0
			crashWork(t, s, rng, h, steps, func() {
				if step++; step%every != 0 {
					return
				}
				c := crashdev.Crash{Point: disk.Points(), Seed: rng.Uint64()}
				if rng.IntN(3) == 0 {
					c.Seed = rng.Uint64N(30)
				}
				if err := h.verify(base, disk.Image(c), hd); err != nil {
					t.Fatalf("seed %d, life %d, step %d, %v: %v", seed, life, step, c, err)
				}
			})
			// The cut itself: what was not flushed may show or not from now on.
			disk.PowerCut(rng.Uint64())
			for u, l := range h.later {
				h.wild[u] = append(h.wild[u], l...)
				delete(h.later, u)
			}
			if err := h.verify(base, disk.Clone(), hd); err != nil {
				t.Fatalf("seed %d, after the cut that ends life %d: %v", seed, life, err)
			}
		}
	}
}

// TestPowerCutDuringFlush looks at every point within single flushes.
func TestPowerCutDuringFlush(t *testing.T) {
	base := baseBacking(t)
	disk, hd := crashRig(t, false)
	s, err := crashStack(base, disk, hd)
	if err != nil {
		t.Fatal(err)
	}
	h := &history{durable: map[int64]uint64{}, later: map[int64][]uint64{}, wild: map[int64][]uint64{}}
	for number := range uint64(6) {
		for _, unit := range []int64{0, bitsPerSector*8 - 8, bitsPerSector * 8, int64(number) * 64} {
			s.mustWrite(t, unit, 16, 100+number)
			for u := unit; u < unit+16; u++ {
				h.later[u] = append(h.later[u], 100+number)
			}
		}
		from := disk.Points()
		if err := s.Flush(); err != nil {
			t.Fatal(err)
		}
		for point := from; point <= disk.Points(); point++ {
			n := uint64(len(disk.Uncertain(point)))
			for seed := range min(2*n+2, 12) + 6 {
				c := crashdev.Crash{Point: point, Seed: seed}
				if seed >= 12 {
					c.Seed = 1000 + seed
				}
				if err := h.verify(base, disk.Image(c), hd); err != nil {
					t.Fatalf("flush %d from point %d, %v: %v", number, from, c, err)
				}
			}
		}
		for u, l := range h.later {
			h.durable[u] = l[len(l)-1]
			delete(h.later, u)
		}
		if err := h.verify(base, disk.Image(crashdev.Crash{Point: disk.Points()}), hd); err != nil {
			t.Fatalf("after flush %d, all that may be lost is: %v", number, err)
		}
	}
}

// TestPowerCutCanary: on a disk that lies about flushes the rig must find faults.
func TestPowerCutCanary(t *testing.T) {
	base := baseBacking(t)
	disk, hd := crashRig(t, true)
	s, err := crashStack(base, disk, hd)
	if err != nil {
		t.Fatal(err)
	}
	h := &history{durable: map[int64]uint64{}, later: map[int64][]uint64{}, wild: map[int64][]uint64{}}
	rng := rand.New(rand.NewPCG(1, 7))
	found := 0
	crashWork(t, s, rng, h, 60, func() {
		if h.verify(base, disk.Image(crashdev.Crash{Point: disk.Points(), Seed: rng.Uint64()}), hd) != nil {
			found++
		}
	})
	if found == 0 {
		t.Error("a disk that ignores Flush passes")
	}
}
