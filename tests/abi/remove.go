package main

import (
	"golang.org/x/sys/unix"
)

var unlinkChecks = []check{
	{"unlink/types", func(t *T) {
		t.file("file", "")
		t.fifo("fifo")
		t.symlink("none", "link")
		t.ok(unix.Mknod(t.p("socket"), unix.S_IFSOCK|0o644, 0))
		t.ok(unix.Mknod(t.p("device"), unix.S_IFBLK|0o644, 259))
		for _, name := range []string{"file", "fifo", "link", "socket", "device"} {
			t.ok(unix.Unlink(t.p(name)))
			t.absent(name)
			t.fails(unix.Unlink(t.p(name)), unix.ENOENT)
		}
	}},
	{"unlink/link-not-target", func(t *T) {
		t.file("file", "content")
		t.symlink("file", "link")
		t.ok(unix.Unlink(t.p("link")))
		t.eqText("content of the target", t.content("file"), "content")
	}},
	{"unlink/directory", func(t *T) {
		t.mkdir("dir")
		t.fails(unix.Unlink(t.p("dir")), unix.EISDIR)
		t.fails(unix.Unlink(t.p("dir/")), unix.EISDIR)
		t.fails(unix.Unlink(t.p(".")), unix.EISDIR)
		t.fails(unix.Unlink(t.p("dir/..")), unix.EISDIR)
	}},
	{"unlink/link-to-directory-with-slash", func(t *T) {
		t.mkdir("dir")
		t.symlink("dir", "link")
		t.fails(unix.Unlink(t.p("link/")), unix.ENOTDIR)
		t.ok(unix.Unlink(t.p("link")))
	}},
	{"unlink/one-of-two-names", func(t *T) {
		t.file("a", "")
		t.ok(unix.Link(t.p("a"), t.p("b")))
		before := t.stat("b")
		tick()
		t.ok(unix.Unlink(t.p("a")))
		after := t.stat("b")
		eq(t, "links", after.nlink, 1)
		eq(t, "mtime", after.mtime, before.mtime)
		t.that(after.ctime > before.ctime, "ctime has not moved")
	}},
	{"unlink/open-file-lives-on", func(t *T) {
		fd := t.create("file", "content")
		t.ok(unix.Unlink(t.p("file")))
		eq(t, "links", t.fstat(fd).nlink, 0)
		t.pwrite(fd, " grows", 7)
		t.eqText("content", t.all(fd), "content grows")
		t.ok(unix.Ftruncate(fd, 3))
		t.ok(unix.Fchmod(fd, 0o600))
		t.ok(unix.Fsync(fd))
		t.eqText("content", t.all(fd), "con")
		t.file("file", "another")
		t.eqText("content", t.all(fd), "con")
		t.eqText("content of the new file", t.content("file"), "another")
	}},
	{"unlink/without-permission-on-directory", func(t *T) {
		t.file("file", "")
		t.own("file", alice)
		t.as(alice, func() { t.fails(unix.Unlink(t.p("file")), unix.EACCES) })
	}},
	{"unlink/needs-no-permission-on-file", func(t *T) {
		t.file("file", "")
		t.chmod("file", 0)
		t.chmod("", 0o777)
		t.as(alice, func() { t.ok(unix.Unlink(t.p("file"))) })
	}},
	{"unlink/unknown-flags", func(t *T) {
		t.file("file", "")
		t.fails(unix.Unlinkat(unix.AT_FDCWD, t.p("file"), unix.AT_SYMLINK_NOFOLLOW), unix.EINVAL)
	}},
	{"unlink/running-program", func(t *T) {
		t.program("program")
		child := t.start("program", "wait")
		t.ok(unix.Unlink(t.p("program")))
		child.end()
	}},
}

var rmdirChecks = []check{
	{"rmdir/empty", func(t *T) {
		before := t.stat("").nlink
		t.mkdir("dir")
		t.ok(unix.Rmdir(t.p("dir")))
		t.absent("dir")
		eq(t, "links of the parent", t.stat("").nlink, before)
	}},
	{"rmdir/not-empty", func(t *T) {
		t.mkdir("dir")
		t.file("dir/file", "")
		t.fails(unix.Rmdir(t.p("dir")), unix.ENOTEMPTY, unix.EEXIST)
		t.ok(unix.Unlink(t.p("dir/file")))
		t.mkdir("dir/sub")
		t.fails(unix.Rmdir(t.p("dir")), unix.ENOTEMPTY, unix.EEXIST)
		t.ok(unix.Rmdir(t.p("dir/sub")))
		t.ok(unix.Rmdir(t.p("dir")))
	}},
	{"rmdir/emptied-of-open-file", func(t *T) {
		t.mkdir("dir")
		t.create("dir/file", "content")
		t.ok(unix.Unlink(t.p("dir/file")))
		t.ok(unix.Rmdir(t.p("dir")))
	}},
	{"rmdir/dots", func(t *T) {
		t.mkdir("dir")
		t.mkdir("dir/sub")
		t.fails(unix.Rmdir(t.p("dir/.")), unix.EINVAL)
		t.fails(unix.Rmdir(t.p("dir/sub/.")), unix.EINVAL)
		t.fails(unix.Rmdir(t.p("dir/sub/..")), unix.ENOTEMPTY, unix.EEXIST)
	}},
	{"rmdir/no-directory", func(t *T) {
		t.file("file", "")
		t.fifo("fifo")
		t.mkdir("dir")
		t.symlink("dir", "link")
		for _, name := range []string{"file", "fifo", "link", "link/"} {
			t.fails(unix.Rmdir(t.p(name)), unix.ENOTDIR)
		}
	}},
	{"rmdir/with-slash", func(t *T) {
		t.mkdir("dir")
		t.ok(unix.Rmdir(t.p("dir/")))
		t.absent("dir")
	}},
	{"rmdir/mount-point", func(t *T) {
		t.fails(unix.Rmdir(t.at.dir), unix.EBUSY)
	}},
	{"rmdir/open-directory", func(t *T) {
		t.mkdir("dir")
		fd := t.open("dir", unix.O_RDONLY)
		t.ok(unix.Rmdir(t.p("dir")))
		eq(t, "links", t.fstat(fd).nlink, 0)
		t.fails(errOf(unix.Getdents(fd, make([]byte, 1000))), unix.ENOENT)
		t.fails(unix.Mkdirat(fd, "sub", 0o755), unix.ENOENT)
		t.ok(unix.Fsync(fd))
	}},
	{"rmdir/without-permission", func(t *T) {
		t.mkdir("dir")
		t.own("dir", alice)
		t.as(alice, func() { t.fails(unix.Rmdir(t.p("dir")), unix.EACCES) })
	}},
	{"rmdir/by-unlinkat", func(t *T) {
		t.mkdir("dir")
		t.file("file", "")
		t.fails(unix.Unlinkat(unix.AT_FDCWD, t.p("file"), unix.AT_REMOVEDIR), unix.ENOTDIR)
		t.fails(unix.Unlinkat(unix.AT_FDCWD, t.p("dir"), 0), unix.EISDIR)
		t.ok(unix.Unlinkat(unix.AT_FDCWD, t.p("dir"), unix.AT_REMOVEDIR))
	}},
	{"rmdir/working-directory", func(t *T) {
		t.mkdir("dir")
		t.aside(func() {
			t.ok(unix.Chdir(t.p("dir")))
			t.ok(unix.Rmdir("../dir"))
			var st unix.Stat_t
			t.ok(unix.Stat(".", &st))
			t.ok(unix.Chdir(".."))
		})
	}},
}
