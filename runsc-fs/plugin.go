package main

import (
	"context"
	"flag"
	"io"
	"os/signal"

	"github.com/sirupsen/logrus"
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
	log := logrus.New() // to standard error, which is the journal under systemd
	log.SetFormatter(&logrus.TextFormatter{DisableColors: true, FullTimestamp: true})
	return dockerplugin.Serve(ctx, dockerplugin.Options{
		Registry: reg,
		Socket:   p.socket,
		Log:      log,
		Ready: func() {
			if err := service.NotifyReady(); err != nil {
				log.Warnf("plugin: telling systemd: %v", err)
			}
		},
	})
}
