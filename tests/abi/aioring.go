package main

import (
	"encoding/binary"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	stdsyscall "syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	aioPoll     = 5
	aioNoop     = 6
	aioResFD    = 1
	aioIOPrio   = 2
	aioMagic    = 0xa10a10a1
	aioRingHead = 32
)

// aioRing is struct aio_ring at the address of a context.
type aioRing struct {
	id, nr, head, tail, magic, compat, incompat, length uint32
}

func (a *aio) ring() *aioRing { return *(**aioRing)(unsafe.Pointer(&a.id)) }

// reap takes an event off the ring without a system call.
func (a *aio) reap() (ioEvent, bool) {
	r := a.ring()
	head := atomic.LoadUint32(&r.head)
	if head == atomic.LoadUint32(&r.tail) {
		return ioEvent{}, false
	}
	e := *(*ioEvent)(unsafe.Add(unsafe.Pointer(r), aioRingHead+uintptr(head)*unsafe.Sizeof(ioEvent{})))
	atomic.StoreUint32(&r.head, (head+1)%r.nr)
	return e, true
}

// getevents is io_getevents with a timeout.
func (a *aio) getevents(least, most int, out uintptr, timeout time.Duration) (int, error) {
	ts := unix.NsecToTimespec(int64(timeout))
	n, err := syscall(unix.SYS_IO_GETEVENTS, uintptr(a.id), uintptr(least), uintptr(most), out, pointer(&ts))
	return int(n), err
}

// aioInChild submits a request to a context in a child made by fork, and gives
// the errno of that.
//
//go:norace
func aioInChild(id uintptr, iocbs uintptr) int {
	pid, _, errno := stdsyscall.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 {
		return -1
	}
	if pid == 0 {
		_, _, e := stdsyscall.RawSyscall(unix.SYS_IO_SUBMIT, id, 1, iocbs)
		stdsyscall.RawSyscall(unix.SYS_EXIT_GROUP, uintptr(e), 0, 0)
	}
	var status unix.WaitStatus
	if _, err := unix.Wait4(int(pid), &status, 0, nil); err != nil || !status.Exited() {
		return -1
	}
	return status.ExitStatus()
}

var aioRingChecks = []check{
	{"aio/ring-is-readable", func(t *T) {
		a := t.aio(4)
		r := a.ring()
		eq(t, "magic", r.magic, uint32(aioMagic))
		eq(t, "header length", r.length, uint32(aioRingHead))
		eq(t, "incompatible features", r.incompat, 0)
		t.that(r.nr > 4 && r.head == r.tail, "nr %d, head %d, tail %d", r.nr, r.head, r.tail)
		buf := make([]byte, 7)
		q := request(aioPread, t.create("file", "content"), buf, 0)
		q.data = 5
		// More than there are slots, so that positions go around.
		for range int(r.nr) + 3 {
			eq(t, "requests taken", must[int](t)(a.submit(&q)), 1)
			var e ioEvent
			t.that(until(func() (ok bool) { e, ok = a.reap(); return ok }), "no event in the ring")
			eq(t, "data", e.data, 5)
			eq(t, "object", e.obj, uint64(pointer(&q)))
			eq(t, "result", e.res, 7)
		}
		var e ioEvent
		eq(t, "events left", must[int](t)(a.getevents(0, 1, pointer(&e), 0)), 0)
	}},
	{"aio/ring-with-nonsense", func(t *T) {
		a := t.aio(4)
		buf := make([]byte, 7)
		q := request(aioPread, t.create("file", "content"), buf, 0)
		for _, nonsense := range []uint32{1 << 31, ^uint32(0), 12345, 0} {
			atomic.StoreUint32(&a.ring().head, nonsense)
			atomic.StoreUint32(&a.ring().tail, nonsense)
			a.submit(&q)
			events := make([]ioEvent, 100)
			a.getevents(0, 100, address(events), 0)
			runtime.KeepAlive(events)
		}
		t.eqText("content", string(buf), "content")
	}},
	{"aio/full", func(t *T) {
		a := t.aio(4)
		nr := int(a.ring().nr)
		buf := make([]byte, 7)
		q := request(aioPread, t.create("file", "content"), buf, 0)
		taken := 0
		for ; taken <= nr; taken++ {
			if n, err := a.submit(&q); err != nil {
				t.fails(err, unix.EAGAIN)
				break
			} else {
				eq(t, "requests taken", n, 1)
			}
		}
		t.that(taken >= 4 && taken < nr, "%d requests fit a ring of %d slots", taken, nr)
		events := make([]ioEvent, nr)
		eq(t, "events", must[int](t)(a.getevents(taken, nr, address(events), 10*time.Second)), taken)
		eq(t, "requests taken", must[int](t)(a.submit(&q)), 1)
	}},
	{"aio/part-of-a-batch", func(t *T) {
		a := t.aio(8)
		fd := t.create("file", "content")
		x, y := make([]byte, 3), make([]byte, 4)
		q1, q2 := request(aioPread, fd, x, 0), request(aioPread, fd, y, 3)
		bad := request(aioPread, 9999, x, 0)
		q1.data, q2.data = 1, 2
		eq(t, "requests taken", must[int](t)(a.submit(&q1, &q2, &bad, &q1)), 2)
		results := a.wait(2)
		eq(t, "first result", results[1], 3)
		eq(t, "second result", results[2], 4)
		t.eqText("content", string(x)+string(y), "content")
		t.fails(errOf(a.submit(&bad)), unix.EBADF)
		// A pointer that leads nowhere behind one that is good.
		list := []uintptr{pointer(&q1), 8}
		n, err := syscall(unix.SYS_IO_SUBMIT, uintptr(a.id), 2, address(list))
		t.ok(err)
		eq(t, "requests taken", n, 1)
		a.wait(1)
		t.fails(errOf(syscall(unix.SYS_IO_SUBMIT, uintptr(a.id), 1, address(list[1:]))), unix.EFAULT)
		t.fails(errOf(syscall(unix.SYS_IO_SUBMIT, uintptr(a.id), 1, 8)), unix.EFAULT)
		runtime.KeepAlive(&q1)
	}},
	{"aio/errors-of-submission", func(t *T) {
		a := t.aio(8)
		fd := t.create("file", "content")
		buf := make([]byte, 10)
		for _, c := range []struct {
			what   string
			change func(*iocb)
			want   unix.Errno
		}{
			{"reserved field", func(q *iocb) { q.reserved = 1 }, unix.EINVAL},
			{"negative length", func(q *iocb) { q.n = 1 << 63 }, unix.EINVAL},
			{"negative offset", func(q *iocb) { q.off = -1 }, unix.EINVAL},
			{"no-op", func(q *iocb) { q.op = aioNoop }, unix.EINVAL},
			{"too many buffers", func(q *iocb) { q.op, q.n = aioPreadv, 2000 }, unix.EINVAL},
			{"buffers nowhere", func(q *iocb) { q.op, q.buf, q.n = aioPreadv, 8, 2 }, unix.EFAULT},
			{"fsync with a length", func(q *iocb) { q.op = aioFsync }, unix.EINVAL},
			{"poll with an offset", func(q *iocb) { q.op, q.buf, q.n, q.off = aioPoll, 1, 0, 1 }, unix.EINVAL},
			{"poll for too much", func(q *iocb) { q.op, q.buf, q.n = aioPoll, 1<<16, 0 }, unix.EINVAL},
			{"unknown flag", func(q *iocb) { q.rwFlags = 1 << 30 }, unix.EOPNOTSUPP},
			{"no descriptor of events", func(q *iocb) { q.flags, q.resFD = aioResFD, 9999 }, unix.EBADF},
			{"a file for events", func(q *iocb) { q.flags, q.resFD = aioResFD, q.fd }, unix.EINVAL},
			{"priority without class", func(q *iocb) { q.flags, q.prio = aioIOPrio, 1 }, unix.EINVAL},
			{"class of priority", func(q *iocb) { q.flags, q.prio = aioIOPrio, -1 }, unix.EINVAL},
		} {
			q := request(aioPread, fd, buf, 0)
			c.change(&q)
			if _, err := a.submit(&q); err != c.want {
				t.failf("%s: %s instead of %s", c.what, errName(err), errName(c.want))
			}
		}
		t.fails(errOf(syscall(unix.SYS_IO_SUBMIT, uintptr(a.id), ^uintptr(0), 0)), unix.EINVAL)
		q := request(aioPread, fd, buf, 0)
		q.flags, q.prio = aioIOPrio, 2<<13|7
		q.key = 77
		eq(t, "bytes read", a.do(q), 7)
		// An address that leads nowhere is the result of a request.
		q = request(aioPread, fd, buf, 0)
		q.buf = 8
		eq(t, "result", a.do(q), -int64(unix.EFAULT))
	}},
	{"aio/errors-of-setup", func(t *T) {
		t.fails(errOf(syscall(unix.SYS_IO_SETUP, 1, 8)), unix.EFAULT)
		id := uint64(1)
		t.fails(errOf(syscall(unix.SYS_IO_SETUP, 1, pointer(&id))), unix.EINVAL)
		id = 0
		t.fails(errOf(syscall(unix.SYS_IO_SETUP, 1<<31, pointer(&id))), unix.EINVAL, unix.EAGAIN)
		t.fails(errOf(syscall(unix.SYS_IO_SETUP, 1<<22-1, pointer(&id))), unix.EAGAIN)
		eq(t, "context", id, 0)
	}},
	{"aio/errors-of-getevents", func(t *T) {
		a := t.aio(8)
		var e ioEvent
		t.fails(errOf(a.getevents(2, 1, pointer(&e), 0)), unix.EINVAL)
		t.fails(errOf(a.getevents(-1, 1, pointer(&e), 0)), unix.EINVAL)
		eq(t, "events", must[int](t)(a.getevents(0, 0, pointer(&e), 0)), 0)
		t.fails(errOf(syscall(unix.SYS_IO_GETEVENTS, uintptr(a.id), 1, 1, pointer(&e), 8)), unix.EFAULT)
		buf := make([]byte, 10)
		q := request(aioPread, t.create("file", "content"), buf, 0)
		eq(t, "requests taken", must[int](t)(a.submit(&q)), 1)
		// The event stays if there is no place for it.
		t.that(until(func() bool { return a.ring().head != a.ring().tail }), "no event")
		t.fails(errOf(a.getevents(1, 1, 8, time.Second)), unix.EFAULT)
		eq(t, "events", must[int](t)(a.getevents(1, 1, pointer(&e), time.Second)), 1)
		eq(t, "result", e.res, 7)
		// io_pgetevents(2) checks the size of the signal set.
		set := [2]uint64{uint64(pointer(&e)), 4}
		ts := unix.Timespec{}
		t.fails(errOf(syscall(unix.SYS_IO_PGETEVENTS, uintptr(a.id), 0, 1, pointer(&e), pointer(&ts), pointer(&set))), unix.EINVAL)
		set[1] = 8
		e = ioEvent{}
		t.ok(errOf(syscall(unix.SYS_IO_PGETEVENTS, uintptr(a.id), 0, 1, pointer(&e), pointer(&ts), pointer(&set))))
	}},
	{"aio/other-files", func(t *T) {
		a := t.aio(8)
		var p [2]int
		t.ok(unix.Pipe2(p[:], unix.O_CLOEXEC))
		t.closing(p[0])
		t.closing(p[1])
		s := must[[2]int](t)(unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0))
		t.closing(s[0])
		t.closing(s[1])
		for _, ends := range [][2]int{p, s} {
			data, buf := []byte("content"), make([]byte, 20)
			eq(t, "bytes written", a.do(request(aioPwrite, ends[1], data, 0)), 7)
			eq(t, "bytes read", a.do(request(aioPread, ends[0], buf, 0)), 7)
			t.eqText("content", string(buf[:7]), "content")
			runtime.KeepAlive(data)
			// One that has to wait.
			fd := ends[1]
			go func() { time.Sleep(50 * time.Millisecond); unix.Write(fd, []byte("later")) }()
			got := -int64(unix.EINTR)
			for got == -int64(unix.EINTR) { // by a signal of Go's scheduler
				got = a.do(request(aioPread, ends[0], buf, 0))
			}
			eq(t, "bytes read", got, 5)
			t.ok(unix.SetNonblock(ends[0], true))
			eq(t, "result", a.do(request(aioPread, ends[0], buf, 0)), -int64(unix.EAGAIN))
		}
		mem := t.closing(must[int](t)(unix.MemfdCreate("aio", unix.MFD_CLOEXEC)))
		data, buf := []byte("content"), make([]byte, 20)
		eq(t, "bytes written", a.do(request(aioPwrite, mem, data, 3)), 7)
		eq(t, "bytes read", a.do(request(aioPread, mem, buf, 2)), 8)
		eq(t, "result of fsync", a.do(iocb{op: aioFsync, fd: uint32(mem)}), 0)
		runtime.KeepAlive(data)
	}},
	{"aio/poll", func(t *T) {
		a := t.aio(8)
		var p [2]int
		t.ok(unix.Pipe2(p[:], unix.O_CLOEXEC))
		t.closing(p[0])
		t.closing(p[1])
		event := t.closing(must[int](t)(unix.Eventfd(0, unix.EFD_CLOEXEC)))
		eq(t, "events of what is ready", a.do(iocb{op: aioPoll, fd: uint32(p[1]), buf: unix.POLLOUT}), unix.POLLOUT)
		q := iocb{op: aioPoll, fd: uint32(p[0]), buf: unix.POLLIN, data: 3, flags: aioResFD, resFD: uint32(event)}
		eq(t, "requests taken", must[int](t)(a.submit(&q)), 1)
		var e ioEvent
		eq(t, "events", must[int](t)(a.getevents(1, 1, pointer(&e), 20*time.Millisecond)), 0)
		go func() { time.Sleep(20 * time.Millisecond); unix.Write(p[1], []byte("x")) }()
		eq(t, "events", a.wait(1)[3]&unix.POLLIN, unix.POLLIN)
		count := make([]byte, 8)
		must[int](t)(unix.Read(event, count))
		eq(t, "events counted", binary.NativeEndian.Uint64(count), 1)
		must[int](t)(unix.Read(p[0], count))
		// The other end goes away.
		eq(t, "requests taken", must[int](t)(a.submit(&q)), 1)
		unix.Close(p[1])
		eq(t, "events", a.wait(1)[3], unix.POLLHUP)
	}},
	{"aio/cancel", func(t *T) {
		a := t.aio(8)
		var p [2]int
		t.ok(unix.Pipe2(p[:], unix.O_CLOEXEC))
		t.closing(p[0])
		t.closing(p[1])
		q := iocb{op: aioPoll, fd: uint32(p[0]), buf: unix.POLLIN, data: 3}
		var e ioEvent
		t.fails(errOf(syscall(unix.SYS_IO_CANCEL, uintptr(a.id), pointer(&q), pointer(&e))), unix.EINVAL)
		eq(t, "requests taken", must[int](t)(a.submit(&q)), 1)
		t.fails(errOf(syscall(unix.SYS_IO_CANCEL, uintptr(a.id), 8, pointer(&e))), unix.EFAULT)
		t.fails(errOf(syscall(unix.SYS_IO_CANCEL, uintptr(a.id)+4096, pointer(&q), pointer(&e))), unix.EINVAL)
		t.fails(errOf(syscall(unix.SYS_IO_CANCEL, uintptr(a.id), pointer(&q), pointer(&e))), unix.EINPROGRESS)
		eq(t, "events", a.wait(1)[3], 0)
		t.fails(errOf(syscall(unix.SYS_IO_CANCEL, uintptr(a.id), pointer(&q), pointer(&e))), unix.EINVAL)
	}},
	{"aio/destroyed-while-polling", func(t *T) {
		a := t.aio(8)
		var p [2]int
		t.ok(unix.Pipe2(p[:], unix.O_CLOEXEC))
		t.closing(p[0])
		qs := []iocb{{op: aioPoll, fd: uint32(p[0]), buf: unix.POLLIN}, {op: aioPoll, fd: uint32(p[0]), buf: unix.POLLIN}}
		eq(t, "requests taken", must[int](t)(a.submit(&qs[0], &qs[1])), 2)
		t.ok(errOf(syscall(unix.SYS_IO_DESTROY, uintptr(a.id))))
		unix.Close(p[1])
		t.fails(errOf(a.submit(&qs[0])), unix.EINVAL)
	}},
	{"aio/not-in-a-child", func(t *T) {
		a := t.aio(8)
		q := request(aioPread, t.create("file", "content"), make([]byte, 7), 0)
		list := []*iocb{&q}
		eq(t, "errno in a child", aioInChild(uintptr(a.id), address(list)), int(unix.EINVAL))
		eq(t, "bytes read", a.do(q), 7)
		runtime.KeepAlive(list)
	}},
	{"aio/unmapped", func(t *T) {
		a := t.aio(8)
		q := request(aioPread, t.create("file", "content"), make([]byte, 7), 0)
		t.ok(errOf(syscall(unix.SYS_MUNMAP, uintptr(a.id), 4096)))
		t.fails(errOf(a.submit(&q)), unix.EINVAL)
	}},
	{"aio/limits-of-the-system", func(t *T) {
		count := func(name string) int64 {
			b, err := os.ReadFile("/proc/sys/fs/" + name)
			t.ok(err)
			return number(strings.TrimSpace(string(b)))
		}
		before, limit := count("aio-nr"), count("aio-max-nr")
		t.that(limit >= 0x10000 && before >= 0, "aio-max-nr %d, aio-nr %d", limit, before)
		a := t.aio(1000)
		t.that(count("aio-nr") >= before+1000, "aio-nr went from %d to %d", before, count("aio-nr"))
		t.ok(errOf(syscall(unix.SYS_IO_DESTROY, uintptr(a.id))))
		t.that(until(func() bool { return count("aio-nr") == before }), "aio-nr is %d, was %d", count("aio-nr"), before)
	}},
	{"aio/moved", func(t *T) {
		a := t.aio(8)
		q := request(aioPread, t.create("file", "content"), make([]byte, 7), 0)
		page := uintptr(os.Getpagesize())
		size := (aioRingHead + uintptr(a.ring().nr)*32 + page - 1) &^ (page - 1)
		to := must[uintptr](t)(syscall(unix.SYS_MMAP, 0, size, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS, ^uintptr(0), 0))
		old := a.id
		moved := must[uintptr](t)(syscall(unix.SYS_MREMAP, uintptr(a.id), size, size, unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED, to))
		t.fails(errOf(a.submit(&q)), unix.EINVAL)
		a.id = uint64(moved)
		eq(t, "bytes read", a.do(q), 7)
		t.that(old != a.id, "the ring has not moved")
		t.ok(errOf(syscall(unix.SYS_IO_DESTROY, moved)))
	}},
}
