package blobfs

import (
	"bytes"
	"errors"
	"sync/atomic"
	"testing"

	"runsc-fs/nvme"
)

// faultyDevice fails requests as told.
type faultyDevice struct {
	nvme.BlockDevice
	fail atomic.Pointer[func(r *nvme.Request) error]
}

func (d *faultyDevice) Do(reqs []nvme.Request) error {
	fail := d.fail.Load()
	if fail == nil {
		return d.BlockDevice.Do(reqs)
	}
	for k := range reqs {
		if err := (*fail)(&reqs[k]); err != nil {
			reqs[k].Err = err
			return err
		}
	}
	return d.BlockDevice.Do(reqs)
}

func newFaultyEnv(t *testing.T) (*env, *faultyDevice) {
	e := newEnv(t, 64<<20)
	e.must(e.fs.Close())
	d := &faultyDevice{BlockDevice: e.dev}
	e.dev = d
	e.mount()
	return e, d
}

func (d *faultyDevice) set(fail func(r *nvme.Request) error) {
	if fail == nil {
		d.fail.Store(nil)
		return
	}
	d.fail.Store(&fail)
}

// TestWriteErrorsAreReportedOnce checks that each open description learns of a
// failed write-back once, and a later one only if nobody has.
func TestWriteErrorsAreReportedOnce(t *testing.T) {
	e, d := newFaultyEnv(t)
	root := e.fs.Root()
	f := e.create(root, "f", ModeRegular|0o644)
	data := pattern(1, 50000)
	a, b := f.ErrCursor(), f.ErrCursor()
	fsCursor := e.fs.ErrCursor()
	e.write(f, 0, data, 0)
	d.set(func(r *nvme.Request) error {
		if r.Op == nvme.OpWrite {
			return nvme.ErrMedia
		}
		return nil
	})
	if err := f.writeBackAll(); !errors.Is(err, nvme.ErrMedia) {
		t.Fatalf("write-back: %v", err)
	}
	d.set(nil)
	late := f.ErrCursor() // nobody has seen it yet
	for name, c := range map[string]*ErrCursor{"first": &a, "second": &b, "late": &late} {
		if err := f.Fsync(c, true); !errors.Is(err, nvme.ErrMedia) {
			t.Errorf("%s description: %v", name, err)
		}
		if err := f.Fsync(c, true); err != nil {
			t.Errorf("%s description, again: %v", name, err)
		}
	}
	after := f.ErrCursor()
	e.must(f.Fsync(&after, false))
	if err := e.fs.Sync(&fsCursor); !errors.Is(err, nvme.ErrMedia) {
		t.Errorf("syncfs: %v", err)
	}
	e.must(e.fs.Sync(&fsCursor))
	// The data was kept and is on the device now.
	f.dropAllPages()
	e.expect(f, 0, data, 0)
	f.DecRef()
	root.DecRef()
	e.must(e.fs.store.Verify())
}

// TestReadErrors checks that a failed read is an error, and only that.
func TestReadErrors(t *testing.T) {
	e, d := newFaultyEnv(t)
	root := e.fs.Root()
	defer root.DecRef()
	f := e.create(root, "f", ModeRegular|0o644)
	defer f.DecRef()
	data := pattern(1, 50000)
	e.write(f, 0, data, 0)
	e.must(f.Fsync(nil, false))
	f.dropAllPages()
	d.set(func(r *nvme.Request) error {
		if r.Op == nvme.OpRead {
			return nvme.ErrMedia
		}
		return nil
	})
	for _, flags := range []IOFlags{0, IODirect} {
		var s memSink
		if n, err := f.ReadAt(&s, 0, 4096, flags); n != 0 || !errors.Is(err, nvme.ErrMedia) {
			t.Errorf("flags %d: %d, %v", flags, n, err)
		}
	}
	if _, err := f.Fault(0, 4096, false); !errors.Is(err, nvme.ErrMedia) {
		t.Errorf("fault: %v", err)
	}
	if n, err := f.WriteAt(&bytesSource{data}, 10, 10, 0); n != 0 || !errors.Is(err, nvme.ErrMedia) {
		t.Errorf("partial write of an unreadable block: %d, %v", n, err)
	}
	d.set(nil)
	e.expect(f, 0, data, 0)
}

// TestMetadataErrorMakesReadOnly checks that nothing can be changed once the
// log cannot be written, that syncs fail, and that reading goes on.
func TestMetadataErrorMakesReadOnly(t *testing.T) {
	e, d := newFaultyEnv(t)
	root := e.fs.Root()
	f := e.create(root, "f", ModeRegular|0o644)
	data := pattern(1, 50000)
	e.write(f, 0, data, 0)
	e.must(f.Fsync(nil, false))
	d.set(func(r *nvme.Request) error {
		if r.Op != nvme.OpRead {
			return nvme.ErrMedia
		}
		return nil
	})
	_, err := root.Create("g", NewInode{Mode: ModeRegular})
	e.must(err)
	for range 2 {
		if err := root.Fsync(nil, false); !errors.Is(err, ErrIO) || errors.Is(err, ErrReadOnly) {
			t.Fatalf("fsync: %v", err)
		}
	}
	d.set(nil)
	if !e.fs.ReadOnly() {
		t.Error("still writable")
	}
	_, err = root.Create("h", NewInode{Mode: ModeRegular})
	e.want(err, ErrReadOnly)
	e.want(root.Unlink("f", nil), ErrReadOnly)
	_, err = f.WriteAt(&bytesSource{data}, 0, 10, 0)
	e.want(err, ErrReadOnly)
	e.want(f.Truncate(0), ErrReadOnly)
	if err := f.Fsync(nil, false); !errors.Is(err, ErrIO) {
		t.Errorf("fsync of another file: %v", err)
	}
	f.dropAllPages()
	e.expect(f, 0, data, 0)
	f.DecRef()
	root.DecRef()
	if err := e.fs.Close(); err == nil {
		t.Error("closing reported no error")
	}
	e.mount()
	root = e.fs.Root()
	f = e.lookup(root, "f")
	e.expect(f, 0, data, 0)
	f.DecRef()
	root.DecRef()
}

// TestReadOnlyMount checks that a read-only mount writes nothing and refuses
// all changes.
func TestReadOnlyMount(t *testing.T) {
	e, d := newFaultyEnv(t)
	root := e.fs.Root()
	f := e.create(root, "f", ModeRegular|0o644)
	data := pattern(1, 50000)
	e.write(f, 0, data, 0)
	f.DecRef()
	root.DecRef()
	e.must(e.fs.Close())
	d.set(func(r *nvme.Request) error {
		if r.Op != nvme.OpRead {
			t.Errorf("request %d on a read-only mount", r.Op)
		}
		return nil
	})
	opts := e.testOptions()
	opts.ReadOnly = true
	fs, err := Mount(e.dev, opts)
	e.must(err)
	e.fs = fs
	root = fs.Root()
	f = e.lookup(root, "f")
	e.expect(f, 0, data, 0)
	_, err = root.Create("g", NewInode{Mode: ModeRegular})
	e.want(err, ErrReadOnly)
	_, err = f.WriteAt(&bytesSource{data}, 0, 10, 0)
	e.want(err, ErrReadOnly)
	_, err = f.Fault(0, 4096, true)
	e.want(err, ErrReadOnly)
	e.want(f.Truncate(0), ErrReadOnly)
	e.want(f.Fallocate(0, 0, 10), ErrReadOnly)
	e.want(f.SetAttr(AttrMode, &Attr{}), ErrReadOnly)
	e.want(f.SetXattr("user.a", nil, 0), ErrReadOnly)
	e.want(root.Unlink("f", nil), ErrReadOnly)
	e.want(fs.Rename(root, "f", root, "g", 0), ErrReadOnly)
	e.must(f.Fsync(nil, false))
	e.must(fs.Sync(nil))
	run, err := f.Fault(0, 4096, false)
	e.must(err)
	if !bytes.Equal(e.dev.Arena().Bytes()[run.ArenaOffset:run.ArenaOffset+4096], data[:4096]) {
		t.Error("mapping shows something else")
	}
	f.DecRef()
	root.DecRef()
	e.must(fs.Close())
	e.fs = nil
}
