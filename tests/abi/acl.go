package main

import (
	"encoding/binary"
	"strings"

	"golang.org/x/sys/unix"
)

// The attributes that hold access control lists, see acl(5).
const (
	accessACL  = "system.posix_acl_access"
	defaultACL = "system.posix_acl_default"
)

// Tags of entries.
const (
	aclUserObj  = 0x01
	aclUser     = 0x02
	aclGroupObj = 0x04
	aclGroup    = 0x08
	aclMask     = 0x10
	aclOther    = 0x20
)

// ace is one entry of a list.
type ace struct {
	tag, perm uint16
	id        uint32
}

// encodeACL gives a list as the attribute holds it.
func encodeACL(entries ...ace) string {
	b := binary.LittleEndian.AppendUint32(nil, 2)
	for _, e := range entries {
		b = binary.LittleEndian.AppendUint16(b, e.tag)
		b = binary.LittleEndian.AppendUint16(b, e.perm)
		if e.tag != aclUser && e.tag != aclGroup {
			e.id = 0xffffffff
		}
		b = binary.LittleEndian.AppendUint32(b, e.id)
	}
	return string(b)
}

// forAlice gives one named user more than others.
func forAlice(perm, mask uint16) string {
	return encodeACL(ace{aclUserObj, 6, 0}, ace{aclUser, perm, uint32(alice.uid)}, ace{aclGroupObj, 4, 0}, ace{aclMask, mask, 0}, ace{aclOther, 0, 0})
}

func aclChecks() []check {
	return []check{
		{"acl/set-and-get", func(t *T) {
			t.file("file", "")
			t.ok(t.setXattr("file", accessACL, forAlice(6, 6)))
			t.eqText("list", t.xattr("file", accessACL), forAlice(6, 6))
			t.octal("mode", t.stat("file").perm(), 0o660) // the mask stands for the group
		}},
		{"acl/equal-to-the-mode", func(t *T) {
			t.file("file", "")
			t.ok(t.setXattr("file", accessACL, encodeACL(ace{aclUserObj, 6, 0}, ace{aclGroupObj, 4, 0}, ace{aclOther, 0, 0})))
			t.octal("mode", t.stat("file").perm(), 0o640)
			t.fails(errOf(unix.Getxattr(t.p("file"), accessACL, nil)), unix.ENODATA)
		}},
		{"acl/decides", func(t *T) {
			t.file("file", "")
			t.ok(t.setXattr("file", accessACL, forAlice(6, 6)))
			t.as(alice, func() { t.ok(opens(t.p("file"), unix.O_RDWR)) })
			t.as(bob, func() { t.fails(opens(t.p("file"), unix.O_RDONLY), unix.EACCES) })
			t.ok(t.setXattr("file", accessACL, forAlice(6, 4)))
			t.as(alice, func() {
				t.ok(opens(t.p("file"), unix.O_RDONLY))
				t.fails(opens(t.p("file"), unix.O_RDWR), unix.EACCES)
			})
		}},
		{"acl/chmod-changes-the-mask", func(t *T) {
			t.file("file", "")
			t.ok(t.setXattr("file", accessACL, forAlice(6, 6)))
			t.chmod("file", 0o640)
			t.eqText("list", t.xattr("file", accessACL), forAlice(6, 4))
		}},
		{"acl/default-is-inherited", func(t *T) {
			t.mkdir("dir")
			t.ok(t.setXattr("dir", defaultACL, forAlice(6, 6)))
			t.aside(func() {
				unix.Umask(0o077) // does not count where there is a default list
				t.ok(opens(t.p("dir/file"), unix.O_CREAT|unix.O_WRONLY))
				t.ok(unix.Mkdir(t.p("dir/sub"), 0o777))
			})
			t.eqText("list of the file", t.xattr("dir/file", accessACL), forAlice(6, 4))
			t.octal("mode of the file", t.stat("dir/file").perm(), 0o640)
			t.eqText("default list of the directory", t.xattr("dir/sub", defaultACL), forAlice(6, 6))
		}},
		{"acl/default-on-file", func(t *T) {
			t.file("file", "")
			t.fails(t.setXattr("file", defaultACL, forAlice(6, 6)), unix.EACCES)
		}},
		{"acl/nonsense", func(t *T) {
			t.file("file", "")
			t.fails(t.setXattr("file", accessACL, "nonsense"), unix.EINVAL, unix.EOPNOTSUPP)
			t.fails(t.setXattr("file", accessACL, encodeACL(ace{aclUserObj, 6, 0})), unix.EINVAL)
		}},
		{"acl/remove", func(t *T) {
			t.file("file", "")
			t.ok(t.setXattr("file", accessACL, forAlice(6, 6)))
			t.ok(unix.Removexattr(t.p("file"), accessACL))
			t.octal("mode", t.stat("file").perm(), 0o660)
			t.as(alice, func() { t.fails(opens(t.p("file"), unix.O_RDONLY), unix.EACCES) })
		}},
		{"acl/not-the-owner", func(t *T) {
			t.file("file", "")
			t.as(alice, func() { t.fails(t.setXattr("file", accessACL, forAlice(6, 6)), unix.EPERM) })
		}},
		{"acl/listed", func(t *T) {
			t.file("file", "")
			t.ok(t.setXattr("file", accessACL, forAlice(6, 6)))
			names := t.xattrs("file")
			t.that(len(names) == 1 && names[0] == accessACL, "the list is %q", names)
		}},
		{"acl/empty-mask-leaves-the-mode", func(t *T) {
			// Where the mask gives nothing, Linux does not look at the list.
			t.file("file", "")
			t.ok(t.setXattr("file", accessACL, encodeACL(ace{aclUserObj, 6, 0}, ace{aclUser, 6, uint32(alice.uid)}, ace{aclGroupObj, 4, 0}, ace{aclMask, 0, 0}, ace{aclOther, 4, 0})))
			t.as(alice, func() {
				t.ok(opens(t.p("file"), unix.O_RDONLY))
				t.fails(opens(t.p("file"), unix.O_WRONLY), unix.EACCES)
			})
		}},
		{"acl/named-user-gets-less-than-others", func(t *T) {
			t.file("file", "")
			t.ok(t.setXattr("file", accessACL, encodeACL(ace{aclUserObj, 6, 0}, ace{aclUser, 0, uint32(alice.uid)}, ace{aclGroupObj, 4, 0}, ace{aclMask, 7, 0}, ace{aclOther, 6, 0})))
			t.as(alice, func() { t.fails(opens(t.p("file"), unix.O_RDONLY), unix.EACCES) })
			t.as(bob, func() { t.ok(opens(t.p("file"), unix.O_RDWR)) })
		}},
		{"acl/groups-decide", func(t *T) {
			t.file("file", "")
			// One group reads, another writes: neither does both.
			list := encodeACL(ace{aclUserObj, 6, 0}, ace{aclGroupObj, 0, 0}, ace{aclGroup, 4, 3001}, ace{aclGroup, 2, 3002}, ace{aclMask, 7, 0}, ace{aclOther, 7, 0})
			t.ok(t.setXattr("file", accessACL, list))
			member := alice
			member.groups = []int{3001, 3002}
			t.as(member, func() {
				t.ok(opens(t.p("file"), unix.O_RDONLY))
				t.ok(opens(t.p("file"), unix.O_WRONLY))
				t.fails(opens(t.p("file"), unix.O_RDWR), unix.EACCES)
				t.fails(unix.Access(t.p("file"), unix.X_OK), unix.EACCES)
			})
			t.as(alice, func() { t.ok(opens(t.p("file"), unix.O_RDWR)) })
		}},
		{"acl/owner-has-the-mode", func(t *T) {
			t.file("file", "")
			t.own("file", alice)
			t.ok(t.setXattr("file", accessACL, encodeACL(ace{aclUserObj, 4, 0}, ace{aclUser, 7, uint32(alice.uid)}, ace{aclGroupObj, 7, 0}, ace{aclMask, 7, 0}, ace{aclOther, 7, 0})))
			t.as(alice, func() {
				t.ok(opens(t.p("file"), unix.O_RDONLY))
				t.fails(opens(t.p("file"), unix.O_WRONLY), unix.EACCES)
			})
		}},
		{"acl/times-of-who-may-write", func(t *T) {
			t.file("file", "")
			t.ok(t.setXattr("file", accessACL, forAlice(6, 6)))
			t.as(alice, func() { t.ok(unix.UtimesNanoAt(unix.AT_FDCWD, t.p("file"), nil, 0)) })
			t.ok(t.setXattr("file", accessACL, forAlice(4, 6)))
			t.as(alice, func() { t.fails(unix.UtimesNanoAt(unix.AT_FDCWD, t.p("file"), nil, 0), unix.EACCES) })
		}},
		{"acl/directory-is-searched", func(t *T) {
			t.mkdir("dir")
			t.file("dir/file", "")
			t.ok(t.setXattr("dir", accessACL, encodeACL(ace{aclUserObj, 7, 0}, ace{aclUser, 1, uint32(alice.uid)}, ace{aclGroupObj, 0, 0}, ace{aclMask, 7, 0}, ace{aclOther, 0, 0})))
			t.as(alice, func() {
				t.ok(opens(t.p("dir/file"), unix.O_RDONLY))
				t.fails(opens(t.p("dir"), unix.O_RDONLY), unix.EACCES)
				t.fails(unix.Unlink(t.p("dir/file")), unix.EACCES)
			})
			t.as(bob, func() { t.fails(opens(t.p("dir/file"), unix.O_RDONLY), unix.EACCES) })
		}},
		{"acl/default-without-users", func(t *T) {
			// Without a mask the list is the mode of new files, cut to what is asked for.
			t.mkdir("dir")
			t.ok(t.setXattr("dir", defaultACL, encodeACL(ace{aclUserObj, 7, 0}, ace{aclGroupObj, 6, 0}, ace{aclOther, 2, 0})))
			t.aside(func() {
				unix.Umask(0o077)
				t.ok(unix.Mknod(t.p("dir/fifo"), unix.S_IFIFO|0o666, 0))
				t.ok(unix.Mkdir(t.p("dir/sub"), 0o777))
			})
			t.octal("mode of the fifo", t.stat("dir/fifo").perm(), 0o662)
			t.octal("mode of the directory", t.stat("dir/sub").perm(), 0o762)
			t.that(len(t.xattrs("dir/fifo")) == 0, "the fifo has %q", t.xattrs("dir/fifo"))
			t.eqText("list of the directory", strings.Join(t.xattrs("dir/sub"), " "), defaultACL)
		}},
		{"acl/default-and-tmpfile", func(t *T) {
			t.mkdir("dir")
			t.ok(t.setXattr("dir", defaultACL, forAlice(6, 6)))
			fd := t.closing(must[int](t)(unix.Open(t.p("dir"), unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o644)))
			buf := make([]byte, 200)
			n := must[int](t)(unix.Fgetxattr(fd, accessACL, buf))
			t.eqText("list", string(buf[:n]), forAlice(6, 4))
		}},
		{"acl/default-does-not-change-the-directory", func(t *T) {
			t.mkdir("dir")
			t.ok(t.setXattr("dir", defaultACL, forAlice(7, 7)))
			t.octal("mode", t.stat("dir").perm(), 0o755)
			t.fails(errOf(unix.Getxattr(t.p("dir"), accessACL, nil)), unix.ENODATA)
			t.ok(unix.Removexattr(t.p("dir"), defaultACL))
			t.fails(errOf(unix.Getxattr(t.p("dir"), defaultACL, nil)), unix.ENODATA)
			t.mkdir("dir/sub")
			t.that(len(t.xattrs("dir/sub")) == 0, "the new directory has %q", t.xattrs("dir/sub"))
		}},
		{"acl/no-entries-removes", func(t *T) {
			t.file("file", "")
			t.ok(t.setXattr("file", accessACL, forAlice(6, 6)))
			t.ok(t.setXattr("file", accessACL, encodeACL()))
			t.fails(errOf(unix.Getxattr(t.p("file"), accessACL, nil)), unix.ENODATA)
			t.ok(unix.Removexattr(t.p("file"), accessACL)) // no error if there is none
		}},
		{"acl/invalid-lists", func(t *T) {
			t.file("file", "")
			for _, list := range []string{
				"x", encodeACL()[:3],
				forAlice(6, 6)[:43],
				encodeACL(ace{aclUserObj, 6, 0}, ace{aclGroupObj, 4, 0}),
				encodeACL(ace{aclUserObj, 6, 0}, ace{aclUser, 6, 5}, ace{aclGroupObj, 4, 0}, ace{aclOther, 0, 0}),
				encodeACL(ace{aclGroupObj, 4, 0}, ace{aclUserObj, 6, 0}, ace{aclOther, 0, 0}),
				encodeACL(ace{aclUserObj, 8, 0}, ace{aclGroupObj, 4, 0}, ace{aclOther, 0, 0}),
				encodeACL(ace{aclUserObj, 6, 0}, ace{aclGroupObj, 4, 0}, ace{0x40, 0, 0}, ace{aclOther, 0, 0}),
				encodeACL(ace{aclUserObj, 6, 0}, ace{aclUser, 6, 0xffffffff}, ace{aclGroupObj, 4, 0}, ace{aclMask, 7, 0}, ace{aclOther, 0, 0}),
			} {
				t.fails(t.setXattr("file", accessACL, list), unix.EINVAL)
			}
			t.fails(t.setXattr("file", accessACL, "\x01\x00\x00\x00"), unix.EOPNOTSUPP)
			t.octal("mode", t.stat("file").perm(), 0o644)
		}},
		{"acl/links-have-none", func(t *T) {
			t.symlink("nothing", "link")
			t.fails(t.setXattr("link", accessACL, forAlice(6, 6)), unix.EOPNOTSUPP)
			t.fails(errOf(unix.Lgetxattr(t.p("link"), accessACL, nil)), unix.EOPNOTSUPP)
		}},
		{"acl/small-buffer", func(t *T) {
			t.file("file", "")
			t.ok(t.setXattr("file", accessACL, forAlice(6, 6)))
			t.fails(errOf(unix.Getxattr(t.p("file"), accessACL, make([]byte, 10))), unix.ERANGE)
			eq(t, "size", must[int](t)(unix.Getxattr(t.p("file"), accessACL, nil)), len(forAlice(6, 6)))
		}},
		{"acl/flags-do-not-count", func(t *T) {
			t.file("file", "")
			t.ok(unix.Setxattr(t.p("file"), accessACL, []byte(forAlice(6, 6)), unix.XATTR_REPLACE))
			t.ok(unix.Setxattr(t.p("file"), accessACL, []byte(forAlice(4, 6)), unix.XATTR_CREATE))
			t.eqText("list", t.xattr("file", accessACL), forAlice(4, 6))
		}},
		{"acl/clears-set-group-id", func(t *T) {
			t.file("file", "")
			t.ok(unix.Lchown(t.p("file"), alice.uid, bob.gid))
			t.chmod("file", 0o2755)
			t.as(alice, func() { t.ok(t.setXattr("file", accessACL, forAlice(7, 7))) })
			t.octal("mode", t.stat("file").perm(), 0o670)
		}},
		{"acl/survives-chmod-and-chown", func(t *T) {
			t.file("file", "")
			t.ok(t.setXattr("file", accessACL, forAlice(6, 6)))
			t.own("file", bob)
			t.chmod("file", 0o751)
			want := encodeACL(ace{aclUserObj, 7, 0}, ace{aclUser, 6, uint32(alice.uid)}, ace{aclGroupObj, 4, 0}, ace{aclMask, 5, 0}, ace{aclOther, 1, 0})
			t.eqText("list", t.xattr("file", accessACL), want)
			t.octal("mode", t.stat("file").perm(), 0o751)
		}},
		{"acl/changes-ctime", func(t *T) {
			t.file("file", "")
			before := t.stat("file")
			tick()
			t.ok(t.setXattr("file", accessACL, forAlice(6, 6)))
			t.that(t.stat("file").ctime > before.ctime, "ctime has not moved")
			eq(t, "mtime", t.stat("file").mtime, before.mtime)
		}},
	}
}
