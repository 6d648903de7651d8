package main

import (
	"context"
	"flag"
	"fmt"
	"io"

	"runsc-fs/runsc-fs/hooks"
)

// volumeFlatten copies what a volume shares with others into a file of its own.
type volumeFlatten struct{}

func (*volumeFlatten) name() string           { return "flatten" }
func (*volumeFlatten) synopsis() string       { return "make a volume independent of the layers below it" }
func (*volumeFlatten) arguments() string      { return "NAME" }
func (*volumeFlatten) setFlags(*flag.FlagSet) {}

func (*volumeFlatten) run(_ context.Context, out io.Writer, args []string) error {
	if len(args) != 1 {
		return usagef("one name is needed, not %d", len(args))
	}
	reg, err := hooks.OpenRegistry()
	if err != nil {
		return err
	}
	if _, err := reg.Flatten(args[0]); err != nil {
		return err
	}
	_, err = fmt.Fprintln(out, args[0])
	return err
}
