package blobfs

import (
	"fmt"
	"testing"

	"runsc-fs/blobfs/format"
	"runsc-fs/blobfs/store"
	"runsc-fs/nvme"
	"runsc-fs/nvme/crashdev"
)

func countOrphans(e *env) int {
	n := 0
	e.must(e.fs.store.View(func(r *store.Reader) error {
		return r.Scan(orphanKey(0), orphanKey(1<<64-1), func(format.Key, []byte) (bool, error) {
			n++
			return true, nil
		})
	}))
	return n
}

// TestOpenUnlinkedAfterCrash checks that files without a name disappear at the
// next mount, with their space.
func TestOpenUnlinkedAfterCrash(t *testing.T) {
	disk, err := crashdev.New(crashdev.Options{SizeBytes: 48 << 20})
	if err != nil {
		t.Fatal(err)
	}
	arena, err := nvme.NewArena(nvme.ArenaOptions{SizeBytes: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer arena.Close()
	e := &env{t: t, dev: disk.Device(arena), now: 1 << 60}
	e.must(Mkfs(e.dev, MkfsOptions{}))
	e.mount()
	empty := SpaceOf(e.fs)
	root := e.fs.Root()
	f := e.create(root, "f", ModeRegular)
	e.write(f, 0, pattern(1, 1<<20), 0)
	e.must(f.SetXattr("user.big", pattern(2, 60000), 0))
	e.must(f.Fsync(nil, false))
	e.must(root.Unlink("f", f))
	if f.Attr().Nlink != 0 {
		t.Errorf("%d links", f.Attr().Nlink)
	}
	e.expect(f, 0, pattern(1, 1<<20), 0)
	e.want(root.Link("again", f), ErrNotExist)
	tmp, err := root.CreateUnlinked(NewInode{Mode: ModeRegular})
	e.must(err)
	e.write(tmp, 0, pattern(3, 100000), 0)
	d := e.create(root, "d", ModeDir)
	e.must(root.Rmdir("d", d))
	_, err = d.Create("x", NewInode{Mode: ModeRegular})
	e.want(err, ErrNotExist)
	e.must(e.fs.Sync(nil))
	if n := countOrphans(e); n != 3 {
		t.Errorf("%d orphans, not 3", n)
	}
	img := disk.Image(crashdev.Crash{Point: disk.Points()})
	e.must(e.fs.Close())

	after := &env{t: t, dev: img.Device(arena), now: 1 << 61}
	after.mount()
	if n := countOrphans(after); n != 0 {
		t.Errorf("%d orphans are left", n)
	}
	after.must(after.fs.store.Verify())
	if got := SpaceOf(after.fs); got != empty {
		t.Errorf("%d blocks hold no data, %d did in the empty volume", got, empty)
	}
	after.must(after.fs.Close())
}

// TestBigTruncateIsResumed cuts the power while a file of many extents is
// truncated or removed, which takes several transactions.
func TestBigTruncateIsResumed(t *testing.T) {
	const blocks = 1500
	for _, remove := range []bool{false, true} {
		disk, err := crashdev.New(crashdev.Options{SizeBytes: 48 << 20})
		if err != nil {
			t.Fatal(err)
		}
		arena, err := nvme.NewArena(nvme.ArenaOptions{SizeBytes: 64 << 20})
		if err != nil {
			t.Fatal(err)
		}
		defer arena.Close()
		e := &env{t: t, dev: disk.Device(arena), now: 1 << 60}
		e.must(Mkfs(e.dev, MkfsOptions{}))
		e.mount()
		root := e.fs.Root()
		f := e.create(root, "f", ModeRegular)
		for n := range int64(blocks) {
			e.write(f, n*2*BlockSizeBytes, pattern(byte(n), BlockSizeBytes), 0)
		}
		e.must(f.Fsync(nil, false))
		disk.Restart()
		e.fs.opts.CommitInterval = -1
		if remove {
			e.must(root.Unlink("f", f))
			f.DecRef()
		} else {
			e.must(f.Truncate(10 * BlockSizeBytes))
			f.DecRef()
		}
		e.must(e.fs.Sync(nil))
		root.DecRef()
		for crash, img := range disk.Samples(7, 30) {
			after := &env{t: t, dev: img.Device(arena), now: 1 << 61}
			after.mount()
			root := after.fs.Root()
			f, err := root.Lookup("f")
			if err == nil {
				size := f.Size()
				if size != 10*BlockSizeBytes && size != (2*blocks-1)*BlockSizeBytes {
					t.Errorf("%v: size %d", crash, size)
				}
				for n := range int64(5) {
					after.expect(f, n*2*BlockSizeBytes, pattern(byte(n), BlockSizeBytes), 0)
				}
				if got := f.Attr().Blocks / 8; size == 10*BlockSizeBytes && got != 5 {
					t.Errorf("%v: %d blocks after truncation", crash, got)
				}
				f.DecRef()
			} else if !remove {
				t.Errorf("%v: %v", crash, err)
			}
			root.DecRef()
			if n := countOrphans(after); n != 0 {
				t.Errorf("%v: %d orphans are left", crash, n)
			}
			if err := after.fs.store.Verify(); err != nil {
				t.Errorf("%v: %v", crash, err)
			}
			after.must(after.fs.Close())
		}
		e.must(e.fs.Close())
	}
}

// TestLimits checks what names, links, links' targets and attributes may be.
func TestLimits(t *testing.T) {
	e := newEnv(t, 64<<20)
	root := e.fs.Root()
	defer root.DecRef()
	long := string(make([]byte, 0, 256))
	for len(long) < 255 {
		long += "\xfe"
	}
	e.create(root, long, ModeRegular).DecRef()
	_, err := root.Create(long+"x", NewInode{Mode: ModeRegular})
	e.want(err, ErrNameTooLong)
	_, err = root.Lookup(long + "x")
	e.want(err, ErrNameTooLong)
	for _, name := range []string{"", ".", "..", "a/b", "a\x00b"} {
		_, err = root.Create(name, NewInode{Mode: ModeRegular})
		e.want(err, ErrInvalid)
	}
	_, err = root.Create("m", NewInode{Mode: 0o644})
	e.want(err, ErrInvalid)
	_, err = root.Create("l", NewInode{Mode: ModeSymlink, Target: string(make([]byte, MaxSymlinkBytes+1))})
	e.want(err, ErrNameTooLong)
	target := string(pattern(1, MaxSymlinkBytes))
	l, err := root.Create("l", NewInode{Mode: ModeSymlink, Target: target})
	e.must(err)
	if got, err := l.Readlink(); err != nil || got != target || l.Size() != MaxSymlinkBytes {
		t.Errorf("target of %d bytes: %v", len(got), err)
	}
	_, err = l.ReadAt(&memSink{}, 0, 1, 0)
	e.want(err, ErrInvalid)
	l.DecRef()

	f := e.create(root, "f", ModeRegular)
	_, err = f.Lookup("x")
	e.want(err, ErrNotDir)
	_, err = f.Readlink()
	e.want(err, ErrNotSymlink)
	_, err = root.ReadAt(&memSink{}, 0, 1, 0)
	e.want(err, ErrIsDir)
	e.want(root.Link("d", root), ErrNotPermitted)
	e.want(f.SetXattr("user."+long, nil, 0), ErrXattrNameTooLong)
	e.want(f.SetXattr("", nil, 0), ErrInvalid)
	e.want(f.SetXattr("user.big", make([]byte, MaxXattrValueBytes+1), 0), ErrXattrTooBig)
	e.want(f.SetXattr("user.a", nil, XattrReplace), ErrNoXattr)
	e.must(f.SetXattr("user.a", nil, XattrCreate))
	e.want(f.SetXattr("user.a", nil, XattrCreate), ErrExist)
	e.want(f.SetXattr("user.a", nil, XattrCreate|XattrReplace), ErrInvalid)
	if v, err := f.GetXattr("user.a"); err != nil || len(v) != 0 {
		t.Errorf("empty value: %q, %v", v, err)
	}
	e.want(f.Truncate(-1), ErrInvalid)
	e.want(f.Truncate(MaxFileSizeBytes+1), ErrFileTooBig)
	e.must(f.Truncate(MaxFileSizeBytes))
	_, err = f.WriteAt(&bytesSource{[]byte{1}}, MaxFileSizeBytes, 1, 0)
	e.want(err, ErrFileTooBig)
	n, err := f.WriteAt(&bytesSource{[]byte{1, 2}}, MaxFileSizeBytes-1, 2, 0)
	if n != 1 || err != nil {
		t.Errorf("write across the largest size: %d, %v", n, err)
	}
	e.want(f.Fallocate(FallocPunchHole, 0, 1), ErrNotSupported)
	e.want(f.Fallocate(0, 0, 0), ErrInvalid)
	e.want(f.Fallocate(0, MaxFileSizeBytes, 1), ErrFileTooBig)
	if off, err := f.SeekData(0); err != nil || off != MaxFileSizeBytes-BlockSizeBytes {
		t.Errorf("data at %d, %v", off, err)
	}
	_, err = f.SeekHole(MaxFileSizeBytes)
	e.want(err, ErrNoData)

	// The limit of links, without making them all.
	f.mu.Lock()
	f.a.nlink = MaxLinks - 1
	f.mu.Unlock()
	e.must(root.Link("last", f))
	e.want(root.Link("beyond", f), ErrTooManyLinks)
	e.must(root.Unlink("last", nil))
	f.mu.Lock()
	f.a.nlink = 1
	f.mu.Unlock()
	f.DecRef()
	d := e.create(root, "d", ModeDir)
	d.mu.Lock()
	d.a.nlink = MaxLinks
	d.mu.Unlock()
	_, err = d.Create("sub", NewInode{Mode: ModeDir})
	e.want(err, ErrTooManyLinks)
	d.mu.Lock()
	d.a.nlink = 2
	d.mu.Unlock()
	d.DecRef()
}

// TestReadDirCookies changes a directory while it is listed: what stays must
// appear exactly once.
func TestReadDirCookies(t *testing.T) {
	e := newEnv(t, 64<<20)
	root := e.fs.Root()
	defer root.DecRef()
	for n := range 500 {
		e.create(root, fmt.Sprintf("stays%d", n), ModeRegular).DecRef()
		e.create(root, fmt.Sprintf("goes%d", n), ModeRegular).DecRef()
	}
	seen := map[string]int{}
	cookie, n := int64(0), 0
	for done := false; !done; {
		done = true
		e.must(root.ReadDir(cookie, func(d Dirent) bool {
			done = false
			seen[d.Name]++
			if d.NextCookie <= cookie || d.NextCookie <= FirstCookie {
				t.Fatalf("cookie %d after %d", d.NextCookie, cookie)
			}
			cookie = d.NextCookie
			return len(seen)%7 != 0
		}))
		if n < 500 {
			e.must(root.Unlink(fmt.Sprintf("goes%d", n), nil))
			e.create(root, fmt.Sprintf("comes%d", n), ModeRegular).DecRef()
			n++
		}
	}
	for n := range 500 {
		if got := seen[fmt.Sprintf("stays%d", n)]; got != 1 {
			t.Errorf("stays%d was listed %d times", n, got)
		}
	}
	for name, got := range seen {
		if got != 1 {
			t.Errorf("%s was listed %d times", name, got)
		}
	}
}

// TestFsyncAfterEviction syncs a file whose inode has left memory since it was
// written back: what was logged then must become durable all the same.
func TestFsyncAfterEviction(t *testing.T) {
	disk, err := crashdev.New(crashdev.Options{SizeBytes: 48 << 20})
	if err != nil {
		t.Fatal(err)
	}
	arena, err := nvme.NewArena(nvme.ArenaOptions{SizeBytes: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer arena.Close()
	e := &env{t: t, dev: disk.Device(arena), now: 1 << 60}
	e.must(Mkfs(e.dev, MkfsOptions{}))
	opts := e.testOptions()
	opts.MaxIdleInodes = inodeShards
	e.fs, err = Mount(e.dev, opts)
	e.must(err)
	root := e.fs.Root()
	f := e.create(root, "f", ModeRegular)
	data := pattern(1, 100000)
	e.write(f, 0, data, 0)
	e.must(e.fs.flushAll())
	f.DecRef()
	for n := range 10 * inodeShards {
		e.create(root, fmt.Sprintf("other%d", n), ModeRegular).DecRef()
	}
	g := e.lookup(root, "f")
	if g == f {
		t.Fatal("the inode is still in memory")
	}
	e.must(g.Fsync(nil, true))
	img := disk.Image(crashdev.Crash{Point: disk.Points()}) // seed 0 loses all that may be lost
	g.DecRef()
	root.DecRef()
	e.must(e.fs.Close())
	after := &env{t: t, dev: img.Device(arena), now: 1 << 61}
	after.mount()
	root = after.fs.Root()
	f = after.lookup(root, "f")
	after.expect(f, 0, data, 0)
	f.DecRef()
	root.DecRef()
	after.must(after.fs.Close())
}
