package sentry

import (
	"fmt"
	"testing"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/usermem"
)

// TestHotPathsDoNotAllocate covers what a data base does all day.
func TestHotPathsDoNotAllocate(t *testing.T) {
	e := newEnv(t)
	fd := e.mustOpen("f", linux.O_CREAT|linux.O_RDWR)
	buf := make([]byte, 4096)
	seq := usermem.BytesIOSequence(buf)
	for range 16 {
		if _, err := fd.Write(e.ctx, seq, vfs.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := fd.Sync(e.ctx); err != nil {
		t.Fatal(err)
	}
	// The context of a test allocates a little itself where Value is asked.
	for _, c := range []struct {
		what string
		most float64
		fn   func()
	}{
		{"pread", 0, func() { fd.PRead(e.ctx, seq, 8192, vfs.ReadOptions{}) }},
		{"overwrite", 0, func() { fd.PWrite(e.ctx, seq, 8192, vfs.WriteOptions{}) }},
		{"fstat", 0, func() { fd.Stat(e.ctx, vfs.StatOptions{}) }},
		{"lseek", 0, func() { fd.Seek(e.ctx, 4096, linux.SEEK_SET) }},
	} {
		if got := testing.AllocsPerRun(200, c.fn); got > c.most {
			t.Errorf("%s makes %v allocations", c.what, got)
		}
	}
}

func BenchmarkPRead4K(b *testing.B) {
	e := newEnv(b)
	fd := e.mustOpen("f", linux.O_CREAT|linux.O_RDWR)
	seq := usermem.BytesIOSequence(make([]byte, 4096))
	for range 256 {
		fd.Write(e.ctx, seq, vfs.WriteOptions{})
	}
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ {
		if _, err := fd.PRead(e.ctx, seq, int64(n%256)*4096, vfs.ReadOptions{}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkPWrite4K(b *testing.B) {
	e := newEnv(b)
	fd := e.mustOpen("f", linux.O_CREAT|linux.O_RDWR)
	seq := usermem.BytesIOSequence(make([]byte, 4096))
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ {
		if _, err := fd.PWrite(e.ctx, seq, int64(n%256)*4096, vfs.WriteOptions{}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkStat(b *testing.B) {
	e := newEnv(b)
	e.mkdir("d")
	e.create("d/f", "")
	pop := e.pop("d/f")
	b.ReportAllocs()
	for b.Loop() {
		if _, err := e.vfs.StatAt(e.ctx, e.ctx.creds, pop, &vfs.StatOptions{}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkOpenClose(b *testing.B) {
	e := newEnv(b)
	e.mkdir("d")
	e.create("d/f", "")
	pop := e.pop("d/f")
	b.ReportAllocs()
	for b.Loop() {
		fd, err := e.vfs.OpenAt(e.ctx, e.ctx.creds, pop, &vfs.OpenOptions{Flags: linux.O_RDWR})
		if err != nil {
			b.Fatal(err)
		}
		fd.DecRef(e.ctx)
	}
}

func BenchmarkCreateUnlink(b *testing.B) {
	e := newEnvWith(b, Config{}, 256<<20)
	b.ReportAllocs()
	for n := 0; b.Loop(); n++ {
		path := fmt.Sprint(n)
		fd, err := e.open(e.ctx, path, linux.O_CREAT|linux.O_RDWR, 0644)
		if err != nil {
			b.Fatal(err)
		}
		fd.DecRef(e.ctx)
		if err := e.unlink(e.ctx, path); err != nil {
			b.Fatal(err)
		}
	}
}
