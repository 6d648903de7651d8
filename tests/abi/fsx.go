package main

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"

	"golang.org/x/sys/unix"
)

// fsxMax is the largest size of the file that fsx checks work on.
const fsxMax = 256 << 10

// fsx does random operations on one file and on a model of it in memory, and wants
// both to agree all the time.
type fsx struct {
	t     *T
	rng   *rand.Rand
	fd    int
	flags int // of open(2), besides O_RDWR
	m     []byte
	model []byte
	log   []string // the last operations, for messages
}

// fsxOp is one operation, done w times as often as one of weight 1.
type fsxOp struct {
	weight int
	run    func(f *fsx)
}

var (
	fsxBasic = []fsxOp{
		{6, (*fsx).read}, {6, (*fsx).write}, {2, (*fsx).append}, {3, (*fsx).truncate}, {1, (*fsx).sync}, {1, (*fsx).reopen},
		{1, (*fsx).dropCache}, {1, (*fsx).whole},
	}
	fsxMapped  = []fsxOp{{5, (*fsx).mapRead}, {5, (*fsx).mapWrite}, {1, (*fsx).msync}, {1, (*fsx).remap}}
	fsxSpace   = []fsxOp{{2, (*fsx).allocate}, {2, (*fsx).punch}, {2, (*fsx).zero}, {2, (*fsx).seek}}
	fsxUnusual = []fsxOp{{2, (*fsx).vector}, {1, (*fsx).sendfile}, {2, (*fsx).fromMapping}, {2, (*fsx).intoMapping}}
	fsxDirect  = []fsxOp{{4, (*fsx).directRead}, {4, (*fsx).directWrite}}
)

var fsxChecks = []check{
	{"stress/file-buffered", func(t *T) { t.fsx(1, 1500, fsxBasic) }},
	{"stress/file-mapped", func(t *T) { t.fsx(2, 1500, fsxBasic, fsxMapped) }},
	{"stress/file-space", func(t *T) { t.fsx(3, 1500, fsxBasic, fsxSpace) }},
	{"stress/file-space-mapped", func(t *T) { t.fsx(4, 1500, fsxBasic, fsxSpace, fsxMapped) }},
	{"stress/file-direct", func(t *T) { t.fsx(5, 1500, fsxBasic, fsxDirect) }},
	{"stress/file-direct-space", func(t *T) { t.fsx(6, 1500, fsxBasic, fsxDirect, fsxSpace) }},
	{"stress/file-everything", func(t *T) {
		t.fsx(7, 2500, fsxBasic, fsxDirect, fsxSpace, fsxMapped, fsxUnusual)
	}},
	{"stress/file-everything-again", func(t *T) {
		t.fsx(seed, 2500, fsxBasic, fsxDirect, fsxSpace, fsxMapped, fsxUnusual)
	}},
}

// fsx runs a number of random operations of the given kinds.
func (t *T) fsx(seed uint64, ops int, kinds ...[]fsxOp) {
	f := &fsx{t: t, rng: rand.New(rand.NewPCG(seed, 0)), fd: -1}
	f.reopen()
	defer f.close()
	var choice []func(f *fsx)
	for _, op := range slices.Concat(kinds...) {
		for range op.weight {
			choice = append(choice, op.run)
		}
	}
	for n := range ops {
		op := choice[f.rng.IntN(len(choice))]
		if text := caught(func() { op(f) }); text != "" {
			t.failf("seed %d, operation %d: %s; before that: %q", seed, n, text, f.log)
		}
	}
	f.whole()
}

// did notes an operation.
func (f *fsx) did(format string, args ...any) {
	f.log = append(f.log[max(0, len(f.log)-11):], fmt.Sprintf(format, args...))
}

// where gives a random place of up to max bytes that begins before limit.
func (f *fsx) where(limit, maxLength int) (off, n int) {
	if limit == 0 {
		return 0, 0
	}
	off = f.rng.IntN(limit)
	if f.rng.IntN(3) == 0 {
		off &^= 4095
	}
	n = 1 + f.rng.IntN(maxLength)
	if f.rng.IntN(3) == 0 {
		n = (n + 4095) &^ 4095
	}
	return off, n
}

// inFile gives a random place within the file.
func (f *fsx) inFile() (off, n int) {
	off, n = f.where(len(f.model), 64<<10)
	return off, min(n, len(f.model)-off)
}

// data gives n random bytes, none of them zero.
func (f *fsx) data(n int) []byte {
	b := make([]byte, n)
	x := f.rng.Uint64()
	for i := range b {
		x = x*6364136223846793005 + 1442695040888963407
		b[i] = byte(x>>33) | 1
	}
	return b
}

// set changes the model.
func (f *fsx) set(off int, b []byte) {
	if end := off + len(b); end > len(f.model) {
		f.resize(end)
	}
	copy(f.model[off:], b)
}

func (f *fsx) resize(size int) {
	if size <= len(f.model) {
		f.model = f.model[:size:size]
		return
	}
	f.model = append(f.model, make([]byte, size-len(f.model))...)
}

// same wants bytes to be as in the model.
func (f *fsx) same(what string, off int, got []byte) {
	want := f.model[min(off, len(f.model)):min(off+len(got), len(f.model))]
	if bytes.Equal(got, want) {
		return
	}
	for i := range got {
		if i >= len(want) || got[i] != want[i] {
			w := "none"
			if i < len(want) {
				w = fmt.Sprintf("%#x", want[i])
			}
			f.t.failf("%s: byte %d of a file of %d bytes is %#x, want %s", what, off+i, len(f.model), got[i], w)
		}
	}
	f.t.failf("%s: got %d bytes at %d, want %d", what, len(got), off, len(want))
}

func (f *fsx) read() {
	off, n := f.where(fsxMax, 64<<10)
	f.did("read %d at %d", n, off)
	buf := make([]byte, n)
	got := must[int](f.t)(unix.Pread(f.fd, buf, int64(off)))
	eq(f.t, "bytes read", got, max(0, min(n, len(f.model)-off)))
	f.same("read", off, buf[:got])
}

func (f *fsx) write() {
	off, n := f.where(fsxMax, 64<<10)
	n = min(n, fsxMax-off)
	f.did("write %d at %d of %d", n, off, len(f.model))
	b := f.data(n)
	f.t.pwrite(f.fd, string(b), int64(off))
	f.set(off, b)
}

func (f *fsx) append() {
	n := min(1+f.rng.IntN(10000), fsxMax-len(f.model))
	if n == 0 {
		return
	}
	f.did("append %d to %d", n, len(f.model))
	b := f.data(n)
	eq(f.t, "bytes written", must[int](f.t)(unix.Pwritev2(f.fd, [][]byte{b}, 0, unix.RWF_APPEND)), n)
	f.set(len(f.model), b)
}

func (f *fsx) truncate() {
	size := f.rng.IntN(fsxMax)
	if f.rng.IntN(3) == 0 {
		size &^= 4095
	}
	f.did("truncate %d to %d", len(f.model), size)
	f.t.ok(unix.Ftruncate(f.fd, int64(size)))
	f.resize(size)
}

func (f *fsx) sync() {
	switch f.rng.IntN(3) {
	case 0:
		f.did("fsync")
		f.t.ok(unix.Fsync(f.fd))
	case 1:
		f.did("fdatasync")
		f.t.ok(unix.Fdatasync(f.fd))
	case 2:
		f.did("syncfs")
		f.t.ok(unix.Syncfs(f.fd))
	}
}

func (f *fsx) dropCache() {
	f.did("drop the cache")
	f.t.ok(unix.Fsync(f.fd))
	f.t.ok(unix.Fadvise(f.fd, 0, 0, unix.FADV_DONTNEED))
}

// whole compares everything.
func (f *fsx) whole() {
	eq(f.t, "size", f.t.fstat(f.fd).size, int64(len(f.model)))
	f.same("whole file", 0, []byte(f.t.all(f.fd)))
}

func (f *fsx) close() {
	if f.m != nil {
		unix.Munmap(f.m)
		f.m = nil
	}
	unix.Close(f.fd)
}

func (f *fsx) reopen() {
	f.did("reopen")
	f.close()
	fd, err := unix.Open(f.t.p("file"), unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o644)
	f.t.ok(err)
	f.fd = fd
	f.m = must[[]byte](f.t)(unix.Mmap(fd, 0, fsxMax, readWrite, unix.MAP_SHARED))
}

func (f *fsx) remap() {
	f.did("remap")
	f.t.ok(unix.Munmap(f.m))
	f.m = must[[]byte](f.t)(unix.Mmap(f.fd, 0, fsxMax, readWrite, unix.MAP_SHARED))
}

func (f *fsx) mapRead() {
	off, n := f.inFile()
	f.did("load %d at %d", n, off)
	b := make([]byte, n)
	f.t.that(!faults(func() { copy(b, f.m[off:]) }), "a load inside the file got a signal")
	f.same("load", off, b)
}

func (f *fsx) mapWrite() {
	off, n := f.inFile()
	f.did("store %d at %d", n, off)
	b := f.data(n)
	f.t.that(!faults(func() { copy(f.m[off:], b) }), "a store inside the file got a signal")
	f.set(off, b)
}

func (f *fsx) msync() {
	f.did("msync")
	f.t.ok(unix.Msync(f.m, []int{unix.MS_SYNC, unix.MS_ASYNC}[f.rng.IntN(2)]))
}

func (f *fsx) allocate() {
	off, n := f.where(fsxMax, 64<<10)
	n = min(n, fsxMax-off)
	if f.rng.IntN(2) == 0 {
		f.did("allocate %d at %d of %d, size kept", n, off, len(f.model))
		f.t.ok(unix.Fallocate(f.fd, keepSize, int64(off), int64(n)))
		return
	}
	f.did("allocate %d at %d of %d", n, off, len(f.model))
	f.t.ok(unix.Fallocate(f.fd, 0, int64(off), int64(n)))
	f.resize(max(off+n, len(f.model)))
}

func (f *fsx) punch() {
	off, n := f.where(fsxMax, 64<<10)
	f.did("punch %d at %d of %d", n, off, len(f.model))
	f.t.ok(unix.Fallocate(f.fd, punchHole, int64(off), int64(n)))
	clear(f.model[min(off, len(f.model)):min(off+n, len(f.model))])
}

func (f *fsx) zero() {
	off, n := f.where(fsxMax, 64<<10)
	n = min(n, fsxMax-off)
	mode := zeroRange
	if f.rng.IntN(2) == 0 {
		mode |= keepSize
	}
	f.did("zero %d at %d of %d, mode %#x", n, off, len(f.model), mode)
	f.t.ok(unix.Fallocate(f.fd, uint32(mode), int64(off), int64(n)))
	clear(f.model[min(off, len(f.model)):min(off+n, len(f.model))])
	if mode&keepSize == 0 {
		f.resize(max(off+n, len(f.model)))
	}
}

// seek wants everything between data to be zero.
func (f *fsx) seek() {
	f.did("seek data")
	for at := int64(0); ; {
		data, err := unix.Seek(f.fd, at, unix.SEEK_DATA)
		end := int64(len(f.model))
		if err == nil {
			end = data
		} else {
			f.t.fails(err, unix.ENXIO)
		}
		for i := at; i < end; i++ {
			f.t.that(f.model[i] == 0, "byte %d is %#x but lies in a hole from %d to %d", i, f.model[i], at, end)
		}
		if err != nil {
			return
		}
		at = must[int64](f.t)(unix.Seek(f.fd, data, unix.SEEK_HOLE))
		f.t.that(at > data && at <= int64(len(f.model)), "data at %d ends at %d in a file of %d bytes", data, at, len(f.model))
		if at == int64(len(f.model)) {
			return
		}
	}
}

func (f *fsx) vector() {
	off, n := f.where(fsxMax/2, 20<<10)
	f.did("write a vector of %d at %d", 3*n, off)
	b := f.data(3 * n)
	eq(f.t, "bytes written", must[int](f.t)(unix.Pwritev(f.fd, [][]byte{b[:n], b[n : 2*n], b[2*n:]}, int64(off))), 3*n)
	f.set(off, b)
}

func (f *fsx) sendfile() {
	off, n := f.inFile()
	if n == 0 {
		return
	}
	to, _ := f.where(fsxMax-n+1, 1)
	if to < off+n && off < to+n {
		return // what overlapping ranges give is not defined
	}
	f.did("send %d from %d to %d", n, off, to)
	must[int64](f.t)(unix.Seek(f.fd, int64(to), unix.SEEK_SET))
	from := must[int](f.t)(unix.Open(f.t.p("file"), unix.O_RDONLY|unix.O_CLOEXEC, 0))
	defer unix.Close(from)
	for at, left := int64(off), n; left > 0; {
		sent := must[int](f.t)(unix.Sendfile(f.fd, from, &at, left))
		f.t.that(sent > 0, "nothing was sent, %d bytes are left", left)
		left -= sent
	}
	f.set(to, bytes.Clone(f.model[off:off+n]))
}

// fromMapping writes to the file what it has elsewhere.
func (f *fsx) fromMapping() {
	off, n := f.inFile()
	if n == 0 {
		return
	}
	to, _ := f.where(fsxMax-n+1, 1)
	if to < off+n && off < to+n {
		return
	}
	f.did("write %d from mapping at %d to %d", n, off, to)
	b := bytes.Clone(f.model[off : off+n])
	eq(f.t, "bytes written", must[int](f.t)(unix.Pwrite(f.fd, f.m[off:off+n], int64(to))), n)
	f.set(to, b)
}

// intoMapping reads the file into another place of itself.
func (f *fsx) intoMapping() {
	off, n := f.inFile()
	if n == 0 {
		return
	}
	from, _ := f.where(len(f.model)-n+1, 1)
	if from < off+n && off < from+n {
		return
	}
	f.did("read %d at %d into mapping at %d", n, from, off)
	eq(f.t, "bytes read", must[int](f.t)(unix.Pread(f.fd, f.m[off:off+n], int64(from))), n)
	f.set(off, bytes.Clone(f.model[from:from+n]))
}

// direct runs fn with a descriptor for direct I/O and an aligned place.
func (f *fsx) direct(fn func(fd, off int, buf []byte)) {
	fd := must[int](f.t)(unix.Open(f.t.p("file"), unix.O_RDWR|unix.O_DIRECT|unix.O_CLOEXEC, 0))
	defer unix.Close(fd)
	off := f.rng.IntN(fsxMax) &^ 4095
	n := min((1+f.rng.IntN(16))*4096, fsxMax-off)
	fn(fd, off, aligned(n))
}

func (f *fsx) directRead() {
	f.direct(func(fd, off int, buf []byte) {
		f.did("read %d at %d directly", len(buf), off)
		got := must[int](f.t)(unix.Pread(fd, buf, int64(off)))
		eq(f.t, "bytes read", got, max(0, min(len(buf), len(f.model)-off)))
		f.same("direct read", off, buf[:got])
	})
}

func (f *fsx) directWrite() {
	f.direct(func(fd, off int, buf []byte) {
		f.did("write %d at %d of %d directly", len(buf), off, len(f.model))
		copy(buf, f.data(len(buf)))
		eq(f.t, "bytes written", must[int](f.t)(unix.Pwrite(fd, buf, int64(off))), len(buf))
		f.set(off, bytes.Clone(buf))
	})
}
