package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// modelled changes one file by every call that changes data or size, one call
// and one fsync a step, and knows what the file must look like after each.
type modelled struct {
	f *os.File
}

const modelBytes = 300 << 10

// state is a file in memory.
type modelState struct {
	data []byte
	mode uint32
}

// opKind and where of step n.
func modelOp(n int64) (kind uint64, off, size int64) {
	kind = mix(uint64(n), 5) % 12
	off = int64(mix(uint64(n), 6) % (modelBytes / 2))
	size = int64(1 + mix(uint64(n), 7)%(48<<10))
	if mix(uint64(n), 8)%3 == 0 { // block boundaries
		off, size = off&^4095, (size+4095)&^4095
	}
	if mix(uint64(n), 9)%3 == 0 {
		size = size%200 + 1
	}
	return kind, off, size
}

func modelBytesOf(n, off, size int64) []byte {
	b := make([]byte, size)
	for k := range b {
		b[k] = byte(n) + byte(off+int64(k))*3 | 1
	}
	return b
}

func (s *modelState) grow(end int64) {
	if n := end - int64(len(s.data)); n > 0 {
		s.data = append(s.data, make([]byte, n)...)
	}
}

// apply does step n to the model.
func (s *modelState) apply(n int64) {
	kind, off, size := modelOp(n)
	switch kind {
	case 0: // truncate
		if int64(len(s.data)) > off {
			s.data = append([]byte(nil), s.data[:off]...)
		}
		s.grow(off)
	case 1, 2: // punch, zero range with the size kept
		if end := min(off+size, int64(len(s.data))); off < end {
			clear(s.data[off:end])
		}
	case 3: // fallocate
		s.grow(off + size)
	case 4: // fallocate, size kept
	case 5: // chmod
		s.mode = uint32(n) & 0o777
	case 6: // append
		if len(s.data) < modelBytes {
			s.data = append(s.data, modelBytesOf(n, int64(len(s.data)), size)...)
		}
	default:
		s.grow(off + size)
		copy(s.data[off:], modelBytesOf(n, off, size))
	}
}

func (m *modelled) do(n int64) error {
	kind, off, size := modelOp(n)
	fd := int(m.f.Fd())
	switch kind {
	case 0:
		return m.f.Truncate(off)
	case 1:
		return unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, size)
	case 2:
		err := unix.Fallocate(fd, unix.FALLOC_FL_ZERO_RANGE|unix.FALLOC_FL_KEEP_SIZE, off, size)
		if err == unix.EOPNOTSUPP {
			return unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, size)
		}
		return err
	case 3:
		return unix.Fallocate(fd, 0, off, size)
	case 4:
		return unix.Fallocate(fd, unix.FALLOC_FL_KEEP_SIZE, off, size)
	case 5:
		return m.f.Chmod(os.FileMode(n & 0o777))
	case 6:
		st, err := m.f.Stat()
		if err != nil || st.Size() >= modelBytes {
			return err
		}
		_, err = m.f.WriteAt(modelBytesOf(n, st.Size(), size), st.Size())
		return err
	}
	_, err := m.f.WriteAt(modelBytesOf(n, off, size), off)
	return err
}

// Each run has a file of its own, named after the step before its first one.

func (m *modelled) verify(dir string, acked int64) (int64, error) {
	names, err := filepath.Glob(filepath.Join(dir, "m*"))
	if err != nil {
		return 0, err
	}
	for _, path := range names {
		base, err := strconv.ParseInt(filepath.Base(path)[1:], 10, 64)
		if err != nil {
			return 0, err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return 0, err
		}
		st, err := os.Stat(path)
		if err != nil {
			return 0, err
		}
		if base <= acked {
			state := modelState{mode: 0o600}
			for n := base + 1; n <= acked; n++ {
				state.apply(n)
			}
			after := modelState{data: bytes.Clone(state.data), mode: state.mode}
			after.apply(acked + 1)
			if err := between(b, state.data, after.data); err != nil {
				kind, off, size := modelOp(acked + 1)
				return 0, fmt.Errorf("%s (next: %d at %d, %d bytes): %w", path, kind, off, size, err)
			}
			if mode := uint32(st.Mode().Perm()); mode != state.mode && mode != after.mode {
				return 0, fmt.Errorf("%s: LOST mode %o: it is %o", path, state.mode, mode)
			}
		}
		if err := os.Remove(path); err != nil {
			return 0, err
		}
	}
	if len(names) == 0 && acked > 0 && m.started(dir) {
		return 0, fmt.Errorf("LOST the file")
	}
	os.Remove(filepath.Join(dir, "started"))
	return acked + 1, syncDirs(dir)
}

func (m *modelled) started(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "started"))
	return err == nil
}

// between makes sure that each byte of b comes from one of two states.
func between(b, before, after []byte) error {
	if len(b) != len(before) && len(b) != len(after) {
		// A write that was cut short by the crash has grown the file in part.
		if len(b) < len(before) || len(b) > len(after) {
			return fmt.Errorf("LOST: it has %d bytes, not %d or %d", len(b), len(before), len(after))
		}
	}
	at := func(s []byte, k int) byte {
		if k < len(s) {
			return s[k]
		}
		return 0
	}
	for k, c := range b {
		if c != at(before, k) && c != at(after, k) {
			return fmt.Errorf("LOST: byte %d of %d is %#x, not %#x or %#x", k, len(b), c, at(before, k), at(after, k))
		}
	}
	return nil
}

func (m *modelled) step(dir string, n int64) error {
	if m.f == nil {
		var err error
		if m.f, err = os.OpenFile(filepath.Join(dir, fmt.Sprintf("m%d", n-1)), os.O_RDWR|os.O_CREATE, 0o600); err != nil {
			return err
		}
		if err := m.f.Chmod(0o600); err != nil {
			return err
		}
		if err := writeSynced(filepath.Join(dir, "started"), 0, nil); err != nil {
			return err
		}
		if err := syncDirs(dir); err != nil {
			return err
		}
	}
	if err := m.do(n); err != nil {
		return err
	}
	return m.f.Sync()
}
