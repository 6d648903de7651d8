package hooks

import (
	"fmt"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/cleanup"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/overlay"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/vfs"

	"runsc-fs/oci"
)

// rootVolume is set while flags are parsed, before any other function is called.
var rootVolume string

// SetRootVolume chooses the volume that takes what containers write to their root
// file system, for those whose specification does not name one.
func SetRootVolume(name string) { rootVolume = name }

// RootVolume returns what SetRootVolume has set.
func RootVolume() string { return rootVolume }

// HasRootVolume tells whether a container's root file system is written to a
// volume, and so needs no upper layer of the runtime's own.
func HasRootVolume(spec *specs.Spec) bool { return oci.RootMount(spec) != nil }

// WithoutRootVolume returns the specification without the mount of the root
// volume, which is made with the root file system and not on it.
func WithoutRootVolume(spec *specs.Spec) *specs.Spec {
	root := oci.RootMount(spec)
	if root == nil {
		return spec
	}
	without := *spec
	without.Mounts = nil
	for i := range spec.Mounts {
		if &spec.Mounts[i] != root {
			without.Mounts = append(without.Mounts, spec.Mounts[i])
		}
	}
	return &without
}

// MountRootVolume mounts the image of a container, of type lowerName with the
// options lower, and its root volume, and returns the options of the overlay
// of both. cleanup gives the references to the two mounts back, and must be called after
// the overlay has been mounted.
func MountRootVolume(ctx context.Context, vfsObj *vfs.VirtualFilesystem, creds *auth.Credentials, spec *specs.Spec, lowerName string, lower *vfs.MountOptions) (*vfs.MountOptions, func(), error) {
	m := oci.RootMount(spec)
	fsName, upper, err := MountOptions(m)
	if err != nil {
		return nil, nil, err
	}
	both := *lower
	both.GetFilesystemOptions = vfs.GetFilesystemOptions{InternalMount: true}
	both.Flags = upper.Flags
	lower.ReadOnly = true
	lowerMount, err := vfsObj.MountDisconnected(ctx, creds, "" /* source */, lowerName, lower)
	if err != nil {
		return nil, nil, err
	}
	cu := cleanup.Make(func() { lowerMount.DecRef(ctx) })
	defer cu.Clean()
	upperMount, err := vfsObj.MountDisconnected(ctx, creds, m.Source, fsName, upper)
	if err != nil {
		return nil, nil, err
	}
	cu.Add(func() { upperMount.DecRef(ctx) })
	lowerRoot := vfs.MakeVirtualDentry(lowerMount, lowerMount.Root())
	upperRoot := vfs.MakeVirtualDentry(upperMount, upperMount.Root())
	if err := takeOverRoot(ctx, vfsObj, creds, lowerRoot, upperRoot); err != nil {
		return nil, nil, withName(m.Source, err)
	}
	both.GetFilesystemOptions.InternalData = overlay.FilesystemOptions{
		UpperRoot:  upperRoot,
		LowerRoots: []vfs.VirtualDentry{lowerRoot},
	}
	return &both, cu.Release(), nil
}

// takeOverRoot gives the root directory of a volume that nothing was written to
// yet the owner and mode of the image's: those of a volume that was used may
// have been changed since.
func takeOverRoot(ctx context.Context, vfsObj *vfs.VirtualFilesystem, creds *auth.Credentials, lower, upper vfs.VirtualDentry) error {
	at := func(vd vfs.VirtualDentry) *vfs.PathOperation { return &vfs.PathOperation{Root: vd, Start: vd} }
	const wanted = linux.STATX_UID | linux.STATX_GID | linux.STATX_MODE
	stat, err := vfsObj.StatAt(ctx, creds, at(lower), &vfs.StatOptions{Mask: wanted})
	if err != nil {
		return fmt.Errorf("looking at the root directory of the image: %w", err)
	}
	dir, err := vfsObj.OpenAt(ctx, creds, at(upper), &vfs.OpenOptions{Flags: linux.O_RDONLY | linux.O_DIRECTORY})
	if err != nil {
		return fmt.Errorf("opening its root directory: %w", err)
	}
	defer dir.DecRef(ctx)
	var entries countEntries
	if err := dir.IterDirents(ctx, &entries); err != nil {
		return fmt.Errorf("reading its root directory: %w", err)
	}
	if entries > 0 {
		return nil
	}
	err = vfsObj.SetStatAt(ctx, creds, at(upper), &vfs.SetStatOptions{
		Stat: linux.Statx{Mask: wanted & stat.Mask, UID: stat.UID, GID: stat.GID, Mode: stat.Mode},
	})
	if err != nil {
		return fmt.Errorf("changing its root directory: %w", err)
	}
	return nil
}

// countEntries counts the entries of a directory, "." and ".." aside.
type countEntries int

// Handle implements vfs.IterDirentsCallback.Handle.
func (n *countEntries) Handle(d vfs.Dirent) error {
	if d.Name != "." && d.Name != ".." {
		*n++
	}
	return nil
}
