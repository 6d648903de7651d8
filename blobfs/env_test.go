package blobfs

import (
	"bytes"
	"errors"
	"sync/atomic"
	"testing"

	"runsc-fs/nvme"
	"runsc-fs/nvme/soft"
)

// env is a file system on a memory device.
type env struct {
	t   testing.TB
	dev nvme.BlockDevice
	fs  *FS
	now int64
}

// testOptions are mount options for deterministic tests: a clock that ticks
// with every look, and no commits in the background.
func (e *env) testOptions() MountOptions {
	return MountOptions{
		CacheBytes: 8 << 20, CommitInterval: -1,
		Now:  func() int64 { return atomic.AddInt64(&e.now, 1000) },
		Logf: e.t.Logf,
	}
}

func newEnv(t testing.TB, sizeBytes int64) *env {
	t.Helper()
	dev, err := soft.NewMemory(sizeBytes)
	if err != nil {
		t.Fatal(err)
	}
	e := &env{t: t, dev: dev, now: 1 << 60}
	t.Cleanup(func() {
		if e.fs != nil {
			if err := e.fs.Close(); err != nil {
				t.Errorf("closing: %v", err)
			}
		}
		e.dev.Close()
	})
	if err := Mkfs(dev, MkfsOptions{Label: "test"}); err != nil {
		t.Fatal(err)
	}
	e.mount()
	return e
}

func (e *env) mount() {
	e.t.Helper()
	fs, err := Mount(e.dev, e.testOptions())
	if err != nil {
		e.t.Fatal(err)
	}
	e.fs = fs
}

// remount closes and mounts again. Inodes must not be used across it.
func (e *env) remount() {
	e.t.Helper()
	if err := e.fs.Close(); err != nil {
		e.t.Fatal(err)
	}
	e.mount()
}

func (e *env) must(err error) {
	e.t.Helper()
	if err != nil {
		e.t.Fatal(err)
	}
}

func (e *env) want(err, want error) {
	e.t.Helper()
	if !errors.Is(err, want) {
		e.t.Fatalf("error %v, not %v", err, want)
	}
}

func (e *env) create(dir *Inode, name string, mode uint32) *Inode {
	e.t.Helper()
	i, err := dir.Create(name, NewInode{Mode: mode})
	e.must(err)
	return i
}

func (e *env) lookup(dir *Inode, name string) *Inode {
	e.t.Helper()
	i, err := dir.Lookup(name)
	e.must(err)
	return i
}

// memSink collects what is read.
type memSink struct{ b []byte }

func (s *memSink) CopyOut(b []byte) (int, error) {
	s.b = append(s.b, b...)
	return len(b), nil
}

func (e *env) write(i *Inode, off int64, data []byte, flags IOFlags) {
	e.t.Helper()
	n, err := i.WriteAt(&bytesSource{data}, off, int64(len(data)), flags)
	if err != nil || n != int64(len(data)) {
		e.t.Fatalf("write of %d bytes at %d: %d, %v", len(data), off, n, err)
	}
}

func (e *env) read(i *Inode, off, n int64, flags IOFlags) []byte {
	e.t.Helper()
	var s memSink
	got, err := i.ReadAt(&s, off, n, flags)
	if err != nil || got != int64(len(s.b)) {
		e.t.Fatalf("read of %d bytes at %d: %d (%d), %v", n, off, got, len(s.b), err)
	}
	return s.b
}

func (e *env) expect(i *Inode, off int64, want []byte, flags IOFlags) {
	e.t.Helper()
	got := e.read(i, off, int64(len(want)), flags)
	if !bytes.Equal(got, want) {
		at := 0
		for at < len(got) && at < len(want) && got[at] == want[at] {
			at++
		}
		e.t.Fatalf("reading %d bytes at %d: %d bytes, first difference at %d", len(want), off, len(got), off+int64(at))
	}
}

// pattern makes bytes that tell where they belong.
func pattern(seed byte, n int) []byte {
	b := make([]byte, n)
	for k := range b {
		b[k] = byte(k>>12)*31 + byte(k)*7 + seed | 1
	}
	return b
}
