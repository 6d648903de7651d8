package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"text/tabwriter"

	"runsc-fs/gofer/device"
	"runsc-fs/oci/registry"
)

// deviceLs lists the NVMe controllers.
type deviceLs struct{ json bool }

func (*deviceLs) name() string      { return "ls" }
func (*deviceLs) synopsis() string  { return "list the NVMe devices of this machine" }
func (*deviceLs) arguments() string { return "[--json]" }

func (v *deviceLs) setFlags(f *flag.FlagSet) { f.BoolVar(&v.json, "json", false, "list in JSON") }

func (v *deviceLs) run(_ context.Context, out io.Writer, args []string) error {
	if len(args) != 0 {
		return usagef("no arguments are taken")
	}
	list := host.List()
	if v.json {
		if list == nil {
			list = []device.Info{}
		}
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		return encoder.Encode(list)
	}
	table := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "ADDRESS\tMODEL\tSERIAL\tSIZE\tNAMESPACES\tDRIVER\tGROUP\tVFIO")
	for _, i := range list {
		size := "-"
		if n := i.SizeBytes(); n != 0 {
			size = registry.FormatSize(n)
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%d\t%s\t%s\t%s\n", i.Address, dash(i.Model), dash(i.Serial), size, len(i.Namespaces), dash(i.Driver), dash(i.IOMMUGroup), i.VFIO)
	}
	return table.Flush()
}

// dash shows that there is nothing.
func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
