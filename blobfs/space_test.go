package blobfs

import (
	"errors"
	"fmt"
	"testing"
)

// fill writes a file until the volume is full and returns how much went in.
func (e *env) fill(f *Inode, chunk int, flags IOFlags) int64 {
	e.t.Helper()
	data := pattern(9, chunk)
	for off := int64(0); ; {
		n, err := f.WriteAt(&bytesSource{data}, off, int64(chunk), flags)
		off += n
		if errors.Is(err, ErrNoSpace) {
			return off
		}
		if err != nil || n != int64(chunk) {
			e.t.Fatalf("write at %d: %d, %v", off, n, err)
		}
	}
}

// TestFullVolume fills the volume in different ways, again and again: what
// was accepted must be there, removal must work, and no space may get lost.
func TestFullVolume(t *testing.T) {
	e := newEnv(t, 24<<20)
	first := map[string]int64{}
	for round := range 4 {
		for _, way := range []string{"buffered", "small", "direct", "allocated", "mapped"} {
			root := e.fs.Root()
			f := e.create(root, "f", ModeRegular|0o644)
			var size int64
			switch way {
			case "buffered":
				size = e.fill(f, 100<<10, 0)
			case "small":
				size = e.fill(f, 3000, 0)
			case "direct":
				size = e.fill(f, 64<<10, IODirect)
			case "allocated":
				for f.Fallocate(0, size, 256<<10) == nil {
					size += 256 << 10
				}
				e.want(f.Fallocate(0, size, 256<<10), ErrNoSpace)
				e.write(f, 0, pattern(9, int(size)), 0) // that space is promised
			case "mapped":
				e.must(f.Truncate(64 << 20))
				for {
					run, err := f.Fault(size, BlockSizeBytes, true)
					if errors.Is(err, ErrNoSpace) {
						break
					}
					e.must(err)
					copy(e.dev.Arena().Bytes()[run.ArenaOffset:], pattern(9, BlockSizeBytes))
					size += BlockSizeBytes
				}
				e.must(f.Truncate(size))
			}
			if size < 16<<20 {
				t.Fatalf("round %d, %s: volume was full after %d bytes", round, way, size)
			}
			if st := e.fs.StatFS(); st.AvailableBlocks > 80 {
				t.Errorf("round %d, %s: full with %d blocks available", round, way, st.AvailableBlocks)
			}
			e.must(f.Fsync(nil, false))
			f.DecRef()
			root.DecRef()
			e.remount()
			root = e.fs.Root()
			f = e.lookup(root, "f")
			got := e.read(f, 0, size, 0)
			if way != "mapped" && way != "small" && int64(len(got)) != size {
				t.Fatalf("%d bytes, not %d", len(got), size)
			}
			for k := 0; way == "allocated" && k < len(got); k += BlockSizeBytes {
				if got[k] == 0 {
					t.Fatalf("round %d, %s: byte %d is zero", round, way, k)
				}
			}
			// On the full volume: rename and removal, and the space is back.
			e.must(e.fs.Rename(root, "f", root, "g", 0))
			e.must(root.Unlink("g", f))
			f.DecRef()
			root.DecRef()
			if first[way] == 0 {
				first[way] = size
			}
			// The checkpoint behind a fill takes what is left, now more, now less.
			if diff := size - first[way]; diff < -64*BlockSizeBytes || diff > 64*BlockSizeBytes {
				t.Errorf("round %d, %s: %d bytes went in, %d in the first round", round, way, size, first[way])
			}
		}
	}
	e.must(e.fs.store.Verify())
}

// TestFullOfNames fills the volume with inodes.
func TestFullOfNames(t *testing.T) {
	e := newEnv(t, 12<<20)
	root := e.fs.Root()
	defer root.DecRef()
	n := 0
	for ; ; n++ {
		f, err := root.Create(fmt.Sprintf("a name of some length %06d", n), NewInode{Mode: ModeRegular})
		if errors.Is(err, ErrNoSpace) {
			break
		}
		e.must(err)
		f.DecRef()
		if n > 1<<20 {
			t.Fatal("the volume never becomes full")
		}
	}
	if n < 10000 {
		t.Errorf("full after %d files", n)
	}
	for k := range n {
		e.must(root.Unlink(fmt.Sprintf("a name of some length %06d", k), nil))
	}
	e.create(root, "again", ModeDir|0o755).DecRef()
	e.must(e.fs.store.Verify())
}
