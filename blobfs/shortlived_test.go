package blobfs

import (
	"testing"

	"runsc-fs/blobfs/format"
)

// TestShortLivedFilesUseTheSameBlocks makes and removes a synced file again and
// again, as SQLite does with its journal. In an image file each block that was
// never used before costs a commit of the journal of the host's file system, and space.
func TestShortLivedFilesUseTheSameBlocks(t *testing.T) {
	const blocks = 3
	e := newEnv(t, 32<<20)
	root := e.fs.Root()
	defer root.DecRef()
	keep := e.create(root, "keep", ModeRegular|0o644)
	defer keep.DecRef()
	e.write(keep, 0, pattern(1, blocks*BlockSizeBytes), 0)
	e.must(keep.Fsync(nil, true))
	used := map[format.Addr]bool{}
	for range 200 {
		f := e.create(root, "journal", ModeRegular|0o644)
		e.write(f, 0, pattern(2, blocks*BlockSizeBytes), 0)
		e.must(f.Fsync(nil, true))
		for n := range uint64(blocks) {
			m, err := f.mapBlock(n, 1)
			e.must(err)
			used[m.addr] = true
		}
		e.must(root.Unlink("journal", nil))
		f.DecRef()
		e.write(keep, 0, pattern(3, BlockSizeBytes), 0)
		e.must(keep.Fsync(nil, true))
	}
	// A journal is made before it is durable that the one before it has gone.
	if len(used) > 3*blocks {
		t.Errorf("200 files of %d blocks, one after the other, used %d different blocks", blocks, len(used))
	}
	e.expect(keep, 0, pattern(3, BlockSizeBytes), 0)
}
