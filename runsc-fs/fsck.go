package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"

	blobfsck "runsc-fs/blobfs/fsck"
	"runsc-fs/gofer"
	"runsc-fs/nvme"
	"runsc-fs/oci/registry"
)

// Exit statuses of fsck, those of fsck(8).
const (
	fsckCorrected   = 1  // something was found, and all of it repaired
	fsckDefects     = 4  // something was found
	fsckOperational = 8  // nothing could be checked
	fsckUsage       = 16 // the arguments are wrong
)

// fsck checks an image and, unless it is asked to repair, changes nothing.
type fsck struct {
	json      bool
	force     bool
	repair    bool
	undo      string
	undoApply string
}

func (*fsck) name() string { return "fsck" }
func (*fsck) synopsis() string {
	return "check a volume, a snapshot, an image or a device; repair superblocks"
}
func (*fsck) arguments() string {
	return "NAME|NAME@TAG|PATH|ADDRESS [--json] [--force | --repair [--undo FILE] | --undo-apply FILE]"
}

func (c *fsck) setFlags(f *flag.FlagSet) {
	f.BoolVar(&c.json, "json", false, "report in JSON")
	f.BoolVar(&c.force, "force", false, "check even what is in use, although changes in progress look like damage")
	f.BoolVar(&c.repair, "repair", false, "write damaged slots of the superblock anew, if all else is sound; an undo file is made first")
	f.StringVar(&c.undo, "undo", "", "where --repair makes the undo file (default: beside the image, with the suffix .undo)")
	f.StringVar(&c.undoApply, "undo-apply", "", "take the repair back that made this undo file")
}

func (c *fsck) run(_ context.Context, out io.Writer, args []string) error {
	if len(args) != 1 {
		return statusError{usagef("fsck: one volume or path is needed, not %d", len(args)), fsckUsage}
	}
	text := ""
	switch {
	case c.undo != "" && !c.repair:
		text = "--undo goes with --repair"
	case c.undoApply != "" && (c.repair || c.json):
		text = "--undo-apply goes with neither --repair nor --json"
	case c.force && (c.repair || c.undoApply != ""):
		text = "--force is for reading only: stop what uses the volume"
	}
	switch {
	case text != "":
		return statusError{usagef("fsck: %s", text), fsckUsage}
	case c.repair:
		return c.runRepair(out, args[0])
	case c.undoApply != "":
		return c.runUndo(out, args[0])
	}
	report, t, err := c.check(args[0])
	if err != nil {
		return statusError{inUseHint(err, "stop what uses it, or check it as it is with 'runsc-fs fsck --force'"), fsckOperational}
	}
	if err := c.print(out, report); err != nil {
		return statusError{err, fsckOperational}
	}
	if !report.Clean || !report.Complete {
		return notClean(t.String(), report)
	}
	return nil
}

func notClean(target string, report *blobfsck.Report) error {
	return statusError{fmt.Errorf("%s is not clean: errors: %d, warnings: %d; docs/fsck.md says what they mean", target, report.Errors, report.Warnings), fsckDefects}
}

func (c *fsck) print(out io.Writer, report *blobfsck.Report) error {
	if c.json {
		return report.WriteJSON(out)
	}
	return report.WriteText(out)
}

// inUseHint says what to do about a volume in use.
func inUseHint(err error, remedy string) error {
	var onDevice deviceInUseError
	switch {
	case errors.As(err, &onDevice):
	case errors.Is(err, registry.ErrInUse): // says to stop the container
		if _, force, ok := strings.Cut(remedy, ", or "); ok {
			err = fmt.Errorf("%w, or %s", err, force)
		}
	case errors.Is(err, gofer.ErrInUse):
		err = fmt.Errorf("%w; %s", err, remedy)
	}
	return err
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
