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
	"os"
	"slices"

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
	// SizeBytes is the size of the volume. A shorter image is refused; a longer one is
	// what is left of growing it.
	SizeBytes int64
	// ReadOnly opens the image for reading only: nobody can write to it through
	// the volume.
	ReadOnly bool
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
	mode := readWrite
	if v.ReadOnly {
		mode = readOnly
	}
	todo := remediesOfVolume(v.Name)
	file, err := openImage(v.Path, mode, todo)
	if err != nil {
		return err
	}
	v.File = file
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
	if sizeBytes < v.SizeBytes {
		return imageError(ErrImage, v.Path, "has %d bytes instead of %d: it was changed from outside; %s", sizeBytes, v.SizeBytes, todo.unfit)
	}
	if err := probe(mediumReader{medium}, v.Path, sizeBytes); !errors.Is(err, format.ErrNotBlobfs) {
		return err
	}
	// It held one when the volume was made: to format it again is no remedy.
	return imageError(ErrImage, v.Path, "holds no blobfs any more: its superblocks were overwritten; %s", todo.unfit)
}

// files are the files of an image volume, the base first.
func (v *Volume) files() []*os.File {
	return append(slices.Clone(v.ParentFiles), v.File)
}
