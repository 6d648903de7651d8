package main

import (
	"context"
	"encoding/json"
	"flag"
	"io"

	"runsc-fs/oci/registry"
	"runsc-fs/runsc-fs/hooks"
)

// volumeInspect prints all about volumes.
type volumeInspect struct{}

func (*volumeInspect) name() string           { return "inspect" }
func (*volumeInspect) synopsis() string       { return "show volumes in JSON" }
func (*volumeInspect) arguments() string      { return "NAME..." }
func (*volumeInspect) setFlags(*flag.FlagSet) {}

func (*volumeInspect) run(_ context.Context, out io.Writer, args []string) error {
	if len(args) == 0 {
		return usagef("a name is needed")
	}
	reg, err := hooks.OpenRegistry()
	if err != nil {
		return err
	}
	var infos []registry.Info
	for _, name := range args {
		volume, err := reg.Get(name)
		if err != nil {
			return err
		}
		info, err := volume.Info()
		if err != nil {
			return err
		}
		infos = append(infos, info)
	}
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(infos)
}
