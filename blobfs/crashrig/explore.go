package crashrig

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"

	"runsc-fs/blobfs"
	"runsc-fs/blobfs/fsck"
	"runsc-fs/nvme"
	"runsc-fs/nvme/crashdev"
)

const (
	imageArenaBytes = 12 << 20
	imageCacheBytes = 1 << 20
)

// Stats counts what was explored. All fields may be used concurrently.
type Stats struct {
	Programs atomic.Int64
	Points   atomic.Int64
	Judged   atomic.Int64 // pairs of an image and a point, compared with the model
	Distinct atomic.Int64 // images that differ from all others
	Again    atomic.Int64 // images of a second power cut, during recovery
	seen     sync.Map     // sums of images
}

func (s *Stats) String() string {
	return fmt.Sprintf("%d programs, %d points, %d judgements of %d distinct crash states, %d with a second power cut",
		s.Programs.Load(), s.Points.Load(), s.Judged.Load(), s.Distinct.Load(), s.Again.Load())
}

func (s *Stats) count(sum uint64) {
	if _, there := s.seen.LoadOrStore(sum, true); !there {
		s.Distinct.Add(1)
	}
}

// Explorer looks at what power cuts leave. It belongs to one goroutine.
type Explorer struct {
	Stats *Stats
	// Random is the number of random images at each point, besides the
	// systematic ones.
	Random int
	// Extra, if not nil, looks at each image that is as the model wants it, with
	// the last number that was acknowledged before the cut.
	Extra func(fs *blobfs.FS, acked int) error

	arena *nvme.Arena
}

// NewExplorer returns an Explorer, which must be closed.
func NewExplorer(stats *Stats) (*Explorer, error) {
	arena, err := nvme.NewArena(nvme.ArenaOptions{SizeBytes: imageArenaBytes, KeepFreed: true})
	return &Explorer{Stats: stats, arena: arena}, err
}

// Close gives the memory back.
func (x *Explorer) Close() error { return x.arena.Close() }

// Crashed is a violation: what a power cut has left is not what must be there.
type Crashed struct {
	Crash crashdev.Crash
	Of    int // points there are
	Err   error
}

func (c *Crashed) Error() string { return fmt.Sprintf("%v of %d: %v", c.Crash, c.Of, c.Err) }

func (c *Crashed) Unwrap() error { return c.Err }

// systematic bounds the seeds of images that are built without chance.
const systematic = 10

// Explore looks at the power cuts of a disk on which programs ran side by
// side, or one alone.
func (x *Explorer) Explore(disk *crashdev.Disk, seed uint64, hs ...*History) error {
	x.Stats.Programs.Add(1)
	rng := rand.New(rand.NewPCG(seed, 0xc4a5))
	judged := map[uint64]*recovery{}
	points := disk.Points()
	for point := range points + 1 {
		x.Stats.Points.Add(1)
		uncertain := len(disk.Uncertain(point))
		seeds := []uint64{0}
		for k := uint64(1); uncertain > 0 && k < min(systematic, uint64(2*uncertain+2)); k++ {
			seeds = append(seeds, k)
		}
		for range x.Random {
			if r := rng.Uint64(); uncertain > 0 {
				seeds = append(seeds, r)
			}
		}
		for _, s := range seeds {
			crash := crashdev.Crash{Point: point, Seed: s}
			if err := x.judge(disk, crash, judged, hs); err != nil {
				return &Crashed{crash, points, err}
			}
		}
	}
	return nil
}

// Sample is Explore with n images at random points.
func (x *Explorer) Sample(disk *crashdev.Disk, seed uint64, n int, hs ...*History) error {
	x.Stats.Programs.Add(1)
	judged := map[uint64]*recovery{}
	last := -1
	for crash := range disk.Samples(seed, n) {
		if crash.Point != last {
			x.Stats.Points.Add(1)
			last = crash.Point
		}
		if err := x.judge(disk, crash, judged, hs); err != nil {
			return &Crashed{crash, disk.Points(), err}
		}
	}
	return nil
}

// One looks at one image.
func (x *Explorer) One(disk *crashdev.Disk, crash crashdev.Crash, hs ...*History) error {
	if err := x.judge(disk, crash, map[uint64]*recovery{}, hs); err != nil {
		return &Crashed{crash, disk.Points(), err}
	}
	return nil
}

// recovery is what was found in an image; programs may leave the same one at
// several points.
type recovery struct {
	snapshots []*snapshot
	again     [][]*snapshot // after a second power cut
	err       error
}

func (x *Explorer) judge(disk *crashdev.Disk, crash crashdev.Crash, judged map[uint64]*recovery, hs []*History) error {
	img := disk.Image(crash)
	sum := img.Sum()
	r := judged[sum]
	if r == nil {
		x.Stats.count(sum)
		r = x.recover(img, crash, hs)
		judged[sum] = r
	}
	x.Stats.Judged.Add(1)
	if r.err != nil {
		return r.err
	}
	for k, h := range hs {
		if err := h.compare(crash.Point, r.snapshots[k]); err != nil {
			return err
		}
		for _, s := range r.again {
			if err := h.compare(crash.Point, s[k]); err != nil {
				return fmt.Errorf("after a second power cut, during recovery: %w", err)
			}
		}
	}
	return nil
}

// recover checks an image, mounts it and takes snapshots. For some images it
// tries a second power cut while the first is being recovered from, and checks
// what mounting and closing has left.
func (x *Explorer) recover(img *crashdev.Disk, crash crashdev.Crash, hs []*History) *recovery {
	rng := rand.New(rand.NewPCG(crash.Seed, uint64(crash.Point)))
	r := &recovery{}
	if r.err = x.check(img); r.err != nil {
		return r
	}
	var acked int
	for _, h := range hs {
		for _, a := range h.acks {
			if a.point <= crash.Point {
				acked = a.value
			}
		}
	}
	thorough := rng.IntN(8) == 0
	if r.snapshots, r.err = x.snapshots(img, acked, hs); r.err != nil || !thorough {
		return r
	}
	if r.err = x.check(img); r.err != nil {
		r.err = fmt.Errorf("after recovery: %w", r.err)
		return r
	}
	second := img.Image(crashdev.Crash{Point: rng.IntN(img.Points() + 1), Seed: rng.Uint64()})
	x.Stats.Again.Add(1)
	x.Stats.count(second.Sum())
	err := x.check(second)
	var s []*snapshot
	if err == nil {
		s, err = x.snapshots(second, acked, hs)
	}
	if err != nil {
		r.err = fmt.Errorf("after a second power cut, during recovery: %w", err)
	}
	r.again = append(r.again, s)
	return r
}

// check runs the independent checker, to which only notes are no defects.
func (x *Explorer) check(img *crashdev.Disk) error {
	report, err := fsck.Check(img.Device(x.arena), fsck.Options{})
	if err != nil {
		return fmt.Errorf("fsck: %w", err)
	}
	for _, f := range report.Findings {
		if f.Severity > fsck.Note {
			return fmt.Errorf("fsck: %v", &f)
		}
	}
	return nil
}

func (x *Explorer) snapshots(img *crashdev.Disk, acked int, hs []*History) (list []*snapshot, err error) {
	opts := mountOptions(imageCacheBytes)
	opts.Logf = func(text string, args ...any) { err = fmt.Errorf("logged: "+text, args...) }
	fs, err2 := blobfs.Mount(img.Device(x.arena), opts)
	if err2 != nil {
		return nil, fmt.Errorf("mounting: %w", err2)
	}
	root := fs.Root()
	for _, h := range hs {
		s, err2 := snapshotBelow(root, h.base)
		if err2 != nil {
			err = err2
		}
		if s != nil {
			s.blocks = int(fs.StatFS().TotalBlocks)
		}
		list = append(list, s)
	}
	if x.Extra != nil && err == nil {
		err = x.Extra(fs, acked)
	}
	root.DecRef()
	if err2 := fs.Close(); err == nil {
		err = err2
	}
	return list, err
}

func snapshotBelow(root *blobfs.Inode, base string) (*snapshot, error) {
	if base == "" {
		return takeSnapshot(root)
	}
	dir, err := root.Lookup(base)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", base, err)
	}
	defer dir.DecRef()
	return takeSnapshot(dir)
}
