package main

import (
	"context"
	"flag"
	"fmt"
	"io"

	"runsc-fs/nvme/pcie"
	"runsc-fs/oci/registry"
	"runsc-fs/runsc-fs/hooks"
)

// maxNamespace is the greatest number that a namespace can have.
const maxNamespace = 0xfffffffe

// volumeCreate makes a volume.
type volumeCreate struct {
	size    optional
	memory  bool
	discard bool
	image   optional

	device    string
	namespace uint
	existing  bool
	force     bool
}

func (*volumeCreate) name() string     { return "create" }
func (*volumeCreate) synopsis() string { return "make a volume" }
func (*volumeCreate) arguments() string {
	return "NAME [--size SIZE] [--discard] [--memory | --image PATH | --device ADDRESS [--namespace N] [--existing | --force]]"
}

func (v *volumeCreate) setFlags(f *flag.FlagSet) {
	f.Var(&v.size, "size", "size of the volume, such as 512M or 10G; default 10G, or 1G in memory")
	f.BoolVar(&v.memory, "memory", false, "keep the data in memory; it ends with the container")
	f.BoolVar(&v.discard, "discard", false, "give space that is freed in the volume back to the host, as the mount option discard does")
	f.Var(&v.image, "image", "image file outside the registry: used as it is if it exists, else made")
	f.StringVar(&v.device, "device", "", "PCI address of an NVMe device for the volume alone, bound with 'runsc-fs device bind'")
	f.UintVar(&v.namespace, "namespace", 1, "number of the device's namespace")
	f.BoolVar(&v.existing, "existing", false, "use the blobfs that the device holds")
	f.BoolVar(&v.force, "force", false, "make a new file system even if the device holds data, and destroy it")
}

func (v *volumeCreate) run(_ context.Context, out io.Writer, args []string) error {
	if len(args) != 1 {
		return usagef("one name is needed, not %d", len(args))
	}
	spec := registry.CreateSpec{Name: args[0], Image: v.image.text, Discard: v.discard, Existing: v.existing, Force: v.force}
	if v.image.given && v.image.text == "" {
		return usagef("the path of --image is empty; leave out the flag to have the image made in the registry")
	}
	if v.device != "" {
		addr, err := pcie.ParseAddress(v.device)
		if err != nil {
			return usagef("%v", err)
		}
		if v.namespace == 0 || v.namespace > maxNamespace {
			return usagef("namespace %d: they are counted from 1", v.namespace)
		}
		spec.Device = &registry.Device{Address: string(addr), Namespace: uint32(v.namespace)}
	}
	if v.memory {
		spec.Kind = registry.KindMemory
	}
	if v.size.given {
		var err error
		if spec.SizeBytes, err = registry.ParseSize(v.size.text); err != nil {
			return err
		}
	}
	reg, err := hooks.OpenRegistry()
	if err != nil {
		return err
	}
	volume, err := reg.Create(spec)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(out, volume.Name())
	return err
}
