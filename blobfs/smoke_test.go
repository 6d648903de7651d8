package blobfs

import "testing"

func TestWriteReadRemount(t *testing.T) {
	e := newEnv(t, 64<<20)
	root := e.fs.Root()
	f := e.create(root, "file", ModeRegular|0o644)
	data := pattern(1, 300_000)
	e.write(f, 0, data, 0)
	e.expect(f, 0, data, 0)
	d := e.create(root, "dir", ModeDir|0o755)
	g := e.create(d, "sparse", ModeRegular|0o600)
	e.write(g, 1<<20+77, data[:5000], 0)
	e.expect(g, 1<<20+77, data[:5000], 0)
	e.expect(g, 1<<20-100, make([]byte, 177), 0)
	f.DecRef()
	g.DecRef()
	d.DecRef()
	root.DecRef()
	e.remount()
	root = e.fs.Root()
	defer root.DecRef()
	f = e.lookup(root, "file")
	defer f.DecRef()
	e.expect(f, 0, data, 0)
	e.expect(f, 4096, data[4096:4096*5], IODirect)
	d = e.lookup(root, "dir")
	defer d.DecRef()
	g = e.lookup(d, "sparse")
	defer g.DecRef()
	e.expect(g, 1<<20+77, data[:5000], 0)
	e.expect(g, 0, make([]byte, 1<<20+77), 0)
	if a := root.Attr(); a.Nlink != 3 {
		t.Errorf("root has %d links, not 3", a.Nlink)
	}
	names := map[string]bool{}
	e.must(root.ReadDir(0, func(d Dirent) bool { names[d.Name] = true; return true }))
	if len(names) != 2 || !names["file"] || !names["dir"] {
		t.Errorf("root lists %v", names)
	}
}
