package main

import (
	"encoding/binary"
	"runtime"

	"golang.org/x/sys/unix"
)

// Operations of io_submit(2).
const (
	aioPread   = 0
	aioPwrite  = 1
	aioFsync   = 2
	aioFdsync  = 3
	aioPreadv  = 7
	aioPwritev = 8
)

// iocb is one request of io_submit(2).
type iocb struct {
	data         uint64
	key          uint32
	rwFlags      int32
	op           uint16
	prio         int16
	fd           uint32
	buf, n       uint64
	off          int64
	reserved     uint64
	flags, resFD uint32
}

// ioEvent is the end of a request.
type ioEvent struct {
	data, obj uint64
	res, res2 int64
}

// aio is one context of asynchronous I/O.
type aio struct {
	t  *T
	id uint64
}

func (t *T) aio(depth int) *aio {
	a := &aio{t: t}
	t.ok(errOf(syscall(unix.SYS_IO_SETUP, uintptr(depth), pointer(&a.id))))
	t.cleanup(func() { syscall(unix.SYS_IO_DESTROY, uintptr(a.id)) })
	return a
}

// submit gives the number of requests that were taken.
func (a *aio) submit(reqs ...*iocb) (int, error) {
	n, err := syscall(unix.SYS_IO_SUBMIT, uintptr(a.id), uintptr(len(reqs)), address(reqs))
	runtime.KeepAlive(reqs)
	return int(n), err
}

// wait gives n events by their requests' data.
func (a *aio) wait(n int) map[uint64]int64 {
	results := map[uint64]int64{}
	for len(results) < n {
		events := make([]ioEvent, n)
		timeout := unix.Timespec{Sec: 10}
		got := must[uintptr](a.t)(syscall(unix.SYS_IO_GETEVENTS, uintptr(a.id), 1, uintptr(n), address(events), pointer(&timeout)))
		a.t.that(got > 0, "no event within 10 s, %d of %d came", len(results), n)
		for _, e := range events[:got] {
			results[e.data] = e.res
		}
	}
	return results
}

// do submits one request and gives its result.
func (a *aio) do(req iocb) int64 {
	req.data = 77
	eq(a.t, "requests taken", must[int](a.t)(a.submit(&req)), 1)
	return a.wait(1)[77]
}

func request(op uint16, fd int, buf []byte, off int64) iocb {
	return iocb{op: op, fd: uint32(fd), buf: uint64(address(buf)), n: uint64(len(buf)), off: off}
}

var aioChecks = []check{
	{"aio/write-read-sync", func(t *T) {
		a := t.aio(8)
		fd := t.create("file", "")
		data := []byte("content")
		eq(t, "bytes written", a.do(request(aioPwrite, fd, data, 3)), 7)
		eq(t, "result of fsync", a.do(iocb{op: aioFsync, fd: uint32(fd)}), 0)
		eq(t, "result of fdatasync", a.do(iocb{op: aioFdsync, fd: uint32(fd)}), 0)
		buf := make([]byte, 100)
		eq(t, "bytes read", a.do(request(aioPread, fd, buf, 0)), 10)
		t.eqText("content", string(buf[:10]), "\x00\x00\x00content")
		eq(t, "bytes read at the end", a.do(request(aioPread, fd, buf, 10)), 0)
		runtime.KeepAlive(data)
	}},
	{"aio/vectors", func(t *T) {
		a := t.aio(8)
		fd := t.create("file", "")
		v := iovecs([]byte("one"), []byte("two"))
		eq(t, "bytes written", a.do(iocb{op: aioPwritev, fd: uint32(fd), buf: uint64(address(v)), n: 2}), 6)
		x, y := make([]byte, 2), make([]byte, 10)
		v = iovecs(x, y)
		eq(t, "bytes read", a.do(iocb{op: aioPreadv, fd: uint32(fd), buf: uint64(address(v)), n: 2}), 6)
		t.eqText("content", string(x)+string(y[:4]), "onetwo")
		runtime.KeepAlive(v)
	}},
	{"aio/batch-of-32-direct", func(t *T) {
		a := t.aio(32)
		fd := t.open("file", unix.O_RDWR|unix.O_CREAT|unix.O_DIRECT)
		buf := aligned(32 * 4096)
		for n := range buf {
			buf[n] = byte(n / 4096)
		}
		reqs := make([]*iocb, 32)
		for n := range reqs {
			r := request(aioPwrite, fd, buf[n*4096:(n+1)*4096], int64(n)*4096)
			r.data = uint64(n)
			reqs[n] = &r
		}
		for done := 0; done < 32; {
			done += must[int](t)(a.submit(reqs[done:]...))
		}
		for n, res := range a.wait(32) {
			eq(t, "result of request "+string(rune('0'+n%10)), res, 4096)
		}
		eq(t, "content", t.all(t.open("file", unix.O_RDONLY)), string(buf))
	}},
	{"aio/eventfd", func(t *T) {
		a := t.aio(8)
		fd := t.create("file", "content")
		event := t.closing(must[int](t)(unix.Eventfd(0, unix.EFD_CLOEXEC)))
		buf := make([]byte, 10)
		const resFD = 1
		r := request(aioPread, fd, buf, 0)
		r.flags, r.resFD = resFD, uint32(event)
		eq(t, "requests taken", must[int](t)(a.submit(&r)), 1)
		count := make([]byte, 8)
		must[int](t)(unix.Read(event, count))
		eq(t, "events counted", binary.NativeEndian.Uint64(count), 1)
		a.wait(1)
	}},
	{"aio/errors-of-requests", func(t *T) {
		a := t.aio(8)
		t.file("file", "content")
		buf := make([]byte, 10)
		closed := request(aioPread, 9999, buf, 0)
		t.fails(errOf(a.submit(&closed)), unix.EBADF)
		unknown := request(99, t.open("file", unix.O_RDONLY), buf, 0)
		t.fails(errOf(a.submit(&unknown)), unix.EINVAL)
		wrongWay := request(aioPwrite, t.open("file", unix.O_RDONLY), buf, 0)
		if n, err := a.submit(&wrongWay); err != nil {
			t.fails(err, unix.EBADF)
		} else {
			eq(t, "requests taken", n, 1)
			eq(t, "result", a.wait(1)[0], -int64(unix.EBADF))
		}
		t.ok(errOf(a.submit()))
	}},
	{"aio/dsync-flag", func(t *T) {
		a := t.aio(8)
		data := []byte("content")
		r := request(aioPwrite, t.create("file", ""), data, 0)
		r.rwFlags = unix.RWF_DSYNC
		eq(t, "bytes written", a.do(r), 7)
		t.eqText("content", t.content("file"), "content")
		runtime.KeepAlive(data)
	}},
	{"aio/life-of-a-context", func(t *T) {
		var id uint64
		t.fails(errOf(syscall(unix.SYS_IO_SETUP, 0, pointer(&id))), unix.EINVAL)
		a := t.aio(4)
		t.fails(errOf(syscall(unix.SYS_IO_DESTROY, uintptr(a.id)+4096)), unix.EINVAL)
		t.ok(errOf(syscall(unix.SYS_IO_DESTROY, uintptr(a.id))))
		t.fails(errOf(syscall(unix.SYS_IO_DESTROY, uintptr(a.id))), unix.EINVAL)
		t.fails(errOf(a.submit()), unix.EINVAL)
	}},
	{"aio/getevents-times-out", func(t *T) {
		a := t.aio(4)
		events := make([]ioEvent, 1)
		timeout := unix.Timespec{Nsec: 1e6}
		eq(t, "events", must[uintptr](t)(syscall(unix.SYS_IO_GETEVENTS, uintptr(a.id), 1, 1, address(events), pointer(&timeout))), 0)
	}},
}
