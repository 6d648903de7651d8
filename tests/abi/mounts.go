package main

import (
	"strings"

	"golang.org/x/sys/unix"
)

// readOnlyChecks try on a read-only mount what would change something.
func readOnlyChecks() []check {
	var list []check
	for _, c := range []struct {
		name string
		want unix.Errno
		call func(t *T, dir string) error
	}{
		{"open-for-writing", unix.EROFS, func(t *T, dir string) error { return opens(dir+"/file", unix.O_WRONLY) }},
		{"open-truncating", unix.EROFS, func(t *T, dir string) error { return opens(dir+"/file", unix.O_RDONLY|unix.O_TRUNC) }},
		{"open-creating", unix.EROFS, func(t *T, dir string) error { return opens(dir+"/new", unix.O_CREAT|unix.O_WRONLY) }},
		{"open-creating-existing", 0, func(t *T, dir string) error { return opens(dir+"/file", unix.O_CREAT|unix.O_RDONLY) }},
		{"open-exclusively-existing", unix.EEXIST, func(t *T, dir string) error { return opens(dir+"/file", unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY) }},
		{"open-tmpfile", unix.EROFS, func(t *T, dir string) error { return opens(dir, unix.O_TMPFILE|unix.O_WRONLY) }},
		{"open-fifo", 0, func(t *T, dir string) error { return opens(dir+"/fifo", unix.O_RDWR) }},
		{"mkdir", unix.EROFS, func(t *T, dir string) error { return unix.Mkdir(dir+"/new", 0o755) }},
		{"mkdir-existing", unix.EEXIST, func(t *T, dir string) error { return unix.Mkdir(dir+"/dir", 0o755) }},
		{"mknod", unix.EROFS, func(t *T, dir string) error { return unix.Mkfifo(dir+"/new", 0o644) }},
		{"symlink", unix.EROFS, func(t *T, dir string) error { return unix.Symlink("target", dir+"/new") }},
		{"link", unix.EROFS, func(t *T, dir string) error { return unix.Link(dir+"/file", dir+"/new") }},
		{"unlink", unix.EROFS, func(t *T, dir string) error { return unix.Unlink(dir + "/file") }},
		{"rmdir", unix.EROFS, func(t *T, dir string) error { return unix.Rmdir(dir + "/dir") }},
		{"unlink-missing", unix.EROFS, func(t *T, dir string) error { return unix.Unlink(dir + "/none") }},
		{"rmdir-missing", unix.EROFS, func(t *T, dir string) error { return unix.Rmdir(dir + "/none") }},
		{"rmdir-in-missing", unix.ENOENT, func(t *T, dir string) error { return unix.Rmdir(dir + "/none/none") }},
		{"truncate-directory", unix.EISDIR, func(t *T, dir string) error { return unix.Truncate(dir+"/dir", 0) }},
		{"truncate-fifo", unix.EINVAL, func(t *T, dir string) error { return unix.Truncate(dir+"/fifo", 0) }},
		{"rename", unix.EROFS, func(t *T, dir string) error { return unix.Rename(dir+"/file", dir+"/new") }},
		{"truncate", unix.EROFS, func(t *T, dir string) error { return unix.Truncate(dir+"/file", 0) }},
		{"chmod", unix.EROFS, func(t *T, dir string) error { return unix.Chmod(dir+"/file", 0o600) }},
		{"chown", unix.EROFS, func(t *T, dir string) error { return unix.Chown(dir+"/file", 1, 1) }},
		{"fchmod", unix.EROFS, func(t *T, dir string) error {
			fd := t.closing(must[int](t)(unix.Open(dir+"/file", unix.O_RDONLY|unix.O_CLOEXEC, 0)))
			return unix.Fchmod(fd, 0o600)
		}},
		{"utimensat", unix.EROFS, func(t *T, dir string) error {
			return unix.UtimesNanoAt(unix.AT_FDCWD, dir+"/file", make([]unix.Timespec, 2), 0)
		}},
		{"setxattr", unix.EROFS, func(t *T, dir string) error { return unix.Setxattr(dir+"/file", "user.a", nil, 0) }},
		{"removexattr", unix.EROFS, func(t *T, dir string) error { return unix.Removexattr(dir+"/file", "user.a") }},
		{"access", unix.EROFS, func(t *T, dir string) error { return unix.Access(dir+"/file", unix.W_OK) }},
		{"access-device", 0, func(t *T, dir string) error { return unix.Access(dir+"/null", unix.W_OK) }},
		{"fsync", 0, func(t *T, dir string) error {
			return unix.Fsync(t.closing(must[int](t)(unix.Open(dir+"/file", unix.O_RDONLY|unix.O_CLOEXEC, 0))))
		}},
		{"flock", 0, func(t *T, dir string) error {
			return unix.Flock(t.closing(must[int](t)(unix.Open(dir+"/file", unix.O_RDONLY|unix.O_CLOEXEC, 0))), unix.LOCK_EX)
		}},
	} {
		list = append(list, check{"read-only/" + c.name, func(t *T) {
			t.setUpReadOnly()
			err := c.call(t, t.readOnly())
			if c.want == 0 {
				t.ok(err)
			} else {
				t.fails(err, c.want)
			}
		}})
	}
	return append(list,
		check{"read-only/shows-what-is-written-elsewhere", func(t *T) {
			t.setUpReadOnly()
			fd := t.closing(must[int](t)(unix.Open(t.readOnly()+"/file", unix.O_RDONLY|unix.O_CLOEXEC, 0)))
			t.eqText("content", t.all(fd), "content")
			t.file("file", "changed")
			t.eqText("content", t.all(fd), "changed")
		}},
		check{"read-only/atime-stays", func(t *T) {
			t.setUpReadOnly()
			t.ok(t.utimens("file", unix.Timespec{Sec: 1}, unix.Timespec{Sec: 2}, 0))
			fd := t.closing(must[int](t)(unix.Open(t.readOnly()+"/file", unix.O_RDONLY|unix.O_CLOEXEC, 0)))
			t.eqText("content", t.all(fd), "content")
			eq(t, "atime", t.stat("file").atime, 1e9)
		}},
		check{"read-only/statfs-flag", func(t *T) {
			var st unix.Statfs_t
			t.ok(unix.Statfs(t.readOnly(), &st))
			const readOnly = 1
			t.that(st.Flags&readOnly != 0, "f_flags %#x lack ST_RDONLY", st.Flags)
		}},
		check{"read-only/is-another-mount", func(t *T) {
			t.setUpReadOnly()
			t.fails(unix.Link(t.p("file"), t.readOnly()+"/new"), unix.EROFS, unix.EXDEV)
			t.fails(unix.Link(t.readOnly()+"/file", t.p("new")), unix.EXDEV)
			t.fails(unix.Rename(t.readOnly()+"/file", t.p("new")), unix.EROFS, unix.EXDEV)
		}},
	)
}

func (t *T) setUpReadOnly() {
	t.file("file", "content")
	t.mkdir("dir")
	t.fifo("fifo")
	t.ok(unix.Mknod(t.p("null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
}

// readOnly is the check's directory on the read-only mount.
func (t *T) readOnly() string { return t.at.readOnly + strings.TrimPrefix(t.dir, t.at.dir) }

// otherChecks cross the border to another file system.
func otherChecks() []check {
	crossing := func(name string, call func(from, to string) error) check {
		return check{"other-file-system/" + name, func(t *T) {
			t.file("file", "content")
			outside := t.at.other + "/" + strings.ReplaceAll(t.dir, "/", ".")
			t.fails(call(t.p("file"), outside), unix.EXDEV)
			fd := must[int](t)(unix.Open(outside, unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o644))
			t.cleanup(func() { unix.Close(fd); unix.Unlink(outside) })
			t.fails(call(outside, t.p("new")), unix.EXDEV)
			t.eqText("content", t.content("file"), "content")
		}}
	}
	return []check{
		crossing("rename", unix.Rename),
		crossing("link", unix.Link),
		{"other-file-system/dots-lead-out", func(t *T) {
			var root, parent unix.Stat_t
			t.ok(unix.Stat(t.at.dir+"/..", &parent))
			t.ok(unix.Stat(t.at.dir, &root))
			t.that(parent.Dev != root.Dev, ".. of the root of the mount is on the same device")
		}},
		{"other-file-system/sendfile", func(t *T) {
			from := t.create("file", blocksOf(4))
			outside := t.at.other + "/" + strings.ReplaceAll(t.dir, "/", ".")
			to := t.closing(must[int](t)(unix.Open(outside, unix.O_CREAT|unix.O_RDWR|unix.O_CLOEXEC, 0o644)))
			t.cleanup(func() { unix.Unlink(outside) })
			eq(t, "bytes", must[int](t)(unix.Sendfile(to, from, nil, 4*4096)), 4*4096)
			t.eqText("content", t.all(to), blocksOf(4))
		}},
	}
}
