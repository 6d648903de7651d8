package fsck

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"runsc-fs/blobfs"
	"runsc-fs/blobfs/store"
)

// workload does random things to a file system. What fails with one of the
// errors that a user can provoke has had no effect.
type workload struct {
	t   *testing.T
	rnd *rand.Rand
	dev *memDevice
	fs  *blobfs.FS
	now int64

	dirs  []*blobfs.Inode // with references
	open  []*blobfs.Inode // files with references, with and without names
	names []string
}

func newWorkload(t *testing.T, seed uint64, blocks uint64) *workload {
	t.Helper()
	w := &workload{t: t, rnd: rand.New(rand.NewPCG(seed, 1)), dev: newMemDevice(blocks), now: 1 << 60}
	w.dev.volatile = true
	if err := blobfs.Mkfs(w.dev, blobfs.MkfsOptions{Label: "random"}); err != nil {
		t.Fatal(err)
	}
	for i := range 40 {
		w.names = append(w.names, fmt.Sprintf("name%d%s", i, strings.Repeat("x", i*5)))
	}
	w.mount()
	return w
}

func (w *workload) mount() {
	w.t.Helper()
	fs, err := blobfs.Mount(w.dev, blobfs.MountOptions{
		CacheBytes: 4 << 20, NodeCacheBytes: 1 << 20, CommitInterval: -1,
		Now: func() int64 { w.now += 1000; return w.now },
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.fs = fs
	w.dirs = []*blobfs.Inode{fs.Root()}
}

func (w *workload) forget() {
	for _, i := range append(w.dirs, w.open...) {
		i.DecRef()
	}
	w.dirs, w.open = nil, nil
}

func (w *workload) close() {
	w.t.Helper()
	w.forget()
	if err := w.fs.Close(); err != nil {
		w.t.Fatal(err)
	}
}

// benign are the errors that random calls meet on a healthy volume.
var benign = []error{
	blobfs.ErrExist, blobfs.ErrNotExist, blobfs.ErrNotDir, blobfs.ErrIsDir, blobfs.ErrNotEmpty, blobfs.ErrNoSpace,
	blobfs.ErrInvalid, blobfs.ErrLoop, blobfs.ErrNoXattr, blobfs.ErrNotPermitted, blobfs.ErrStale, blobfs.ErrNotSupported,
	store.ErrNoSpace,
}

func (w *workload) ok(err error) bool {
	if err == nil {
		return true
	}
	for _, e := range benign {
		if errors.Is(err, e) {
			return false
		}
	}
	w.t.Helper()
	w.t.Fatalf("unexpected error: %v", err)
	return false
}

func (w *workload) dir() *blobfs.Inode { return w.dirs[w.rnd.IntN(len(w.dirs))] }
func (w *workload) name() string       { return w.names[w.rnd.IntN(len(w.names))] }

func (w *workload) file() *blobfs.Inode {
	if len(w.open) == 0 {
		return nil
	}
	return w.open[w.rnd.IntN(len(w.open))]
}

func (w *workload) keep(i *blobfs.Inode) {
	list := &w.open
	if i.Attr().Mode&blobfs.ModeTypeMask == blobfs.ModeDir {
		list = &w.dirs
	}
	*list = append(*list, i)
	if len(*list) > 12 {
		n := 1 + w.rnd.IntN(len(*list)-1) // the root stays
		(*list)[n].DecRef()
		(*list)[n] = (*list)[len(*list)-1]
		*list = (*list)[:len(*list)-1]
	}
}

type source struct{ rnd *rand.Rand }

func (s source) CopyIn(b []byte) (int, error) {
	v := byte(s.rnd.Uint32()) | 1
	for i := range b {
		b[i] = v
	}
	return len(b), nil
}

func (w *workload) create() {
	n := blobfs.NewInode{Mode: blobfs.ModeRegular | 0o644}
	switch w.rnd.IntN(8) {
	case 0:
		n.Mode = blobfs.ModeDir | 0o755
	case 1:
		n.Mode, n.Target = blobfs.ModeSymlink|0o777, strings.Repeat("t/", 1+w.rnd.IntN(2000))
	case 2:
		n.Mode, n.Rdev = blobfs.ModeChar|0o600, 0x105
	case 3:
		n.Xattrs = []blobfs.Xattr{{Name: "security.x", Value: make([]byte, w.rnd.IntN(3000))}}
	case 4:
		if i, err := w.dir().CreateUnlinked(n); w.ok(err) {
			w.keep(i)
		}
		return
	}
	if i, err := w.dir().Create(w.name(), n); w.ok(err) {
		w.keep(i)
	}
}

func (w *workload) changeData() {
	f := w.file()
	if f == nil || f.Attr().Mode&blobfs.ModeTypeMask != blobfs.ModeRegular {
		return
	}
	off, n := int64(w.rnd.IntN(1<<20)), int64(1+w.rnd.IntN(200<<10))
	if w.rnd.IntN(4) == 0 {
		off = 0
	}
	var err error
	switch w.rnd.IntN(10) {
	case 0, 1, 2:
		_, err = f.WriteAt(source{w.rnd}, off, n, 0)
	case 3:
		_, err = f.WriteAt(source{w.rnd}, off&^4095, (n+4095)&^4095, blobfs.IODirect)
	case 4:
		_, err = f.WriteAt(source{w.rnd}, off, n%10000+1, blobfs.IODSync)
	case 5:
		_, _, err = f.Append(source{w.rnd}, n, 0)
	case 6:
		err = f.Truncate(off)
	case 7:
		err = f.Fallocate([]blobfs.FallocateMode{
			0, blobfs.FallocKeepSize, blobfs.FallocKeepSize | blobfs.FallocPunchHole,
			blobfs.FallocZeroRange, blobfs.FallocKeepSize | blobfs.FallocZeroRange,
		}[w.rnd.IntN(5)], off, n)
	case 8:
		err = f.Fsync(nil, w.rnd.IntN(2) == 0)
	case 9:
		err = f.SetAttr(blobfs.AttrUID|blobfs.AttrMtimeNow, &blobfs.Attr{UID: w.rnd.Uint32()})
	}
	w.ok(err)
}

func (w *workload) changeXattrs() {
	i := w.dir()
	if f := w.file(); f != nil && w.rnd.IntN(3) > 0 {
		i = f
	}
	name := fmt.Sprintf("user.%d", w.rnd.IntN(6))
	if w.rnd.IntN(3) == 0 {
		w.ok(i.RemoveXattr(name))
		return
	}
	w.ok(i.SetXattr(name, make([]byte, w.rnd.IntN(5000)), 0))
}

// step does one random thing.
func (w *workload) step() {
	w.t.Helper()
	switch w.rnd.IntN(20) {
	case 0, 1, 2, 3:
		w.create()
	case 4, 5, 6, 7, 8, 9:
		w.changeData()
	case 10, 11:
		w.changeXattrs()
	case 12, 13:
		w.ok(w.dir().Unlink(w.name(), nil))
	case 14:
		w.ok(w.dir().Rmdir(w.name(), nil))
	case 15:
		if f := w.file(); f != nil {
			w.ok(w.dir().Link(w.name(), f))
		}
	case 16, 17:
		flags := []blobfs.RenameFlags{0, 0, 0, blobfs.RenameNoReplace, blobfs.RenameExchange, blobfs.RenameWhiteout}[w.rnd.IntN(6)]
		w.ok(w.fs.Rename(w.dir(), w.name(), w.dir(), w.name(), flags))
	case 18:
		if i, err := w.dir().Lookup(w.name()); w.ok(err) {
			w.keep(i)
		}
	case 19:
		w.ok(w.fs.Sync(nil))
	}
}

// wantSound accepts only what a healthy volume, perhaps after a crash, may show.
func wantSound(t *testing.T, r *Report, when string) {
	t.Helper()
	if r.Clean && r.Complete {
		return
	}
	for i := range r.Findings {
		t.Errorf("%v", &r.Findings[i])
	}
	t.Fatalf("%s: %d errors, %d warnings", when, r.Errors, r.Warnings)
}

// TestRandomWorkload checks volumes that were closed, and as they are while mounted.
func TestRandomWorkload(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprintf("seed%d", seed), func(t *testing.T) {
			w := newWorkload(t, seed, 16384)
			for round := range 3 {
				for range 300 {
					w.step()
				}
				w.ok(w.fs.Sync(nil))
				wantSound(t, check(t, w.dev, Options{}), fmt.Sprintf("round %d, mounted", round))
				w.close()
				r := check(t, w.dev, Options{})
				wantSound(t, r, fmt.Sprintf("round %d, closed", round))
				if !r.Closed || r.Counters.LogRecords > 0 || r.Counters.Orphans > 0 {
					t.Errorf("after closing: closed %v, %d log records, %d orphans", r.Closed, r.Counters.LogRecords, r.Counters.Orphans)
				}
				w.mount()
			}
			w.close()
		})
	}
}

// TestLyingDevices checks that the checker notices what a device breaks that
// acknowledges flushes, or forced writes, without doing them.
func TestLyingDevices(t *testing.T) {
	for name, tc := range map[string]struct {
		lie  func(d *memDevice)
		work func(w *workload)
		want Code
	}{
		"flush": {func(d *memDevice) { d.ignoreFlush = true }, func(w *workload) {
			for range 100 {
				w.step()
			}
			w.close() // makes a checkpoint
			w.mount()
		}, CodeNodeCorrupt},
		"FUA": {func(d *memDevice) { d.ignoreFUA = true }, func(w *workload) {
			for range 10 { // without data there is no flush between records
				w.create()
				w.ok(w.fs.Sync(nil))
			}
		}, CodeLogBroken},
	} {
		t.Run(name, func(t *testing.T) {
			found := map[Code]int{}
			for seed := range uint64(3) {
				w := newWorkload(t, seed, 4096)
				tc.lie(w.dev)
				cuts := rand.New(rand.NewPCG(seed, 3))
				for range 6 {
					tc.work(w)
					r, err := Check(w.dev.crash(cuts), Options{})
					if err != nil {
						t.Fatal(err)
					}
					for _, f := range r.Findings {
						found[f.Code]++
					}
				}
				w.close()
			}
			if found[tc.want] == 0 {
				t.Errorf("found %v, but no %s", found, tc.want)
			}
		})
	}
}
