package sentry

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
)

// syncEnv is a volume in an image file that is mounted at m and never commits
// by itself while a test runs.
type syncEnv struct {
	*env
	path   string
	copies int
	t      *testing.T
}

func newSyncEnv(t *testing.T) *syncEnv { return newSyncEnvWith(t, "") }

// newSyncEnvWith is newSyncEnv with further mount options.
func newSyncEnvWith(t *testing.T, options string) *syncEnv {
	e := &syncEnv{env: newEnv(t), t: t}
	e.mkdir("m")
	e.path = testImage(t, 32<<20)
	if err := AddVolume(VolumeSpec{Name: "img", Kind: KindImage, File: openImage(t, e.path, os.O_RDWR), New: true}); err != nil {
		t.Fatal(err)
	}
	if err := e.mount("img", "m", false, "commit=3600"+options); err != nil {
		t.Fatal(err)
	}
	return e
}

// onImage reads a file from a copy of the image as it is now, as if the sandbox
// had been killed. A file that is not there is "missing".
func (e *syncEnv) onImage(path string) string {
	e.t.Helper()
	b, err := os.ReadFile(e.path)
	if err != nil {
		e.t.Fatal(err)
	}
	e.copies++
	name := fmt.Sprintf("copy%d", e.copies)
	copied := filepath.Join(filepath.Dir(e.path), name)
	if err := os.WriteFile(copied, b, 0o600); err != nil {
		e.t.Fatal(err)
	}
	f, err := os.OpenFile(copied, os.O_RDWR, 0)
	if err != nil {
		e.t.Fatal(err)
	}
	if err := AddVolume(VolumeSpec{Name: name, Kind: KindImage, File: f}); err != nil {
		e.t.Fatal(err)
	}
	e.mkdir(name)
	if err := e.mount(name, name, false, ""); err != nil {
		e.t.Fatal(err)
	}
	content := "missing"
	if e.exists(name + "/" + path) {
		content = e.content(name + "/" + path)
	}
	wantErrno(e.t, "umount", e.umount(name), nil)
	return content
}

// TestSyncCallsReachTheDevice makes each call that syncs, and looks at what the
// image has before and after it.
func TestSyncCallsReachTheDevice(t *testing.T) {
	e := newSyncEnv(t)
	whole := strings.Repeat("w", 5000)
	calls := []struct {
		name string
		do   func(fd *vfs.FileDescription) error
	}{
		// sync_file_range(2) with SYNC_FILE_RANGE_WAIT_AFTER is this, too.
		{"fsync", func(fd *vfs.FileDescription) error { return fd.Sync(e.ctx) }},
		{"fdatasync", func(fd *vfs.FileDescription) error { return fd.Impl().(*regularFD).sync(true) }},
		{"syncfs", func(fd *vfs.FileDescription) error { return fd.SyncFS(e.ctx) }},
		{"sync", func(*vfs.FileDescription) error { return e.vfs.SyncAllFilesystems(e.ctx) }},
		{"msync", func(fd *vfs.FileDescription) error {
			opts := memmap.MMapOpts{Length: 4096}
			if err := fd.ConfigureMMap(e.ctx, &opts); err != nil {
				return err
			}
			defer opts.MappingIdentity.DecRef(e.ctx)
			return opts.MappingIdentity.Msync(e.ctx, memmap.MappableRange{Start: 0, End: 4096})
		}},
	}
	for _, c := range calls {
		fd := e.mustOpen("m/"+c.name, linux.O_CREAT|linux.O_RDWR)
		e.write(fd, whole)
		if got := e.onImage(c.name); got != "missing" {
			t.Errorf("before %s: %.20q is on the image already", c.name, got)
		}
		wantErrno(t, c.name, c.do(fd), nil)
		if got := e.onImage(c.name); got != whole {
			t.Errorf("after %s: %.20q is on the image", c.name, got)
		}
	}
	dir := e.mustOpen("m", linux.O_RDONLY|linux.O_DIRECTORY)
	e.create("m/named", "")
	wantErrno(t, "fsync of a directory", dir.Sync(e.ctx), nil)
	if got := e.onImage("named"); got != "" {
		t.Errorf("after fsync of its directory: %q", got)
	}
}

// TestSyncFlags makes writes with the flags that sync, and looks at the image.
func TestSyncFlags(t *testing.T) {
	e := newSyncEnv(t)
	page := strings.Repeat("s", 4096)
	for k, c := range []struct {
		open, write uint32
		durable     bool
	}{
		{0, 0, false}, {linux.O_DIRECT, 0, false},
		{linux.O_DSYNC, 0, true}, {linux.O_SYNC | linux.O_DSYNC, 0, true}, {0, linux.RWF_DSYNC, true}, {0, linux.RWF_SYNC, true},
		{linux.O_DIRECT, linux.RWF_DSYNC, true}, {linux.O_APPEND, linux.RWF_DSYNC, true},
	} {
		name := fmt.Sprint("f", k)
		fd := e.mustOpen("m/"+name, linux.O_CREAT|linux.O_RDWR|c.open)
		if n, err := e.pwrite(fd, 0, page, c.write); n != 4096 || err != nil {
			t.Errorf("flags %#o, %#x: %d, %v", c.open, c.write, n, err)
		}
		if got := e.onImage(name); (got == page) != c.durable {
			t.Errorf("flags %#o, %#x: %.20q is on the image", c.open, c.write, got)
		}
	}
}

// TestCommitOption checks that the option reaches the volume.
func TestCommitOption(t *testing.T) {
	e := newEnv(t)
	e.mkdir("m")
	if err := AddVolume(VolumeSpec{Name: "v", Kind: KindMemory, SizeBytes: 16 << 20}); err != nil {
		t.Fatal(err)
	}
	for data, want := range map[string]time.Duration{"": 5 * time.Second, "commit=1": time.Second, "commit=3600": time.Hour} {
		if err := e.mount("v", "m", false, data); err != nil {
			t.Fatal(err)
		}
		if got := volumes.byName["v"].fs.blob.CommitInterval(); got != want {
			t.Errorf("%q: commits each %v", data, got)
		}
		wantErrno(t, "umount", e.umount("m"), nil)
	}
	for _, data := range []string{"commit=0", "commit=3601", "commit=", "commit=x", "commit=-1"} {
		if err := e.mount("v", "m", false, data); err == nil {
			t.Errorf("%q was taken", data)
		}
	}
}
