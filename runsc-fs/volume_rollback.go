package main

import (
	"context"
	"flag"
	"fmt"
	"io"

	"runsc-fs/oci/registry"
)

// volumeRollback undoes what was written to a volume since a snapshot.
type volumeRollback struct{}

func (*volumeRollback) name() string { return "rollback" }
func (*volumeRollback) synopsis() string {
	return "give a volume the state of one of its snapshots again"
}
func (*volumeRollback) arguments() string      { return "NAME@TAG" }
func (*volumeRollback) setFlags(*flag.FlagSet) {}

func (*volumeRollback) run(_ context.Context, out io.Writer, args []string) error {
	return onSnapshot(args, func(reg *registry.Registry, name, tag string) error {
		_, err := reg.Rollback(name, tag)
		if err == nil {
			_, err = fmt.Fprintln(out, name)
		}
		return err
	})
}
