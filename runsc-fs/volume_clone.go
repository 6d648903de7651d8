package main

import (
	"context"
	"flag"
	"fmt"
	"io"

	"runsc-fs/oci/registry"
	"runsc-fs/runsc-fs/hooks"
)

// volumeClone makes a volume of a snapshot.
type volumeClone struct{}

func (*volumeClone) name() string           { return "clone" }
func (*volumeClone) synopsis() string       { return "make a writable volume of a snapshot" }
func (*volumeClone) arguments() string      { return "NAME@TAG NEW" }
func (*volumeClone) setFlags(*flag.FlagSet) {}

func (*volumeClone) run(_ context.Context, out io.Writer, args []string) error {
	if len(args) != 2 {
		return usagef("a snapshot and the name of the new volume are needed")
	}
	reg, err := hooks.OpenRegistry()
	if err != nil {
		return err
	}
	if !registry.IsSnapshotName(args[0]) {
		return fmt.Errorf("%q is no snapshot; take one first with 'runsc-fs volume snapshot %s@TAG'", args[0], args[0])
	}
	volume, err := reg.Create(registry.CreateSpec{Name: args[1], Clone: args[0]})
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(out, volume.Name())
	return err
}
