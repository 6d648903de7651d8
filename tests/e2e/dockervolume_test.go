package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"runsc-fs/tests/lab"
)

// listing prints type, mode and owners of a directory and what is in it.
const listing = `cd /image-data && for f in . greeting link sub; do stat -c '%A %U %G' $f | sed "s|UNKNOWN UNKNOWN|$(stat -c '%u %g' $f)|;s|\$| $f|"; done`

// TestDockerCopyUp has a new volume take over owner, mode and files that the image
// has at the mount point, once.
func TestDockerCopyUp(t *testing.T) {
	v := dockerVolume(t, "size=64M")
	mount := "--volume=" + v + ":/image-data"
	want := dockerRun(t, listing+"; cat greeting link")
	if !strings.Contains(want, "drwxr-s--x games staff .") || !strings.Contains(want, "-rw-r----- 1234 5678 greeting") {
		t.Fatalf("the image does not have what this test needs:\n%s", want)
	}
	if got := dockerRun(t, listing+"; cat greeting link", mount); got != want {
		t.Errorf("the first container sees\n%s\nthe image has\n%s", got, want)
	}
	dockerRun(t, "cd /image-data && echo changed > greeting && chmod 700 . && rm link", mount)
	if got := dockerRun(t, "cd /image-data; cat greeting; stat -c %a .; ls", mount); got != "changed\n2700\ngreeting\nsub" {
		t.Errorf("the third container sees %q", got)
	}
}

// TestDockerVolumeIsBlobfs makes sure that the volume is no host directory.
func TestDockerVolumeIsBlobfs(t *testing.T) {
	v := dockerVolume(t, "size=64M")
	if got := dockerRun(t, "grep ' /data ' /proc/mounts | cut -d' ' -f3", "--volume="+v+":/data"); got != "blobfs" {
		t.Errorf("the mount is of type %q", got)
	}
	if got := dockerOK(t, "volume", "ls", "--format={{.Driver}} {{.Name}}"); !strings.Contains(got, "blobfs "+v) {
		t.Errorf("docker volume ls says\n%s", got)
	}
	// Docker's own view: a mount of the volume, writable.
	name := dockerStart(t, "--volume="+v+":/data", image, "sleep", "600")
	got := dockerOK(t, "inspect", "--format={{range .Mounts}}{{.Type}} {{.Driver}} {{.Name}} {{.Destination}} {{.RW}}{{end}}", name)
	if want := "volume blobfs " + v + " /data true"; got != want {
		t.Errorf("docker inspect says %q, want %q", got, want)
	}
}

// TestDockerLife keeps data over restart, stop, start, kill -9 and a new container.
func TestDockerLife(t *testing.T) {
	v := dockerVolume(t, "size=64M")
	name := dockerStart(t, "--volume="+v+":/data", image, "sh", "-c", "date >> /data/starts; sync; exec sleep 600")
	starts := func(want int) {
		t.Helper()
		ctx := testContext(t, time.Minute)
		must(t, lab.WaitFor(ctx, fmt.Sprintf("start %d of the container", want), 30*time.Second, func() (bool, error) {
			out, err := shared.dockerd.Docker(ctx, "exec", name, "sh", "-c", "wc -l < /data/starts")
			return err == nil && out == fmt.Sprint(want), nil
		}))
	}
	starts(1)
	dockerOK(t, "restart", "--time=1", name)
	starts(2)
	dockerOK(t, "stop", "--time=1", name)
	dockerOK(t, "start", name)
	starts(3)
	must(t, lab.KillSandbox(testContext(t, time.Minute), dockerID(t, name)))
	must(t, lab.WaitFor(testContext(t, time.Minute), "Docker to notice the crash", 30*time.Second, func() (bool, error) {
		return dockerOK(t, "inspect", "--format={{.State.Running}}", name) == "false", nil
	}))
	dockerOK(t, "start", name)
	starts(4)
	dockerOK(t, "kill", name)
	dockerOK(t, "rm", name)
	if got := dockerRun(t, "wc -l < /data/starts", "--volume="+v+":/data"); got != "4" {
		t.Errorf("a new container counts %s starts", got)
	}
	// The cleanup of dockerStart removes a container of this name.
	dockerOK(t, "create", "--name="+name, image, "true")
}

// TestDockerExclusive has a second container ask for a volume in use.
func TestDockerExclusive(t *testing.T) {
	v := dockerVolume(t, "size=64M")
	name := dockerStart(t, "--volume="+v+":/data", image, "sleep", "600")
	said := dockerFails(t, "run", "--rm", "--runtime=blobfs", "--volume="+v+":/data", image, "true")
	if want := fmt.Sprintf("volume %q is in use by container %s", v, dockerID(t, name)); !strings.Contains(said, want) {
		t.Errorf("the second container's error lacks %q:\n%s", want, said)
	}
	if said := dockerFails(t, "volume", "rm", v); !strings.Contains(said, "in use") {
		t.Errorf("removing a volume in use says %s", said)
	}
	if got := dockerOK(t, "exec", name, "sh", "-c", "echo fine > /data/file; cat /data/file"); got != "fine" {
		t.Errorf("the first container reads %q", got)
	}
}

// TestDockerMounts mounts several volumes, one read-only, one inside another.
func TestDockerMounts(t *testing.T) {
	a, b := dockerVolume(t, "size=64M"), dockerVolume(t, "size=64M")
	dockerRun(t, "echo b > /b/file", "--volume="+b+":/b")
	got := dockerRun(t, "echo a > /a/file; cat /a/inner/file; echo x 2>&1 > /a/inner/file || echo refused; ls /a",
		"--volume="+a+":/a", "--volume="+b+":/a/inner:ro")
	if !strings.Contains(got, "b\n") || !strings.HasSuffix(got, "refused\nfile\ninner") {
		t.Errorf("nested mounts: %q", got)
	}
}

// TestDockerVolumeErrors has Docker hand on what is wrong with a volume's options.
func TestDockerVolumeErrors(t *testing.T) {
	docker(t)
	for _, c := range []struct{ opt, want string }{
		{"size=10X", `"10X"`},
		{"size=1K", "too small"},
		{"colour=blue", "colour"},
		{"image=relative/path", "relative/path"},
		{"image=/dev/nonexistent", "none can be made in /dev; name a file on a disk"},
		{"image=/etc", "image /etc exists and is not a regular file; name an image file"},
		{"image=/etc/services", "is too small to hold a blobfs; name an image file"},
		{"image=/nosuch/image", "make the directory first"},
		{"size=", `size "" is not valid; write a number`},
	} {
		name := uniqueName(t, "bad")
		if said := dockerFails(t, "volume", "create", "--driver=blobfs", "--opt="+c.opt, name); !strings.Contains(said, c.want) {
			t.Errorf("option %s: the error lacks %q: %s", c.opt, c.want, said)
		}
		if got := dockerOK(t, "volume", "ls", "--quiet"); strings.Contains(got, name) {
			t.Errorf("option %s: the volume is there all the same", c.opt)
		}
	}
}

// TestDockerWithoutVolumes does what Docker users do, on the runtime alone.
func TestDockerWithoutVolumes(t *testing.T) {
	if got := dockerRun(t, "dmesg | grep -c gVisor; id -u; hostname"); !strings.Contains(got, "\n0\n") {
		t.Errorf("a plain container prints %q", got)
	}
	name := dockerStart(t, "--memory=600m", image, "sh", "-c", "trap 'exit 9' TERM; while :; do sleep 0.1; done")
	if got := dockerOK(t, "top", name); !strings.Contains(got, "PID") {
		t.Errorf("docker top says %q", got)
	}
	if got := dockerOK(t, "stats", "--no-stream", "--format={{.MemUsage}}", name); !strings.HasSuffix(got, "/ 600MiB") || strings.HasPrefix(got, "0B") {
		t.Errorf("docker stats says %q", got)
	}
	dockerOK(t, "pause", name)
	dockerOK(t, "unpause", name)
	dockerOK(t, "stop", name)
	if got := dockerOK(t, "inspect", "--format={{.State.ExitCode}}", name); got != "9" {
		t.Errorf("docker stop gives status %s", got)
	}
	// The stock runtime works beside it.
	if got := dockerOK(t, "run", "--rm", "--runtime=runc", image, "echo", "native"); got != "native" {
		t.Errorf("runc prints %q", got)
	}
}

// TestDockerPluginRestart restarts the volume plugin under Docker.
func TestDockerPluginRestart(t *testing.T) {
	v := dockerVolume(t, "size=64M")
	name := dockerStart(t, "--volume="+v+":/data", image, "sh", "-c", "echo old > /data/file; sync; exec sleep 600")
	shared.mu.Lock()
	shared.plugin.Kill()
	startPluginLocked(t, testContext(t, time.Minute))
	shared.mu.Unlock()
	if got := dockerOK(t, "exec", name, "cat", "/data/file"); got != "old" {
		t.Errorf("the running container reads %q", got)
	}
	dockerOK(t, "restart", "--time=1", name)
	if got := dockerOK(t, "volume", "inspect", "--format={{.Driver}}", v); got != "blobfs" {
		t.Errorf("docker volume inspect says %q", got)
	}
}
