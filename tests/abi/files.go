package main

import (
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// p is the path of a name in the check's directory, as it stands: dots and slashes
// at the end stay.
func (t *T) p(name string) string { return t.dir + "/" + name }

// open opens a file in the check's directory until the check ends.
func (t *T) open(name string, flags int) int {
	fd, err := unix.Open(t.p(name), flags|unix.O_CLOEXEC, 0o644)
	t.ok(err)
	return t.closing(fd)
}

// closing has fd closed when the check ends.
func (t *T) closing(fd int) int {
	t.cleanup(func() { unix.Close(fd) })
	return fd
}

// create makes a file with content and returns it open for reading and writing.
func (t *T) create(name, content string) int {
	fd := t.open(name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL)
	if content != "" {
		t.pwrite(fd, content, 0)
	}
	return fd
}

// file makes a file with content.
func (t *T) file(name, content string) {
	fd, err := unix.Open(t.p(name), unix.O_WRONLY|unix.O_CREAT|unix.O_TRUNC|unix.O_CLOEXEC, 0o644)
	t.ok(err)
	defer unix.Close(fd)
	for len(content) > 0 {
		n, err := unix.Write(fd, []byte(content))
		t.ok(err)
		content = content[n:]
	}
}

// content reads a file by its name.
func (t *T) content(name string) string {
	fd, err := unix.Open(t.p(name), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	t.ok(err)
	defer unix.Close(fd)
	return t.all(fd)
}

// all reads an open file from its beginning to its end.
func (t *T) all(fd int) string {
	var all strings.Builder
	buf := make([]byte, 64<<10)
	for {
		n, err := unix.Pread(fd, buf, int64(all.Len()))
		t.ok(err)
		if n == 0 {
			return all.String()
		}
		all.Write(buf[:n])
	}
}

// pread reads up to n bytes.
func (t *T) pread(fd, n int, off int64) string {
	buf := make([]byte, n)
	got, err := unix.Pread(fd, buf, off)
	t.ok(err)
	return string(buf[:got])
}

// pwrite writes all of s.
func (t *T) pwrite(fd int, s string, off int64) {
	n, err := unix.Pwrite(fd, []byte(s), off)
	t.ok(err)
	eq(t, "bytes written", n, len(s))
}

// write writes all of s at the descriptor's offset.
func (t *T) write(fd int, s string) {
	n, err := unix.Write(fd, []byte(s))
	t.ok(err)
	eq(t, "bytes written", n, len(s))
}

// offset is the descriptor's offset.
func (t *T) offset(fd int) int64 {
	off, err := unix.Seek(fd, 0, unix.SEEK_CUR)
	t.ok(err)
	return off
}

func (t *T) mkdir(name string)           { t.ok(unix.Mkdir(t.p(name), 0o755)) }
func (t *T) symlink(target, name string) { t.ok(unix.Symlink(target, t.p(name))) }

// fifo makes a FIFO, which stands for everything that is no file, directory or link.
func (t *T) fifo(name string) { t.ok(unix.Mkfifo(t.p(name), 0o644)) }

// status is what stat(2) says, in types that are the same on all machines.
type status struct {
	ino, dev, rdev      uint64
	mode, nlink         uint32 // mode with the type
	uid, gid            uint32
	size, blocks        int64
	atime, mtime, ctime int64 // ns
}

func statusOf(st *unix.Stat_t) status {
	return status{
		ino: st.Ino, dev: st.Dev, rdev: st.Rdev, mode: st.Mode, nlink: uint32(st.Nlink), uid: st.Uid, gid: st.Gid,
		size: st.Size, blocks: st.Blocks, atime: st.Atim.Nano(), mtime: st.Mtim.Nano(), ctime: st.Ctim.Nano(),
	}
}

func (s status) perm() uint32 { return s.mode & 0o7777 }
func (s status) kind() uint32 { return s.mode & unix.S_IFMT }

// stat is the status of a file without following a link.
func (t *T) stat(name string) status {
	var st unix.Stat_t
	t.ok(unix.Lstat(t.p(name), &st))
	return statusOf(&st)
}

func (t *T) fstat(fd int) status {
	var st unix.Stat_t
	t.ok(unix.Fstat(fd, &st))
	return statusOf(&st)
}

// absent wants that there is no file of that name.
func (t *T) absent(name string) {
	var st unix.Stat_t
	t.fails(unix.Lstat(t.p(name), &st), unix.ENOENT)
}

// tick waits until the clock that stamps files has moved.
func tick() { time.Sleep(12 * time.Millisecond) }

// user is who a check may act as.
type user struct {
	uid, gid int
	groups   []int
}

// Users without privileges.
var (
	alice = user{uid: 1001, gid: 2001}
	bob   = user{uid: 1002, gid: 2002}
)

// in gives the user with a supplementary group.
func (u user) in(group int) user {
	u.groups = append(u.groups[:len(u.groups):len(u.groups)], group)
	return u
}

// as runs fn as a user without capabilities.
func (t *T) as(u user, fn func()) {
	t.aside(func() {
		t.ok(setGroups(u.groups))
		t.ok(setIDs(unix.SYS_SETRESGID, u.gid, u.gid, u.gid))
		t.ok(setIDs(unix.SYS_SETRESUID, u.uid, u.uid, u.uid))
		fn()
	})
}

// aside runs fn on a thread that is thrown away afterwards and shares neither umask
// nor working directory nor credentials with others.
func (t *T) aside(fn func()) {
	result := make(chan string, 1)
	go func() {
		// Never unlocked, so that the thread ends with this goroutine.
		runtime.LockOSThread()
		text := "thread ended early"
		defer func() { result <- text }()
		text = caught(func() {
			t.ok(unix.Unshare(unix.CLONE_FS))
			fn()
		})
	}()
	if text := <-result; text != "" {
		panic(failure{text})
	}
}

// The calls below change one thread; those of package syscall change all.

func setIDs(call uintptr, real, effective, saved int) error {
	if _, _, e := unix.RawSyscall(call, uintptr(real), uintptr(effective), uintptr(saved)); e != 0 {
		return e
	}
	return nil
}

func setGroups(groups []int) error {
	ids := make([]uint32, len(groups)+1)
	for n, g := range groups {
		ids[n] = uint32(g)
	}
	if _, _, e := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), address(ids), 0); e != 0 {
		return e
	}
	return nil
}

// own makes a file belong to a user.
func (t *T) own(name string, u user) { t.ok(unix.Lchown(t.p(name), u.uid, u.gid)) }

// chmod sets permissions.
func (t *T) chmod(name string, mode uint32) { t.ok(unix.Chmod(t.p(name), mode)) }

// until waits for a condition, for at most five seconds, and says whether it came.
func until(condition func() bool) bool {
	for range 500 {
		if condition() {
			return true
		}
		time.Sleep(10 * time.Millisecond)
	}
	return condition()
}
