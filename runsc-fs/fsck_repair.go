package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	blobfsck "runsc-fs/blobfs/fsck"
	"runsc-fs/gofer"
	"runsc-fs/nvme"
	"runsc-fs/runsc-fs/hooks"
)

// undoSuffix makes the name of an undo file from that of the image.
const undoSuffix = ".undo"

// repairTarget finds the one image file that an argument names, for writing.
func repairTarget(argument string) (string, error) {
	t, err := findTarget(argument, false)
	switch {
	case err != nil:
		return "", err
	case t.image.Path == "":
		return "", fmt.Errorf("%v: only image files are repaired; copy the device to a file and repair that", t)
	case t.image.Frozen:
		return "", fmt.Errorf("%s is a snapshot, which clones may share; repair a clone that 'runsc-fs volume flatten' has made independent", argument)
	case len(t.image.Parents) > 0:
		return "", fmt.Errorf("volume %q shares its data with a snapshot; make it independent with 'runsc-fs volume flatten %s' first", argument, argument)
	}
	return t.image.Path, refuseShared(t.image.Path)
}

// refuseShared refuses a file that is a layer of a volume with several.
func refuseShared(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return nil // who opens it says more
	}
	reg, err := hooks.OpenRegistry()
	if err != nil {
		return err
	}
	volumes, err := reg.List()
	for _, v := range volumes {
		files := v.FilePaths()
		if len(files) < 2 {
			continue
		}
		for _, file := range files {
			if image, err := os.Stat(file); err == nil && os.SameFile(info, image) {
				return fmt.Errorf("image %s is a layer of volume %q; make that independent with 'runsc-fs volume flatten %s' first", path, v.Name(), v.Name())
			}
		}
	}
	return err
}

// runRepair checks an image, repairs it and checks it again.
func (c *fsck) runRepair(out io.Writer, argument string) error {
	path, err := repairTarget(argument)
	if err != nil {
		return statusError{inUseHint(err, "stop what uses it"), fsckOperational}
	}
	undo := c.undo
	if undo == "" {
		undo = path + undoSuffix
	}
	var report *blobfsck.Report
	var refused error
	blocks := 0
	err = gofer.Repair(path, func(dev nvme.BlockDevice) error {
		var err error
		if report, err = blobfsck.Check(dev, blobfsck.Options{}); err != nil {
			return err
		}
		repair, err := blobfsck.PlanRepair(dev, report)
		if errors.Is(err, blobfsck.ErrRepair) {
			refused = err
			return nil
		}
		if err != nil || repair.Empty() {
			return err
		}
		if err := writeUndo(undo, repair.EncodeUndo()); err != nil {
			return err
		}
		if err := repair.Apply(dev); err != nil {
			return fmt.Errorf("image %s: %w; 'runsc-fs fsck --undo-apply %s %s' restores what was there", path, err, undo, argument)
		}
		blocks = len(repair.Blocks())
		first := report
		if report, err = blobfsck.Check(dev, blobfsck.Options{}); err != nil {
			return err
		}
		report.Repaired, report.UndoFile = first.Findings, undo
		return nil
	})
	if err != nil {
		return statusError{inUseHint(err, "stop what uses it"), fsckOperational}
	}
	if err := c.print(out, report); err != nil {
		return statusError{err, fsckOperational}
	}
	switch {
	case refused != nil && !(report.Clean && report.Complete):
		return statusError{fmt.Errorf("image %s: %w; docs/fsck.md says what to do", path, refused), fsckDefects}
	case !report.Clean || !report.Complete:
		return notClean("image "+path, report)
	case blocks > 0:
		return statusError{fmt.Errorf("image %s was repaired: blocks written: %d; 'runsc-fs fsck --undo-apply %s %s' restores what was there", path, blocks, undo, argument), fsckCorrected}
	}
	return nil
}

// writeUndo makes an undo file, durably. It replaces none: that may be the only
// way back from an earlier repair.
func writeUndo(path string, content []byte) (err error) {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("undo file %s exists already; move it away or name another with --undo", path)
	}
	if err != nil {
		return fmt.Errorf("no undo file, so nothing is repaired: %w; name a place with --undo", err)
	}
	_, err = file.Write(content)
	err = errors.Join(err, file.Sync(), file.Close())
	if err == nil {
		err = syncDirectory(filepath.Dir(path))
	}
	if err != nil {
		os.Remove(path)
		return fmt.Errorf("undo file %s cannot be written, so nothing is repaired: %w; name another place with --undo", path, err)
	}
	return nil
}

func syncDirectory(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// runUndo takes a repair back.
func (c *fsck) runUndo(out io.Writer, argument string) error {
	err := func() error {
		path, err := repairTarget(argument)
		if err != nil {
			return err
		}
		info, err := os.Stat(c.undoApply)
		if err == nil && !info.Mode().IsRegular() {
			err = fmt.Errorf("%s is no regular file", c.undoApply)
		}
		if err != nil {
			return fmt.Errorf("undo file: %w; name the one that 'runsc-fs fsck --repair' has made", err)
		}
		file, err := os.Open(c.undoApply)
		if err != nil {
			return fmt.Errorf("undo file: %w", err)
		}
		defer file.Close()
		repair, err := blobfsck.ReadUndo(file)
		if err == nil {
			err = gofer.Repair(path, repair.Undo)
		}
		if errors.Is(err, blobfsck.ErrUndo) {
			return fmt.Errorf("image %s and undo file %s: %w; nothing was changed", path, c.undoApply, err)
		}
		return err
	}()
	if err != nil {
		return statusError{inUseHint(err, "stop what uses it"), fsckOperational}
	}
	_, err = fmt.Fprintf(out, "%s is as it was before the repair\n", argument)
	return err
}
