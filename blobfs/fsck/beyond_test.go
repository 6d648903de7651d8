package fsck

import (
	"bytes"
	"testing"

	"runsc-fs/blobfs"
)

type fill byte

func (f fill) CopyIn(b []byte) (int, error) {
	for i := range b {
		b[i] = byte(f)
	}
	return len(b), nil
}

// TestCrashBeyondSize: what was written and not synced before a crash must not
// show up when the file, which lost its size, is extended afterwards.
func TestCrashBeyondSize(t *testing.T) {
	for name, op := range map[string]func(f *blobfs.Inode) error{
		"fallocate": func(f *blobfs.Inode) error { return f.Fallocate(blobfs.FallocKeepSize, 100<<10, 4096) },
		"dsync": func(f *blobfs.Inode) error {
			_, err := f.WriteAt(fill(7), 100<<10, 4096, blobfs.IODSync)
			return err
		},
		"punch": func(f *blobfs.Inode) error {
			return f.Fallocate(blobfs.FallocKeepSize|blobfs.FallocPunchHole, 100<<10, 4096)
		},
		"zero": func(f *blobfs.Inode) error {
			return f.Fallocate(blobfs.FallocKeepSize|blobfs.FallocZeroRange, 100<<10, 8192)
		},
		"direct":        func(f *blobfs.Inode) error { _, err := f.WriteAt(fill(7), 100<<10, 4096, blobfs.IODirect); return err },
		"direct append": func(f *blobfs.Inode) error { _, err := f.WriteAt(fill(7), 0, 20480, blobfs.IODirect); return err },
		"truncate":      func(f *blobfs.Inode) error { return f.Truncate(100 << 10) },
		"extend":        func(f *blobfs.Inode) error { return f.Truncate(300 << 10) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorkload(t, 1, 4096)
			root := w.dirs[0]
			f, err := root.Create("f", blobfs.NewInode{Mode: blobfs.ModeRegular | 0o644})
			w.ok(err)
			other, err := root.Create("other", blobfs.NewInode{Mode: blobfs.ModeRegular | 0o644})
			w.ok(err)
			w.open = append(w.open, f, other)
			w.ok(w.fs.Sync(nil))
			if name != "direct append" {
				_, err = f.WriteAt(fill(9), 0, 200<<10, 0)
				w.ok(err)
			}
			w.ok(op(f))
			_, err = other.WriteAt(fill(1), 0, 10, 0)
			w.ok(err)
			w.ok(other.Fsync(nil, false))
			image := w.dev.clone()
			w.close()

			r := check(t, image, Options{})
			for i := range r.Findings {
				t.Errorf("%v", &r.Findings[i])
			}
			fs, err := blobfs.Mount(image, blobfs.MountOptions{CacheBytes: 1 << 20, CommitInterval: -1})
			w.ok(err)
			defer fs.Close()
			r2 := fs.Root()
			defer r2.DecRef()
			g, err := r2.Lookup("f")
			w.ok(err)
			defer g.DecRef()
			size := g.Size()
			w.ok(g.Truncate(400 << 10))
			var s bytesSink
			_, err = g.ReadAt(&s, size, 400<<10-size, 0)
			w.ok(err)
			if i := bytes.IndexFunc(s.b, func(r rune) bool { return r != 0 }); i >= 0 {
				t.Errorf("size was %d; after extending byte %d is %d", size, size+int64(i), s.b[i])
			}
		})
	}
}
