package sentry

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"runsc-fs/nvme/pcie"
)

// FilesystemName is the type of a blobfs mount, as in mount(8) and in
// /proc/filesystems.
const FilesystemName = "blobfs"

// Kind says what a volume lies on.
type Kind string

// The kinds of volumes. The embedded controller serves the first two.
const (
	KindImage  Kind = "image"  // a regular file or block device, donated as an open descriptor
	KindMemory Kind = "memory" // memory of the sandbox, gone with it
	KindDevice Kind = "device" // a namespace of an NVMe controller behind VFIO
)

// RootSpec is the ownership and mode that the root directory of a new file
// system starts with. IDs are those of the sandbox's root user namespace.
type RootSpec struct {
	UID, GID uint32
	Mode     uint32 // permission bits, with set-ID and sticky bits
}

// VolumeSpec describes one volume of a sandbox.
type VolumeSpec struct {
	// Name identifies the volume; mounts name it as their source.
	Name string
	Kind Kind
	// File is the open image (KindImage), opened read-write unless ReadOnly.
	// For KindMemory it is the memory itself, a sealed memfd that the host has
	// made and perhaps filled already; nil lets the sandbox make its own.
	// AddVolume takes it over, unless it fails. Locks that the host holds
	// through it live as long as the sandbox keeps it open.
	// For KindDevice it is VFIO's file of the device.
	File *os.File
	// Space is the file of the device's I/O address space, Device says how the two
	// are used, and Namespace is the only namespace that is.
	Space     *os.File
	Device    pcie.Handle
	Namespace uint32
	// Parents are the frozen files below File, if that is a layer (see package
	// layers), the base first. They are only read. AddVolume takes them over,
	// unless it fails.
	Parents []*os.File
	// Lock is one more open file that belongs to the volume, or nil: the host
	// keeps others off the volume for as long as it is open anywhere. It is
	// closed together with the volume, after everything is written back.
	// AddVolume takes it over, unless it fails.
	Lock *os.File
	// SizeBytes is the capacity of a KindMemory volume. A KindImage volume whose
	// file system is smaller grows to it when it is mounted; 0 leaves it as it is.
	SizeBytes int64
	// ReadOnly never writes to the image: however the volume is mounted, changes
	// fail with EROFS.
	ReadOnly bool
	// New says that the image holds no file system yet: the first mount makes
	// one. A memory volume without File is always new.
	New bool
	// PopulateRoot is the root directory of a new file system; nil means
	// root:root 0755.
	PopulateRoot *RootSpec
	// ContainerID names the container that brought the volume, for messages.
	ContainerID string
}

// Errors of the volume registry.
var (
	// ErrNotSetUp is returned before Setup has run.
	ErrNotSetUp = errors.New("sentry: blobfs is not set up in this sandbox")
	// ErrUnknownVolume is returned for a mount of a volume that the sandbox was not given.
	ErrUnknownVolume = errors.New("sentry: no such volume in this sandbox")
	// ErrConflict is returned when a volume is added twice with different properties.
	ErrConflict = errors.New("sentry: volume is already part of this sandbox with other properties")
	// ErrShutDown is returned once Shutdown has begun.
	ErrShutDown = errors.New("sentry: blobfs has been shut down")
)

// maxVolumeName bounds VolumeSpec.Name in bytes.
const maxVolumeName = 255

func (s *VolumeSpec) validate() error {
	switch {
	case s.Name == "":
		return errors.New("sentry: volume without a name")
	case len(s.Name) > maxVolumeName:
		return fmt.Errorf("sentry: volume name %.20q... is longer than %d bytes", s.Name, maxVolumeName)
	case strings.ContainsAny(s.Name, "/,\x00"):
		return fmt.Errorf("sentry: volume name %q contains one of '/', ',' and NUL", s.Name)
	}
	switch s.Kind {
	case KindImage:
		if s.File == nil {
			return fmt.Errorf("sentry: volume %s: no image was given", s.Name)
		}
		if s.ReadOnly && s.New {
			return fmt.Errorf("sentry: volume %s: a read-only image must hold a file system", s.Name)
		}
	case KindMemory:
		if s.SizeBytes <= 0 {
			return fmt.Errorf("sentry: volume %s: size of %d bytes", s.Name, s.SizeBytes)
		}
		if s.ReadOnly || len(s.Parents) > 0 {
			return fmt.Errorf("sentry: volume %s: a memory volume cannot be read-only or a layer", s.Name)
		}
	case KindDevice:
		if s.File == nil || s.Space == nil || s.Namespace == 0 {
			return fmt.Errorf("sentry: volume %s: no device was given", s.Name)
		}
		if len(s.Parents) > 0 {
			return fmt.Errorf("sentry: volume %s: a device has no layers", s.Name)
		}
		if s.New {
			return fmt.Errorf("sentry: volume %s: a device must hold a file system", s.Name)
		}
	default:
		return fmt.Errorf("sentry: volume %s: unknown kind %q", s.Name, s.Kind)
	}
	return nil
}
