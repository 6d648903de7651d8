// Package oci finds the blobfs volumes among the mounts of an OCI container and makes the specification
// say so. Its sub-packages keep the volumes (registry), serve them to Docker (dockerplugin), keep that
// service running (service) and put the runtime into Docker's configuration (dockercfg).
//
// The package takes no locks and holds no state.
package oci

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"runsc-fs/oci/registry"
)

// MountType is the type of a blobfs mount in an OCI specification.
const MountType = "blobfs"

// ErrMount is the class of errors in what the specification says about blobfs mounts. A volume that does
// not exist has registry.ErrNotExist as well.
var ErrMount = errors.New("mount cannot be made")

// Mount is one blobfs mount of a container.
type Mount struct {
	// Volume is the volume that is mounted. Two mounts may be of the same volume; then both have equal
	// values here, though not the same pointer.
	Volume *registry.Volume
	// Destination is the clean, absolute path in the container.
	Destination string
	Options     MountOptions
	// Index is the position in the specification's mounts.
	Index int
}

// RootDestination is the destination of the mount whose volume takes what a container writes to its root
// file system.
const RootDestination = "/"

// RootVolumeAnnotation names such a volume where mounts cannot be written.
const RootVolumeAnnotation = "dev.runsc-fs.root-volume"

// WithRootVolume returns spec with the mount of the root volume that its annotation names, or else the
// argument, in front of its mounts; and spec itself if no volume is named, or there is such a mount already.
func WithRootVolume(spec *specs.Spec, volume string) *specs.Spec {
	if name := spec.Annotations[RootVolumeAnnotation]; name != "" {
		volume = name
	}
	if volume == "" || RootMount(spec) != nil {
		return spec
	}
	with := *spec
	with.Mounts = append([]specs.Mount{{Destination: RootDestination, Type: MountType, Source: volume}}, spec.Mounts...)
	return &with
}

// RootMount returns the mount of the root volume, or nil.
func RootMount(spec *specs.Spec) *specs.Mount {
	for i := range spec.Mounts {
		if m := &spec.Mounts[i]; m.Type == MountType && filepath.Clean(m.Destination) == RootDestination {
			return m
		}
	}
	return nil
}

// ResolveMounts finds the mounts of blobfs volumes in spec and rewrites them to type "blobfs", the
// volume's name as the source, and options in canonical form; all other mounts stay as they are. A mount
// is of a volume if its type is "blobfs", or if it is a bind mount whose source is the mountpoint directory
// of a volume, which is how Docker hands over volumes. A relative source of a bind mount names no volume here:
// the caller makes sources absolute first.
//
// Doing it twice gives the same as doing it once. On error spec is unchanged, and the error is one line
// that names the mount.
func ResolveMounts(spec *specs.Spec, reg *registry.Registry) ([]Mount, error) {
	var mounts []Mount
	for i := range spec.Mounts {
		mount, isVolume, err := resolve(&spec.Mounts[i], reg)
		if err != nil {
			return nil, &mountError{destination: spec.Mounts[i].Destination, err: err}
		}
		if isVolume {
			mount.Index = i
			mounts = append(mounts, mount)
		}
	}
	if err := checkDestinations(spec, mounts); err != nil {
		return nil, err
	}
	if len(mounts) == 0 {
		return nil, nil
	}
	// The caller may share the array with others, so it gets one of its own.
	spec.Mounts = slices.Clone(spec.Mounts)
	for _, mount := range mounts {
		spec.Mounts[mount.Index] = specs.Mount{
			Destination: mount.Destination,
			Type:        MountType,
			Source:      mount.Volume.Name(),
			Options:     mount.Options.Strings(),
		}
	}
	return mounts, nil
}

func resolve(mount *specs.Mount, reg *registry.Registry) (_ Mount, isVolume bool, err error) {
	var volume *registry.Volume
	switch {
	case mount.Type == MountType:
		if mount.Source == "" {
			return Mount{}, false, errors.New("the source is empty; it must be the name of a volume")
		}
		if volume, err = reg.Get(mount.Source); errors.Is(err, registry.ErrNotExist) {
			err = &missingError{mount.Source}
		}
		if err != nil {
			return Mount{}, false, err
		}
	case isBind(mount):
		found, sub, ok, err := reg.Locate(mount.Source)
		if err != nil || !ok {
			return Mount{}, false, err
		}
		if sub != "" {
			return Mount{}, false, fmt.Errorf("the source %q is a directory in volume %q; only a whole volume can be mounted: use the volume and the directory %q below the destination",
				mount.Source, found.Name(), sub)
		}
		volume = found
	default:
		return Mount{}, false, checkType(mount, reg)
	}
	root, err := checkDestination(mount.Destination)
	if err != nil {
		return Mount{}, false, err
	}
	if root && mount.Type != MountType {
		return Mount{}, false, fmt.Errorf("a volume on the root directory takes what is written there; write the type %q", MountType)
	}
	if len(mount.UIDMappings) > 0 || len(mount.GIDMappings) > 0 {
		return Mount{}, false, fmt.Errorf("ID mappings are not supported on volume %q", volume.Name())
	}
	options, err := ParseOptions(mount.Options)
	if err != nil {
		return Mount{}, false, fmt.Errorf("volume %q: %w", volume.Name(), err)
	}
	if volume.Spec().Discard && !options.NoDiscard {
		options.Discard = true
	}
	if root && options.ReadOnly {
		return Mount{}, false, fmt.Errorf("volume %q on the root directory takes what is written there, and so cannot be read-only; leave out the option \"ro\", or set root.readonly instead", volume.Name())
	}
	if options.SizeBytes > volume.SizeBytes() {
		return Mount{}, false, fmt.Errorf("volume %q: option \"size=%d\" is more than the volume has, %s", volume.Name(), options.SizeBytes, registry.FormatSize(volume.SizeBytes()))
	}
	return Mount{Volume: volume, Destination: filepath.Clean(mount.Destination), Options: options}, true, nil
}

// missingError is a registry.ErrNotExist of a volume that a mount names.
type missingError struct{ name string }

func (e *missingError) Error() string {
	return fmt.Sprintf("volume %q does not exist; create it with 'runsc-fs volume create %s --size 10G'", e.name, e.name)
}

func (e *missingError) Is(target error) bool { return target == registry.ErrNotExist }

// otherTypes are the types of mounts that have nothing to do with volumes. The
// runtime leaves out mounts of types that it does not know and says nothing.
var otherTypes = []string{
	"proc", "sysfs", "devpts", "devtmpfs", "dev", "tmpfs", "ramfs", "mqueue", "cgroup", "cgroup2", "securityfs", "debugfs", "tracefs",
	"bpf", "configfs", "fusectl", "hugetlbfs", "overlay", "erofs", "9p", "fuse", "nfs", "none", "bind",
}

// HasUnknownType tells whether the runtime would leave out the mount.
func HasUnknownType(mount *specs.Mount) bool {
	return mount.Type != MountType && !isBind(mount) && !slices.Contains(otherTypes, mount.Type)
}

// checkType refuses a mount of an unknown type whose source is the name of a
// volume: without its volume the application would write into the container.
func checkType(mount *specs.Mount, reg *registry.Registry) error {
	if !HasUnknownType(mount) || registry.CheckName(mount.Source) != nil {
		return nil
	}
	if _, err := reg.Get(mount.Source); errors.Is(err, registry.ErrNotExist) {
		return nil
	}
	return fmt.Errorf("type %q is not known, and the source is volume %q; write the type %q", mount.Type, mount.Source, MountType)
}

func isBind(mount *specs.Mount) bool {
	return mount.Type == "bind" || slices.Contains(mount.Options, "bind") || slices.Contains(mount.Options, "rbind")
}

func checkDestination(destination string) (root bool, err error) {
	switch {
	case destination == "":
		return false, errors.New("the destination is empty")
	case !filepath.IsAbs(destination):
		return false, errors.New("the destination is not an absolute path")
	}
	return filepath.Clean(destination) == RootDestination, nil
}

// checkDestinations refuses two mounts on one directory if one of them is a volume: one would hide the
// other, and data would go where nobody looks for it.
func checkDestinations(spec *specs.Spec, mounts []Mount) error {
	for _, mount := range mounts {
		for i := range spec.Mounts {
			if i != mount.Index && filepath.Clean(spec.Mounts[i].Destination) == mount.Destination {
				return &mountError{destination: mount.Destination, err: fmt.Errorf("volume %q and another mount have this destination", mount.Volume.Name())}
			}
		}
		for _, other := range mounts {
			if mount.Destination == RootDestination && other.Index != mount.Index && other.Volume.Name() == mount.Volume.Name() {
				return &mountError{destination: other.Destination, err: fmt.Errorf("volume %q is the root volume of the container and cannot be mounted elsewhere, too; use another one", mount.Volume.Name())}
			}
		}
	}
	return nil
}

// mountError puts the mount that it is about before an error.
type mountError struct {
	destination string
	err         error
}

func (e *mountError) Error() string {
	return fmt.Sprintf("mount %s: %v", printable(e.destination), e.err)
}

func (e *mountError) Unwrap() []error { return []error{ErrMount, e.err} }

// printable keeps the text of an error on one line whatever the specification contains.
func printable(path string) string {
	quoted := fmt.Sprintf("%q", path)
	if path != "" && quoted == `"`+path+`"` {
		return path
	}
	return quoted
}
