// Command prepare installs the Debian packages that the tests need, builds the root
// file system of their containers and unpacks the kernel of their guests. make test runs it first, so that a test's
// time is its own.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"runsc-fs/tests/lab"
	"runsc-fs/tests/vfio"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	logf := func(format string, args ...any) { fmt.Printf(format+"\n", args...) }
	err := lab.EnsureTools(ctx, logf, lab.ToolDockerd, lab.ToolDebootstrap, lab.ToolStrace, lab.ToolIP, lab.ToolIptables, lab.ToolNsenter, lab.ToolQEMU, lab.ToolMke2fs)
	if err == nil {
		_, err = lab.RootFS(ctx, logf, lab.BaseRootFS)
	}
	if err == nil {
		err = vfio.Prepare(ctx, logf)
	}
	if err == nil {
		_, err = lab.RootFS(ctx, logf, lab.ToolsRootFS)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "cannot prepare the machine: %v\n", err)
		os.Exit(1)
	}
}
