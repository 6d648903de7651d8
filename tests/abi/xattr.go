package main

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// xattr reads an attribute.
func (t *T) xattr(name, attr string) string {
	buf := make([]byte, 64<<10)
	n, err := unix.Lgetxattr(t.p(name), attr, buf)
	t.ok(err)
	return string(buf[:n])
}

// xattrs lists the sorted names of attributes.
func (t *T) xattrs(name string) []string {
	buf := make([]byte, 64<<10)
	n, err := unix.Llistxattr(t.p(name), buf)
	t.ok(err)
	var names []string
	for s := range strings.SplitSeq(string(buf[:n]), "\x00") {
		if s != "" {
			names = append(names, s)
		}
	}
	slices.Sort(names)
	return names
}

func (t *T) setXattr(name, attr, value string) error {
	return unix.Lsetxattr(t.p(name), attr, []byte(value), 0)
}

// xattrHolders are what user attributes can be set on, or not.
var xattrHolders = []struct {
	name string
	make func(t *T, name string)
	may  bool
}{
	{"file", func(t *T, name string) { t.file(name, "") }, true},
	{"directory", (*T).mkdir, true},
	{"fifo", (*T).fifo, false},
	{"symlink", func(t *T, name string) { t.symlink("none", name) }, false},
	{"device", func(t *T, name string) { t.ok(unix.Mknod(t.p(name), unix.S_IFCHR|0o666, 259)) }, false},
}

func xattrChecks() []check {
	list := []check{
		{"xattr/set-get-list-remove", func(t *T) {
			t.file("file", "")
			for n, value := range []string{"", "v", strings.Repeat("w", 1000), "\x00\x01\xff"} {
				t.ok(t.setXattr("file", fmt.Sprintf("user.%d", n), value))
				t.eqText("value", t.xattr("file", fmt.Sprintf("user.%d", n)), value)
			}
			eq(t, "names", fmt.Sprint(t.xattrs("file")), "[user.0 user.1 user.2 user.3]")
			t.ok(t.setXattr("file", "user.1", "changed"))
			t.eqText("value", t.xattr("file", "user.1"), "changed")
			t.ok(unix.Removexattr(t.p("file"), "user.1"))
			t.fails(errOf(unix.Getxattr(t.p("file"), "user.1", nil)), unix.ENODATA)
			t.fails(unix.Removexattr(t.p("file"), "user.1"), unix.ENODATA)
			eq(t, "names", fmt.Sprint(t.xattrs("file")), "[user.0 user.2 user.3]")
		}},
		{"xattr/create-and-replace", func(t *T) {
			t.file("file", "")
			t.fails(unix.Setxattr(t.p("file"), "user.a", nil, unix.XATTR_REPLACE), unix.ENODATA)
			t.ok(unix.Setxattr(t.p("file"), "user.a", []byte("1"), unix.XATTR_CREATE))
			t.fails(unix.Setxattr(t.p("file"), "user.a", []byte("2"), unix.XATTR_CREATE), unix.EEXIST)
			t.ok(unix.Setxattr(t.p("file"), "user.a", []byte("3"), unix.XATTR_REPLACE))
			t.eqText("value", t.xattr("file", "user.a"), "3")
			t.fails(unix.Setxattr(t.p("file"), "user.a", nil, 0x100), unix.EINVAL)
		}},
		{"xattr/buffer-sizes", func(t *T) {
			t.file("file", "")
			t.ok(t.setXattr("file", "user.a", "12345"))
			eq(t, "size asked for", must[int](t)(unix.Getxattr(t.p("file"), "user.a", nil)), 5)
			t.fails(errOf(unix.Getxattr(t.p("file"), "user.a", make([]byte, 4))), unix.ERANGE)
			eq(t, "size", must[int](t)(unix.Getxattr(t.p("file"), "user.a", make([]byte, 5))), 5)
			eq(t, "size of the list", must[int](t)(unix.Listxattr(t.p("file"), nil)), 7)
			t.fails(errOf(unix.Listxattr(t.p("file"), make([]byte, 6))), unix.ERANGE)
		}},
		{"xattr/names", func(t *T) {
			t.file("file", "")
			long := "user." + strings.Repeat("n", 250)
			t.ok(t.setXattr("file", long, "v"))
			t.eqText("value", t.xattr("file", long), "v")
			t.fails(t.setXattr("file", long+"n", "v"), unix.ERANGE)
			t.fails(t.setXattr("file", "", "v"), unix.ERANGE)
			t.fails(t.setXattr("file", "user.", "v"), unix.EINVAL)
			t.fails(t.setXattr("file", "nonsense.a", "v"), unix.EOPNOTSUPP)
			t.fails(t.setXattr("file", "user", "v"), unix.EOPNOTSUPP)
			t.fails(t.setXattr("file", "system.nonsense", "v"), unix.EOPNOTSUPP)
			t.fails(errOf(unix.Getxattr(t.p("file"), "nonsense.a", nil)), unix.EOPNOTSUPP)
		}},
		{"xattr/value-too-large", func(t *T) {
			t.file("file", "")
			t.fails(t.setXattr("file", "user.a", strings.Repeat("v", 64<<10+1)), unix.E2BIG)
		}},
		{"xattr/many", func(t *T) {
			t.file("file", "")
			var want []string
			for n := range 50 {
				name := fmt.Sprintf("user.name-%02d", n)
				t.ok(t.setXattr("file", name, name))
				want = append(want, name)
			}
			t.that(slices.Equal(t.xattrs("file"), want), "the list is %q", t.xattrs("file"))
			for _, name := range want {
				t.eqText("value", t.xattr("file", name), name)
			}
		}},
		{"xattr/by-descriptor", func(t *T) {
			fd := t.create("file", "")
			t.ok(unix.Fsetxattr(fd, "user.a", []byte("v"), 0))
			eq(t, "size", must[int](t)(unix.Fgetxattr(fd, "user.a", nil)), 1)
			eq(t, "size of the list", must[int](t)(unix.Flistxattr(fd, nil)), 7)
			t.ok(unix.Fremovexattr(fd, "user.a"))
			t.fails(errOf(unix.Fgetxattr(fd, "user.a", nil)), unix.ENODATA)
			read := t.open("file", unix.O_RDONLY)
			t.ok(unix.Fsetxattr(read, "user.a", []byte("v"), 0)) // the file's permissions count, not the descriptor's
		}},
		{"xattr/needs-permission", func(t *T) {
			t.file("file", "")
			t.ok(t.setXattr("file", "user.a", "v"))
			t.chmod("file", 0o644)
			t.as(alice, func() {
				t.fails(t.setXattr("file", "user.a", "w"), unix.EACCES)
				t.fails(unix.Removexattr(t.p("file"), "user.a"), unix.EACCES)
				t.eqText("value", t.xattr("file", "user.a"), "v")
			})
			t.chmod("file", 0o600)
			t.as(alice, func() {
				t.fails(errOf(unix.Getxattr(t.p("file"), "user.a", nil)), unix.EACCES)
				eq(t, "names", fmt.Sprint(t.xattrs("file")), "[user.a]")
			})
		}},
		{"xattr/sticky-directory-is-for-its-owner", func(t *T) {
			t.mkdir("dir")
			t.chmod("dir", 0o1777)
			t.as(alice, func() { t.fails(t.setXattr("dir", "user.a", "v"), unix.EPERM) })
			t.ok(t.setXattr("dir", "user.a", "v"))
		}},
		{"xattr/trusted-is-for-root", func(t *T) {
			t.file("file", "")
			t.chmod("file", 0o666)
			t.ok(t.setXattr("file", "trusted.a", "v"))
			t.ok(t.setXattr("file", "user.a", "v"))
			t.eqText("value", t.xattr("file", "trusted.a"), "v")
			eq(t, "names", fmt.Sprint(t.xattrs("file")), "[trusted.a user.a]")
			t.as(alice, func() {
				t.fails(t.setXattr("file", "trusted.a", "w"), unix.EPERM)
				t.fails(errOf(unix.Getxattr(t.p("file"), "trusted.a", nil)), unix.ENODATA, unix.EPERM)
				eq(t, "names for users", fmt.Sprint(t.xattrs("file")), "[user.a]")
			})
		}},
		{"xattr/trusted-on-links", func(t *T) {
			t.file("file", "")
			t.symlink("file", "link")
			t.ok(t.setXattr("link", "trusted.a", "of the link"))
			t.fails(errOf(unix.Lgetxattr(t.p("file"), "trusted.a", nil)), unix.ENODATA)
			t.fails(errOf(unix.Getxattr(t.p("link"), "trusted.a", nil)), unix.ENODATA)
			t.eqText("value", t.xattr("link", "trusted.a"), "of the link")
		}},
		{"xattr/security", func(t *T) {
			t.file("file", "")
			t.ok(t.setXattr("file", "security.capability", string(capability)))
			t.that(bytes.Equal([]byte(t.xattr("file", "security.capability")), capability), "the value differs")
			eq(t, "names", fmt.Sprint(t.xattrs("file")), "[security.capability]")
			t.own("file", alice)
			t.as(alice, func() { t.fails(t.setXattr("file", "security.capability", string(capability)), unix.EPERM) })
			t.fails(t.setXattr("file", "security.capability", "nonsense"), unix.EINVAL)
		}},
		{"xattr/go-with-the-file", func(t *T) {
			t.file("file", "")
			t.ok(t.setXattr("file", "user.a", "v"))
			t.ok(t.rename("file", "moved"))
			t.eqText("value", t.xattr("moved", "user.a"), "v")
			t.ok(unix.Link(t.p("moved"), t.p("second")))
			t.ok(t.setXattr("second", "user.b", "w"))
			eq(t, "names", fmt.Sprint(t.xattrs("moved")), "[user.a user.b]")
			t.ok(unix.Unlink(t.p("moved")))
			t.ok(unix.Unlink(t.p("second")))
			t.file("file", "")
			eq(t, "attributes of a new file", len(t.xattrs("file")), 0)
		}},
	}
	for _, h := range xattrHolders {
		list = append(list, check{"xattr/user-on-" + h.name, func(t *T) {
			h.make(t, "it")
			if h.may {
				t.ok(t.setXattr("it", "user.a", "v"))
				t.eqText("value", t.xattr("it", "user.a"), "v")
				return
			}
			// xattr(7): only regular files and directories have user attributes.
			t.fails(t.setXattr("it", "user.a", "v"), unix.EPERM)
			t.fails(errOf(unix.Lgetxattr(t.p("it"), "user.a", nil)), unix.ENODATA, unix.EPERM)
			eq(t, "attributes", len(t.xattrs("it")), 0)
		}})
	}
	return list
}
