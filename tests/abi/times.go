package main

import (
	"math"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// timesCase says which times a call moves: a(ccess), m(odification), c(hange).
type timesCase struct {
	name string
	call func(t *T, fd int) error
	file string // of the file "file", which is open as fd and has content
	dir  string // of its directory, mounted with relatime
}

// timesCases follow inode(7) and the pages of the calls. The atime of file and
// directory is older than their mtime, so that relatime lets each read move it.
var timesCases = []timesCase{
	{"read", func(t *T, fd int) error { return errOf(unix.Read(fd, make([]byte, 1))) }, "a", ""},
	{"pread", func(t *T, fd int) error { return errOf(unix.Pread(fd, make([]byte, 1), 0)) }, "a", ""},
	{"read-nothing", func(t *T, fd int) error { return errOf(unix.Read(fd, nil)) }, "", ""},
	{"write", func(t *T, fd int) error { return errOf(unix.Write(fd, []byte("x"))) }, "mc", ""},
	{"pwrite", func(t *T, fd int) error { return errOf(unix.Pwrite(fd, []byte("x"), 0)) }, "mc", ""},
	{"write-nothing", func(t *T, fd int) error { return errOf(unix.Write(fd, nil)) }, "", ""},
	{"truncate-shorter", func(t *T, fd int) error { return unix.Truncate(t.p("file"), 1) }, "mc", ""},
	{"truncate-longer", func(t *T, fd int) error { return unix.Truncate(t.p("file"), 10000) }, "mc", ""},
	{"ftruncate-shorter", func(t *T, fd int) error { return unix.Ftruncate(fd, 1) }, "mc", ""},
	{"fallocate-longer", func(t *T, fd int) error { return unix.Fallocate(fd, 0, 0, 100000) }, "mc", ""},
	{"punch-hole", func(t *T, fd int) error {
		return unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 4)
	}, "mc", ""},
	{"chmod", func(t *T, fd int) error { return unix.Chmod(t.p("file"), 0o600) }, "c", ""},
	{"fchmod-to-the-same", func(t *T, fd int) error { return unix.Fchmod(fd, 0o644) }, "c", ""},
	{"chown", func(t *T, fd int) error { return unix.Chown(t.p("file"), 1, 1) }, "c", ""},
	{"setxattr", func(t *T, fd int) error { return unix.Setxattr(t.p("file"), "user.a", []byte("b"), 0) }, "c", ""},
	{"link", func(t *T, fd int) error { return unix.Link(t.p("file"), t.p("second")) }, "c", "mc"},
	{"unlink-other-name", func(t *T, fd int) error { return unix.Unlink(t.p("other-name")) }, "c", "mc"},
	{"rename", func(t *T, fd int) error { return t.rename("other-name", "moved") }, "c", "mc"},
	{"create", func(t *T, fd int) error { return opens(t.p("new"), unix.O_CREAT|unix.O_WRONLY) }, "", "mc"},
	{"mkdir", func(t *T, fd int) error { return unix.Mkdir(t.p("new"), 0o755) }, "", "mc"},
	{"rmdir", func(t *T, fd int) error { return unix.Rmdir(t.p("empty")) }, "", "mc"},
	{"symlink", func(t *T, fd int) error { return unix.Symlink("target", t.p("new")) }, "", "mc"},
	{"mknod", func(t *T, fd int) error { return unix.Mkfifo(t.p("new"), 0o644) }, "", "mc"},
	{"list", func(t *T, fd int) error {
		return errOf(unix.Getdents(t.open("", unix.O_RDONLY), make([]byte, 4096)))
	}, "", "a"},
	{"stat", func(t *T, fd int) error { return unix.Stat(t.p("file"), new(unix.Stat_t)) }, "", ""},
	{"open", func(t *T, fd int) error { return opens(t.p("file"), unix.O_RDWR) }, "", ""},
	{"open-creat-existing", func(t *T, fd int) error { return opens(t.p("file"), unix.O_RDWR|unix.O_CREAT) }, "", ""},
	{"failed-mkdir", func(t *T, fd int) error { unix.Mkdir(t.p("file"), 0o755); return nil }, "", ""},
	{"getxattr", func(t *T, fd int) error { unix.Getxattr(t.p("file"), "user.none", nil); return nil }, "", ""},
	{"fsync", func(t *T, fd int) error { return unix.Fsync(fd) }, "", ""},
	{"mmap-read", func(t *T, fd int) error {
		load(t.mmap(fd, 4096, unix.PROT_READ, unix.MAP_SHARED), 0)
		return nil
	}, "a", ""},
	{"mmap-write", func(t *T, fd int) error {
		m := t.mmap(fd, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		m[0] = 'x'
		return unix.Msync(m, unix.MS_SYNC)
	}, "amc", ""},
}

func timesChecks() []check {
	var list []check
	for _, c := range timesCases {
		list = append(list, check{"times/" + c.name, func(t *T) {
			fd := t.create("file", "content")
			t.ok(unix.Link(t.p("file"), t.p("other-name")))
			t.mkdir("empty")
			// Older than mtime and ctime, but not by a day.
			for _, name := range []string{"file", ""} {
				st := t.stat(name)
				t.ok(unix.UtimesNanoAt(unix.AT_FDCWD, t.p(name), []unix.Timespec{
					unix.NsecToTimespec(st.mtime - int64(time.Hour)), unix.NsecToTimespec(st.mtime),
				}, 0))
			}
			file, dir := t.fstat(fd), t.stat("")
			tick()
			t.ok(c.call(t, fd))
			eq(t, "times of the file that moved", moved(file, t.fstat(fd)), c.file)
			eq(t, "times of the directory that moved", moved(dir, t.stat("")), c.dir)
		}})
	}
	return list
}

func moved(before, after status) string {
	var m string
	if after.atime != before.atime {
		m += "a"
	}
	if after.mtime != before.mtime {
		m += "m"
	}
	if after.ctime != before.ctime {
		m += "c"
	}
	return m
}

// utimens sets atime and mtime of a file.
func (t *T) utimens(name string, atime, mtime unix.Timespec, flags int) error {
	return unix.UtimesNanoAt(unix.AT_FDCWD, t.p(name), []unix.Timespec{atime, mtime}, flags)
}

var (
	timeNow  = unix.Timespec{Nsec: unix.UTIME_NOW}
	timeOmit = unix.Timespec{Nsec: unix.UTIME_OMIT}
)

var utimeChecks = []check{
	{"utimensat/nanoseconds", func(t *T) {
		t.file("file", "")
		t.ok(t.utimens("file", unix.Timespec{Sec: 1234567890, Nsec: 123456789}, unix.Timespec{Sec: 987654321, Nsec: 999999999}, 0))
		eq(t, "atime", t.stat("file").atime, 1234567890123456789)
		eq(t, "mtime", t.stat("file").mtime, 987654321999999999)
	}},
	{"utimensat/before-1970-and-after-2038", func(t *T) {
		t.file("file", "")
		for _, sec := range []int64{-1, -86400, math.MinInt32 + 1, math.MaxInt32, math.MaxInt32 + 1, 1 << 32, 1<<33 + 5} {
			t.ok(t.utimens("file", unix.Timespec{Sec: sec, Nsec: 5}, unix.Timespec{Sec: sec, Nsec: 999999999}, 0))
			eq(t, "atime", t.stat("file").atime, sec*1e9+5)
			eq(t, "mtime", t.stat("file").mtime, sec*1e9+999999999)
		}
	}},
	{"utimensat/now", func(t *T) {
		t.file("file", "")
		t.ok(t.utimens("file", unix.Timespec{Sec: 1}, unix.Timespec{Sec: 1}, 0))
		before := time.Now().Add(-time.Second).UnixNano()
		t.ok(t.utimens("file", timeNow, timeNow, 0))
		st := t.stat("file")
		t.that(st.atime > before && st.mtime > before, "atime %d and mtime %d are not now", st.atime, st.mtime)
		eq(t, "mtime", st.mtime, st.atime)
	}},
	{"utimensat/omit", func(t *T) {
		t.file("file", "")
		t.ok(t.utimens("file", unix.Timespec{Sec: 1}, unix.Timespec{Sec: 2}, 0))
		t.ok(t.utimens("file", timeOmit, unix.Timespec{Sec: 3}, 0))
		eq(t, "atime", t.stat("file").atime, 1e9)
		eq(t, "mtime", t.stat("file").mtime, 3e9)
		t.ok(t.utimens("file", unix.Timespec{Sec: 4}, timeOmit, 0))
		eq(t, "atime", t.stat("file").atime, 4e9)
		eq(t, "mtime", t.stat("file").mtime, 3e9)
	}},
	{"utimensat/omit-both-changes-nothing", func(t *T) {
		t.file("file", "")
		before := t.stat("file")
		tick()
		t.ok(t.utimens("file", timeOmit, timeOmit, 0))
		eq(t, "times that moved", moved(before, t.stat("file")), "")
		t.as(alice, func() { t.ok(t.utimens("file", timeOmit, timeOmit, 0)) })
	}},
	{"utimensat/moves-ctime", func(t *T) {
		t.file("file", "")
		before := t.stat("file")
		tick()
		t.ok(t.utimens("file", unix.Timespec{Sec: 1}, unix.Timespec{Sec: 1}, 0))
		t.that(t.stat("file").ctime > before.ctime, "ctime has not moved")
	}},
	{"utimensat/bad-nanoseconds", func(t *T) {
		t.file("file", "")
		t.fails(t.utimens("file", unix.Timespec{Nsec: 1e9}, unix.Timespec{}, 0), unix.EINVAL)
		t.fails(t.utimens("file", unix.Timespec{}, unix.Timespec{Nsec: -1}, 0), unix.EINVAL)
	}},
	{"utimensat/bad-flags", func(t *T) {
		t.file("file", "")
		t.fails(t.utimens("file", timeNow, timeNow, unix.AT_REMOVEDIR), unix.EINVAL)
	}},
	{"utimensat/link-itself", func(t *T) {
		t.file("file", "")
		t.symlink("file", "link")
		before := t.stat("file")
		t.ok(t.utimens("link", unix.Timespec{Sec: 5}, unix.Timespec{Sec: 6}, unix.AT_SYMLINK_NOFOLLOW))
		eq(t, "mtime of the link", t.stat("link").mtime, 6e9)
		eq(t, "mtime of the target", t.stat("file").mtime, before.mtime)
		t.ok(t.utimens("link", unix.Timespec{Sec: 7}, unix.Timespec{Sec: 8}, 0))
		eq(t, "mtime of the target", t.stat("file").mtime, 8e9)
	}},
	{"utimensat/others", func(t *T) {
		// utimensat(2): a value needs the owner, else EPERM; now needs write permission, else EACCES.
		t.file("file", "")
		t.as(alice, func() {
			t.fails(t.utimens("file", unix.Timespec{}, unix.Timespec{}, 0), unix.EPERM)
			t.fails(t.utimens("file", timeNow, timeNow, 0), unix.EACCES)
			t.fails(t.utimens("file", timeNow, timeOmit, 0), unix.EPERM)
			t.fails(t.utimens("file", timeNow, unix.Timespec{Sec: 1}, 0), unix.EPERM)
		})
		t.chmod("file", 0o666)
		t.as(alice, func() {
			t.ok(t.utimens("file", timeNow, timeNow, 0))
			t.fails(t.utimens("file", unix.Timespec{}, unix.Timespec{}, 0), unix.EPERM)
		})
	}},
	{"utimensat/owner-without-permission", func(t *T) {
		t.file("file", "")
		t.own("file", alice)
		t.chmod("file", 0)
		t.as(alice, func() {
			t.ok(t.utimens("file", unix.Timespec{}, unix.Timespec{}, 0))
			t.ok(t.utimens("file", timeNow, timeNow, 0))
		})
	}},
	{"utimensat/by-descriptor", func(t *T) {
		fd := t.create("file", "")
		times := []unix.Timespec{{Sec: 11, Nsec: 1}, {Sec: 12, Nsec: 2}}
		t.ok(errOf(syscall(unix.SYS_UTIMENSAT, uintptr(fd), 0, address(times), 0)))
		runtime.KeepAlive(times)
		eq(t, "atime", t.fstat(fd).atime, 11e9+1)
		eq(t, "mtime", t.fstat(fd).mtime, 12e9+2)
	}},
	{"relatime/one-read-a-day", func(t *T) {
		// mount(8): with relatime, atime moves if it was not younger than mtime and ctime, or after a day.
		fd := t.create("file", "content")
		now := time.Now().UnixNano()
		t.ok(t.utimens("file", unix.NsecToTimespec(now+int64(time.Hour)), unix.NsecToTimespec(now), 0))
		t.pread(fd, 1, 0)
		eq(t, "atime younger than the others", t.fstat(fd).atime, now+int64(time.Hour))
		old := now - 25*int64(time.Hour)
		t.ok(t.utimens("file", unix.NsecToTimespec(old), unix.NsecToTimespec(old-1), 0))
		t.pread(fd, 1, 0)
		t.that(t.fstat(fd).atime >= now, "atime older than a day has not moved")
	}},
	{"times/of-new-files", func(t *T) {
		before := time.Now().Add(-time.Second).UnixNano()
		t.file("file", "")
		t.mkdir("dir")
		t.symlink("target", "link")
		for _, name := range []string{"file", "dir", "link"} {
			st := t.stat(name)
			after := time.Now().UnixNano()
			t.that(st.mtime > before && st.mtime <= after, "mtime of %s is %d, now is %d", name, st.mtime, after)
			t.that(st.atime == st.mtime && st.ctime == st.mtime, "times of %s differ: %d %d %d", name, st.atime, st.mtime, st.ctime)
		}
	}},
	{"times/have-nanoseconds", func(t *T) {
		different := map[int64]bool{}
		for range 20 {
			t.file("file", "content")
			different[t.stat("file").mtime%1e6] = true
			time.Sleep(2 * time.Millisecond)
		}
		t.that(len(different) > 1, "all mtimes have the same part below a millisecond")
	}},
}
