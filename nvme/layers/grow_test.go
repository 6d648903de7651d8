package layers

import (
	"errors"
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"runsc-fs/nvme/soft"
)

// TestGrow makes volumes larger to the limits of what they lie in.
func TestGrow(t *testing.T) {
	const size = 16 << 20
	base := newFile(t, size)
	if _, err := base.WriteAt([]byte{1}, size-1); err != nil {
		t.Fatal(err)
	}
	chain := addLayer(t, []*os.File{base}, size)
	top := chain[1]
	s := mustServe(t, chain)
	defer s.Close()
	if err := Grow(top, size*growthFactor+BlockBytes); !errors.Is(err, ErrTooLarge) {
		t.Errorf("growing beyond the map: %v", err)
	}
	if err := s.Grow(2 * size); err == nil {
		t.Error("grew without a longer file")
	}
	if err := Grow(top, size*growthFactor); err != nil {
		t.Fatal(err)
	}
	for _, sizeBytes := range []int64{size + BlockBytes, 2 * size, size, size * growthFactor} {
		if err := s.Grow(sizeBytes); err != nil {
			t.Fatal(err)
		}
	}
	if got := s.Properties().SizeBytes; got != size*growthFactor {
		t.Fatalf("%d bytes, not %d", got, size*growthFactor)
	}
	// A read from the base's last block on, and a write far behind it.
	got := make([]byte, 2*BlockBytes)
	got[BlockBytes] = 7
	if err := s.ReadV([][]byte{got}, size-BlockBytes); err != nil || got[BlockBytes-1] != 1 || got[BlockBytes] != 0 {
		t.Errorf("over the end of the base: %d, %d, %v", got[BlockBytes-1], got[BlockBytes], err)
	}
	write(t, s, []byte{5, 6, 7}, size*growthFactor-3)
	if err := s.Flush(); err != nil {
		t.Fatal(err)
	}
	again, err := serve(t, chain, true)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if err := again.ReadV([][]byte{got}, size*growthFactor-int64(len(got))); err != nil || got[len(got)-1] != 7 || got[len(got)-4] != 0 {
		t.Errorf("at the new end: %v", err)
	}
	if err := again.(soft.Grower).Grow(size * growthFactor); err == nil {
		t.Error("a stack that is only read grew")
	}
	// What no layer has costs nothing in the table, however far the base ends before.
	if n := residentPages(t, s.table.mem); n > 16 {
		t.Errorf("the table of a volume with two blocks has %d pages in memory", n)
	}
}

// residentPages counts the pages of a mapping that are in memory.
func residentPages(t *testing.T, mem []byte) (pages int) {
	t.Helper()
	vec := make([]byte, (len(mem)+4095)/4096)
	if _, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&mem[0])), uintptr(len(mem)), uintptr(unsafe.Pointer(&vec[0]))); errno != 0 {
		t.Fatal(errno)
	}
	for _, v := range vec {
		pages += int(v & 1)
	}
	return pages
}
