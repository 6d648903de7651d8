package main

import (
	"fmt"
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/unix"
)

// appender appends records of different lengths to a file, each followed by
// fdatasync, and begins a new file now and then.
type appender struct {
	f   *os.File
	end int64
}

const recordsPerFile = 700

func recordBytes(n int64) int64 { return cellBytes * (1 + int64(mix(uint64(n), 1)%150)) }

func (a *appender) path(dir string, n int64) string {
	return filepath.Join(dir, fmt.Sprintf("log%d", n/recordsPerFile))
}

func (a *appender) verify(dir string, acked int64) (int64, error) {
	last := acked
	for k := max(acked/recordsPerFile-1, 0); k <= acked/recordsPerFile+1; k++ {
		path := filepath.Join(dir, fmt.Sprintf("log%d", k))
		b, err := os.ReadFile(path)
		first := k * recordsPerFile
		end := first + recordsPerFile
		if err != nil {
			// The file before the last one goes when the last one begins.
			if k == acked/recordsPerFile && acked > 0 {
				return 0, err
			}
			continue
		}
		id := fileID(path)
		off := int64(0)
		n := max(first, 1)
		for ; n < end; n++ {
			size := recordBytes(n)
			if int64(len(b)) < off+size {
				break
			}
			r, err := checkCells(b[off:off+size], id, off)
			if err != nil {
				return 0, fmt.Errorf("%s, record %d: %w", path, n, err)
			}
			if r.zeroes > 0 || r.min != n || r.max != n {
				if n <= acked {
					return 0, fmt.Errorf("%s: LOST record %d at %d: %+v", path, n, off, r)
				}
				break
			}
			off += size
		}
		if n <= acked && n < end {
			return 0, fmt.Errorf("%s: LOST records %d to %d: the file has %d bytes", path, n, min(acked, end-1), len(b))
		}
		if _, err := checkCells(b[off:], id, off); err != nil {
			return 0, fmt.Errorf("%s, behind record %d: %w", path, n-1, err)
		}
		if k == acked/recordsPerFile || n > first {
			last = max(last, n-1)
		}
		if err := os.Truncate(path, off); err != nil {
			return 0, err
		}
		a.end = off
	}
	return last, nil
}

func (a *appender) step(dir string, n int64) error {
	path := a.path(dir, n)
	if a.f == nil || a.f.Name() != path {
		if a.f != nil {
			a.f.Close()
		}
		var err error
		if a.f, err = os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644); err != nil {
			return err
		}
		st, err := a.f.Stat()
		if err != nil {
			return err
		}
		a.end = st.Size()
		if err := syncDirs(dir); err != nil {
			return err
		}
		if n >= 2*recordsPerFile {
			os.Remove(a.path(dir, n-2*recordsPerFile))
		}
	}
	b := cells(int(recordBytes(n)), fileID(path), a.end, n)
	if _, err := a.f.Write(b); err != nil {
		return err
	}
	a.end += int64(len(b))
	return unix.Fdatasync(int(a.f.Fd()))
}

// slots overwrites parts of one file in place and makes each write durable in
// one of several ways.
type slots struct {
	mode    string
	fd      int
	mapping []byte
	buf     []byte
}

const slotCount = 96

// slot is the place of step n, and its size.
func (s *slots) slot(n int64) (slot int64, off int64, size int) {
	slot = int64(mix(uint64(n), 2) % slotCount)
	size = s.size()
	return slot, slot * int64(size), size
}

func (s *slots) size() int {
	if s.mode == "direct" {
		return 8192
	}
	return 6016
}

func (s *slots) verify(dir string, acked int64) (int64, error) {
	s.fd = -1
	path := filepath.Join(dir, "slots")
	b, err := os.ReadFile(path)
	if err != nil {
		if acked > 0 {
			return 0, err
		}
		return 0, nil
	}
	var want [slotCount]int64
	for n := int64(1); n <= acked; n++ {
		k, _, _ := s.slot(n)
		want[k] = n
	}
	id := fileID(path)
	for k, w := range want {
		from := k * s.size()
		if len(b) < from+s.size() {
			if w > 0 {
				return 0, fmt.Errorf("%s: LOST slot %d: the file ends at %d", path, k, len(b))
			}
			break
		}
		check := checkCells
		if next, _, _ := s.slot(acked + 1); next == int64(k) {
			check = checkTorn
		}
		r, err := check(b[from:from+s.size()], id, int64(from))
		if err != nil {
			return 0, fmt.Errorf("%s, slot %d: %w", path, k, err)
		}
		if w > 0 && (r.zeroes > 0 || r.min < w) {
			return 0, fmt.Errorf("%s: LOST slot %d: step %d was acknowledged, found %+v", path, k, w, r)
		}
	}
	return acked, nil // a step that was begun is done again
}

func (s *slots) open(dir string) error {
	flags := unix.O_RDWR | unix.O_CREAT
	switch s.mode {
	case "dsync":
		flags |= unix.O_DSYNC
	case "direct":
		flags |= unix.O_DIRECT | unix.O_DSYNC
	}
	var err error
	if s.fd, err = unix.Open(filepath.Join(dir, "slots"), flags, 0o644); err != nil {
		return err
	}
	if err := syncDirs(dir); err != nil {
		return err
	}
	s.buf, err = unix.Mmap(-1, 0, 8192, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANONYMOUS|unix.MAP_PRIVATE)
	if err != nil {
		return err
	}
	if s.mode == "msync" {
		if err := unix.Ftruncate(s.fd, slotCount*6016); err != nil {
			return err
		}
		s.mapping, err = unix.Mmap(s.fd, 0, slotCount*6016, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	return err
}

func (s *slots) step(dir string, n int64) error {
	if s.fd < 0 {
		if err := s.open(dir); err != nil {
			return err
		}
	}
	_, off, size := s.slot(n)
	b := s.buf[:size]
	fillCells(b, fileID(filepath.Join(dir, "slots")), off, n)
	if s.mode == "msync" {
		copy(s.mapping[off:], b)
		from := off &^ 4095
		return unix.Msync(s.mapping[from:min(off+int64(size), int64(len(s.mapping)))], unix.MS_SYNC)
	}
	var m int
	var err error
	if s.mode == "rwf" {
		m, err = pwritev2(s.fd, b, off, unix.RWF_DSYNC)
	} else {
		m, err = unix.Pwrite(s.fd, b, off)
	}
	if err == nil && m != size {
		err = fmt.Errorf("wrote %d of %d bytes", m, size)
	}
	if err != nil {
		return err
	}
	switch s.mode {
	case "fdatasync":
		return unix.Fdatasync(s.fd)
	case "syncfs":
		return unix.Syncfs(s.fd)
	}
	return nil
}

func pwritev2(fd int, b []byte, off int64, flags int) (int, error) {
	v := unix.Iovec{Base: &b[0], Len: uint64(len(b))}
	n, _, errno := unix.Syscall6(unix.SYS_PWRITEV2, uintptr(fd), uintptr(unsafe.Pointer(&v)), 1, uintptr(off), 0, uintptr(flags))
	if errno != 0 {
		return int(n), errno
	}
	return int(n), nil
}

// loose writes files and never syncs them. Whatever a crash leaves of them, it
// must be theirs.
type loose struct{}

func (*loose) verify(dir string, acked int64) (int64, error) {
	names, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		return 0, err
	}
	for _, path := range names {
		b, err := os.ReadFile(path)
		if err != nil {
			return 0, err
		}
		if _, err := checkTorn(b, fileID(path), 0); err != nil {
			return 0, fmt.Errorf("%s shows what is not its own: %w", path, err)
		}
	}
	return acked, nil
}

func (*loose) step(dir string, n int64) error {
	rnd := func(k uint64) int64 { return int64(mix(uint64(n), 3, k) >> 1) }
	path := filepath.Join(dir, fmt.Sprintf("l%d", rnd(0)%24))
	if rnd(1)%4 == 0 {
		os.Remove(path)
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	off := rnd(2) % (1 << 20) / cellBytes * cellBytes
	size := int(rnd(3) % (96 << 10) / cellBytes * cellBytes)
	switch rnd(4) % 8 {
	case 0:
		return f.Truncate(off)
	case 1:
		return unix.Fallocate(int(f.Fd()), uint32(rnd(5)%2)*unix.FALLOC_FL_KEEP_SIZE, off, int64(size)+1)
	case 2:
		return unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, int64(size)+cellBytes)
	}
	_, err = f.WriteAt(cells(size, fileID(path), off, n), off)
	return err
}
