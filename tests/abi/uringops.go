package main

import (
	"encoding/binary"
	"runtime"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

var uringOpChecks = []check{
	{"io-uring/batch-of-32-direct", func(t *T) {
		r := t.uringWith(32, uringParams{})
		fd := t.open("file", unix.O_RDWR|unix.O_CREAT|unix.O_DIRECT)
		buf := aligned(32 * 4096)
		for n := range buf {
			buf[n] = byte(n/4096) ^ byte(n)
		}
		for range 2 { // into a hole, and over it
			for n := range 32 {
				r.put(on(uringWrite, fd, buf[n*4096:(n+1)*4096], uint64(n)*4096).with(uint64(n), 0))
			}
			eq(t, "requests taken", must[int](t)(r.enter(32, 32, enterGetEvents)), 32)
			for n, c := range r.reap(32) {
				t.that(c.res == 4096, "result of write %d: %d", n, c.res)
			}
		}
		want := string(buf)
		clear(buf)
		for n := range 32 {
			r.put(on(uringRead, fd, buf[n*4096:(n+1)*4096], uint64(n)*4096).with(uint64(n), 0))
		}
		eq(t, "requests taken", must[int](t)(r.enter(32, 32, enterGetEvents)), 32)
		r.reap(32)
		t.that(string(buf) == want, "other data was read than written")
	}},
	{"io-uring/current-offset", func(t *T) {
		r := t.uring()
		fd := t.create("file", "")
		const current = ^uint64(0)
		eq(t, "bytes written", r.one(on(uringWrite, fd, []byte("one"), current)), 3)
		eq(t, "bytes written", r.one(on(uringWrite, fd, []byte("two"), current)), 3)
		eq(t, "offset", t.offset(fd), 6)
		t.eqText("content", t.content("file"), "onetwo")
	}},
	{"io-uring/pipes", func(t *T) {
		r := t.uring()
		in, out := t.twoEnds()
		buf := make([]byte, 20)
		r.submit(on(uringRead, in, buf, 0).with(1, 0))
		r.none()
		unix.Write(out, []byte("content"))
		eq(t, "bytes read", r.reap(1)[1].res, 7)
		t.eqText("content", string(buf[:7]), "content")
		eq(t, "bytes written", r.one(on(uringWrite, out, buf[:7], 0)), 7)
		eq(t, "bytes read", r.one(on(uringRead, in, buf, 0)), 7)
		r.submit(on(uringRead, in, buf, 0).with(2, 0))
		unix.Close(out)
		eq(t, "bytes read at the end", r.reap(1)[2].res, 0)
		runtime.KeepAlive(buf)
	}},
	{"io-uring/waits-in-enter", func(t *T) {
		r := t.uring()
		in, out := t.twoEnds()
		buf := make([]byte, 20)
		go func() { time.Sleep(30 * time.Millisecond); unix.Write(out, []byte("content")) }()
		r.put(on(uringRead, in, buf, 0).with(1, 0))
		eq(t, "requests taken", must[int](t)(r.enter(1, 1, enterGetEvents)), 1)
		eq(t, "bytes read", r.reap(1)[1].res, 7)
		runtime.KeepAlive(buf)
	}},
	{"io-uring/poll", func(t *T) {
		r := t.uring()
		in, out := t.twoEnds()
		poll := sqe{op: uringPollAdd, fd: int32(in), opFlags: unix.POLLIN}
		eq(t, "events of what is ready", r.one(sqe{op: uringPollAdd, fd: int32(out), opFlags: unix.POLLOUT}), unix.POLLOUT)
		r.submit(poll.with(1, 0))
		r.none()
		unix.Write(out, []byte("x"))
		eq(t, "events", r.reap(1)[1].res, unix.POLLIN)
		eq(t, "events", r.one(poll), unix.POLLIN)
		unix.Read(in, make([]byte, 10))
		// One that is removed.
		r.submit(poll.with(2, 0))
		r.submit(sqe{op: uringPollRemove, addr: 2, data: 3})
		both := r.reap(2)
		eq(t, "result of the poll", both[2].res, -int32(unix.ECANCELED))
		eq(t, "result of removing", both[3].res, 0)
		eq(t, "result of removing nothing", r.one(sqe{op: uringPollRemove, addr: 2}), -int32(unix.ENOENT))
	}},
	{"io-uring/poll-goes-on", func(t *T) {
		r := t.uring()
		in, out := t.twoEnds()
		const multi, more = 1, 2
		r.submit(sqe{op: uringPollAdd, fd: int32(in), opFlags: unix.POLLIN, n: multi, data: 1})
		for range 3 {
			unix.Write(out, []byte("x"))
			c := r.reap(1)[1]
			eq(t, "events", c.res, unix.POLLIN)
			eq(t, "flags", c.flags, more)
			unix.Read(in, make([]byte, 10))
		}
		r.submit(sqe{op: uringPollRemove, addr: 1, data: 3})
		both := r.reap(2)
		eq(t, "result of the poll", both[1].res, -int32(unix.ECANCELED))
		eq(t, "flags", both[1].flags, 0)
	}},
	{"io-uring/timeouts", func(t *T) {
		r := t.uring()
		ts := unix.Timespec{Nsec: 20e6}
		q := sqe{op: uringTimeout, fd: -1, addr: uint64(pointer(&ts)), n: 1}
		before := time.Now()
		eq(t, "result", r.one(q), -int32(unix.ETIME))
		t.that(time.Since(before) >= 20*time.Millisecond, "it came after %v", time.Since(before))
		long := unix.Timespec{Sec: 100}
		q.addr = uint64(pointer(&long))
		// After a number of completions.
		q.off = 2
		r.submit(q.with(1, 0), sqe{op: uringNop, data: 2}, sqe{op: uringNop, data: 3})
		eq(t, "result", r.reap(3)[1].res, 0)
		// Removed, and changed.
		q.off = 0
		r.submit(q.with(1, 0), sqe{op: uringTimeoutRemove, fd: -1, addr: 1, data: 2})
		both := r.reap(2)
		eq(t, "result of the timeout", both[1].res, -int32(unix.ECANCELED))
		eq(t, "result of removing", both[2].res, 0)
		eq(t, "result of removing nothing", r.one(sqe{op: uringTimeoutRemove, fd: -1, addr: 1}), -int32(unix.ENOENT))
		const update = 2
		r.submit(q.with(1, 0), sqe{op: uringTimeoutRemove, fd: -1, addr: 1, off: uint64(pointer(&ts)), opFlags: update, data: 2})
		both = r.reap(2)
		eq(t, "result of the timeout", both[1].res, -int32(unix.ETIME))
		eq(t, "result of changing", both[2].res, 0)
		bad := unix.Timespec{Sec: -1}
		q.addr = uint64(pointer(&bad))
		eq(t, "negative time", r.one(q), -int32(unix.EINVAL))
		q.addr = 8
		eq(t, "time nowhere", r.one(q), -int32(unix.EFAULT))
		runtime.KeepAlive(&long)
	}},
	{"io-uring/link-timeout", func(t *T) {
		r := t.uring()
		in, out := t.twoEnds()
		buf := make([]byte, 20)
		ts := unix.Timespec{Nsec: 20e6}
		bound := sqe{op: uringLinkTimeout, fd: -1, addr: uint64(pointer(&ts)), n: 1}
		r.submit(on(uringRead, in, buf, 0).with(1, sqeLink), bound.with(2, 0))
		both := r.reap(2)
		eq(t, "result of the read", both[1].res, -int32(unix.ECANCELED))
		eq(t, "result of the timeout", both[2].res, -int32(unix.ETIME))
		ts.Sec = 100
		r.submit(on(uringRead, in, buf, 0).with(1, sqeLink), bound.with(2, 0))
		unix.Write(out, []byte("content"))
		both = r.reap(2)
		eq(t, "bytes read", both[1].res, 7)
		eq(t, "result of the timeout", both[2].res, -int32(unix.ECANCELED))
		eq(t, "alone", r.one(bound), -int32(unix.EINVAL))
		runtime.KeepAlive(buf)
	}},
	{"io-uring/cancel", func(t *T) {
		r := t.uring()
		in, _ := t.twoEnds()
		buf := make([]byte, 20)
		r.submit(on(uringRead, in, buf, 0).with(1, 0), sqe{op: uringPollAdd, fd: int32(in), opFlags: unix.POLLIN, data: 2})
		r.submit(sqe{op: uringCancel, fd: -1, addr: 1, data: 3})
		both := r.reap(2)
		eq(t, "result of the read", both[1].res, -int32(unix.ECANCELED))
		eq(t, "result of cancelling", both[3].res, 0)
		eq(t, "result of cancelling nothing", r.one(sqe{op: uringCancel, fd: -1, addr: 1}), -int32(unix.ENOENT))
		const all, any = 1, 4
		r.submit(on(uringRead, in, buf, 0).with(1, 0))
		r.submit(sqe{op: uringCancel, fd: -1, opFlags: all | any, data: 3})
		three := r.reap(3)
		eq(t, "cancelled", three[3].res, 2)
		eq(t, "result of the poll", three[2].res, -int32(unix.ECANCELED))
		runtime.KeepAlive(buf)
	}},
	{"io-uring/links-fail-together", func(t *T) {
		r := t.uring()
		fd := t.create("file", "content")
		buf := make([]byte, 20)
		// A short read breaks a link, and not a hard one.
		r.submit(on(uringRead, fd, buf, 0).with(1, sqeLink), sqe{op: uringNop, data: 2, flags: sqeLink}, sqe{op: uringNop, data: 3}, sqe{op: uringNop, data: 4})
		c := r.reap(4)
		eq(t, "short read", c[1].res, 7)
		eq(t, "linked", c[2].res, -int32(unix.ECANCELED))
		eq(t, "linked to that", c[3].res, -int32(unix.ECANCELED))
		eq(t, "behind", c[4].res, 0)
		r.submit(on(uringRead, fd, buf, 0).with(1, sqeHardLink), sqe{op: uringNop, data: 2})
		eq(t, "linked hard", r.reap(2)[2].res, 0)
		// Across something that waits, with names behind it.
		in, out := t.twoEnds()
		dir := cstring(t.p("dir"))
		r.submit(on(uringRead, in, buf[:1], 0).with(1, sqeLink), sqe{op: uringMkdirat, fd: unix.AT_FDCWD, addr: uint64(address(dir)), n: 0o755, data: 2})
		t.absent("dir")
		unix.Write(out, []byte("x"))
		c = r.reap(2)
		eq(t, "result of mkdirat", c[2].res, 0)
		t.stat("dir")
		runtime.KeepAlive(dir)
	}},
	{"io-uring/drain", func(t *T) {
		r := t.uring()
		in, out := t.twoEnds()
		buf := make([]byte, 1)
		r.submit(on(uringRead, in, buf, 0).with(1, 0), sqe{op: uringNop, data: 2, flags: sqeDrain}, sqe{op: uringNop, data: 3})
		r.none()
		unix.Write(out, []byte("x"))
		r.reap(3)
		eq(t, "bytes read", buf[0], 'x')
	}},
	{"io-uring/skipped-completions", func(t *T) {
		r := t.uring()
		r.submit(sqe{op: uringNop, data: 1, flags: sqeSkip}, sqe{op: uringClose, fd: 9999, data: 2, flags: sqeSkip}, sqe{op: uringNop, data: 3})
		c := r.reap(2)
		eq(t, "failed", c[2].res, -int32(unix.EBADF))
		eq(t, "not skipped", c[3].data, 3)
		r.none()
	}},
	{"io-uring/registered-files", func(t *T) {
		r := t.uring()
		fd := t.create("file", "content")
		const registerFiles, unregisterFiles, filesUpdate = 2, 3, 6
		t.fails(r.register(unregisterFiles, 0, 0), unix.ENXIO)
		list := []int32{-1, int32(fd)}
		t.ok(r.register(registerFiles, address(list), 2))
		t.fails(r.register(registerFiles, address(list), 2), unix.EBUSY)
		buf := make([]byte, 20)
		q := on(uringRead, 1, buf, 0)
		q.flags = sqeFixedFile
		unix.Close(fd)
		eq(t, "bytes read", r.one(q), 7)
		q.fd = 0
		eq(t, "free place", r.one(q), -int32(unix.EBADF))
		q.fd = 2
		eq(t, "beyond", r.one(q), -int32(unix.EBADF))
		other := t.create("other", "else")
		update := []int32{int32(other)}
		eq(t, "result of the update", r.one(sqe{op: uringFilesUpdate, fd: -1, addr: uint64(address(update)), n: 1}), 1)
		q.fd = 0
		eq(t, "bytes read", r.one(q), 4)
		self := []int32{int32(r.fd)}
		eq(t, "ring in itself", r.one(sqe{op: uringFilesUpdate, fd: -1, addr: uint64(address(self)), n: 1}), -int32(unix.EBADF))
		t.ok(r.register(unregisterFiles, 0, 0))
		runtime.KeepAlive(update)
	}},
	{"io-uring/registered-buffers-errors", func(t *T) {
		r := t.uring()
		fd := t.create("file", "content")
		buf := aligned(8192)
		q := on(uringReadFixed, fd, buf[:10], 0)
		eq(t, "none registered", r.one(q), -int32(unix.EFAULT))
		v := iovecs(buf)
		t.fails(r.register(1, 0, 0), unix.ENXIO)
		t.ok(r.register(0, address(v), 1))
		t.fails(r.register(0, address(v), 1), unix.EBUSY)
		q.bufIndex = 1
		eq(t, "no such buffer", r.one(q), -int32(unix.EFAULT))
		q.bufIndex, q.n = 0, 8193
		eq(t, "too long", r.one(q), -int32(unix.EFAULT))
		q.n, q.addr = 10, q.addr-1
		eq(t, "before it", r.one(q), -int32(unix.EFAULT))
		t.ok(r.register(1, 0, 0))
		t.fails(r.register(0, 8, 1), unix.EFAULT)
	}},
	{"io-uring/eventfd", func(t *T) {
		r := t.uring()
		event := t.closing(must[int](t)(unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)))
		list := []int32{int32(event)}
		t.ok(r.register(4, address(list), 1))
		t.fails(r.register(4, address(list), 1), unix.EBUSY)
		r.one(sqe{op: uringNop})
		count := make([]byte, 8)
		must[int](t)(unix.Read(event, count))
		t.that(binary.NativeEndian.Uint64(count) >= 1, "no event was counted")
		t.ok(r.register(5, 0, 0))
		t.fails(r.register(5, 0, 0), unix.ENXIO)
	}},
	{"io-uring/polled-by-others", func(t *T) {
		r := t.uring()
		in, out := t.twoEnds()
		p := []unix.PollFd{{Fd: int32(r.fd), Events: unix.POLLIN}}
		eq(t, "ready", must[int](t)(unix.Poll(p, 0)), 0)
		r.submit(on(uringRead, in, make([]byte, 1), 0))
		go func() { time.Sleep(20 * time.Millisecond); unix.Write(out, []byte("x")) }()
		eq(t, "ready", must[int](t)(unix.Poll(p, 10000)), 1)
		r.reap(1)
	}},
	{"io-uring/more-than-fit", func(t *T) {
		r := t.uringWith(4, uringParams{cqEntries: 4, flags: setupCQSize})
		for n := range 3 {
			r.submit(sqe{data: uint64(4 * n)}, sqe{data: uint64(4*n + 1)}, sqe{data: uint64(4*n + 2)}, sqe{data: uint64(4*n + 3)})
			if n == 1 {
				break
			}
		}
		const overflow = 2
		t.that(word(r.sq, r.p.sq.flags).Load()&overflow != 0, "the overflow does not show")
		seen := r.reap(4)
		must[int](t)(r.enter(0, 0, enterGetEvents))
		for data := range r.reap(4) {
			seen[data] = cqe{}
		}
		eq(t, "completions", len(seen), 8)
		t.that(word(r.sq, r.p.sq.flags).Load()&overflow == 0, "the overflow does not end")
	}},
	{"io-uring/sockets", func(t *T) {
		r := t.uring()
		s := must[[2]int](t)(unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))
		t.closing(s[0])
		t.closing(s[1])
		buf := make([]byte, 20)
		r.submit(on(uringRecv, s[0], buf, 0).with(1, 0))
		r.none()
		r.submit(on(uringSend, s[1], []byte("content"), 0).with(2, 0))
		both := r.reap(2)
		eq(t, "bytes sent", both[2].res, 7)
		eq(t, "bytes received", both[1].res, 7)
		t.eqText("content", string(buf[:7]), "content")
		// A message of which all is wanted.
		all := on(uringRecv, s[0], buf, 0)
		all.n, all.opFlags = 10, unix.MSG_WAITALL
		r.submit(all.with(3, 0))
		unix.Write(s[1], []byte("01234"))
		r.none()
		unix.Write(s[1], []byte("56789"))
		eq(t, "bytes received", r.reap(1)[3].res, 10)
		t.eqText("content", string(buf[:10]), "0123456789")
	}},
	{"io-uring/connections", func(t *T) {
		r := t.uring()
		name := &unix.SockaddrUnix{Name: "@abi-io-uring"}
		addr := unix.RawSockaddrUnix{Family: unix.AF_UNIX}
		for n, b := range []byte(name.Name) {
			addr.Path[n] = int8(b)
		}
		addr.Path[0] = 0
		length := uint64(2 + len(name.Name))
		l := t.closing(must[int](t)(unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)))
		t.ok(unix.Bind(l, name))
		t.ok(unix.Listen(l, 5))
		c := t.closing(must[int](t)(unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)))
		r.submit(sqe{op: uringAccept, fd: int32(l), opFlags: unix.SOCK_CLOEXEC, data: 1})
		r.submit(sqe{op: uringConnect, fd: int32(c), addr: uint64(pointer(&addr)), off: length, data: 2})
		both := r.reap(2)
		eq(t, "result of connect", both[2].res, 0)
		t.that(both[1].res >= 0, "result of accept: %d", both[1].res)
		a := t.closing(int(both[1].res))
		buf, data := make([]byte, 20), []byte("content")
		r.submit(on(uringRecv, a, buf, 0).with(3, 0))
		r.submit(on(uringSend, c, data, 0).with(4, 0))
		both = r.reap(2)
		eq(t, "bytes sent", both[4].res, 7)
		eq(t, "bytes received", both[3].res, 7)
		t.eqText("content", string(buf[:7]), "content")
		iov := iovecs(data)
		msg := unix.Msghdr{Iov: &iov[0], Iovlen: 1}
		in := iovecs(buf)
		msgIn := unix.Msghdr{Iov: &in[0], Iovlen: 1}
		r.submit(sqe{op: uringRecvmsg, fd: int32(c), addr: uint64(pointer(&msgIn)), n: 1, data: 5})
		r.submit(sqe{op: uringSendmsg, fd: int32(a), addr: uint64(pointer(&msg)), n: 1, data: 6})
		both = r.reap(2)
		eq(t, "bytes sent", both[6].res, 7)
		eq(t, "bytes received", both[5].res, 7)
		fd := t.create("file", "")
		eq(t, "no socket", r.one(on(uringSend, fd, data, 0)), -int32(unix.ENOTSOCK))
		runtime.KeepAlive(&addr)
	}},
	{"io-uring/poller", func(t *T) {
		r := t.uringWith(8, uringParams{flags: setupSQPoll, sqIdle: 50})
		fd := t.create("file", "content")
		in, out := t.twoEnds()
		buf := make([]byte, 20)
		for range 3 {
			r.put(on(uringRead, fd, buf, 0).with(1, 0))
			r.wake()
			eq(t, "bytes read", r.reap(1)[1].res, 7)
			t.eqText("content", string(buf[:7]), "content")
			// It goes to sleep, and needs to be woken.
			t.that(until(r.sleeps), "the poller does not sleep")
			r.put(sqe{op: uringNop, data: 2})
			r.none()
			r.wake()
			r.reap(1)
		}
		// What needs a task, and what waits.
		dir := cstring(t.p("dir"))
		r.put(on(uringRead, in, buf, 0).with(3, sqeLink), sqe{op: uringMkdirat, fd: unix.AT_FDCWD, addr: uint64(address(dir)), n: 0o755, data: 4})
		r.wake()
		unix.Write(out, make([]byte, 20))
		both := r.reap(2)
		eq(t, "bytes read", both[3].res, 20)
		eq(t, "result of mkdirat", both[4].res, 0)
		runtime.KeepAlive(dir)
	}},
	{"io-uring/poller-has-the-rights-of-its-maker", func(t *T) {
		t.chmod("", 0o777)
		t.as(alice, func() { // one thread of several; the others stay root
			r := t.uringWith(8, uringParams{flags: setupSQPoll, sqIdle: 50})
			dir := cstring(t.p("dir"))
			r.put(sqe{op: uringMkdirat, fd: unix.AT_FDCWD, addr: uint64(address(dir)), n: 0o755, data: 1})
			r.wake()
			eq(t, "result of mkdirat", r.reap(1)[1].res, 0)
			runtime.KeepAlive(dir)
		})
		eq(t, "owner of the directory", t.stat("dir").uid, uint32(alice.uid))
	}},
	{"io-uring/kinds-of-setup", func(t *T) {
		runtime.LockOSThread() // one issuer is one thread
		defer runtime.UnlockOSThread()
		fd := t.create("file", "content")
		for _, flags := range []uint32{setupSubmitAll, setupCoopTaskrun, setupSingleIssuer, setupSingleIssuer | setupDeferTaskrun} {
			r := t.uringWith(4, uringParams{flags: flags})
			eq(t, "bytes read", r.one(on(uringRead, fd, make([]byte, 20), 0)), 7)
		}
		// A wrong one ends the submission, unless all are wanted.
		r := t.uringWith(4, uringParams{})
		r.put(sqe{op: 200, data: 1}, sqe{op: uringNop, data: 2})
		eq(t, "requests taken", must[int](t)(r.enter(2, 0, 0)), 1)
		eq(t, "result", r.reap(1)[1].res, -int32(unix.EINVAL))
		r = t.uringWith(4, uringParams{flags: setupSubmitAll})
		r.put(sqe{op: 200, data: 1}, sqe{op: uringNop, data: 2})
		eq(t, "requests taken", must[int](t)(r.enter(2, 0, 0)), 2)
		r.reap(2)
	}},
	{"io-uring/errors-of-setup", func(t *T) {
		setup := func(entries uintptr, p uringParams) error {
			fd, err := syscall(unix.SYS_IO_URING_SETUP, entries, pointer(&p))
			if err == nil {
				unix.Close(int(fd))
			}
			return err
		}
		const clamp, sqAff = 1 << 4, 1 << 2
		t.fails(setup(0, uringParams{}), unix.EINVAL)
		t.fails(setup(1<<20, uringParams{}), unix.EINVAL)
		t.ok(setup(1<<20, uringParams{flags: clamp}))
		t.fails(setup(8, uringParams{flags: 1 << 31}), unix.EINVAL)
		t.fails(setup(8, uringParams{flags: setupCQSize}), unix.EINVAL)
		t.fails(setup(8, uringParams{flags: setupCQSize, cqEntries: 4}), unix.EINVAL)
		t.fails(setup(8, uringParams{flags: sqAff}), unix.EINVAL)
		t.fails(setup(8, uringParams{flags: setupDeferTaskrun}), unix.EINVAL)
		t.fails(setup(8, uringParams{reserved: [3]uint32{0, 1, 0}}), unix.EINVAL)
		t.fails(errOf(syscall(unix.SYS_IO_URING_SETUP, 8, 8)), unix.EFAULT)
	}},
	{"io-uring/errors-of-enter", func(t *T) {
		r := t.uring()
		t.fails(errOf(r.enter(0, 0, 1<<20)), unix.EINVAL)
		t.fails(errOf(syscall(unix.SYS_IO_URING_ENTER, uintptr(t.create("file", "")), 0, 0, 0, 0, 0)), unix.EOPNOTSUPP)
		t.fails(errOf(syscall(unix.SYS_IO_URING_ENTER, 9999, 0, 0, 0, 0, 0)), unix.EBADF)
		// A time limit.
		ts := unix.Timespec{Nsec: 10e6}
		arg := [3]uint64{0, 0, uint64(pointer(&ts))}
		t.fails(errOf(syscall(unix.SYS_IO_URING_ENTER, uintptr(r.fd), 0, 1, enterGetEvents|enterExtArg, pointer(&arg), 24)), unix.ETIME)
		t.fails(errOf(syscall(unix.SYS_IO_URING_ENTER, uintptr(r.fd), 0, 1, enterGetEvents|enterExtArg, pointer(&arg), 8)), unix.EINVAL)
		d := t.uringWith(4, uringParams{flags: setupDisabled})
		d.put(sqe{})
		t.fails(errOf(d.enter(1, 0, 0)), unix.EBADFD)
		const enableRings = 12
		t.ok(d.register(enableRings, 0, 0))
		t.fails(d.register(enableRings, 0, 0), unix.EBADFD)
		eq(t, "requests taken", must[int](t)(d.enter(1, 1, enterGetEvents)), 1)
	}},
	{"io-uring/probe", func(t *T) {
		r := t.uring()
		probe := make([]byte, 16+8*256)
		t.ok(r.register(8, address(probe), 256))
		for _, op := range []int{uringNop, uringReadv, uringRead, uringWriteFixed, uringOpenat, uringStatx, uringTimeout, uringLinkTimeout, uringAccept} {
			t.that(int(probe[0]) >= op && probe[16+8*op+2]&1 == 1, "operation %d is not there", op)
		}
	}},
	{"io-uring/restrictions", func(t *T) {
		r := t.uringWith(4, uringParams{flags: setupDisabled})
		const restrictions, enableRings, restrictOp = 11, 12, 1
		rules := []byte{restrictOp, 0, uringNop, 15: 0}
		t.ok(r.register(restrictions, address(rules), 1))
		t.ok(r.register(enableRings, 0, 0))
		eq(t, "allowed", r.one(sqe{op: uringNop}), 0)
		eq(t, "not allowed", r.one(sqe{op: uringFsync, fd: -1}), -int32(unix.EACCES))
		t.fails(r.register(8, address(make([]byte, 16)), 0), unix.EACCES)
	}},
	{"io-uring/polled-device", func(t *T) {
		r := t.uringWith(8, uringParams{flags: setupIOPoll})
		plain := t.create("plain", "content")
		buf := aligned(4096)
		eq(t, "not direct", r.one(on(uringRead, plain, buf, 0)), -int32(unix.EOPNOTSUPP))
		eq(t, "no read or write", r.one(sqe{op: uringFsync, fd: int32(plain)}), -int32(unix.EINVAL))
	}},
	{"io-uring/names-and-files", func(t *T) {
		r := t.uring()
		a, l, h := cstring(t.p("a")), cstring(t.p("l")), cstring(t.p("h"))
		fd := t.create("a", "content")
		eq(t, "result of symlinkat", r.one(sqe{op: uringSymlinkat, fd: unix.AT_FDCWD, addr: uint64(address(a)), off: uint64(address(l))}), 0)
		t.eqText("content", t.content("l"), "content")
		eq(t, "result of linkat", r.one(sqe{op: uringLinkat, fd: unix.AT_FDCWD, addr: uint64(address(a)), n: 0xffffff9c, off: uint64(address(h))}), 0)
		eq(t, "links", t.fstat(fd).nlink, 2)
		eq(t, "result of fadvise", r.one(sqe{op: uringFadvise, fd: int32(fd), opFlags: unix.FADV_DONTNEED}), 0)
		eq(t, "not there", r.one(sqe{op: uringUnlinkat, fd: unix.AT_FDCWD, addr: uint64(address(cstring(t.p("none"))))}), -int32(unix.ENOENT))
		eq(t, "ring cannot close itself", r.one(sqe{op: uringClose, fd: int32(r.fd)}), -int32(unix.EBADF))
		runtime.KeepAlive(h)
	}},
	{"io-uring/shared-by-processes", func(t *T) {
		// As PostgreSQL does it: the ring is made before the fork, a child
		// submits, and another process takes the completions.
		r := t.uring()
		fd := t.create("file", "content")
		shared := must[[]byte](t)(unix.Mmap(-1, 0, 4096, readWrite, unix.MAP_SHARED|unix.MAP_ANONYMOUS))
		t.cleanup(func() { unix.Munmap(shared) })
		v := iovecs(shared[:7])
		r.put(sqe{op: uringReadv, fd: int32(fd), addr: uint64(address(v)), n: 1, data: 1})
		eq(t, "requests taken in a child", enterInChild(uintptr(r.fd), 1), 1)
		eq(t, "requests taken", must[int](t)(r.enter(0, 1, enterGetEvents)), 0)
		eq(t, "bytes read", r.reap(1)[1].res, 7)
		t.eqText("content", string(shared[:7]), "content")
		// A child that is gone leaves nothing that hurts.
		in, out := t.twoEnds()
		r.put(on(uringRead, in, shared[:1], 0).with(2, 0))
		eq(t, "requests taken in a child", enterInChild(uintptr(r.fd), 1), 1)
		unix.Write(out, []byte("x"))
		eq(t, "result of a request whose process is gone", r.reap(1)[2].res, -int32(unix.ECANCELED))
		runtime.KeepAlive(v)
	}},
	{"io-uring/nonsense-in-the-ring", func(t *T) {
		r := t.uring()
		rng := uint64(0x9e3779b97f4a7c15)
		next := func() uint64 { rng ^= rng << 13; rng ^= rng >> 7; rng ^= rng << 17; return rng }
		for range 300 {
			for n := range r.sqes {
				r.sqes[n] = byte(next())
			}
			for n := range int(r.p.sqEntries) {
				// Operations that exist, on descriptors that do not, or that are the ring.
				q := (*sqe)(unsafe.Pointer(&r.sqes[n*64]))
				q.op, q.fd, q.file, q.personal = uint8(next()%60), []int32{-1, int32(r.fd), 9999}[next()%3], 0, 0
				q.flags &= sqeLink | sqeHardLink | sqeDrain | sqeFixedFile | sqeAsync
				if q.op == 25 { // not madvise, on this program's memory
					q.op = 0
				}
				word(r.sq, r.p.sq.array+uint32(n)*4).Store(uint32(next() % 10))
			}
			word(r.sq, r.p.sq.tail).Store(uint32(next()))
			word(r.cq, r.p.cq.head).Store(uint32(next()))
			word(r.sq, r.p.sq.mask).Store(uint32(next()))
			word(r.cq, r.p.cq.mask).Store(uint32(next()))
			r.enter(int(next()%20), 0, enterGetEvents)
		}
		r2 := t.uring()
		eq(t, "result", r2.one(sqe{op: uringNop}), 0)
	}},
	{"io-uring/many-threads", func(t *T) {
		r := t.uringWith(64, uringParams{flags: setupCQSize, cqEntries: 4096})
		fd := t.create("file", "content")
		in, out := t.twoEnds()
		var mu sync.Mutex
		var all sync.WaitGroup
		for k := range 4 {
			all.Go(func() {
				buf := make([]byte, 7)
				for range 100 {
					mu.Lock()
					r.put(on(uringRead, fd, buf, 0).with(1, 0), on(uringRead, in, buf[:1], 0).with(2, 0))
					r.enter(2, 0, 0)
					mu.Unlock()
					if k == 0 {
						unix.Write(out, []byte("xxxx"))
					}
					r.enter(0, 1, enterGetEvents)
				}
			})
		}
		all.Wait()
		r.reap(800)
	}},
	{"io-uring/closed-while-waiting", func(t *T) {
		for range 20 {
			p := uringParams{}
			fd := int(must[uintptr](t)(syscall(unix.SYS_IO_URING_SETUP, 8, pointer(&p))))
			r := &uring{t: t, p: p, fd: fd}
			m := func(off int64, n int) []byte {
				return must[[]byte](t)(unix.Mmap(fd, off, n, readWrite, unix.MAP_SHARED))
			}
			r.sq, r.cq, r.sqes = m(0, int(p.sq.array+p.sqEntries*4)), m(0x8000000, int(p.cq.cqes+p.cqEntries*16)), m(0x10000000, int(p.sqEntries)*64)
			in, out := t.twoEnds()
			ts := unix.Timespec{Sec: 100}
			r.submit(on(uringRead, in, make([]byte, 1), 0).with(1, sqeLink), sqe{op: uringNop, data: 2},
				sqe{op: uringPollAdd, fd: int32(in), opFlags: unix.POLLIN}, sqe{op: uringTimeout, fd: -1, addr: uint64(pointer(&ts)), n: 1})
			for _, b := range [][]byte{r.sq, r.cq, r.sqes} {
				t.ok(unix.Munmap(b))
			}
			unix.Close(fd)
			unix.Write(out, []byte("x"))
		}
	}},
}
