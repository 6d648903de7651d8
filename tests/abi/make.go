package main

import (
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

var mkdirChecks = []check{
	{"mkdir/mode-and-umask", func(t *T) {
		t.aside(func() {
			unix.Umask(0o027)
			t.ok(unix.Mkdir(t.p("dir"), 0o777))
		})
		t.octal("mode", t.stat("dir").mode, unix.S_IFDIR|0o750)
	}},
	{"mkdir/mode-may-be-sticky-but-no-more", func(t *T) {
		// mkdir(2): of mode, only permissions and the sticky bit count.
		t.ok(unix.Mkdir(t.p("dir"), 0o7777))
		t.octal("mode", t.stat("dir").perm(), 0o1777)
	}},
	{"mkdir/inherits-setgid-and-group", func(t *T) {
		t.mkdir("dir")
		t.ok(unix.Chown(t.p("dir"), 0, bob.gid))
		t.chmod("dir", 0o2777)
		t.as(alice, func() { t.ok(unix.Mkdir(t.p("dir/sub"), 0o755)) })
		t.octal("mode", t.stat("dir/sub").perm(), 0o2755)
		eq(t, "uid", t.stat("dir/sub").uid, uint32(alice.uid))
		eq(t, "gid", t.stat("dir/sub").gid, uint32(bob.gid))
	}},
	{"mkdir/link-counts", func(t *T) {
		before := t.stat("").nlink
		t.mkdir("dir")
		eq(t, "links of the new directory", t.stat("dir").nlink, 2)
		eq(t, "links of its parent", t.stat("").nlink, before+1)
		t.mkdir("dir/sub")
		eq(t, "links after a directory in it", t.stat("dir").nlink, 3)
		t.file("dir/file", "")
		eq(t, "links after a file in it", t.stat("dir").nlink, 3)
	}},
	{"mkdir/existing", func(t *T) {
		t.mkdir("dir")
		t.file("file", "")
		t.symlink("none", "dangling")
		for _, name := range []string{"dir", "dir/", "file", "dangling", "dangling/", "dir/.", "dir/..", "."} {
			t.fails(unix.Mkdir(t.p(name), 0o755), unix.EEXIST)
		}
	}},
	{"mkdir/with-slash", func(t *T) {
		t.ok(unix.Mkdir(t.p("dir/"), 0o755))
		t.octal("type", t.stat("dir").kind(), unix.S_IFDIR)
	}},
	{"mkdir/dot-in-missing-directory", func(t *T) {
		t.fails(unix.Mkdir(t.p("none/."), 0o755), unix.ENOENT)
	}},
	{"mkdir/without-permission", func(t *T) {
		t.as(alice, func() { t.fails(unix.Mkdir(t.p("dir"), 0o755), unix.EACCES) })
	}},
	{"mkdir/relative-to-descriptor", func(t *T) {
		t.mkdir("dir")
		t.ok(unix.Mkdirat(t.open("dir", unix.O_PATH), "sub", 0o755))
		t.octal("type", t.stat("dir/sub").kind(), unix.S_IFDIR)
	}},
}

var mknodChecks = []check{
	{"mknod/types", func(t *T) {
		for name, mode := range map[string]uint32{
			"regular": unix.S_IFREG, "fifo": unix.S_IFIFO, "socket": unix.S_IFSOCK, "char": unix.S_IFCHR, "block": unix.S_IFBLK,
		} {
			t.ok(unix.Mknod(t.p(name), mode|0o640, int(unix.Mkdev(77, 300))))
			st := t.stat(name)
			t.octal("mode of "+name, st.mode, mode|0o640)
			eq(t, "links of "+name, st.nlink, 1)
			want := uint64(0)
			if mode == unix.S_IFCHR || mode == unix.S_IFBLK {
				want = unix.Mkdev(77, 300)
			}
			eq(t, "device of "+name, st.rdev, want)
		}
	}},
	{"mknod/large-device-numbers", func(t *T) {
		t.ok(unix.Mknod(t.p("device"), unix.S_IFCHR|0o600, int(unix.Mkdev(4095, 1048575))))
		eq(t, "device", t.stat("device").rdev, unix.Mkdev(4095, 1048575))
	}},
	{"mknod/no-type-is-regular", func(t *T) {
		t.ok(unix.Mknod(t.p("file"), 0o644, 0))
		t.octal("type", t.stat("file").kind(), unix.S_IFREG)
	}},
	{"mknod/umask", func(t *T) {
		t.aside(func() {
			unix.Umask(0o077)
			t.ok(unix.Mknod(t.p("fifo"), unix.S_IFIFO|0o666, 0))
		})
		t.octal("mode", t.stat("fifo").perm(), 0o600)
	}},
	{"mknod/directory-or-link", func(t *T) {
		t.fails(unix.Mknod(t.p("dir"), unix.S_IFDIR|0o755, 0), unix.EPERM, unix.EINVAL)
		t.fails(unix.Mknod(t.p("link"), unix.S_IFLNK|0o777, 0), unix.EINVAL)
	}},
	{"mknod/devices-need-a-capability", func(t *T) {
		t.chmod("", 0o777)
		t.as(alice, func() {
			t.fails(unix.Mknod(t.p("char"), unix.S_IFCHR|0o644, int(unix.Mkdev(1, 3))), unix.EPERM)
			t.fails(unix.Mknod(t.p("block"), unix.S_IFBLK|0o644, int(unix.Mkdev(7, 0))), unix.EPERM)
			t.ok(unix.Mknod(t.p("fifo"), unix.S_IFIFO|0o644, 0))
			t.ok(unix.Mknod(t.p("socket"), unix.S_IFSOCK|0o644, 0))
			t.ok(unix.Mknod(t.p("regular"), unix.S_IFREG|0o644, 0))
		})
	}},
	{"mknod/existing", func(t *T) {
		t.symlink("none", "dangling")
		t.fails(unix.Mknod(t.p("dangling"), unix.S_IFIFO|0o644, 0), unix.EEXIST)
		t.fails(unix.Mknod(t.p("."), unix.S_IFIFO|0o644, 0), unix.EEXIST)
	}},
	{"mknod/null-device-works", func(t *T) {
		t.ok(unix.Mknod(t.p("null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
		fd := t.open("null", unix.O_RDWR)
		t.write(fd, "gone")
		eq(t, "bytes read from it", must[int](t)(unix.Read(fd, make([]byte, 10))), 0)
	}},
	{"mknod/socket-is-made-by-bind", func(t *T) {
		t.aside(func() {
			unix.Umask(0o022)
			t.ok(unix.Chdir(t.dir)) // a socket's address is short
			server := t.closing(must[int](t)(unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)))
			t.ok(unix.Bind(server, &unix.SockaddrUnix{Name: "socket"}))
			t.octal("mode", t.stat("socket").mode, unix.S_IFSOCK|0o755)
			client := t.closing(must[int](t)(unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)))
			t.fails(unix.Connect(client, &unix.SockaddrUnix{Name: "socket"}), unix.ECONNREFUSED)
			t.ok(unix.Listen(server, 1))
			t.ok(unix.Connect(client, &unix.SockaddrUnix{Name: "socket"}))
			again := t.closing(must[int](t)(unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)))
			t.fails(unix.Bind(again, &unix.SockaddrUnix{Name: "socket"}), unix.EADDRINUSE)
			t.ok(unix.Unlink("socket"))
			t.fails(unix.Connect(again, &unix.SockaddrUnix{Name: "socket"}), unix.ENOENT)
		})
	}},
}

var symlinkChecks = []check{
	{"symlink/attributes", func(t *T) {
		t.chmod("", 0o777)
		t.as(alice, func() {
			unix.Umask(0o077)
			t.ok(unix.Symlink("some/target", t.p("link")))
		})
		st := t.stat("link")
		t.octal("mode", st.mode, unix.S_IFLNK|0o777)
		eq(t, "size", st.size, int64(len("some/target")))
		eq(t, "uid", st.uid, uint32(alice.uid))
		eq(t, "links", st.nlink, 1)
	}},
	{"symlink/targets-of-all-lengths", func(t *T) {
		for _, n := range []int{1, 59, 60, 61, 255, 256, 1000, 1023, 1024, 1025, 2048, 4094, 4095} {
			target := strings.Repeat("t", n)
			t.ok(unix.Symlink(target, t.p("link")))
			buf := make([]byte, 5000)
			got := must[int](t)(unix.Readlink(t.p("link"), buf))
			t.eqText("target", string(buf[:got]), target)
			eq(t, "size", t.stat("link").size, int64(n))
			t.ok(unix.Unlink(t.p("link")))
		}
	}},
	{"symlink/target-is-only-text", func(t *T) {
		target := "\x01\xff//../. \n*"
		t.symlink(target, "link")
		buf := make([]byte, 100)
		n := must[int](t)(unix.Readlink(t.p("link"), buf))
		t.eqText("target", string(buf[:n]), target)
	}},
	{"symlink/target-too-long", func(t *T) {
		t.fails(unix.Symlink(strings.Repeat("t", 4096), t.p("link")), unix.ENAMETOOLONG)
	}},
	{"symlink/target-empty", func(t *T) {
		t.fails(unix.Symlink("", t.p("link")), unix.ENOENT)
	}},
	{"symlink/existing", func(t *T) {
		t.file("file", "")
		t.mkdir("dir")
		t.symlink("none", "dangling")
		for _, name := range []string{"file", "dir", "dangling", "."} {
			t.fails(unix.Symlink("target", t.p(name)), unix.EEXIST)
		}
	}},
	{"symlink/with-slash", func(t *T) {
		t.fails(unix.Symlink("target", t.p("link/")), unix.ENOENT)
	}},
	{"symlink/without-permission", func(t *T) {
		t.as(alice, func() { t.fails(unix.Symlink("target", t.p("link")), unix.EACCES) })
	}},
	{"symlink/inherits-group-of-setgid-directory", func(t *T) {
		t.ok(unix.Chown(t.dir, 0, bob.gid))
		t.chmod("", 0o2755)
		t.symlink("target", "link")
		eq(t, "gid", t.stat("link").gid, uint32(bob.gid))
		t.octal("mode", t.stat("link").perm(), 0o777)
	}},
	{"readlink/short-buffer", func(t *T) {
		t.symlink("target", "link")
		buf := []byte("xxxxxxxx")
		eq(t, "bytes", must[int](t)(unix.Readlink(t.p("link"), buf[:3])), 3)
		t.eqText("buffer", string(buf), "tarxxxxx")
	}},
	{"readlink/no-buffer", func(t *T) {
		t.symlink("target", "link")
		path := cstring(t.p("link"))
		_, err := syscall(unix.SYS_READLINKAT, atFDCWD, address(path), address(make([]byte, 1)), 0)
		t.fails(err, unix.EINVAL)
		runtime.KeepAlive(path)
	}},
	{"readlink/no-link", func(t *T) {
		t.file("file", "")
		t.mkdir("dir")
		t.fails(errOf(unix.Readlink(t.p("file"), make([]byte, 10))), unix.EINVAL)
		t.fails(errOf(unix.Readlink(t.p("dir"), make([]byte, 10))), unix.EINVAL)
	}},
	{"readlink/needs-no-permission-on-link", func(t *T) {
		t.symlink("target", "link")
		t.as(alice, func() { t.ok(errOf(unix.Readlink(t.p("link"), make([]byte, 10)))) })
	}},
}

var linkChecks = []check{
	{"link/same-file", func(t *T) {
		t.file("a", "content")
		before := t.stat("a")
		tick()
		t.ok(unix.Link(t.p("a"), t.p("b")))
		a, b := t.stat("a"), t.stat("b")
		eq(t, "inode", b.ino, a.ino)
		eq(t, "links", a.nlink, 2)
		eq(t, "mtime", a.mtime, before.mtime)
		t.that(a.ctime > before.ctime, "ctime has not moved")
		t.file("b", "changed")
		t.eqText("content", t.content("a"), "changed")
		t.chmod("b", 0o600)
		t.octal("mode", t.stat("a").perm(), 0o600)
		t.ok(unix.Unlink(t.p("a")))
		eq(t, "links after unlink", t.stat("b").nlink, 1)
		t.eqText("content after unlink", t.content("b"), "changed")
	}},
	{"link/directory", func(t *T) {
		t.mkdir("dir")
		t.fails(unix.Link(t.p("dir"), t.p("link")), unix.EPERM)
	}},
	{"link/existing", func(t *T) {
		t.file("a", "")
		t.file("b", "")
		t.mkdir("dir")
		t.symlink("none", "dangling")
		for _, name := range []string{"a", "b", "dir", "dangling", "."} {
			t.fails(unix.Link(t.p("a"), t.p(name)), unix.EEXIST)
		}
	}},
	{"link/special-files", func(t *T) {
		t.fifo("fifo")
		t.ok(unix.Mknod(t.p("socket"), unix.S_IFSOCK|0o644, 0))
		t.ok(unix.Mknod(t.p("device"), unix.S_IFCHR|0o644, 259))
		for _, name := range []string{"fifo", "socket", "device"} {
			t.ok(unix.Link(t.p(name), t.p(name+"2")))
			eq(t, "links of "+name, t.stat(name).nlink, 2)
		}
	}},
	{"link/does-not-follow-links", func(t *T) {
		t.symlink("none", "link")
		t.ok(unix.Link(t.p("link"), t.p("second")))
		t.octal("type", t.stat("second").kind(), unix.S_IFLNK)
		eq(t, "links", t.stat("link").nlink, 2)
	}},
	{"link/follows-links-when-told", func(t *T) {
		t.file("file", "")
		t.symlink("file", "link")
		t.ok(unix.Linkat(unix.AT_FDCWD, t.p("link"), unix.AT_FDCWD, t.p("second"), unix.AT_SYMLINK_FOLLOW))
		eq(t, "inode", t.stat("second").ino, t.stat("file").ino)
	}},
	{"link/removed-file", func(t *T) {
		// linkat(2), ENOENT: the count of links is zero.
		fd := t.create("file", "")
		t.ok(unix.Unlink(t.p("file")))
		t.fails(unix.Linkat(fd, "", unix.AT_FDCWD, t.p("back"), unix.AT_EMPTY_PATH), unix.ENOENT)
	}},
	{"link/unknown-flags", func(t *T) {
		t.file("file", "")
		t.fails(unix.Linkat(unix.AT_FDCWD, t.p("file"), unix.AT_FDCWD, t.p("second"), unix.AT_REMOVEDIR), unix.EINVAL)
	}},
	{"link/without-permission", func(t *T) {
		t.file("file", "")
		t.own("file", alice)
		t.as(alice, func() { t.fails(unix.Link(t.p("file"), t.p("second")), unix.EACCES) })
	}},
	{"link/into-other-directory", func(t *T) {
		t.mkdir("dir")
		t.file("file", "content")
		t.ok(unix.Link(t.p("file"), t.p("dir/second")))
		t.ok(unix.Unlink(t.p("file")))
		t.eqText("content", t.content("dir/second"), "content")
	}},
	{"link/with-slash", func(t *T) {
		t.file("file", "")
		t.fails(unix.Link(t.p("file"), t.p("second/")), unix.ENOENT)
	}},
}
