package blobfs

import (
	"bytes"
	"fmt"
	"testing"
)

// nullSink copies what it gets to one buffer, as an application's read does.
type nullSink struct{ b [1 << 20]byte }

func (s *nullSink) CopyOut(b []byte) (int, error) { return copy(s.b[:], b), nil }

type fillSource struct{ b [1 << 20]byte }

func (s *fillSource) CopyIn(b []byte) (int, error) { return copy(b, s.b[:]), nil }

func benchFile(b *testing.B, size int) (*env, *Inode) {
	e := newEnv(b, 256<<20)
	root := e.fs.Root()
	defer root.DecRef()
	f := e.create(root, "f", ModeRegular|0o644)
	b.Cleanup(f.DecRef)
	e.write(f, 0, pattern(1, size), 0)
	e.must(f.Fsync(nil, false))
	b.ReportAllocs()
	return e, f
}

func BenchmarkCachedRead4K(b *testing.B) {
	_, f := benchFile(b, 4<<20)
	s := &nullSink{}
	b.ResetTimer()
	for n := range b.N {
		if m, err := f.ReadAt(s, int64(n%1024)*4096, 4096, 0); m != 4096 || err != nil {
			b.Fatal(m, err)
		}
	}
}

func BenchmarkCachedWrite4K(b *testing.B) {
	_, f := benchFile(b, 4<<20)
	s := &fillSource{}
	b.ResetTimer()
	for n := range b.N {
		if m, err := f.WriteAt(s, int64(n%1024)*4096, 4096, 0); m != 4096 || err != nil {
			b.Fatal(m, err)
		}
	}
}

func BenchmarkDirectRead4K(b *testing.B) {
	e, f := benchFile(b, 32<<20)
	e.fs.inodes.all(func(i *Inode) { i.dropAllPages() })
	s := &nullSink{}
	b.ResetTimer()
	for n := range b.N {
		if m, err := f.ReadAt(s, int64(n*7919%8192)*4096, 4096, IODirect); m != 4096 || err != nil {
			b.Fatal(m, err)
		}
	}
}

func BenchmarkDirectWrite4K(b *testing.B) {
	e, f := benchFile(b, 32<<20)
	e.fs.inodes.all(func(i *Inode) { i.dropAllPages() })
	s := &fillSource{}
	b.ResetTimer()
	for n := range b.N {
		if m, err := f.WriteAt(s, int64(n*7919%8192)*4096, 4096, IODirect); m != 4096 || err != nil {
			b.Fatal(m, err)
		}
	}
}

func BenchmarkDurableAppend4K(b *testing.B) {
	_, f := benchFile(b, 4096)
	s := &fillSource{}
	b.ResetTimer()
	for n := range b.N {
		if n%8192 == 0 {
			if err := f.Truncate(0); err != nil {
				b.Fatal(err)
			}
		}
		if _, m, err := f.Append(s, 4096, 0); m != 4096 || err != nil {
			b.Fatal(m, err)
		}
		if err := f.Fsync(nil, true); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDurableOverwrite4K(b *testing.B) {
	_, f := benchFile(b, 4<<20)
	s := &fillSource{}
	b.ResetTimer()
	for n := range b.N {
		if m, err := f.WriteAt(s, int64(n%1024)*4096, 4096, 0); m != 4096 || err != nil {
			b.Fatal(m, err)
		}
		if err := f.Fsync(nil, true); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkSequentialWrite1M(b *testing.B) {
	_, f := benchFile(b, 64<<20)
	s := &fillSource{}
	b.SetBytes(1 << 20)
	b.ResetTimer()
	for n := range b.N {
		if m, err := f.WriteAt(s, int64(n%64)<<20, 1<<20, 0); m != 1<<20 || err != nil {
			b.Fatal(m, err)
		}
	}
}

func BenchmarkSequentialRead1M(b *testing.B) {
	_, f := benchFile(b, 64<<20)
	s := &nullSink{}
	b.SetBytes(1 << 20)
	b.ResetTimer()
	for n := range b.N {
		if m, err := f.ReadAt(s, int64(n%64)<<20, 1<<20, 0); m != 1<<20 || err != nil {
			b.Fatal(m, err)
		}
	}
}

func BenchmarkDirectRead1M(b *testing.B) {
	_, f := benchFile(b, 128<<20)
	s := newCopySink(1 << 20)
	b.SetBytes(1 << 20)
	b.ResetTimer()
	for n := range b.N {
		if m, err := f.ReadAt(s.rewind(), int64(n%128)<<20, 1<<20, IODirect); m != 1<<20 || err != nil {
			b.Fatal(m, err)
		}
	}
}

func BenchmarkDirectWrite1M(b *testing.B) {
	_, f := benchFile(b, 128<<20)
	s := newCopySink(1 << 20)
	b.SetBytes(1 << 20)
	b.ResetTimer()
	for n := range b.N {
		if m, err := f.WriteAt(s.rewind(), int64(n%128)<<20, 1<<20, IODirect); m != 1<<20 || err != nil {
			b.Fatal(m, err)
		}
	}
}

// copySink is the memory of an application: both Sink and Source.
type copySink struct {
	mem []byte
	at  int
}

func newCopySink(size int) *copySink { return &copySink{mem: bytes.Repeat([]byte{1}, size)} }

func (s *copySink) rewind() *copySink { s.at = 0; return s }

func (s *copySink) CopyOut(b []byte) (int, error) {
	n := copy(s.mem[s.at:], b)
	s.at += n
	return n, nil
}

func (s *copySink) CopyIn(b []byte) (int, error) {
	n := copy(b, s.mem[s.at:])
	s.at += n
	return n, nil
}

func BenchmarkCreateUnlink(b *testing.B) {
	e := newEnv(b, 256<<20)
	root := e.fs.Root()
	defer root.DecRef()
	b.ReportAllocs()
	b.ResetTimer()
	for n := range b.N {
		name := fmt.Sprintf("file%d", n)
		f, err := root.Create(name, NewInode{Mode: ModeRegular | 0o644})
		if err != nil {
			b.Fatal(err)
		}
		f.DecRef()
		if err := root.Unlink(name, nil); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkLookup(b *testing.B) {
	e := newEnv(b, 256<<20)
	root := e.fs.Root()
	defer root.DecRef()
	names := make([]string, 10000)
	for n := range names {
		names[n] = fmt.Sprintf("file%d", n)
		e.create(root, names[n], ModeRegular|0o644).DecRef()
	}
	b.ReportAllocs()
	b.ResetTimer()
	for n := range b.N {
		f, err := root.Lookup(names[n%len(names)])
		if err != nil {
			b.Fatal(err)
		}
		f.DecRef()
	}
}
