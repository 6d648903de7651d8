package e2e

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
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

// spoilBlocks changes a byte in blocks of an image.
func spoilBlocks(t *testing.T, image string, blocks ...int64) {
	t.Helper()
	f, err := os.OpenFile(image, os.O_RDWR, 0)
	must(t, err)
	for _, block := range blocks {
		var b [1]byte
		_, err := f.ReadAt(b[:], block*4096+200)
		must(t, err)
		_, err = f.WriteAt([]byte{^b[0]}, block*4096+200)
		must(t, err)
	}
	must(t, f.Close())
}

var rootBlockRE = regexp.MustCompile(`root: block ([0-9]+),`)

// rootBlocks gives the blocks of the metadata trees that the superblocks name.
func rootBlocks(t *testing.T, image string) []int64 {
	t.Helper()
	res, err := command(t, "dump", image, "superblock")
	must(t, err)
	var blocks []int64
	for _, m := range rootBlockRE.FindAllStringSubmatch(res.Stdout, -1) {
		n, err := strconv.ParseInt(m[1], 10, 64)
		must(t, err)
		if !slices.Contains(blocks, n) {
			blocks = append(blocks, n)
		}
	}
	if len(blocks) == 0 {
		t.Fatalf("dump names no root:\n%s", res.Stdout)
	}
	return blocks
}

// crashed makes a volume with changes in its log, and spoils blocks of its image.
func crashed(blocks ...int64) func(t *testing.T) specs.Mount {
	return func(t *testing.T) specs.Mount {
		v := newUncheckedVolume(t, "--size=64M")
		c := start(t, bundle("for i in 1 2 3 4 5 6; do echo $i > /data/file$i; done; sync; sleep 600", lab.VolumeMount(v, "/data")))
		must(t, lab.WaitFor(testContext(t, time.Minute), "the files", time.Minute, func() (bool, error) {
			return execIn(t, c, "ls /data | wc -l") == "6" && execIn(t, c, "sync; echo synced") == "synced", nil
		}))
		must(t, c.KillSandbox(testContext(t, time.Minute)))
		must(t, c.Delete(testContext(t, time.Minute)))
		spoilBlocks(t, inspect(t, v).Image, blocks...)
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
		{"type with a typo", func(*testing.T) specs.Mount {
			return specs.Mount{Type: "blobsf", Source: existing, Destination: "/data"}
		}, []string{`type "blobsf" is not known`, existing, `write the type "blobfs"`}},
		{"directory in a volume", func(t *testing.T) specs.Mount {
			return lab.BindMount(filepath.Join(volumeRoot(), "volumes", existing, "mountpoint", "sub"), "/data")
		}, []string{existing, "only a whole volume can be mounted"}},
		{"corrupt root of the tree", spoiled(func(t *testing.T, image string) {
			spoilBlocks(t, image, rootBlocks(t, image)...)
		}), []string{`volume "v`, "checksum mismatch", "runsc-fs fsck"}},
		{"corrupt bitmap under a log", crashed(16, 17), []string{`volume "v`, "bitmap of group 0 is damaged", "runsc-fs fsck"}},
		{"directory for an image", spoiled(func(t *testing.T, image string) {
			must(t, os.Rename(image, image+".away"))
			must(t, os.Mkdir(image, 0o700))
			t.Cleanup(func() { must(t, os.Remove(image)); must(t, os.Rename(image+".away", image)) })
		}), []string{"is a directory", "put a copy of it back", "runsc-fs volume rm"}},
		{"unknown volume", mountOf("nosuch"), []string{`volume "nosuch" does not exist`, "runsc-fs volume create nosuch"}},
		{"no volume named", mountOf(""), []string{"/data"}},
		{"path instead of a name", mountOf("/etc"), []string{"/etc", "/data", "is not valid; use"}},
		{"path out of the registry", mountOf("../../etc"), []string{"../../etc", "is not valid; use"}},
		{"unknown option", mountOf(existing, "colour=blue"), []string{"colour=blue", "correct it or leave it out"}},
		{"wiped image", spoiled(func(t *testing.T, image string) {
			overwrite(t, image, io.LimitReader(zeros{}, 64<<20))
		}), []string{"holds no blobfs any more", "put a copy of it back", "runsc-fs volume rm"}},
		{"no blobfs image", spoiled(func(t *testing.T, image string) {
			overwrite(t, image, io.LimitReader(rand.Reader, 8<<20))
		}), []string{"holds no blobfs any more", "put a copy of it back", "runsc-fs volume rm"}},
		{"corrupt superblocks", spoiled(func(t *testing.T, image string) {
			b, err := os.ReadFile(image)
			must(t, err)
			// Spoil a byte in each of the first 64 blocks and leave the magic numbers.
			for block := range 64 {
				b[block*4096+100] ^= 0xff
			}
			must(t, os.WriteFile(image, b, 0o600))
		}), []string{"corrupt", "superblock", "runsc-fs fsck"}},
		{"cut image", spoiled(func(t *testing.T, image string) {
			must(t, os.Truncate(image, 20<<20))
		}), []string{"20971520 bytes instead of 67108864", "put a copy of it back"}},
		{"missing image", spoiled(func(t *testing.T, image string) {
			must(t, os.Rename(image, image+".away"))
			t.Cleanup(func() { must(t, os.Rename(image+".away", image)) })
		}), []string{"image", "is missing; put a copy of it back", "runsc-fs volume rm"}},
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
			// Nobody holds the volume any more: a check does not find it in use.
			if _, err := os.Stat(filepath.Join(volumeRoot(), "volumes", m.Source, "volume.json")); err == nil && m.Type == "blobfs" {
				if res, err := command(t, "fsck", m.Source); err != nil && strings.Contains(res.Stderr, "in use") {
					t.Errorf("right after the failure: %s", res.Stderr)
				}
			}
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
	full := tinyTmpfs(t, "16k")
	overwriteAll(t, full)
	device := loopDevice(t)
	missing := filepath.Join(shared.dir, "missing", "image")
	const tryVolume = "runsc-fs volume ls"
	for _, c := range []struct {
		args []string
		want []string
	}{
		{[]string{"volume", "create", existing}, []string{existing, "exists already; choose another name, or remove it first", "runsc-fs volume rm"}},
		{[]string{"volume", "create", "--size=", "new"}, []string{`size "" is not valid; write`}},
		{[]string{"volume", "create", "--image=", "new"}, []string{"--image is empty; leave out"}},
		{[]string{"volume", "create", "--image=/dev/nonexistent", "new"}, []string{"/dev/nonexistent", "name a file on a disk"}},
		{[]string{"volume", "create", "--image=" + shared.dir, "new"}, []string{shared.dir, "is not a regular file; name an image file"}},
		{[]string{"volume", "create", "--image=" + device, "new"}, []string{device, "is not a regular file; name an image file"}},
		{[]string{"mkfs", device}, []string{device, "is not a regular file; name an image file"}},
		{[]string{"mkfs", "/dev/nonexistent", "--size=64M"}, []string{"/dev/nonexistent", "name a file on a disk"}},
		{[]string{"fsck", device}, []string{device, "is a block device", "name an image file"}},
		{[]string{"fsck", shared.dir}, []string{shared.dir, "is a directory", "name an image file"}},
		{[]string{"fsck", "nosuch"}, []string{"nosuch", "does not exist", tryVolume}},
		{[]string{"install", "--runtime=", "--config=" + missing}, []string{`runtime name ""`, "use up to 64 letters"}},
		{[]string{"install", "--socket=odd", "--config=" + missing}, []string{`socket "odd"`, "give an absolute path"}},
		{[]string{"volume", "create", "--size=12Q", "new"}, []string{`"12Q"`, "512M"}},
		{[]string{"volume", "create", "--size=1K", "new"}, []string{"too small", "16MiB"}},
		{[]string{"volume", "create", "--size=-1G", "new"}, []string{`"-1G"`}},
		{[]string{"volume", "create", "--size=1000000T", "new"}, []string{"64TiB"}},
		{[]string{"volume", "create", "../new"}, []string{"../new"}},
		{[]string{"volume", "create", "--image=" + notImage, "new"}, []string{notImage, "blobfs"}},
		{[]string{"volume", "create", "--image=" + missing, "--size=64M", "new"}, []string{missing, "make the directory first"}},
		{[]string{"volume", "create", "--image=" + existing, "--memory", "new"}, []string{"image", "memory"}},
		{[]string{"volume", "create", "--image=" + full + "/image", "--size=64M", "new"}, []string{full, "no space left", "free some"}},
		{[]string{"--volume-root=" + full, "volume", "create", "--size=64M", "new"}, []string{full, "no space left", "free some"}},
		{[]string{"mkfs", full + "/image", "--size=64M"}, []string{full + "/image", "space"}},
		{[]string{"volume", "create"}, []string{"name"}},
		{[]string{"volume", "rm", "nosuch"}, []string{"nosuch", "does not exist", tryVolume}},
		{[]string{"volume", "inspect", "nosuch"}, []string{"nosuch", "does not exist", tryVolume}},
		{[]string{"volume", "frobnicate"}, []string{"frobnicate"}},
		{[]string{"mkfs", notImage}, []string{notImage, "--force"}},
		{[]string{"mkfs", missing}, []string{missing, "--size"}},
		{[]string{"fsck", missing}, []string{missing, "is missing; correct the path"}},
		{[]string{"fsck", notImage}, []string{notImage, "holds no blobfs; name an image file"}},
	} {
		t.Run(strings.Join(c.args[:min(2, len(c.args))], " "), func(t *testing.T) {
			before, image := hashTree(t, volumeRoot()), hashFile(t, notImage)
			onFull := filesBelow(t, full)
			res, err := command(t, c.args...)
			wantError(t, res, err, c.want...)
			t.Logf("%s: %s", strings.Join(c.args, " "), strings.TrimSpace(res.Stderr))
			if hashTree(t, volumeRoot()) != before || hashFile(t, notImage) != image {
				t.Errorf("%s changed something", strings.Join(c.args, " "))
			}
			if strings.Contains(res.Stderr, ".tmp-") {
				t.Errorf("the error has a name that no user knows: %s", res.Stderr)
			}
			if after := filesBelow(t, full); after != onFull {
				t.Errorf("files on the full disk before and after: %s; %s", onFull, after)
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

// overwriteAll leaves no space in a file system of tinyTmpfs.
func overwriteAll(t *testing.T, dir string) {
	t.Helper()
	_, err := plainRuntime(t).Cell.Run(testContext(t, time.Minute), lab.Cmd{Argv: []string{
		"sh", "-c", `dd if=/dev/zero of="$1/fill" bs=4k 2>&1 | grep -q 'No space'`, "sh", dir,
	}})
	must(t, err)
}

// filesBelow lists the regular files in a directory of the plain cell.
func filesBelow(t *testing.T, dir string) string {
	t.Helper()
	res, err := plainRuntime(t).Cell.Run(testContext(t, time.Minute), lab.Cmd{Argv: []string{
		"find", dir, "-type", "f", "-not", "-name", "registry.lock",
	}})
	must(t, err)
	return res.Stdout
}

// loopDevice gives a block device with 64 MiB.
func loopDevice(t *testing.T) string {
	t.Helper()
	file := filepath.Join(shared.dir, uniqueName(t, "loop"))
	must(t, os.WriteFile(file, nil, 0o600))
	must(t, os.Truncate(file, 64<<20))
	res, err := lab.Run(testContext(t, time.Minute), lab.Cmd{Argv: []string{"losetup", "--find", "--show", file}})
	must(t, err)
	device := strings.TrimSpace(res.Stdout)
	t.Cleanup(func() {
		_, err := lab.Run(context.Background(), lab.Cmd{Argv: []string{"losetup", "--detach", device}})
		must(t, err)
	})
	return device
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
