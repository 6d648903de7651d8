package blobfs

import "testing"

// TestAllocations pins how often the common calls allocate memory.
func TestAllocations(t *testing.T) {
	if invariants {
		return // the checks allocate
	}
	e := newEnv(t, 64<<20)
	root := e.fs.Root()
	defer root.DecRef()
	f := e.create(root, "f", ModeRegular|0o644)
	defer f.DecRef()
	e.write(f, 0, pattern(1, 1<<20), 0)
	e.must(e.fs.Sync(nil))
	sink, src := &nullSink{}, &fillSource{}
	check := func(what string, limit float64, call func() error) {
		t.Helper()
		got := testing.AllocsPerRun(200, func() {
			if err := call(); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
		})
		if got > limit {
			t.Errorf("%s: %v allocations, more than %v", what, got, limit)
		}
	}
	check("cached read", 0, func() error { _, err := f.ReadAt(sink, 0, 4096, 0); return err })
	check("cached write", 0, func() error { _, err := f.WriteAt(src, 0, 4096, 0); return err })
	check("durable overwrite", 0, func() error { _, err := f.WriteAt(src, 0, 4096, IODSync); return err })
	check("durable append", 0, func() error { _, _, err := f.Append(src, 4096, IODSync); return err })
	f.dropAllPages()
	check("direct read", 0, func() error { _, err := f.ReadAt(sink, 0, 4096, IODirect); return err })
	check("direct write", 0, func() error { _, err := f.WriteAt(src, 0, 4096, IODirect); return err })
	check("lookup", 0, func() error {
		g, err := root.Lookup("f")
		if err == nil {
			g.DecRef()
		}
		return err
	})
	// The inode, and now and then a bigger list or map.
	check("create and unlink", 1, func() error {
		g, err := root.Create("g", NewInode{Mode: ModeRegular | 0o644})
		if err == nil {
			g.DecRef()
			err = root.Unlink("g", nil)
		}
		return err
	})
	check("rename", 0, func() error {
		err := e.fs.Rename(root, "f", root, "h", 0)
		if err == nil {
			err = e.fs.Rename(root, "h", root, "f", 0)
		}
		return err
	})
}
