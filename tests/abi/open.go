package main

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// openWith opens a path below the check's directory with a mode.
func (t *T) openWith(name string, flags int, mode uint32) (int, error) {
	fd, err := unix.Open(t.p(name), flags|unix.O_CLOEXEC, mode)
	if err == nil {
		t.closing(fd)
	}
	return fd, err
}

var openChecks = []check{
	{"open/creat-mode-and-umask", func(t *T) {
		t.aside(func() {
			unix.Umask(0o027)
			must[int](t)(t.openWith("file", unix.O_CREAT|unix.O_WRONLY, 0o666))
		})
		t.octal("mode", t.stat("file").mode, unix.S_IFREG|0o640)
	}},
	{"open/creat-keeps-special-bits", func(t *T) {
		must[int](t)(t.openWith("file", unix.O_CREAT|unix.O_WRONLY, 0o7777))
		t.octal("mode", t.stat("file").perm(), 0o7777)
	}},
	{"open/creat-owner-is-caller", func(t *T) {
		t.chmod("", 0o777)
		t.as(alice, func() { must[int](t)(t.openWith("file", unix.O_CREAT|unix.O_WRONLY, 0o666)) })
		eq(t, "uid", t.stat("file").uid, uint32(alice.uid))
		eq(t, "gid", t.stat("file").gid, uint32(alice.gid))
	}},
	{"open/creat-inherits-group-of-setgid-directory", func(t *T) {
		t.mkdir("dir")
		t.ok(unix.Chown(t.p("dir"), 0, bob.gid))
		t.chmod("dir", 0o2777)
		t.as(alice, func() { must[int](t)(t.openWith("dir/file", unix.O_CREAT|unix.O_WRONLY, 0o666)) })
		eq(t, "gid", t.stat("dir/file").gid, uint32(bob.gid))
		t.octal("mode", t.stat("dir/file").perm(), 0o666)
	}},
	{"open/creat-drops-setgid-of-foreign-group", func(t *T) {
		// inode(7): S_ISGID is not set for an executable by group if the caller is not in the group.
		t.mkdir("dir")
		t.ok(unix.Chown(t.p("dir"), 0, bob.gid))
		t.chmod("dir", 0o2777)
		t.as(alice, func() { must[int](t)(t.openWith("dir/file", unix.O_CREAT|unix.O_WRONLY, 0o2775)) })
		t.octal("mode", t.stat("dir/file").perm(), 0o775)
	}},
	{"open/creat-mode-does-not-limit-this-descriptor", func(t *T) {
		t.chmod("", 0o777)
		t.as(alice, func() {
			fd := must[int](t)(t.openWith("file", unix.O_CREAT|unix.O_RDWR, 0))
			t.write(fd, "content")
			t.eqText("content", t.pread(fd, 10, 0), "content")
			t.fails(opens(t.p("file"), unix.O_RDONLY), unix.EACCES)
		})
	}},
	{"open/creat-existing", func(t *T) {
		t.file("file", "content")
		t.chmod("file", 0o604)
		must[int](t)(t.openWith("file", unix.O_CREAT|unix.O_WRONLY, 0o777))
		t.eqText("content", t.content("file"), "content")
		t.octal("mode", t.stat("file").perm(), 0o604)
	}},
	{"open/creat-through-dangling-link", func(t *T) {
		t.symlink("target", "link")
		t.ok(opens(t.p("link"), unix.O_CREAT|unix.O_WRONLY))
		t.octal("type of the target", t.stat("target").kind(), unix.S_IFREG)
	}},
	{"open/creat-through-link-into-missing-directory", func(t *T) {
		t.symlink("none/target", "link")
		t.fails(opens(t.p("link"), unix.O_CREAT|unix.O_WRONLY), unix.ENOENT)
	}},
	{"open/creat-without-write-permission-on-directory", func(t *T) {
		t.as(alice, func() { t.fails(opens(t.p("file"), unix.O_CREAT|unix.O_WRONLY), unix.EACCES) })
		t.absent("file")
	}},
	{"open/creat-existing-needs-no-write-permission-on-directory", func(t *T) {
		t.file("file", "")
		t.chmod("file", 0o666)
		t.as(alice, func() { t.ok(opens(t.p("file"), unix.O_CREAT|unix.O_WRONLY)) })
	}},
	{"open/excl-existing-file", func(t *T) {
		t.file("file", "")
		t.fails(opens(t.p("file"), unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY), unix.EEXIST)
	}},
	{"open/excl-existing-directory", func(t *T) {
		t.mkdir("dir")
		t.fails(opens(t.p("dir"), unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY), unix.EEXIST)
	}},
	{"open/excl-does-not-follow-links", func(t *T) {
		t.symlink("target", "dangling")
		t.fails(opens(t.p("dangling"), unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY), unix.EEXIST)
		t.absent("target")
	}},
	{"open/excl-counts-more-than-permissions", func(t *T) {
		t.file("file", "")
		t.chmod("file", 0)
		t.as(alice, func() {
			t.fails(opens(t.p("file"), unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY), unix.EEXIST)
		})
	}},
	{"open/excl-one-of-many-wins", func(t *T) {
		const threads = 8
		for round := range 20 {
			name := fmt.Sprintf("file%d", round)
			won := make(chan bool, threads)
			for range threads {
				go func() { won <- opens(t.p(name), unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY) == nil }()
			}
			winners := 0
			for range threads {
				if <-won {
					winners++
				}
			}
			eq(t, "threads that made the file", winners, 1)
		}
	}},
	{"open/directory-for-writing", func(t *T) {
		t.mkdir("dir")
		t.fails(opens(t.p("dir"), unix.O_WRONLY), unix.EISDIR)
		t.fails(opens(t.p("dir"), unix.O_RDWR), unix.EISDIR)
		t.fails(opens(t.p("dir"), unix.O_RDONLY|unix.O_CREAT), unix.EISDIR)
		t.fails(opens(t.p("dir"), unix.O_RDONLY|unix.O_TRUNC), unix.EISDIR)
		t.ok(opens(t.p("dir"), unix.O_RDONLY))
	}},
	{"open/creat-with-slash", func(t *T) {
		t.fails(opens(t.p("new/"), unix.O_CREAT|unix.O_WRONLY), unix.EISDIR)
		t.absent("new")
	}},
	{"open/o-directory", func(t *T) {
		t.mkdir("dir")
		t.file("file", "")
		t.fifo("fifo")
		t.symlink("dir", "link")
		t.symlink("file", "file-link")
		t.ok(opens(t.p("dir"), unix.O_DIRECTORY))
		t.ok(opens(t.p("link"), unix.O_DIRECTORY))
		t.fails(opens(t.p("file"), unix.O_DIRECTORY), unix.ENOTDIR)
		t.fails(opens(t.p("fifo"), unix.O_DIRECTORY), unix.ENOTDIR)
		t.fails(opens(t.p("file-link"), unix.O_DIRECTORY), unix.ENOTDIR)
		t.fails(opens(t.p("none"), unix.O_DIRECTORY), unix.ENOENT)
	}},
	{"open/o-nofollow", func(t *T) {
		t.mkdir("dir")
		t.file("dir/file", "")
		t.symlink("dir", "link")
		t.symlink("dir/file", "file-link")
		t.fails(opens(t.p("file-link"), unix.O_NOFOLLOW), unix.ELOOP)
		t.fails(opens(t.p("link"), unix.O_NOFOLLOW), unix.ELOOP)
		t.fails(opens(t.p("link"), unix.O_NOFOLLOW|unix.O_DIRECTORY), unix.ENOTDIR)
		t.ok(opens(t.p("link/file"), unix.O_NOFOLLOW))
		t.ok(opens(t.p("dir/file"), unix.O_NOFOLLOW))
	}},
	{"open/o-trunc", func(t *T) {
		t.file("file", "content")
		t.chmod("file", 0o604)
		before := t.stat("file")
		tick()
		t.ok(opens(t.p("file"), unix.O_WRONLY|unix.O_TRUNC))
		after := t.stat("file")
		eq(t, "size", after.size, 0)
		t.octal("mode", after.perm(), 0o604)
		t.that(after.mtime > before.mtime && after.ctime > before.ctime, "mtime and ctime have not moved")
	}},
	{"open/o-trunc-without-permission", func(t *T) {
		t.file("file", "content")
		t.as(alice, func() {
			t.fails(opens(t.p("file"), unix.O_WRONLY|unix.O_TRUNC), unix.EACCES)
			t.fails(opens(t.p("file"), unix.O_RDONLY|unix.O_TRUNC), unix.EACCES)
		})
		t.eqText("content", t.content("file"), "content")
	}},
	{"open/o-trunc-under-other-descriptors", func(t *T) {
		fd := t.create("file", "content")
		t.open("file", unix.O_WRONLY|unix.O_TRUNC)
		t.eqText("content", t.pread(fd, 10, 0), "")
	}},
	{"open/o-append", func(t *T) {
		t.file("file", "begin ")
		fd := t.open("file", unix.O_RDWR|unix.O_APPEND)
		eq(t, "offset at first", t.offset(fd), 0)
		t.write(fd, "more ")
		eq(t, "offset after a write", t.offset(fd), 11)
		must[int64](t)(unix.Seek(fd, 0, unix.SEEK_SET))
		t.write(fd, "end")
		eq(t, "offset after a seek and a write", t.offset(fd), 14)
		t.eqText("content", t.content("file"), "begin more end")
	}},
	{"open/o-append-counts-more-than-pwrite", func(t *T) {
		// pwrite(2), bugs: with O_APPEND data go to the end whatever the offset.
		t.file("file", "begin ")
		fd := t.open("file", unix.O_WRONLY|unix.O_APPEND)
		t.pwrite(fd, "end", 0)
		t.eqText("content", t.content("file"), "begin end")
		eq(t, "offset", t.offset(fd), 0)
	}},
	{"open/o-noatime", func(t *T) {
		t.file("file", "content")
		t.ok(unix.UtimesNanoAt(unix.AT_FDCWD, t.p("file"), []unix.Timespec{{Sec: 1}, {Sec: 2}}, 0))
		fd := t.open("file", unix.O_RDONLY|unix.O_NOATIME)
		t.pread(fd, 3, 0)
		eq(t, "atime", t.stat("file").atime, 1e9)
	}},
	{"open/o-noatime-is-for-owners", func(t *T) {
		t.file("file", "content")
		t.file("own", "content")
		t.own("own", alice)
		t.as(alice, func() {
			t.fails(opens(t.p("file"), unix.O_RDONLY|unix.O_NOATIME), unix.EPERM)
			t.ok(opens(t.p("own"), unix.O_RDONLY|unix.O_NOATIME))
		})
	}},
	{"open/o-cloexec", func(t *T) {
		t.file("file", "")
		fd := t.open("file", unix.O_RDONLY)
		eq(t, "FD_CLOEXEC", must[int](t)(unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)), unix.FD_CLOEXEC)
		fd = t.closing(must[int](t)(unix.Open(t.p("file"), unix.O_RDONLY, 0)))
		eq(t, "FD_CLOEXEC", must[int](t)(unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)), 0)
	}},
	{"open/flags-as-getfl-tells-them", func(t *T) {
		t.file("file", "")
		const told = unix.O_ACCMODE | unix.O_APPEND | unix.O_NONBLOCK | unix.O_SYNC | unix.O_DIRECT | unix.O_NOATIME
		for _, flags := range []int{
			unix.O_RDONLY, unix.O_WRONLY, unix.O_RDWR, unix.O_RDWR | unix.O_APPEND, unix.O_RDWR | unix.O_NONBLOCK,
			unix.O_WRONLY | unix.O_SYNC, unix.O_WRONLY | unix.O_DSYNC, unix.O_RDONLY | unix.O_NOATIME, unix.O_RDWR | unix.O_DIRECT,
		} {
			fd := t.open("file", flags|unix.O_CREAT)
			eq(t, "flags", must[int](t)(unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0))&told, flags)
		}
	}},
	{"open/setfl", func(t *T) {
		fd := t.create("file", "begin ")
		must[int](t)(unix.FcntlInt(uintptr(fd), unix.F_SETFL, unix.O_APPEND))
		t.write(fd, "end")
		t.eqText("content", t.content("file"), "begin end")
		must[int](t)(unix.FcntlInt(uintptr(fd), unix.F_SETFL, 0))
		t.pwrite(fd, "B", 0)
		t.eqText("content", t.content("file"), "Begin end")
	}},
	{"open/fifo-without-peer", func(t *T) {
		t.fifo("fifo")
		t.fails(opens(t.p("fifo"), unix.O_WRONLY|unix.O_NONBLOCK), unix.ENXIO)
		t.ok(opens(t.p("fifo"), unix.O_RDONLY|unix.O_NONBLOCK))
		t.ok(opens(t.p("fifo"), unix.O_RDWR))
	}},
	{"open/fifo-joins-reader-and-writer", func(t *T) {
		t.fifo("fifo")
		r := t.open("fifo", unix.O_RDONLY|unix.O_NONBLOCK)
		w := t.open("fifo", unix.O_WRONLY)
		t.write(w, "through the pipe")
		buf := make([]byte, 100)
		n := must[int](t)(unix.Read(r, buf))
		t.eqText("what came out", string(buf[:n]), "through the pipe")
		eq(t, "size of the FIFO", t.stat("fifo").size, 0)
	}},
	{"open/fifo-waits-for-peer", func(t *T) {
		t.fifo("fifo")
		opened := make(chan error, 1)
		go func() { opened <- opens(t.p("fifo"), unix.O_RDONLY) }()
		t.ok(opens(t.p("fifo"), unix.O_WRONLY))
		t.ok(<-opened)
	}},
	{"open/socket", func(t *T) {
		t.ok(unix.Mknod(t.p("socket"), unix.S_IFSOCK|0o644, 0))
		t.fails(opens(t.p("socket"), unix.O_RDWR), unix.ENXIO)
	}},
	{"open/device-without-driver", func(t *T) {
		t.ok(unix.Mknod(t.p("device"), unix.S_IFCHR|0o644, int(unix.Mkdev(4000, 77))))
		t.fails(opens(t.p("device"), unix.O_RDWR), unix.ENXIO)
	}},
	{"open/running-program-for-writing", func(t *T) {
		// open(2), ETXTBSY: the file is being executed and writing was asked for.
		t.program("program")
		child := t.start("program", "wait")
		t.fails(opens(t.p("program"), unix.O_WRONLY), unix.ETXTBSY)
		child.end()
		t.ok(opens(t.p("program"), unix.O_WRONLY))
	}},
	{"open/removed-file-by-proc", func(t *T) {
		fd := t.create("file", "content")
		t.ok(unix.Unlink(t.p("file")))
		again := t.closing(must[int](t)(unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDWR|unix.O_CLOEXEC, 0)))
		t.eqText("content", t.all(again), "content")
		t.pwrite(again, "C", 0)
		t.eqText("content", t.all(fd), "Content")
	}},
	{"open/too-large-a-mode-is-cut", func(t *T) {
		must[int](t)(t.openWith("file", unix.O_CREAT|unix.O_WRONLY, unix.S_IFDIR|0o600))
		t.octal("mode", t.stat("file").mode, unix.S_IFREG|0o600)
	}},

	{"o-path/refuses-data", func(t *T) {
		t.file("file", "content")
		fd := t.open("file", unix.O_PATH)
		buf := make([]byte, 10)
		t.fails(errOf(unix.Read(fd, buf)), unix.EBADF)
		t.fails(errOf(unix.Write(fd, buf)), unix.EBADF)
		t.fails(unix.Fchmod(fd, 0o600), unix.EBADF)
		t.fails(unix.Fchown(fd, 0, 0), unix.EBADF)
		t.fails(unix.Ftruncate(fd, 0), unix.EBADF)
		t.fails(unix.Fsync(fd), unix.EBADF)
		t.fails(unix.Flock(fd, unix.LOCK_SH), unix.EBADF)
		t.fails(errOf(unix.Fgetxattr(fd, "user.a", nil)), unix.EBADF)
		t.fails(errOf(unix.Mmap(fd, 0, 4096, unix.PROT_READ, unix.MAP_SHARED)), unix.EBADF)
		t.fails(errOf(unix.Seek(fd, 0, unix.SEEK_SET)), unix.EBADF)
		t.fails(errOf(unix.IoctlGetInt(fd, unix.TIOCINQ)), unix.EBADF)
		t.fails(errOf(unix.Getdents(t.open("", unix.O_PATH), make([]byte, 1000))), unix.EBADF)
	}},
	{"o-path/allows-what-the-manual-says", func(t *T) {
		t.file("file", "content")
		t.mkdir("dir")
		fd := t.open("file", unix.O_PATH)
		eq(t, "inode", t.fstat(fd).ino, t.stat("file").ino)
		t.ok(unix.Fstatfs(fd, new(unix.Statfs_t)))
		t.closing(must[int](t)(unix.Dup(fd)))
		flags := must[int](t)(unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0))
		t.that(flags&unix.O_PATH != 0, "F_GETFL gives %#x, without O_PATH", flags)
		t.aside(func() { t.ok(unix.Fchdir(t.open("dir", unix.O_PATH))) })
		again := t.closing(must[int](t)(unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDONLY|unix.O_CLOEXEC, 0)))
		t.eqText("content of the file opened again", t.all(again), "content")
	}},
	{"o-path/needs-no-permission-on-file", func(t *T) {
		t.file("file", "")
		t.chmod("file", 0)
		t.as(alice, func() { t.ok(opens(t.p("file"), unix.O_PATH)) })
	}},
	{"o-path/opens-anything-without-touching-it", func(t *T) {
		t.fifo("fifo")
		t.ok(unix.Mknod(t.p("socket"), unix.S_IFSOCK|0o644, 0))
		t.octal("type", t.fstat(t.open("fifo", unix.O_PATH)).kind(), unix.S_IFIFO)
		t.octal("type", t.fstat(t.open("socket", unix.O_PATH)).kind(), unix.S_IFSOCK)
	}},
	{"o-path/link-itself", func(t *T) {
		t.symlink("target", "link")
		fd := t.open("link", unix.O_PATH|unix.O_NOFOLLOW)
		t.octal("type", t.fstat(fd).kind(), unix.S_IFLNK)
		buf := make([]byte, 100)
		n := must[int](t)(unix.Readlinkat(fd, "", buf))
		t.eqText("target", string(buf[:n]), "target")
	}},
	{"o-path/survives-unlink", func(t *T) {
		t.file("file", "")
		fd := t.open("file", unix.O_PATH)
		t.ok(unix.Unlink(t.p("file")))
		eq(t, "links", t.fstat(fd).nlink, 0)
	}},

	{"o-tmpfile/life", func(t *T) {
		fd := must[int](t)(t.openWith("", unix.O_TMPFILE|unix.O_RDWR, 0o640))
		t.write(fd, "content")
		t.eqText("content", t.all(fd), "content")
		st := t.fstat(fd)
		eq(t, "links", st.nlink, 0)
		eq(t, "size", st.size, 7)
		t.octal("mode", st.mode, unix.S_IFREG|0o640)
		eq(t, "names in the directory", len(t.names("")), 0)
	}},
	{"o-tmpfile/umask", func(t *T) {
		t.aside(func() {
			unix.Umask(0o077)
			fd := must[int](t)(t.openWith("", unix.O_TMPFILE|unix.O_RDWR, 0o666))
			t.octal("mode", t.fstat(fd).perm(), 0o600)
		})
	}},
	{"o-tmpfile/link-by-proc", func(t *T) {
		fd := must[int](t)(t.openWith("", unix.O_TMPFILE|unix.O_RDWR, 0o644))
		t.write(fd, "content")
		t.ok(unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, t.p("file"), unix.AT_SYMLINK_FOLLOW))
		t.eqText("content", t.content("file"), "content")
		eq(t, "links", t.fstat(fd).nlink, 1)
	}},
	{"o-tmpfile/link-by-empty-path", func(t *T) {
		fd := must[int](t)(t.openWith("", unix.O_TMPFILE|unix.O_WRONLY, 0o644))
		t.write(fd, "content")
		t.ok(unix.Linkat(fd, "", unix.AT_FDCWD, t.p("file"), unix.AT_EMPTY_PATH))
		t.eqText("content", t.content("file"), "content")
	}},
	{"o-tmpfile/excl-cannot-be-linked", func(t *T) {
		fd := must[int](t)(t.openWith("", unix.O_TMPFILE|unix.O_RDWR|unix.O_EXCL, 0o644))
		t.fails(unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, t.p("file"), unix.AT_SYMLINK_FOLLOW), unix.ENOENT)
	}},
	{"o-tmpfile/errors", func(t *T) {
		t.file("file", "")
		t.fails(errOf(t.openWith("", unix.O_TMPFILE|unix.O_RDONLY, 0o644)), unix.EINVAL)
		t.fails(errOf(t.openWith("file", unix.O_TMPFILE|unix.O_RDWR, 0o644)), unix.ENOTDIR)
		t.fails(errOf(t.openWith("none", unix.O_TMPFILE|unix.O_RDWR, 0o644)), unix.ENOENT)
		t.as(alice, func() { t.fails(errOf(t.openWith("", unix.O_TMPFILE|unix.O_RDWR, 0o644)), unix.EACCES) })
	}},
}

var openatChecks = []check{
	{"openat/relative-to-directory", func(t *T) {
		t.mkdir("dir")
		t.file("dir/file", "content")
		dir := t.open("dir", unix.O_RDONLY)
		fd := t.closing(must[int](t)(unix.Openat(dir, "file", unix.O_RDONLY, 0)))
		t.eqText("content", t.all(fd), "content")
		t.ok(unix.Rename(t.p("dir"), t.p("moved")))
		fd = t.closing(must[int](t)(unix.Openat(dir, "../moved/file", unix.O_RDONLY, 0)))
		t.eqText("content", t.all(fd), "content")
	}},
	{"openat/bad-directory", func(t *T) {
		file := t.create("file", "")
		t.fails(errOf(unix.Openat(file, "x", unix.O_RDONLY, 0)), unix.ENOTDIR)
		t.fails(errOf(unix.Openat(9999, "x", unix.O_RDONLY, 0)), unix.EBADF)
		fd := must[int](t)(unix.Openat(9999, t.p("file"), unix.O_RDONLY, 0))
		unix.Close(fd)
	}},
	{"openat/removed-directory", func(t *T) {
		t.mkdir("dir")
		dir := t.open("dir", unix.O_RDONLY)
		t.ok(unix.Rmdir(t.p("dir")))
		t.fails(errOf(unix.Openat(dir, "file", unix.O_CREAT|unix.O_WRONLY, 0o644)), unix.ENOENT)
		t.fails(errOf(unix.Openat(dir, "file", unix.O_RDONLY, 0)), unix.ENOENT)
	}},
	{"openat2/plain", func(t *T) {
		t.file("file", "content")
		fd := t.closing(must[int](t)(unix.Openat2(unix.AT_FDCWD, t.p("file"), &unix.OpenHow{Flags: unix.O_RDONLY})))
		t.eqText("content", t.all(fd), "content")
	}},
	{"openat2/resolve-no-symlinks", func(t *T) {
		t.mkdir("dir")
		t.file("dir/file", "")
		t.symlink("dir", "link")
		t.fails(t.openat2("link/file", unix.RESOLVE_NO_SYMLINKS), unix.ELOOP)
		t.ok(t.openat2("dir/file", unix.RESOLVE_NO_SYMLINKS))
	}},
	{"openat2/resolve-beneath", func(t *T) {
		t.mkdir("dir")
		t.file("dir/file", "")
		t.symlink("/", "root")
		t.fails(t.openat2("../x", unix.RESOLVE_BENEATH), unix.EXDEV)
		t.fails(t.openat2("root", unix.RESOLVE_BENEATH), unix.EXDEV)
		t.ok(t.openat2("dir/../dir/file", unix.RESOLVE_BENEATH))
	}},
	{"openat2/resolve-in-root", func(t *T) {
		t.file("file", "")
		t.symlink("/file", "absolute")
		t.ok(t.openat2("absolute", unix.RESOLVE_IN_ROOT))
		t.ok(t.openat2("../../../file", unix.RESOLVE_IN_ROOT))
	}},
	{"openat2/unknown-flags", func(t *T) {
		t.file("file", "")
		t.fails(errOf(unix.Openat2(unix.AT_FDCWD, t.p("file"), &unix.OpenHow{Flags: 1 << 40})), unix.EINVAL)
		t.fails(errOf(unix.Openat2(unix.AT_FDCWD, t.p("file"), &unix.OpenHow{Mode: 0o644})), unix.EINVAL)
		t.fails(t.openat2("file", 1<<20), unix.EINVAL)
	}},
	{"openat2/beneath-in-detail", func(t *T) {
		t.mkdir("dir")
		t.mkdir("dir/sub")
		t.file("dir/file", "")
		t.symlink("../file", "dir/sub/link")
		t.symlink("sub/../..", "dir/out")
		t.symlink("loop", "dir/loop")
		beneath := func(path string) error {
			fd, err := unix.Openat2(t.open("dir", unix.O_PATH), path, &unix.OpenHow{Resolve: unix.RESOLVE_BENEATH})
			if err == nil {
				unix.Close(fd)
			}
			return err
		}
		t.ok(beneath("sub/link"))
		t.ok(beneath("."))
		t.ok(beneath("sub/.."))
		t.fails(beneath("out"), unix.EXDEV)
		t.fails(beneath(".."), unix.EXDEV)
		t.fails(beneath("sub/../.."), unix.EXDEV)
		t.fails(beneath(t.p("dir/file")), unix.EXDEV)
		t.fails(beneath("loop"), unix.ELOOP)
		t.fails(beneath("none"), unix.ENOENT)
		t.fails(beneath("none/file"), unix.ENOENT)
		t.fails(beneath("file/none"), unix.ENOTDIR)
		t.fails(beneath("file/"), unix.ENOTDIR)
		t.fails(beneath(""), unix.ENOENT)
	}},
	{"openat2/creates-beneath", func(t *T) {
		t.mkdir("dir")
		t.symlink("made", "dir/link")
		dir := t.open("dir", unix.O_PATH)
		how := unix.OpenHow{Flags: unix.O_CREAT | unix.O_WRONLY, Mode: 0o640, Resolve: unix.RESOLVE_BENEATH}
		t.closing(must[int](t)(unix.Openat2(dir, "new", &how)))
		t.octal("mode", t.stat("dir/new").perm(), 0o640)
		t.closing(must[int](t)(unix.Openat2(dir, "link", &how))) // through the link
		t.octal("mode", t.stat("dir/made").perm(), 0o640)
		how.Flags |= unix.O_EXCL
		t.fails(errOf(unix.Openat2(dir, "new", &how)), unix.EEXIST)
		how.Flags |= unix.O_NOFOLLOW
		t.fails(errOf(unix.Openat2(dir, "link", &how)), unix.EEXIST)
		t.fails(errOf(unix.Openat2(dir, "link", &unix.OpenHow{Flags: unix.O_NOFOLLOW, Resolve: unix.RESOLVE_BENEATH})), unix.ELOOP)
	}},
	{"openat2/no-crossing-of-mounts", func(t *T) {
		t.fails(errOf(unix.Openat2(unix.AT_FDCWD, "/proc/self", &unix.OpenHow{Resolve: unix.RESOLVE_NO_XDEV})), unix.EXDEV)
		t.file("file", "")
		t.ok(t.openat2("file", unix.RESOLVE_NO_XDEV))
	}},
	{"openat2/sizes", func(t *T) {
		t.file("file", "")
		path := cstring(t.p("file"))
		var how [40]byte
		open := func(size uintptr) error {
			fd, err := syscall(unix.SYS_OPENAT2, 0, address(path), pointer(&how), size)
			if err == nil {
				unix.Close(int(fd))
			}
			return err
		}
		t.fails(open(23), unix.EINVAL)
		t.ok(open(24))
		t.ok(open(40))
		how[30] = 1
		t.fails(open(40), unix.E2BIG)
		t.fails(open(1<<20), unix.E2BIG)
		runtime.KeepAlive(path)
	}},
	{"handle/by-handle", func(t *T) {
		t.file("file", "content")
		handle, _, err := unix.NameToHandleAt(unix.AT_FDCWD, t.p("file"), 0)
		t.ok(err)
		t.ok(unix.Rename(t.p("file"), t.p("moved")))
		fd := t.closing(must[int](t)(unix.OpenByHandleAt(t.open("", unix.O_RDONLY), handle, unix.O_RDONLY)))
		t.eqText("content", t.all(fd), "content")
	}},
}

func (t *T) openat2(path string, resolve uint64) error {
	fd, err := unix.Openat2(t.open("", unix.O_PATH), path, &unix.OpenHow{Resolve: resolve})
	if err == nil {
		unix.Close(fd)
	}
	return err
}
