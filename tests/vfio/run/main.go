// Command run boots a guest with NVMe controllers under vfio-pci and runs one static
// program in it:
//
//	go test -c -o pcie.test ./nvme/pcie
//	go run ./tests/vfio/run -controllers 2 pcie.test -test.v -test.run Conformance
//
// The program finds the controllers' addresses, separated by spaces, in the
// environment variable RUNSC_FS_NVME. Its exit status becomes this command's.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"runsc-fs/tests/lab"
	"runsc-fs/tests/vfio"
)

func main() {
	var spec vfio.Spec
	var controllers, namespaces int
	var env string
	var keepDriver bool
	flag.IntVar(&controllers, "controllers", 1, "number of NVMe controllers")
	flag.IntVar(&namespaces, "namespaces", 1, "namespaces of each controller, of 64 MiB")
	flag.StringVar(&env, "env", "", "environment of the program: NAME=VALUE separated by spaces")
	flag.BoolVar(&keepDriver, "nvme", false, "leave the controllers to the kernel's driver")
	flag.BoolVar(&spec.Base, "base", false, "mount the tests' root file system at /base")
	flag.DurationVar(&spec.Timeout, "timeout", 5*time.Minute, "how long the guest may run")
	flag.IntVar(&spec.MemoryMiB, "memory", 1024, "memory of the guest in MiB")
	flag.Parse()
	if flag.NArg() == 0 {
		fmt.Fprintln(os.Stderr, "usage: run [flags] PROGRAM [ARGUMENT...]")
		flag.PrintDefaults()
		os.Exit(2)
	}
	for range controllers {
		spec.Controllers = append(spec.Controllers, vfio.Controller{Namespaces: make([]vfio.Namespace, namespaces)})
	}
	spec.Programs = map[string]string{"program": flag.Arg(0)}
	spec.Script = vfio.Command(&spec, !keepDriver, strings.Fields(env), "program", flag.Args()[1:]...)
	spec.Logf = func(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }
	status, err := run(spec)
	if err != nil {
		fmt.Fprintf(os.Stderr, "run: %v\n", err)
		os.Exit(1)
	}
	os.Exit(status)
}

func run(spec vfio.Spec) (status int, err error) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	dir, err := lab.NewDir("guest")
	if err != nil {
		return 1, err
	}
	defer os.RemoveAll(dir)
	g, err := vfio.Boot(ctx, filepath.Join(dir, "machine"), spec)
	if err != nil {
		return 1, err
	}
	result, err := g.Wait()
	fmt.Println(result.Output)
	return result.Status, err
}
