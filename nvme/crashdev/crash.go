package crashdev

import (
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"

	"runsc-fs/nvme"
)

// Crash names one image of a power cut.
//
// With n events that may be lost at Point, the seeds begin systematically: 0
// loses all of them, 1 none, 2 to n+1 one each, n+2 to 2n+1 all but one. All
// other seeds choose at random what survives, in which order, and what is torn.
type Crash struct {
	Point int
	Seed  uint64
}

func (c Crash) String() string { return fmt.Sprintf("crash point %d seed %d", c.Point, c.Seed) }

// Samples builds n images at random points with random seeds, all derived from
// seed, in the order of their points, which is the cheap one.
func (d *Disk) Samples(seed uint64, n int) iter.Seq2[Crash, *Disk] {
	rng := rand.New(rand.NewPCG(seed, 0x5eed))
	points := d.Points()
	all := make([]Crash, n)
	for i := range all {
		all[i] = Crash{Point: rng.IntN(points + 1), Seed: rng.Uint64()}
		if rng.IntN(4) == 0 {
			all[i].Seed = uint64(rng.IntN(16)) // some of the systematic ones
		}
	}
	slices.SortStableFunc(all, func(a, b Crash) int { return a.Point - b.Point })
	return func(yield func(Crash, *Disk) bool) {
		for _, c := range all {
			if !yield(c, d.Image(c)) {
				return
			}
		}
	}
}

// Image builds what a power cut leaves. The disk itself does not change, and
// its Sabotage is not the image's.
func (d *Disk) Image(c Crash) *Disk {
	d.mu.Lock()
	defer d.mu.Unlock()
	opts := d.opts
	opts.Sabotage = nil
	return newDisk(opts, d.imageLocked(c))
}

// PowerCut cuts the power of the disk itself, now: what it loses is gone from
// its content. History begins anew.
func (d *Disk) PowerCut(seed uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.content = d.imageLocked(Crash{Point: len(d.events), Seed: seed})
	d.events, d.frontier = nil, 0
	d.origin = d.content.clone()
	d.durable = d.origin.clone()
}

// Uncertain lists the events that a power cut at point may lose: completed but
// not durable, or in flight.
func (d *Disk) Uncertain(point int) []int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.uncertainLocked(point, d.frontierLocked(point))
}

// frontierLocked is the event before which everything is durable at point:
// where the last completed flush began.
func (d *Disk) frontierLocked(point int) int {
	f := 0
	for i := range d.events[:point] {
		if e := &d.events[i]; e.Op == nvme.OpFlush {
			f = max(f, e.Began)
		}
	}
	return f
}

func (d *Disk) uncertainLocked(point, frontier int) []int {
	var list []int
	for i := frontier; i < len(d.events); i++ {
		e := &d.events[i]
		if e.Op == nvme.OpFlush || (i < point && e.FUA) || (i >= point && e.Began > point) {
			continue
		}
		list = append(list, i)
	}
	return list
}

// durableLocked is the content at a frontier.
func (d *Disk) durableLocked(frontier int) store {
	if frontier < d.frontier {
		d.durable, d.frontier = d.origin.clone(), 0
	}
	for ; d.frontier < frontier; d.frontier++ {
		e := &d.events[d.frontier]
		apply(&d.durable, e, 0, e.LengthBytes)
	}
	return d.durable.clone()
}

func (d *Disk) imageLocked(c Crash) store {
	point := min(max(c.Point, 0), len(d.events))
	frontier := d.frontierLocked(point)
	img := d.durableLocked(frontier)
	uncertain := d.uncertainLocked(point, frontier)

	// Completed FUA writes survive. A unit that one of them wrote never shows
	// an older version: the cache holds only the newest.
	unit := int64(d.opts.AtomicWriteBytes)
	newest := make(map[int64]int)
	for i := frontier; i < point; i++ {
		if e := &d.events[i]; e.FUA {
			apply(&img, e, 0, e.LengthBytes)
			for u := e.OffsetBytes / unit; u*unit < e.OffsetBytes+e.LengthBytes; u++ {
				newest[u] = i
			}
		}
	}
	keep := func(i int, survives func() bool) {
		e := &d.events[i]
		end := e.OffsetBytes + e.LengthBytes
		for at := e.OffsetBytes; at < end; {
			next := min((at/unit+1)*unit, end)
			if later, ok := newest[at/unit]; survives() && (!ok || later < i) {
				apply(&img, e, at-e.OffsetBytes, next-e.OffsetBytes)
			}
			at = next
		}
	}
	always := func() bool { return true }
	n := uint64(len(uncertain))
	switch {
	case c.Seed == 0:
	case c.Seed == 1:
		for _, i := range uncertain {
			keep(i, always)
		}
	case c.Seed < n+2:
		for j, i := range uncertain {
			if uint64(j) != c.Seed-2 {
				keep(i, always)
			}
		}
	case c.Seed < 2*n+2:
		keep(uncertain[c.Seed-n-2], always)
	default:
		d.chanceLocked(rand.New(rand.NewPCG(c.Seed, 1)), uncertain, keep)
	}
	return img
}

// chanceLocked lets chance decide. Extremes are as likely as the middle: a cut
// that loses one of a thousand writes finds other faults than one that loses
// half of them.
func (d *Disk) chanceLocked(rng *rand.Rand, uncertain []int, keep func(int, func() bool)) {
	shares := []float64{0.02, 0.2, 0.5, 0.8, 0.98}
	survive, torn := shares[rng.IntN(len(shares))], []float64{0, 0.1, 0.5, 1}[rng.IntN(4)]
	order := slices.Clone(uncertain)
	switch rng.IntN(3) {
	case 0: // a prefix in order, as a disk without reordering has it
		order = order[:rng.IntN(len(order)+1)]
		survive = 1
	case 1:
		rng.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	}
	for j, i := range order {
		tear := rng.Float64() < torn || (survive == 1 && j == len(order)-1 && rng.IntN(2) == 0)
		switch {
		case rng.Float64() >= survive:
		case !tear:
			keep(i, func() bool { return true })
		default: // units from the front, from the back, or here and there
			units := int(d.events[i].LengthBytes)/d.opts.AtomicWriteBytes + 1
			cut, u, mode := rng.IntN(units+1), 0, rng.IntN(3)
			keep(i, func() bool {
				u++
				switch mode {
				case 0:
					return u <= cut
				case 1:
					return u > cut
				}
				return rng.IntN(2) == 0
			})
		}
	}
}
