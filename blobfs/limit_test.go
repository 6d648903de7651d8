package blobfs

import (
	"errors"
	"fmt"
	"testing"
)

// limited mounts the file system of e anew with limits.
func (e *env) limited(bytes, inodes int64) {
	e.t.Helper()
	e.must(e.fs.Close())
	opts := e.testOptions()
	opts.LimitBytes, opts.MaxInodes = bytes, inodes
	fs, err := Mount(e.dev, opts)
	e.must(err)
	e.fs = fs
}

// fillUp writes to a new file until there is no space, and returns how much it took.
func (e *env) fillUp(name string) (written int64) {
	e.t.Helper()
	root := e.fs.Root()
	defer root.DecRef()
	f, err := root.Create(name, NewInode{Mode: ModeRegular | 0o644})
	e.must(err)
	defer f.DecRef()
	const chunk = 256 << 10
	data := pattern(1, chunk)
	for written < 1<<30 {
		n, err := f.WriteAt(&bytesSource{data}, written, chunk, 0)
		written += n
		if errors.Is(err, ErrNoSpace) || err == nil && n < chunk {
			break
		}
		e.must(err)
	}
	e.must(f.Fsync(nil, false))
	return written
}

// TestLimitBytes fills a volume up to a limit, lowers that below what is there,
// frees space, and takes the limit away.
func TestLimitBytes(t *testing.T) {
	e := newEnv(t, 128<<20)
	whole := e.fs.StatFS()
	e.limited(64<<20, 0)
	st := e.fs.StatFS()
	if st.TotalBlocks != 64<<20/BlockSizeBytes || st.FreeBlocks >= st.TotalBlocks || whole.FreeBlocks-st.FreeBlocks != whole.TotalBlocks-st.TotalBlocks {
		t.Errorf("with a limit there are %d blocks of %d free, without %d of %d", st.FreeBlocks, st.TotalBlocks, whole.FreeBlocks, whole.TotalBlocks)
	}
	got := e.fillUp("big")
	if got > 64<<20 || got < st.AvailableBlocks*BlockSizeBytes*9/10 {
		t.Errorf("%d bytes could be written, and %d blocks had been available", got, st.AvailableBlocks)
	}
	if st := e.fs.StatFS(); st.AvailableBlocks > 64 {
		t.Errorf("on a full volume %d blocks are available", st.AvailableBlocks)
	}

	// Below what is in use: nothing more, and what is there can be removed.
	e.limited(32<<20, 0)
	if st := e.fs.StatFS(); st.TotalBlocks != 32<<20/BlockSizeBytes || st.FreeBlocks != 0 || st.AvailableBlocks != 0 {
		t.Errorf("beyond the limit statfs says %+v", st)
	}
	root := e.fs.Root()
	_, err := root.Create("more", NewInode{Mode: ModeRegular | 0o644})
	e.want(err, ErrNoSpace)
	big := e.lookup(root, "big")
	e.must(big.Truncate(1 << 20))
	e.must(root.Unlink("big", big))
	big.DecRef()
	root.DecRef()
	if got := e.fillUp("again"); got == 0 || got > 32<<20 {
		t.Errorf("after freeing, %d bytes could be written", got)
	}
	e.limited(0, 0)
	if got := e.fillUp("rest"); got < 64<<20 {
		t.Errorf("without a limit only %d bytes could be written", got)
	}
}

// TestMaxInodes makes as many files as there may be, in all ways in which files are made.
func TestMaxInodes(t *testing.T) {
	e := newEnv(t, 32<<20)
	root := e.fs.Root()
	e.create(root, "before", ModeRegular|0o644).DecRef()
	root.DecRef()
	e.limited(0, 5) // the root directory is one of them, "before" another
	free := func(want int64) {
		t.Helper()
		if st := e.fs.StatFS(); st.TotalInodes != 5 || st.FreeInodes != want {
			t.Errorf("%d of %d inodes are free, want %d of 5", st.FreeInodes, st.TotalInodes, want)
		}
	}
	free(3)
	root = e.fs.Root()
	defer func() { root.DecRef() }()
	e.create(root, "dir", ModeDir|0o755).DecRef()
	unnamed, err := root.CreateUnlinked(NewInode{Mode: ModeRegular | 0o644})
	e.must(err)
	free(1)
	if _, err := root.Create("before", NewInode{Mode: ModeRegular | 0o644}); !errors.Is(err, ErrExist) {
		t.Errorf("a file that is there: %v", err)
	}
	free(1)
	e.must(e.fs.Rename(root, "before", root, "after", RenameWhiteout))
	free(0)
	_, err = root.Create("more", NewInode{Mode: ModeRegular | 0o644})
	e.want(err, ErrNoSpace)
	_, err = root.CreateUnlinked(NewInode{Mode: ModeRegular | 0o644})
	e.want(err, ErrNoSpace)
	e.want(e.fs.Rename(root, "after", root, "other", RenameWhiteout), ErrNoSpace)
	// A link is no file more.
	after := e.lookup(root, "after")
	e.must(root.Link("link", after))
	e.must(root.Unlink("after", after))
	free(0)
	e.must(root.Unlink("link", after))
	free(0) // still open
	after.DecRef()
	free(1)
	unnamed.DecRef()
	free(2)
	for n := range 2 {
		e.create(root, fmt.Sprint("new", n), ModeFIFO|0o644).DecRef()
	}
	free(0)
}
