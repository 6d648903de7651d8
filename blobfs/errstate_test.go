package blobfs

import (
	"errors"
	"fmt"
	"testing"

	"runsc-fs/blobfs/format"
	"runsc-fs/nvme"
)

// failDataWrites makes all writes behind the log fail, until the next set.
func (d *faultyDevice) failDataWrites() {
	start, blocks := format.DefaultLog(uint64(d.Geometry().SizeBytes())/BlockSizeBytes, 0)
	end := (start + format.Addr(blocks)).OffsetBytes()
	d.set(func(r *nvme.Request) error {
		if r.Op == nvme.OpWrite && r.OffsetBytes >= end {
			return nvme.ErrMedia
		}
		return nil
	})
}

// TestErrorOutlivesClose lets a write-back fail when nobody has the file open,
// puts pressure on the inode cache, and expects who opens it then to be told.
func TestErrorOutlivesClose(t *testing.T) {
	e, d := newFaultyEnv(t)
	e.must(e.fs.Close())
	opts := e.testOptions()
	opts.MaxIdleInodes = 16
	fs, err := Mount(e.dev, opts)
	e.must(err)
	e.fs = fs
	root := e.fs.Root()
	f := e.create(root, "f", ModeRegular|0o644)
	e.write(f, 0, pattern(1, 50000), 0)
	f.DecRef() // closed
	d.failDataWrites()
	e.fs.periodicCommit()
	d.set(nil)
	for k := range 200 {
		e.create(root, fmt.Sprint("other", k), ModeRegular).DecRef()
	}
	f = e.lookup(root, "f")
	cur := f.ErrCursor()
	if err := f.Fsync(&cur, false); !errors.Is(err, nvme.ErrMedia) {
		t.Errorf("fsync of who opened it later: %v", err)
	}
	if err := f.Fsync(&cur, false); err != nil {
		t.Errorf("again: %v", err)
	}
	after := f.ErrCursor() // somebody has been told
	if err := f.Fsync(&after, false); err != nil {
		t.Errorf("who opened it after that: %v", err)
	}
	f.DecRef()
	root.DecRef()
}
