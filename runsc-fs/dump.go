package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"

	blobfsck "runsc-fs/blobfs/fsck"
	"runsc-fs/nvme"
)

// dump shows a structure of an image.
type dump struct{}

func (*dump) name() string     { return "dump" }
func (*dump) synopsis() string { return "show a structure of a volume or an image" }
func (*dump) arguments() string {
	return "NAME|NAME@TAG|PATH|ADDRESS superblock|tree|items|log|node=BLOCK|group=NUMBER|inode=NUMBER"
}
func (*dump) setFlags(*flag.FlagSet) {}

func (*dump) run(_ context.Context, out io.Writer, args []string) error {
	if len(args) != 2 {
		return usagef("dump: a volume or path and what to show are needed")
	}
	t, err := findTarget(args[0], true)
	if err != nil {
		return err
	}
	return t.inspect(true, func(dev nvme.BlockDevice) error {
		w := bufio.NewWriter(out)
		err := blobfsck.Dump(dev, args[1], w)
		switch {
		case errors.Is(err, blobfsck.ErrDump):
			return usagef("dump: %q is not a structure", args[1])
		case err != nil:
			return errors.Join(fmt.Errorf("%v: %w", t, err), w.Flush())
		}
		return w.Flush()
	})
}
