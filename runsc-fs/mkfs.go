package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"runsc-fs/gofer"
	"runsc-fs/nvme/pcie"
	"runsc-fs/oci/registry"
	"runsc-fs/runsc-fs/hooks"
)

// mkfs makes an empty file system in an image file.
type mkfs struct {
	size  optional
	label string
	force bool

	namespace uint
}

func (*mkfs) name() string     { return "mkfs" }
func (*mkfs) synopsis() string { return "make an empty blobfs in an image file or on a device" }
func (*mkfs) arguments() string {
	return "PATH [--size SIZE] | ADDRESS [--namespace N] [--label TEXT] [--force]"
}

func (m *mkfs) setFlags(f *flag.FlagSet) {
	f.Var(&m.size, "size", "size of the image, such as 512M or 10G; needed if there is no file yet")
	f.StringVar(&m.label, "label", "", "name of the file system")
	f.BoolVar(&m.force, "force", false, "destroy what the file or the device holds")
	f.UintVar(&m.namespace, "namespace", 1, "number of the device's namespace")
}

func (m *mkfs) run(_ context.Context, _ io.Writer, args []string) error {
	if len(args) != 1 {
		return usagef("mkfs: one path is needed, not %d", len(args))
	}
	path := args[0]
	if addr, err := pcie.ParseAddress(path); err == nil {
		return m.device(addr)
	}
	var sizeBytes int64
	if m.size.given {
		var err error
		if sizeBytes, err = registry.ParseSize(m.size.text); err != nil {
			return err
		}
	}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return m.create(path, sizeBytes)
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return fmt.Errorf("image %s exists and is not a regular file; name an image file, or a new name in a directory to have one made", path)
	case sizeBytes != 0 && sizeBytes != info.Size():
		return fmt.Errorf("image %s has %d bytes, not %d; leave out --size to keep its size", path, info.Size(), sizeBytes)
	}
	if err := refuseVolume(path, info); err != nil {
		return err
	}
	if err := registry.CheckSize(info.Size()); err != nil {
		return fmt.Errorf("image %s: %w", path, err)
	}
	if !m.force {
		empty, err := isEmpty(path)
		if err != nil {
			return err
		}
		if !empty {
			return fmt.Errorf("image %s holds data; 'runsc-fs mkfs --force %s' destroys it", path, path)
		}
	}
	return gofer.Format(path, info.Size(), m.label)
}

// device makes the file system on a device that belongs to no volume.
func (m *mkfs) device(addr pcie.Address) error {
	if m.size.given {
		return usagef("mkfs: a file system on a device takes all of its namespace; leave out --size")
	}
	if m.namespace == 0 || m.namespace > maxNamespace {
		return usagef("mkfs: namespace %d: they are counted from 1", m.namespace)
	}
	reg, err := hooks.OpenRegistry()
	if err != nil {
		return err
	}
	volumes, err := reg.List()
	if err != nil {
		return err
	}
	spec := gofer.DeviceSpec{Address: string(addr), Namespace: uint32(m.namespace)}
	for _, v := range volumes {
		if d := v.Device(); d.Address == spec.Address && d.Namespace == spec.Namespace {
			return fmt.Errorf("device %v belongs to volume %q; 'runsc-fs volume rm %s' gives the volume up first", spec, v.Name(), v.Name())
		}
	}
	_, err = gofer.FormatDevice(spec, m.label, m.force)
	return err
}

// refuseVolume keeps mkfs off the images of volumes: whoever wants an empty
// volume says so by its name.
func refuseVolume(path string, info fs.FileInfo) error {
	reg, err := hooks.OpenRegistry()
	if err != nil {
		return err
	}
	volumes, err := reg.List()
	for _, v := range volumes {
		for _, file := range v.FilePaths() {
			image, err := os.Stat(file)
			if err != nil || !os.SameFile(info, image) {
				continue
			}
			return fmt.Errorf("image %s belongs to volume %q; 'runsc-fs volume rm %s' gives the volume up first", path, v.Name(), v.Name())
		}
	}
	return err
}

// create makes the file, too, and leaves none behind if it fails.
func (m *mkfs) create(path string, sizeBytes int64) error {
	if sizeBytes == 0 {
		return usagef("mkfs: image %s does not exist; give its --size to make it", path)
	}
	if whole, err := filepath.Abs(path); err != nil {
		return err
	} else if err := registry.CheckNewImage(whole); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return createError(path, err)
	}
	err = errors.Join(f.Truncate(sizeBytes), f.Close())
	if err != nil {
		err = createError(path, err)
	} else {
		err = gofer.Format(path, sizeBytes, m.label)
	}
	if err != nil {
		os.Remove(path)
	}
	return err
}

// createError says what to do about an image that cannot be made.
func createError(path string, err error) error {
	remedy := "choose another path"
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		remedy = "make its directory first, or correct the path"
	case errors.Is(err, fs.ErrPermission):
		remedy = "run this as root, or choose another path"
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		remedy = "free some space there, or choose another path"
	}
	var pathErr *fs.PathError
	if errors.As(err, &pathErr) {
		err = pathErr.Err
	}
	return fmt.Errorf("image %s cannot be made: %w; %s", path, err, remedy)
}

// emptyBytes is how much of an image must be zero for it to count as empty:
// more than any file system leaves free at its beginning.
const emptyBytes = 1 << 20

func isEmpty(path string) (bool, error) {
	f, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, emptyBytes))
	if err != nil {
		return false, err
	}
	for _, b := range text {
		if b != 0 {
			return false, nil
		}
	}
	return true, nil
}
