package layers

import (
	"bytes"
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"runsc-fs/nvme"
	"runsc-fs/nvme/soft"
)

// counting counts the syncs of a medium.
type counting struct {
	soft.Backing
	flushes int
}

func (c *counting) Flush() error { c.flushes++; return c.Backing.Flush() }

func memoryStack(t testing.TB, sizeBytes int64, wrap func(soft.Backing) soft.Backing) *stack {
	t.Helper()
	h := newHeader(identity{}, sizeBytes)
	base, err := soft.NewMemoryBacking(sizeBytes)
	if err != nil {
		t.Fatal(err)
	}
	top, err := soft.NewMemoryBacking(h.dataOffset + sizeBytes)
	if err != nil {
		t.Fatal(err)
	}
	s, err := newStack([]layer{{backing: base}, {backing: wrap(top), header: h}}, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// TestSyncs: a Flush needs a second sync only when blocks are new, and a log
// that is synced record by record makes blocks new ahead of its end.
func TestSyncs(t *testing.T) {
	var medium *counting
	s := memoryStack(t, 64<<20, func(b soft.Backing) soft.Backing { medium = &counting{Backing: b}; return medium })
	block := make([]byte, BlockBytes)
	syncs := func(off int64) int {
		t.Helper()
		before := medium.flushes
		if err := s.WriteV([][]byte{block}, off, true); err != nil {
			t.Fatal(err)
		}
		return medium.flushes - before
	}
	if n := syncs(40 << 20); n != 2 {
		t.Errorf("a durable write of a new block takes %d syncs, want 2", n)
	}
	if n := syncs(40 << 20); n != 1 {
		t.Errorf("a durable write of a present block takes %d syncs, want 1", n)
	}
	const records = 2000
	extra := 0
	for i := range int64(records) {
		extra += syncs(i*BlockBytes) - 1
	}
	if extra > records/100 {
		t.Errorf("a log of %d records takes %d additional syncs", records, extra)
	}
	// A bulk write is not followed by copies.
	before := s.table
	for i := range int64(100) {
		write(t, s, block, 50<<20+i*BlockBytes)
	}
	if number, _ := before.run(50<<20>>blockShift+100, before.blocks()); number == s.top {
		t.Error("blocks behind a bulk write were copied up")
	}
}

// TestFaults: what the host cannot store fails the write, shows nothing else, and
// the failure of a sync is never forgotten.
func TestFaults(t *testing.T) {
	var faulty *soft.Faulty
	s := memoryStack(t, 64<<20, func(b soft.Backing) soft.Backing { faulty = soft.NewFaulty(b); return faulty })
	data := bytes.Repeat([]byte{7}, BlockBytes)
	got := [][]byte{make([]byte, BlockBytes)}

	faulty.Set(soft.Fault{Op: nvme.OpWriteZeroes, From: 0, Until: 1 << 20, Err: unix.ENOSPC})
	if err := s.WriteV([][]byte{data}, 0, false); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("no space for the map: %v", err)
	}
	faulty.Set(soft.Fault{Op: nvme.OpWrite, Partial: true, Err: unix.EIO})
	if err := s.WriteV([][]byte{data}, 0, false); !errors.Is(err, unix.EIO) {
		t.Errorf("a write that fails half way: %v", err)
	}
	faulty.Set()
	if err := errors.Join(s.Flush(), s.ReadV(got, 0)); err != nil || !isZero(got[0]) {
		t.Errorf("after failed writes the block is %#x (%v), want the parent's", got[0][0], err)
	}
	write(t, s, data, 0)
	faulty.Set(soft.Fault{Op: nvme.OpWrite, From: mapOffset, Until: mapOffset + 4096, Count: 1, Err: unix.EIO})
	if err := s.Flush(); !errors.Is(err, unix.EIO) {
		t.Errorf("the map cannot be written: %v", err)
	}
	if err := s.Flush(); !errors.Is(err, unix.EIO) {
		t.Errorf("a Flush after a failed one: %v", err)
	}
	if err := s.ReadV(got, 0); err != nil || !bytes.Equal(got[0], data) {
		t.Errorf("reading after a failed Flush: %v", err)
	}
}

// TestDamage flips bits in header and map: what is damaged gives errors, all else
// goes on, and nothing reads as the parent's that is not.
func TestDamage(t *testing.T) {
	const size = 40 << 20 // three map sectors
	base := newFile(t, size)
	if _, err := base.WriteAt(bytes.Repeat([]byte{0xbb}, size), 0); err != nil {
		t.Fatal(err)
	}
	chain := addLayer(t, []*os.File{base}, size)
	s := mustServe(t, chain)
	data := bytes.Repeat([]byte{7}, BlockBytes)
	inSector := func(n int64) int64 { return (n*bitsPerSector + 5) * BlockBytes }
	for n := range int64(3) {
		write(t, s, data, inSector(n))
	}
	if err := errors.Join(s.Flush(), s.Close()); err != nil {
		t.Fatal(err)
	}
	flip := func(off int64) {
		t.Helper()
		var b [1]byte
		if _, err := chain[1].ReadAt(b[:], off); err != nil {
			t.Fatal(err)
		}
		b[0] ^= 0x10
		if _, err := chain[1].WriteAt(b[:], off); err != nil {
			t.Fatal(err)
		}
	}
	for off := int64(0); off < sectorBytes; off++ {
		flip(off)
		if got, err := serve(t, chain, false); err == nil {
			t.Errorf("byte %d of the header is not missed", off)
			got.Close()
		} else if off >= 8 && !errors.Is(err, ErrDamaged) {
			t.Errorf("byte %d of the header: %v", off, err)
		}
		flip(off)
	}

	got := [][]byte{make([]byte, BlockBytes)}
	damaged := int64(mapOffset + sectorBytes) // sector 1
	for off := range int64(sectorBytes) {
		flip(damaged + off)
		s := mustServe(t, chain)
		if n := Check(s); n != bitsPerSector {
			t.Fatalf("byte %d of the map: %d blocks are damaged, want %d", off, n, bitsPerSector)
		}
		for _, at := range []int64{inSector(1), inSector(1) + BlockBytes} {
			if err := s.ReadV(got, at); !errors.Is(err, ErrDamaged) {
				t.Fatalf("reading what the damaged sector describes: %v, data %#x", err, got[0][0])
			}
			if err := s.WriteV(got, at, false); !errors.Is(err, ErrDamaged) {
				t.Fatalf("writing there: %v", err)
			}
		}
		for _, n := range []int64{0, 2} {
			if err := s.ReadV(got, inSector(n)); err != nil || got[0][0] != 7 {
				t.Fatalf("reading beside the damage: %v, %#x", err, got[0][0])
			}
			write(t, s, data, inSector(n)+BlockBytes)
		}
		if err := errors.Join(s.Flush(), s.Close()); err != nil {
			t.Fatal(err)
		}
		flip(damaged + off)
	}
	s = mustServe(t, chain)
	if err := s.ReadV(got, inSector(1)); err != nil || got[0][0] != 7 {
		t.Errorf("repaired: %v, %#x: the damaged sector was written over", err, got[0][0])
	}
	s.Close()

	// Above a damaged frozen layer, whole blocks can be written and then read.
	flip(damaged + 100)
	chain = addLayer(t, chain, size)
	s = mustServe(t, chain)
	defer s.Close()
	if err := s.WriteV([][]byte{data[:512]}, inSector(1), false); !errors.Is(err, ErrDamaged) {
		t.Errorf("writing a part of a block that cannot be read: %v", err)
	}
	write(t, s, data, inSector(1))
	if err := s.ReadV(got, inSector(1)); err != nil || got[0][0] != 7 {
		t.Errorf("a block written above the damage: %v", err)
	}
}

// TestRuns compares the readers of maps and tables with the obvious ones.
func TestRuns(t *testing.T) {
	for trial := range 200 {
		table, err := newTable(bitsPerSector*2, 0)
		if err != nil {
			t.Fatal(err)
		}
		s := &stack{layers: make([]layer, 2), top: 1, table: table}
		s.layers[1].header = &header{id: [16]byte{1}}
		want := make([]bool, table.blocks())
		for at := int64(0); at < table.blocks(); {
			n := min(1+int64(trial)*at%(7+int64(trial)*13), table.blocks()-at)
			if (at+int64(trial))%3 != 0 {
				table.fill(at, at+n, 1)
				for i := at; i < at+n; i++ {
					want[i] = true
				}
			}
			at += n
		}
		for number := range int64(2) {
			sector := make([]byte, sectorBytes)
			s.imageLocked(sector, number)
			if empty, ok := checkSector(sector, &s.layers[1].header.id, number); empty || !ok {
				t.Fatalf("trial %d: the image is not valid", trial)
			}
			if _, ok := checkSector(sector, &s.layers[1].header.id, number+1); ok {
				t.Fatal("a map sector is valid in another's place")
			}
			got := make([]bool, bitsPerSector)
			end := int64(-1)
			eachRun(sector, func(from, to int64) {
				if from <= end || to <= from {
					t.Fatalf("trial %d: run %d to %d after %d", trial, from, to, end)
				}
				for end = from; end < to; end++ {
					got[end] = true
				}
			})
			for i := range got {
				if got[i] != want[number*bitsPerSector+int64(i)] {
					t.Fatalf("trial %d: sector %d, bit %d is %v", trial, number, i, got[i])
				}
			}
		}
		for at := int64(0); at < table.blocks(); at += 1 + at%17 {
			number, end := table.run(at, table.blocks())
			for i := at; i < end; i++ {
				if want[i] != (number == 1) {
					t.Fatalf("trial %d: run from %d has block %d", trial, at, i)
				}
			}
			if end < table.blocks() && want[end] == want[at] {
				t.Fatalf("trial %d: run from %d ends at %d too early", trial, at, end)
			}
		}
		table.close()
	}
}
