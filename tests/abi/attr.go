package main

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

var chmodChecks = []check{
	{"chmod/all-bits", func(t *T) {
		t.file("file", "")
		t.mkdir("dir")
		for _, mode := range []uint32{0, 0o7777, 0o1000, 0o2000, 0o4000, 0o644} {
			t.chmod("file", mode)
			t.octal("mode", t.stat("file").mode, unix.S_IFREG|mode)
			t.chmod("dir", mode)
			t.octal("mode", t.stat("dir").mode, unix.S_IFDIR|mode)
		}
	}},
	{"chmod/type-bits-are-ignored", func(t *T) {
		t.file("file", "")
		t.chmod("file", unix.S_IFDIR|0o600)
		t.octal("mode", t.stat("file").mode, unix.S_IFREG|0o600)
	}},
	{"chmod/follows-links", func(t *T) {
		t.file("file", "")
		t.symlink("file", "link")
		t.chmod("link", 0o600)
		t.octal("mode of the target", t.stat("file").perm(), 0o600)
		t.octal("mode of the link", t.stat("link").perm(), 0o777)
	}},
	{"chmod/by-descriptor", func(t *T) {
		fd := t.create("file", "")
		t.ok(unix.Fchmod(fd, 0o4711))
		t.octal("mode", t.stat("file").perm(), 0o4711)
		t.ok(unix.Fchmodat(t.open("", unix.O_RDONLY), "file", 0o600, 0))
		t.octal("mode", t.stat("file").perm(), 0o600)
	}},
	{"chmod/not-the-owner", func(t *T) {
		t.file("file", "")
		t.chmod("file", 0o666)
		t.as(alice, func() { t.fails(unix.Chmod(t.p("file"), 0o600), unix.EPERM) })
	}},
	{"chmod/owner-without-any-permission", func(t *T) {
		t.file("file", "")
		t.chmod("file", 0)
		t.own("file", alice)
		t.as(alice, func() { t.ok(unix.Chmod(t.p("file"), 0o600)) })
	}},
	{"chmod/clears-setgid-of-foreign-group", func(t *T) {
		// chmod(2): if the caller is not in the file's group and has no CAP_FSETID, S_ISGID is turned off.
		t.file("file", "")
		t.ok(unix.Chown(t.p("file"), alice.uid, bob.gid))
		t.as(alice, func() { t.ok(unix.Chmod(t.p("file"), 0o2755)) })
		t.octal("mode", t.stat("file").perm(), 0o755)
		t.as(alice.in(bob.gid), func() { t.ok(unix.Chmod(t.p("file"), 0o2755)) })
		t.octal("mode", t.stat("file").perm(), 0o2755)
	}},
	{"chmod/link-itself", func(t *T) {
		t.symlink("none", "link")
		path := cstring(t.p("link"))
		const fchmodat2 = 452
		_, err := syscall(fchmodat2, atFDCWD, address(path), 0o600, unix.AT_SYMLINK_NOFOLLOW)
		runtime.KeepAlive(path)
		t.fails(err, unix.EOPNOTSUPP)
		t.file("file", "")
		path = cstring(t.p("file"))
		t.ok(errOf(syscall(fchmodat2, atFDCWD, address(path), 0o600, unix.AT_SYMLINK_NOFOLLOW)))
		t.fails(errOf(syscall(fchmodat2, atFDCWD, address(path), 0o644, 0x10000)), unix.EINVAL)
		runtime.KeepAlive(path)
		t.octal("mode", t.stat("file").perm(), 0o600)
	}},
}

var chownChecks = []check{
	{"chown/to-nobody-else", func(t *T) {
		t.file("file", "")
		t.chmod("file", 0o4755)
		t.as(alice, func() { t.fails(unix.Chown(t.p("file"), -1, -1), unix.EPERM) })
		t.octal("mode", t.stat("file").perm(), 0o4755)
		t.file("plain", "")
		t.as(alice, func() { t.ok(unix.Chown(t.p("plain"), -1, -1)) })
		t.ok(unix.Chown(t.p("file"), -1, -1))
		t.octal("mode", t.stat("file").perm(), 0o755)
	}},
	{"chown/root", func(t *T) {
		t.file("file", "")
		t.ok(unix.Chown(t.p("file"), 123456, 4294967294-1))
		eq(t, "uid", t.stat("file").uid, 123456)
		eq(t, "gid", t.stat("file").gid, 4294967293)
		t.ok(unix.Chown(t.p("file"), -1, 77))
		eq(t, "uid", t.stat("file").uid, 123456)
		eq(t, "gid", t.stat("file").gid, 77)
		t.ok(unix.Chown(t.p("file"), 88, -1))
		eq(t, "uid", t.stat("file").uid, 88)
		eq(t, "gid", t.stat("file").gid, 77)
	}},
	{"chown/follows-links-and-lchown-does-not", func(t *T) {
		t.file("file", "")
		t.symlink("file", "link")
		t.ok(unix.Chown(t.p("link"), 1, 2))
		eq(t, "uid of the target", t.stat("file").uid, 1)
		eq(t, "uid of the link", t.stat("link").uid, 0)
		t.ok(unix.Lchown(t.p("link"), 3, 4))
		eq(t, "uid of the target", t.stat("file").uid, 1)
		eq(t, "uid of the link", t.stat("link").uid, 3)
		eq(t, "gid of the link", t.stat("link").gid, 4)
	}},
	{"chown/by-descriptor", func(t *T) {
		fd := t.create("file", "")
		t.ok(unix.Fchown(fd, 5, 6))
		t.ok(unix.Fchownat(fd, "", 7, -1, unix.AT_EMPTY_PATH))
		eq(t, "uid", t.fstat(fd).uid, 7)
		eq(t, "gid", t.fstat(fd).gid, 6)
	}},
	{"chown/user-gives-file-away", func(t *T) {
		t.file("file", "")
		t.own("file", alice)
		t.as(alice, func() {
			t.fails(unix.Chown(t.p("file"), bob.uid, -1), unix.EPERM)
			t.fails(unix.Chown(t.p("file"), 0, -1), unix.EPERM)
			t.ok(unix.Chown(t.p("file"), alice.uid, alice.gid))
		})
	}},
	{"chown/user-changes-group", func(t *T) {
		t.file("file", "")
		t.own("file", alice)
		t.as(alice.in(3000), func() {
			t.ok(unix.Chown(t.p("file"), -1, 3000))
			t.fails(unix.Chown(t.p("file"), -1, bob.gid), unix.EPERM)
		})
		eq(t, "gid", t.stat("file").gid, 3000)
	}},
	{"chown/not-the-owner", func(t *T) {
		t.file("file", "")
		t.as(alice, func() { t.fails(unix.Chown(t.p("file"), -1, alice.gid), unix.EPERM) })
	}},
	{"chown/moves-ctime-only", func(t *T) {
		t.file("file", "")
		before := t.stat("file")
		tick()
		t.ok(unix.Chown(t.p("file"), 1, 1))
		eq(t, "mtime", t.stat("file").mtime, before.mtime)
		t.that(t.stat("file").ctime > before.ctime, "ctime has not moved")
	}},
}

// privilegeCases say what becomes of the set-ID bits of an executable.
var privilegeCases = []struct {
	name   string
	by     *user // nil is root
	dir    bool
	mode   uint32
	change func(t *T, name string) error
	want   uint32
}{
	{"chown-by-owner", &alice, false, 0o6755, chownToOwnGroup, 0o755},
	{"chown-by-owner-without-group-execute", &alice, false, 0o6745, chownToOwnGroup, 0o2745},
	{"chown-by-root", nil, false, 0o6755, chownToBob, 0o755},
	{"chown-by-root-of-directory", nil, true, 0o6755, chownToBob, 0o6755},
	{"chown-by-root-keeps-sticky", nil, false, 0o7755, chownToBob, 0o1755},
	{"write-by-other", &alice, false, 0o6777, writeTo, 0o777},
	{"write-by-root", nil, false, 0o6777, writeTo, 0o6777},
	{"truncate-by-other", &alice, false, 0o6777, truncateTo, 0o777},
	{"truncate-by-root", nil, false, 0o6777, truncateTo, 0o6777},
	{"o-trunc-by-other", &alice, false, 0o6777, func(t *T, name string) error { return opens(t.p(name), unix.O_WRONLY|unix.O_TRUNC) }, 0o777},
	{"fallocate-by-other", &alice, false, 0o6777, func(t *T, name string) error {
		return unix.Fallocate(t.open(name, unix.O_WRONLY), 0, 0, 10000)
	}, 0o777},
}

func chownToOwnGroup(t *T, name string) error { return unix.Chown(t.p(name), -1, alice.gid) }
func chownToBob(t *T, name string) error      { return unix.Chown(t.p(name), bob.uid, bob.gid) }
func truncateTo(t *T, name string) error      { return unix.Truncate(t.p(name), 1) }
func writeTo(t *T, name string) error {
	return errOf(unix.Write(t.open(name, unix.O_WRONLY), []byte("x")))
}

func privilegeChecks() []check {
	var list []check
	for _, c := range privilegeCases {
		list = append(list, check{"set-id-bits/" + c.name, func(t *T) {
			if c.dir {
				t.mkdir("file")
			} else {
				t.file("file", "content")
			}
			t.own("file", user{uid: alice.uid, gid: alice.gid})
			t.chmod("file", c.mode)
			act := func() { t.ok(c.change(t, "file")) }
			if c.by != nil {
				t.as(*c.by, act)
			} else {
				act()
			}
			t.octal("mode", t.stat("file").perm(), c.want)
		}})
	}
	return append(list, fileCapChecks...)
}

// capability is a security.capability attribute: version 2, CAP_NET_RAW.
var capability = []byte{1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

var fileCapChecks = []check{
	{"file-capabilities/gone-after-write", func(t *T) { t.losesCapability(writeTo) }},
	{"file-capabilities/gone-after-truncate", func(t *T) { t.losesCapability(truncateTo) }},
	{"file-capabilities/gone-after-chown", func(t *T) { t.losesCapability(chownToBob) }},
	{"file-capabilities/stay-after-chmod", func(t *T) {
		t.file("file", "content")
		t.ok(unix.Setxattr(t.p("file"), "security.capability", capability, 0))
		t.chmod("file", 0o755)
		buf := make([]byte, 100)
		n := must[int](t)(unix.Getxattr(t.p("file"), "security.capability", buf))
		eq(t, "value", fmt.Sprint(buf[:n]), fmt.Sprint(capability))
	}},
}

// losesCapability wants a change of a file by root to take away its capabilities.
func (t *T) losesCapability(change func(t *T, name string) error) {
	t.file("file", "content")
	t.chmod("file", 0o755)
	t.ok(unix.Setxattr(t.p("file"), "security.capability", capability, 0))
	t.ok(change(t, "file"))
	t.fails(errOf(unix.Getxattr(t.p("file"), "security.capability", nil)), unix.ENODATA)
}
