package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"runsc-fs/oci/dockercfg"
	"runsc-fs/oci/dockerplugin"
	"runsc-fs/oci/registry"
	"runsc-fs/oci/service"
	"runsc-fs/runsc-fs/hooks"
)

// dockerFlags are the flags that install and uninstall share: which daemon.
type dockerFlags struct {
	config, pidFile, apiSocket string
	runtime, socket            string
}

func (d *dockerFlags) setFlags(f *flag.FlagSet) {
	f.StringVar(&d.config, "config", dockercfg.DefaultConfig, "configuration file of the Docker daemon")
	f.StringVar(&d.pidFile, "pidfile", dockercfg.DefaultPidFile, "pid file of the Docker daemon")
	f.StringVar(&d.apiSocket, "docker-socket", dockercfg.DefaultAPISocket, "API socket of the Docker daemon")
	f.StringVar(&d.runtime, "runtime", dockercfg.DefaultRuntime, "name of the runtime in Docker")
	f.StringVar(&d.socket, "socket", dockerplugin.DefaultSocket, "socket of the volume plugin; its name is the name of the driver")
}

// runtimeRE has the names of runtimes that can be given to --runtime of docker
// run without quotes.
var runtimeRE = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_.-]{0,63}$`)

// maxSocketBytes is what fits into a socket's address, without the final zero.
const maxSocketBytes = 107

// check refuses values that Docker would refuse later, or never find.
func (d *dockerFlags) check() error {
	name := strings.TrimSuffix(filepath.Base(d.socket), ".sock")
	switch {
	case !runtimeRE.MatchString(d.runtime):
		return fmt.Errorf("runtime name %q is not valid; use up to 64 letters, digits, '_', '.' and '-', beginning with a letter or digit", d.runtime)
	case d.runtime == "runc" || strings.HasPrefix(d.runtime, "io.containerd."):
		return fmt.Errorf("runtime name %q is Docker's own; choose another, such as %s", d.runtime, dockercfg.DefaultRuntime)
	case !filepath.IsAbs(d.socket) || filepath.Clean(d.socket) != d.socket || filepath.Ext(d.socket) != ".sock" || registry.CheckName(name) != nil:
		return fmt.Errorf("socket %q is not valid; give an absolute path DIR/DRIVER.sock, such as %s", d.socket, dockerplugin.DefaultSocket)
	case len(d.socket) > maxSocketBytes:
		return fmt.Errorf("socket %q has a path of %d bytes; the longest possible has %d", d.socket, len(d.socket), maxSocketBytes)
	}
	for _, path := range []struct{ flag, value string }{{"config", d.config}, {"pidfile", d.pidFile}, {"docker-socket", d.apiSocket}} {
		if path.value == "" {
			return fmt.Errorf("--%s is empty; leave it out for the default", path.flag)
		}
	}
	return nil
}

// options returns what dockercfg and service need. args are given to the
// runtime by Docker.
func (d *dockerFlags) options(args []string) (dockercfg.Options, service.Options, error) {
	if err := d.check(); err != nil {
		return dockercfg.Options{}, service.Options{}, err
	}
	program, err := os.Executable()
	if err == nil {
		program, err = filepath.EvalSymlinks(program)
	}
	if err != nil {
		return dockercfg.Options{}, service.Options{}, fmt.Errorf("path of this program: %w", err)
	}
	reg, err := hooks.OpenRegistry()
	if err != nil {
		return dockercfg.Options{}, service.Options{}, err
	}
	// Docker starts the runtime in its own environment, which need not name the
	// registry that this one does.
	var global []string
	if reg.Root() != registry.DefaultRoot {
		global = append(global, "--"+volumeRootFlag+"="+reg.Root())
	}
	plugin := append([]string{program}, global...)
	return dockercfg.Options{
			Config: d.config, PidFile: d.pidFile, APISocket: d.apiSocket, Runtime: d.runtime,
			RuntimePath: program, RuntimeArgs: append(global[:len(global):len(global)], args...),
		}, service.Options{
			Command: append(plugin, "plugin", "--socket="+d.socket), Socket: d.socket,
		}, nil
}

// install makes the runtime and its volumes known to Docker.
type install struct {
	dockerFlags
}

func (*install) name() string      { return "install" }
func (*install) synopsis() string  { return "add the runtime and the volume plugin to Docker" }
func (*install) arguments() string { return "[flags] [-- RUNTIME-FLAG...]" }

func (i *install) run(ctx context.Context, out io.Writer, args []string) error {
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		return usagef("install: %q is no flag for the runtime", args[0])
	}
	docker, plugin, err := i.options(args)
	if err != nil {
		return err
	}
	// Undo half an installation, but not one that was there before.
	result, err := dockercfg.Install(ctx, docker)
	if err != nil {
		return err
	}
	started, err := service.Start(ctx, plugin)
	if err != nil {
		if result.Changed {
			_, undoErr := dockercfg.Uninstall(ctx, docker)
			err = errors.Join(err, undoErr)
		}
		return err
	}
	if result.Changed {
		fmt.Fprintf(out, "added runtime %q to %s (%s)\n", i.runtime, result.Config, result.Reload)
		if result.Backup != "" {
			fmt.Fprintf(out, "the file before the change is %s\n", result.Backup)
		}
	} else {
		fmt.Fprintf(out, "runtime %q is in %s already (%s)\n", i.runtime, result.Config, result.Reload)
	}
	if started.Unit != "" {
		fmt.Fprintf(out, "started the volume plugin as %s\n", started.Unit)
	} else {
		fmt.Fprintf(out, "started the volume plugin as process %d until the machine restarts (log: %s)\n", started.Pid, started.LogFile)
	}
	return nil
}
