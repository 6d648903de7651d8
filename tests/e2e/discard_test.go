package e2e

import (
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"runsc-fs/tests/lab"
)

// usedOnHost is what a file takes on the host's disk.
func usedOnHost(t *testing.T, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	must(t, err)
	return info.Sys().(*syscall.Stat_t).Blocks * 512
}

// TestDiscard removes a file of a volume and finds its space free on the host, without
// fstrim: with the option of the mount, with that of the volume, and for the layer
// above a snapshot, whose base keeps its own.
func TestDiscard(t *testing.T) {
	const write = "dd if=/dev/urandom of=/data/big bs=1M count=48 2>/dev/null; echo kept > /data/small; sync; "
	for _, test := range []struct {
		name     string
		create   []string
		options  []string
		snapshot bool
	}{
		{"mount", []string{"--size=128M"}, []string{"discard", "commit=1"}, false},
		{"volume", []string{"--size=128M", "--discard"}, []string{"commit=1"}, false},
		{"layer", []string{"--size=128M", "--discard"}, []string{"commit=1"}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			v := newUncheckedVolume(t, test.create...)
			if test.snapshot {
				run(t, bundle(write, lab.VolumeMount(v, "/data", "nodiscard")))
				newSnapshot(t, v, "s")
			}
			c := start(t, bundle(write+"echo written; exec sleep 600", lab.VolumeMount(v, "/data", test.options...)))
			must(t, lab.WaitFor(testContext(t, 2*time.Minute), "the file", time.Minute, func() (bool, error) {
				return strings.Contains(c.Output(), "written"), nil
			}))
			path := inspect(t, v).Image
			before := usedOnHost(t, path)
			if before < 48<<20 {
				t.Fatalf("the image takes %d bytes with a file of 48 MiB in it", before)
			}
			if got := execIn(t, c, "grep ' /data ' /proc/mounts; rm /data/big; sync"); !strings.Contains(got, "discard") {
				t.Errorf("the mount is %q", got)
			}
			must(t, lab.WaitFor(testContext(t, 2*time.Minute), "the space", time.Minute, func() (bool, error) {
				return usedOnHost(t, path) < before-40<<20, nil
			}))
			must(t, c.KillSandbox(testContext(t, time.Minute)))
			if got := run(t, bundle("cat /data/small; ls /data", lab.VolumeMount(v, "/data"))); got != "kept\nsmall\n" {
				t.Errorf("after the death of the sandbox: %q", got)
			}
			if res, err := command(t, "fsck", v); err != nil {
				t.Errorf("fsck: %v\n%s", err, res.Stdout)
			}
		})
	}
}

// TestDockerDiscard gives the option with the volume, as Docker can.
func TestDockerDiscard(t *testing.T) {
	v := dockerVolume(t, "size=64M", "discard=true")
	if got := dockerRun(t, "grep ' /data ' /proc/mounts", "--volume="+v+":/data"); !strings.Contains(got, "discard") {
		t.Errorf("the mount is %q", got)
	}
}
