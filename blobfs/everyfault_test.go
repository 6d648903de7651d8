package blobfs

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	"runsc-fs/nvme"
)

// faultStep is one step of a workload whose steps can be repeated.
type faultStep struct {
	name string
	do   func(e *env, root *Inode) error
}

// onFile makes a step of a call on a file, which it creates if it is missing.
func onFile(name string, do func(e *env, f *Inode) error) func(*env, *Inode) error {
	return func(e *env, root *Inode) error {
		f, err := root.Lookup(name)
		if errors.Is(err, ErrNotExist) {
			f, err = root.Create(name, NewInode{Mode: ModeRegular | 0o644})
		}
		if err != nil {
			return err
		}
		defer f.DecRef()
		return do(e, f)
	}
}

func writeStep(name string, off int64, data []byte, flags IOFlags) func(*env, *Inode) error {
	return onFile(name, func(e *env, f *Inode) error {
		n, err := f.WriteAt(&bytesSource{data}, off, int64(len(data)), flags)
		if err == nil && n != int64(len(data)) {
			return fmt.Errorf("%d bytes written", n)
		}
		return err
	})
}

// ignoring makes a step repeatable that has been done already.
func ignoring(errs error, do func(*env, *Inode) error) func(*env, *Inode) error {
	return func(e *env, root *Inode) error {
		if err := do(e, root); !errors.Is(err, errs) {
			return err
		}
		return nil
	}
}

func fsyncStep(name string) func(*env, *Inode) error {
	return onFile(name, func(e *env, f *Inode) error { return f.Fsync(nil, false) })
}

// faultWorkload asks for space, and for everything from the device, in all ways.
var faultWorkload = []faultStep{
	{"write", writeStep("a", 0, pattern(1, 30000), 0)},
	{"fsync", fsyncStep("a")},
	{"direct write", writeStep("b", 8192, pattern(2, 16384), IODirect)},
	{"write with O_DSYNC", writeStep("a", 30000, pattern(3, 9000), IODSync)},
	{"mkdir", ignoring(ErrExist, func(e *env, root *Inode) error {
		d, err := root.Create("d", NewInode{Mode: ModeDir | 0o755})
		if err == nil {
			d.DecRef()
		}
		return err
	})},
	{"link", ignoring(ErrExist, onFile("a", func(e *env, f *Inode) error {
		root := e.fs.Root()
		defer root.DecRef()
		return root.Link("a2", f)
	}))},
	{"allocate", onFile("c", func(e *env, f *Inode) error { return f.Fallocate(0, 0, 100000) })},
	{"punch", onFile("c", func(e *env, f *Inode) error { return f.Fallocate(FallocPunchHole|FallocKeepSize, 20000, 30000) })},
	{"extend", onFile("c", func(e *env, f *Inode) error { return f.Truncate(150001) })},
	{"attribute", onFile("c", func(e *env, f *Inode) error { return f.SetXattr("user.x", pattern(4, 3000), 0) })},
	{"store", onFile("c", func(e *env, f *Inode) error {
		run, err := f.Fault(122880, BlockSizeBytes, true)
		if err == nil {
			copy(e.dev.Arena().Bytes()[run.ArenaOffset:], pattern(5, BlockSizeBytes))
		}
		return err
	})},
	{"sync", func(e *env, root *Inode) error { return e.fs.Sync(nil) }},
	{"shrink", onFile("b", func(e *env, f *Inode) error { return f.Truncate(10000) })},
	{"rename over", ignoring(ErrNotExist, func(e *env, root *Inode) error { return e.fs.Rename(root, "c", root, "b", 0) })},
	{"sync at the end", func(e *env, root *Inode) error { return e.fs.Sync(nil) }},
}

// checkWorkload compares what is there with what the workload leaves.
func checkWorkload(e *env) error {
	root := e.fs.Root()
	defer root.DecRef()
	content := func(name string) []byte {
		f, err := root.Lookup(name)
		if err != nil {
			return nil
		}
		defer f.DecRef()
		return e.read(f, 0, 1<<30, 0)
	}
	want := append(pattern(1, 30000), pattern(3, 9000)...)
	if got := content("a2"); !bytes.Equal(got, want) {
		return fmt.Errorf("a2 has %d bytes", len(got))
	}
	want = make([]byte, 150001)
	copy(want[122880:], pattern(5, BlockSizeBytes))
	if got := content("b"); !bytes.Equal(got, want) {
		return fmt.Errorf("b has %d bytes", len(got))
	}
	_, err := root.Lookup("d")
	return err
}

// TestEveryRequestForSpaceFails lets each request for space of a workload fail,
// one in each run: the caller gets ENOSPC, may go on, and nothing is lost.
func TestEveryRequestForSpaceFails(t *testing.T) {
	denied := 0
	for n := 0; ; n++ {
		e := newEnv(t, 16<<20)
		empty := SpaceOf(e.fs)
		root := e.fs.Root()
		asked, failures := 0, 0
		e.fs.store.DenySpace(func() bool {
			asked++
			return asked-1 == n
		})
		for _, s := range faultWorkload {
			err := s.do(e, root)
			if errors.Is(err, ErrNoSpace) {
				failures++
				err = s.do(e, root)
			}
			if err != nil {
				t.Fatalf("request %d: %s: %v", n, s.name, err)
			}
		}
		e.fs.store.DenySpace(nil)
		if err := checkWorkload(e); err != nil {
			t.Fatalf("request %d: %v", n, err)
		}
		root.DecRef()
		e.remount()
		if err := checkWorkload(e); err != nil {
			t.Fatalf("request %d, after remounting: %v", n, err)
		}
		root = e.fs.Root()
		for _, name := range []string{"a", "a2", "b"} {
			e.must(root.Unlink(name, nil))
		}
		e.must(root.Rmdir("d", nil))
		root.DecRef()
		e.remount()
		if got := SpaceOf(e.fs); got != empty {
			t.Fatalf("request %d: %d blocks hold no metadata in the empty volume, %d at the end", n, empty, got)
		}
		e.must(e.fs.store.Verify())
		e.must(e.fs.Close())
		if err := checkVolume(e.dev); err != nil {
			t.Fatalf("request %d: %v", n, err)
		}
		e.fs = nil
		denied += failures
		if asked <= n {
			break
		}
		if n > 1000 {
			t.Fatal("the workload never ends")
		}
	}
	if denied < 10 {
		t.Errorf("%d requests were denied", denied)
	}
}

// TestEveryRequestToTheDeviceFails lets each request of a workload fail, once
// or from then on: with an error of the medium, a timeout, or because the device has
// become shorter. Calls fail with an I/O error or, once the volume has turned
// read-only, say that; reading goes on; and the next mount finds all that was
// synced before.
func TestEveryRequestToTheDeviceFails(t *testing.T) {
	for _, kind := range []string{"once", "for ever", "timeout", "shorter"} {
		t.Run(kind, func(t *testing.T) {
			readOnly := 0
			for n := 0; ; n++ {
				if asked := failRequest(t, kind, n, &readOnly); asked <= n {
					break
				}
			}
			if readOnly == 0 {
				t.Error("no failure made the volume read-only")
			}
		})
	}
}

func failRequest(t *testing.T, kind string, n int, readOnly *int) (asked int) {
	t.Helper()
	logged := ""
	d := &faultyDevice{}
	e := newEnv(t, 16<<20)
	root := e.fs.Root()
	synced := pattern(7, 60000)
	f := e.create(root, "synced", ModeRegular|0o644)
	e.write(f, 0, synced, 0)
	f.DecRef()
	root.DecRef()
	e.must(e.fs.Close())
	d.BlockDevice = e.dev
	e.dev = d
	opts := e.testOptions()
	opts.Logf = func(text string, args ...any) { logged += fmt.Sprintf(text, args...) + "\n" }
	var err error
	e.fs, err = Mount(d, opts)
	e.must(err)
	failure := nvme.ErrMedia
	if kind == "timeout" {
		failure = nvme.ErrTimeout
	}
	d.set(func(r *nvme.Request) error {
		if r.Op == nvme.OpRead {
			return nil
		}
		asked++
		failing := asked-1 == n || kind == "for ever" && asked > n
		if kind == "shorter" {
			failing = asked > n && r.OffsetBytes >= 2<<20
		}
		if failing {
			return failure
		}
		return nil
	})
	root = e.fs.Root()
	for _, s := range faultWorkload {
		if err := s.do(e, root); err != nil && !errors.Is(err, failure) && !errors.Is(err, ErrIO) && !errors.Is(err, ErrReadOnly) {
			t.Fatalf("request %d: %s: %v", n, s.name, err)
		}
	}
	if e.fs.ReadOnly() {
		if !bytes.Contains([]byte(logged), []byte("read-only")) || !bytes.Contains([]byte(logged), []byte(failure.Error())) {
			t.Fatalf("request %d: the volume is read-only, and the log says %q", n, logged)
		}
		if err := root.Fsync(nil, false); !errors.Is(err, ErrIO) {
			t.Fatalf("request %d: a sync of the read-only volume: %v", n, err)
		}
	}
	f = e.lookup(root, "synced")
	f.dropAllPages()
	e.expect(f, 0, synced, 0)
	f.DecRef()
	root.DecRef()
	err = e.fs.Close()
	if failed, _ := e.fs.store.ReadOnly(); failed {
		*readOnly++
		if err == nil {
			t.Fatalf("request %d: closing the read-only volume reported nothing", n)
		}
	}
	d.set(nil)
	if err := checkVolume(e.dev); err != nil {
		t.Fatalf("request %d: %v", n, err)
	}
	e.mount()
	root = e.fs.Root()
	f = e.lookup(root, "synced")
	e.expect(f, 0, synced, 0)
	f.DecRef()
	root.DecRef()
	e.must(e.fs.store.Verify())
	e.must(e.fs.Close())
	e.fs = nil
	return asked
}

// TestFillAndEmptyAThousandTimes fills a small volume and empties it again:
// no block may get lost, and as much must fit each time.
func TestFillAndEmptyAThousandTimes(t *testing.T) {
	e := newEnv(t, 8<<20)
	root := e.fs.Root()
	defer root.DecRef()
	var space uint64
	var most int64
	for round := range 1000 {
		f := e.create(root, "f", ModeRegular|0o644)
		var size int64
		if round%10 == 0 {
			size = e.fill(f, 64<<10, []IOFlags{0, IODirect}[round/10%2])
		} else {
			for step := int64(1 << 20); step >= BlockSizeBytes; {
				if err := f.Fallocate(0, size, step); err == nil {
					size += step
				} else if step >>= 1; !errors.Is(err, ErrNoSpace) {
					t.Fatal(err)
				}
			}
		}
		if most == 0 {
			most = size
		}
		if diff := most - size; diff > 64*BlockSizeBytes || diff < -64*BlockSizeBytes {
			t.Fatalf("round %d: %d bytes went in, %d in the first round", round, size, most)
		}
		if round%3 == 0 {
			e.must(f.Truncate(0))
		}
		e.must(root.Unlink("f", nil))
		f.DecRef()
		e.must(e.fs.Sync(nil))
		if round == 0 {
			space = SpaceOf(e.fs)
		}
		// The flusher may have been the last to hold the file.
		for deadline := time.Now().Add(time.Minute); SpaceOf(e.fs) != space; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("round %d: %d blocks hold no metadata, %d after the first round", round, SpaceOf(e.fs), space)
			}
		}
	}
	e.must(e.fs.store.Verify())
}
