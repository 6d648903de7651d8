package main

import (
	"context"
	"flag"
	"fmt"
	"io"
)

// deviceBind gives NVMe controllers to vfio-pci.
type deviceBind struct{ force bool }

func (*deviceBind) name() string      { return "bind" }
func (*deviceBind) synopsis() string  { return "take devices from the host, for volumes" }
func (*deviceBind) arguments() string { return "ADDRESS... [--force]" }

func (v *deviceBind) setFlags(f *flag.FlagSet) {
	f.BoolVar(&v.force, "force", false, "take a device even if there is a partition table or a file system on it")
}

func (v *deviceBind) run(_ context.Context, out io.Writer, args []string) error {
	list, err := addresses(args)
	if err != nil {
		return err
	}
	for _, addr := range list {
		if err := host.Bind(addr, v.force); err != nil {
			return err
		}
		fmt.Fprintln(out, addr)
	}
	return nil
}

// deviceUnbind gives NVMe controllers back to the kernel.
type deviceUnbind struct{}

func (*deviceUnbind) name() string           { return "unbind" }
func (*deviceUnbind) synopsis() string       { return "give devices back to the host's nvme driver" }
func (*deviceUnbind) arguments() string      { return "ADDRESS..." }
func (*deviceUnbind) setFlags(*flag.FlagSet) {}

func (*deviceUnbind) run(_ context.Context, out io.Writer, args []string) error {
	list, err := addresses(args)
	if err != nil {
		return err
	}
	for _, addr := range list {
		if err := host.Unbind(addr); err != nil {
			return err
		}
		fmt.Fprintln(out, addr)
	}
	return nil
}
