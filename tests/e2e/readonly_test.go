package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"runsc-fs/tests/lab"
)

// TestReadOnlyWritesNothing mounts a volume read-only after a crash, with changes in
// its log, on a host's file system without a free block: the files are there, and
// the image stays as it is to the last byte.
func TestReadOnlyWritesNothing(t *testing.T) {
	v := uniqueName(t, "v")
	dir := tinyTmpfs(t, "40m")
	image := dir + "/image"
	_, err := volumeCmd(t, "create", "--size=64M", "--image="+image, v)
	must(t, err)
	t.Cleanup(func() {
		if _, err := volumeCmd(t, "rm", v); err != nil {
			t.Error(err)
		}
	})
	sum := func() string {
		res, err := plainRuntime(t).Cell.Run(testContext(t, time.Minute), lab.Cmd{Argv: []string{"sha256sum", image}})
		must(t, err)
		return res.Stdout
	}
	c := start(t, bundle("sleep 600", lab.VolumeMount(v, "/data")))
	execIn(t, c, "for i in 1 2 3 4 5; do echo $i > /data/file$i; done; sync")
	must(t, c.KillSandbox(testContext(t, time.Minute)))
	must(t, c.Delete(testContext(t, time.Minute)))
	if res, err := plainRuntime(t).Cell.Run(testContext(t, time.Minute), lab.Cmd{Argv: []string{plainRuntime(t).Binary, "dump", image, "log"}}); err != nil || !strings.Contains(res.Stdout, "record") {
		t.Fatalf("nothing in the log to replay: %s (%v)", res.Stdout, err)
	}
	overwriteAll(t, dir)

	before := sum()
	out := run(t, bundle(`cat /data/*; for c in 'echo x > /data/new' 'rm /data/file1' 'touch /data/file2' 'mkdir /data/d'; do
		sh -c "$c" 2>&1 | grep -c 'Read-only file system'; done; sync; grep ' /data ' /proc/mounts`, lab.VolumeMount(v, "/data", "ro")))
	if want := fmt.Sprintf("1\n2\n3\n4\n5\n%s%s /data blobfs ro,relatime 0 0\n", strings.Repeat("1\n", 4), v); out != want {
		t.Errorf("the container prints %q, want %q", out, want)
	}
	if after := sum(); after != before {
		t.Errorf("the image was changed: %s, before: %s", after, before)
	}
}

// TestReadOnlyImageFile mounts a volume whose image nobody may write, which is
// refused without "ro".
func TestReadOnlyImageFile(t *testing.T) {
	v := newVolume(t, "--size=64M")
	run(t, bundle("echo kept > /data/file", lab.VolumeMount(v, "/data")))
	image := inspect(t, v).Image
	setFlag := func(flag string) {
		_, err := lab.Run(testContext(t, time.Minute), lab.Cmd{Argv: []string{"chattr", flag, image}})
		must(t, err)
	}
	setFlag("+i")
	t.Cleanup(func() { setFlag("-i") })
	before := hashFile(t, image)
	res, err := plainRuntime(t).Run(testContext(t, time.Minute), bundle("true", lab.VolumeMount(v, "/data")), time.Minute)
	wantError(t, res, err, v, image, "cannot be opened", "look at the file's mode and attributes")
	if out := run(t, bundle("cat /data/file", lab.VolumeMount(v, "/data", "ro"))); out != "kept\n" {
		t.Errorf("the file reads %q", out)
	}
	if hashFile(t, image) != before {
		t.Error("the image was changed")
	}
}

// TestShownMounts compares what programs are told about a mounted volume with the
// forms of proc_pid_mounts(5) and proc_pid_mountinfo(5).
func TestShownMounts(t *testing.T) {
	v := newVolume(t, "--size=64M")
	for _, c := range []struct {
		options           []string
		mount, super, all string
	}{
		{nil, "rw,relatime", "rw", "rw,relatime"},
		{[]string{"ro"}, "ro,relatime", "ro", "ro,relatime"},
		{[]string{"noatime", "nosuid", "nodev", "noexec"}, "rw,nosuid,nodev,noexec,noatime", "rw", "rw,nosuid,nodev,noexec,noatime"},
		{[]string{"noatime", "commit=7"}, "rw,noatime", "rw,commit=7", "rw,noatime,commit=7"},
		{[]string{"strictatime"}, "rw", "rw,strictatime", "rw,strictatime"},
		{[]string{"sync", "nodev", "lazytime"}, "rw,nodev,relatime", "rw,sync", "rw,sync,nodev,relatime"},
		{[]string{"dirsync", "size=48M", "inodes=2k", "cache=4M"}, "rw,relatime", "rw,dirsync,size=50331648,nr_inodes=2048,cache=4194304", "rw,dirsync,relatime,size=50331648,nr_inodes=2048,cache=4194304"},
	} {
		t.Run(strings.Join(c.options, ","), func(t *testing.T) {
			out := run(t, bundle(`grep ' /data ' /proc/mounts; grep ' /data ' /proc/self/mountinfo | cut -d' ' -f4-
findmnt --noheadings --raw --output=SOURCE,TARGET,FSTYPE,FS-OPTIONS,VFS-OPTIONS /data
df --output=source,fstype,target /data | tail -1 | tr -s ' '
[ "$(stat -c %d /data)" = "$(grep ' /data ' /proc/self/mountinfo | cut -d' ' -f3 | { IFS=: read -r a b; echo $((a * 256 + b)); })" ] && echo same device`,
				lab.VolumeMount(v, "/data", c.options...)))
			want := fmt.Sprintf("%[1]s /data blobfs %[4]s 0 0\n/ /data %[2]s - blobfs %[1]s %[3]s\n%[1]s /data blobfs %[3]s %[2]s\n%[1]s blobfs /data\nsame device\n",
				v, c.mount, c.super, c.all)
			if out != want {
				t.Errorf("programs see\n%swant\n%s", out, want)
			}
		})
	}
}
