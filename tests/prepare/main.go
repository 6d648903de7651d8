// Command prepare installs the Debian packages that the tests need and builds the
// root file system of their containers. make test runs it first, so that a test's
// time is its own.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"runsc-fs/tests/lab"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	logf := func(format string, args ...any) { fmt.Printf(format+"\n", args...) }
	err := lab.EnsureTools(ctx, logf, lab.ToolDockerd, lab.ToolDebootstrap, lab.ToolStrace, lab.ToolIP, lab.ToolIptables, lab.ToolNsenter, lab.ToolQEMU)
	if err == nil {
		_, err = lab.RootFS(ctx, logf, lab.BaseRootFS)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "cannot prepare the machine: %v\n", err)
		os.Exit(1)
	}
}
