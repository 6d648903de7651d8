package main

import (
	"math"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	keepSize      = unix.FALLOC_FL_KEEP_SIZE
	punchHole     = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE
	zeroRange     = unix.FALLOC_FL_ZERO_RANGE
	collapseRange = unix.FALLOC_FL_COLLAPSE_RANGE
	insertRange   = unix.FALLOC_FL_INSERT_RANGE
)

// blocksOf gives n blocks of 4 KiB, filled with letters from a on.
func blocksOf(n int) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(strings.Repeat(string(rune('a'+i)), 4096))
	}
	return b.String()
}

func zeroes(n int) string { return strings.Repeat("\x00", n) }

var fallocateChecks = []check{
	{"fallocate/grows-with-zeroes", func(t *T) {
		fd := t.create("file", "content")
		t.ok(unix.Fallocate(fd, 0, 0, 100000))
		eq(t, "size", t.fstat(fd).size, 100000)
		t.that(t.fstat(fd).blocks >= 100000/512, "the file has %d blocks", t.fstat(fd).blocks)
		t.eqText("content", t.all(fd), "content"+zeroes(100000-7))
	}},
	{"fallocate/never-shrinks", func(t *T) {
		fd := t.create("file", "content")
		t.ok(unix.Fallocate(fd, 0, 0, 3))
		t.eqText("content", t.all(fd), "content")
	}},
	{"fallocate/keep-size", func(t *T) {
		fd := t.create("file", "content")
		t.ok(unix.Fallocate(fd, keepSize, 0, 1<<20))
		eq(t, "size", t.fstat(fd).size, 7)
		t.that(t.fstat(fd).blocks >= 2048, "the file has %d blocks", t.fstat(fd).blocks)
		t.ok(unix.Ftruncate(fd, 10))
		t.eqText("content", t.all(fd), "content"+zeroes(3))
	}},
	{"fallocate/fills-holes-and-keeps-data", func(t *T) {
		fd := t.create("file", "")
		t.pwrite(fd, "mark", 50000)
		t.ok(unix.Fallocate(fd, 0, 0, 200000))
		t.eqText("content", t.all(fd), zeroes(50000)+"mark"+zeroes(149996))
		t.pwrite(fd, "more", 150000)
		t.eqText("content", t.pread(fd, 12, 149996), zeroes(4)+"more"+zeroes(4))
	}},
	{"fallocate/punch-whole-blocks", func(t *T) {
		fd := t.create("file", blocksOf(16))
		t.ok(unix.Fsync(fd))
		before := t.fstat(fd).blocks
		t.ok(unix.Fallocate(fd, punchHole, 4*4096, 8*4096))
		all := blocksOf(16)
		t.eqText("content", t.all(fd), all[:4*4096]+zeroes(8*4096)+all[12*4096:])
		eq(t, "blocks given back", before-t.fstat(fd).blocks, 64)
		eq(t, "size", t.fstat(fd).size, 16*4096)
	}},
	{"fallocate/punch-parts-of-blocks", func(t *T) {
		for _, r := range [][2]int{{100, 200}, {100, 4096}, {4000, 200}, {4096, 100}, {0, 1}, {5000, 20000}, {16*4096 - 5, 5}} {
			fd := t.create("file", blocksOf(16))
			all := blocksOf(16)
			t.ok(unix.Fallocate(fd, punchHole, int64(r[0]), int64(r[1])))
			t.eqText("content", t.all(fd), all[:r[0]]+zeroes(r[1])+all[r[0]+r[1]:])
			t.ok(unix.Unlink(t.p("file")))
		}
	}},
	{"fallocate/punch-beyond-the-end", func(t *T) {
		fd := t.create("file", "content")
		t.ok(unix.Fallocate(fd, punchHole, 3, 100000))
		t.eqText("content", t.all(fd), "con"+zeroes(4))
		t.ok(unix.Fallocate(fd, punchHole, 1<<20, 4096))
		eq(t, "size", t.fstat(fd).size, 7)
	}},
	{"fallocate/punch-must-keep-size", func(t *T) {
		fd := t.create("file", "content")
		t.fails(unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE, 0, 4096), unix.EOPNOTSUPP)
	}},
	{"fallocate/zero-range", func(t *T) {
		fd := t.create("file", blocksOf(8))
		all := blocksOf(8)
		t.ok(unix.Fallocate(fd, zeroRange, 5000, 10000))
		t.eqText("content", t.all(fd), all[:5000]+zeroes(10000)+all[15000:])
		t.ok(unix.Fallocate(fd, zeroRange|keepSize, 7*4096, 8192))
		eq(t, "size", t.fstat(fd).size, 8*4096)
		t.ok(unix.Fallocate(fd, zeroRange, 7*4096, 8192))
		eq(t, "size", t.fstat(fd).size, 9*4096)
	}},
	{"fallocate/collapse-range", func(t *T) {
		fd := t.create("file", blocksOf(8)+"tail")
		all := blocksOf(8) + "tail"
		t.ok(unix.Fallocate(fd, collapseRange, 2*4096, 3*4096))
		t.eqText("content", t.all(fd), all[:2*4096]+all[5*4096:])
	}},
	{"fallocate/collapse-range-errors", func(t *T) {
		fd := t.create("file", blocksOf(8))
		t.fails(unix.Fallocate(fd, collapseRange, 100, 4096), unix.EINVAL)
		t.fails(unix.Fallocate(fd, collapseRange, 4096, 100), unix.EINVAL)
		t.fails(unix.Fallocate(fd, collapseRange, 4*4096, 4*4096), unix.EINVAL)
		t.fails(unix.Fallocate(fd, collapseRange|keepSize, 0, 4096), unix.EINVAL, unix.EOPNOTSUPP)
		t.eqText("content", t.all(fd), blocksOf(8))
	}},
	{"fallocate/insert-range", func(t *T) {
		fd := t.create("file", blocksOf(8)+"tail")
		all := blocksOf(8) + "tail"
		t.ok(unix.Fallocate(fd, insertRange, 2*4096, 3*4096))
		t.eqText("content", t.all(fd), all[:2*4096]+zeroes(3*4096)+all[2*4096:])
	}},
	{"fallocate/insert-range-errors", func(t *T) {
		fd := t.create("file", blocksOf(8))
		t.fails(unix.Fallocate(fd, insertRange, 100, 4096), unix.EINVAL)
		t.fails(unix.Fallocate(fd, insertRange, 8*4096, 4096), unix.EINVAL)
		t.eqText("content", t.all(fd), blocksOf(8))
	}},
	{"fallocate/collapse-and-insert-keep-the-rest", func(t *T) {
		fd := t.create("file", blocksOf(8))
		before := t.fstat(fd)
		tick()
		t.ok(unix.Fallocate(fd, collapseRange, 0, 4096))
		t.that(t.fstat(fd).mtime > before.mtime && t.fstat(fd).ctime > before.ctime, "the times have not moved")
		eq(t, "size", t.fstat(fd).size, 7*4096)
		t.ok(unix.Fallocate(fd, insertRange, 0, 4096))
		t.eqText("content", t.all(fd), zeroes(4096)+blocksOf(8)[4096:])
		t.fails(unix.Fallocate(fd, insertRange, 0, 1<<60), unix.EFBIG)
		t.fails(unix.Fallocate(fd, insertRange|punchHole, 0, 4096), unix.EINVAL, unix.EOPNOTSUPP)
		eq(t, "size", t.fstat(fd).size, 8*4096)
	}},
	{"fallocate/bad-ranges", func(t *T) {
		fd := t.create("file", "content")
		t.fails(unix.Fallocate(fd, 0, 0, 0), unix.EINVAL)
		t.fails(unix.Fallocate(fd, 0, 0, -1), unix.EINVAL)
		t.fails(unix.Fallocate(fd, 0, -1, 10), unix.EINVAL)
		t.fails(unix.Fallocate(fd, 0, math.MaxInt64, 10), unix.EFBIG)
		t.fails(unix.Fallocate(fd, 0, 1<<62, 10), unix.EFBIG)
		t.eqText("content", t.all(fd), "content")
	}},
	{"fallocate/unknown-mode", func(t *T) {
		fd := t.create("file", "content")
		t.fails(unix.Fallocate(fd, 1<<20, 0, 10), unix.EOPNOTSUPP)
		t.fails(unix.Fallocate(fd, punchHole|zeroRange, 0, 10), unix.EOPNOTSUPP)
	}},
	{"fallocate/bad-descriptors", func(t *T) {
		t.file("file", "content")
		t.mkdir("dir")
		t.fails(unix.Fallocate(t.open("file", unix.O_RDONLY), 0, 0, 10), unix.EBADF)
		t.fails(unix.Fallocate(t.open("dir", unix.O_RDONLY), 0, 0, 10), unix.EBADF, unix.EISDIR, unix.ENODEV)
		t.fails(unix.Fallocate(t.pipe().w, 0, 0, 10), unix.ESPIPE)
		t.fails(unix.Fallocate(9999, 0, 0, 10), unix.EBADF)
	}},
	{"fallocate/size-limit", func(t *T) {
		fd := t.create("file", "")
		t.limited(1000, func() {
			t.fails(unix.Fallocate(fd, 0, 0, 1001), unix.EFBIG)
			t.ok(unix.Fallocate(fd, 0, 0, 1000))
		})
	}},
}

var directChecks = []check{
	{"o-direct/round-trip", func(t *T) {
		fd := t.open("file", unix.O_RDWR|unix.O_CREAT|unix.O_DIRECT)
		buf := aligned(64 << 10)
		for n := range buf {
			buf[n] = byte(n>>12 + 'a')
		}
		eq(t, "bytes", must[int](t)(unix.Pwrite(fd, buf, 0)), len(buf))
		back := aligned(64 << 10)
		eq(t, "bytes", must[int](t)(unix.Pread(fd, back, 0)), len(buf))
		t.eqText("content", string(back), blocksOf(16))
		t.eqText("content without O_DIRECT", t.content("file"), blocksOf(16))
	}},
	{"o-direct/coherent-with-buffered", func(t *T) {
		buffered := t.create("file", blocksOf(16))
		fd := t.open("file", unix.O_RDWR|unix.O_DIRECT)
		buf := aligned(4096)
		for n := range 30 {
			off := int64(n%16) * 4096
			t.pwrite(buffered, string(rune('A'+n%26)), off+100)
			eq(t, "bytes", must[int](t)(unix.Pread(fd, buf, off)), 4096)
			eq(t, "byte read directly", buf[100], byte('A'+n%26))
			buf[200] = byte('0' + n%10)
			eq(t, "bytes", must[int](t)(unix.Pwrite(fd, buf, off)), 4096)
			t.eqText("byte read from the cache", t.pread(buffered, 1, off+200), string(rune('0'+n%10)))
		}
	}},
	{"o-direct/end-of-file", func(t *T) {
		t.file("file", "content")
		fd := t.open("file", unix.O_RDONLY|unix.O_DIRECT)
		buf := aligned(4096)
		eq(t, "bytes", must[int](t)(unix.Pread(fd, buf, 0)), 7)
		t.eqText("content", string(buf[:7]), "content")
		eq(t, "bytes beyond the end", must[int](t)(unix.Pread(fd, buf, 4096)), 0)
	}},
	{"o-direct/hole", func(t *T) {
		fd := t.open("file", unix.O_RDWR|unix.O_CREAT|unix.O_DIRECT)
		t.ok(unix.Ftruncate(fd, 1<<20))
		buf := aligned(4096)
		buf[0] = 'x'
		eq(t, "bytes", must[int](t)(unix.Pread(fd, buf, 8192)), 4096)
		t.eqText("content", string(buf), zeroes(4096))
		eq(t, "bytes", must[int](t)(unix.Pwrite(fd, aligned(4096), 16384)), 4096)
		eq(t, "size", t.fstat(fd).size, 1<<20)
	}},
	{"o-direct/extends-the-file", func(t *T) {
		fd := t.open("file", unix.O_RDWR|unix.O_CREAT|unix.O_DIRECT)
		eq(t, "bytes", must[int](t)(unix.Pwrite(fd, []byte(aligned(4096)), 1<<20)), 4096)
		eq(t, "size", t.fstat(fd).size, 1<<20+4096)
	}},
	{"o-direct/unaligned", func(t *T) {
		// open(2): misaligned direct I/O fails with EINVAL or falls back to buffered I/O.
		t.file("file", blocksOf(2))
		fd := t.open("file", unix.O_RDWR|unix.O_DIRECT)
		buf := aligned(4096)
		for _, c := range []struct{ off, size int }{{1, 4096}, {0, 100}, {7, 13}} {
			n, err := unix.Pread(fd, buf[:c.size], int64(c.off))
			if err != nil {
				t.fails(err, unix.EINVAL)
			} else {
				t.eqText("content", string(buf[:n]), blocksOf(2)[c.off:c.off+c.size])
			}
		}
	}},
	{"o-direct/by-fcntl", func(t *T) {
		fd := t.create("file", blocksOf(1))
		must[int](t)(unix.FcntlInt(uintptr(fd), unix.F_SETFL, unix.O_DIRECT))
		buf := aligned(4096)
		eq(t, "bytes", must[int](t)(unix.Pread(fd, buf, 0)), 4096)
		t.eqText("content", string(buf), blocksOf(1))
	}},
	{"o-direct/after-fallocate", func(t *T) {
		fd := t.open("file", unix.O_RDWR|unix.O_CREAT|unix.O_DIRECT)
		t.ok(unix.Fallocate(fd, 0, 0, 1<<20))
		buf := aligned(4096)
		copy(buf, blocksOf(1))
		eq(t, "bytes", must[int](t)(unix.Pwrite(fd, buf, 8192)), 4096)
		t.eqText("content", t.content("file"), zeroes(8192)+blocksOf(1)+zeroes(1<<20-3*4096))
	}},
}

// aligned gives n bytes at the beginning of a page.
func aligned(n int) []byte {
	b := make([]byte, n+4096)
	skip := (4096 - int(address(b)%4096)) % 4096
	return b[skip : skip+n : skip+n]
}
