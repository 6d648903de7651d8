package blobfs

import (
	"testing"
	"testing/synctest"
	"time"

	"runsc-fs/nvme"
	"runsc-fs/nvme/crashdev"
)

// TestPeriodicCommit writes without a sync, and cuts the power before and after
// the interval between background commits: the default one, and another.
func TestPeriodicCommit(t *testing.T) {
	for _, interval := range []time.Duration{0, 30 * time.Second} {
		synctest.Test(t, func(t *testing.T) { testPeriodicCommit(t, interval) })
	}
}

// testPeriodicCommit runs in a bubble, whose clock goes as fast as it can.
func testPeriodicCommit(t *testing.T, interval time.Duration) {
	disk, err := crashdev.New(crashdev.Options{SizeBytes: 16 << 20})
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
	opts.CommitInterval = interval
	if e.fs, err = Mount(e.dev, opts); err != nil {
		t.Fatal(err)
	}
	if interval == 0 {
		interval = 5 * time.Second
	}
	root := e.fs.Root()
	data := pattern(1, 50000)
	f := e.create(root, "written", ModeRegular|0o644)
	e.write(f, 0, data, 0)
	mapped := e.create(root, "mapped", ModeRegular|0o644)
	e.write(mapped, 0, data, 0)
	e.must(mapped.Fsync(nil, false))
	run, err := mapped.Fault(0, BlockSizeBytes, true)
	e.must(err)
	copy(arena.Bytes()[run.ArenaOffset:], "stored")

	time.Sleep(interval - time.Second)
	synctest.Wait()
	before := disk.Image(crashdev.Crash{Point: disk.Points(), Seed: 0})
	time.Sleep(time.Second)
	synctest.Wait()
	after := disk.Image(crashdev.Crash{Point: disk.Points(), Seed: 0})
	f.DecRef()
	mapped.DecRef()
	root.DecRef()
	e.must(e.fs.Close())

	for _, c := range []struct {
		name   string
		disk   *crashdev.Disk
		bytes  int64
		stored string
	}{{"before", before, 0, string(data[:6])}, {"after", after, int64(len(data)), "stored"}} {
		e := &env{t: t, dev: c.disk.Device(arena), now: 1 << 61}
		e.mount()
		root := e.fs.Root()
		f := e.lookup(root, "written")
		if f.Size() != c.bytes {
			t.Errorf("%s the interval of %v: %d bytes, not %d", c.name, interval, f.Size(), c.bytes)
		}
		e.expect(f, 0, data[:c.bytes], 0)
		mapped := e.lookup(root, "mapped")
		if got := e.read(mapped, 0, 6, 0); string(got) != c.stored {
			t.Errorf("%s the interval of %v: %q in the mapped file, not %q", c.name, interval, got, c.stored)
		}
		f.DecRef()
		mapped.DecRef()
		root.DecRef()
		e.must(e.fs.Close())
	}
}
