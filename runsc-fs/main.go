// Command runsc-fs is gVisor's runsc with one file system more: volumes of
// type blobfs, served inside the sandbox.
package main

import (
	"flag"
	"fmt"
	"os"
	"strconv"

	"github.com/google/subcommands"
	"gvisor.dev/gvisor/runsc/cli"
	"gvisor.dev/gvisor/runsc/cmd/alias"
	"gvisor.dev/gvisor/runsc/cmd/util"

	"runsc-fs/oci/registry"
	"runsc-fs/runsc-fs/hooks"
)

// Flags that we add to those before the command.
const (
	volumeRootFlag = "volume-root"
	rootVolumeFlag = "root-volume"
	traceFlag      = "blobfs-trace"
)

func main() {
	if !hooks.Installed() {
		fmt.Fprintln(os.Stderr, "runsc-fs: this binary was built without the hooks in runsc and cannot mount volumes; build it with 'make build'")
		os.Exit(1)
	}
	flag.Var(volumeRoot{}, volumeRootFlag, "directory of the volume registry; default $"+registry.RootEnv+", else "+registry.DefaultRoot)
	flag.Var(rootVolume{}, rootVolumeFlag, "volume that takes what the container writes to its root file system")
	flag.Var(traceSwitch{}, traceFlag, "trace calls on volumes of the sandbox from its start; 'runsc-fs volume trace CONTAINER --seconds 0' shows the trace")
	alias.HandleAlias()
	cli.Run(commands())
}

// commands returns runsc's commands and ours, each with its group in the help
// text, and the help topics.
func commands() (map[util.SubCommand]string, []subcommands.Command) {
	all, topics := runscCommands()
	all[command{newVolumeGroup()}] = volumeGroup
	all[command{newDeviceGroup()}] = volumeGroup
	all[command{&mkfs{}}] = volumeGroup
	all[command{&fsck{}}] = volumeGroup
	all[command{&dump{}}] = debugGroup
	all[command{&plugin{}}] = volumeGroup
	all[command{&install{}}] = helperGroup
	all[command{&uninstall{}}] = helperGroup
	return all, topics
}

// traceSwitch is the value of traceFlag.
type traceSwitch struct{}

// IsBoolFlag lets the flag stand without a value.
func (traceSwitch) IsBoolFlag() bool { return true }

func (traceSwitch) String() string { return strconv.FormatBool(hooks.Trace()) }

// Get implements flag.Getter, which runsc expects of its flags.
func (traceSwitch) Get() any { return hooks.Trace() }

func (traceSwitch) Set(text string) error {
	on, err := strconv.ParseBool(text)
	if err != nil {
		return fmt.Errorf("neither true nor false")
	}
	hooks.SetTrace(on)
	return nil
}

// volumeRoot is the value of volumeRootFlag.
type volumeRoot struct{}

func (volumeRoot) String() string { return hooks.VolumeRoot() }

// Get implements flag.Getter, which runsc expects of its flags.
func (volumeRoot) Get() any { return hooks.VolumeRoot() }

func (volumeRoot) Set(dir string) error {
	if dir == "" {
		return fmt.Errorf("the directory is empty")
	}
	hooks.SetVolumeRoot(dir)
	return nil
}

// rootVolume is the value of rootVolumeFlag.
type rootVolume struct{}

func (rootVolume) String() string { return hooks.RootVolume() }

// Get implements flag.Getter, which runsc expects of its flags.
func (rootVolume) Get() any { return hooks.RootVolume() }

func (rootVolume) Set(name string) error {
	if err := registry.CheckName(name); err != nil {
		return err
	}
	hooks.SetRootVolume(name)
	return nil
}
