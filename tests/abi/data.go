package main

import (
	"bytes"
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

var truncateChecks = []check{
	{"truncate/sizes", func(t *T) {
		t.file("file", "content")
		fd := t.open("file", unix.O_RDWR)
		for _, size := range []int64{7, 3, 0, 1, 4095, 4096, 4097, 1 << 20, 5, 0} {
			t.ok(unix.Truncate(t.p("file"), size))
			eq(t, "size", t.stat("file").size, size)
			t.ok(unix.Ftruncate(fd, size+1))
			eq(t, "size", t.stat("file").size, size+1)
		}
	}},
	{"truncate/what-was-cut-is-zero-when-it-returns", func(t *T) {
		fd := t.create("file", strings.Repeat("x", 10000))
		t.ok(unix.Ftruncate(fd, 100))
		t.ok(unix.Ftruncate(fd, 10000))
		t.eqText("content", t.all(fd), strings.Repeat("x", 100)+strings.Repeat("\x00", 9900))
	}},
	{"truncate/growth-is-zero-and-sparse", func(t *T) {
		fd := t.create("file", "x")
		t.ok(unix.Ftruncate(fd, 1<<40))
		eq(t, "size", t.fstat(fd).size, 1<<40)
		t.that(t.fstat(fd).blocks < 1000, "a hole of 1 TiB has %d blocks", t.fstat(fd).blocks)
		t.eqText("content at its end", t.pread(fd, 100, 1<<40-10), strings.Repeat("\x00", 10))
	}},
	{"truncate/negative", func(t *T) {
		fd := t.create("file", "")
		t.fails(unix.Truncate(t.p("file"), -1), unix.EINVAL)
		t.fails(unix.Ftruncate(fd, -1), unix.EINVAL)
	}},
	{"truncate/too-large", func(t *T) {
		fd := t.create("file", "")
		t.fails(unix.Truncate(t.p("file"), math.MaxInt64), unix.EFBIG)
		t.fails(unix.Ftruncate(fd, math.MaxInt64), unix.EFBIG, unix.EINVAL)
	}},
	{"truncate/no-regular-file", func(t *T) {
		t.mkdir("dir")
		t.fifo("fifo")
		t.fails(unix.Truncate(t.p("dir"), 0), unix.EISDIR)
		t.fails(unix.Truncate(t.p("fifo"), 0), unix.EINVAL)
		t.fails(unix.Ftruncate(t.open("dir", unix.O_RDONLY), 0), unix.EINVAL, unix.EBADF)
		t.fails(unix.Ftruncate(t.open("fifo", unix.O_RDWR), 0), unix.EINVAL)
	}},
	{"truncate/descriptor-not-for-writing", func(t *T) {
		t.file("file", "content")
		t.fails(unix.Ftruncate(t.open("file", unix.O_RDONLY), 0), unix.EINVAL, unix.EBADF)
	}},
	{"truncate/without-permission", func(t *T) {
		t.file("file", "content")
		t.as(alice, func() { t.fails(unix.Truncate(t.p("file"), 0), unix.EACCES) })
	}},
	{"truncate/descriptor-counts-not-permission", func(t *T) {
		t.chmod("", 0o777)
		t.as(alice, func() {
			fd := must[int](t)(t.openWith("file", unix.O_CREAT|unix.O_RDWR, 0o400))
			t.ok(unix.Ftruncate(fd, 5))
			t.fails(unix.Truncate(t.p("file"), 0), unix.EACCES)
		})
	}},
	{"truncate/offset-stays", func(t *T) {
		fd := t.create("file", "")
		t.write(fd, "content")
		t.ok(unix.Ftruncate(fd, 0))
		eq(t, "offset", t.offset(fd), 7)
		t.write(fd, "x")
		t.eqText("content", t.all(fd), "\x00\x00\x00\x00\x00\x00\x00x")
	}},
	{"truncate/size-limit", func(t *T) {
		fd := t.create("file", "12345678")
		t.limited(10, func() {
			t.fails(unix.Ftruncate(fd, 11), unix.EFBIG)
			t.ok(unix.Ftruncate(fd, 10))
			t.ok(unix.Ftruncate(fd, 5))
		})
	}},
}

// limited runs fn with a limit on the size of files; SIGXFSZ is ignored.
func (t *T) limited(size uint64, fn func()) {
	var old unix.Rlimit
	t.ok(unix.Getrlimit(unix.RLIMIT_FSIZE, &old))
	t.ok(unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: size, Max: old.Max}))
	defer unix.Setrlimit(unix.RLIMIT_FSIZE, &old)
	fn()
}

var readChecks = []check{
	{"read/to-the-end", func(t *T) {
		fd := t.create("file", "content")
		buf := make([]byte, 5)
		eq(t, "first read", must[int](t)(unix.Read(fd, buf)), 5)
		eq(t, "second read", must[int](t)(unix.Read(fd, buf)), 2)
		eq(t, "read at the end", must[int](t)(unix.Read(fd, buf)), 0)
		eq(t, "offset", t.offset(fd), 7)
	}},
	{"read/beyond-the-end", func(t *T) {
		fd := t.create("file", "content")
		t.eqText("content", t.pread(fd, 5, 7), "")
		t.eqText("content", t.pread(fd, 5, 1<<40), "")
	}},
	{"read/hole", func(t *T) {
		fd := t.create("file", "")
		t.pwrite(fd, "x", 100000)
		t.eqText("content", t.all(fd), strings.Repeat("\x00", 100000)+"x")
	}},
	{"read/errors", func(t *T) {
		t.mkdir("dir")
		fd := t.create("file", "content")
		buf := make([]byte, 10)
		t.fails(errOf(unix.Read(t.open("dir", unix.O_RDONLY), buf)), unix.EISDIR)
		t.fails(errOf(unix.Pread(t.open("dir", unix.O_RDONLY), buf, 0)), unix.EISDIR)
		t.fails(errOf(unix.Read(t.open("file", unix.O_WRONLY), buf)), unix.EBADF)
		t.fails(errOf(unix.Pread(fd, buf, -1)), unix.EINVAL)
		t.fails(errOf(syscall(unix.SYS_READ, uintptr(fd), badAddress, 7)), unix.EFAULT)
		t.fails(errOf(unix.Read(9999, buf)), unix.EBADF)
		t.fails(errOf(unix.Pread(t.pipe().r, buf, 0)), unix.ESPIPE)
	}},
	{"read/bad-address-in-the-middle", func(t *T) {
		// What could be stored is stored and counted.
		fd := t.create("file", strings.Repeat("x", 8192))
		m := must[[]byte](t)(unix.Mmap(-1, 0, 8192, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON))
		t.cleanup(func() { unix.Munmap(m) })
		t.ok(unix.Mprotect(m[4096:], unix.PROT_NONE))
		n := must[uintptr](t)(syscall(unix.SYS_READ, uintptr(fd), address(m), 8192))
		eq(t, "bytes read", n, 4096)
		eq(t, "offset", t.offset(fd), 4096)
	}},
}

var writeChecks = []check{
	{"write/many-sizes-and-offsets", func(t *T) {
		fd := t.create("file", "")
		var want []byte
		for n, size := range []int{1, 4095, 1, 4096, 4097, 511, 513, 65536, 100000, 3} {
			part := bytes.Repeat([]byte{byte('a' + n)}, size)
			t.write(fd, string(part))
			want = append(want, part...)
		}
		t.eqText("content", t.all(fd), string(want))
		for n, off := range []int{0, 4090, 8191, 70000, 123456} {
			part := bytes.Repeat([]byte{byte('A' + n)}, 777)
			t.pwrite(fd, string(part), int64(off))
			copy(want[off:], part)
		}
		t.eqText("content", t.all(fd), string(want))
	}},
	{"write/behind-the-end-leaves-a-hole", func(t *T) {
		fd := t.create("file", "begin")
		t.pwrite(fd, "end", 1<<20)
		eq(t, "size", t.fstat(fd).size, 1<<20+3)
		t.eqText("content", t.all(fd), "begin"+strings.Repeat("\x00", 1<<20-5)+"end")
		t.that(t.fstat(fd).blocks < 1024, "the file has %d blocks", t.fstat(fd).blocks)
	}},
	{"write/errors", func(t *T) {
		fd := t.create("file", "content")
		t.fails(errOf(unix.Write(t.open("file", unix.O_RDONLY), []byte("x"))), unix.EBADF)
		t.fails(errOf(unix.Pwrite(fd, []byte("x"), -1)), unix.EINVAL)
		t.fails(errOf(syscall(unix.SYS_WRITE, uintptr(fd), badAddress, 7)), unix.EFAULT)
		t.fails(errOf(unix.Pwrite(t.pipe().w, []byte("x"), 0)), unix.ESPIPE)
		t.eqText("content", t.all(fd), "content")
	}},
	{"write/bad-address-in-the-middle", func(t *T) {
		fd := t.create("file", "")
		m := must[[]byte](t)(unix.Mmap(-1, 0, 8192, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON))
		t.cleanup(func() { unix.Munmap(m) })
		t.ok(unix.Mprotect(m[4096:], unix.PROT_NONE))
		n := must[uintptr](t)(syscall(unix.SYS_WRITE, uintptr(fd), address(m), 8192))
		eq(t, "bytes written", n, 4096)
		eq(t, "size", t.fstat(fd).size, 4096)
	}},
	{"write/at-the-largest-offset", func(t *T) {
		fd := t.create("file", "")
		t.fails(errOf(unix.Pwrite(fd, []byte("x"), math.MaxInt64-1)), unix.EFBIG, unix.EINVAL)
		t.fails(errOf(unix.Pwrite(fd, []byte("x"), 1<<62)), unix.EFBIG)
		eq(t, "size", t.fstat(fd).size, 0)
	}},
	{"write/far-away", func(t *T) {
		fd := t.create("file", "")
		for _, off := range []int64{1<<31 - 1, 1<<32 - 1, 1 << 32, 1<<43 + 12345} {
			t.pwrite(fd, "mark", off)
			t.eqText("content", t.pread(fd, 10, off), "mark")
			eq(t, "size", t.fstat(fd).size, off+4)
		}
	}},
	{"write/size-limit", func(t *T) {
		// setrlimit(2), RLIMIT_FSIZE: EFBIG; a write that begins below the limit is short.
		fd := t.create("file", "")
		t.limited(10, func() {
			eq(t, "bytes written", must[int](t)(unix.Pwrite(fd, []byte("0123456789abcdef"), 0)), 10)
			t.fails(errOf(unix.Pwrite(fd, []byte("x"), 10)), unix.EFBIG)
			t.pwrite(fd, "y", 9)
		})
		eq(t, "size", t.fstat(fd).size, 10)
	}},
	{"write/appends-do-not-overlap", func(t *T) {
		// write(2): with O_APPEND, finding the end and writing are one step.
		t.file("file", "")
		const writers, each, size = 4, 100, 1234
		var wg sync.WaitGroup
		for w := range writers {
			fd := t.open("file", unix.O_WRONLY|unix.O_APPEND)
			wg.Go(func() {
				for range each {
					unix.Write(fd, bytes.Repeat([]byte{byte('a' + w)}, size))
				}
			})
		}
		wg.Wait()
		all := t.content("file")
		eq(t, "size", len(all), writers*each*size)
		for off := 0; off < len(all); off += size {
			record := all[off : off+size]
			t.eqText(fmt.Sprintf("record at %d", off), record, strings.Repeat(record[:1], size))
		}
	}},
	{"write/shared-offset-is-serialised", func(t *T) {
		// POSIX: reads and writes of files are atomic; Linux holds the offset's lock.
		fd := t.create("file", "")
		const writers, each, size = 4, 100, 777
		var wg sync.WaitGroup
		for w := range writers {
			wg.Go(func() {
				for range each {
					unix.Write(fd, bytes.Repeat([]byte{byte('a' + w)}, size))
				}
			})
		}
		wg.Wait()
		eq(t, "size", t.fstat(fd).size, writers*each*size)
	}},
	{"write/seen-by-others-at-once", func(t *T) {
		a := t.create("file", "")
		b := t.open("file", unix.O_RDONLY)
		for n := range 50 {
			s := fmt.Sprintf("%05d", n)
			t.pwrite(a, s, 0)
			t.eqText("content", t.pread(b, 5, 0), s)
		}
	}},
	{"write/reader-never-sees-zeroes-of-an-append", func(t *T) {
		fd := t.create("file", "")
		stop, seen := make(chan struct{}), make(chan string, 1)
		go func() {
			r, err := unix.Open(t.p("file"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				seen <- err.Error()
				return
			}
			defer unix.Close(r)
			buf := make([]byte, 1<<20)
			for {
				select {
				case <-stop:
					seen <- ""
					return
				default:
				}
				n, _ := unix.Pread(r, buf, 0)
				if i := bytes.IndexByte(buf[:n], 0); i >= 0 {
					seen <- fmt.Sprintf("zero at %d of %d bytes", i, n)
					return
				}
			}
		}()
		for range 500 {
			t.write(fd, strings.Repeat("x", 1001))
		}
		close(stop)
		t.eqText("what the reader saw", <-seen, "")
	}},
}

// iovecs gives the parts of a vector as preadv(2) and its like want them.
func iovecs(parts ...[]byte) []unix.Iovec {
	var v []unix.Iovec
	for _, p := range parts {
		iov := unix.Iovec{Base: &p[0]}
		iov.SetLen(len(p))
		v = append(v, iov)
	}
	return v
}

var vectorChecks = []check{
	{"vector/scatter-and-gather", func(t *T) {
		fd := t.create("file", "")
		n := must[int](t)(unix.Pwritev(fd, [][]byte{[]byte("one"), nil, []byte("two"), []byte("three")}, 2))
		eq(t, "bytes written", n, 11)
		a, b := make([]byte, 4), make([]byte, 100)
		n = must[int](t)(unix.Preadv(fd, [][]byte{a, b}, 1))
		eq(t, "bytes read", n, 12)
		t.eqText("first part", string(a), "\x00one")
		t.eqText("second part", string(b[:8]), "twothree")
		eq(t, "offset", t.offset(fd), 0)
	}},
	{"vector/readv-and-writev", func(t *T) {
		fd := t.create("file", "")
		eq(t, "bytes", must[int](t)(unix.Writev(fd, [][]byte{[]byte("a"), []byte("bc")})), 3)
		eq(t, "offset", t.offset(fd), 3)
		must[int64](t)(unix.Seek(fd, 0, unix.SEEK_SET))
		a, b := make([]byte, 2), make([]byte, 5)
		eq(t, "bytes", must[int](t)(unix.Readv(fd, [][]byte{a, b})), 3)
		t.eqText("content", string(a)+string(b[:1]), "abc")
	}},
	{"vector/counts", func(t *T) {
		fd := t.create("file", "")
		one := []byte("x")
		many := make([][]byte, 1025)
		for n := range many {
			many[n] = one
		}
		eq(t, "bytes", must[uintptr](t)(t.vector(unix.SYS_PWRITEV, fd, iovecs(many[:1024]...))), 1024)
		t.fails(errOf(t.vector(unix.SYS_PWRITEV, fd, iovecs(many...))), unix.EINVAL)
		eq(t, "bytes", must[uintptr](t)(t.vector(unix.SYS_PWRITEV, fd, nil)), 0)
		huge := iovecs(one)
		huge[0].Len = 1 << 63
		t.fails(errOf(t.vector(unix.SYS_PWRITEV, fd, huge)), unix.EINVAL)
		eq(t, "size", t.fstat(fd).size, 1024)
	}},
	{"preadv2/current-offset", func(t *T) {
		fd := t.create("file", "content")
		buf := make([]byte, 3)
		eq(t, "bytes", must[int](t)(unix.Preadv2(fd, [][]byte{buf}, -1, 0)), 3)
		eq(t, "offset", t.offset(fd), 3)
		eq(t, "bytes", must[int](t)(unix.Pwritev2(fd, [][]byte{[]byte("T")}, -1, 0)), 1)
		t.eqText("content", t.all(fd), "conTent")
		t.fails(errOf(unix.Preadv2(fd, [][]byte{buf}, -2, 0)), unix.EINVAL)
	}},
	{"preadv2/flags", func(t *T) {
		fd := t.create("file", "content")
		buf := make([]byte, 7)
		for _, flags := range []int{unix.RWF_HIPRI, unix.RWF_NOWAIT} {
			n := must[int](t)(unix.Preadv2(fd, [][]byte{buf}, 0, flags))
			t.eqText("content", string(buf[:n]), "content")
		}
		t.fails(errOf(unix.Preadv2(fd, [][]byte{buf}, 0, 1<<30)), unix.EOPNOTSUPP)
	}},
	{"pwritev2/sync-flags", func(t *T) {
		fd := t.create("file", "")
		eq(t, "bytes", must[int](t)(unix.Pwritev2(fd, [][]byte{[]byte("abc")}, 0, unix.RWF_DSYNC)), 3)
		eq(t, "bytes", must[int](t)(unix.Pwritev2(fd, [][]byte{[]byte("def")}, 3, unix.RWF_SYNC)), 3)
		t.eqText("content", t.all(fd), "abcdef")
	}},
	{"pwritev2/append", func(t *T) {
		fd := t.create("file", "content")
		eq(t, "bytes", must[int](t)(unix.Pwritev2(fd, [][]byte{[]byte(" grows")}, 0, unix.RWF_APPEND)), 6)
		t.eqText("content", t.all(fd), "content grows")
		eq(t, "offset", t.offset(fd), 0)
		eq(t, "bytes", must[int](t)(unix.Pwritev2(fd, [][]byte{[]byte("!")}, -1, unix.RWF_APPEND)), 1)
		eq(t, "offset", t.offset(fd), 14)
	}},
	{"pwritev2/no-append", func(t *T) {
		t.file("file", "content")
		fd := t.open("file", unix.O_WRONLY|unix.O_APPEND)
		eq(t, "bytes", must[int](t)(unix.Pwritev2(fd, [][]byte{[]byte("C")}, 0, unix.RWF_NOAPPEND)), 1)
		t.eqText("content", t.content("file"), "Content")
	}},
	{"pwritev2/unknown-flags", func(t *T) {
		fd := t.create("file", "")
		t.fails(errOf(unix.Pwritev2(fd, [][]byte{[]byte("x")}, 0, 1<<30)), unix.EOPNOTSUPP)
		t.fails(errOf(unix.Pwritev2(fd, [][]byte{[]byte("x")}, 0, unix.RWF_APPEND|unix.RWF_NOAPPEND)), unix.EINVAL)
	}},
}

// vector calls preadv or pwritev at offset 0 with a vector as it stands.
func (t *T) vector(call uintptr, fd int, v []unix.Iovec) (uintptr, error) {
	n, err := syscall(call, uintptr(fd), address(v), uintptr(len(v)), 0, 0)
	runtime.KeepAlive(v)
	return n, err
}

var offsetChecks = []check{
	{"lseek/set-cur-end", func(t *T) {
		fd := t.create("file", "content")
		eq(t, "offset", must[int64](t)(unix.Seek(fd, 3, unix.SEEK_SET)), 3)
		eq(t, "offset", must[int64](t)(unix.Seek(fd, 2, unix.SEEK_CUR)), 5)
		eq(t, "offset", must[int64](t)(unix.Seek(fd, -1, unix.SEEK_END)), 6)
		eq(t, "offset", must[int64](t)(unix.Seek(fd, 100, unix.SEEK_END)), 107)
		eq(t, "size", t.fstat(fd).size, 7)
	}},
	{"lseek/errors", func(t *T) {
		fd := t.create("file", "content")
		t.fails(errOf(unix.Seek(fd, -1, unix.SEEK_SET)), unix.EINVAL)
		t.fails(errOf(unix.Seek(fd, -8, unix.SEEK_END)), unix.EINVAL)
		t.fails(errOf(unix.Seek(fd, 0, 77)), unix.EINVAL)
		t.fails(errOf(unix.Seek(t.pipe().r, 0, unix.SEEK_SET)), unix.ESPIPE)
		must[int64](t)(unix.Seek(fd, 10, unix.SEEK_SET))
		t.fails(errOf(unix.Seek(fd, math.MaxInt64, unix.SEEK_CUR)), unix.EOVERFLOW, unix.EINVAL)
		eq(t, "offset", t.offset(fd), 10)
	}},
	{"lseek/shared-by-dup-not-by-open", func(t *T) {
		a := t.create("file", "content")
		b := t.closing(must[int](t)(unix.Dup(a)))
		c := t.open("file", unix.O_RDONLY)
		must[int64](t)(unix.Seek(a, 4, unix.SEEK_SET))
		eq(t, "offset of the duplicate", t.offset(b), 4)
		eq(t, "offset of the other description", t.offset(c), 0)
	}},
	{"lseek/data-and-hole", func(t *T) {
		// lseek(2): there is a virtual hole at the end; a file system may take holes for data.
		fd := t.create("file", "")
		t.pwrite(fd, strings.Repeat("x", 64<<10), 1<<20)
		t.ok(unix.Ftruncate(fd, 4<<20))
		data := must[int64](t)(unix.Seek(fd, 0, unix.SEEK_DATA))
		eq(t, "data", data, 1<<20)
		eq(t, "offset", t.offset(fd), 1<<20)
		eq(t, "hole", must[int64](t)(unix.Seek(fd, data, unix.SEEK_HOLE)), 1<<20+64<<10)
		eq(t, "hole in a hole", must[int64](t)(unix.Seek(fd, 4000, unix.SEEK_HOLE)), 4000)
		eq(t, "data in data", must[int64](t)(unix.Seek(fd, 1<<20+5, unix.SEEK_DATA)), 1<<20+5)
		t.fails(errOf(unix.Seek(fd, 2<<20, unix.SEEK_DATA)), unix.ENXIO)
	}},
	{"lseek/data-and-hole-after-write-back", func(t *T) {
		fd := t.create("file", "")
		t.pwrite(fd, strings.Repeat("x", 64<<10), 1<<20)
		t.ok(unix.Fsync(fd))
		eq(t, "data", must[int64](t)(unix.Seek(fd, 0, unix.SEEK_DATA)), 1<<20)
		eq(t, "hole", must[int64](t)(unix.Seek(fd, 1<<20, unix.SEEK_HOLE)), 1<<20+64<<10)
	}},
	{"lseek/data-and-hole-at-the-ends", func(t *T) {
		fd := t.create("file", "")
		t.fails(errOf(unix.Seek(fd, 0, unix.SEEK_DATA)), unix.ENXIO)
		t.fails(errOf(unix.Seek(fd, 0, unix.SEEK_HOLE)), unix.ENXIO)
		t.pwrite(fd, "content", 0)
		eq(t, "hole", must[int64](t)(unix.Seek(fd, 0, unix.SEEK_HOLE)), 7)
		t.fails(errOf(unix.Seek(fd, 7, unix.SEEK_HOLE)), unix.ENXIO)
		t.fails(errOf(unix.Seek(fd, -1, unix.SEEK_DATA)), unix.ENXIO)
		t.fails(errOf(unix.Seek(fd, 100, unix.SEEK_DATA)), unix.ENXIO)
	}},
	{"lseek/punched-hole", func(t *T) {
		fd := t.create("file", strings.Repeat("x", 256<<10))
		t.ok(unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 64<<10, 64<<10))
		eq(t, "hole", must[int64](t)(unix.Seek(fd, 0, unix.SEEK_HOLE)), 64<<10)
		eq(t, "data", must[int64](t)(unix.Seek(fd, 64<<10, unix.SEEK_DATA)), 128<<10)
	}},
}

// ends are both ends of a pipe.
type ends struct{ r, w int }

func (t *T) pipe() ends {
	var fds [2]int
	t.ok(unix.Pipe2(fds[:], unix.O_CLOEXEC))
	return ends{t.closing(fds[0]), t.closing(fds[1])}
}
