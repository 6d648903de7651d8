package blobfs

import (
	"testing"
	"time"
)

// TestTimesAreAsCoarseAsNobodyLooks pins when a change of a file shows by its
// times: at once to who has looked at them, and otherwise once in a grain; and
// that no later change of another file ever looks older.
func TestTimesAreAsCoarseAsNobodyLooks(t *testing.T) {
	const ms = int64(time.Millisecond)
	now := 1000 * ms
	e := newEnv(t, 32<<20)
	e.must(e.fs.Close())
	opts := e.testOptions()
	opts.Now, opts.TimeGrain = func() int64 { return now }, 4*time.Millisecond
	var err error
	e.fs, err = Mount(e.dev, opts)
	e.must(err)
	root := e.fs.Root()
	defer root.DecRef()
	f, g := e.create(root, "f", ModeRegular|0o644), e.create(root, "g", ModeRegular|0o644)
	defer f.DecRef()
	defer g.DecRef()
	mtime := func(i *Inode) int64 {
		i.mu.Lock()
		defer i.mu.Unlock()
		return i.mtime.Load()
	}
	change := func(i *Inode, at, want int64) {
		t.Helper()
		now = at
		e.write(i, 0, []byte("x"), 0)
		if got := mtime(i); got != want {
			t.Errorf("changed at %d ns: mtime is %d, expected %d", at, got, want)
		}
	}
	change(f, 1001*ms, 1000*ms)
	change(f, 1003*ms, 1000*ms)
	change(f, 1007*ms, 1004*ms)
	if seen := f.Attr().Mtime; seen != 1004*ms {
		t.Fatalf("mtime is %d", seen)
	}
	change(f, 1007*ms+5, 1007*ms+5) // seen, so it must differ
	change(f, 1007*ms+9, 1007*ms+5)
	change(g, 1007*ms+8, 1007*ms+5) // not before f's, which was changed earlier
	change(g, 1008*ms, 1008*ms)
	f.Attr()
	change(f, 1009*ms, 1008*ms) // differs already
	change(f, 500*ms, 500*ms)   // the clock was set back

	// What has not got a new time has nothing to log.
	e.must(f.Fsync(nil, false))
	records := e.fs.store.Stats().LogRecords
	change(f, 501*ms, 500*ms)
	e.must(f.Fsync(nil, false))
	if n := e.fs.store.Stats().LogRecords - records; n != 0 {
		t.Errorf("%d log records for a change within one grain", n)
	}
}
