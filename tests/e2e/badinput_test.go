package e2e

import (
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"runsc-fs/tests/lab"
)

// badMount is a mount that must be refused: its error names the thing and says what
// to do, and nothing has changed.
type badMount struct {
	name  string
	mount func(t *testing.T) specs.Mount
	want  []string
}

// spoiled makes a volume, lets change work on its image, and gives a mount of it.
func spoiled(change func(t *testing.T, image string)) func(t *testing.T) specs.Mount {
	return func(t *testing.T) specs.Mount {
		v := newUncheckedVolume(t, "--size=64M")
		run(t, bundle("echo something > /data/file", lab.VolumeMount(v, "/data")))
		change(t, inspect(t, v).Image)
		return lab.VolumeMount(v, "/data")
	}
}

func mountOf(source string, options ...string) func(t *testing.T) specs.Mount {
	return func(*testing.T) specs.Mount { return lab.VolumeMount(source, "/data", options...) }
}

// overwrite writes content at the beginning of a file.
func overwrite(t *testing.T, path string, content io.Reader) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	must(t, err)
	_, err = io.Copy(f, content)
	must(t, err)
	must(t, f.Close())
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

func TestBadMounts(t *testing.T) {
	r := plainRuntime(t)
	existing := newVolume(t, "--size=64M")
	for _, c := range []badMount{
		{"unknown volume", mountOf("nosuch"), []string{`volume "nosuch" does not exist`, "runsc-fs volume create nosuch"}},
		{"no volume named", mountOf(""), []string{"/data"}},
		{"path instead of a name", mountOf("/etc"), []string{"/etc", "/data"}},
		{"path out of the registry", mountOf("../../etc"), []string{"../../etc"}},
		{"unknown option", mountOf(existing, "colour=blue"), []string{"colour=blue"}},
		{"wiped image", spoiled(func(t *testing.T, image string) {
			overwrite(t, image, io.LimitReader(zeros{}, 64<<20))
		}), []string{"blobfs"}},
		{"no blobfs image", spoiled(func(t *testing.T, image string) {
			overwrite(t, image, io.LimitReader(rand.Reader, 8<<20))
		}), []string{"blobfs"}},
		{"corrupt superblocks", spoiled(func(t *testing.T, image string) {
			b, err := os.ReadFile(image)
			must(t, err)
			// Spoil a byte in each of the first 64 blocks and leave the magic numbers.
			for block := range 64 {
				b[block*4096+100] ^= 0xff
			}
			must(t, os.WriteFile(image, b, 0o600))
		}), []string{"corrupt"}},
		{"cut image", spoiled(func(t *testing.T, image string) {
			must(t, os.Truncate(image, 20<<20))
		}), []string{"64", "20"}},
		{"missing image", spoiled(func(t *testing.T, image string) {
			must(t, os.Rename(image, image+".away"))
			t.Cleanup(func() { must(t, os.Rename(image+".away", image)) })
		}), []string{"image", "missing"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := c.mount(t)
			before := hashTree(t, volumeRoot())
			res, err := r.Run(testContext(t, time.Minute), bundle("echo started", m), time.Minute)
			wantError(t, res, err, c.want...)
			if strings.Contains(res.Stdout, "started") {
				t.Error("the container ran")
			}
			t.Logf("%s", strings.TrimSpace(res.Stderr))
			if after := hashTree(t, volumeRoot()); after != before {
				t.Error("the failed mount changed something in the registry")
			}
			if list, err := r.Command(testContext(t, time.Minute), "list", "--quiet"); err != nil || strings.TrimSpace(list.Stdout) != "" {
				t.Errorf("the failed container left something: %q (%v)", list.Stdout, err)
			}
		})
	}
}

func TestBadCommands(t *testing.T) {
	plainRuntime(t)
	existing := newVolume(t, "--size=64M")
	notImage := filepath.Join(shared.dir, uniqueName(t, "noimage"))
	must(t, os.WriteFile(notImage, []byte(strings.Repeat("no image\n", 4<<20)), 0o600))
	small := tinyTmpfs(t, "16k")
	missing := filepath.Join(shared.dir, "missing", "image")
	for _, c := range []struct {
		args []string
		want []string
	}{
		{[]string{"volume", "create", existing}, []string{existing, "exists"}},
		{[]string{"volume", "create", "--size=12Q", "new"}, []string{`"12Q"`, "512M"}},
		{[]string{"volume", "create", "--size=1K", "new"}, []string{"too small", "16MiB"}},
		{[]string{"volume", "create", "--size=-1G", "new"}, []string{`"-1G"`}},
		{[]string{"volume", "create", "--size=1000000T", "new"}, []string{"64TiB"}},
		{[]string{"volume", "create", "../new"}, []string{"../new"}},
		{[]string{"volume", "create", "--image=" + notImage, "new"}, []string{notImage, "blobfs"}},
		{[]string{"volume", "create", "--image=" + missing, "--size=64M", "new"}, []string{missing, "directory"}},
		{[]string{"volume", "create", "--image=" + existing, "--memory", "new"}, []string{"image", "memory"}},
		{[]string{"volume", "create", "--image=" + small + "/image", "--size=64M", "new"}, []string{small + "/image", "space"}},
		{[]string{"volume", "create"}, []string{"name"}},
		{[]string{"volume", "rm", "nosuch"}, []string{"nosuch", "does not exist"}},
		{[]string{"volume", "inspect", "nosuch"}, []string{"nosuch", "does not exist"}},
		{[]string{"volume", "frobnicate"}, []string{"frobnicate"}},
		{[]string{"mkfs", notImage}, []string{notImage, "--force"}},
		{[]string{"mkfs", missing}, []string{missing, "--size"}},
		{[]string{"fsck", missing}, []string{missing}},
		{[]string{"fsck", notImage}, []string{notImage, "blobfs"}},
	} {
		t.Run(strings.Join(c.args[:min(2, len(c.args))], " "), func(t *testing.T) {
			before, image := hashTree(t, volumeRoot()), hashFile(t, notImage)
			res, err := command(t, c.args...)
			wantError(t, res, err, c.want...)
			t.Logf("%s: %s", strings.Join(c.args, " "), strings.TrimSpace(res.Stderr))
			if hashTree(t, volumeRoot()) != before || hashFile(t, notImage) != image {
				t.Errorf("%s changed something", strings.Join(c.args, " "))
			}
		})
	}
}

// TestFullHost lets the disk below an image fill up: the application gets errors,
// what was synced stays, and the sandbox lives on.
func TestFullHost(t *testing.T) {
	v := uniqueName(t, "v")
	dir := tinyTmpfs(t, "24m")
	_, err := volumeCmd(t, "create", "--size=64M", "--image="+dir+"/image", v)
	must(t, err)
	t.Cleanup(func() {
		if _, err := volumeCmd(t, "rm", v); err != nil {
			t.Error(err)
		}
	})
	c := start(t, bundle("sleep 600", lab.VolumeMount(v, "/data")))
	if got := execIn(t, c, "echo precious > /data/file && sync /data/file && echo synced"); got != "synced" {
		t.Fatalf("the first file: %q", got)
	}
	if got := execIn(t, c, "dd if=/dev/zero of=/data/big bs=1M count=40 conv=fsync 2>&1 || echo failed"); !strings.HasSuffix(got, "failed") {
		t.Errorf("writing 40 MiB to a disk of 24 MiB says %q", got)
	}
	if got := execIn(t, c, "cat /data/file"); got != "precious" {
		t.Errorf("on the full disk the file reads %q", got)
	}
	must(t, c.KillSandbox(testContext(t, time.Minute)))
	must(t, c.Delete(testContext(t, time.Minute)))
	resizeTmpfs(t, dir, "80m")
	if got := run(t, bundle("cat /data/file && echo works > /data/new", lab.VolumeMount(v, "/data"))); got != "precious\n" {
		t.Errorf("afterwards the file reads %q", got)
	}
}

// tinyTmpfs mounts a small memory file system where the plain cell sees it.
func tinyTmpfs(t *testing.T, size string) string {
	t.Helper()
	r := plainRuntime(t)
	ctx := testContext(t, time.Minute)
	dir := filepath.Join(shared.dir, uniqueName(t, "tiny"))
	must(t, os.Mkdir(dir, 0o755))
	_, err := r.Cell.Run(ctx, lab.Cmd{Argv: []string{"mount", "-t", "tmpfs", "-o", "size=" + size, "tmpfs", dir}})
	must(t, err)
	return dir
}

// resizeTmpfs changes how much a file system of tinyTmpfs holds.
func resizeTmpfs(t *testing.T, dir, size string) {
	t.Helper()
	_, err := plainRuntime(t).Cell.Run(testContext(t, time.Minute), lab.Cmd{Argv: []string{"mount", "-o", "remount,size=" + size, dir}})
	must(t, err)
}

// hashTree gives a checksum over names, modes and contents below a directory. Lock
// files count by name only: they say who used a volume last, which means nothing
// unless they are locked.
func hashTree(t *testing.T, dir string) string {
	t.Helper()
	h := sha256.New()
	must(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		fmt.Fprintf(h, "%s %v\n", path, info.Mode())
		if !info.Mode().IsRegular() || d.Name() == "lock" {
			return nil
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = io.Copy(h, f)
		return err
	}))
	return fmt.Sprintf("%x", h.Sum(nil))
}
