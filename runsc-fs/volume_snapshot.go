package main

import (
	"context"
	"flag"
	"fmt"
	"io"

	"runsc-fs/oci/registry"
	"runsc-fs/runsc-fs/hooks"
)

// volumeSnapshot takes a snapshot of a volume.
type volumeSnapshot struct{}

func (*volumeSnapshot) name() string           { return "snapshot" }
func (*volumeSnapshot) synopsis() string       { return "keep the state that a volume has now under a tag" }
func (*volumeSnapshot) arguments() string      { return "NAME@TAG" }
func (*volumeSnapshot) setFlags(*flag.FlagSet) {}

func (*volumeSnapshot) run(_ context.Context, out io.Writer, args []string) error {
	return onSnapshot(args, func(reg *registry.Registry, name, tag string) error {
		_, err := reg.TakeSnapshot(name, tag)
		if err == nil {
			_, err = fmt.Fprintf(out, "%s@%s\n", name, tag)
		}
		return err
	})
}

// onSnapshot does something with the one snapshot that the arguments name.
func onSnapshot(args []string, do func(reg *registry.Registry, name, tag string) error) error {
	if len(args) != 1 {
		return usagef("one NAME@TAG is needed, not %d", len(args))
	}
	name, tag, err := registry.ParseSnapshotName(args[0])
	if err != nil {
		return err
	}
	reg, err := hooks.OpenRegistry()
	if err != nil {
		return err
	}
	return do(reg, name, tag)
}
