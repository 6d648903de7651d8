package sentry

import (
	"testing"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/usermem"
)

// TestSyncOption makes changes on a volume mounted with the option sync, and looks
// for each on the image without any call that syncs.
func TestSyncOption(t *testing.T) {
	e := newSyncEnvWith(t, ",sync")
	fd := e.mustOpen("m/file", linux.O_CREAT|linux.O_RDWR)
	want := func(after, path, content string) {
		t.Helper()
		if got := e.onImage(path); got != content {
			t.Errorf("after %s: %q is on the image, want %q", after, got, content)
		}
	}
	want("open", "file", "")
	e.write(fd, "written")
	want("write", "file", "written")
	wantErrno(t, "ftruncate", fd.SetStat(e.ctx, vfs.SetStatOptions{Stat: linux.Statx{Mask: linux.STATX_SIZE, Size: 4}}), nil)
	want("ftruncate", "file", "writ")
	wantErrno(t, "truncate", e.setStat(e.ctx, "m/file", linux.Statx{Mask: linux.STATX_SIZE, Size: 3}), nil)
	want("truncate", "file", "wri")
	wantErrno(t, "fallocate", fd.Allocate(e.ctx, linux.FALLOC_FL_PUNCH_HOLE|linux.FALLOC_FL_KEEP_SIZE, 1, 1), nil)
	want("fallocate", "file", "w\x00i")
	wantErrno(t, "link", e.link(e.ctx, "m/file", "m/link"), nil)
	want("link", "link", "w\x00i")
	wantErrno(t, "rename", e.rename(e.ctx, "m/link", "m/moved", 0), nil)
	want("rename", "moved", "w\x00i")
	wantErrno(t, "unlink", e.unlink(e.ctx, "m/moved"), nil)
	want("unlink", "moved", "missing")
	e.mustOpen("m/file", linux.O_WRONLY|linux.O_TRUNC)
	want("open with O_TRUNC", "file", "")
}

// TestDirSyncOption does so with the option dirsync, for names only.
func TestDirSyncOption(t *testing.T) {
	e := newSyncEnvWith(t, ",dirsync")
	e.mkdir("m/dir")
	fd := e.mustOpen("m/dir/file", linux.O_CREAT|linux.O_RDWR)
	if got := e.onImage("dir/file"); got != "" {
		t.Errorf("after open: %q", got)
	}
	if _, err := fd.Write(e.ctx, usermem.BytesIOSequence(make([]byte, 5000)), vfs.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := e.onImage("dir/file"); got != "" {
		t.Errorf("data is on the image that nobody has synced: %d bytes", len(got))
	}
	wantErrno(t, "unlink", e.unlink(e.ctx, "m/dir/file"), nil)
	if got := e.onImage("dir/file"); got != "missing" {
		t.Errorf("after unlink: %q", got)
	}
	wantErrno(t, "rmdir", e.rmdir(e.ctx, "m/dir"), nil)
	if got := e.onImage("dir"); got != "missing" {
		t.Errorf("after rmdir: %q", got)
	}
}
