// Package gofer is the privileged, host side of blobfs volumes: it opens their
// images and devices, checks and locks them, formats new ones and copies the first files
// into them. What it opens is handed to the sandbox as descriptors; the
// sandbox opens nothing itself.
//
// The package has no global state and no mutexes. Who may use a volume at all
// is decided before, by the lock that comes with VolumeSpec.
package gofer

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"runsc-fs/blobfs/format"
)

// Kind says where the data of a volume lies.
type Kind string

// The kinds of volumes.
const (
	KindImage  Kind = "image"  // an image file
	KindMemory Kind = "memory" // memory that ends with the sandbox
	KindDevice Kind = "device" // a namespace of an NVMe device that is bound to vfio-pci
)

// ErrInUse says that another process holds the image.
var ErrInUse = errors.New("image is in use")

// ErrImage is the class of errors of an image that is not as it should be.
var ErrImage = errors.New("image cannot be used")

// VolumeSpec describes a volume to be opened.
type VolumeSpec struct {
	// Name is for messages, and the label of a new memory volume.
	Name string
	Kind Kind
	// Path is the image of a KindImage volume.
	Path string
	// Device is the namespace of a KindDevice volume.
	Device DeviceSpec
	// Parents are the frozen files below Path, if it is a layer; the base comes
	// first.
	Parents []string
	// SizeBytes is the size of the volume. An image of another size is refused.
	SizeBytes int64
	// ReadOnlyOK accepts an image that can only be opened for reading.
	ReadOnlyOK bool
}

// Volume is an open volume. Its file goes to the sandbox.
type Volume struct {
	VolumeSpec
	// File is the image, or the sealed memfd of a memory volume. Its open file
	// description carries an exclusive flock(2), which the kernel drops with
	// the last descriptor, whatever becomes of the processes.
	// A device's volume has none: see HandOver.
	File *os.File
	// ParentFiles are the frozen files below File, open for reading only, with a
	// shared flock(2).
	ParentFiles []*os.File
	// ReadOnly says that File is open for reading only.
	ReadOnly bool
}

// OpenVolume opens the volume and checks that it holds a file system this
// program can mount, without changing it. A memory volume is made and
// formatted. Errors are one line that names the volume and the image.
func OpenVolume(spec VolumeSpec) (*Volume, error) {
	v := &Volume{VolumeSpec: spec}
	var err error
	switch spec.Kind {
	case KindImage:
		err = v.openImage()
	case KindMemory:
		err = v.makeMemory()
	case KindDevice:
		err = v.checkDevice()
	default:
		err = fmt.Errorf("its kind %q is not known", spec.Kind)
	}
	if err != nil {
		v.Close()
		return nil, fmt.Errorf("volume %q: %w", spec.Name, err)
	}
	return v, nil
}

// Close closes this process's descriptor. It may be called again.
func (v *Volume) Close() {
	if v.File != nil {
		v.File.Close()
	}
	closeAll(v.ParentFiles)
}

func (v *Volume) openImage() error {
	file, readOnly, err := openImage(v.Path, v.ReadOnlyOK)
	if err != nil {
		return err
	}
	v.File, v.ReadOnly = file, readOnly
	if err := lockImage(file, v.Path); err != nil {
		return err
	}
	if v.ParentFiles, err = openParents(v.Parents); err != nil {
		return err
	}
	medium, err := openMedium(v.files(), v.Path, true)
	if err != nil {
		return err
	}
	defer medium.Close()
	sizeBytes := medium.Properties().SizeBytes
	if sizeBytes != v.SizeBytes {
		return imageError(ErrImage, v.Path, "has %d bytes instead of %d: it was changed from outside", sizeBytes, v.SizeBytes)
	}
	if err := probe(mediumReader{medium}, v.Path, sizeBytes); !errors.Is(err, format.ErrNotBlobfs) {
		return err
	}
	// It held one when the volume was made: to format it again is no remedy.
	return imageError(ErrImage, v.Path,
		"holds no blobfs any more: its superblocks were overwritten; put a copy of it back, or give the volume up with 'runsc-fs volume rm %s'", v.Name)
}

// files are the files of an image volume, the base first.
func (v *Volume) files() []*os.File { return append(slices.Clone(v.ParentFiles), v.File) }

// openImage opens a regular file for reading and writing, or for reading only
// if that is allowed and all there is.
func openImage(path string, readOnlyOK bool) (file *os.File, readOnly bool, err error) {
	file, err = openRegular(path, unix.O_RDWR)
	if readOnlyOK && (errors.Is(err, unix.EROFS) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM)) {
		file, err = openRegular(path, unix.O_RDONLY)
		return file, true, err
	}
	return file, false, err
}

// openRegular opens a regular file.
func openRegular(path string, mode int) (*os.File, error) {
	// O_NONBLOCK keeps a FIFO from blocking; it means nothing to a file.
	fd, err := unix.Open(path, mode|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	switch err {
	case nil:
	case unix.ENOENT:
		return nil, imageError(ErrImage, path, "is missing")
	case unix.ELOOP:
		return nil, imageError(ErrImage, path, "is a symbolic link; name the file itself")
	case unix.EISDIR, unix.ENXIO:
		return nil, imageError(ErrImage, path, "is not a regular file")
	default:
		return nil, imageError(errors.Join(ErrImage, err), path, "cannot be opened: %v", err)
	}
	file := os.NewFile(uintptr(fd), path)
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = imageError(ErrImage, path, "is not a regular file")
	}
	if err == nil {
		err = unix.SetNonblock(fd, false)
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

func flock(file *os.File) error {
	for {
		if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != unix.EINTR {
			return err
		}
	}
}

// Probe tells whether the file at path is an image that can be mounted. It
// does not change it.
func Probe(path string) error {
	file, _, err := openImage(path, true)
	if err != nil {
		return err
	}
	defer file.Close()
	if err := refuseLayer(file, path); err != nil {
		return err
	}
	info, err := file.Stat()
	if err != nil {
		return imageError(ErrImage, path, "%v", err)
	}
	return probe(file, path, info.Size())
}

// probe reads the superblocks, which tells a blobfs of this version from
// anything else. The structures below them are checked as they are used.
func probe(file io.ReaderAt, path string, sizeBytes int64) error {
	if sizeBytes < format.MinBlocks*format.BlockSizeBytes {
		return imageError(ErrImage, path, "is too small to hold a blobfs")
	}
	var slots [format.SuperblockSlots][]byte
	for i := range slots {
		block := make([]byte, format.BlockSizeBytes)
		if _, err := file.ReadAt(block, format.SuperblockAddr(i).OffsetBytes()); err == nil {
			slots[i] = block
		}
	}
	_, _, err := format.BestSuperblock(slots, uint64(sizeBytes)/format.BlockSizeBytes)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, format.ErrNotBlobfs):
		return imageError(errors.Join(ErrImage, format.ErrNotBlobfs), path,
			"holds no blobfs; 'runsc-fs mkfs --force %s' makes one and destroys what is there", path)
	default:
		return imageError(ErrImage, path, "cannot be mounted: %v; 'runsc-fs fsck %s' shows more", err, path)
	}
}

// classError is a one-line error that belongs to a class.
type classError struct {
	class error
	text  string
}

func (e *classError) Error() string { return e.text }
func (e *classError) Unwrap() error { return e.class }

func imageError(class error, path, text string, args ...any) error {
	return &classError{class: class, text: "image " + path + " " + fmt.Sprintf(text, args...)}
}
