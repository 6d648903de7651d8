package gofer

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const testSizeBytes = 32 << 20

// holdEnv makes the test program open an image and hold it until it is killed.
const holdEnv = "RUNSC_FS_TEST_HOLD"

func TestMain(m *testing.M) {
	if path := os.Getenv(holdEnv); path != "" {
		v, err := OpenVolume(VolumeSpec{Name: "held", Kind: KindImage, Path: path, SizeBytes: testSizeBytes})
		fmt.Println(err)
		for {
			time.Sleep(time.Hour)
			runtime.KeepAlive(v) // collected, it would be closed
		}
	}
	os.Exit(m.Run())
}

func newImage(t *testing.T, sizeBytes int64) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "image")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Truncate(sizeBytes), f.Close()); err != nil {
		t.Fatal(err)
	}
	if err := Format(path, sizeBytes, "test"); err != nil {
		t.Fatal(err)
	}
	return path
}

func imageSpec(path string) VolumeSpec {
	return VolumeSpec{Name: "v", Kind: KindImage, Path: path, SizeBytes: testSizeBytes}
}

func TestImageIsExclusiveBetweenProcesses(t *testing.T) {
	path := newImage(t, testSizeBytes)
	holder := exec.Command("/proc/self/exe")
	holder.Env = append(os.Environ(), holdEnv+"="+path)
	out, err := holder.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		holder.Process.Kill()
		holder.Wait()
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || line != "<nil>\n" {
		t.Fatalf("the holder says %q, %v", line, err)
	}

	_, err = OpenVolume(imageSpec(path))
	if !errors.Is(err, ErrInUse) || !strings.HasPrefix(err.Error(), `volume "v": image `+path+" is in use") {
		t.Errorf("a second process: %v, want ErrInUse", err)
	}
	if err := Format(path, testSizeBytes, ""); !errors.Is(err, ErrInUse) {
		t.Errorf("formatting an image in use: %v, want ErrInUse", err)
	}
	if err := Probe(path); err != nil {
		t.Errorf("probing an image in use: %v", err)
	}

	holder.Process.Kill() // SIGKILL: the kernel cleans up
	holder.Wait()
	v, err := OpenVolume(imageSpec(path))
	if err != nil {
		t.Fatalf("after the holder was killed: %v", err)
	}
	v.Close()
}

// TestLockGoesWithTheDescriptor hands the image to another process, as to a
// sandbox, and closes it here.
func TestLockGoesWithTheDescriptor(t *testing.T) {
	path := newImage(t, testSizeBytes)
	v, err := OpenVolume(imageSpec(path))
	if err != nil {
		t.Fatal(err)
	}
	sandbox := exec.Command("sleep", "60")
	sandbox.ExtraFiles = []*os.File{v.File}
	if err := sandbox.Start(); err != nil {
		t.Fatal(err)
	}
	v.Close()
	if _, err := OpenVolume(imageSpec(path)); !errors.Is(err, ErrInUse) {
		t.Errorf("while the other process lives: %v, want ErrInUse", err)
	}
	sandbox.Process.Kill()
	sandbox.Wait()
	if v, err = OpenVolume(imageSpec(path)); err != nil {
		t.Fatalf("after the other process died: %v", err)
	}
	v.Close()
}

func TestBadImages(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	good := newImage(t, testSizeBytes)
	write := func(name string, change func([]byte) []byte) string {
		t.Helper()
		text, err := os.ReadFile(good)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at(name), change(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return at(name)
	}
	if err := os.Symlink(good, at("link")); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(at("fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		path, want string
	}{
		{at("none"), "is missing; put a copy of it back, or give the volume up with 'runsc-fs volume rm v'"},
		{at("link"), "is a symbolic link, not a regular file; put a copy of it back"},
		{dir, "is a directory, not a regular file; "},
		{at("fifo"), "is a pipe or socket, not a regular file; "},
		{"/dev/null", "is a character device, not a regular file; "},
		{write("zeroes", func(b []byte) []byte { clear(b); return b }), "holds no blobfs any more: its superblocks were overwritten; "},
		{write("text", func(b []byte) []byte { return []byte(strings.Repeat("not an image. ", len(b)/14+1)[:len(b)]) }), "holds no blobfs any more: "},
		{write("short", func(b []byte) []byte { return b[:len(b)/2] }), "has 16777216 bytes instead of 33554432: it was changed from outside; put a copy of it back, or "},
		{write("corrupt", func(b []byte) []byte {
			for off := 0; off < 16*4096; off += 4096 {
				b[off+100] ^= 0xff
			}
			return b
		}), "cannot be mounted: "},
	} {
		v, err := OpenVolume(imageSpec(test.path))
		if err == nil {
			v.Close()
			t.Errorf("%s: no error", test.path)
			continue
		}
		want := fmt.Sprintf("volume %q: image %s %s", "v", test.path, test.want)
		if !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: error\n\t%v\nwant\n\t%s", test.path, err, want)
		}
	}
	// A file that has never been a volume's may be made one.
	for path, want := range map[string]string{
		at("zeroes"): "holds no blobfs; 'runsc-fs mkfs --force ", write("tiny", func(b []byte) []byte { return b[:4096] }): "is too small to hold a blobfs",
	} {
		if err := Probe(path); err == nil || !strings.HasPrefix(err.Error(), "image "+path+" "+want) {
			t.Errorf("probing: error %v, want %s", err, want)
		}
	}
	if v, err := OpenVolume(imageSpec(good)); err != nil {
		t.Errorf("the good one: %v", err)
	} else {
		v.Close()
	}
}

func TestReadOnlyImage(t *testing.T) {
	path := newImage(t, testSizeBytes)
	// An immutable file cannot be opened for writing, not even by root. Where
	// the file system has no such flag, a mode does it for other users.
	if err := setImmutable(path, true); err == nil {
		t.Cleanup(func() { setImmutable(path, false) })
	} else if err := os.Chmod(path, 0o400); err != nil {
		t.Fatal(err)
	}
	wantReadOnly := unix.Access(path, unix.W_OK) != nil
	spec := imageSpec(path)
	if v, err := OpenVolume(spec); (err != nil) != wantReadOnly {
		t.Errorf("open for writing: %v, want an error: %v", err, wantReadOnly)
	} else if err == nil {
		v.Close()
	}
	spec.ReadOnly = true
	v, err := OpenVolume(spec)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	if _, err := v.File.WriteAt([]byte("x"), 0); err == nil {
		t.Error("an image that was opened for reading can be written")
	}
	if err := Populate(v, t.TempDir()); err == nil {
		t.Error("files are copied into a read-only image")
	}
}

func setImmutable(path string, on bool) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	flags, err := unix.IoctlGetUint32(int(f.Fd()), unix.FS_IOC_GETFLAGS)
	if err != nil {
		return err
	}
	flags &^= unix.STATX_ATTR_IMMUTABLE
	if on {
		flags |= unix.STATX_ATTR_IMMUTABLE
	}
	return unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, int(flags))
}

func TestMemoryIsSealed(t *testing.T) {
	v, err := OpenVolume(VolumeSpec{Name: "m", Kind: KindMemory, SizeBytes: testSizeBytes})
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	if err := v.File.Truncate(testSizeBytes / 2); err == nil {
		t.Error("the memory can be shortened under the sandbox")
	}
	if end, err := v.File.Seek(0, io.SeekEnd); err != nil || end != testSizeBytes {
		t.Errorf("size %d, %v; want %d", end, err, testSizeBytes)
	}
	if err := probe(v.File, "memory", testSizeBytes); err != nil {
		t.Errorf("the memory is not formatted: %v", err)
	}
	if _, err := OpenVolume(VolumeSpec{Name: "m", Kind: KindMemory}); err == nil {
		t.Error("no error for a size of 0")
	}
	if _, err := OpenVolume(VolumeSpec{Name: "m", Kind: "tape"}); err == nil {
		t.Error("no error for an unknown kind")
	}
}
