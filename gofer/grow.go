package gofer

import (
	"errors"
	"fmt"

	"runsc-fs/blobfs"
	"runsc-fs/nvme/layers"
)

// GrowImage makes the last file of an image volume long enough for a volume of
// sizeBytes, durably. It never makes it shorter, and may be called while a sandbox
// uses the volume.
func GrowImage(path string, sizeBytes int64) error {
	file, err := openImage(path, readWrite, remediesOfPath(path))
	if err != nil {
		return err
	}
	defer file.Close()
	err = layers.Grow(file, sizeBytes)
	if errors.Is(err, layers.ErrTooLarge) {
		return imageError(ErrImage, path, "is a layer and too small for that: %v; 'runsc-fs volume flatten' makes a plain image of the volume", err)
	}
	return err
}

// GrowVolume makes the file system of a volume, which nobody uses, as large as the volume.
func GrowVolume(spec VolumeSpec) error {
	v, err := OpenVolume(spec)
	if err != nil {
		return err
	}
	defer v.Close()
	o, err := v.openOffline()
	if err != nil {
		return err
	}
	fs, err := blobfs.Mount(o.device, blobfs.MountOptions{CommitInterval: -1})
	if err == nil {
		err = errors.Join(fs.Grow(spec.SizeBytes), fs.Close())
	}
	if err = errors.Join(err, o.close()); err != nil {
		return fmt.Errorf("volume %q: %w", spec.Name, err)
	}
	return nil
}
