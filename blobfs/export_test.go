package blobfs

import (
	"fmt"

	"runsc-fs/blobfs/fsck"
	"runsc-fs/nvme"
)

// CheckVolume runs the independent checker, to which only notes are no defects.
func CheckVolume(dev nvme.BlockDevice) error { return checkVolume(dev) }

func checkVolume(dev nvme.BlockDevice) error {
	report, err := fsck.Check(dev, fsck.Options{})
	if err != nil {
		return err
	}
	for _, f := range report.Findings {
		if f.Severity > fsck.Note {
			return fmt.Errorf("fsck: %v", &f)
		}
	}
	return nil
}

// SpaceOf is the number of blocks that are free or hold nodes of the tree.
func SpaceOf(fs *FS) uint64 {
	st := fs.store.StatFS()
	return st.FreeBlocks + st.NodeBlocks
}

// Verify checks the store below.
func Verify(fs *FS) error { return fs.store.Verify() }
