package blobfs

import (
	"bytes"
	"testing"
)

// TestShiftKeepsFile takes ranges out of a file with holes, unwritten blocks and
// data that are in memory only, and looks at it before and after a remount.
func TestShiftKeepsFile(t *testing.T) {
	e := newEnv(t, 32<<20)
	const block = BlockSizeBytes
	f := e.create(e.fs.Root(), "f", ModeRegular|0o644)
	want := make([]byte, 40*block+100)
	put := func(off int64, data []byte) {
		e.write(f, off, data, 0)
		copy(want[off:], data)
	}
	put(0, pattern(1, 5*block))
	var cursor ErrCursor
	e.must(f.Fsync(&cursor, false))
	e.must(f.Fallocate(0, 10*block, 10*block))
	put(30*block, pattern(2, 10*block+100))
	e.must(f.Collapse(3*block, 8*block))
	want = append(want[:3*block:3*block], want[11*block:]...)
	e.expect(f, 0, want, 0)
	e.must(f.Insert(block, 100*block))
	want = append(append(want[:block:block], make([]byte, 100*block)...), want[block:]...)
	e.expect(f, 0, want, 0)
	if size := f.Size(); size != int64(len(want)) {
		t.Errorf("size %d, not %d", size, len(want))
	}
	if hole, err := f.SeekData(2 * block); err != nil || hole != 101*block {
		t.Errorf("data behind what was inserted begins at %d, %v", hole, err)
	}
	f.DecRef()
	e.remount()
	f = e.lookup(e.fs.Root(), "f")
	defer f.DecRef()
	e.expect(f, 0, want, 0)
	e.must(e.fs.store.Verify())
}

// TestShiftAtOnceOrNot leaves a file alone whose pieces one transaction cannot move.
func TestShiftAtOnceOrNot(t *testing.T) {
	e := newEnv(t, 64<<20)
	f := e.create(e.fs.Root(), "f", ModeRegular|0o644)
	defer f.DecRef()
	const block = BlockSizeBytes
	data := pattern(5, block)
	pieces := int64(maxShiftExtents + 10)
	for n := range pieces {
		e.write(f, 2*n*block, data, 0)
	}
	before, blocks := e.read(f, 0, f.Size(), 0), f.Attr().Blocks
	e.want(f.Collapse(0, block), ErrNotSupported)
	e.want(f.Insert(0, block), ErrNotSupported)
	if !bytes.Equal(e.read(f, 0, f.Size(), 0), before) || f.Attr().Blocks != blocks {
		t.Error("the file has changed")
	}
	e.must(f.Collapse(40*block, 40*block))
	e.expect(f, 40*block, before[80*block:], 0)
	if now := f.Attr().Blocks; now != blocks-20*block/512 {
		t.Errorf("%d blocks of 512 bytes, there were %d", now, blocks)
	}
}

// TestShiftUnderMapping moves data that were stored through a mapping.
func TestShiftUnderMapping(t *testing.T) {
	e := newEnv(t, 32<<20)
	const block = BlockSizeBytes
	f := e.create(e.fs.Root(), "f", ModeRegular|0o644)
	defer f.DecRef()
	e.write(f, 0, pattern(1, 6*block), 0)
	var gone []int64
	f.SetInvalidator(func(off, length int64) { gone = append(gone, off) })
	run, err := f.Fault(4*block, block, true)
	e.must(err)
	stored := pattern(9, block)
	copy(e.dev.Arena().Bytes()[run.ArenaOffset:], stored)
	e.must(f.Collapse(block, block))
	e.expect(f, 3*block, stored, 0)
	if len(gone) == 0 {
		t.Error("the mapping is still there")
	}
}
