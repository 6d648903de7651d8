package soft

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// memoryPunchBytes is the range length from which zeroing gives pages back to
// the host instead of clearing them.
const memoryPunchBytes = 256 << 10

const hostPageBytes = 4096

// memoryBacking keeps the namespace in a mapped memfd. Reads and writes copy
// memory and make no system call; zeroing and deallocating long ranges call
// fallocate.
type memoryBacking struct {
	file *os.File
	fd   int
	mem  []byte
}

// NewMemoryBacking makes a namespace of sizeBytes zeroes in memory. Only
// pages that were written cost anything. The content ends with Close.
func NewMemoryBacking(sizeBytes int64) (Backing, error) {
	if sizeBytes <= 0 {
		return nil, fmt.Errorf("soft: memory namespace of %d bytes", sizeBytes)
	}
	fd, err := unix.MemfdCreate("nvme-namespace", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("soft: creating a memory namespace: %w", err)
	}
	f := os.NewFile(uintptr(fd), "memory")
	if err := unix.Ftruncate(fd, sizeBytes); err != nil {
		f.Close()
		return nil, fmt.Errorf("soft: sizing a memory namespace to %d bytes: %w", sizeBytes, err)
	}
	if _, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW); err != nil {
		f.Close()
		return nil, fmt.Errorf("soft: sealing a memory namespace: %w", err)
	}
	return NewMemfdBacking(f)
}

// NewMemfdBacking serves a namespace from an existing memfd, which outlives the
// controller when someone else holds it too. The memfd must be sealed against
// shrinking: else whoever shrinks it could kill this process. It takes f over.
func NewMemfdBacking(f *os.File) (Backing, error) {
	seals, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0)
	if err != nil || seals&unix.F_SEAL_SHRINK == 0 {
		return nil, fmt.Errorf("soft: %s is no memfd that is sealed against shrinking", f.Name())
	}
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("soft: %w", err)
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, int(info.Size()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("soft: mapping a memory namespace of %d bytes: %w", info.Size(), err)
	}
	return &memoryBacking{file: f, fd: int(f.Fd()), mem: mem}, nil
}

func (m *memoryBacking) String() string { return fmt.Sprintf("memory of %d bytes", len(m.mem)) }

func (m *memoryBacking) Properties() Properties {
	return Properties{SizeBytes: int64(len(m.mem)), DeallocateZeroes: true, AtomicWriteBytes: hostPageBytes}
}

func (m *memoryBacking) ReadV(vec [][]byte, off int64) error {
	for _, b := range vec {
		off += int64(copy(b, m.mem[off:]))
	}
	return nil
}

func (m *memoryBacking) WriteV(vec [][]byte, off int64, fua bool) error {
	for _, b := range vec {
		off += int64(copy(m.mem[off:], b))
	}
	return nil
}

func (m *memoryBacking) Zero(off, n int64, fua bool) error {
	b := m.mem[off : off+n]
	first := (off + hostPageBytes - 1) &^ (hostPageBytes - 1)
	last := (off + n) &^ (hostPageBytes - 1)
	if last-first < memoryPunchBytes {
		clear(b)
		return nil
	}
	if unix.Fallocate(m.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, first, last-first) != nil {
		clear(b)
		return nil
	}
	clear(m.mem[off:first])
	clear(m.mem[last : off+n])
	return nil
}

func (m *memoryBacking) Deallocate(off, n int64) error { return m.Zero(off, n, false) }
func (m *memoryBacking) Flush() error                  { return nil }

func (m *memoryBacking) Close() error {
	if m.mem == nil {
		return nil
	}
	err := unix.Munmap(m.mem)
	m.mem = nil
	if err2 := m.file.Close(); err == nil {
		err = err2
	}
	return err
}
