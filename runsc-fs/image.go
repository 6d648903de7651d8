package main

import (
	"errors"
	"fmt"
	"strings"

	"runsc-fs/gofer"
	"runsc-fs/nvme"
	"runsc-fs/nvme/pcie"
	"runsc-fs/oci/registry"
	"runsc-fs/runsc-fs/hooks"
)

// target is what an argument names: the image or the device of a volume, a snapshot, a
// file or a device.
type target struct {
	image  gofer.Image      // without path for a device
	device gofer.DeviceSpec // without image
}

// String names it for messages.
func (t target) String() string {
	if t.image.Path != "" {
		return "image " + t.image.Path
	}
	return "device " + t.device.String()
}

// inspect serves the target while do runs. force reads an image even if a sandbox uses
// it; a device cannot be shared.
func (t target) inspect(force bool, do func(nvme.BlockDevice) error) error {
	if t.image.Path != "" {
		return gofer.Inspect(t.image, force, do)
	}
	return gofer.InspectDevice(t.device, do)
}

// findTarget returns what an argument names: the path of a file, which has a slash, the PCI
// address of a device, whose first namespace is meant, or the name of a volume or a
// snapshot. Unless force is set a volume in use is a registry.ErrInUse.
func findTarget(argument string, force bool) (target, error) {
	if strings.Contains(argument, "/") {
		return target{image: gofer.Image{Path: argument}}, nil
	}
	if addr, err := pcie.ParseAddress(argument); err == nil {
		return target{device: gofer.DeviceSpec{Address: string(addr), Namespace: 1}}, nil
	}
	reg, err := hooks.OpenRegistry()
	if err != nil {
		return target{}, err
	}
	if registry.IsSnapshotName(argument) {
		image, err := findSnapshot(reg, argument)
		return target{image: image}, err
	}
	volume, err := reg.Get(argument)
	if err != nil {
		return target{}, err
	}
	t := target{image: gofer.Image{Path: volume.ImagePath(), Parents: volume.ParentPaths()}}
	onDevice := false
	switch volume.Kind() {
	case registry.KindMemory:
		return target{}, fmt.Errorf("volume %q is in memory and has no image; name another volume or an image file", argument)
	case registry.KindDevice:
		t.device = hooks.DeviceSpec(volume.Device())
		onDevice, force = true, false // it would fail later, with less to say
	}
	if force {
		return t, nil
	}
	err = volume.CheckFree()
	if onDevice && errors.Is(err, registry.ErrInUse) {
		err = deviceInUseError{err}
	}
	return t, err
}

// deviceInUseError is a registry.ErrInUse that force does not help against.
type deviceInUseError struct{ error }

func (e deviceInUseError) Error() string { return e.error.Error() + ": its device cannot be shared" }
func (e deviceInUseError) Unwrap() error { return e.error }

func findSnapshot(reg *registry.Registry, argument string) (gofer.Image, error) {
	name, tag, err := registry.ParseSnapshotName(argument)
	if err != nil {
		return gofer.Image{}, err
	}
	volume, err := reg.Get(name)
	if err != nil {
		return gofer.Image{}, err
	}
	snapshot, err := volume.Snapshot(tag)
	if err != nil {
		return gofer.Image{}, err
	}
	files := volume.SnapshotPaths(snapshot)
	last := len(files) - 1
	return gofer.Image{Path: files[last], Parents: files[:last], Frozen: true}, nil
}
