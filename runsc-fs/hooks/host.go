package hooks

import (
	"os"
	"os/exec"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// IsVolumeMount tells whether a mount names a volume as its source.
func IsVolumeMount(m *specs.Mount) bool { return m.Type == FilesystemName }

// OpenSpec opens the specification in a bundle with mounts of volumes
// recognised. It returns nil if the file in the bundle is good as it is.
func OpenSpec(bundleDir string) (*os.File, error) { return nil, nil }

// OpenVolumes opens and locks the volumes that a container mounts.
func OpenVolumes(spec *specs.Spec, containerID, sandboxID string) error { return nil }

// ForgetVolumes closes this process's copies of what OpenVolumes opened.
func ForgetVolumes(containerID string) {}

// CheckVolumes tells whether OpenVolumes would succeed now.
func CheckVolumes(spec *specs.Spec, sandboxID string) error { return nil }

// fileDonor is runsc's way to give files to a child process.
type fileDonor interface {
	DonateAndClose(flag string, files ...*os.File)
}

// DonateVolumes gives the opened volumes to the sandbox process.
func DonateVolumes(containerID string, spec *specs.Spec, donor fileDonor, cmd *exec.Cmd) error {
	return nil
}

// SendVolumes adds the opened volumes to a start request.
func SendVolumes(containerID string, args *[]VolumeArg, payload *[]*os.File) {}

// StopSandbox ends a sandbox with volumes so that it writes them back.
func StopSandbox(pid int, kill func() error) {}
