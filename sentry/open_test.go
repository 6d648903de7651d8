package sentry

import (
	"testing"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/errors"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
)

// TestDirectoryWithoutFollowing opens directories as programs do that walk trees
// which others change under them.
func TestDirectoryWithoutFollowing(t *testing.T) {
	e := newEnv(t)
	e.mkdir("d")
	e.mkdir("d/sub")
	e.create("f", "")
	e.symlink("d", "link")
	e.symlink("/d", "absolute")
	e.symlink("none", "dangling")
	for _, c := range []struct {
		path string
		want *errors.Error
	}{
		{"d", nil}, {"/", nil}, {"d/sub/..", nil}, {"d/.", nil}, {"link/sub", nil}, {"absolute/sub", nil},
		{"f", linuxerr.ENOTDIR}, {"link", linuxerr.ENOTDIR}, {"absolute", linuxerr.ENOTDIR}, {"dangling", linuxerr.ENOTDIR},
		{"d/none", linuxerr.ENOENT}, {"f/none", linuxerr.ENOTDIR},
	} {
		fd, err := e.open(e.ctx, c.path, linux.O_DIRECTORY|linux.O_NOFOLLOW, 0)
		wantErrno(t, c.path, err, c.want)
		if err == nil {
			fd.DecRef(e.ctx)
		}
	}
	e.chmod("d", 0600)
	_, err := e.open(e.user(1000), "d/sub", linux.O_DIRECTORY|linux.O_NOFOLLOW, 0)
	wantErrno(t, "without search permission", err, linuxerr.EACCES)
}

// TestExecutePermission opens programs in order to run them.
func TestExecutePermission(t *testing.T) {
	e := newEnv(t)
	e.create("program", "")
	user := e.user(1000)
	exec := func() error {
		fd, err := e.vfs.OpenAt(user, user.creds, e.follow("program"), &vfs.OpenOptions{Flags: linux.O_RDONLY, FileExec: true})
		if err == nil {
			fd.DecRef(e.ctx)
		}
		return err
	}
	e.chmod("program", 0711)
	wantErrno(t, "of a program that cannot be read", exec(), nil)
	e.chmod("program", 0766)
	wantErrno(t, "of a file that is no program", exec(), linuxerr.EACCES)
}

// TestMappingIsAccess wants mmap to move the access time as a read does.
func TestMappingIsAccess(t *testing.T) {
	e := newEnv(t)
	e.create("f", "content")
	old := linux.StatxTimestamp{Sec: 1}
	access := func(flags uint32) linux.StatxTimestamp {
		t.Helper()
		wantErrno(t, "utimens", e.setStat(e.ctx, "f", linux.Statx{Mask: linux.STATX_ATIME | linux.STATX_MTIME, Atime: old, Mtime: old}), nil)
		opts := memmap.MMapOpts{Length: hostarch.PageSize}
		if err := e.mustOpen("f", linux.O_RDONLY|flags).ConfigureMMap(e.ctx, &opts); err != nil {
			t.Fatal(err)
		}
		opts.MappingIdentity.DecRef(e.ctx)
		return e.stat("f").Atime
	}
	if got := access(linux.O_NOATIME); got != old {
		t.Errorf("atime with O_NOATIME is %v", got)
	}
	if got := access(0); got == old {
		t.Error("atime has not moved")
	}
}

// TestMountRoot wants the root of a mount to be marked as such.
func TestMountRoot(t *testing.T) {
	e := newEnv(t)
	e.mkdir("d")
	for path, want := range map[string]bool{"/": true, "d/..": true, "d": false} {
		st := e.stat(path)
		if st.AttributesMask&statxAttrMountRoot == 0 || st.Attributes&statxAttrMountRoot != 0 != want {
			t.Errorf("attributes of %s are %#x, known are %#x", path, st.Attributes, st.AttributesMask)
		}
	}
}

// TestStatFSFlags wants f_flags to be marked as valid.
func TestStatFSFlags(t *testing.T) {
	e := newEnv(t)
	st, err := e.vfs.StatFSAt(e.ctx, e.ctx.creds, e.pop("/"))
	if err != nil || st.Flags&linux.ST_VALID == 0 {
		t.Errorf("flags %#x, %v", st.Flags, err)
	}
}

// TestAccessOnNoExecMount wants programs on a mount with noexec to count as such
// that cannot be run.
func TestAccessOnNoExecMount(t *testing.T) {
	e := newEnv(t)
	e.mkdir("mnt")
	e.create("program", "")
	e.chmod("program", 0755)
	opts := vfs.MountOptions{Flags: vfs.MountFlags{NoExec: true}, GetFilesystemOptions: vfs.GetFilesystemOptions{InternalMount: true}}
	if _, err := e.vfs.MountAt(e.ctx, e.ctx.creds, testVolume, e.pop("mnt"), FilesystemName, &opts); err != nil {
		t.Fatal(err)
	}
	access := func(path string, ats vfs.AccessTypes) error {
		return e.vfs.AccessAt(e.ctx, e.ctx.creds, ats, e.follow(path))
	}
	wantErrno(t, "running", access("mnt/program", vfs.MayExec), linuxerr.EACCES)
	wantErrno(t, "reading", access("mnt/program", vfs.MayRead), nil)
	wantErrno(t, "searching", access("mnt/.", vfs.MayExec), nil)
	wantErrno(t, "running elsewhere", access("program", vfs.MayExec), nil)
}

// TestOrderOnReadOnlyMount looks at calls that fail for more than one reason: the
// reason that Linux finds first is the one to give.
func TestOrderOnReadOnlyMount(t *testing.T) {
	e := newEnv(t)
	for _, dir := range []string{"m", "d", "d/sub"} {
		e.mkdir(dir)
	}
	e.create("d/f", "")
	if err := e.mount(testVolume, "m", true, ""); err != nil {
		t.Fatal(err)
	}
	user := e.user(1000)
	open := func(ctx *testContext, path string, flags uint32) error {
		fd, err := e.open(ctx, path, flags, 0644)
		if err == nil {
			fd.DecRef(e.ctx)
		}
		return err
	}
	truncate := linux.Statx{Mask: linux.STATX_SIZE}
	wantErrno(t, "unlink of nothing", e.unlink(e.ctx, "m/d/none"), linuxerr.EROFS)
	wantErrno(t, "unlink of a directory", e.unlink(e.ctx, "m/d/sub"), linuxerr.EROFS)
	wantErrno(t, "unlink of a dot", e.unlink(e.ctx, "m/d/."), linuxerr.EISDIR)
	wantErrno(t, "unlink in nothing", e.unlink(e.ctx, "m/none/f"), linuxerr.ENOENT)
	wantErrno(t, "rmdir of a file", e.rmdir(user, "m/d/f"), linuxerr.EROFS)
	wantErrno(t, "rmdir of a dot", e.rmdir(e.ctx, "m/d/."), linuxerr.EINVAL)
	wantErrno(t, "truncation of a directory", e.setStat(e.ctx, "m/d", truncate), linuxerr.EISDIR)
	wantErrno(t, "truncation without permission", e.setStat(user, "m/d/f", truncate), linuxerr.EACCES)
	wantErrno(t, "truncation", e.setStat(e.ctx, "m/d/f", truncate), linuxerr.EROFS)
	wantErrno(t, "O_TRUNC without permission", open(user, "m/d/f", linux.O_WRONLY|linux.O_TRUNC), linuxerr.EROFS)
	wantErrno(t, "writing without permission", open(user, "m/d/f", linux.O_WRONLY), linuxerr.EACCES)
	wantErrno(t, "O_TRUNC of a directory", open(user, "m/d", linux.O_RDONLY|linux.O_TRUNC), linuxerr.EISDIR)
}
