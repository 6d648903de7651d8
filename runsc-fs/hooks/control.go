package hooks

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"runsc-fs/gofer"
	"runsc-fs/oci/registry"
	"runsc-fs/sentry"
)

// growVolumeMethod is BlobfsVolumes.Grow as the control socket calls it.
const growVolumeMethod = "BlobfsVolumes.Grow"

// BlobfsVolumes are the volumes of a sandbox as commands on the host reach them,
// through runsc's control socket.
type BlobfsVolumes struct{}

// GrowArgs are the arguments of BlobfsVolumes.Grow.
type GrowArgs struct {
	Name      string
	SizeBytes int64
}

// Grow makes a volume larger whose image has been made longer.
func (*BlobfsVolumes) Grow(args *GrowArgs, _ *struct{}) error {
	return sentry.GrowVolume(args.Name, args.SizeBytes)
}

// ServeVolumes returns what the control socket of this sandbox serves besides
// upstream's, nil in a sandbox without volumes.
func ServeVolumes() *BlobfsVolumes {
	if !enabled() {
		return nil
	}
	return &BlobfsVolumes{}
}

// callSandbox calls a method in a sandbox; see SetSandboxCaller.
var callSandbox func(runtimeRoot, sandboxID, method string, arg any) error

// SetSandboxCaller says how a command reaches a sandbox: the package that can do
// it imports this one.
func SetSandboxCaller(call func(runtimeRoot, sandboxID, method string, arg any) error) {
	callSandbox = call
}

// askTimeout bounds the wait for a sandbox.
const askTimeout = 60 * time.Second

// askUser has the sandbox of a volume's user make the volume larger.
func askUser(user registry.User, name string, sizeBytes int64) error {
	if callSandbox == nil || user.RuntimeRoot == "" {
		return errors.New("its sandbox cannot be reached")
	}
	sandboxID := user.Container
	if _, pod, ok := strings.Cut(sandboxID, podMark); ok {
		sandboxID = pod
	}
	done := make(chan error, 1)
	go func() { done <- callSandbox(user.RuntimeRoot, sandboxID, growVolumeMethod, &GrowArgs{name, sizeBytes}) }()
	select {
	case err := <-done:
		return err
	case <-time.After(askTimeout):
		return fmt.Errorf("its sandbox has not answered in %v", askTimeout)
	}
}

// growVolume makes the file system of an image volume as large as the volume.
func growVolume(v *registry.Volume) error {
	return gofer.GrowVolume(gofer.VolumeSpec{
		Name: v.Name(), Kind: gofer.Kind(v.Kind()), Path: v.ImagePath(), Parents: v.ParentPaths(), SizeBytes: v.SizeBytes(),
	})
}
