package main

import (
	"runtime"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Operations of io_uring_enter(2).
const (
	uringNop        = 0
	uringReadv      = 1
	uringWritev     = 2
	uringFsync      = 3
	uringReadFixed  = 4
	uringWriteFixed = 5
	uringFallocate  = 17
	uringOpenat     = 18
	uringClose      = 19
	uringStatx      = 21
	uringRead       = 22
	uringWrite      = 23
	uringRenameat   = 35
	uringUnlinkat   = 36
	uringMkdirat    = 37
)

// sqe is one submission.
type sqe struct {
	op, flags          uint8
	prio               uint16
	fd                 int32
	off, addr          uint64
	n, opFlags         uint32
	data               uint64
	bufIndex, personal uint16
	file               uint32
	pad                [2]uint64
}

// cqe is one completion.
type cqe struct {
	data  uint64
	res   int32
	flags uint32
}

// uringParams is what io_uring_setup(2) takes and gives.
type uringParams struct {
	sqEntries, cqEntries, flags, sqCPU, sqIdle, features, wqFD uint32
	reserved                                                   [3]uint32
	sq                                                         struct {
		head, tail, mask, entries, flags, dropped, array, reserved uint32
		userAddr                                                   uint64
	}
	cq struct {
		head, tail, mask, entries, overflow, cqes, flags, reserved uint32
		userAddr                                                   uint64
	}
}

// uring is a ring of eight entries.
type uring struct {
	t      *T
	fd     int
	p      uringParams
	sq, cq []byte
	sqes   []byte
}

func (t *T) uring() *uring {
	r := &uring{t: t}
	fd := must[uintptr](t)(syscall(unix.SYS_IO_URING_SETUP, 8, pointer(&r.p)))
	r.fd = t.closing(int(fd))
	const ringOff, cqOff, sqesOff = 0, 0x8000000, 0x10000000
	r.sq = t.mmapAt(r.fd, ringOff, int(r.p.sq.array+r.p.sqEntries*4), readWrite, unix.MAP_SHARED)
	r.cq = t.mmapAt(r.fd, cqOff, int(r.p.cq.cqes+r.p.cqEntries*16), readWrite, unix.MAP_SHARED)
	r.sqes = t.mmapAt(r.fd, sqesOff, int(r.p.sqEntries)*64, readWrite, unix.MAP_SHARED)
	return r
}

// word is a field of a ring that both sides use.
func word(ring []byte, off uint32) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&ring[off]))
}

// do submits requests together and gives their results in the order of the requests.
func (r *uring) do(reqs ...sqe) []int32 {
	t := r.t
	tail := word(r.sq, r.p.sq.tail)
	mask := word(r.sq, r.p.sq.mask).Load()
	for n, q := range reqs {
		q.data = uint64(n)
		at := (tail.Load() + uint32(n)) & mask
		*(*sqe)(unsafe.Pointer(&r.sqes[at*64])) = q
		word(r.sq, r.p.sq.array+at*4).Store(at)
	}
	tail.Add(uint32(len(reqs)))
	const getEvents = 1
	n := must[uintptr](t)(syscall(unix.SYS_IO_URING_ENTER, uintptr(r.fd), uintptr(len(reqs)), uintptr(len(reqs)), getEvents, 0, 0))
	eq(t, "requests taken", int(n), len(reqs))
	results := make([]int32, len(reqs))
	head, cqTail := word(r.cq, r.p.cq.head), word(r.cq, r.p.cq.tail)
	t.that(until(func() bool { return cqTail.Load()-head.Load() >= uint32(len(reqs)) }), "not all completions came")
	for range reqs {
		c := *(*cqe)(unsafe.Pointer(&r.cq[r.p.cq.cqes+(head.Load()&word(r.cq, r.p.cq.mask).Load())*16]))
		results[c.data] = c.res
		head.Add(1)
	}
	return results
}

// one submits one request and gives its result.
func (r *uring) one(q sqe) int32 { return r.do(q)[0] }

// on gives a request on a buffer.
func on(op uint8, fd int, buf []byte, off uint64) sqe {
	return sqe{op: op, fd: int32(fd), addr: uint64(address(buf)), n: uint32(len(buf)), off: off}
}

var uringChecks = []check{
	{"io-uring/nop", func(t *T) {
		r := t.uring()
		for range 20 {
			eq(t, "result", r.one(sqe{op: uringNop}), 0)
		}
		for _, res := range r.do(make([]sqe, 8)...) {
			eq(t, "result", res, 0)
		}
	}},
	{"io-uring/vectors", func(t *T) {
		r := t.uring()
		fd := t.create("file", "")
		v := iovecs([]byte("one"), []byte("two"))
		eq(t, "bytes written", r.one(sqe{op: uringWritev, fd: int32(fd), addr: uint64(address(v)), n: 2}), 6)
		x, y := make([]byte, 2), make([]byte, 10)
		v = iovecs(x, y)
		eq(t, "bytes read", r.one(sqe{op: uringReadv, fd: int32(fd), addr: uint64(address(v)), n: 2}), 6)
		t.eqText("content", string(x)+string(y[:4]), "onetwo")
	}},
	{"io-uring/readv-alone", func(t *T) {
		r := t.uring()
		fd := t.create("file", "content")
		x := make([]byte, 10)
		v := iovecs(x)
		eq(t, "bytes read", r.one(sqe{op: uringReadv, fd: int32(fd), addr: uint64(address(v)), n: 1}), 7)
		t.eqText("content", string(x[:7]), "content")
	}},
	{"io-uring/write-read-sync", func(t *T) {
		r := t.uring()
		fd := t.create("file", "")
		data, buf := []byte("content"), make([]byte, 100)
		eq(t, "bytes written", r.one(on(uringWrite, fd, data, 3)), 7)
		eq(t, "result of fsync", r.one(sqe{op: uringFsync, fd: int32(fd)}), 0)
		eq(t, "bytes read", r.one(on(uringRead, fd, buf, 0)), 10)
		t.eqText("content", string(buf[:10]), "\x00\x00\x00content")
	}},
	{"io-uring/registered-buffers", func(t *T) {
		r := t.uring()
		fd := t.create("file", "")
		buf := aligned(4096)
		copy(buf, "content")
		v := iovecs(buf)
		const registerBuffers = 0
		t.ok(errOf(syscall(unix.SYS_IO_URING_REGISTER, uintptr(r.fd), registerBuffers, address(v), 1)))
		eq(t, "bytes written", r.one(on(uringWriteFixed, fd, buf[:7], 0)), 7)
		clear(buf)
		eq(t, "bytes read", r.one(on(uringReadFixed, fd, buf, 0)), 7)
		t.eqText("content", string(buf[:7]), "content")
	}},
	{"io-uring/names", func(t *T) {
		r := t.uring()
		dir, a, b := cstring(t.p("dir")), cstring(t.p("dir/a")), cstring(t.p("dir/b"))
		eq(t, "result of mkdirat", r.one(sqe{op: uringMkdirat, fd: unix.AT_FDCWD, addr: uint64(address(dir)), n: 0o755}), 0)
		fd := r.one(sqe{op: uringOpenat, fd: unix.AT_FDCWD, addr: uint64(address(a)), n: 0o644, opFlags: unix.O_CREAT | unix.O_RDWR})
		t.that(fd >= 0, "result of openat: %d", fd)
		eq(t, "result of fallocate", r.one(sqe{op: uringFallocate, fd: fd, addr: 5000}), 0)
		eq(t, "result of close", r.one(sqe{op: uringClose, fd: fd}), 0)
		var st unix.Statx_t
		eq(t, "result of statx", r.one(sqe{op: uringStatx, fd: unix.AT_FDCWD, addr: uint64(address(a)), n: unix.STATX_SIZE, off: uint64(pointer(&st))}), 0)
		eq(t, "size", st.Size, 5000)
		eq(t, "result of renameat", r.one(sqe{op: uringRenameat, fd: unix.AT_FDCWD, addr: uint64(address(a)), off: uint64(address(b)), n: 0xffffff9c}), 0)
		eq(t, "result of unlinkat", r.one(sqe{op: uringUnlinkat, fd: unix.AT_FDCWD, addr: uint64(address(b))}), 0)
		t.absent("dir/b")
		runtime.KeepAlive(dir)
	}},
	{"io-uring/linked-requests", func(t *T) {
		r := t.uring()
		fd := t.create("file", "")
		data, buf := []byte("content"), make([]byte, 7)
		const link = 4
		write := on(uringWrite, fd, data, 0)
		write.flags = link
		results := r.do(write, on(uringRead, fd, buf, 0))
		eq(t, "bytes written", results[0], 7)
		eq(t, "bytes read", results[1], 7)
		t.eqText("content", string(buf), "content")
	}},
	{"io-uring/errors", func(t *T) {
		r := t.uring()
		buf := make([]byte, 10)
		eq(t, "result on a closed descriptor", r.one(on(uringRead, 9999, buf, 0)), -int32(unix.EBADF))
		eq(t, "result of an unknown operation", r.one(sqe{op: 250}), -int32(unix.EINVAL))
		t.fails(errOf(syscall(unix.SYS_IO_URING_SETUP, 0, pointer(&uringParams{}))), unix.EINVAL)
	}},
}
