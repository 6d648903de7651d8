package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"

	blobfsck "runsc-fs/blobfs/fsck"
	"runsc-fs/gofer"
	"runsc-fs/nvme"
	"runsc-fs/oci/registry"
)

// Exit statuses of fsck, those of fsck(8).
const (
	fsckDefects     = 4  // something was found
	fsckOperational = 8  // nothing could be checked
	fsckUsage       = 16 // the arguments are wrong
)

// fsck checks an image and changes nothing.
type fsck struct {
	json  bool
	force bool
}

func (*fsck) name() string { return "fsck" }
func (*fsck) synopsis() string {
	return "check a volume, a snapshot, an image or a device, changing nothing"
}
func (*fsck) arguments() string { return "NAME|NAME@TAG|PATH|ADDRESS [--json] [--force]" }

func (c *fsck) setFlags(f *flag.FlagSet) {
	f.BoolVar(&c.json, "json", false, "report in JSON")
	f.BoolVar(&c.force, "force", false, "check even what is in use, although changes in progress look like damage")
}

func (c *fsck) run(_ context.Context, out io.Writer, args []string) error {
	if len(args) != 1 {
		return statusError{usagef("fsck: one volume or path is needed, not %d", len(args)), fsckUsage}
	}
	report, t, err := c.check(args[0])
	var onDevice deviceInUseError
	switch {
	case errors.As(err, &onDevice):
	case errors.Is(err, registry.ErrInUse): // says to stop the container
		err = fmt.Errorf("%w, or check it as it is with 'runsc-fs fsck --force'", err)
	case errors.Is(err, gofer.ErrInUse):
		err = fmt.Errorf("%w; stop what uses it, or check it as it is with 'runsc-fs fsck --force'", err)
	}
	if err != nil {
		return statusError{err, fsckOperational}
	}
	write := report.WriteText
	if c.json {
		write = report.WriteJSON
	}
	if err := write(out); err != nil {
		return statusError{err, fsckOperational}
	}
	if !report.Clean || !report.Complete {
		return statusError{fmt.Errorf("%v is not clean: errors: %d, warnings: %d; docs/fsck.md says what they mean", t, report.Errors, report.Warnings), fsckDefects}
	}
	return nil
}

func (c *fsck) check(argument string) (report *blobfsck.Report, t target, err error) {
	if t, err = findTarget(argument, c.force); err != nil {
		return nil, t, err
	}
	err = t.inspect(c.force, func(dev nvme.BlockDevice) (err error) {
		report, err = blobfsck.Check(dev, blobfsck.Options{})
		if err != nil && t.image.Path == "" { // the errors of an image are complete
			err = fmt.Errorf("%v: %w", t, err)
		}
		return err
	})
	return report, t, err
}
