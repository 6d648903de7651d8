package registry

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Removed says what Remove left behind on purpose.
type Removed struct {
	// KeptImage is the path of an image outside the registry, which Remove does not touch.
	KeptImage string
	// KeptDevice is the device of the volume, whose data Remove does not touch.
	KeptDevice Device
}

// Remove takes a volume away with its data, except for an external image or a device. ErrInUse if a sandbox holds it.
func (r *Registry) Remove(name string) (Removed, error) {
	volume, err := r.Get(name)
	if errors.Is(err, ErrDamaged) {
		volume, err = &Volume{reg: r, dir: r.volumePath(name), spec: Spec{Name: name}}, nil // removing it is the way out
	}
	if err != nil {
		return Removed{}, err
	}
	unlock, err := r.lock()
	if err != nil {
		return Removed{}, err
	}
	defer unlock()
	if err := r.clearLeftoversLocked(); err != nil {
		return Removed{}, err
	}
	held, err := volume.holdForRemoval()
	if err != nil {
		return Removed{}, err
	}
	defer held.Close()
	if err := volume.checkNothingMounted(); err != nil {
		return Removed{}, err
	}
	if err := volume.checkNoSnapshots(); err != nil {
		return Removed{}, err
	}
	if gone := r.onlyIn(volume.spec.allLayers(), &Spec{Name: name}); len(gone) > 0 {
		if err := r.markLocked(gone...); err != nil {
			return Removed{}, fmt.Errorf("remove volume %q: %w", name, err)
		}
	}
	temp := filepath.Join(r.volumesPath(), tempPrefix+name)
	r.step()
	if err := os.Rename(volume.dir, temp); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return Removed{}, notExist(name)
		}
		return Removed{}, fmt.Errorf("remove volume %q: %w", name, err)
	}
	if err := syncDir(r.volumesPath()); err != nil {
		return Removed{}, fmt.Errorf("remove volume %q: %w", name, err)
	}
	r.step()
	if err := errors.Join(os.RemoveAll(temp), r.settleLocked()); err != nil {
		return Removed{}, fmt.Errorf("volume %q is removed, but not all of its files: %w", name, err)
	}
	return Removed{KeptImage: volume.spec.Image, KeptDevice: volume.Device()}, nil
}

// holdForRemoval takes the lock of the volume so that no sandbox can take it while it disappears.
func (v *Volume) holdForRemoval() (*os.File, error) {
	file, err := os.OpenFile(v.LockPath(), os.O_RDWR|os.O_CREATE, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, notExist(v.Name())
	}
	if err != nil {
		return nil, fmt.Errorf("remove volume %q: %w", v.Name(), err)
	}
	err = retryUntil(time.Now().Add(LockRetry), func() error { return flock(file, unix.LOCK_EX|unix.LOCK_NB) })
	if err != nil {
		defer file.Close()
		if err == unix.EWOULDBLOCK {
			return nil, inUseError(v.Name(), readHolder(file))
		}
		return nil, fmt.Errorf("remove volume %q: %w", v.Name(), err)
	}
	return file, nil
}

// checkNothingMounted refuses the removal of a mountpoint on which the host has mounted something, whose
// files would otherwise be removed in place of the volume's.
func (v *Volume) checkNothingMounted() error {
	var dir, mountpoint unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, v.dir, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_MNT_ID, &dir); err != nil {
		return fmt.Errorf("remove volume %q: %w", v.Name(), err)
	}
	err := unix.Statx(unix.AT_FDCWD, v.Mountpoint(), unix.AT_SYMLINK_NOFOLLOW, unix.STATX_MNT_ID, &mountpoint)
	if err == unix.ENOENT {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove volume %q: %w", v.Name(), err)
	}
	if dir.Mnt_id != mountpoint.Mnt_id || dir.Dev_major != mountpoint.Dev_major || dir.Dev_minor != mountpoint.Dev_minor {
		return failf(ErrInUse, "volume %q: something is mounted on %s; unmount it first", v.Name(), v.Mountpoint())
	}
	return nil
}
