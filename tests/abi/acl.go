package main

import (
	"encoding/binary"

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
	}
}
