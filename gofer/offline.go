package gofer

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"runsc-fs/blobfs"
	"runsc-fs/blobfs/format"
	"runsc-fs/nvme"
	"runsc-fs/nvme/soft"
)

// offlineArenaBytes is the memory for work on an image outside a sandbox. Only
// what is touched costs anything.
const offlineArenaBytes = 64 << 20

// offline is a volume that this process serves itself, through the same
// controller and driver as in a sandbox.
type offline struct {
	arena  *nvme.Arena
	device nvme.BlockDevice
}

// openOffline serves the volume in file for reading and writing, and keeps a
// descriptor of its own.
func openOffline(file *os.File, kind Kind, label string) (*offline, error) {
	return openOfflineMode(file, kind, label, false)
}

func openOfflineMode(file *os.File, kind Kind, label string, readOnly bool) (*offline, error) {
	fd, err := unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	own := os.NewFile(uintptr(fd), file.Name())
	var backing soft.Backing
	if kind == KindMemory {
		backing, err = soft.NewMemfdBacking(own)
	} else {
		backing, err = soft.NewFileBacking(own, readOnly)
	}
	if err != nil {
		own.Close()
		return nil, err
	}
	arena, err := nvme.NewArena(nvme.ArenaOptions{SizeBytes: offlineArenaBytes})
	if err != nil {
		return nil, errors.Join(err, backing.Close())
	}
	device, err := soft.Open(backing, arena, soft.Options{LBASizeBytes: blobfs.BlockSizeBytes, Serial: label})
	if err != nil {
		return nil, errors.Join(err, arena.Close())
	}
	return &offline{arena: arena, device: device}, nil
}

func (o *offline) close() error { return errors.Join(o.device.Close(), o.arena.Close()) }

// openOffline serves the volume.
func (v *Volume) openOffline() (*offline, error) {
	if v.Kind == KindDevice {
		return openDeviceOffline(v.Device)
	}
	return openOffline(v.File, v.Kind, v.Name)
}

// Inspect serves the image at path for reading while do runs. The image need
// not hold a valid file system. It keeps sandboxes off the image, unless force
// is set: then a sandbox may be using it, and change it meanwhile.
func Inspect(path string, force bool, do func(nvme.BlockDevice) error) error {
	file, _, err := openImage(path, true)
	if err != nil {
		return err
	}
	defer file.Close()
	if !force {
		if err := lockImage(file, path); err != nil {
			return err
		}
	}
	if info, err := file.Stat(); err != nil || info.Size() < format.MinBlocks*format.BlockSizeBytes {
		return imageError(ErrImage, path, "is too small to hold a blobfs")
	}
	o, err := openOfflineMode(file, KindImage, "inspect", true)
	if err != nil {
		return imageError(ErrImage, path, "cannot be read: %v", err)
	}
	return errors.Join(do(o.device), o.close())
}

// lockImage takes the exclusive lock of an open image.
func lockImage(file *os.File, path string) error {
	switch err := flock(file); {
	case err == unix.EWOULDBLOCK:
		return imageError(ErrInUse, path, "is in use by another process")
	case err != nil:
		return imageError(ErrImage, path, "cannot be locked: %v", err)
	}
	return nil
}

// Format writes an empty file system into the image at path, which must have
// exactly sizeBytes. Whatever it holds is lost.
func Format(path string, sizeBytes int64, label string) error {
	file, _, err := openImage(path, false)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := lockImage(file, path); err != nil {
		return err
	}
	info, err := file.Stat()
	if err != nil {
		return imageError(ErrImage, path, "%v", err)
	}
	if info.Size() != sizeBytes {
		return imageError(ErrImage, path, "has %d bytes instead of %d", info.Size(), sizeBytes)
	}
	if err := mkfs(file, KindImage, label); err != nil {
		return imageError(ErrImage, path, "cannot be formatted: %v", err)
	}
	return nil
}

func mkfs(file *os.File, kind Kind, label string) error {
	o, err := openOffline(file, kind, label)
	if err != nil {
		return err
	}
	return errors.Join(o.mkfs(label), o.close())
}

func (o *offline) mkfs(label string) error {
	return blobfs.Mkfs(o.device, blobfs.MkfsOptions{Label: clip(label, maxLabelBytes)})
}

// maxLabelBytes is the longest label of a file system.
const maxLabelBytes = 64

func clip(text string, bytes int) string { return text[:min(len(text), bytes)] }

// makeMemory makes the memory of a volume and formats it. The seals promise
// the sandbox that nobody shortens the memory that it has mapped.
func (v *Volume) makeMemory() error {
	if v.SizeBytes <= 0 {
		return fmt.Errorf("its size of %d bytes is not valid", v.SizeBytes)
	}
	fd, err := unix.MemfdCreate("blobfs volume "+clip(v.Name, 200), unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return fmt.Errorf("no memory file: %w", err)
	}
	v.File = os.NewFile(uintptr(fd), "memory of volume "+v.Name)
	if err := unix.Ftruncate(fd, v.SizeBytes); err != nil {
		return fmt.Errorf("memory of %d bytes: %w", v.SizeBytes, err)
	}
	const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(v.File.Fd(), unix.F_ADD_SEALS, seals); err != nil {
		return fmt.Errorf("memory cannot be sealed: %w", err)
	}
	return mkfs(v.File, KindMemory, v.Name)
}
