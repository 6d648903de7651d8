package sentry

import (
	goContext "context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
)

// testImage returns a new image file.
func testImage(t *testing.T, size int64) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "image")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	return path
}

func openImage(t *testing.T, path string, flag int) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, flag, 0)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func (e *env) mount(source, at string, readOnly bool, data string) error {
	_, err := e.vfs.MountAt(e.ctx, e.ctx.creds, source, e.pop(at), FilesystemName, &vfs.MountOptions{
		ReadOnly:             readOnly,
		GetFilesystemOptions: vfs.GetFilesystemOptions{InternalMount: true, Data: data},
	})
	return err
}

func (e *env) umount(at string) error {
	return e.vfs.UmountAt(e.ctx, e.ctx.creds, e.pop(at), &vfs.UmountOptions{})
}

func TestVolumeSpecs(t *testing.T) {
	volumes = &registry{}
	if err := AddVolume(VolumeSpec{Name: "v", Kind: KindMemory, SizeBytes: 1 << 20}); !errors.Is(err, ErrNotSetUp) {
		t.Errorf("before Setup: %v", err)
	}
	newRegistry(t, Config{})
	if err := Setup(Config{}); err == nil {
		t.Error("Setup succeeded twice")
	}
	for _, spec := range []VolumeSpec{
		{Kind: KindMemory, SizeBytes: 1 << 20},
		{Name: "a/b", Kind: KindMemory, SizeBytes: 1 << 20},
		{Name: "a,b", Kind: KindMemory, SizeBytes: 1 << 20},
		{Name: strings.Repeat("a", 300), Kind: KindMemory, SizeBytes: 1 << 20},
		{Name: "v", Kind: KindMemory},
		{Name: "v", Kind: KindMemory, SizeBytes: -1},
		{Name: "v", Kind: KindMemory, SizeBytes: 1 << 20, ReadOnly: true},
		{Name: "v", Kind: KindImage},
		{Name: "v", Kind: "tape"},
	} {
		if err := AddVolume(spec); err == nil {
			t.Errorf("%+v was accepted", spec)
		}
	}
	if err := AddVolume(VolumeSpec{Name: "v", Kind: KindMemory, SizeBytes: 32 << 20}); err != nil {
		t.Fatal(err)
	}
	if err := AddVolume(VolumeSpec{Name: "v", Kind: KindMemory, SizeBytes: 32 << 20, ContainerID: "other"}); err != nil {
		t.Errorf("the same volume for another container: %v", err)
	}
	if err := AddVolume(VolumeSpec{Name: "v", Kind: KindMemory, SizeBytes: 64 << 20}); !errors.Is(err, ErrConflict) {
		t.Errorf("the same volume with another size: %v", err)
	}
}

func TestMountErrors(t *testing.T) {
	e := newEnv(t)
	e.mkdir("m")
	if err := e.mount("nonesuch", "m", false, ""); !errors.Is(err, ErrUnknownVolume) || !strings.Contains(err.Error(), "nonesuch") {
		t.Errorf("unknown volume: %v", err)
	}
	for _, data := range []string{"nonsense", "commit=0", "commit=x"} {
		if err := e.mount(testVolume, "m", false, data); err == nil {
			t.Errorf("option %q was accepted", data)
		}
	}
	path := testImage(t, 32<<20)
	if err := AddVolume(VolumeSpec{Name: "blank", Kind: KindImage, File: openImage(t, path, os.O_RDWR)}); err != nil {
		t.Fatal(err)
	}
	err := e.mount("blank", "m", false, "")
	if err == nil || !strings.Contains(err.Error(), `volume "blank"`) || strings.Contains(err.Error(), "\n") {
		t.Errorf("blank image: %v", err)
	}
	// An application may not mount at all.
	_, err = e.vfs.MountAt(e.ctx, e.ctx.creds, testVolume, e.pop("m"), FilesystemName, &vfs.MountOptions{})
	wantErrno(t, "mount by an application", err, linuxerr.ENODEV)
}

func TestSharedVolume(t *testing.T) {
	e := newEnv(t)
	e.mkdir("again")
	e.mkdir("ro")
	if err := e.mount(testVolume, "again", false, ""); err != nil {
		t.Fatal(err)
	}
	if err := e.mount("", "ro", true, "volume="+testVolume); err != nil {
		t.Fatal(err)
	}
	e.create("again/f", "shared")
	if e.content("f") != "shared" || e.content("ro/f") != "shared" {
		t.Error("the mounts differ")
	}
	wantErrno(t, "unlink through one mount", e.unlink(e.ctx, "f"), nil)
	if e.exists("again/f") || e.exists("ro/f") {
		t.Error("another mount still has the file")
	}
	_, err := e.open(e.ctx, "ro/g", linux.O_CREAT|linux.O_RDWR, 0644)
	wantErrno(t, "create on the read-only mount", err, linuxerr.EROFS)
	wantErrno(t, "mkdir on the read-only mount", e.vfs.MkdirAt(e.ctx, e.ctx.creds, e.pop("ro/d"), &vfs.MkdirOptions{Mode: 0755}), linuxerr.EROFS)
	wantErrno(t, "mkdir of an existing name there", e.vfs.MkdirAt(e.ctx, e.ctx.creds, e.pop("ro/again"), &vfs.MkdirOptions{Mode: 0755}), linuxerr.EEXIST)
	wantErrno(t, "rename across mounts", e.rename(e.ctx, "again/again", "x", 0), linuxerr.EXDEV)
	wantErrno(t, "removal of a mount point", e.rmdir(e.ctx, "again"), linuxerr.EBUSY)
	wantErrno(t, "umount", e.umount("again"), nil)
	wantErrno(t, "umount", e.umount("ro"), nil)
	e.checkTree(map[string]int64{"": 2})
}

// TestRemount closes the volume with its last mount and finds everything after
// the next.
func TestRemount(t *testing.T) {
	e := newEnv(t)
	e.mkdir("m")
	path := testImage(t, 64<<20)
	spec := VolumeSpec{Name: "img", Kind: KindImage, File: openImage(t, path, os.O_RDWR), New: true, PopulateRoot: &RootSpec{UID: 7, GID: 8, Mode: 0750}}
	if err := AddVolume(spec); err != nil {
		t.Fatal(err)
	}
	for round := range 3 {
		if err := e.mount("img", "m", false, ""); err != nil {
			t.Fatal(err)
		}
		if st := e.stat("m"); st.UID != 7 || st.GID != 8 || st.Mode != linux.S_IFDIR|0750 {
			t.Errorf("round %d: the root is %d:%d %#o", round, st.UID, st.GID, st.Mode)
		}
		for old := range round {
			if got := e.content(fmt.Sprintf("m/f%d", old)); got != fmt.Sprint(old) {
				t.Errorf("round %d: file %d reads %q", round, old, got)
			}
		}
		e.create(fmt.Sprintf("m/f%d", round), fmt.Sprint(round))
		wantErrno(t, "umount", e.umount("m"), nil)
		if v := volumes.byName["img"]; v.fs != nil || v.device != nil {
			t.Errorf("round %d: the volume is still open", round)
		}
	}
}

// TestDonatedMemory mounts memory that the host has made, together with a file
// that is closed when the volume is.
func TestDonatedMemory(t *testing.T) {
	newRegistry(t, Config{})
	fd, err := unix.MemfdCreate("donated", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	mem := os.NewFile(uintptr(fd), "donated")
	lock := openImage(t, testImage(t, 0), os.O_RDWR)
	spec := VolumeSpec{Name: testVolume, Kind: KindMemory, File: mem, Lock: lock, SizeBytes: 32 << 20, New: true}
	if err := mem.Truncate(spec.SizeBytes); err != nil {
		t.Fatal(err)
	}
	if err := AddVolume(spec); err == nil {
		t.Fatal("memory that can be shortened was accepted")
	}
	if _, err := unix.FcntlInt(mem.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW); err != nil {
		t.Fatal(err)
	}
	if err := AddVolume(spec); err != nil {
		t.Fatal(err)
	}
	e := mountEnv(t)
	e.create("f", "donated")
	e.unmount()
	e = mountEnv(t)
	if got := e.content("f"); got != "donated" {
		t.Errorf("read %q", got)
	}
	e.unmount()
	if _, err := lock.Stat(); err != nil {
		t.Errorf("the lock went before the volume: %v", err)
	}
	ctx, cancel := goContext.WithTimeout(goContext.Background(), 30*time.Second)
	defer cancel()
	if err := Shutdown(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := lock.Stat(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("the lock outlives the volume: %v", err)
	}
}

func TestReadOnlyVolume(t *testing.T) {
	e := newEnv(t)
	e.mkdir("m")
	path := testImage(t, 32<<20)
	if err := AddVolume(VolumeSpec{Name: "img", Kind: KindImage, File: openImage(t, path, os.O_RDWR), New: true}); err != nil {
		t.Fatal(err)
	}
	if err := e.mount("img", "m", false, ""); err != nil {
		t.Fatal(err)
	}
	e.create("m/f", "fixed")
	wantErrno(t, "umount", e.umount("m"), nil)

	if err := AddVolume(VolumeSpec{Name: "ro", Kind: KindImage, File: openImage(t, path, os.O_RDONLY), ReadOnly: true}); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.mount("ro", "m", false, ""); err != nil {
		t.Fatal(err)
	}
	if got := e.content("m/f"); got != "fixed" {
		t.Errorf("read %q", got)
	}
	_, err = e.open(e.ctx, "m/g", linux.O_CREAT|linux.O_RDWR, 0644)
	wantErrno(t, "create", err, linuxerr.EROFS)
	wantErrno(t, "unlink", e.unlink(e.ctx, "m/f"), linuxerr.EROFS)
	wantErrno(t, "umount", e.umount("m"), nil)
	if after, err := os.ReadFile(path); err != nil || string(after) != string(before) {
		t.Errorf("the image changed: %v", err)
	}
}

// TestShutdown closes the volumes under a mount that is still in use.
func TestShutdown(t *testing.T) {
	e := newEnv(t)
	e.mkdir("m")
	path := testImage(t, 32<<20)
	if err := AddVolume(VolumeSpec{Name: "img", Kind: KindImage, File: openImage(t, path, os.O_RDWR), New: true}); err != nil {
		t.Fatal(err)
	}
	if err := e.mount("img", "m", false, ""); err != nil {
		t.Fatal(err)
	}
	fd := e.mustOpen("m/f", linux.O_CREAT|linux.O_RDWR)
	e.write(fd, "not synced")
	ctx, cancel := goContext.WithTimeout(goContext.Background(), 30*time.Second)
	defer cancel()
	if err := Shutdown(ctx); err != nil {
		t.Fatal(err)
	}
	if err := Shutdown(ctx); err != nil {
		t.Errorf("a second Shutdown: %v", err)
	}
	if _, err := e.pwrite(fd, 0, "x", linux.RWF_DSYNC); err == nil {
		t.Error("a write after Shutdown succeeded")
	}
	if _, err := e.open(e.ctx, "m/late", linux.O_CREAT|linux.O_RDWR, 0644); err == nil {
		t.Error("a file was created after Shutdown")
	}
	if _, err := e.vfs.StatAt(e.ctx, e.ctx.creds, e.pop("m/unknown"), &vfs.StatOptions{}); err == nil {
		t.Error("a name was found after Shutdown")
	}
	if got := e.stat("m/f").Size; got != 10 {
		t.Errorf("the file has %d bytes after Shutdown", got)
	}
	wantErrno(t, "unlink after Shutdown", e.unlink(e.ctx, "m/f"), linuxerr.EIO)
	wantErrno(t, "fsync after Shutdown", fd.Sync(e.ctx), linuxerr.EIO)
	wantErrno(t, "sync after Shutdown", fd.SyncFS(e.ctx), linuxerr.EIO)
	if err := AddVolume(VolumeSpec{Name: "late", Kind: KindMemory, SizeBytes: 32 << 20}); !errors.Is(err, ErrShutDown) {
		t.Errorf("AddVolume after Shutdown: %v", err)
	}

	newRegistry(t, Config{})
	if err := AddVolume(VolumeSpec{Name: testVolume, Kind: KindImage, File: openImage(t, path, os.O_RDWR)}); err != nil {
		t.Fatal(err)
	}
	e2 := mountEnv(t)
	if got := e2.content("f"); got != "not synced" {
		t.Errorf("after Shutdown the file reads %q", got)
	}
}

func TestSaveIsRefused(t *testing.T) {
	e := newEnv(t)
	err := e.vfs.PrepareSave(e.ctx)
	if err == nil || !strings.Contains(err.Error(), testVolume) {
		t.Errorf("PrepareSave: %v", err)
	}
}
