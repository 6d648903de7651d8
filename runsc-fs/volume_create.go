package main

import (
	"context"
	"flag"
	"fmt"
	"io"

	"runsc-fs/oci/registry"
	"runsc-fs/runsc-fs/hooks"
)

// volumeCreate makes a volume.
type volumeCreate struct {
	size   string
	memory bool
	image  string
}

func (*volumeCreate) name() string     { return "create" }
func (*volumeCreate) synopsis() string { return "make a volume" }
func (*volumeCreate) arguments() string {
	return "NAME [--size SIZE] [--memory | --image PATH]"
}

func (v *volumeCreate) setFlags(f *flag.FlagSet) {
	f.StringVar(&v.size, "size", "", "size of the volume, such as 512M or 10G; default 10G, or 1G in memory")
	f.BoolVar(&v.memory, "memory", false, "keep the data in memory; it ends with the container")
	f.StringVar(&v.image, "image", "", "image file outside the registry: used as it is if it exists, else made")
}

func (v *volumeCreate) run(_ context.Context, out io.Writer, args []string) error {
	if len(args) != 1 {
		return usagef("one name is needed, not %d", len(args))
	}
	spec := registry.CreateSpec{Name: args[0], Image: v.image}
	if v.memory {
		spec.Kind = registry.KindMemory
	}
	if v.size != "" {
		var err error
		if spec.SizeBytes, err = registry.ParseSize(v.size); err != nil {
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
