package lab

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"
)

// Tool is a program that a lab needs and the Debian package that has it.
type Tool struct{ Program, Package string }

// Tools that labs are made with.
var (
	ToolDockerd     = Tool{"dockerd", "docker.io"}
	ToolDebootstrap = Tool{"debootstrap", "debootstrap"}
	ToolStrace      = Tool{"strace", "strace"}
	ToolIP          = Tool{"ip", "iproute2"}
	ToolIptables    = Tool{"iptables", "iptables"}
	ToolNsenter     = Tool{"nsenter", "util-linux"}
	ToolQEMU        = Tool{"qemu-system-x86_64", "qemu-system-x86"}
	ToolMke2fs      = Tool{"mke2fs", "e2fsprogs"}
	ToolMkfsXFS     = Tool{"mkfs.xfs", "xfsprogs"}
)

// EnsureTools installs the packages of the tools that PATH lacks. It needs root
// and apt only when something is missing.
func EnsureTools(ctx context.Context, logf Logf, tools ...Tool) error {
	if len(missing(tools)) == 0 {
		return nil
	}
	return withCacheLock(ctx, logf, func(string) error {
		packages := missing(tools)
		if len(packages) == 0 {
			return nil
		}
		list := strings.Join(packages, " ")
		if os.Geteuid() != 0 {
			return fmt.Errorf("missing packages: %s: install them as root with apt-get install %s", list, list)
		}
		if _, err := exec.LookPath("apt-get"); err != nil {
			return fmt.Errorf("missing programs of the Debian packages %s, and there is no apt-get to install them with", list)
		}
		logf("apt-get update")
		if err := apt(ctx, logf, "update", "-q"); err != nil {
			return fmt.Errorf("apt-get update failed; is a package mirror reachable? %w", err)
		}
		logf("apt-get install %s", list)
		args := append([]string{"install", "-q", "-y", "--no-install-recommends"}, packages...)
		if err := apt(ctx, logf, args...); err != nil {
			return fmt.Errorf("cannot install %s: %w", list, err)
		}
		if left := missing(tools); len(left) > 0 {
			return fmt.Errorf("installed %s, but still miss the programs of %s in PATH", list, strings.Join(left, " "))
		}
		return nil
	})
}

func apt(ctx context.Context, logf Logf, args ...string) error {
	_, err := RunShown(ctx, logf, "apt-get "+args[0], Cmd{
		Argv: append([]string{"apt-get", "-o", "DPkg::Lock::Timeout=120"}, args...),
		// Installing must not start the daemons: labs have their own.
		Env:     []string{"DEBIAN_FRONTEND=noninteractive", "RUNLEVEL=1"},
		Timeout: 10 * time.Minute,
	})
	return err
}

// missing lists the packages of tools not found, each once.
func missing(tools []Tool) []string {
	var packages []string
	seen := map[string]bool{}
	for _, t := range tools {
		if _, err := exec.LookPath(t.Program); err != nil && !seen[t.Package] {
			seen[t.Package] = true
			packages = append(packages, t.Package)
		}
	}
	return packages
}
