package main

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"
)

// pathCall is a system call that takes a path.
type pathCall struct {
	name string
	kind pathKind
	call func(t *T, path string) error
}

type pathKind int

const (
	follows pathKind = 1 << iota // follows a symbolic link at the end of the path
	makes                        // the path names what is to be made
	anyType                      // takes any type of file
)

// pathCalls change as little as possible if they succeed.
var pathCalls = []pathCall{
	{"open", follows | anyType, func(t *T, p string) error { return opens(p, unix.O_RDONLY) }},
	{"open-path", follows | anyType, func(t *T, p string) error { return opens(p, unix.O_PATH) }},
	{"open-creat", follows | makes, func(t *T, p string) error { return opens(p, unix.O_WRONLY|unix.O_CREAT) }},
	{"open-excl", makes, func(t *T, p string) error { return opens(p, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL) }},
	{"mkdir", makes, func(t *T, p string) error { return unix.Mkdir(p, 0o755) }},
	{"mknod", makes, func(t *T, p string) error { return unix.Mknod(p, unix.S_IFREG|0o644, 0) }},
	{"mkfifo", makes, func(t *T, p string) error { return unix.Mkfifo(p, 0o644) }},
	{"symlink", makes, func(t *T, p string) error { return unix.Symlink("target", p) }},
	{"link-old", 0, func(t *T, p string) error { return unix.Link(p, t.p("fresh")) }},
	{"link-new", makes, func(t *T, p string) error { return unix.Link(t.p("file"), p) }},
	{"rename-old", 0, func(t *T, p string) error { return unix.Rename(p, t.p("fresh")) }},
	{"rename-new", makes, func(t *T, p string) error { return unix.Rename(t.p("spare"), p) }},
	{"unlink", 0, unlinks},
	{"rmdir", 0, func(t *T, p string) error { return unix.Rmdir(p) }},
	{"readlink", 0, func(t *T, p string) error { return errOf(unix.Readlink(p, make([]byte, 10))) }},
	{"stat", follows | anyType, func(t *T, p string) error { return unix.Stat(p, new(unix.Stat_t)) }},
	{"lstat", anyType, func(t *T, p string) error { return unix.Lstat(p, new(unix.Stat_t)) }},
	{"statx", follows | anyType, func(t *T, p string) error {
		return unix.Statx(unix.AT_FDCWD, p, 0, unix.STATX_BASIC_STATS, new(unix.Statx_t))
	}},
	{"statfs", follows | anyType, func(t *T, p string) error { return unix.Statfs(p, new(unix.Statfs_t)) }},
	{"access", follows | anyType, func(t *T, p string) error { return unix.Access(p, unix.F_OK) }},
	{"chmod", follows | anyType, func(t *T, p string) error { return unix.Chmod(p, 0o755) }},
	{"chown", follows | anyType, func(t *T, p string) error { return unix.Chown(p, 0, 0) }},
	{"lchown", anyType, func(t *T, p string) error { return unix.Lchown(p, 0, 0) }},
	{"truncate", follows, func(t *T, p string) error { return unix.Truncate(p, 0) }},
	{"utimensat", follows | anyType, func(t *T, p string) error {
		return unix.UtimesNanoAt(unix.AT_FDCWD, p, make([]unix.Timespec, 2), 0)
	}},
	{"chdir", follows, func(t *T, p string) error { return unix.Chdir(p) }},
	{"getxattr", follows | anyType, func(t *T, p string) error { return errOf(unix.Getxattr(p, "user.a", nil)) }},
	{"lgetxattr", anyType, func(t *T, p string) error { return errOf(unix.Lgetxattr(p, "user.a", nil)) }},
	{"setxattr", follows | anyType, func(t *T, p string) error { return unix.Setxattr(p, "user.a", nil, 0) }},
	{"listxattr", follows | anyType, func(t *T, p string) error { return errOf(unix.Listxattr(p, nil)) }},
	{"removexattr", follows | anyType, func(t *T, p string) error { return unix.Removexattr(p, "user.a") }},
	{"execve", follows, func(t *T, p string) error { return unix.Exec(p, []string{p}, nil) }},
	{"inotify-add-watch", follows | anyType, func(t *T, p string) error {
		return errOf(unix.InotifyAddWatch(t.inotify(), p, unix.IN_MODIFY))
	}},
}

func opens(path string, flags int) error {
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0o644)
	if err == nil {
		unix.Close(fd)
	}
	return err
}

func unlinks(t *T, path string) error { return unix.Unlink(path) }

// pathCase is a path that no call can take.
type pathCase struct {
	name string
	path string // below the check's directory, see setUpPaths
	want unix.Errno
	on   func(pathKind) bool // the calls that it is for; nil is all
}

var pathCases = []pathCase{
	{"missing-directory", "none/file", unix.ENOENT, nil},
	{"file-as-directory", "file/file", unix.ENOTDIR, nil},
	{"fifo-as-directory", "fifo/file", unix.ENOTDIR, nil},
	{"dangling-link-as-directory", "dangling/file", unix.ENOENT, nil},
	{"link-to-file-as-directory", "link/file", unix.ENOTDIR, nil},
	{"loop-as-directory", "loop/file", unix.ELOOP, nil},
	{"long-chain-as-directory", "chain41/file", unix.ELOOP, nil},
	{"loop", "loop", unix.ELOOP, pathKind.followsLinks},
	{"dangling-link", "dangling", unix.ENOENT, func(k pathKind) bool { return k&follows != 0 && k&makes == 0 }},
	{"missing", "none", unix.ENOENT, func(k pathKind) bool { return k&makes == 0 }},
	{"missing-with-slash", "none/", unix.ENOENT, func(k pathKind) bool { return k&makes == 0 }},
	{"file-with-slash", "file/", unix.ENOTDIR, func(k pathKind) bool { return k&makes == 0 }},
	{"long-name", strings.Repeat("n", 256), unix.ENAMETOOLONG, nil},
	{"long-name-as-directory", strings.Repeat("n", 256) + "/file", unix.ENAMETOOLONG, nil},
	{"long-name-in-missing-directory", "none/" + strings.Repeat("n", 256), unix.ENOENT, nil},
	{"long-path", strings.Repeat("./", 2048) + "file", unix.ENAMETOOLONG, nil},
}

func (k pathKind) followsLinks() bool { return k&follows != 0 }

// setUpPaths makes the files that pathCases speak of.
func setUpPaths(t *T) {
	t.file("file", "")
	t.file("spare", "")
	t.fifo("fifo")
	t.mkdir("dir")
	t.symlink("file", "link")
	t.symlink("nothing", "dangling")
	t.symlink("loop", "loop")
	t.symlink("dir", "chain0")
	for n := range 41 {
		t.symlink(chainLink(n), chainLink(n+1))
	}
}

// pathChecks tries each call on each path.
func pathChecks() []check {
	var list []check
	for _, call := range pathCalls {
		for _, c := range pathCases {
			if c.on != nil && !c.on(call.kind) {
				continue
			}
			list = append(list, check{"path/" + call.name + "/" + c.name, func(t *T) {
				setUpPaths(t)
				t.aside(func() { t.fails(call.call(t, t.p(c.path)), c.want) })
			}})
		}
		list = append(list, check{"path/" + call.name + "/empty", func(t *T) {
			setUpPaths(t)
			t.aside(func() { t.fails(call.call(t, ""), unix.ENOENT) })
		}})
		list = append(list, check{"path/" + call.name + "/no-search-permission", func(t *T) {
			setUpPaths(t)
			t.mkdir("closed")
			t.file("closed/file", "")
			t.chmod("closed", 0o644)
			t.chmod("", 0o777)
			t.as(alice, func() { t.fails(call.call(t, t.p("closed/file")), unix.EACCES) })
		}})
		if call.kind&anyType != 0 {
			list = append(list, check{"path/" + call.name + "/longest", func(t *T) {
				t.file("file", "")
				if strings.HasSuffix(call.name, "xattr") {
					t.ok(unix.Setxattr(t.p("file"), "user.a", nil, 0))
				}
				path := t.dir + "/" + strings.Repeat("./", 2048) + "file"
				drop := (len(path) - (unix.PathMax - 1) + 1) / 2 * 2
				path = t.dir + "/" + path[len(t.dir)+1+drop:]
				t.that(len(path) == unix.PathMax-1 || len(path) == unix.PathMax-2, "the path has %d bytes", len(path))
				t.aside(func() { t.ok(call.call(t, path)) })
			}})
		}
	}
	return append(list, morePathChecks...)
}

var morePathChecks = []check{
	{"path/chain-of-40-links", func(t *T) {
		// path_resolution(7): at most 40 links are followed.
		setUpPaths(t)
		t.file("dir/file", "")
		t.ok(unix.Stat(t.p("chain39/file"), new(unix.Stat_t)))
		t.fails(unix.Stat(t.p("chain40/file"), new(unix.Stat_t)), unix.ELOOP)
	}},
	{"path/dots", func(t *T) {
		t.mkdir("a")
		t.mkdir("a/b")
		t.file("file", "content")
		eq(t, "inode of a/b/../../file", t.stat("a/b/../../file").ino, t.stat("file").ino)
		eq(t, "inode of a/./b/.", t.stat("a/./b/.").ino, t.stat("a/b").ino)
		eq(t, "inode of a//b///", t.stat("a//b///").ino, t.stat("a/b").ino)
		eq(t, "inode of a/b/..", t.stat("a/b/..").ino, t.stat("a").ino)
	}},
	{"path/dots-through-a-link", func(t *T) {
		t.mkdir("a")
		t.mkdir("a/b")
		t.file("a/file", "")
		t.symlink("a/b", "link")
		eq(t, "inode of link/../file", t.stat("link/../file").ino, t.stat("a/file").ino)
	}},
	{"path/dots-after-a-file", func(t *T) {
		t.file("file", "")
		t.fails(unix.Stat(t.p("file/.."), new(unix.Stat_t)), unix.ENOTDIR)
		t.fails(unix.Stat(t.p("file/."), new(unix.Stat_t)), unix.ENOTDIR)
	}},
	{"path/absolute-link", func(t *T) {
		t.file("file", "")
		t.symlink(t.p("file"), "link")
		var st unix.Stat_t
		t.ok(unix.Stat(t.p("link"), &st))
		eq(t, "inode through the link", st.Ino, t.stat("file").ino)
	}},
	{"path/bad-address", func(t *T) {
		for _, number := range []uintptr{
			unix.SYS_OPENAT, unix.SYS_MKDIRAT, unix.SYS_UNLINKAT, unix.SYS_FCHMODAT, unix.SYS_FCHOWNAT, unix.SYS_FACCESSAT, unix.SYS_MKNODAT,
		} {
			t.fails(errOf(syscall(number, atFDCWD, badAddress, 0, 0, 0)), unix.EFAULT)
		}
		t.fails(errOf(syscall(unix.SYS_TRUNCATE, badAddress, 0)), unix.EFAULT)
	}},
	{"path/name-of-any-bytes", func(t *T) {
		// Any byte but NUL and the slash.
		var name []byte
		for b := 1; b < 256; b++ {
			if b != '/' {
				name = append(name, byte(b))
			}
		}
		t.file(string(name), "content")
		t.eqText("content", t.content(string(name)), "content")
		names := t.names("")
		t.that(len(names) == 1 && names[0] == string(name), "the directory lists %q", names)
	}},
	{"path/name-of-255-bytes", func(t *T) {
		for _, b := range []string{"n", "\xff", "\xe2\x82\xac"} {
			name := strings.Repeat(b, 255/len(b))
			t.file(name, b)
			t.eqText("content", t.content(name), b)
			t.ok(unix.Rename(t.p(name), t.p("short")))
			t.ok(unix.Rename(t.p("short"), t.p(name)))
			t.ok(unix.Link(t.p(name), t.p(strings.Repeat("l", 255))))
			t.ok(unix.Unlink(t.p(strings.Repeat("l", 255))))
			t.ok(unix.Unlink(t.p(name)))
		}
	}},
	{"path/case-matters", func(t *T) {
		t.file("name", "lower")
		t.file("NAME", "upper")
		t.eqText("name", t.content("name"), "lower")
		t.eqText("NAME", t.content("NAME"), "upper")
	}},
	{"path/removed-working-directory", func(t *T) {
		t.mkdir("cwd")
		t.aside(func() {
			t.ok(unix.Chdir(t.p("cwd")))
			t.ok(unix.Rmdir(t.p("cwd")))
			t.fails(opens("file", unix.O_CREAT|unix.O_WRONLY), unix.ENOENT)
			t.fails(unix.Mkdir("dir", 0o755), unix.ENOENT)
			t.fails(unix.Symlink("target", "link"), unix.ENOENT)
			t.fails(unix.Stat("file", new(unix.Stat_t)), unix.ENOENT)
			t.ok(unix.Stat(".", new(unix.Stat_t)))
			t.fails(errOf(unix.Getcwd(make([]byte, 4096))), unix.ENOENT)
			t.fails(unix.Rmdir("."), unix.EINVAL)
		})
	}},
	{"path/working-directory-deeper-than-a-path", func(t *T) {
		// Forty directories of 200 bytes are longer than any path.
		name := strings.Repeat("d", 200)
		t.aside(func() {
			t.ok(unix.Chdir(t.dir))
			for range 40 {
				t.ok(unix.Mkdir(name, 0o755))
				t.ok(unix.Chdir(name))
			}
			fd := must[int](t)(unix.Open("file", unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o644))
			unix.Close(fd)
			t.fails(errOf(unix.Getcwd(make([]byte, 4096))), unix.ENAMETOOLONG, unix.ERANGE)
			for range 40 {
				t.ok(unix.Chdir(".."))
			}
			var st unix.Stat_t
			t.ok(unix.Stat(".", &st))
			eq(t, "inode after climbing up again", st.Ino, t.stat("").ino)
		})
	}},
	{"path/getcwd-after-rename", func(t *T) {
		t.mkdir("old")
		t.mkdir("old/sub")
		t.aside(func() {
			t.ok(unix.Chdir(t.p("old/sub")))
			t.ok(unix.Rename(t.p("old"), t.p("new")))
			buf := make([]byte, 4096)
			n := must[int](t)(unix.Getcwd(buf))
			t.that(strings.HasSuffix(string(buf[:n-1]), "/new/sub"), "the working directory is %q", buf[:n-1])
		})
	}},
}

func chainLink(n int) string { return fmt.Sprintf("chain%d", n) }
