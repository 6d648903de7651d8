package fsck

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"runsc-fs/blobfs"
)

// crashRun does random things and checks one in so many of the images that a
// power cut after a write or flush may leave, before and after a mount.
func crashRun(t *testing.T, seed uint64, steps, oneIn int) (images int) {
	w := newWorkload(t, seed, 4096)
	cuts := rand.New(rand.NewPCG(seed, 2))
	var pending []*memDevice
	hook := func() {
		if cuts.IntN(oneIn) == 0 {
			pending = append(pending, w.dev.crash(cuts))
		}
	}
	w.dev.hook = hook
	for step := range steps {
		w.step()
		if step%1000 == 999 {
			w.close()
			w.mount()
		}
		w.dev.hook = nil
		for _, image := range pending {
			images++
			when := fmt.Sprintf("seed %d, cut %d in step %d", seed, images, step)
			wantSound(t, check(t, image, Options{}), when)
			checkRecovery(t, image, when)
		}
		pending = pending[:0]
		w.dev.hook = hook
	}
	w.dev.hook = nil
	w.close()
	return images
}

func TestCrashes(t *testing.T) {
	for seed := range uint64(3) {
		t.Run(fmt.Sprintf("seed%d", seed), func(t *testing.T) {
			if n := crashRun(t, 100+seed, 1500, 3); n < 100 {
				t.Errorf("only %d images were checked", n)
			}
		})
	}
}

func checkRecovery(t *testing.T, image *memDevice, when string) {
	t.Helper()
	fs, err := blobfs.Mount(image, blobfs.MountOptions{CacheBytes: 1 << 20, CommitInterval: -1})
	if err != nil {
		t.Fatalf("%s: mounting: %v", when, err)
	}
	if err := fs.Close(); err != nil {
		t.Fatalf("%s: closing: %v", when, err)
	}
	r := check(t, image, Options{})
	wantSound(t, r, when+", recovered")
	if r.Counters.Orphans > 0 {
		t.Errorf("%s: %d orphans are left", when, r.Counters.Orphans)
	}
}

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
