package soft

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"runsc-fs/nvme"
	"runsc-fs/nvme/spec"
)

func TestFileBackingRefusesWhatItCannotServe(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "image")
	if err := os.WriteFile(path, make([]byte, 8192), 0o600); err != nil {
		t.Fatal(err)
	}
	open := func(path string, flags int) *os.File {
		f, err := os.OpenFile(path, flags, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	for _, c := range []struct {
		name     string
		f        *os.File
		readOnly bool
		ok       bool
	}{
		{"read-write", open(path, os.O_RDWR), false, true},
		{"read-only", open(path, os.O_RDONLY), true, true},
		{"read-write, used read-only", open(path, os.O_RDWR), true, true},
		{"read-only, to be written", open(path, os.O_RDONLY), false, false},
		{"write-only", open(path, os.O_WRONLY), false, false},
		{"appending", open(path, os.O_RDWR|os.O_APPEND), false, false},
		{"directory", open(dir, os.O_RDONLY), true, false},
		{"character device", open("/dev/zero", os.O_RDWR), false, false},
	} {
		if _, err := NewFileBacking(c.f, c.readOnly); (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestReadOnlyImage(t *testing.T) {
	f := newImage(t, 1<<20)
	b, err := NewFileBacking(f, true)
	if err != nil {
		t.Fatal(err)
	}
	arena := newArena(t)
	dev, err := Open(b, arena, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	page, _ := arena.Alloc(1)
	for _, op := range []nvme.Op{nvme.OpWrite, nvme.OpWriteZeroes, nvme.OpDeallocate} {
		if err := dev.Do([]nvme.Request{{Op: op, LengthBytes: 4096, Vec: [][]byte{page}}}); !errors.Is(err, nvme.ErrReadOnly) {
			t.Errorf("operation %d on a read-only image: %v", op, err)
		}
	}
	if err := dev.Do([]nvme.Request{{Op: nvme.OpRead, Vec: [][]byte{page}}, {Op: nvme.OpFlush}}); err != nil {
		t.Errorf("read and flush: %v", err)
	}
}

// TestShrunkImage: what somebody cut off gives errors, the rest goes on.
func TestShrunkImage(t *testing.T) {
	f := newImage(t, 1<<20)
	path := f.Name()
	b, err := NewFileBacking(f, false)
	if err != nil {
		t.Fatal(err)
	}
	arena := newArena(t)
	dev, err := Open(b, arena, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	if err := os.Truncate(path, 6144); err != nil {
		t.Fatal(err)
	}
	pages, _ := arena.Alloc(3)
	read := func(off int64, vec ...[]byte) error {
		return dev.Do([]nvme.Request{{Op: nvme.OpRead, OffsetBytes: off, Vec: vec}})
	}
	if err := read(0, pages[:4096]); err != nil {
		t.Errorf("before the cut: %v", err)
	}
	if err := read(4096, pages[:4096]); !errors.Is(err, nvme.ErrMedia) {
		t.Errorf("across the cut: %v", err)
	}
	if err := read(4096, pages[8192:], pages[:4096]); !errors.Is(err, nvme.ErrMedia) {
		t.Errorf("across the cut, two pieces: %v", err)
	}
	if err := read(512<<10, pages); !errors.Is(err, nvme.ErrMedia) {
		t.Errorf("behind the cut: %v", err)
	}
}

// TestFailedSyncIsNotForgotten: a success after a failed fdatasync would mean
// nothing, as the kernel has dropped what it could not write.
func TestFailedSyncIsNotForgotten(t *testing.T) {
	b, err := NewFileBacking(newImage(t, 1<<20), false)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if err := b.Flush(); err != nil {
		t.Fatal(err)
	}
	file := b.(*fileBacking)
	good := file.fd
	file.fd = -1
	if err := b.Flush(); !errors.Is(err, unix.EBADF) {
		t.Errorf("failing flush: %v", err)
	}
	file.fd = good
	if err := b.Flush(); err == nil {
		t.Error("flush succeeds after one that failed")
	}
	if err := b.WriteV([][]byte{make([]byte, 512)}, 0, true); err == nil {
		t.Error("FUA write succeeds after a failed flush")
	}
	if err := b.WriteV([][]byte{make([]byte, 512)}, 0, false); err != nil {
		t.Errorf("write without FUA: %v", err)
	}
}

// TestZeroWithoutHostSupport covers the way of a host file system that cannot
// zero ranges or punch holes.
func TestZeroWithoutHostSupport(t *testing.T) {
	for _, c := range []struct{ zero, punch bool }{{true, false}, {false, true}, {false, false}} {
		f := newImage(t, 1<<20)
		backing, err := NewFileBacking(f, false)
		if err != nil {
			t.Fatal(err)
		}
		b := backing.(*fileBacking)
		b.noZero.Store(!c.zero)
		b.noPunch.Store(!c.punch)
		data := bytes.Repeat([]byte{7}, 1<<20)
		if err := b.WriteV([][]byte{data}, 0, false); err != nil {
			t.Fatal(err)
		}
		if err := b.Zero(512, 300<<10, true); err != nil {
			t.Fatal(err)
		}
		clear(data[512:][:300<<10])
		got := make([]byte, 1<<20)
		if err := b.ReadV([][]byte{got}, 0); err != nil || !bytes.Equal(got, data) {
			t.Errorf("zero range %v, punch %v: content differs (%v)", c.zero, c.punch, err)
		}
		if err := b.Deallocate(0, 4096); err != nil {
			t.Errorf("deallocate: %v", err)
		}
		b.Close()
	}
}

func TestImageSurvivesReopening(t *testing.T) {
	f := newImage(t, 1<<20)
	path := f.Name()
	for round := range 3 {
		if round > 0 {
			var err error
			if f, err = os.OpenFile(path, os.O_RDWR, 0); err != nil {
				t.Fatal(err)
			}
		}
		b, err := NewFileBacking(f, false)
		if err != nil {
			t.Fatal(err)
		}
		arena := newArena(t)
		dev, err := Open(b, arena, Options{})
		if err != nil {
			t.Fatal(err)
		}
		page, _ := arena.Alloc(1)
		if err := dev.Do([]nvme.Request{{Op: nvme.OpRead, Vec: [][]byte{page}}}); err != nil || int(page[9]) != round {
			t.Fatalf("round %d: content is %d: %v", round, page[9], err)
		}
		page[9]++
		if err := dev.Do([]nvme.Request{{Op: nvme.OpWrite, Vec: [][]byte{page}}}); err != nil {
			t.Fatal(err)
		}
		if err := dev.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestMemfdMustBeSealed(t *testing.T) {
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "test")
	defer f.Close()
	if err := f.Truncate(1 << 20); err != nil {
		t.Fatal(err)
	}
	if b, err := NewMemfdBacking(f); err == nil {
		b.Close()
		t.Fatal("memfd that may shrink accepted")
	}
	if b, err := NewMemfdBacking(newImage(t, 4096)); err == nil {
		b.Close()
		t.Fatal("ordinary file accepted as memfd")
	}
}

func TestStatusOfMapsErrors(t *testing.T) {
	if s := StatusOf(nil, true); s != spec.Success {
		t.Errorf("no error is %v", s)
	}
	if s := StatusOf(errShortFile, false); s.Code() != spec.UnrecoveredReadError || !s.DNR() {
		t.Errorf("short file is %v", s)
	}
}
