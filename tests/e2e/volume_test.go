package e2e

import (
	"context"
	"crypto/sha256"
	"encoding/json"
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

// volumeCmd runs a volume command on the tests' registry.
func volumeCmd(t *testing.T, args ...string) (lab.Result, error) {
	t.Helper()
	return command(t, append([]string{"volume"}, args...)...)
}

// command runs a command of the product with the tests' registry.
func command(t *testing.T, args ...string) (lab.Result, error) {
	t.Helper()
	r := plainRuntime(t)
	return r.Command(testContext(t, 2*time.Minute), args...)
}

// newVolume creates a volume. When the test ends, it must be free of defects, and is
// removed.
func newVolume(t *testing.T, args ...string) string {
	t.Helper()
	name := newUncheckedVolume(t, args...)
	t.Cleanup(func() {
		if info := inspect(t, name); info.Kind == "image" {
			checkImage(t, info.Image)
		}
	})
	return name
}

// newUncheckedVolume creates a volume that is removed when the test ends.
func newUncheckedVolume(t *testing.T, args ...string) string {
	t.Helper()
	plainRuntime(t)
	name := uniqueName(t, "v")
	_, err := volumeCmd(t, append(append([]string{"create"}, args...), name)...)
	must(t, err)
	t.Cleanup(func() {
		if _, err := volumeCmd(t, "rm", name); err != nil {
			t.Errorf("cannot remove the volume: %v", err)
		}
	})
	return name
}

// checkImage has fsck look at an image. A defect fails the test and keeps a copy of
// the image with the logs.
func checkImage(t *testing.T, path string) {
	t.Helper()
	res, err := command(t, "fsck", path)
	if err == nil {
		return
	}
	kept := filepath.Join(shared.dir, uniqueName(t, "defect")+".img")
	if _, copyErr := lab.Run(context.Background(), lab.Cmd{Argv: []string{"cp", "--sparse=always", path, kept}}); copyErr != nil {
		kept = copyErr.Error()
	}
	t.Errorf("fsck of %s (kept as %s): %v\n%s", path, kept, err, res.Stdout)
}

// checkMount has fsck look at the image behind a mount, if it has one.
func checkMount(t *testing.T, m specs.Mount) {
	t.Helper()
	if m.Type != "blobfs" {
		return
	}
	if info := inspect(t, m.Source); info.Kind == "image" {
		checkImage(t, info.Image)
	}
}

// storage makes empty storage and returns its mount: a new volume, or a host
// directory if the tests were told so.
func storage(t *testing.T, destination string, volumeArgs ...string) specs.Mount {
	t.Helper()
	if bindStorage() {
		plainRuntime(t)
		dir := filepath.Join(shared.dir, uniqueName(t, "bind"))
		must(t, os.Mkdir(dir, 0o777))
		must(t, os.Chmod(dir, 0o777))
		return lab.BindMount(dir, destination)
	}
	return lab.VolumeMount(newVolume(t, volumeArgs...), destination)
}

// TestMountIsBlobfs makes sure that the other tests test what they mean to.
func TestMountIsBlobfs(t *testing.T) {
	v := newVolume(t, "--size=64M")
	out := run(t, bundle("grep ' /data ' /proc/mounts; grep -w blobfs /proc/filesystems", lab.VolumeMount(v, "/data", "noatime")))
	fields := strings.Fields(out)
	if len(fields) < 4 || fields[2] != "blobfs" || !strings.Contains(fields[3], "noatime") {
		t.Fatalf("/proc says %q: not a blobfs mount", out)
	}
}

// TestVolumeLife makes, lists, inspects and removes volumes.
func TestVolumeLife(t *testing.T) {
	v := newVolume(t, "--size=64M")
	m := newVolume(t, "--size=32M", "--memory")
	ls, err := volumeCmd(t, "ls")
	must(t, err)
	for _, want := range []string{v, m, "64MiB", "32MiB", "image", "memory"} {
		if !strings.Contains(ls.Stdout, want) {
			t.Errorf("ls lacks %q:\n%s", want, ls.Stdout)
		}
	}
	if got := inspect(t, v); got.SizeBytes != 64<<20 || got.Kind != "image" || got.InUse || got.Name != v {
		t.Errorf("inspect says %+v", got)
	}
	c := start(t, bundle("sleep 600", lab.VolumeMount(v, "/data")))
	if got := inspect(t, v); !got.InUse || got.InUseBy != c.ID {
		t.Errorf("in use by %s, inspect says %+v", c.ID, got)
	}
	res, err := volumeCmd(t, "rm", v)
	wantError(t, res, err, v, c.ID)
	must(t, c.Delete(testContext(t, time.Minute)))

	// An image outside the registry stays when its volume goes, and can come back.
	path := filepath.Join(shared.dir, uniqueName(t, "image"))
	outside := uniqueName(t, "v")
	_, err = volumeCmd(t, "create", "--size=64M", "--image="+path, outside)
	must(t, err)
	run(t, bundle("echo kept > /data/file", lab.VolumeMount(outside, "/data")))
	_, err = volumeCmd(t, "rm", outside)
	must(t, err)
	_, err = volumeCmd(t, "create", "--image="+path, outside)
	must(t, err)
	if got := run(t, bundle("cat /data/file", lab.VolumeMount(outside, "/data"))); got != "kept\n" {
		t.Errorf("the image came back with %q", got)
	}
	_, err = volumeCmd(t, "rm", outside)
	must(t, err)
}

// volumeInfo is what inspect prints.
type volumeInfo struct {
	Name, Kind, Image, Mountpoint, InUseBy string
	SizeBytes, UsedBytes                   int64
	InUse                                  bool
	Layers                                 []struct{ Path string }
}

func inspect(t *testing.T, name string) volumeInfo {
	t.Helper()
	res, err := volumeCmd(t, "inspect", name)
	must(t, err)
	var infos []volumeInfo
	must(t, json.Unmarshal([]byte(res.Stdout), &infos))
	if len(infos) != 1 {
		t.Fatalf("inspect gave %d volumes", len(infos))
	}
	return infos[0]
}

// TestExclusive has a second sandbox ask for a volume in use, and the volume free
// as soon as its user was killed.
func TestExclusive(t *testing.T) {
	r := plainRuntime(t)
	v := newVolume(t, "--size=64M")
	mount := lab.VolumeMount(v, "/data")
	c := start(t, bundle("echo first > /data/file; sync; sleep 600", mount))
	res, err := r.Run(testContext(t, time.Minute), bundle("true", mount), time.Minute)
	wantError(t, res, err, fmt.Sprintf("volume %q is in use by container %s", v, c.ID))
	if got := execIn(t, c, "cat /data/file; echo more >> /data/file; cat /data/file"); got != "first\nfirst\nmore" {
		t.Errorf("the first user reads %q", got)
	}
	must(t, c.KillSandbox(testContext(t, time.Minute)))
	if got := inspect(t, v); got.InUse {
		t.Errorf("after the death of its user, inspect says %+v", got)
	}
	run(t, bundle("grep first /data/file", mount))
}

// TestReadOnlyMount refuses writes and keeps the volume as it is.
func TestReadOnlyMount(t *testing.T) {
	v := newVolume(t, "--size=64M")
	run(t, bundle("echo hello > /data/file", lab.VolumeMount(v, "/data")))
	out := run(t, bundle(`cat /data/file
for try in 'echo x > /data/file' 'echo x > /data/new' 'rm /data/file' 'mkdir /data/d' 'chmod 600 /data/file' 'touch /data/file'; do
	sh -c "$try" 2>&1 | grep -q 'Read-only file system' && echo refused || echo "NOT REFUSED: $try"
done`, lab.VolumeMount(v, "/data", "ro")))
	if want := "hello\n" + strings.Repeat("refused\n", 6); out != want {
		t.Errorf("read-only mount: %q", out)
	}
	if got := run(t, bundle("cat /data/file; ls -A /data", lab.VolumeMount(v, "/data"))); got != "hello\nfile\n" {
		t.Errorf("after the read-only mount: %q", got)
	}
}

// TestSeveralVolumes mounts volumes beside and inside each other, one of them twice.
func TestSeveralVolumes(t *testing.T) {
	a, b := newVolume(t, "--size=64M"), newVolume(t, "--size=64M")
	m := newVolume(t, "--size=32M", "--memory")
	// The mount point inside a volume must be there or be made.
	out := run(t, bundle(`echo a > /data/file; echo b > /data/inner/file; echo m > /mem/file
cat /again/file
cp /data/inner/file /data/copy
ls -A /data; sync`,
		lab.VolumeMount(a, "/data"), lab.VolumeMount(b, "/data/inner"), lab.VolumeMount(m, "/mem"), lab.VolumeMount(a, "/again", "ro")))
	if want := "a\ncopy\nfile\ninner\n"; out != want {
		t.Errorf("several volumes: %q, want %q", out, want)
	}
	out = run(t, bundle("cat /x/file /x/copy /y/file; ls -A /x/inner", lab.VolumeMount(a, "/x"), lab.VolumeMount(b, "/y")))
	if want := "a\nb\nb\n"; out != want {
		t.Errorf("mounted apart: %q, want %q", out, want)
	}
}

// TestTmpfsAndBindInsideVolume mounts other file systems below a volume.
func TestTmpfsAndBindInsideVolume(t *testing.T) {
	v := newVolume(t, "--size=64M")
	host := filepath.Join(shared.dir, uniqueName(t, "host"))
	must(t, os.Mkdir(host, 0o755))
	out := run(t, bundle(`echo t > /data/tmp/file; echo h > /data/host/file; grep -c ' /data' /proc/mounts; stat -c %d /data /data/tmp /data/host | sort -u | wc -l`,
		lab.VolumeMount(v, "/data"), lab.TmpfsMount("/data/tmp"), lab.BindMount(host, "/data/host")))
	if out != "3\n3\n" {
		t.Errorf("mounts below a volume: %q", out)
	}
	if b, err := os.ReadFile(filepath.Join(host, "file")); err != nil || string(b) != "h\n" {
		t.Errorf("the host directory has %q (%v)", b, err)
	}
	if out := run(t, bundle("ls -A /data/tmp /data/host", lab.VolumeMount(v, "/data"))); strings.Contains(out, "file") {
		t.Errorf("files of the inner mounts got into the volume: %q", out)
	}
}

// TestExecutableFromVolume runs programs that lie on a volume, mapped from it.
func TestExecutableFromVolume(t *testing.T) {
	v := newVolume(t, "--size=64M")
	run(t, bundle("cp /bin/ls /bin/sh /data && sync", lab.VolumeMount(v, "/data")))
	if out := run(t, bundle("/data/sh -c '/data/ls /data'", lab.VolumeMount(v, "/data"))); out != "ls\nsh\n" {
		t.Errorf("programs from a volume print %q", out)
	}
	out := run(t, bundle("/data/ls /data 2>&1 || true", lab.VolumeMount(v, "/data", "noexec")))
	if !strings.Contains(out, "Permission denied") {
		t.Errorf("noexec lets programs run: %q", out)
	}
}

// TestFullVolume fills a volume to the brim, frees it and fills it again.
func TestFullVolume(t *testing.T) {
	v := newVolume(t, "--size=64M")
	out := run(t, bundle(`
for i in 1 2 3; do
	dd if=/dev/zero of=/data/big bs=1M 2>&1 | grep -o 'No space left on device'
	stat -c %s /data/big >> /tmp/sizes
	echo x > /data/small 2>/dev/null; rm -f /data/small
	rm /data/big && sync
done
echo works > /data/file && cat /data/file
sort -u /tmp/sizes | wc -l
[ $(head -1 /tmp/sizes) -gt 50000000 ] && echo most of it`, lab.VolumeMount(v, "/data")))
	if want := strings.Repeat("No space left on device\n", 3) + "works\n1\nmost of it\n"; out != want {
		t.Errorf("filling a volume: %q, want %q", out, want)
	}
}

// TestBigTree copies a file tree of thousands of files, compares it before and after
// a crash, renames and removes it, and wants all of its space back.
func TestBigTree(t *testing.T) {
	r := plainRuntime(t)
	mount := lab.VolumeMount(newVolume(t, "--size=1G"), "/data")
	const (
		tree = "/usr/lib/x86_64-linux-gnu/perl-base /usr/share/perl /usr/share/zoneinfo /usr/lib/postgresql /usr/share/postgresql /etc"
		same = `for d in ` + tree + `; do diff --no-dereference -r $d /data/tree$d || exit 1; done; echo same
`
		// Names, types, modes, owners, times, link counts and targets, of both trees.
		attributes = `list() { (cd $1 && find $(echo ` + tree + ` | sed 's| /| ./|g;s|^/|./|') -not -type d -printf '%p %y %m %U %G %s %T@ %n %l\n' | sort); }
[ "$(list /)" = "$(list /data/tree)" ] && echo attributes
`
	)
	run(t, bundle("df --output=used /data | tail -1 > /data/used", mount))
	c, err := r.Start(testContext(t, time.Minute), bundle("mkdir /data/tree && cp -a --parents "+tree+" /data/tree && sync && echo copied\n"+same+attributes+"sleep 600", mount))
	must(t, err)
	must(t, lab.WaitFor(testContext(t, 4*time.Minute), "the tree to be copied", 3*time.Minute, func() (bool, error) {
		return strings.Contains(c.Output(), "attributes"), nil
	}))
	must(t, c.KillSandbox(testContext(t, time.Minute)))
	must(t, c.Delete(testContext(t, time.Minute)))
	checkMount(t, mount)
	if got := c.Output(); got != "copied\nsame\nattributes\n" {
		t.Fatalf("copying the tree: %s", got)
	}
	if got := run(t, bundle(same+attributes, mount)); got != "same\nattributes\n" {
		t.Fatalf("after the crash: %s", got)
	}
	out := run(t, bundle(`mv /data/tree /data/moved && find /data/moved -type f | wc -l && rm -rf /data/moved && ls -A /data && sync
before=$(cat /data/used); after=$(df --output=used /data | tail -1)
[ $((after - before)) -lt 4096 ] && echo freed || echo "$before KiB were used before, $after KiB after"`, mount))
	if f := strings.Fields(out); len(f) != 3 || f[1] != "used" || f[2] != "freed" {
		t.Errorf("moving and removing the tree: %s", out)
	}
}

// hashFile gives a checksum of a file's content.
func hashFile(t *testing.T, path string) [sha256.Size]byte {
	t.Helper()
	f, err := os.Open(path)
	must(t, err)
	defer f.Close()
	h := sha256.New()
	_, err = io.Copy(h, f)
	must(t, err)
	return [sha256.Size]byte(h.Sum(nil))
}

// wantError checks that a command failed and said so in one line that has all of
// the given words.
func wantError(t *testing.T, res lab.Result, err error, words ...string) {
	t.Helper()
	if err == nil || res.Code <= 0 {
		t.Errorf("status %d (%v), want an error with %q", res.Code, err, words)
		return
	}
	said := strings.TrimSpace(res.Stderr)
	if strings.Contains(said, "\n") || said == "" {
		t.Errorf("the error is not one line:\n%s", said)
	}
	for _, w := range words {
		if !strings.Contains(said, w) {
			t.Errorf("the error lacks %q: %s", w, said)
		}
	}
}
