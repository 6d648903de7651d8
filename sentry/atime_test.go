package sentry

import (
	"testing"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/usermem"
)

// TestAccessTimes reads a file, a directory and a symbolic link in every way
// that counts as an access, or is meant not to.
func TestAccessTimes(t *testing.T) {
	e := newEnv(t)
	e.mkdir("d")
	e.create("d/file", "content")
	e.symlink("file", "d/link")
	for path, flags := range map[string]vfs.MountFlags{"plain": {}, "noatime": {NoATime: true}} {
		e.mkdir(path)
		_, err := e.vfs.MountAt(e.ctx, e.ctx.creds, testVolume, e.pop(path), FilesystemName, &vfs.MountOptions{
			Flags:                flags,
			GetFilesystemOptions: vfs.GetFilesystemOptions{InternalMount: true},
		})
		wantErrno(t, "mount", err, nil)
	}
	readFile := func(under string, flags uint32) {
		fd := e.mustOpen(under+"/d/file", linux.O_RDONLY|flags)
		if _, err := fd.Read(e.ctx, usermem.BytesIOSequence(make([]byte, 1)), vfs.ReadOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	readDir := func(under string, flags uint32) {
		fd := e.mustOpen(under+"/d", linux.O_RDONLY|linux.O_DIRECTORY|flags)
		err := fd.IterDirents(e.ctx, vfs.IterDirentsCallbackFunc(func(vfs.Dirent) error { return nil }))
		wantErrno(t, "IterDirents", err, nil)
	}
	readLink := func(under string, _ uint32) {
		target, err := e.vfs.ReadlinkAt(e.ctx, e.ctx.creds, e.pop(under+"/d/link"))
		if err != nil || target != "file" {
			t.Fatal(target, err)
		}
	}
	followLink := func(under string, _ uint32) { e.mustOpen(under+"/d/link", linux.O_RDONLY) }
	for _, c := range []struct {
		what  string
		path  string
		read  func(under string, flags uint32)
		under string
		flags uint32
		moves bool
	}{
		{"file", "d/file", readFile, "plain", 0, true},
		{"file, O_NOATIME", "d/file", readFile, "plain", linux.O_NOATIME, false},
		{"file, noatime", "d/file", readFile, "noatime", 0, false},
		{"directory", "d", readDir, "plain", 0, true},
		{"directory, O_NOATIME", "d", readDir, "plain", linux.O_NOATIME, false},
		{"directory, noatime", "d", readDir, "noatime", 0, false},
		{"link", "d/link", readLink, "plain", 0, true},
		{"link, noatime", "d/link", readLink, "noatime", 0, false},
		{"link followed", "d/link", followLink, "plain", 0, true},
		{"link followed, noatime", "d/link", followLink, "noatime", 0, false},
	} {
		old := linux.StatxTimestamp{Sec: 1000}
		wantErrno(t, "utimens", e.setStat(e.ctx, c.path, linux.Statx{Mask: linux.STATX_ATIME | linux.STATX_MTIME, Atime: old, Mtime: old}), nil)
		c.read(c.under, c.flags)
		if moved := e.stat(c.path).Atime != old; moved != c.moves {
			t.Errorf("%s: the access time moved: %v, not %v", c.what, moved, c.moves)
		}
	}
}
