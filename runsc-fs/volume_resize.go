package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"gvisor.dev/gvisor/runsc/container"

	"runsc-fs/oci/registry"
	"runsc-fs/runsc-fs/hooks"
)

// volumeResize makes a volume larger.
type volumeResize struct{}

func (*volumeResize) name() string           { return "resize" }
func (*volumeResize) synopsis() string       { return "make a volume larger, also while a container uses it" }
func (*volumeResize) arguments() string      { return "NAME SIZE" }
func (*volumeResize) setFlags(*flag.FlagSet) {}

func (*volumeResize) run(_ context.Context, out io.Writer, args []string) error {
	if len(args) != 2 {
		return usagef("a name and a size are needed, not %d arguments", len(args))
	}
	sizeBytes, err := registry.ParseSize(args[1])
	if err != nil {
		return err
	}
	reg, err := hooks.OpenRegistry()
	if err != nil {
		return err
	}
	hooks.SetSandboxCaller(callSandbox)
	v, err := reg.Resize(args[0], sizeBytes)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%s %s\n", v.Name(), registry.FormatSize(v.SizeBytes()))
	return err
}

// callSandbox calls a method that the hooks serve in a sandbox.
func callSandbox(runtimeRoot, sandboxID, method string, arg any) error {
	c, err := container.Load(runtimeRoot, container.FullID{SandboxID: sandboxID, ContainerID: sandboxID}, container.LoadOpts{Exact: true, SkipCheck: true})
	if errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("the runtime knows nothing of it in %s", runtimeRoot)
	}
	if err != nil {
		return err
	}
	caller, ok := any(c.Sandbox).(interface {
		CallVolumes(method string, arg any) error
	})
	if !ok || c.Sandbox == nil {
		return errors.New("it has no sandbox that could be called")
	}
	return caller.CallVolumes(method, arg)
}
