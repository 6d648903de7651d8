package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// inotify makes an inotify descriptor that never blocks.
func (t *T) inotify() int {
	return t.closing(must[int](t)(unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)))
}

// event is one event that was read.
type event struct {
	wd           int32
	mask, cookie uint32
	name         string
}

func (t *T) events(fd int) []event {
	var list []event
	buf := make([]byte, 64<<10)
	n, err := unix.Read(fd, buf)
	if err == unix.EAGAIN {
		return nil
	}
	t.ok(err)
	for b := buf[:n]; len(b) > 0; {
		size := 16 + binary.NativeEndian.Uint32(b[12:])
		name, _, _ := bytes.Cut(b[16:size], []byte{0})
		list = append(list, event{
			wd: int32(binary.NativeEndian.Uint32(b)), mask: binary.NativeEndian.Uint32(b[4:]), cookie: binary.NativeEndian.Uint32(b[8:]), name: string(name),
		})
		b = b[size:]
	}
	return list
}

var eventNames = []struct {
	bit  uint32
	name string
}{
	{unix.IN_ACCESS, "ACCESS"}, {unix.IN_MODIFY, "MODIFY"}, {unix.IN_ATTRIB, "ATTRIB"}, {unix.IN_CLOSE_WRITE, "CLOSE_WRITE"},
	{unix.IN_CLOSE_NOWRITE, "CLOSE_NOWRITE"}, {unix.IN_OPEN, "OPEN"}, {unix.IN_MOVED_FROM, "MOVED_FROM"}, {unix.IN_MOVED_TO, "MOVED_TO"},
	{unix.IN_CREATE, "CREATE"}, {unix.IN_DELETE, "DELETE"}, {unix.IN_DELETE_SELF, "DELETE_SELF"}, {unix.IN_MOVE_SELF, "MOVE_SELF"},
	{unix.IN_UNMOUNT, "UNMOUNT"}, {unix.IN_Q_OVERFLOW, "Q_OVERFLOW"}, {unix.IN_IGNORED, "IGNORED"}, {unix.IN_ISDIR, "ISDIR"},
}

// text gives events as "CREATE file, OPEN file".
func text(list []event) string {
	var all []string
	for _, e := range list {
		var bits []string
		for _, n := range eventNames {
			if e.mask&n.bit != 0 {
				bits = append(bits, n.name)
			}
		}
		all = append(all, strings.TrimSpace(strings.Join(bits, "|")+" "+e.name))
	}
	return strings.Join(all, ", ")
}

// inotifyCases say what a watch on the directory, and one on its file "file" if it
// is there before, are told. They follow the tables and examples of inotify(7).
var inotifyCases = []struct {
	name string
	act  func(t *T) error
	dir  string
	file string
}{
	{"create", func(t *T) error { return opens(t.p("new"), unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY) },
		"CREATE new, OPEN new, CLOSE_WRITE new", ""},
	{"open-for-reading", func(t *T) error { return opens(t.p("file"), unix.O_RDONLY) },
		"OPEN file, CLOSE_NOWRITE file", "OPEN, CLOSE_NOWRITE"},
	{"read", func(t *T) error {
		fd := t.open("file", unix.O_RDONLY)
		return errOf(unix.Read(fd, make([]byte, 1)))
	}, "OPEN file, ACCESS file", "OPEN, ACCESS"},
	{"write", func(t *T) error {
		fd := t.open("file", unix.O_WRONLY)
		t.write(fd, "x")
		return unix.Close(fd)
	}, "OPEN file, MODIFY file, CLOSE_WRITE file", "OPEN, MODIFY, CLOSE_WRITE"},
	{"truncate", func(t *T) error { return unix.Truncate(t.p("file"), 3) }, "MODIFY file", "MODIFY"},
	{"chmod", func(t *T) error { return unix.Chmod(t.p("file"), 0o600) }, "ATTRIB file", "ATTRIB"},
	{"chown", func(t *T) error { return unix.Chown(t.p("file"), 1, 1) }, "ATTRIB file", "ATTRIB"},
	{"utimensat", func(t *T) error { return t.utimens("file", timeNow, timeNow, 0) }, "ATTRIB file", "ATTRIB"},
	{"setxattr", func(t *T) error { return t.setXattr("file", "user.a", "v") }, "ATTRIB file", "ATTRIB"},
	{"link", func(t *T) error { return unix.Link(t.p("file"), t.p("new")) }, "CREATE new", "ATTRIB"},
	{"unlink", func(t *T) error { return unix.Unlink(t.p("file")) }, "DELETE file", "ATTRIB, DELETE_SELF, IGNORED"},
	{"unlink-one-of-two", func(t *T) error { return unix.Unlink(t.p("second")) }, "DELETE second", "ATTRIB"},
	{"rename", func(t *T) error { return t.rename("file", "new") }, "MOVED_FROM file, MOVED_TO new", "MOVE_SELF"},
	{"rename-over", func(t *T) error { return t.rename("victim", "file") },
		"MOVED_FROM victim, MOVED_TO file", "ATTRIB, DELETE_SELF, IGNORED"},
	{"move-away", func(t *T) error { return t.rename("file", "dir/file") }, "MOVED_FROM file", "MOVE_SELF"},
	{"move-here", func(t *T) error { return t.rename("dir/inside", "inside") }, "MOVED_TO inside", ""},
	{"mkdir", func(t *T) error { return unix.Mkdir(t.p("new"), 0o755) }, "CREATE|ISDIR new", ""},
	{"rmdir", func(t *T) error { return unix.Rmdir(t.p("empty")) }, "DELETE|ISDIR empty", ""},
	{"list", func(t *T) error {
		fd := t.open("", unix.O_RDONLY)
		t.rest(fd, 4096)
		return unix.Close(fd)
	}, "OPEN|ISDIR, ACCESS|ISDIR, CLOSE_NOWRITE|ISDIR", ""},
	{"symlink", func(t *T) error { return unix.Symlink("none", t.p("new")) }, "CREATE new", ""},
	{"mkfifo", func(t *T) error { return unix.Mkfifo(t.p("new"), 0o644) }, "CREATE new", ""},
	{"fallocate", func(t *T) error {
		fd := t.open("file", unix.O_WRONLY)
		return unix.Fallocate(fd, 0, 0, 10000)
	}, "OPEN file, MODIFY file", "OPEN, MODIFY"},
	{"failed-calls", func(t *T) error {
		unix.Mkdir(t.p("file"), 0o755)
		unix.Unlink(t.p("none"))
		unix.Rmdir(t.p("dir"))
		return nil
	}, "", ""},
	{"in-subdirectory", func(t *T) error { return opens(t.p("dir/inside"), unix.O_RDONLY) }, "", ""},
}

func inotifyChecks() []check {
	var list []check
	for _, c := range inotifyCases {
		list = append(list, check{"inotify/" + c.name, func(t *T) {
			t.file("file", "content")
			t.file("victim", "")
			t.mkdir("dir")
			t.file("dir/inside", "")
			t.mkdir("empty")
			if c.name == "unlink-one-of-two" {
				t.ok(unix.Link(t.p("file"), t.p("second")))
			}
			dir, file := t.inotify(), t.inotify()
			must[int](t)(unix.InotifyAddWatch(dir, t.dir, unix.IN_ALL_EVENTS))
			must[int](t)(unix.InotifyAddWatch(file, t.p("file"), unix.IN_ALL_EVENTS))
			t.ok(c.act(t))
			eq(t, "events of the directory", merged(text(t.events(dir))), c.dir)
			eq(t, "events of the file", text(t.events(file)), c.file)
		}})
	}
	return append(list, moreInotifyChecks...)
}

// merged drops repetitions of an event, which depend on the size of buffers.
func merged(events string) string {
	var kept []string
	for e := range strings.SplitSeq(events, ", ") {
		if len(kept) == 0 || kept[len(kept)-1] != e {
			kept = append(kept, e)
		}
	}
	return strings.Join(kept, ", ")
}

var moreInotifyChecks = []check{
	{"inotify/rename-has-one-cookie", func(t *T) {
		t.file("file", "")
		fd := t.inotify()
		must[int](t)(unix.InotifyAddWatch(fd, t.dir, unix.IN_MOVE))
		t.ok(t.rename("file", "new"))
		list := t.events(fd)
		eq(t, "events", len(list), 2)
		t.that(list[0].cookie != 0 && list[0].cookie == list[1].cookie, "cookies are %d and %d", list[0].cookie, list[1].cookie)
	}},
	{"inotify/delete-self-when-last-descriptor-goes", func(t *T) {
		file := t.create("file", "")
		fd := t.inotify()
		must[int](t)(unix.InotifyAddWatch(fd, t.p("file"), unix.IN_DELETE_SELF|unix.IN_ATTRIB))
		t.ok(unix.Unlink(t.p("file")))
		eq(t, "events of unlink", text(t.events(fd)), "ATTRIB")
		t.ok(unix.Close(file))
		got := ""
		until(func() bool { got += text(t.events(fd)); return got != "" })
		eq(t, "events of close", got, "DELETE_SELF, IGNORED")
	}},
	{"inotify/remove-watch", func(t *T) {
		fd := t.inotify()
		wd := must[int](t)(unix.InotifyAddWatch(fd, t.dir, unix.IN_ALL_EVENTS))
		must[int](t)(unix.InotifyRmWatch(fd, uint32(wd)))
		t.file("file", "")
		eq(t, "events", text(t.events(fd)), "IGNORED")
		t.fails(errOf(unix.InotifyRmWatch(fd, uint32(wd))), unix.EINVAL)
	}},
	{"inotify/one-shot", func(t *T) {
		fd := t.inotify()
		must[int](t)(unix.InotifyAddWatch(fd, t.dir, unix.IN_CREATE|unix.IN_ONESHOT))
		t.file("a", "")
		t.file("b", "")
		eq(t, "events", text(t.events(fd)), "CREATE a, IGNORED")
	}},
	{"inotify/flags-of-watches", func(t *T) {
		t.file("file", "")
		t.symlink("file", "link")
		fd := t.inotify()
		t.fails(errOf(unix.InotifyAddWatch(fd, t.p("file"), unix.IN_ALL_EVENTS|unix.IN_ONLYDIR)), unix.ENOTDIR)
		t.fails(errOf(unix.InotifyAddWatch(fd, t.p("file"), 0)), unix.EINVAL)
		wd := must[int](t)(unix.InotifyAddWatch(fd, t.p("file"), unix.IN_MODIFY))
		eq(t, "watch of the same file", must[int](t)(unix.InotifyAddWatch(fd, t.p("link"), unix.IN_ATTRIB)), wd)
		t.that(must[int](t)(unix.InotifyAddWatch(fd, t.p("link"), unix.IN_ATTRIB|unix.IN_DONT_FOLLOW)) != wd, "IN_DONT_FOLLOW followed")
		t.fails(errOf(unix.InotifyAddWatch(fd, t.p("file"), unix.IN_ATTRIB|unix.IN_MASK_CREATE)), unix.EEXIST)
		must[int](t)(unix.InotifyAddWatch(fd, t.p("file"), unix.IN_OPEN|unix.IN_MASK_ADD))
		t.chmod("file", 0o600)
		t.ok(opens(t.p("file"), unix.O_RDONLY))
		eq(t, "events", text(t.events(fd)), "ATTRIB, OPEN")
	}},
	{"inotify/needs-read-permission", func(t *T) {
		t.file("file", "")
		t.chmod("file", 0o200)
		t.as(alice, func() { t.fails(errOf(unix.InotifyAddWatch(t.inotify(), t.p("file"), unix.IN_OPEN)), unix.EACCES) })
	}},
	{"inotify/all-names-of-a-file", func(t *T) {
		t.file("file", "")
		t.ok(unix.Link(t.p("file"), t.p("second")))
		fd := t.inotify()
		must[int](t)(unix.InotifyAddWatch(fd, t.p("file"), unix.IN_MODIFY))
		t.file("second", "changed")
		eq(t, "events", merged(text(t.events(fd))), "MODIFY")
	}},
	{"inotify/equal-events-are-one", func(t *T) {
		t.file("file", "")
		fd := t.inotify()
		must[int](t)(unix.InotifyAddWatch(fd, t.p("file"), unix.IN_ATTRIB))
		for n := range uint32(10) {
			t.chmod("file", 0o600+n)
		}
		eq(t, "events", fmt.Sprint(len(t.events(fd))), "1")
	}},
	{"inotify/excl-unlink", func(t *T) {
		file := t.create("file", "")
		fd := t.inotify()
		must[int](t)(unix.InotifyAddWatch(fd, t.dir, unix.IN_MODIFY|unix.IN_EXCL_UNLINK))
		t.ok(unix.Unlink(t.p("file")))
		t.write(file, "x")
		eq(t, "events", text(t.events(fd)), "")
	}},
}
