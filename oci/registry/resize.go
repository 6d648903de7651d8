package registry

import (
	"errors"
	"fmt"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Resize makes a volume larger, also while a sandbox uses it. When it returns,
// the file system has the new size. The image grows first, then the description
// of the volume, then the file system, and each mount makes up for a last step
// that is missing: so whenever the machine stops, the volume has the old size or
// the new one, and an image that is longer than its volume harms nobody. If the sandbox
// cannot be asked, the volume has the new size from the next mount on, and the error
// says so. A memory volume that is not in use has no content; just its
// description changes.
func (r *Registry) Resize(name string, sizeBytes int64) (*Volume, error) {
	if err := CheckSize(sizeBytes); err != nil {
		return nil, err
	}
	sizeBytes = roundUp(sizeBytes)
	if r.opts.GrowImage == nil || r.opts.GrowVolume == nil || r.opts.AskUser == nil {
		return nil, errors.New("this program cannot resize volumes")
	}
	unlock, err := r.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := r.clearLeftoversLocked(); err != nil {
		return nil, err
	}
	v, err := r.Get(name)
	if err != nil {
		return nil, err
	}
	switch old := v.SizeBytes(); {
	case v.Kind() == KindDevice:
		return nil, failf(ErrInvalidSpec, "volume %q is on a device and has all of its namespace; only volumes with an image or in memory can be resized", name)
	case sizeBytes < old:
		return nil, failf(ErrInvalidSize, "volume %q has %s and cannot become smaller; make a volume of %s and copy the files", name, FormatSize(old), FormatSize(sizeBytes))
	}
	user, inUse, err := v.User()
	switch {
	case err != nil:
		return nil, err
	case !inUse:
		held, err := v.holdUnused()
		if err != nil {
			return nil, err
		}
		defer held.Close()
	case v.Kind() == KindMemory:
		return nil, failf(ErrInUse, "volume %q is in memory, and in use by container %s; stop that first", name, user.Container)
	}
	r.step()
	if v.Kind() == KindImage {
		if err := r.opts.GrowImage(v.ImagePath(), sizeBytes); err != nil {
			return nil, growError(v, sizeBytes, err)
		}
	}
	spec := v.spec
	spec.SizeBytes = sizeBytes
	r.step()
	if err := writeSpec(v.dir, &spec); err != nil {
		return nil, growError(v, sizeBytes, err)
	}
	r.step()
	grown := &Volume{reg: r, dir: v.dir, spec: spec}
	switch {
	case v.Kind() == KindMemory:
	case inUse:
		if err := r.opts.AskUser(user, name, sizeBytes); err != nil {
			return nil, fmt.Errorf("volume %q has %s from its next mount on; container %s, which uses it now, did not take that in: %w",
				name, FormatSize(sizeBytes), user.Container, err)
		}
	default:
		if err := r.opts.GrowVolume(grown); err != nil {
			return nil, fmt.Errorf("volume %q has %s from its next mount on; its file system did not take that in: %w", name, FormatSize(sizeBytes), err)
		}
	}
	return grown, nil
}

func growError(v *Volume, sizeBytes int64, err error) error {
	dir := filepath.Dir(v.ImagePath())
	switch {
	case errors.Is(err, unix.EFBIG):
		return failf(ErrInvalidSize, "the file system of %s allows no file of %s", dir, FormatSize(sizeBytes))
	case isFull(err):
		return failf(err, "volume %q cannot be resized: there is no space left on the file system of %s; free some", v.Name(), dir)
	}
	return fmt.Errorf("volume %q cannot be resized: %w", v.Name(), err)
}
