package main

import (
	"strings"

	"golang.org/x/sys/unix"
)

var copyChecks = []check{
	{"copy-file-range/whole", func(t *T) {
		want := blocksOf(20) + "tail"
		from := t.create("from", want)
		to := t.create("to", "")
		for copied := 0; copied < len(want); {
			n := must[int](t)(unix.CopyFileRange(from, nil, to, nil, len(want), 0))
			t.that(n > 0, "copied %d of %d bytes, then none", copied, len(want))
			copied += n
		}
		t.eqText("content", t.content("to"), want)
		eq(t, "offset of the source", t.offset(from), int64(len(want)))
		eq(t, "offset of the target", t.offset(to), int64(len(want)))
		eq(t, "bytes at the end", must[int](t)(unix.CopyFileRange(from, nil, to, nil, 10, 0)), 0)
	}},
	{"copy-file-range/offsets", func(t *T) {
		from := t.create("from", "0123456789")
		to := t.create("to", "abcdefghij")
		in, out := int64(2), int64(5)
		eq(t, "bytes", must[int](t)(unix.CopyFileRange(from, &in, to, &out, 3, 0)), 3)
		eq(t, "source offset", in, 5)
		eq(t, "target offset", out, 8)
		eq(t, "offset of the source", t.offset(from), 0)
		t.eqText("content", t.content("to"), "abcde234ij")
	}},
	{"copy-file-range/within-a-file", func(t *T) {
		fd := t.create("file", "0123456789")
		in, out := int64(0), int64(5)
		eq(t, "bytes", must[int](t)(unix.CopyFileRange(fd, &in, fd, &out, 5, 0)), 5)
		t.eqText("content", t.all(fd), "0123401234")
		in, out = 0, 3
		t.fails(errOf(unix.CopyFileRange(fd, &in, fd, &out, 5, 0)), unix.EINVAL)
	}},
	{"copy-file-range/errors", func(t *T) {
		from := t.create("from", "content")
		to := t.create("to", "")
		t.mkdir("dir")
		t.fails(errOf(unix.CopyFileRange(from, nil, to, nil, 3, 1)), unix.EINVAL)
		t.fails(errOf(unix.CopyFileRange(t.open("from", unix.O_WRONLY), nil, to, nil, 3, 0)), unix.EBADF)
		t.fails(errOf(unix.CopyFileRange(from, nil, t.open("to", unix.O_RDONLY), nil, 3, 0)), unix.EBADF)
		t.fails(errOf(unix.CopyFileRange(from, nil, t.open("to", unix.O_WRONLY|unix.O_APPEND), nil, 3, 0)), unix.EBADF)
		t.fails(errOf(unix.CopyFileRange(t.open("dir", unix.O_RDONLY), nil, to, nil, 3, 0)), unix.EISDIR)
		t.fails(errOf(unix.CopyFileRange(t.pipe().r, nil, to, nil, 3, 0)), unix.EINVAL)
	}},
	{"sendfile/file-to-file", func(t *T) {
		from := t.create("from", blocksOf(20))
		to := t.create("to", "")
		off := int64(4096)
		n := must[int](t)(unix.Sendfile(to, from, &off, 8192))
		eq(t, "bytes", n, 8192)
		eq(t, "offset told", off, 3*4096)
		eq(t, "offset of the source", t.offset(from), 0)
		t.eqText("content", t.content("to"), blocksOf(20)[4096:3*4096])
		eq(t, "bytes", must[int](t)(unix.Sendfile(to, from, nil, 100)), 100)
		eq(t, "offset of the source", t.offset(from), 100)
	}},
	{"sendfile/file-to-pipe", func(t *T) {
		from := t.create("from", "content")
		p := t.pipe()
		eq(t, "bytes", must[int](t)(unix.Sendfile(p.w, from, nil, 100)), 7)
		buf := make([]byte, 100)
		t.eqText("what came out", string(buf[:must[int](t)(unix.Read(p.r, buf))]), "content")
	}},
	{"sendfile/file-to-socket", func(t *T) {
		from := t.create("from", "content")
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		t.ok(err)
		t.closing(pair[0])
		t.closing(pair[1])
		eq(t, "bytes", must[int](t)(unix.Sendfile(pair[0], from, nil, 100)), 7)
		buf := make([]byte, 100)
		t.eqText("what came out", string(buf[:must[int](t)(unix.Read(pair[1], buf))]), "content")
	}},
	{"sendfile/errors", func(t *T) {
		from := t.create("from", "content")
		to := t.create("to", "")
		t.fails(errOf(unix.Sendfile(to, t.open("from", unix.O_WRONLY), nil, 3)), unix.EBADF)
		t.fails(errOf(unix.Sendfile(t.open("to", unix.O_RDONLY), from, nil, 3)), unix.EBADF)
		t.fails(errOf(unix.Sendfile(t.open("to", unix.O_WRONLY|unix.O_APPEND), from, nil, 3)), unix.EINVAL)
	}},
	{"splice/file-to-pipe-to-file", func(t *T) {
		from := t.create("from", "0123456789")
		to := t.create("to", "abcdefghij")
		p := t.pipe()
		in, out := int64(2), int64(5)
		eq(t, "bytes into the pipe", must[int64](t)(unix.Splice(from, &in, p.w, nil, 4, 0)), 4)
		eq(t, "source offset", in, 6)
		eq(t, "bytes out of the pipe", must[int64](t)(unix.Splice(p.r, nil, to, &out, 4, 0)), 4)
		eq(t, "target offset", out, 9)
		t.eqText("content", t.content("to"), "abcde2345j")
	}},
	{"splice/large", func(t *T) {
		want := strings.Repeat("0123456789abcdef", 16<<10)
		from := t.create("from", want)
		to := t.create("to", "")
		p := t.pipe()
		for {
			n := must[int64](t)(unix.Splice(from, nil, p.w, nil, 64<<10, 0))
			if n == 0 {
				break
			}
			for n > 0 {
				n -= must[int64](t)(unix.Splice(p.r, nil, to, nil, int(n), 0))
			}
		}
		t.eqText("content", t.content("to"), want)
	}},
	{"splice/errors", func(t *T) {
		from := t.create("from", "content")
		to := t.create("to", "")
		p := t.pipe()
		off := int64(0)
		t.fails(errOf(unix.Splice(from, nil, to, nil, 3, 0)), unix.EINVAL)
		t.fails(errOf(unix.Splice(from, nil, p.w, &off, 3, 0)), unix.ESPIPE)
		t.fails(errOf(unix.Splice(t.open("from", unix.O_WRONLY), nil, p.w, nil, 3, 0)), unix.EBADF)
		t.write(p.w, "x")
		t.fails(errOf(unix.Splice(p.r, nil, t.open("to", unix.O_WRONLY|unix.O_APPEND), nil, 1, 0)), unix.EINVAL)
	}},
}
