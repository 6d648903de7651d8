package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/google/subcommands"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/runsc/cmd/util"

	"runsc-fs/blobfs"
	blobfsck "runsc-fs/blobfs/fsck"
	"runsc-fs/gofer"
	"runsc-fs/nvme"
	"runsc-fs/nvme/soft"
)

// fsck checks an image and changes nothing.
type fsck struct {
	json  bool
	force bool
}

func (*fsck) name() string      { return "fsck" }
func (*fsck) synopsis() string  { return "check a volume or an image, changing nothing" }
func (*fsck) arguments() string { return "NAME|PATH [--json] [--force]" }

func (c *fsck) setFlags(f *flag.FlagSet) {
	f.BoolVar(&c.json, "json", false, "report in JSON")
	f.BoolVar(&c.force, "force", false, "check even what is in use, although changes in progress look like damage")
}

// errDefects says that the check was made and has found something.
var errDefects = errors.New("is not clean")

func (c *fsck) run(_ context.Context, out io.Writer, args []string) error {
	if len(args) != 1 {
		return usagef("fsck: one volume or path is needed, not %d", len(args))
	}
	path, err := imagePath(args[0])
	check := func(dev nvme.BlockDevice) error { return c.check(dev, path, out) }
	inspect := gofer.Inspect
	if c.force {
		inspect = inspectInUse
	}
	if err == nil || c.force && errors.Is(err, gofer.ErrInUse) {
		err = inspect(path, check)
	}
	if errors.Is(err, gofer.ErrInUse) {
		return fmt.Errorf("%w; stop what uses it, or check it as it is with 'runsc-fs fsck --force'", err)
	}
	return err
}

func (c *fsck) check(dev nvme.BlockDevice, path string, out io.Writer) error {
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
		return fmt.Errorf("image %s %w: %d errors, %d warnings", path, errDefects, report.Errors, report.Warnings)
	}
	return nil
}

// fsckArenaBytes is the memory for reading an image that is in use.
const fsckArenaBytes = 1 << 20

// inspectInUse is gofer.Inspect for an image that others may be using. It takes
// no lock, and so keeps nobody from the image either.
func inspectInUse(path string, do func(nvme.BlockDevice) error) error {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	backing, err := soft.NewFileBacking(file, true)
	if err != nil {
		return errors.Join(err, file.Close())
	}
	arena, err := nvme.NewArena(nvme.ArenaOptions{SizeBytes: fsckArenaBytes})
	if err != nil {
		return errors.Join(err, backing.Close())
	}
	defer arena.Close()
	dev, err := soft.Open(backing, arena, soft.Options{LBASizeBytes: blobfs.BlockSizeBytes})
	if err != nil {
		return fmt.Errorf("image %s: %w", path, err)
	}
	return errors.Join(do(dev), dev.Close())
}

// Exit statuses of fsck, those of fsck(8).
const (
	fsckClean       = 0
	fsckDefects     = 4  // something was found
	fsckOperational = 8  // nothing could be checked
	fsckUsage       = 16 // the arguments are wrong
)

// fsckStatus says how fsck exits after an error.
func fsckStatus(err error) int {
	var mistake usageError
	switch {
	case err == nil:
		return fsckClean
	case errors.Is(err, errDefects):
		return fsckDefects
	case errors.As(err, &mistake):
		return fsckUsage
	}
	return fsckOperational
}

// fsckCommand is fsck with exit statuses of its own.
type fsckCommand struct{ command }

// Execute implements subcommands.Command.
func (c fsckCommand) Execute(ctx context.Context, f *flag.FlagSet, args ...any) subcommands.ExitStatus {
	f.SetOutput(io.Discard)
	f.Usage = func() {}
	operands, err := getOperands(f)
	if err == nil {
		err = c.run(ctx, os.Stdout, operands)
	}
	status := fsckStatus(err)
	switch status {
	case fsckClean:
	case fsckUsage:
		util.Errorf("runsc-fs: %v; %s", err, strings.TrimSpace(usage(c.verb, "")))
	default:
		util.Errorf("runsc-fs: %v", err)
	}
	// After a success runsc exits with the status of the container's process,
	// which it takes from here; its own failures are all 128.
	for _, a := range args {
		if ws, ok := a.(*unix.WaitStatus); ok {
			*ws = unix.WaitStatus(status << 8)
			return subcommands.ExitSuccess
		}
	}
	return subcommands.ExitStatus(status)
}
