package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"runsc-fs/oci/dockercfg"
	"runsc-fs/oci/service"
)

// uninstall undoes install. Volumes stay.
type uninstall struct {
	dockerFlags
}

func (*uninstall) name() string      { return "uninstall" }
func (*uninstall) synopsis() string  { return "take the runtime and the volume plugin out of Docker" }
func (*uninstall) arguments() string { return "[flags]" }

func (u *uninstall) run(ctx context.Context, out io.Writer, args []string) error {
	if len(args) != 0 {
		return usagef("uninstall: no arguments are taken")
	}
	docker, plugin, err := u.options(nil)
	if err != nil {
		return err
	}
	result, configErr := dockercfg.Uninstall(ctx, docker)
	if configErr == nil {
		if result.Changed {
			fmt.Fprintf(out, "removed runtime %q from %s (%s)\n", u.runtime, result.Config, result.Reload)
		} else {
			fmt.Fprintf(out, "runtime %q is not in %s\n", u.runtime, result.Config)
		}
	}
	stopped, stopErr := service.Stop(ctx, plugin)
	if stopErr == nil && stopped {
		fmt.Fprintln(out, "stopped the volume plugin; volumes are kept")
	}
	return errors.Join(configErr, stopErr)
}
