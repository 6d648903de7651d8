package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"

	"runsc-fs/oci/registry"
	"runsc-fs/runsc-fs/hooks"
)

// volumeRm removes volumes.
type volumeRm struct{}

func (*volumeRm) name() string           { return "rm" }
func (*volumeRm) synopsis() string       { return "remove volumes or snapshots with their data" }
func (*volumeRm) arguments() string      { return "NAME|NAME@TAG..." }
func (*volumeRm) setFlags(*flag.FlagSet) {}

func (*volumeRm) run(_ context.Context, out io.Writer, args []string) error {
	if len(args) == 0 {
		return usagef("a name is needed")
	}
	reg, err := hooks.OpenRegistry()
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range args {
		removed, err := remove(reg, name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		fmt.Fprintln(out, name)
		if d := removed.KeptDevice; d.Address != "" {
			fmt.Fprintf(out, "the data on device %s namespace %d is still there\n", d.Address, d.Namespace)
		}
		if removed.KeptImage != "" {
			fmt.Fprintf(out, "the image %s is still there\n", removed.KeptImage)
		}
	}
	return errors.Join(errs...)
}

// remove removes what an argument names.
func remove(reg *registry.Registry, argument string) (registry.Removed, error) {
	if !registry.IsSnapshotName(argument) {
		return reg.Remove(argument)
	}
	name, tag, err := registry.ParseSnapshotName(argument)
	if err != nil {
		return registry.Removed{}, err
	}
	return registry.Removed{}, reg.RemoveSnapshot(name, tag)
}
