package main

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

func (t *T) rename(from, to string) error { return unix.Rename(t.p(from), t.p(to)) }

var renameChecks = []check{
	{"rename/file", func(t *T) {
		t.file("a", "content")
		before := t.stat("a")
		t.ok(t.rename("a", "b"))
		t.absent("a")
		t.eqText("content", t.content("b"), "content")
		eq(t, "inode", t.stat("b").ino, before.ino)
		eq(t, "mtime", t.stat("b").mtime, before.mtime)
	}},
	{"rename/over-file", func(t *T) {
		t.file("a", "new")
		old := t.create("b", "old")
		t.ok(t.rename("a", "b"))
		t.absent("a")
		t.eqText("content", t.content("b"), "new")
		t.eqText("content of the replaced file, still open", t.all(old), "old")
		eq(t, "links of the replaced file", t.fstat(old).nlink, 0)
	}},
	{"rename/over-one-of-two-names", func(t *T) {
		t.file("a", "new")
		t.file("b", "old")
		t.ok(unix.Link(t.p("b"), t.p("c")))
		t.ok(t.rename("a", "b"))
		eq(t, "links of the other name", t.stat("c").nlink, 1)
		t.eqText("content of the other name", t.content("c"), "old")
	}},
	{"rename/two-names-of-one-file", func(t *T) {
		// rename(2): if both are hard links to the same file, nothing happens.
		t.file("a", "content")
		t.ok(unix.Link(t.p("a"), t.p("b")))
		t.ok(t.rename("a", "b"))
		eq(t, "links", t.stat("a").nlink, 2)
		eq(t, "inode of b", t.stat("b").ino, t.stat("a").ino)
		t.ok(t.rename("a", "a"))
		t.eqText("content", t.content("a"), "content")
	}},
	{"rename/over-dangling-link", func(t *T) {
		t.file("a", "content")
		t.symlink("none", "link")
		t.ok(t.rename("a", "link"))
		t.octal("type", t.stat("link").kind(), unix.S_IFREG)
		t.absent("none")
	}},
	{"rename/link-itself", func(t *T) {
		t.file("file", "content")
		t.symlink("file", "a")
		t.ok(t.rename("a", "b"))
		t.octal("type", t.stat("b").kind(), unix.S_IFLNK)
		t.eqText("content of the target", t.content("file"), "content")
	}},
	{"rename/special-files", func(t *T) {
		t.fifo("fifo")
		t.ok(unix.Mknod(t.p("socket"), unix.S_IFSOCK|0o644, 0))
		t.file("file", "")
		t.ok(t.rename("fifo", "socket"))
		t.octal("type", t.stat("socket").kind(), unix.S_IFIFO)
		t.ok(t.rename("file", "socket"))
		t.octal("type", t.stat("socket").kind(), unix.S_IFREG)
	}},
	{"rename/directory-over-empty-directory", func(t *T) {
		t.mkdir("a")
		t.file("a/file", "content")
		t.mkdir("b")
		links := t.stat("").nlink
		t.ok(t.rename("a", "b"))
		t.absent("a")
		t.eqText("content", t.content("b/file"), "content")
		eq(t, "links of the parent", t.stat("").nlink, links-1)
	}},
	{"rename/directory-over-full-directory", func(t *T) {
		t.mkdir("a")
		t.mkdir("b")
		t.file("b/file", "content")
		t.fails(t.rename("a", "b"), unix.ENOTEMPTY, unix.EEXIST)
		t.eqText("content", t.content("b/file"), "content")
	}},
	{"rename/file-over-directory", func(t *T) {
		t.file("file", "")
		t.mkdir("dir")
		t.symlink("none", "link")
		t.fails(t.rename("file", "dir"), unix.EISDIR)
		t.fails(t.rename("link", "dir"), unix.EISDIR)
	}},
	{"rename/directory-over-file", func(t *T) {
		t.file("file", "")
		t.mkdir("dir")
		t.mkdir("other")
		t.symlink("other", "link")
		t.fails(t.rename("dir", "file"), unix.ENOTDIR)
		t.fails(t.rename("dir", "link"), unix.ENOTDIR)
	}},
	{"rename/into-itself", func(t *T) {
		t.mkdir("dir")
		t.mkdir("dir/sub")
		t.fails(t.rename("dir", "dir/new"), unix.EINVAL)
		t.fails(t.rename("dir", "dir/sub/new"), unix.EINVAL)
		t.fails(t.rename("dir", "dir/sub"), unix.EINVAL)
	}},
	{"rename/over-ancestor", func(t *T) {
		t.mkdir("dir")
		t.mkdir("dir/sub")
		t.file("dir/sub/file", "")
		t.fails(t.rename("dir/sub", "dir"), unix.ENOTEMPTY, unix.EEXIST)
		t.fails(t.rename("dir/sub/file", "dir"), unix.ENOTEMPTY, unix.EEXIST, unix.EISDIR)
	}},
	{"rename/dots", func(t *T) {
		t.mkdir("dir")
		t.mkdir("dir/sub")
		for _, name := range []string{"dir/.", "dir/sub/.."} {
			t.fails(t.rename(name, "new"), unix.EBUSY, unix.EINVAL)
			t.fails(t.rename("dir/sub", name), unix.EBUSY, unix.EINVAL)
		}
	}},
	{"rename/with-slash", func(t *T) {
		t.file("file", "")
		t.mkdir("dir")
		t.fails(t.rename("file", "new/"), unix.ENOTDIR)
		t.ok(t.rename("dir/", "new/"))
		t.octal("type", t.stat("new").kind(), unix.S_IFDIR)
		t.symlink("new", "link")
		t.fails(t.rename("link/", "newer"), unix.ENOTDIR)
	}},
	{"rename/missing", func(t *T) {
		t.file("file", "content")
		t.fails(t.rename("none", "file"), unix.ENOENT)
		t.eqText("content", t.content("file"), "content")
	}},
	{"rename/directory-to-other-parent", func(t *T) {
		t.mkdir("a")
		t.mkdir("b")
		t.mkdir("a/dir")
		t.ok(t.rename("a/dir", "b/dir"))
		eq(t, "links of the old parent", t.stat("a").nlink, 2)
		eq(t, "links of the new parent", t.stat("b").nlink, 3)
		eq(t, "inode of ..", t.stat("b/dir/..").ino, t.stat("b").ino)
		var dotdot uint64
		for _, e := range t.entries("b/dir") {
			if e.name == ".." {
				dotdot = e.ino
			}
		}
		eq(t, "inode of .. as listed", dotdot, t.stat("b").ino)
	}},
	{"rename/directory-keeps-open-files", func(t *T) {
		t.mkdir("a")
		fd := t.create("a/file", "content")
		dir := t.open("a", unix.O_RDONLY)
		t.ok(t.rename("a", "b"))
		t.pwrite(fd, " grows", 7)
		t.eqText("content", t.content("b/file"), "content grows")
		again := t.closing(must[int](t)(unix.Openat(dir, "file", unix.O_RDONLY, 0)))
		t.eqText("content", t.all(again), "content grows")
	}},
	{"rename/times", func(t *T) {
		t.mkdir("a")
		t.mkdir("b")
		t.file("a/file", "")
		a, b, file := t.stat("a"), t.stat("b"), t.stat("a/file")
		tick()
		t.ok(t.rename("a/file", "b/file"))
		t.that(t.stat("a").mtime > a.mtime && t.stat("a").ctime > a.ctime, "times of the old parent have not moved")
		t.that(t.stat("b").mtime > b.mtime && t.stat("b").ctime > b.ctime, "times of the new parent have not moved")
		t.that(t.stat("b/file").ctime > file.ctime, "ctime of the file has not moved")
		eq(t, "mtime of the file", t.stat("b/file").mtime, file.mtime)
	}},
	{"rename/without-permission", func(t *T) {
		t.mkdir("mine")
		t.own("mine", alice)
		t.mkdir("theirs")
		t.file("mine/file", "")
		t.file("theirs/file", "")
		t.as(alice, func() {
			t.fails(t.rename("mine/file", "theirs/new"), unix.EACCES)
			t.fails(t.rename("mine/file", "theirs/file"), unix.EACCES)
			t.fails(t.rename("theirs/file", "mine/new"), unix.EACCES)
			t.ok(t.rename("mine/file", "mine/new"))
		})
	}},
	{"rename/directory-one-cannot-write-to-other-parent", func(t *T) {
		// rename(2), EACCES: oldpath is a directory without write permission (needed to update ..).
		t.chmod("", 0o777)
		t.mkdir("parent")
		t.chmod("parent", 0o777)
		t.mkdir("dir")
		t.as(alice, func() {
			t.fails(t.rename("dir", "parent/dir"), unix.EACCES)
			t.ok(t.rename("dir", "renamed"))
		})
	}},
	{"rename/replacement-is-atomic", func(t *T) {
		t.file("file", "0")
		stop := make(chan struct{})
		missing := make(chan error, 1)
		go func() {
			for {
				select {
				case <-stop:
					missing <- nil
					return
				default:
				}
				if err := opens(t.p("file"), unix.O_RDONLY); err != nil {
					missing <- err
					return
				}
			}
		}()
		for n := range 300 {
			t.file("new", fmt.Sprint(n))
			t.ok(t.rename("new", "file"))
		}
		close(stop)
		t.ok(<-missing)
	}},
	{"rename/crossing-renames-end", func(t *T) {
		// Two threads move directories into each other; neither may get lost nor a loop be made.
		t.mkdir("a")
		t.mkdir("b")
		done := make(chan struct{}, 2)
		cross := func(from, to, back string) {
			for range 200 {
				if t.rename(from, to) == nil {
					t.rename(to, back)
				}
			}
			done <- struct{}{}
		}
		go cross("a", "b/a", "a")
		go cross("b", "a/b", "b")
		for range 2 {
			select {
			case <-done:
			case <-time.After(30 * time.Second):
				t.failf("the renames have not ended")
			}
		}
		t.octal("type of a", t.stat("a").kind(), unix.S_IFDIR)
		t.octal("type of b", t.stat("b").kind(), unix.S_IFDIR)
	}},
}

func (t *T) rename2(from, to string, flags uint) error {
	return unix.Renameat2(unix.AT_FDCWD, t.p(from), unix.AT_FDCWD, t.p(to), flags)
}

// exchangeTypes are the files that rename2/exchange checks swap in pairs.
var exchangeTypes = []struct {
	name string
	mode uint32
	make func(t *T, name string)
}{
	{"file", unix.S_IFREG, func(t *T, name string) { t.file(name, name) }},
	{"directory", unix.S_IFDIR, func(t *T, name string) { t.mkdir(name); t.file(name+"/file", name) }},
	{"link", unix.S_IFLNK, func(t *T, name string) { t.symlink("none", name) }},
	{"fifo", unix.S_IFIFO, (*T).fifo},
}

func rename2Checks() []check {
	list := []check{
		{"rename2/noreplace", func(t *T) {
			t.file("a", "new")
			t.file("b", "old")
			t.mkdir("dir")
			t.symlink("none", "dangling")
			for _, name := range []string{"b", "dir", "dangling", "a"} {
				t.fails(t.rename2("a", name, unix.RENAME_NOREPLACE), unix.EEXIST)
			}
			t.eqText("content of b", t.content("b"), "old")
			t.ok(t.rename2("a", "c", unix.RENAME_NOREPLACE))
			t.eqText("content of c", t.content("c"), "new")
			t.absent("a")
		}},
		{"rename2/exchange-missing", func(t *T) {
			t.file("a", "content")
			t.fails(t.rename2("a", "none", unix.RENAME_EXCHANGE), unix.ENOENT)
			t.fails(t.rename2("none", "a", unix.RENAME_EXCHANGE), unix.ENOENT)
			t.eqText("content", t.content("a"), "content")
		}},
		{"rename2/exchange-with-ancestor", func(t *T) {
			t.mkdir("a")
			t.mkdir("a/b")
			t.fails(t.rename2("a", "a/b", unix.RENAME_EXCHANGE), unix.EINVAL)
			t.fails(t.rename2("a/b", "a", unix.RENAME_EXCHANGE), unix.EINVAL)
		}},
		{"rename2/exchange-between-directories-moves-link-counts", func(t *T) {
			t.mkdir("a")
			t.mkdir("b")
			t.mkdir("a/dir")
			t.file("b/file", "")
			t.ok(t.rename2("a/dir", "b/file", unix.RENAME_EXCHANGE))
			eq(t, "links of a", t.stat("a").nlink, 2)
			eq(t, "links of b", t.stat("b").nlink, 3)
			eq(t, "inode of b/file/..", t.stat("b/file/..").ino, t.stat("b").ino)
		}},
		{"rename2/exchange-moves-ctimes", func(t *T) {
			t.file("a", "")
			t.file("b", "")
			a, b := t.stat("a"), t.stat("b")
			tick()
			t.ok(t.rename2("a", "b", unix.RENAME_EXCHANGE))
			t.that(t.stat("b").ctime > a.ctime && t.stat("a").ctime > b.ctime, "ctimes have not moved")
		}},
		{"rename2/whiteout", func(t *T) {
			t.file("a", "content")
			t.ok(t.rename2("a", "b", unix.RENAME_WHITEOUT))
			t.eqText("content", t.content("b"), "content")
			st := t.stat("a")
			t.octal("type of what stays behind", st.kind(), unix.S_IFCHR)
			eq(t, "its device", st.rdev, 0)
		}},
		{"rename2/flags-that-exclude-each-other", func(t *T) {
			t.file("a", "")
			t.file("b", "")
			t.fails(t.rename2("a", "b", unix.RENAME_EXCHANGE|unix.RENAME_NOREPLACE), unix.EINVAL)
			t.fails(t.rename2("a", "b", unix.RENAME_EXCHANGE|unix.RENAME_WHITEOUT), unix.EINVAL)
			t.fails(t.rename2("a", "b", 1<<10), unix.EINVAL)
		}},
		{"rename2/relative-to-descriptors", func(t *T) {
			t.mkdir("a")
			t.mkdir("b")
			t.file("a/file", "content")
			t.ok(unix.Renameat(t.open("a", unix.O_PATH), "file", t.open("b", unix.O_RDONLY), "moved"))
			t.eqText("content", t.content("b/moved"), "content")
			t.fails(unix.Renameat(9999, "file", 9999, "moved"), unix.EBADF)
		}},
	}
	for i, a := range exchangeTypes {
		for _, b := range exchangeTypes[i:] {
			list = append(list, check{"rename2/exchange-" + a.name + "-and-" + b.name, func(t *T) {
				t.mkdir("dir")
				a.make(t, "a")
				b.make(t, "dir/b")
				inoA, inoB := t.stat("a").ino, t.stat("dir/b").ino
				t.ok(t.rename2("a", "dir/b", unix.RENAME_EXCHANGE))
				eq(t, "inode of dir/b", t.stat("dir/b").ino, inoA)
				eq(t, "inode of a", t.stat("a").ino, inoB)
				t.octal("type of a", t.stat("a").kind(), b.mode)
			}})
		}
	}
	return list
}
