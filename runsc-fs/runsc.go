package main

import (
	"maps"

	"github.com/google/subcommands"
	"gvisor.dev/gvisor/runsc/cmd"
	"gvisor.dev/gvisor/runsc/cmd/alias"
	"gvisor.dev/gvisor/runsc/cmd/nvproxy"
	"gvisor.dev/gvisor/runsc/cmd/trace"
	"gvisor.dev/gvisor/runsc/cmd/util"
)

// Groups of commands in the help text.
const (
	containerGroup = ""
	volumeGroup    = "volumes"
	helperGroup    = "helpers"
	debugGroup     = "debug"
	metricGroup    = "metrics"
	internalGroup  = "internal use only"
)

// runscCommands returns upstream's commands without install and uninstall,
// which ours replace.
func runscCommands() (map[util.SubCommand]string, []subcommands.Command) {
	groups := map[string][]util.SubCommand{
		containerGroup: {
			new(cmd.Checkpoint), new(cmd.Create), new(cmd.Delete), new(cmd.Do), new(cmd.Events),
			new(cmd.Exec), new(cmd.FSCheckpoint), new(cmd.Kill), new(cmd.List), new(cmd.PS),
			new(cmd.Pause), new(cmd.PortForward), new(cmd.Restore), new(cmd.Resume), new(cmd.Run),
			new(cmd.SandboxExec), new(cmd.Spec), new(cmd.Start), new(cmd.State), new(cmd.Tar),
			new(cmd.Update), new(cmd.Wait),
		},
		helperGroup: {
			new(cmd.CPUFeatures), new(cmd.Features), new(cmd.Mitigate), new(nvproxy.Nvproxy), new(trace.Trace),
		},
		debugGroup: {
			new(cmd.Debug), new(cmd.ReadControl), new(cmd.Statefile), new(cmd.Symbolize), new(cmd.Usage),
			new(cmd.WriteControl),
		},
		metricGroup:   {new(cmd.MetricExport), new(cmd.MetricMetadata), new(cmd.MetricServer)},
		internalGroup: {new(cmd.Boot), new(cmd.Gofer), new(cmd.Umount)},
	}
	all := map[util.SubCommand]string{}
	for group, list := range groups {
		for _, c := range list {
			all[c] = group
		}
	}
	maps.Copy(all, alias.Commands())
	return all, []subcommands.Command{new(cmd.Platforms), new(cmd.Syscalls)}
}
