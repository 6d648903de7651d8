package main

import (
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

var flockChecks = []check{
	{"flock/excludes-other-descriptions", func(t *T) {
		a := t.create("file", "")
		b := t.open("file", unix.O_RDONLY)
		t.ok(unix.Flock(a, unix.LOCK_EX))
		t.fails(unix.Flock(b, unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK)
		t.fails(unix.Flock(b, unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK)
		t.ok(unix.Flock(a, unix.LOCK_UN))
		t.ok(unix.Flock(b, unix.LOCK_EX|unix.LOCK_NB))
	}},
	{"flock/shared", func(t *T) {
		a := t.create("file", "")
		b := t.open("file", unix.O_RDONLY)
		t.ok(unix.Flock(a, unix.LOCK_SH))
		t.ok(unix.Flock(b, unix.LOCK_SH|unix.LOCK_NB))
		t.fails(unix.Flock(a, unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK)
		t.ok(unix.Flock(b, unix.LOCK_UN))
		t.ok(unix.Flock(a, unix.LOCK_EX|unix.LOCK_NB))
		t.ok(unix.Flock(a, unix.LOCK_SH|unix.LOCK_NB))
		t.ok(unix.Flock(b, unix.LOCK_SH|unix.LOCK_NB))
	}},
	{"flock/belongs-to-the-description", func(t *T) {
		a := t.create("file", "")
		dup := must[int](t)(unix.Dup(a))
		b := t.open("file", unix.O_RDONLY)
		t.ok(unix.Flock(a, unix.LOCK_EX))
		t.ok(unix.Flock(dup, unix.LOCK_EX|unix.LOCK_NB))
		t.ok(unix.Close(dup))
		t.fails(unix.Flock(b, unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK)
		t.ok(unix.Close(a))
		t.ok(unix.Flock(b, unix.LOCK_EX|unix.LOCK_NB))
	}},
	{"flock/waits", func(t *T) {
		a := t.create("file", "")
		b := t.open("file", unix.O_RDONLY)
		t.ok(unix.Flock(a, unix.LOCK_EX))
		got := make(chan error, 1)
		go func() { got <- unix.Flock(b, unix.LOCK_EX) }()
		select {
		case err := <-got:
			t.failf("the lock was not waited for: %s", errName(err))
		case <-time.After(50 * time.Millisecond):
		}
		t.ok(unix.Flock(a, unix.LOCK_UN))
		t.ok(<-got)
	}},
	{"flock/errors", func(t *T) {
		a := t.create("file", "")
		t.fails(unix.Flock(a, 0), unix.EINVAL)
		t.fails(unix.Flock(9999, unix.LOCK_EX), unix.EBADF)
	}},
	{"flock/on-directory", func(t *T) {
		t.ok(unix.Flock(t.open("", unix.O_RDONLY), unix.LOCK_EX))
		t.fails(unix.Flock(t.open("", unix.O_RDONLY), unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK)
	}},
}

// lock sets a lock of fcntl(2) on a range.
func lock(fd, cmd int, kind int16, start, length int64) error {
	return unix.FcntlFlock(uintptr(fd), cmd, &unix.Flock_t{Type: kind, Start: start, Len: length})
}

// childLock has a child lock a range of the file; what it gets is what it said.
func (t *T) childLock(start, length int) *child {
	return t.startSelf("lock", t.p("file"), strconv.Itoa(start), strconv.Itoa(length))
}

var posixLockChecks = []check{
	{"fcntl-lock/excludes-other-processes", func(t *T) {
		fd := t.create("file", "")
		t.ok(lock(fd, unix.F_SETLK, unix.F_WRLCK, 10, 10))
		for _, c := range []struct {
			start, length int
			want          string
		}{{0, 10, "success"}, {0, 11, "EAGAIN"}, {15, 1, "EAGAIN"}, {19, 5, "EAGAIN"}, {20, 5, "success"}, {0, 0, "EAGAIN"}} {
			child := t.childLock(c.start, c.length)
			t.eqText("outcome", child.said, c.want)
			child.end()
		}
	}},
	{"fcntl-lock/unlocking-the-middle", func(t *T) {
		fd := t.create("file", "")
		t.ok(lock(fd, unix.F_SETLK, unix.F_WRLCK, 0, 30))
		t.ok(lock(fd, unix.F_SETLK, unix.F_UNLCK, 10, 10))
		t.eqText("outcome", t.childLock(10, 10).said, "success")
		t.eqText("outcome", t.childLock(9, 1).said, "EAGAIN")
		t.eqText("outcome", t.childLock(20, 1).said, "EAGAIN")
	}},
	{"fcntl-lock/getlk", func(t *T) {
		fd := t.create("file", "")
		child := t.childLock(5, 10)
		t.eqText("outcome", child.said, "success")
		l := unix.Flock_t{Type: unix.F_RDLCK, Start: 0, Len: 100}
		t.ok(unix.FcntlFlock(uintptr(fd), unix.F_GETLK, &l))
		eq(t, "type", l.Type, unix.F_WRLCK)
		eq(t, "start", l.Start, 5)
		eq(t, "length", l.Len, 10)
		eq(t, "process", int(l.Pid), child.cmd.Process.Pid)
		l = unix.Flock_t{Type: unix.F_WRLCK, Start: 15, Len: 1}
		t.ok(unix.FcntlFlock(uintptr(fd), unix.F_GETLK, &l))
		eq(t, "type of what is free", l.Type, unix.F_UNLCK)
	}},
	{"fcntl-lock/any-close-frees", func(t *T) {
		// fcntl_locking(2): closing any descriptor of the file frees the process's locks.
		fd := t.create("file", "")
		t.ok(lock(fd, unix.F_SETLK, unix.F_WRLCK, 0, 10))
		t.eqText("outcome", t.childLock(0, 1).said, "EAGAIN")
		t.ok(opens(t.p("file"), unix.O_RDONLY))
		t.eqText("outcome", t.childLock(0, 1).said, "success")
	}},
	{"fcntl-lock/process-end-frees", func(t *T) {
		fd := t.create("file", "")
		child := t.childLock(0, 10)
		t.fails(lock(fd, unix.F_SETLK, unix.F_RDLCK, 5, 1), unix.EAGAIN, unix.EACCES)
		child.end()
		t.ok(lock(fd, unix.F_SETLK, unix.F_RDLCK, 5, 1))
	}},
	{"fcntl-lock/waits", func(t *T) {
		fd := t.create("file", "")
		child := t.childLock(0, 10)
		got := make(chan error, 1)
		go func() { got <- lock(fd, unix.F_SETLKW, unix.F_WRLCK, 5, 1) }()
		select {
		case err := <-got:
			t.failf("the lock was not waited for: %s", errName(err))
		case <-time.After(50 * time.Millisecond):
		}
		child.end()
		t.ok(<-got)
	}},
	{"fcntl-lock/needs-the-right-descriptor", func(t *T) {
		t.file("file", "")
		t.fails(lock(t.open("file", unix.O_RDONLY), unix.F_SETLK, unix.F_WRLCK, 0, 1), unix.EBADF)
		t.fails(lock(t.open("file", unix.O_WRONLY), unix.F_SETLK, unix.F_RDLCK, 0, 1), unix.EBADF)
	}},
	{"fcntl-lock/bad-ranges", func(t *T) {
		fd := t.create("file", "")
		t.fails(lock(fd, unix.F_SETLK, unix.F_WRLCK, -1, 1), unix.EINVAL)
		t.fails(lock(fd, unix.F_SETLK, 77, 0, 1), unix.EINVAL)
	}},
	{"fcntl-lock/negative-length-and-seek-end", func(t *T) {
		fd := t.create("file", "0123456789")
		t.ok(unix.FcntlFlock(uintptr(fd), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Whence: unix.SEEK_END, Start: 0, Len: -3}))
		t.eqText("outcome", t.childLock(6, 1).said, "success")
		t.eqText("outcome", t.childLock(7, 1).said, "EAGAIN")
	}},
	{"ofd-lock/excludes-other-descriptions", func(t *T) {
		a := t.create("file", "")
		b := t.open("file", unix.O_RDWR)
		t.ok(lock(a, unix.F_OFD_SETLK, unix.F_WRLCK, 0, 10))
		t.fails(lock(b, unix.F_OFD_SETLK, unix.F_RDLCK, 5, 1), unix.EAGAIN)
		t.ok(lock(b, unix.F_OFD_SETLK, unix.F_WRLCK, 10, 1))
		t.ok(opens(t.p("file"), unix.O_RDONLY)) // a close elsewhere frees nothing
		t.fails(lock(b, unix.F_OFD_SETLK, unix.F_RDLCK, 5, 1), unix.EAGAIN)
		l := unix.Flock_t{Type: unix.F_WRLCK, Start: 0, Len: 5}
		t.ok(unix.FcntlFlock(uintptr(b), unix.F_OFD_GETLK, &l))
		eq(t, "type", l.Type, unix.F_WRLCK)
		eq(t, "process", l.Pid, -1)
		t.ok(unix.Close(a))
		t.ok(lock(b, unix.F_OFD_SETLK, unix.F_WRLCK, 5, 1))
	}},
	{"ofd-lock/excludes-process-locks", func(t *T) {
		fd := t.create("file", "")
		t.ok(lock(fd, unix.F_OFD_SETLK, unix.F_WRLCK, 0, 10))
		t.eqText("outcome", t.childLock(0, 1).said, "EAGAIN")
	}},
}

var leaseChecks = []check{
	{"lease/set-and-get", func(t *T) {
		t.file("file", "")
		fd := t.open("file", unix.O_RDONLY)
		eq(t, "lease at first", must[int](t)(unix.FcntlInt(uintptr(fd), unix.F_GETLEASE, 0)), unix.F_UNLCK)
		must[int](t)(unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_RDLCK))
		eq(t, "lease", must[int](t)(unix.FcntlInt(uintptr(fd), unix.F_GETLEASE, 0)), unix.F_RDLCK)
		t.fails(opens(t.p("file"), unix.O_WRONLY|unix.O_NONBLOCK), unix.EWOULDBLOCK)
		must[int](t)(unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_UNLCK))
		t.ok(opens(t.p("file"), unix.O_WRONLY|unix.O_NONBLOCK))
	}},
	{"lease/write-lease-wants-to-be-alone", func(t *T) {
		fd := t.create("file", "")
		other := t.open("file", unix.O_RDONLY)
		t.fails(errOf(unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_WRLCK)), unix.EAGAIN)
		t.ok(unix.Close(other))
		must[int](t)(unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_WRLCK))
	}},
}
