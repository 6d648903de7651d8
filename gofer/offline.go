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

// openOffline serves the volume for reading and writing, through descriptors of
// its own.
func (v *Volume) openOffline() (*offline, error) {
	switch v.Kind {
	case KindDevice:
		return openDeviceOffline(v.Device)
	case KindImage:
		medium, err := openMedium(v.files(), v.Path, false)
		if err != nil {
			return nil, err
		}
		return serve(medium, v.Name)
	}
	own, err := dupAll([]*os.File{v.File})
	if err != nil {
		return nil, err
	}
	medium, err := soft.NewMemfdBacking(own[0])
	if err != nil {
		closeAll(own)
		return nil, err
	}
	return serve(medium, v.Name)
}

// serve puts controller and driver in front of a medium, which it takes over.
func serve(medium soft.Backing, label string) (*offline, error) {
	arena, err := nvme.NewArena(nvme.ArenaOptions{SizeBytes: offlineArenaBytes})
	if err != nil {
		return nil, errors.Join(err, medium.Close())
	}
	device, err := soft.Open(medium, arena, soft.Options{LBASizeBytes: blobfs.BlockSizeBytes, Serial: label})
	if err != nil {
		return nil, errors.Join(err, arena.Close())
	}
	return &offline{arena: arena, device: device}, nil
}

func (o *offline) close() error { return errors.Join(o.device.Close(), o.arena.Close()) }

// Image names what Inspect looks at.
type Image struct {
	Path    string
	Parents []string // the frozen files below it, the base first
	// Frozen says that nobody writes to the image: it is a snapshot, which may be
	// in use below any number of clones.
	Frozen bool
}

// Inspect serves an image for reading while do runs. The image need not hold a
// valid file system. It keeps sandboxes off the image, unless force is set: then
// a sandbox may be using it, and change it meanwhile.
func Inspect(image Image, force bool, do func(nvme.BlockDevice) error) error {
	return image.serveOffline(readOnly, force, do)
}

// Repair is Inspect of an image for writing, too. Nobody else may use it, and it
// must be one file of its own: clones may see what is written to a layer.
func Repair(path string, do func(nvme.BlockDevice) error) error {
	return Image{Path: path}.serveOffline(readWrite, false, do)
}

func (image Image) serveOffline(mode access, force bool, do func(nvme.BlockDevice) error) error {
	path := image.Path
	file, err := openImage(path, mode, remediesOfPath(path))
	if err != nil {
		return err
	}
	defer file.Close()
	switch {
	case image.Frozen:
		err = shareImage(file, path)
	case !force:
		err = lockImage(file, path)
	}
	if err != nil {
		return err
	}
	if len(image.Parents) == 0 {
		if err := refuseLayer(file, path); err != nil {
			return err
		}
	}
	parents, err := openParents(image.Parents)
	if err != nil {
		return err
	}
	defer closeAll(parents)
	medium, err := openMedium(append(parents, file), path, mode == readOnly)
	if err != nil {
		return err
	}
	if medium.Properties().SizeBytes < format.MinBlocks*format.BlockSizeBytes {
		return errors.Join(tooSmall(path), medium.Close())
	}
	o, err := serve(medium, "inspect")
	if err != nil {
		return imageError(ErrImage, path, "cannot be read: %v", err)
	}
	err = do(o.device)
	switch {
	case errors.Is(err, format.ErrNotBlobfs):
		err = imageError(errors.Join(ErrImage, format.ErrNotBlobfs), path, "holds no blobfs; %s", remediesOfPath(path).unfit)
	case errors.Is(err, format.ErrVersion), errors.Is(err, format.ErrFeature):
		err = tooNew(path, err)
	}
	return errors.Join(err, o.close())
}

// Format writes an empty file system into the image at path, which must have
// exactly sizeBytes. Whatever it holds is lost.
func Format(path string, sizeBytes int64, label string) error {
	file, err := openImage(path, readWrite, remediesOfPath(path))
	if err != nil {
		return err
	}
	defer file.Close()
	if err := lockImage(file, path); err != nil {
		return err
	}
	if err := refuseLayer(file, path); err != nil {
		return err
	}
	info, err := file.Stat()
	if err != nil {
		return imageError(ErrImage, path, "%v", err)
	}
	if info.Size() != sizeBytes {
		return imageError(ErrImage, path, "has %d bytes instead of %d", info.Size(), sizeBytes)
	}
	image := &Volume{VolumeSpec: VolumeSpec{Name: label, Kind: KindImage, Path: path}, File: file}
	err = image.format()
	if isFull(err) {
		return imageError(errors.Join(ErrImage, unix.ENOSPC), path,
			"cannot be formatted: there is no space left on its file system; free some, or use a place on another one")
	}
	if err != nil {
		return imageError(ErrImage, path, "cannot be formatted: %v", err)
	}
	return nil
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
	return v.format()
}
