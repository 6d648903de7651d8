package sentry

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/abi/linux"
	gverrors "gvisor.dev/gvisor/pkg/errors"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/sentry/limits"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/usermem"

	"runsc-fs/blobfs"
)

// wantErrno checks err against an errno; nil wants success.
func wantErrno(t *testing.T, what string, err error, want *gverrors.Error) {
	t.Helper()
	if want == nil {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
		return
	}
	if !linuxerr.Equals(want, err) {
		t.Errorf("%s: got %v, want %v", what, err, want)
	}
}

// TestErrnos goes through the errors of the calls that change names, each on
// the same small tree.
func TestErrnos(t *testing.T) {
	e := newEnv(t)
	e.mkdir("dir")
	e.mkdir("dir/sub")
	e.create("dir/file", "content")
	e.create("file", "x")
	e.mkdir("empty")
	e.symlink("file", "link")
	e.symlink("loop", "loop")
	e.symlink("nowhere", "dangling")
	long := strings.Repeat("n", 256)
	user := e.user(1000)

	open := func(ctx *testContext, path string, flags uint32) error {
		fd, err := e.open(ctx, path, flags, 0644)
		if err == nil {
			fd.DecRef(ctx)
		}
		return err
	}
	mkdir := func(ctx *testContext, path string) error {
		return e.vfs.MkdirAt(ctx, ctx.creds, e.pop(path), &vfs.MkdirOptions{Mode: 0755})
	}
	mknod := func(path string, mode linux.FileMode) error {
		return e.vfs.MknodAt(e.ctx, e.ctx.creds, e.pop(path), &vfs.MknodOptions{Mode: mode})
	}
	stat := func(path string) error {
		_, err := e.vfs.StatAt(e.ctx, e.ctx.creds, e.pop(path), &vfs.StatOptions{})
		return err
	}
	readlink := func(path string) error {
		_, err := e.vfs.ReadlinkAt(e.ctx, e.ctx.creds, e.pop(path))
		return err
	}
	const wr, creat, excl = linux.O_WRONLY, linux.O_CREAT | linux.O_RDWR, linux.O_CREAT | linux.O_EXCL | linux.O_RDWR
	for _, c := range []struct {
		what string
		err  error
		want *gverrors.Error
	}{
		{"stat missing", stat("missing"), linuxerr.ENOENT},
		{"stat below file", stat("file/x"), linuxerr.ENOTDIR},
		{"stat below missing", stat("missing/x"), linuxerr.ENOENT},
		{"stat file/", stat("file/"), linuxerr.ENOTDIR},
		{"stat long name", stat(long), linuxerr.ENAMETOOLONG},
		{"stat loop/", stat("loop/"), linuxerr.ELOOP},
		{"open loop", open(e.ctx, "loop", 0), linuxerr.ELOOP},
		{"open dangling", open(e.ctx, "dangling", 0), linuxerr.ENOENT},
		{"open link O_NOFOLLOW", open(e.ctx, "link", linux.O_NOFOLLOW), linuxerr.ELOOP},
		{"open dir for writing", open(e.ctx, "dir", wr), linuxerr.EISDIR},
		{"open dir O_CREAT", open(e.ctx, "dir", creat), linuxerr.EISDIR},
		{"open new/ O_CREAT", open(e.ctx, "new/", creat), linuxerr.EISDIR},
		{"open file O_DIRECTORY", open(e.ctx, "file", linux.O_DIRECTORY), linuxerr.ENOTDIR},
		{"open file O_EXCL", open(e.ctx, "file", excl), linuxerr.EEXIST},
		{"open dangling O_EXCL", open(e.ctx, "dangling", excl), linuxerr.EEXIST},
		{"open long name O_CREAT", open(e.ctx, long, creat), linuxerr.ENAMETOOLONG},
		{"open . O_CREAT", open(e.ctx, ".", creat), linuxerr.EISDIR},
		{"open as user O_CREAT", open(user, "new", creat), linuxerr.EACCES},
		{"open as user for writing", open(user, "file", wr), linuxerr.EACCES},
		{"open as user for reading", open(user, "file", 0), nil},
		{"open as user O_NOATIME", open(user, "file", linux.O_NOATIME), linuxerr.EPERM},
		{"open as user O_TRUNC", open(user, "file", linux.O_TRUNC), linuxerr.EACCES},
		{"O_TMPFILE in file", open(e.ctx, "file", linux.O_TMPFILE|linux.O_DIRECTORY|wr), linuxerr.ENOTDIR},
		{"O_TMPFILE as user", open(user, "dir", linux.O_TMPFILE|linux.O_DIRECTORY|wr), linuxerr.EACCES},

		{"mkdir existing", mkdir(e.ctx, "dir"), linuxerr.EEXIST},
		{"mkdir over file", mkdir(e.ctx, "file"), linuxerr.EEXIST},
		{"mkdir over dangling", mkdir(e.ctx, "dangling"), linuxerr.EEXIST},
		{"mkdir .", mkdir(e.ctx, "dir/."), linuxerr.EEXIST},
		{"mkdir ..", mkdir(e.ctx, "dir/.."), linuxerr.EEXIST},
		{"mkdir below missing", mkdir(e.ctx, "missing/x"), linuxerr.ENOENT},
		{"mkdir below file", mkdir(e.ctx, "file/x"), linuxerr.ENOTDIR},
		{"mkdir long name", mkdir(e.ctx, long), linuxerr.ENAMETOOLONG},
		{"mkdir as user", mkdir(user, "new"), linuxerr.EACCES},
		{"mkdir existing as user", mkdir(user, "dir"), linuxerr.EEXIST},
		{"mknod existing", mknod("file", linux.S_IFREG), linuxerr.EEXIST},
		{"mknod x/", mknod("x/", linux.S_IFREG), linuxerr.ENOENT},
		{"mknod of a link", mknod("x", linux.S_IFLNK), linuxerr.EINVAL},
		{"readlink of file", readlink("file"), linuxerr.EINVAL},
		{"readlink of dir", readlink("dir"), linuxerr.EINVAL},

		{"unlink missing", e.unlink(e.ctx, "missing"), linuxerr.ENOENT},
		{"unlink dir", e.unlink(e.ctx, "dir"), linuxerr.EISDIR},
		{"unlink .", e.unlink(e.ctx, "dir/."), linuxerr.EISDIR},
		{"unlink dir/ as user", e.unlink(user, "dir/"), linuxerr.EISDIR},
		{"open dir for writing as user", open(user, "dir", wr), linuxerr.EISDIR},
		{"truncate a directory as user", e.setStat(user, "dir", linux.Statx{Mask: linux.STATX_SIZE}), linuxerr.EISDIR},
		{"link of a directory as user", e.link(user, "dir", "x"), linuxerr.EPERM},
		{"link of another's file as user", e.link(user, "file", "x"), linuxerr.EPERM},
		{"link onto existing as user", e.link(user, "file", "dir"), linuxerr.EEXIST},
		{"unlink file/", e.unlink(e.ctx, "file/"), linuxerr.ENOTDIR},
		{"unlink as user", e.unlink(user, "file"), linuxerr.EACCES},
		{"rmdir missing", e.rmdir(e.ctx, "missing"), linuxerr.ENOENT},
		{"rmdir file", e.rmdir(e.ctx, "file"), linuxerr.ENOTDIR},
		{"rmdir not empty", e.rmdir(e.ctx, "dir"), linuxerr.ENOTEMPTY},
		{"rmdir .", e.rmdir(e.ctx, "dir/."), linuxerr.EINVAL},
		{"rmdir ..", e.rmdir(e.ctx, "dir/.."), linuxerr.ENOTEMPTY},
		{"rmdir as user", e.rmdir(user, "empty"), linuxerr.EACCES},

		{"link dir", e.link(e.ctx, "dir", "x"), linuxerr.EPERM},
		{"link onto existing", e.link(e.ctx, "file", "dir"), linuxerr.EEXIST},
		{"link missing", e.link(e.ctx, "missing", "x"), linuxerr.ENOENT},

		{"rename missing", e.rename(e.ctx, "missing", "x", 0), linuxerr.ENOENT},
		{"rename dir over file", e.rename(e.ctx, "dir", "file", 0), linuxerr.ENOTDIR},
		{"rename file over dir", e.rename(e.ctx, "file", "empty", 0), linuxerr.EISDIR},
		{"rename over full dir", e.rename(e.ctx, "empty", "dir", 0), linuxerr.ENOTEMPTY},
		{"rename into itself", e.rename(e.ctx, "dir", "dir/sub/x", 0), linuxerr.EINVAL},
		{"rename over ancestor", e.rename(e.ctx, "dir/sub", "dir", 0), linuxerr.ENOTEMPTY},
		{"rename file to x/", e.rename(e.ctx, "file", "x/", 0), linuxerr.ENOTDIR},
		{"rename ..", e.rename(e.ctx, "dir/..", "x", 0), linuxerr.EBUSY},
		{"rename to .", e.rename(e.ctx, "file", "dir/.", 0), linuxerr.EBUSY},
		{"rename to . NOREPLACE", e.rename(e.ctx, "file", "dir/.", linux.RENAME_NOREPLACE), linuxerr.EEXIST},
		{"rename NOREPLACE", e.rename(e.ctx, "file", "dir/file", linux.RENAME_NOREPLACE), linuxerr.EEXIST},
		{"rename EXCHANGE with missing", e.rename(e.ctx, "file", "missing", linux.RENAME_EXCHANGE), linuxerr.ENOENT},
		{"rename EXCHANGE|NOREPLACE", e.rename(e.ctx, "file", "dir/file", linux.RENAME_EXCHANGE|linux.RENAME_NOREPLACE), linuxerr.EINVAL},
		{"rename EXCHANGE with ancestor", e.rename(e.ctx, "dir/sub", "dir", linux.RENAME_EXCHANGE), linuxerr.EINVAL},
		{"rename unknown flag", e.rename(e.ctx, "file", "x", 0x80), linuxerr.EINVAL},
		{"rename as user", e.rename(user, "file", "x", 0), linuxerr.EACCES},
		{"rename to long name", e.rename(e.ctx, "file", long, 0), linuxerr.ENAMETOOLONG},
	} {
		wantErrno(t, c.what, c.err, c.want)
	}
	// Nothing of that may have changed anything.
	got := e.list("/")
	slices.Sort(got)
	if want := []string{".", "..", "dangling", "dir", "empty", "file", "link", "loop"}; !slices.Equal(got, want) {
		t.Errorf("the root holds %q, not %q", got, want)
	}
}

func TestLinksAndUnlinkedFiles(t *testing.T) {
	e := newEnv(t)
	e.create("a", "hello")
	wantErrno(t, "link", e.link(e.ctx, "a", "b"), nil)
	a, b := e.stat("a"), e.stat("b")
	if a.Ino != b.Ino || b.Nlink != 2 {
		t.Errorf("inodes %d and %d, %d links", a.Ino, b.Ino, b.Nlink)
	}
	fd := e.mustOpen("a", linux.O_RDWR)
	wantErrno(t, "rename of a link onto the other", e.rename(e.ctx, "a", "b", 0), nil)
	if !e.exists("a") || !e.exists("b") {
		t.Error("renaming a link onto the other removed one")
	}
	wantErrno(t, "unlink a", e.unlink(e.ctx, "a"), nil)
	wantErrno(t, "unlink b", e.unlink(e.ctx, "b"), nil)
	if got := e.pread(fd, 0, 10); got != "hello" {
		t.Errorf("the unlinked file reads %q", got)
	}
	st, err := fd.Stat(e.ctx, vfs.StatOptions{Mask: linux.STATX_NLINK})
	if err != nil || st.Nlink != 0 {
		t.Errorf("the unlinked file has %d links, %v", st.Nlink, err)
	}
	if name, _ := e.vfs.PathnameWithDeleted(e.ctx, e.root, fd.VirtualDentry()); name != "/a (deleted)" {
		t.Errorf("the unlinked file is called %q", name)
	}
	vd := fd.VirtualDentry()
	err = e.vfs.LinkAt(e.ctx, e.ctx.creds, &vfs.PathOperation{Root: e.root, Start: vd}, e.pop("c"))
	wantErrno(t, "link of an unlinked file", err, linuxerr.ENOENT)
}

func TestTmpfile(t *testing.T) {
	e := newEnv(t)
	e.mkdir("d")
	const flags = linux.O_TMPFILE | linux.O_DIRECTORY | linux.O_RDWR
	fd := e.mustOpen("d", flags)
	e.write(fd, "secret")
	if names := e.list("d"); len(names) != 2 {
		t.Errorf("the directory lists %q", names)
	}
	link := func(fd *vfs.FileDescription, to string) error {
		return e.vfs.LinkAt(e.ctx, e.ctx.creds, &vfs.PathOperation{Root: e.root, Start: fd.VirtualDentry()}, e.pop(to))
	}
	wantErrno(t, "link of a temporary file", link(fd, "d/named"), nil)
	if got := e.content("d/named"); got != "secret" {
		t.Errorf("the named file reads %q", got)
	}
	if st := e.stat("d/named"); st.Nlink != 1 {
		t.Errorf("the named file has %d links", st.Nlink)
	}
	excl := e.mustOpen("d", flags|linux.O_EXCL)
	wantErrno(t, "link of an O_EXCL temporary file", link(excl, "d/other"), linuxerr.ENOENT)
}

func TestRename(t *testing.T) {
	e := newEnv(t)
	e.mkdir("d1")
	e.mkdir("d2")
	e.create("d1/f", "one")
	e.create("d2/g", "two")
	wantErrno(t, "move", e.rename(e.ctx, "d1/f", "d2/f", 0), nil)
	if e.exists("d1/f") || e.content("d2/f") != "one" {
		t.Error("the file did not move")
	}
	wantErrno(t, "replace", e.rename(e.ctx, "d2/f", "d2/g", 0), nil)
	if e.exists("d2/f") || e.content("d2/g") != "one" {
		t.Error("the file was not replaced")
	}
	wantErrno(t, "move a directory", e.rename(e.ctx, "d2", "d1/d2", 0), nil)
	if e.content("d1/d2/g") != "one" || e.content("d1/d2/../d2/g") != "one" {
		t.Error("the directory did not move with its content")
	}
	if st := e.stat("d1"); st.Nlink != 3 {
		t.Errorf("d1 has %d links", st.Nlink)
	}
	e.create("x", "ex")
	wantErrno(t, "exchange a file and a directory", e.rename(e.ctx, "x", "d1/d2", linux.RENAME_EXCHANGE), nil)
	if e.content("d1/d2") != "ex" || e.content("x/g") != "one" {
		t.Error("file and directory were not exchanged")
	}
	e.mkdir("e")
	wantErrno(t, "directory over an empty one", e.rename(e.ctx, "x", "e", 0), nil)
	if e.content("e/g") != "one" || e.exists("x") {
		t.Error("the directory did not replace the empty one")
	}
	wantErrno(t, "whiteout", e.rename(e.ctx, "e/g", "h", linux.RENAME_WHITEOUT), nil)
	st := e.stat("e/g")
	if st.Mode&linux.S_IFMT != linux.S_IFCHR || st.RdevMajor != 0 || st.RdevMinor != 0 {
		t.Errorf("the whiteout has mode %#o, device %d:%d", st.Mode, st.RdevMajor, st.RdevMinor)
	}
	wantErrno(t, "whiteout as user", e.rename(e.user(0+1), "h", "i", linux.RENAME_WHITEOUT), linuxerr.EPERM)
	e.checkTree(map[string]int64{"": 2})
}

// TestRemovedDirectory works in a directory that is gone.
func TestRemovedDirectory(t *testing.T) {
	e := newEnv(t)
	e.mkdir("d")
	fd := e.mustOpen("d", linux.O_RDONLY|linux.O_DIRECTORY)
	if e.exists("d/x") {
		t.Fatal("d/x exists")
	}
	wantErrno(t, "rmdir", e.rmdir(e.ctx, "d"), nil)
	at := func(path string) *vfs.PathOperation {
		pop := e.pop(path)
		pop.Start = fd.VirtualDentry()
		return pop
	}
	err := e.vfs.MkdirAt(e.ctx, e.ctx.creds, at("x"), &vfs.MkdirOptions{Mode: 0755})
	wantErrno(t, "mkdir in it", err, linuxerr.ENOENT)
	_, err = e.vfs.OpenAt(e.ctx, e.ctx.creds, at("x"), &vfs.OpenOptions{Flags: linux.O_CREAT | linux.O_RDWR})
	wantErrno(t, "open in it", err, linuxerr.ENOENT)
	e.create("f", "")
	err = e.vfs.RenameAt(e.ctx, e.ctx.creds, e.pop("f"), at("x"), &vfs.RenameOptions{})
	wantErrno(t, "rename into it", err, linuxerr.ENOENT)
	err = fd.IterDirents(e.ctx, vfs.IterDirentsCallbackFunc(func(vfs.Dirent) error { return nil }))
	wantErrno(t, "listing it", err, linuxerr.ENOENT)
	// Its parent is still there.
	if _, err := e.vfs.StatAt(e.ctx, e.ctx.creds, at("../f"), &vfs.StatOptions{}); err != nil {
		t.Errorf("the way up: %v", err)
	}
}

func TestOwnershipOfNewFiles(t *testing.T) {
	e := newEnv(t)
	e.mkdir("shared")
	e.chown("shared", 7, 70)
	e.chmod("shared", 02777)
	user := e.user(1000)
	fd, err := e.open(user, "shared/f", linux.O_CREAT|linux.O_RDWR, 02755)
	if err != nil {
		t.Fatal(err)
	}
	fd.DecRef(e.ctx)
	st := e.stat("shared/f")
	if st.UID != 1000 || st.GID != 70 || st.Mode != linux.S_IFREG|0755 {
		t.Errorf("file of a stranger to the group: %d:%d %#o", st.UID, st.GID, st.Mode)
	}
	if err := e.vfs.MkdirAt(user, user.creds, e.pop("shared/d"), &vfs.MkdirOptions{Mode: 0700}); err != nil {
		t.Fatal(err)
	}
	if st := e.stat("shared/d"); st.GID != 70 || st.Mode != linux.S_IFDIR|02700 {
		t.Errorf("directory: group %d, mode %#o", st.GID, st.Mode)
	}
}

func TestStickyDirectory(t *testing.T) {
	e := newEnv(t)
	e.mkdir("tmp")
	e.chmod("tmp", 01777)
	alice, bob := e.user(1000), e.user(1001)
	fd, err := e.open(alice, "tmp/hers", linux.O_CREAT|linux.O_RDWR, 0666)
	if err != nil {
		t.Fatal(err)
	}
	fd.DecRef(e.ctx)
	wantErrno(t, "unlink another's file", e.unlink(bob, "tmp/hers"), linuxerr.EPERM)
	wantErrno(t, "rename another's file", e.rename(bob, "tmp/hers", "tmp/his", 0), linuxerr.EPERM)
	wantErrno(t, "unlink one's own", e.unlink(alice, "tmp/hers"), nil)
}

func TestSetStat(t *testing.T) {
	e := newEnv(t)
	e.create("f", "0123456789")
	owner, other := e.user(1000), e.user(1002)
	e.chown("f", 1000, 1000)
	wantErrno(t, "chmod by another", e.setStat(other, "f", linux.Statx{Mask: linux.STATX_MODE, Mode: 0777}), linuxerr.EPERM)
	wantErrno(t, "chmod by the owner", e.setStat(owner, "f", linux.Statx{Mask: linux.STATX_MODE, Mode: 04775}), nil)
	wantErrno(t, "chown by the owner", e.setStat(owner, "f", linux.Statx{Mask: linux.STATX_UID, UID: 1001}), linuxerr.EPERM)
	if st := e.stat("f"); st.Mode != linux.S_IFREG|04775 {
		t.Fatalf("mode %#o", st.Mode)
	}
	e.chown("f", 1000, 1001)
	if st := e.stat("f"); st.Mode != linux.S_IFREG|0775 {
		t.Errorf("after chown the mode is %#o", st.Mode)
	}
	wantErrno(t, "truncate by another", e.setStat(other, "f", linux.Statx{Mask: linux.STATX_SIZE, Size: 3}), linuxerr.EACCES)
	wantErrno(t, "truncate", e.setStat(owner, "f", linux.Statx{Mask: linux.STATX_SIZE, Size: 3}), nil)
	if got := e.content("f"); got != "012" {
		t.Errorf("after truncation: %q", got)
	}
	e.mkdir("d")
	wantErrno(t, "truncate a directory", e.setStat(e.ctx, "d", linux.Statx{Mask: linux.STATX_SIZE}), linuxerr.EISDIR)
	when := linux.StatxTimestamp{Sec: -5, Nsec: 250}
	wantErrno(t, "utimens", e.setStat(owner, "f", linux.Statx{Mask: linux.STATX_ATIME | linux.STATX_MTIME, Atime: when, Mtime: when}), nil)
	if st := e.stat("f"); st.Mtime != when || st.Atime != when {
		t.Errorf("times are %v and %v, not %v", st.Atime, st.Mtime, when)
	}
	now := linux.StatxTimestamp{Nsec: linux.UTIME_NOW}
	wantErrno(t, "one time to now by another", e.setStat(other, "f", linux.Statx{Mask: linux.STATX_MTIME, Mtime: now}), linuxerr.EPERM)
	bothNow := linux.Statx{Mask: linux.STATX_ATIME | linux.STATX_MTIME, Atime: now, Mtime: now}
	wantErrno(t, "both times to now by another", e.setStat(other, "f", bothNow), linuxerr.EACCES)
	e.chmod("f", 0666)
	wantErrno(t, "both times to now by a writer", e.setStat(other, "f", bothNow), nil)
	wantErrno(t, "utimens to now", e.setStat(owner, "f", linux.Statx{Mask: linux.STATX_MTIME, Mtime: now}), nil)
	if st := e.stat("f"); st.Mtime.Sec < 1e9 {
		t.Errorf("mtime is %v", st.Mtime)
	}
	e.limits.SetUnchecked(limits.FileSize, limits.Limit{Cur: 100, Max: 100})
	err := e.setStat(owner, "f", linux.Statx{Mask: linux.STATX_SIZE, Size: 101})
	if err != linuxerr.ErrExceedsFileSizeLimit {
		t.Errorf("truncate beyond the limit: %v", err)
	}
}

func TestSetuidBitsGoWithWrites(t *testing.T) {
	e := newEnv(t)
	for _, c := range []struct {
		mode, want uint16
		root       bool
	}{
		{04777, 0777, false},
		{02777, 0777, false},
		{02767, 02767, false}, // no group execution: mandatory locking, not a privilege
		{06777, 06777, true},
	} {
		name := fmt.Sprintf("f%o", c.mode)
		e.create(name, "")
		e.chmod(name, c.mode)
		ctx := e.user(1000)
		if c.root {
			ctx = e.ctx
		}
		fd, err := e.open(ctx, name, linux.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fd.PWrite(ctx, usermem.BytesIOSequence([]byte("x")), 0, vfs.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
		fd.DecRef(ctx)
		if st := e.stat(name); st.Mode != linux.S_IFREG|c.want {
			t.Errorf("mode %#o becomes %#o with a write, not %#o", c.mode, st.Mode, c.want)
		}
	}
}

func TestListing(t *testing.T) {
	e := newEnv(t)
	e.mkdir("d")
	const files = 500
	for n := range files {
		e.create(fmt.Sprintf("d/%03d", n), "")
	}
	fd := e.mustOpen("d", linux.O_RDONLY|linux.O_DIRECTORY)
	seen := map[string]int{}
	full := fmt.Errorf("buffer full")
	var offsets []int64
	var names []string
	room := 0
	handle := vfs.IterDirentsCallbackFunc(func(d vfs.Dirent) error {
		if room == 0 {
			return full
		}
		room--
		seen[d.Name]++
		offsets, names = append(offsets, d.NextOff), append(names, d.Name)
		wantType := uint8(linux.DT_REG)
		if d.Name == "." || d.Name == ".." {
			wantType = linux.DT_DIR
		}
		if d.Type != wantType {
			t.Errorf("%q has type %d", d.Name, d.Type)
		}
		return nil
	})
	// Listed in pieces, with removals and creations in between.
	for step := 0; ; step++ {
		room = 7
		err := fd.IterDirents(e.ctx, handle)
		if err == nil {
			break
		}
		if err != full {
			t.Fatal(err)
		}
		if step%10 == 0 {
			wantErrno(t, "unlink", e.unlink(e.ctx, "d/"+names[len(names)-1]), nil)
			e.create(fmt.Sprintf("d/new%d", step), "")
		}
		if step > files {
			t.Fatal("the listing does not end")
		}
	}
	if names[0] != "." || names[1] != ".." {
		t.Errorf("the listing begins with %q", names[:2])
	}
	for n := range files {
		if name := fmt.Sprintf("%03d", n); seen[name] != 1 {
			t.Errorf("%s was listed %d times", name, seen[name])
		}
	}
	// An offset leads to what followed it, without what has gone meanwhile.
	at := len(names) / 2
	if _, err := fd.Seek(e.ctx, offsets[at], linux.SEEK_SET); err != nil {
		t.Fatal(err)
	}
	rest := slices.Clone(names[at+1:])
	rest = slices.DeleteFunc(rest, func(name string) bool { return !e.exists("d/" + name) })
	names, room = nil, -1
	if err := fd.IterDirents(e.ctx, handle); err != nil {
		t.Fatal(err)
	}
	names = slices.DeleteFunc(names, func(name string) bool { return strings.HasPrefix(name, "new") })
	rest = slices.DeleteFunc(rest, func(name string) bool { return strings.HasPrefix(name, "new") })
	if !slices.Equal(names, rest) {
		t.Errorf("after seekdir %d entries follow, not %d", len(names), len(rest))
	}
	if _, err := fd.Seek(e.ctx, 0, linux.SEEK_SET); err != nil {
		t.Fatal(err)
	}
	names = nil
	if err := fd.IterDirents(e.ctx, handle); err != nil || len(names) != len(e.list("d")) {
		t.Errorf("after rewinddir %d entries: %v", len(names), err)
	}
}

func TestExtendedAttributes(t *testing.T) {
	e := newEnv(t)
	e.create("f", "")
	e.symlink("f", "l")
	user := e.user(1000)
	set := func(ctx *testContext, path, name, value string, flags uint32) error {
		return e.vfs.SetXattrAt(ctx, ctx.creds, e.pop(path), &vfs.SetXattrOptions{Name: name, Value: value, Flags: flags})
	}
	get := func(ctx *testContext, path, name string) (string, error) {
		return e.vfs.GetXattrAt(ctx, ctx.creds, e.pop(path), &vfs.GetXattrOptions{Name: name, Size: 65536})
	}
	wantErrno(t, "replace missing", set(e.ctx, "f", "user.a", "1", linux.XATTR_REPLACE), linuxerr.ENODATA)
	wantErrno(t, "create", set(e.ctx, "f", "user.a", "1", linux.XATTR_CREATE), nil)
	wantErrno(t, "create existing", set(e.ctx, "f", "user.a", "1", linux.XATTR_CREATE), linuxerr.EEXIST)
	wantErrno(t, "set", set(e.ctx, "f", "user.a", "2", 0), nil)
	wantErrno(t, "trusted", set(e.ctx, "f", "trusted.t", "3", 0), nil)
	wantErrno(t, "trusted as user", set(user, "f", "trusted.t", "3", 0), linuxerr.EPERM)
	wantErrno(t, "user attribute as user", set(user, "f", "user.b", "3", 0), linuxerr.EACCES)
	wantErrno(t, "user attribute of a link", set(e.ctx, "l", "user.b", "3", 0), linuxerr.EPERM)
	wantErrno(t, "unknown namespace", set(e.ctx, "f", "nonsense.b", "3", 0), linuxerr.EOPNOTSUPP)
	wantErrno(t, "namespace without a name", set(e.ctx, "f", "user.", "3", 0), linuxerr.EINVAL)
	if v, err := get(user, "f", "user.a"); v != "2" || err != nil {
		t.Errorf("user.a is %q, %v", v, err)
	}
	_, err := get(user, "f", "trusted.t")
	wantErrno(t, "trusted read as user", err, linuxerr.ENODATA)
	_, err = get(e.ctx, "f", "user.none")
	wantErrno(t, "missing", err, linuxerr.ENODATA)
	_, err = e.vfs.GetXattrAt(e.ctx, e.ctx.creds, e.pop("f"), &vfs.GetXattrOptions{Name: "trusted.t", Size: 0})
	wantErrno(t, "size only", err, nil)
	names, err := e.vfs.ListXattrAt(user, user.creds, e.pop("f"), 0)
	if err != nil || !slices.Equal(names, []string{"user.a"}) {
		t.Errorf("a user sees %q, %v", names, err)
	}
	names, err = e.vfs.ListXattrAt(e.ctx, e.ctx.creds, e.pop("f"), 0)
	slices.Sort(names)
	if err != nil || !slices.Equal(names, []string{"trusted.t", "user.a"}) {
		t.Errorf("root sees %q, %v", names, err)
	}
	wantErrno(t, "remove", e.vfs.RemoveXattrAt(e.ctx, e.ctx.creds, e.pop("f"), "user.a"), nil)
	wantErrno(t, "remove again", e.vfs.RemoveXattrAt(e.ctx, e.ctx.creds, e.pop("f"), "user.a"), linuxerr.ENODATA)
}

func TestPaths(t *testing.T) {
	e := newEnv(t)
	e.mkdir("d")
	e.mkdir("d/e")
	e.create("d/e/f", "deep")
	e.symlink("e/f", "d/rel")
	e.symlink("/d/e/f", "abs")
	e.symlink("../d/./e", "d/up")
	e.symlink("d/up", "chain")
	for _, path := range []string{
		"d/e/f", "/d/e/f", "d//e/./f", "d/e/../e/f", "../../d/e/f", "d/rel", "abs", "d/up/f", "chain/f", "chain/../e/f",
	} {
		if got := e.content(path); got != "deep" {
			t.Errorf("%s reads %q", path, got)
		}
	}
	if st := e.stat("chain"); st.Mode&linux.S_IFMT != linux.S_IFLNK || st.Size != 4 {
		t.Errorf("the link has mode %#o, size %d", st.Mode, st.Size)
	}
	if st := e.stat("chain/"); st.Mode&linux.S_IFMT != linux.S_IFDIR {
		t.Errorf("behind the link with a slash is mode %#o", st.Mode)
	}
	// 40 links may follow each other, 41 may not.
	e.symlink("d/e/f", "l0")
	for n := range 40 {
		e.symlink(fmt.Sprintf("l%d", n), fmt.Sprintf("l%d", n+1))
	}
	if got := e.content("l39"); got != "deep" {
		t.Errorf("40 links lead to %q", got)
	}
	_, err := e.open(e.ctx, "l40", linux.O_RDONLY, 0)
	wantErrno(t, "41 links", err, linuxerr.ELOOP)
	long := strings.Repeat("x", blobfs.MaxSymlinkBytes)
	e.symlink(long, "long")
	if got, err := e.vfs.ReadlinkAt(e.ctx, e.ctx.creds, e.pop("long")); got != long || err != nil {
		t.Errorf("the longest link has %d bytes, %v", len(got), err)
	}
	wantErrno(t, "a link that is too long", e.vfs.SymlinkAt(e.ctx, e.ctx.creds, e.pop("longer"), long+"x"), linuxerr.ENAMETOOLONG)
	name := strings.Repeat("ü", 127) + "\n"
	e.create(name, "odd")
	if got := e.content(name); got != "odd" {
		t.Errorf("an odd name of 255 bytes reads %q", got)
	}
}

func TestPathNames(t *testing.T) {
	e := newEnv(t)
	e.mkdir("d")
	e.mkdir("d/m")
	if err := e.mount(testVolume, "d/m", true, ""); err != nil {
		t.Fatal(err)
	}
	vd, err := e.vfs.GetDentryAt(e.ctx, e.ctx.creds, e.pop("d/m/d"), &vfs.GetDentryOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer vd.DecRef(e.ctx)
	if got, err := e.vfs.PathnameWithDeleted(e.ctx, e.root, vd); got != "/d/m/d" || err != nil {
		t.Errorf("path %q, %v", got, err)
	}
	if got, err := e.vfs.PathnameInFilesystem(e.ctx, vd); got != "/d" || err != nil {
		t.Errorf("path in the file system %q, %v", got, err)
	}
	var mountInfo, mounts bytes.Buffer
	e.vfs.GenerateProcMountInfo(e.ctx, e.root, &mountInfo)
	e.vfs.GenerateProcMounts(e.ctx, e.root, &mounts)
	for _, s := range []string{mountInfo.String(), mounts.String()} {
		if !strings.Contains(s, "/d/m") || !strings.Contains(s, "blobfs") {
			t.Errorf("mounts are shown as %q", s)
		}
	}
}

// TestShownOptions has the options in the order that Linux gives them.
func TestShownOptions(t *testing.T) {
	all := vfs.MountOptions{ReadOnly: true, Flags: vfs.MountFlags{NoExec: true, NoATime: true, NoDev: true, NoSUID: true}}
	for _, test := range []struct {
		opts             vfs.MountOptions
		own              mountOptions
		readOnly         bool
		mounts           string
		inMount, inSuper string
	}{
		{vfs.MountOptions{}, mountOptions{}, false, "rw,relatime", "rw,relatime", "rw"},
		{vfs.MountOptions{}, mountOptions{}, true, "ro,relatime", "rw,relatime", "ro"},
		{vfs.MountOptions{Flags: vfs.MountFlags{NoATime: true}}, mountOptions{commitInterval: 7 * time.Second}, false, "rw,noatime,commit=7", "rw,noatime", "rw,commit=7"},
		{vfs.MountOptions{}, mountOptions{strictAtime: true}, false, "rw,strictatime", "rw", "rw,strictatime"},
		{all, mountOptions{}, false, "ro,nosuid,nodev,noexec,noatime", "ro,nosuid,nodev,noexec,noatime", "rw"},
	} {
		fs := &filesystem{
			volume:  &volume{spec: VolumeSpec{Name: "v", ReadOnly: test.readOnly}},
			options: test.own.show(), strictAtime: test.own.strictAtime,
		}
		if source, options := fs.ProcMounts(test.opts); source != "v" || options != test.mounts {
			t.Errorf("mounts: %q %q, want %q", source, options, test.mounts)
		}
		if source, mount, super := fs.ProcMountInfo(test.opts); source != "v" || mount != test.inMount || super != test.inSuper {
			t.Errorf("mountinfo: %q %q %q, want %q %q", source, mount, super, test.inMount, test.inSuper)
		}
	}
}
