package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"runsc-fs/oci/registry"
	"runsc-fs/runsc-fs/hooks"
)

// volumeLs lists the volumes.
type volumeLs struct {
	quiet bool
}

func (*volumeLs) name() string      { return "ls" }
func (*volumeLs) synopsis() string  { return "list the volumes and their snapshots" }
func (*volumeLs) arguments() string { return "[--quiet]" }

func (v *volumeLs) setFlags(f *flag.FlagSet) {
	f.BoolVar(&v.quiet, "quiet", false, "names of volumes only")
	f.BoolVar(&v.quiet, "q", false, "the same as --quiet")
}

func (v *volumeLs) run(_ context.Context, out io.Writer, args []string) error {
	if len(args) != 0 {
		return usagef("no arguments are taken")
	}
	reg, err := hooks.OpenRegistry()
	if err != nil {
		return err
	}
	// What cannot be read does not hide the rest.
	volumes, err := reg.List()
	errs := []error{err}
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	if !v.quiet {
		fmt.Fprintln(table, "NAME\tKIND\tSIZE\tUSED\tIN USE BY")
	}
	for _, volume := range volumes {
		if v.quiet {
			fmt.Fprintln(table, volume.Name())
			continue
		}
		info, err := volume.Info()
		if err != nil {
			errs = append(errs, err)
			continue
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", info.Name, info.Kind, registry.FormatSize(info.SizeBytes), registry.FormatSize(info.UsedBytes), user(info))
		for _, s := range info.Snapshots {
			fmt.Fprintf(table, "%s@%s\tsnapshot\t%s\t%s\t%s\n", info.Name, s.Tag, registry.FormatSize(s.SizeBytes), registry.FormatSize(s.UsedBytes), clones(s))
		}
	}
	return errors.Join(append(errs, table.Flush())...)
}

// clones says which volumes hang on a snapshot.
func clones(s registry.SnapshotInfo) string {
	if len(s.Clones) == 0 {
		return "-"
	}
	return "clones: " + strings.Join(s.Clones, ", ")
}

// user says who uses a volume.
func user(info registry.Info) string {
	switch {
	case !info.InUse:
		return "-"
	case info.InUseBy == "":
		return "another process"
	}
	return info.InUseBy
}
