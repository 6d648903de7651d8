package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"runsc-fs/tests/lab"
)

// TestDockerBadImages runs containers on volumes whose images are spoiled. Docker
// shows an error that names the volume and says what to do; the image is as before,
// and no process is left.
func TestDockerBadImages(t *testing.T) {
	docker(t)
	for _, c := range []struct {
		name  string
		spoil func(t *testing.T, image string)
		want  []string
	}{
		{"missing", func(t *testing.T, image string) { must(t, os.Rename(image, image+".away")) },
			[]string{"is missing; put a copy of it back"}},
		{"cut", func(t *testing.T, image string) { must(t, os.Truncate(image, 20<<20)) },
			[]string{"20971520 bytes instead of 67108864", "put a copy of it back"}},
		{"superblocks", func(t *testing.T, image string) { spoilBlocks(t, image, 0, 4, 8, 12) },
			[]string{"corrupt", "superblock", "runsc-fs fsck"}},
		{"root of the tree", func(t *testing.T, image string) { spoilBlocks(t, image, rootBlocks(t, image)...) },
			[]string{"checksum mismatch", "runsc-fs fsck"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			plainRuntime(t) // for dump
			v := uniqueName(t, "bv")
			dockerOK(t, "volume", "create", "--driver=blobfs", "--opt=size=64M", v)
			t.Cleanup(func() { dockerOK(t, "volume", "rm", v) })
			dockerRun(t, "echo something > /data/file", "--volume="+v+":/data")
			dir := filepath.Join(dockerVolumeRoot(), "volumes", v)
			c.spoil(t, filepath.Join(dir, "image"))

			before := hashTree(t, dir)
			name := uniqueName(t, "d")
			t.Cleanup(func() { dockerOK(t, "rm", "--force", name) })
			said := dockerFails(t, "run", "--name="+name, "--runtime=blobfs", "--volume="+v+":/data", image, "echo", "started")
			for _, w := range append(c.want, fmt.Sprintf("volume %q", v)) {
				// The daemon quotes what the runtime has said.
				if !strings.Contains(strings.ReplaceAll(said, `\"`, `"`), w) {
					t.Errorf("the error lacks %q: %s", w, said)
				}
			}
			if strings.Contains(said, "&{") {
				t.Errorf("the error shows structures of Go: %s", said)
			}
			id := dockerID(t, name)
			if got := dockerOK(t, "inspect", "--format={{.State.Running}}", name); got != "false" {
				t.Errorf("Docker says running: %s", got)
			}
			if after := hashTree(t, dir); after != before {
				t.Error("the failed start changed the volume")
			}
			err := lab.WaitFor(testContext(t, time.Minute), "all processes of the container to end", 20*time.Second, func() (bool, error) {
				return len(processesWith(t, id)) == 0, nil
			})
			if err != nil {
				t.Errorf("%v: %q", err, processesWith(t, id))
			}
		})
	}
}

// processesWith gives the command lines of the host's processes that name a container.
func processesWith(t *testing.T, id string) []string {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	must(t, err)
	var found []string
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err == nil && strings.Contains(string(text), id) {
			found = append(found, strings.ReplaceAll(string(text), "\x00", " "))
		}
	}
	return found
}
