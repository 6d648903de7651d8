package e2e

import (
	"os"
	"path/filepath"
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

// newVolume creates a volume that is removed when the test ends.
func newVolume(t *testing.T, args ...string) string {
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
