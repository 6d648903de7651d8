package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"
)

var miscChecks = []check{
	{"poll/files-are-always-ready", func(t *T) {
		fds := []unix.PollFd{
			{Fd: int32(t.create("file", "")), Events: unix.POLLIN | unix.POLLOUT},
			{Fd: int32(t.open("", unix.O_RDONLY)), Events: unix.POLLIN | unix.POLLOUT},
		}
		eq(t, "descriptors that are ready", must[int](t)(unix.Poll(fds, 1000)), 2)
		for _, fd := range fds {
			eq(t, "events", fd.Revents, unix.POLLIN|unix.POLLOUT)
		}
	}},
	{"epoll/files-are-refused", func(t *T) {
		// epoll_ctl(2), EPERM: the file does not support epoll.
		ep := t.closing(must[int](t)(unix.EpollCreate1(unix.EPOLL_CLOEXEC)))
		for _, fd := range []int{t.create("file", ""), t.open("", unix.O_RDONLY)} {
			t.fails(unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN}), unix.EPERM)
		}
	}},
	{"names/that-only-look-special", func(t *T) {
		want := []string{" ", "-", "...", "....", "..a", ".a", "a.", "a..", "\n", "~"}
		for _, name := range want {
			t.file(name, name)
		}
		for _, name := range want {
			t.eqText("content", t.content(name), name)
		}
		eq(t, "names listed", len(t.names("")), len(want))
	}},
	{"proc/names-of-descriptors", func(t *T) {
		fd := t.create("file", "")
		link := fmt.Sprintf("/proc/self/fd/%d", fd)
		name := func() string { return must[string](t)(os.Readlink(link)) }
		t.eqText("name", name(), t.p("file"))
		t.ok(t.rename("file", "moved"))
		t.eqText("name after a rename", name(), t.p("moved"))
		t.ok(unix.Unlink(t.p("moved")))
		t.eqText("name after unlink", name(), t.p("moved")+" (deleted)")
	}},
	{"proc/offset-and-flags-of-descriptors", func(t *T) {
		fd := t.create("file", "content")
		must[int64](t)(unix.Seek(fd, 5, unix.SEEK_SET))
		info := string(must[[]byte](t)(os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", fd))))
		t.that(strings.Contains(info, "pos:\t5\n"), "fdinfo is %q", info)
		t.that(strings.Contains(info, "flags:\t0"), "fdinfo is %q", info)
	}},
	{"chroot/into-a-directory", func(t *T) {
		t.mkdir("root")
		t.file("root/file", "inside")
		t.file("file", "outside")
		t.aside(func() {
			t.ok(unix.Chroot(t.p("root")))
			t.ok(unix.Chdir("/"))
			fd := t.closing(must[int](t)(unix.Open("/../file", unix.O_RDONLY|unix.O_CLOEXEC, 0)))
			t.eqText("content", t.all(fd), "inside")
			t.fails(unix.Stat(t.p("file"), new(unix.Stat_t)), unix.ENOENT)
		})
	}},
	{"flock/inherited-by-a-process", func(t *T) {
		fd := must[int](t)(unix.Open(t.p("file"), unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o644))
		t.ok(unix.Flock(fd, unix.LOCK_EX))
		cmd := exec.Command("/proc/self/exe", childFlag, "wait")
		inherited := os.NewFile(uintptr(fd), "file")
		cmd.ExtraFiles = []*os.File{inherited}
		child := t.startCmd(cmd)
		t.ok(inherited.Close())
		other := t.open("file", unix.O_RDWR)
		t.fails(unix.Flock(other, unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK)
		child.end()
		t.ok(unix.Flock(other, unix.LOCK_EX|unix.LOCK_NB))
	}},
	{"rename/socket-keeps-its-listener", func(t *T) {
		t.aside(func() {
			t.ok(unix.Chdir(t.dir))
			server := t.closing(must[int](t)(unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)))
			t.ok(unix.Bind(server, &unix.SockaddrUnix{Name: "a"}))
			t.ok(unix.Listen(server, 1))
			t.ok(unix.Rename("a", "b"))
			client := t.closing(must[int](t)(unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)))
			t.fails(unix.Connect(client, &unix.SockaddrUnix{Name: "a"}), unix.ENOENT)
			t.ok(unix.Connect(client, &unix.SockaddrUnix{Name: "b"}))
		})
	}},
	{"socket/datagrams", func(t *T) {
		t.aside(func() {
			t.ok(unix.Chdir(t.dir))
			server := t.closing(must[int](t)(unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)))
			t.ok(unix.Bind(server, &unix.SockaddrUnix{Name: "socket"}))
			client := t.closing(must[int](t)(unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)))
			t.ok(unix.Sendto(client, []byte("hello"), 0, &unix.SockaddrUnix{Name: "socket"}))
			buf := make([]byte, 10)
			t.eqText("what came", string(buf[:must[int](t)(unix.Read(server, buf))]), "hello")
			t.chmod("socket", 0o600)
			t.as(alice, func() {
				fd := t.closing(must[int](t)(unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)))
				t.ok(unix.Chdir(t.dir))
				t.fails(unix.Connect(fd, &unix.SockaddrUnix{Name: "socket"}), unix.EACCES)
			})
		})
	}},
	{"mount/listed-in-proc", func(t *T) {
		for _, list := range []string{"/proc/mounts", "/proc/self/mountinfo"} {
			text := string(must[[]byte](t)(os.ReadFile(list)))
			t.that(strings.Contains(text, " "+t.at.dir+" "), "%s lacks %s", list, t.at.dir)
		}
	}},
	{"mount/busy-directories-stay", func(t *T) {
		t.mkdir("on")
		t.mkdir("dir")
		t.ok(unix.Mount("tmpfs", t.p("on"), "tmpfs", 0, ""))
		t.cleanup(func() { unix.Unmount(t.p("on"), unix.MNT_DETACH) })
		t.fails(unix.Rmdir(t.p("on")), unix.EBUSY)
		t.fails(t.rename("on", "moved"), unix.EBUSY)
		t.fails(t.rename("dir", "on"), unix.EBUSY)
		t.file("on/file", "on tmpfs")
		t.fails(t.rename("on/file", "file"), unix.EXDEV)
		t.that(t.stat("on").dev != t.stat("").dev, "the mount does not show")
		t.ok(unix.Unmount(t.p("on"), 0))
		t.ok(unix.Rmdir(t.p("on")))
	}},
	{"mount/bind-within-the-file-system", func(t *T) {
		t.mkdir("from")
		t.mkdir("to")
		t.file("from/file", "content")
		t.ok(unix.Mount(t.p("from"), t.p("to"), "", unix.MS_BIND, ""))
		t.cleanup(func() { unix.Unmount(t.p("to"), unix.MNT_DETACH) })
		t.eqText("content", t.content("to/file"), "content")
		eq(t, "inode", t.stat("to/file").ino, t.stat("from/file").ino)
		t.fails(unix.Link(t.p("from/file"), t.p("to/second")), unix.EXDEV)
		t.fails(t.rename("from/file", "to/moved"), unix.EXDEV)
		t.file("to/file", "changed")
		t.eqText("content", t.content("from/file"), "changed")
		fd := t.open("to/file", unix.O_RDONLY)
		t.fails(unix.Unmount(t.p("to"), 0), unix.EBUSY)
		t.ok(unix.Close(fd))
	}},
}

// restrictedChecks look at a mount with noexec, nosuid, nodev and noatime.
func restrictedChecks() []check {
	return []check{
		{"restricted/noexec", func(t *T) {
			t.program("program")
			t.fails(exec.Command(t.restricted()+"/program").Run(), unix.EACCES)
			fd := t.closing(must[int](t)(unix.Open(t.restricted()+"/program", unix.O_RDONLY|unix.O_CLOEXEC, 0)))
			t.fails(errOf(unix.Mmap(fd, 0, 4096, unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE)), unix.EPERM)
			m := t.mmap(fd, 4096, unix.PROT_READ, unix.MAP_PRIVATE)
			t.fails(unix.Mprotect(m, unix.PROT_READ|unix.PROT_EXEC), unix.EACCES)
			t.fails(unix.Access(t.restricted()+"/program", unix.X_OK), unix.EACCES)
			t.ok(t.run("program", nil)) // it is the mount that counts
		}},
		{"restricted/nodev", func(t *T) {
			t.ok(unix.Mknod(t.p("null"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))))
			t.fails(opens(t.restricted()+"/null", unix.O_RDWR), unix.EACCES)
			t.ok(opens(t.p("null"), unix.O_RDWR))
			t.fifo("fifo")
			t.ok(opens(t.restricted()+"/fifo", unix.O_RDWR))
		}},
		{"restricted/noatime", func(t *T) {
			t.file("file", "content")
			t.ok(t.utimens("file", unix.Timespec{Sec: 1}, unix.Timespec{Sec: 2}, 0))
			fd := t.closing(must[int](t)(unix.Open(t.restricted()+"/file", unix.O_RDONLY|unix.O_CLOEXEC, 0)))
			t.eqText("content", t.all(fd), "content")
			eq(t, "atime", t.stat("file").atime, 1e9)
		}},
		{"restricted/flags-of-statfs", func(t *T) {
			const nosuid, nodev, noexec, noatime = 2, 4, 8, 1024
			var st unix.Statfs_t
			t.ok(unix.Statfs(t.restricted(), &st))
			eq(t, "f_flags", st.Flags&(nosuid|nodev|noexec|noatime), nosuid|nodev|noexec|noatime)
		}},
		{"restricted/writes-go-on", func(t *T) {
			fd := t.closing(must[int](t)(unix.Open(t.restricted()+"/file", unix.O_CREAT|unix.O_RDWR|unix.O_CLOEXEC, 0o644)))
			t.write(fd, "content")
			t.eqText("content", t.content("file"), "content")
		}},
	}
}

// restricted is the check's directory on the restricted mount.
func (t *T) restricted() string { return t.at.restricted + strings.TrimPrefix(t.dir, t.at.dir) }
