package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"

	"runsc-fs/oci/dockerplugin"
	"runsc-fs/oci/service"
	"runsc-fs/runsc-fs/hooks"
)

// plugin serves volumes to Docker until it is told to end.
type plugin struct {
	socket string
}

func (*plugin) name() string      { return "plugin" }
func (*plugin) synopsis() string  { return "serve volumes to Docker, in the foreground" }
func (*plugin) arguments() string { return "[--socket PATH]" }

func (p *plugin) setFlags(f *flag.FlagSet) {
	f.StringVar(&p.socket, "socket", dockerplugin.DefaultSocket, "socket where Docker looks for the plugin")
}

func (p *plugin) run(ctx context.Context, _ io.Writer, args []string) error {
	if len(args) != 0 {
		return usagef("plugin: no arguments are taken")
	}
	reg, err := hooks.OpenRegistry()
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(ctx, unix.SIGTERM, unix.SIGINT)
	defer stop()
	logf := func(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
	return dockerplugin.Serve(ctx, dockerplugin.Options{
		Registry: reg,
		Socket:   p.socket,
		Logf:     logf,
		Ready: func() {
			if err := service.NotifyReady(); err != nil {
				logf("plugin: telling systemd: %v", err)
			}
		},
	})
}
