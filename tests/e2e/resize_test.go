package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"runsc-fs/tests/lab"
)

// megabytes prints the size of the volume on /data as df sees it.
const megabytes = "df -BM --output=size /data | tail -1 | tr -d ' M'"

// TestResizeInUse makes a volume larger under a writer that waits for space. The new
// size is there at once, for df and for the writer, and after the sandbox was killed.
func TestResizeInUse(t *testing.T) {
	v := newVolume(t, "--size=64M")
	mount := lab.VolumeMount(v, "/data")
	c := start(t, bundle(`
		cd /data
		dd if=/dev/urandom of=part bs=1M count=4 2>/dev/null; md5sum < part > sum
		i=0
		while [ $i -lt 40 ]; do
			if dd if=part of=file$i bs=1M 2>/dev/null; then i=$((i+1)); else echo full; rm -f file$i; sleep 0.1; fi
		done
		sync; echo done; exec sleep 600`, mount))
	waitFor := func(text string) {
		t.Helper()
		must(t, lab.WaitFor(testContext(t, 2*time.Minute), "the writer to say "+text, time.Minute, func() (bool, error) {
			return strings.Contains(c.Output(), text), nil
		}))
	}
	waitFor("full")
	if got := execIn(t, c, megabytes); got != "64" {
		t.Errorf("df says %s MiB", got)
	}
	for _, size := range []string{"100M", "1G"} { // within its last group, and by some groups
		if got := volumeOK(t, "resize", v, size); !strings.HasPrefix(got, v+" ") {
			t.Errorf("resize says %q", got)
		}
		if got, want := execIn(t, c, megabytes), map[string]string{"100M": "100", "1G": "1024"}[size]; got != want {
			t.Errorf("df says %s MiB, not %s", got, want)
		}
	}
	waitFor("done")
	must(t, c.KillSandbox(testContext(t, time.Minute)))
	out := run(t, bundle(megabytes+"; cd /data; for f in file*; do md5sum < $f | cmp - sum || echo $f; done; ls file* | wc -l", mount))
	if out != "1024\n40\n" {
		t.Errorf("after the death of the sandbox: %q", out)
	}
}

// TestResize makes volumes larger that nobody uses, and refuses what cannot be.
func TestResize(t *testing.T) {
	v := newUncheckedVolume(t, "--size=64M")
	at := func(name string) specs.Mount { return lab.VolumeMount(name, "/data") }
	run(t, bundle("echo base > /data/file", at(v)))
	snapshot := newSnapshot(t, v, "small")
	clone := newClone(t, snapshot)

	volumeOK(t, "resize", clone, "512M")
	c := start(t, bundle("exec sleep 600", at(clone)))
	if got := execIn(t, c, megabytes+"; cat /data/file"); got != "512\nbase" {
		t.Errorf("the clone reads %q", got)
	}
	volumeOK(t, "resize", clone, "3G")
	if got := execIn(t, c, "dd if=/dev/zero of=/data/big bs=1M count=600 2>/dev/null && sync && "+megabytes); got != "3072" {
		t.Errorf("the clone in use reads %q", got)
	}
	if got := run(t, bundle(megabytes, at(v))); got != "64\n" {
		t.Errorf("the origin has %q", got)
	}
	second := newSnapshot(t, v, "second")
	volumeOK(t, "resize", v, "128M")
	if got := run(t, bundle(megabytes+"; cat /data/file", at(v))); got != "128\nbase\n" {
		t.Errorf("the origin has %q", got)
	}
	volumeOK(t, "rollback", second)
	if got := run(t, bundle(megabytes, at(v))); got != "64\n" {
		t.Errorf("rolled back, the origin has %q", got)
	}
	if ls := volumeOK(t, "ls"); !strings.Contains(ls, "3GiB") {
		t.Errorf("ls lacks the new size:\n%s", ls)
	}

	m := newVolume(t, "--memory", "--size=32M")
	volumeOK(t, "resize", m, "48M")
	mc := start(t, bundle("exec sleep 600", at(m)))
	if got := execIn(t, mc, megabytes); got != "48" {
		t.Errorf("the memory volume has %q", got)
	}
	for _, wrong := range []struct {
		args []string
		want string
	}{
		{[]string{m, "64M"}, fmt.Sprintf("volume %q is in memory, and in use by container %s; stop that first", m, mc.ID)},
		{[]string{v, "32M"}, fmt.Sprintf("volume %q has 64MiB and cannot become smaller", v)},
		{[]string{clone, "64M"}, "cannot become smaller"},
		{[]string{v, "5G"}, "'runsc-fs volume flatten"}, // its layer has room for 64 times its size
		{[]string{v, "100T"}, "too large"},
		{[]string{v, "abc"}, `size "abc" is not valid`},
		{[]string{v}, "a name and a size are needed"},
		{[]string{"nosuch", "1G"}, `volume "nosuch" does not exist`},
	} {
		res, err := volumeCmd(t, append([]string{"resize"}, wrong.args...)...)
		wantError(t, res, err, wrong.want)
	}
}

// TestResizeUnderDocker finds the sandbox of a volume that Docker's daemon has started.
func TestResizeUnderDocker(t *testing.T) {
	v := dockerVolume(t, "size=64M")
	name := dockerStart(t, "--volume="+v+":/data", image, "sleep", "600")
	cmd := plainRuntime(t).Cmd("volume", "resize", v, "200M")
	cmd.Cell, cmd.Env = shared.dockerd.Cell, []string{"RUNSC_FS_VOLUME_ROOT=" + dockerVolumeRoot()}
	_, err := lab.Run(testContext(t, time.Minute), cmd)
	must(t, err)
	if got := dockerOK(t, "exec", name, "sh", "-c", megabytes); got != "200" {
		t.Errorf("the container has %s MiB", got)
	}
	dockerOK(t, "restart", "--time=1", name)
	if got := dockerOK(t, "exec", name, "sh", "-c", megabytes); got != "200" {
		t.Errorf("after a restart the container has %s MiB", got)
	}
}

// TestHugeVolume works on a volume of 4 TiB, which takes no more space on the host
// than what is in it, also after its sandbox was killed and another one has replayed its log.
func TestHugeVolume(t *testing.T) {
	began := time.Now()
	took := func(what string) {
		t.Logf("%-40s %v", what, time.Since(began).Round(time.Millisecond))
		began = time.Now()
	}
	v := newVolume(t, "--size=4T")
	took("create")
	mount := lab.VolumeMount(v, "/data")
	run(t, bundle("true", mount))
	took("run with it")
	run(t, bundle("true"))
	took("run without")
	c := start(t, bundle(`cd /data; for i in $(seq 500); do echo $i > file$i; done
		dd if=/dev/urandom of=big bs=1M count=16 2>/dev/null; md5sum < big > sum; truncate -s 3T sparse; echo end >> sparse
		sync; echo written; exec sleep 600`, mount))
	must(t, lab.WaitFor(testContext(t, 2*time.Minute), "the files", time.Minute, func() (bool, error) {
		return strings.Contains(c.Output(), "written"), nil
	}))
	if got := execIn(t, c, "df -B1G --output=size /data | tail -1 | tr -d ' '"); got != "4096" {
		t.Errorf("df says %s GiB", got)
	}
	must(t, c.KillSandbox(testContext(t, time.Minute)))
	began = time.Now()
	if got := run(t, bundle("cd /data; md5sum < big | cmp - sum && cat file500; tail -c 4 sparse; ls | wc -l", mount)); got != "500\nend\n503\n" {
		t.Errorf("after the death of the sandbox: %q", got)
	}
	took("run after the crash")
	if used := usedOnHost(t, inspect(t, v).Image); used > 256<<20 {
		t.Errorf("the image takes %d bytes", used)
	}
}
