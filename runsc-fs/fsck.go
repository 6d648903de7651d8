package main

import (
	"context"
	"flag"
	"fmt"
	"io"

	blobfsck "runsc-fs/blobfs/fsck"
	"runsc-fs/gofer"
	"runsc-fs/nvme"
)

// fsck checks an image and changes nothing.
type fsck struct {
	json bool
}

func (*fsck) name() string      { return "fsck" }
func (*fsck) synopsis() string  { return "check a volume or an image, changing nothing" }
func (*fsck) arguments() string { return "NAME|PATH [--json]" }

func (c *fsck) setFlags(f *flag.FlagSet) {
	f.BoolVar(&c.json, "json", false, "report in JSON")
}

func (c *fsck) run(_ context.Context, out io.Writer, args []string) error {
	if len(args) != 1 {
		return usagef("fsck: one volume or path is needed, not %d", len(args))
	}
	path, err := imagePath(args[0])
	if err != nil {
		return err
	}
	return gofer.Inspect(path, func(dev nvme.BlockDevice) error {
		report, err := blobfsck.Check(dev, blobfsck.Options{})
		if err != nil {
			return fmt.Errorf("image %s: %w", path, err)
		}
		write := report.WriteText
		if c.json {
			write = report.WriteJSON
		}
		if err := write(out); err != nil {
			return err
		}
		if !report.Clean || !report.Complete {
			return fmt.Errorf("image %s has %d errors and %d warnings", path, report.Errors, report.Warnings)
		}
		return nil
	})
}
