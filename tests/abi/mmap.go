package main

import (
	"os"
	"runtime/debug"
	"strings"

	"golang.org/x/sys/unix"
)

// mmap maps the first n bytes of a file until the check ends.
func (t *T) mmap(fd, n, prot, flags int) []byte {
	return t.mmapAt(fd, 0, n, prot, flags)
}

func (t *T) mmapAt(fd int, off int64, n, prot, flags int) []byte {
	m := must[[]byte](t)(unix.Mmap(fd, off, n, prot, flags))
	t.cleanup(func() { unix.Munmap(m) })
	return m
}

const readWrite = unix.PROT_READ | unix.PROT_WRITE

// loaded keeps the compiler from leaving out loads.
var loaded byte

//go:noinline
func load(m []byte, i int) byte {
	loaded = m[i]
	return m[i]
}

//go:noinline
func store(m []byte, i int, b byte) { m[i] = b }

// faults says whether fn got a signal for an access to memory.
func faults(fn func()) (hit bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		switch r := recover().(type) {
		case nil:
		case interface {
			error
			Addr() uintptr
		}:
			hit = true
		default:
			panic(r)
		}
	}()
	fn()
	return false
}

var mmapChecks = []check{
	{"mmap/shared-sees-writes", func(t *T) {
		fd := t.create("file", blocksOf(4))
		m := t.mmap(fd, 4*4096, unix.PROT_READ, unix.MAP_SHARED)
		t.eqText("mapping", string(m), blocksOf(4))
		for n := range 50 {
			b := byte('0' + n)
			t.pwrite(fd, string(b), int64(n*300))
			eq(t, "byte in the mapping", load(m, n*300), b)
		}
	}},
	{"mmap/shared-seen-by-reads", func(t *T) {
		fd := t.create("file", blocksOf(4))
		m := t.mmap(fd, 4*4096, readWrite, unix.MAP_SHARED)
		for n := range 50 {
			b := byte('0' + n)
			store(m, n*300, b)
			t.eqText("byte read", t.pread(fd, 1, int64(n*300)), string(b))
		}
		t.ok(unix.Msync(m, unix.MS_SYNC))
		t.eqText("content", t.content("file"), string(m))
	}},
	{"mmap/two-shared-mappings", func(t *T) {
		fd := t.create("file", blocksOf(2))
		a := t.mmap(fd, 8192, readWrite, unix.MAP_SHARED)
		b := t.mmapAt(t.open("file", unix.O_RDONLY), 4096, 4096, unix.PROT_READ, unix.MAP_SHARED)
		store(a, 4096+77, '!')
		eq(t, "byte in the other mapping", load(b, 77), '!')
	}},
	{"mmap/shared-with-a-process", func(t *T) {
		fd := t.create("file", blocksOf(2))
		m := t.mmap(fd, 8192, readWrite, unix.MAP_SHARED)
		eq(t, "byte before", load(m, 5000), 'b')
		child := t.startSelf("store", t.p("file"), "5000")
		t.eqText("outcome", child.said, "success")
		eq(t, "byte in the mapping", load(m, 5000), '!')
		child.end()
		t.eqText("byte read", t.pread(fd, 1, 5000), "!")
	}},
	{"mmap/private-stores-stay-private", func(t *T) {
		fd := t.create("file", blocksOf(1))
		m := t.mmap(fd, 4096, readWrite, unix.MAP_PRIVATE)
		store(m, 10, '!')
		eq(t, "byte in the mapping", load(m, 10), '!')
		t.eqText("content", t.content("file"), blocksOf(1))
		t.pwrite(fd, "?", 10)
		eq(t, "byte in the mapping after a write to the file", load(m, 10), '!')
	}},
	{"mmap/private-of-read-only-descriptor", func(t *T) {
		t.file("file", blocksOf(1))
		m := t.mmap(t.open("file", unix.O_RDONLY), 4096, readWrite, unix.MAP_PRIVATE)
		store(m, 0, '!')
		eq(t, "byte in the mapping", load(m, 0), '!')
	}},
	{"mmap/descriptor-decides", func(t *T) {
		t.file("file", blocksOf(1))
		r := t.open("file", unix.O_RDONLY)
		t.fails(errOf(unix.Mmap(r, 0, 4096, readWrite, unix.MAP_SHARED)), unix.EACCES)
		t.fails(errOf(unix.Mmap(t.open("file", unix.O_WRONLY), 0, 4096, unix.PROT_READ, unix.MAP_SHARED)), unix.EACCES)
		t.fails(errOf(unix.Mmap(t.open("file", unix.O_WRONLY), 0, 4096, unix.PROT_READ, unix.MAP_PRIVATE)), unix.EACCES)
		m := t.mmap(r, 4096, unix.PROT_READ, unix.MAP_SHARED)
		t.fails(unix.Mprotect(m, readWrite), unix.EACCES)
	}},
	{"mmap/errors", func(t *T) {
		t.mkdir("dir")
		fd := t.create("file", blocksOf(1))
		t.fails(errOf(unix.Mmap(fd, 100, 4096, unix.PROT_READ, unix.MAP_SHARED)), unix.EINVAL)
		t.fails(errOf(unix.Mmap(fd, 0, 4096, unix.PROT_READ, 0)), unix.EINVAL)
		t.fails(errOf(unix.Mmap(t.open("dir", unix.O_RDONLY), 0, 4096, unix.PROT_READ, unix.MAP_SHARED)), unix.ENODEV)
		t.fails(errOf(syscall(unix.SYS_MMAP, 0, 0, unix.PROT_READ, unix.MAP_SHARED, uintptr(fd), 0)), unix.EINVAL)
	}},
	{"mmap/map-sync-is-refused", func(t *T) {
		// mmap(2): without DAX, MAP_SYNC fails with EOPNOTSUPP.
		fd := t.create("file", blocksOf(1))
		t.fails(errOf(unix.Mmap(fd, 0, 4096, readWrite, unix.MAP_SHARED_VALIDATE|unix.MAP_SYNC)), unix.EOPNOTSUPP)
		t.mmap(fd, 4096, readWrite, unix.MAP_SHARED_VALIDATE)
	}},
	{"mmap/outlives-descriptor-and-name", func(t *T) {
		fd := must[int](t)(unix.Open(t.p("file"), unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o644))
		t.pwrite(fd, blocksOf(2), 0)
		m := t.mmap(fd, 8192, readWrite, unix.MAP_SHARED)
		t.ok(unix.Close(fd))
		t.ok(unix.Unlink(t.p("file")))
		store(m, 5000, '!')
		t.ok(unix.Msync(m, unix.MS_SYNC))
		eq(t, "byte in the mapping", load(m, 5000), '!')
		eq(t, "byte in the mapping", load(m, 0), 'a')
	}},
	{"mmap/hole-is-filled-by-a-store", func(t *T) {
		fd := t.create("file", "")
		t.ok(unix.Ftruncate(fd, 1<<20))
		m := t.mmap(fd, 1<<20, readWrite, unix.MAP_SHARED)
		eq(t, "byte of the hole", load(m, 500000), 0)
		store(m, 500000, '!')
		t.ok(unix.Msync(m, unix.MS_SYNC))
		t.eqText("byte read", t.pread(fd, 1, 500000), "!")
		blocks := t.fstat(fd).blocks
		t.that(blocks > 0 && blocks < 512, "the file has %d blocks", blocks)
	}},
	{"mmap/read-into-own-mapping", func(t *T) {
		fd := t.create("file", blocksOf(4))
		m := t.mmap(fd, 4*4096, readWrite, unix.MAP_SHARED)
		eq(t, "bytes", must[int](t)(unix.Pread(fd, m[:4096], 8192)), 4096)
		t.eqText("content", t.content("file"), blocksOf(4)[8192:12288]+blocksOf(4)[4096:])
		eq(t, "bytes", must[int](t)(unix.Pread(fd, m[:8192], 0)), 8192)
	}},
	{"mmap/write-from-own-mapping", func(t *T) {
		fd := t.create("file", blocksOf(4))
		m := t.mmap(fd, 4*4096, readWrite, unix.MAP_SHARED)
		eq(t, "bytes", must[int](t)(unix.Pwrite(fd, m[:4096], 8192)), 4096)
		want := blocksOf(4)
		want = want[:8192] + want[:4096] + want[12288:]
		t.eqText("content", t.content("file"), want)
		eq(t, "bytes", must[int](t)(unix.Pwrite(fd, m, 4*4096)), 4*4096)
		t.eqText("content", t.content("file"), want+want)
	}},
	{"mmap/direct-io-into-mapping", func(t *T) {
		t.file("from", blocksOf(2))
		to := t.create("to", strings.Repeat("z", 8192))
		m := t.mmap(to, 8192, readWrite, unix.MAP_SHARED)
		from := t.open("from", unix.O_RDONLY|unix.O_DIRECT)
		eq(t, "bytes", must[int](t)(unix.Pread(from, m, 0)), 8192)
		t.eqText("content", t.content("to"), blocksOf(2))
	}},
	{"mmap/direct-io-under-mapping", func(t *T) {
		fd := t.create("file", blocksOf(4))
		m := t.mmap(fd, 4*4096, readWrite, unix.MAP_SHARED)
		direct := t.open("file", unix.O_RDWR|unix.O_DIRECT)
		buf := aligned(4096)
		for n := range 20 {
			store(m, 4096+n, byte('A'+n))
			eq(t, "bytes", must[int](t)(unix.Pread(direct, buf, 4096)), 4096)
			eq(t, "byte read directly", buf[n], byte('A'+n))
			buf[100+n] = '!'
			eq(t, "bytes", must[int](t)(unix.Pwrite(direct, buf, 4096)), 4096)
			eq(t, "byte in the mapping", load(m, 4096+100+n), '!')
		}
	}},
	{"mmap/populate", func(t *T) {
		fd := t.create("file", blocksOf(8))
		m := t.mmap(fd, 8*4096, readWrite, unix.MAP_SHARED|unix.MAP_POPULATE)
		t.eqText("mapping", string(m), blocksOf(8))
	}},
	{"mmap/listed-in-proc", func(t *T) {
		fd := t.create("file", blocksOf(1))
		t.mmap(fd, 4096, unix.PROT_READ, unix.MAP_SHARED)
		maps, err := os.ReadFile("/proc/self/maps")
		t.ok(err)
		t.that(strings.Contains(string(maps), t.p("file")+"\n"), "/proc/self/maps lacks the file")
	}},
	{"mmap/a-megabyte-of-random-stores", func(t *T) {
		fd := t.create("file", "")
		t.ok(unix.Ftruncate(fd, 1<<20))
		m := t.mmap(fd, 1<<20, readWrite, unix.MAP_SHARED)
		want := make([]byte, 1<<20)
		seed := uint32(1)
		for n := range 5000 {
			seed = seed*1664525 + 1013904223
			at, b := int(seed>>8)%len(want), byte(n)
			want[at] = b
			switch n % 3 {
			case 0:
				store(m, at, b)
			case 1:
				t.pwrite(fd, string([]byte{b}), int64(at))
			case 2:
				store(m, at, b)
				eq(t, "byte read", t.pread(fd, 1, int64(at))[0], b)
			}
			if n%1000 == 999 {
				t.ok(unix.Msync(m, unix.MS_ASYNC))
				t.ok(unix.Fsync(fd))
			}
		}
		t.that(t.all(fd) == string(want), "the content differs")
		t.that(string(m) == string(want), "the mapping differs")
	}},
	{"msync/errors", func(t *T) {
		fd := t.create("file", blocksOf(2))
		m := t.mmap(fd, 8192, readWrite, unix.MAP_SHARED)
		t.fails(unix.Msync(m, unix.MS_SYNC|unix.MS_ASYNC), unix.EINVAL)
		t.fails(unix.Msync(m, 0x100), unix.EINVAL)
		t.fails(unix.Msync(m[1:], unix.MS_SYNC), unix.EINVAL)
		t.fails(errOf(syscall(unix.SYS_MSYNC, 1<<40, 4096, unix.MS_SYNC)), unix.ENOMEM)
		t.ok(unix.Msync(m, unix.MS_ASYNC))
		t.ok(unix.Msync(m, unix.MS_INVALIDATE))
	}},
	{"mremap/grow-and-move", func(t *T) {
		fd := t.create("file", blocksOf(8))
		m := must[[]byte](t)(unix.Mmap(fd, 0, 4096, readWrite, unix.MAP_SHARED))
		m = must[[]byte](t)(unix.Mremap(m, 8*4096, unix.MREMAP_MAYMOVE))
		t.cleanup(func() { unix.Munmap(m) })
		t.eqText("mapping", string(m), blocksOf(8))
		store(m, 7*4096, '!')
		t.eqText("byte read", t.pread(fd, 1, 7*4096), "!")
	}},
	{"mremap/shrink", func(t *T) {
		fd := t.create("file", blocksOf(8))
		m := must[[]byte](t)(unix.Mmap(fd, 0, 8*4096, readWrite, unix.MAP_SHARED))
		store(m, 100, '!')
		m = must[[]byte](t)(unix.Mremap(m, 4096, 0))
		t.cleanup(func() { unix.Munmap(m) })
		t.eqText("byte read", t.pread(fd, 1, 100), "!")
	}},
	{"madvise/dontneed-keeps-shared-stores", func(t *T) {
		fd := t.create("file", blocksOf(2))
		m := t.mmap(fd, 8192, readWrite, unix.MAP_SHARED)
		store(m, 10, '!')
		t.ok(unix.Madvise(m, unix.MADV_DONTNEED))
		eq(t, "byte in the mapping", load(m, 10), '!')
		t.eqText("byte read", t.pread(fd, 1, 10), "!")
	}},
	{"madvise/dontneed-drops-private-stores", func(t *T) {
		fd := t.create("file", blocksOf(2))
		m := t.mmap(fd, 8192, readWrite, unix.MAP_PRIVATE)
		store(m, 10, '!')
		t.ok(unix.Madvise(m, unix.MADV_DONTNEED))
		eq(t, "byte in the mapping", load(m, 10), 'a')
	}},
	{"madvise/remove-punches-a-hole", func(t *T) {
		fd := t.create("file", blocksOf(4))
		m := t.mmap(fd, 4*4096, readWrite, unix.MAP_SHARED)
		t.ok(unix.Madvise(m[4096:8192], unix.MADV_REMOVE))
		eq(t, "byte in the mapping", load(m, 4096), 0)
		t.eqText("content", t.content("file"), blocksOf(4)[:4096]+zeroes(4096)+blocksOf(4)[8192:])
	}},
	{"madvise/hints", func(t *T) {
		fd := t.create("file", blocksOf(4))
		m := t.mmap(fd, 4*4096, readWrite, unix.MAP_SHARED)
		for _, advice := range []int{unix.MADV_NORMAL, unix.MADV_RANDOM, unix.MADV_SEQUENTIAL, unix.MADV_WILLNEED} {
			t.ok(unix.Madvise(m, advice))
		}
		t.eqText("mapping", string(m), blocksOf(4))
	}},
	{"mincore/pages-in-use", func(t *T) {
		fd := t.create("file", blocksOf(4))
		m := t.mmap(fd, 4*4096, readWrite, unix.MAP_SHARED)
		store(m, 0, '!')
		vec := make([]byte, 4)
		t.ok(errOf(syscall(unix.SYS_MINCORE, address(m), 4*4096, address(vec))))
		t.that(vec[0]&1 == 1, "a page just used is not in memory")
	}},
}

var mmapSizeChecks = []check{
	{"mmap/beyond-the-end", func(t *T) {
		fd := t.create("file", "content")
		m := t.mmap(fd, 3*4096, readWrite, unix.MAP_SHARED)
		eq(t, "byte behind the end, in its page", load(m, 4095), 0)
		t.that(faults(func() { load(m, 4096) }), "no SIGBUS in the page behind the end")
		t.that(faults(func() { store(m, 2*4096, 1) }), "no SIGBUS for a store behind the end")
		eq(t, "size", t.fstat(fd).size, 7)
	}},
	{"mmap/private-beyond-the-end", func(t *T) {
		fd := t.create("file", "content")
		m := t.mmap(fd, 2*4096, readWrite, unix.MAP_PRIVATE)
		t.that(faults(func() { store(m, 4096, 1) }), "no SIGBUS behind the end")
	}},
	{"mmap/growth-makes-pages-valid", func(t *T) {
		fd := t.create("file", "content")
		m := t.mmap(fd, 2*4096, readWrite, unix.MAP_SHARED)
		t.that(faults(func() { load(m, 4096) }), "no SIGBUS behind the end")
		t.pwrite(fd, "more", 5000)
		eq(t, "byte in the mapping", load(m, 5000), 'm')
		store(m, 5001, 'O')
		t.eqText("content", t.pread(fd, 10, 5000), "mOre")
	}},
	{"mmap/truncation-makes-pages-invalid", func(t *T) {
		fd := t.create("file", blocksOf(4))
		m := t.mmap(fd, 4*4096, readWrite, unix.MAP_SHARED)
		t.eqText("mapping", string(m), blocksOf(4))
		store(m, 3*4096, '!')
		t.ok(unix.Ftruncate(fd, 4096+100))
		eq(t, "byte before the new end", load(m, 4096+99), 'b')
		eq(t, "byte behind the new end, in its page", load(m, 4096+100), 0)
		t.that(faults(func() { load(m, 2*4096) }), "no SIGBUS behind the new end")
		t.ok(unix.Ftruncate(fd, 4*4096))
		eq(t, "byte after growing again", load(m, 3*4096), 0)
	}},
	{"mmap/truncation-takes-private-copies", func(t *T) {
		fd := t.create("file", blocksOf(2))
		m := t.mmap(fd, 2*4096, readWrite, unix.MAP_PRIVATE)
		store(m, 4096, '!')
		t.ok(unix.Ftruncate(fd, 4096))
		t.that(faults(func() { load(m, 4096) }), "no SIGBUS behind the new end")
	}},
	{"mmap/stores-behind-the-end-are-lost", func(t *T) {
		// mmap(2): what is stored behind the end is not written out; growing shows zeroes.
		fd := t.create("file", "content")
		m := t.mmap(fd, 4096, readWrite, unix.MAP_SHARED)
		store(m, 100, 'x')
		t.ok(unix.Msync(m, unix.MS_SYNC))
		eq(t, "size", t.fstat(fd).size, 7)
		t.ok(unix.Ftruncate(fd, 4096))
		t.eqText("content", t.all(fd), "content"+zeroes(4096-7))
	}},
	{"mmap/stores-behind-the-end-are-lost-by-a-write", func(t *T) {
		fd := t.create("file", "content")
		m := t.mmap(fd, 4096, readWrite, unix.MAP_SHARED)
		store(m, 100, 'x')
		t.pwrite(fd, "end", 200)
		t.eqText("content", t.all(fd), "content"+zeroes(193)+"end")
	}},
	{"mmap/hole-punched-under-mapping", func(t *T) {
		fd := t.create("file", blocksOf(4))
		m := t.mmap(fd, 4*4096, readWrite, unix.MAP_SHARED)
		store(m, 4096, '!')
		t.ok(unix.Fallocate(fd, punchHole, 4096, 4096))
		eq(t, "byte in the mapping", load(m, 4096), 0)
		store(m, 4097, '?')
		t.eqText("content", t.pread(fd, 3, 4096), "\x00?\x00")
		eq(t, "byte of the next page", load(m, 8192), 'c')
	}},
	{"mmap/collapsed-under-mapping", func(t *T) {
		fd := t.create("file", blocksOf(4))
		m := t.mmap(fd, 4*4096, unix.PROT_READ, unix.MAP_SHARED)
		eq(t, "byte before", load(m, 4096), 'b')
		t.ok(unix.Fallocate(fd, collapseRange, 4096, 4096))
		eq(t, "byte after", load(m, 4096), 'c')
	}},
	{"mmap/read-through-fault-is-efault", func(t *T) {
		// A buffer behind the end of a mapped file is a bad address for system calls.
		small := t.create("small", "x")
		m := t.mmap(small, 2*4096, readWrite, unix.MAP_SHARED)
		fd := t.create("file", blocksOf(1))
		t.fails(errOf(unix.Pread(fd, m[4096:], 0)), unix.EFAULT)
		t.fails(errOf(unix.Pwrite(fd, m[4096:], 0)), unix.EFAULT)
		t.eqText("content", t.all(fd), blocksOf(1))
	}},
	{"mmap/o-trunc-under-mapping", func(t *T) {
		fd := t.create("file", blocksOf(2))
		m := t.mmap(fd, 2*4096, readWrite, unix.MAP_SHARED)
		load(m, 0)
		t.ok(opens(t.p("file"), unix.O_WRONLY|unix.O_TRUNC))
		t.that(faults(func() { load(m, 0) }), "no SIGBUS in an empty file")
	}},
}
