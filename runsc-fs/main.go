// Command runsc-fs is gVisor's runsc with one file system more: volumes of
// type blobfs, served inside the sandbox.
package main

import (
	"fmt"
	"os"

	"github.com/google/subcommands"
	"gvisor.dev/gvisor/runsc/cli"
	"gvisor.dev/gvisor/runsc/cmd/alias"
	"gvisor.dev/gvisor/runsc/cmd/util"

	"runsc-fs/runsc-fs/hooks"
)

func main() {
	if !hooks.Installed() {
		fmt.Fprintln(os.Stderr, "runsc-fs: this binary was built without the hooks in runsc and cannot mount volumes; build it with 'make build'")
		os.Exit(1)
	}
	alias.HandleAlias()
	cli.Run(commands())
}

// commands returns runsc's commands and ours, each with its group in the help
// text, and the help topics.
func commands() (map[util.SubCommand]string, []subcommands.Command) {
	cmds, topics := runscCommands()
	return cmds, topics
}
