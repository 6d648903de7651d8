package store

import (
	"fmt"
	"math/bits"
	"sync"

	"runsc-fs/blobfs/format"
)

const groupWords = format.GroupBlocks / 64

// Frozen: a group's bits are whole words.
var _ = [1]struct{}{}[format.GroupBlocks%64]

// groupBits are the bitmaps of one group in memory. A block is allocatable if
// it is in neither.
type groupBits struct {
	used [groupWords]uint64 // as the tree in memory has it: goes to disk
	held [groupWords]uint64 // provisional, or freed but not yet durably so
}

// group is what the allocator keeps of each group.
type group struct {
	bits    *groupBits // nil: not loaded
	item    format.GroupItem
	avail   int32 // allocatable blocks
	held    int32 // held blocks
	hasItem bool  // false: pristine
	dirty   bool  // used differs from what item stands for
	writing bool  // a checkpoint is writing the bitmap
	pinned  bool  // the volume is growing: bits has what the item does not say
	bad     bool  // bitmap unusable: nothing is allocated or freed here
	// condemned says that the bitmap on disk must not be used again, even if
	// it should become readable.
	condemned bool
}

// pendingRun is a run that a transaction has freed: allocatable once that
// transaction is durable.
type pendingRun struct {
	run format.Run
	lsn LSN
}

// allocator knows which blocks are in use.
type allocator struct {
	s *Store

	mu     sync.Mutex
	groups []group
	loaded int // groups with bits

	avail    int64 // allocatable blocks of all groups
	reserved int64 // data blocks promised by Reserve
	floor    int64 // blocks kept for metadata; see space.go

	pool     []format.Addr // blocks set aside for nodes: held, not used
	poolKeep int           // how many of them an operation may be counting on
	nodeGoal format.Addr   // where to look for the next ones
	dataGoal format.Addr   // default for data without a goal

	trimming int64 // provisional blocks that Trim or Discard is about to give back
	discard  discardList

	pending       []pendingRun  // freed by transactions, oldest first
	pendingBlocks int64         // their sum
	oldNodes      []format.Addr // nodes that moved or went in this generation
	frozenNodes   []format.Addr // those of the generation that is being written
}

func newAllocator(s *Store) *allocator {
	groups := format.Groups(s.VolumeBlocks())
	a := &allocator{s: s, groups: make([]group, 0, groups)}
	a.discard.on = s.opts.Discard && s.dev.Geometry().Deallocate
	a.addGroups(groups)
	a.nodeGoal = s.sb.LogStart + format.Addr(s.sb.LogBlocks)
	a.dataGoal = a.nodeGoal + format.Addr(s.VolumeBlocks()/64)
	return a
}

// setItem installs a group's item as found in the tree.
func (a *allocator) setItem(g uint64, item format.GroupItem) {
	grp := &a.groups[g]
	a.avail += int64(item.Free) - int64(grp.avail)
	grp.item, grp.hasItem, grp.avail = item, true, int32(item.Free)
}

// loadLocked returns a group's bitmaps, reading them if need be. A group whose
// bitmap cannot be trusted is put aside: the rest of the volume goes on.
func (a *allocator) loadLocked(g uint64) (*groupBits, error) {
	grp := &a.groups[g]
	if grp.bits != nil {
		return grp.bits, nil
	}
	if grp.bad {
		return nil, format.Corruptf("bitmap of group %d is unusable", g)
	}
	b := new(groupBits)
	size := format.GroupSize(g, a.s.VolumeBlocks())
	if err := a.readBits(g, size, b); err != nil {
		grp.bad = true
		a.avail -= int64(grp.avail)
		grp.avail = 0
		a.s.logf("blobfs: blocks of group %d are out of use: %v", g, err)
		return nil, err
	}
	if size < format.GroupBlocks {
		setBits(&b.held, size, format.GroupBlocks-size, true) // behind the end
	}
	grp.bits = b
	if a.loaded++; a.loaded > a.s.maxGroups {
		a.evictLocked(g)
	}
	return b, nil
}

// readBits fills b.used from disk and checks it against the group's item.
func (a *allocator) readBits(g uint64, size int, b *groupBits) error {
	grp := &a.groups[g]
	if !grp.hasItem {
		for _, r := range a.s.sb.FixedRuns(g) {
			_, i := format.GroupOf(r.Start)
			setBits(&b.used, i, int(r.Blocks), true)
		}
		return nil
	}
	var block [format.BlockSizeBytes]byte
	if err := a.s.readBlock(format.BitmapAddr(g, int(grp.item.Slot)), block[:]); err != nil {
		return err
	}
	raw, err := format.DecodeBitmap(block[:], a.s.sb.UUID, g, grp.item)
	if err != nil {
		return err
	}
	bytesToWords(&b.used, raw)
	if countBits(&b.used, size, format.GroupBlocks-size) != 0 {
		return format.Corruptf("bitmap of group %d: blocks behind the end of the volume are in use", g)
	}
	if free := size - countBits(&b.used, 0, size); free != int(grp.item.Free) {
		return format.Corruptf("bitmap of group %d: %d blocks free, the item says %d", g, free, grp.item.Free)
	}
	for _, r := range a.s.sb.FixedRuns(g) {
		_, i := format.GroupOf(r.Start)
		if countBits(&b.used, i, int(r.Blocks)) != int(r.Blocks) {
			return format.Corruptf("bitmap of group %d: fixed %v are free", g, r)
		}
	}
	return nil
}

// evictLocked drops the bitmaps of groups that can be read again, except keep
// and the group before it: a run may reach from one into the other.
func (a *allocator) evictLocked(keep uint64) {
	for g := range a.groups {
		grp := &a.groups[g]
		if grp.bits != nil && uint64(g) != keep && uint64(g)+1 != keep && !grp.dirty && !grp.writing && !grp.pinned && grp.held == 0 {
			grp.bits = nil
			if a.loaded--; a.loaded <= a.s.maxGroups*3/4 {
				return
			}
		}
	}
}

// change is a transition of blocks between states.
type change struct {
	used, held           bool // before
	usedAfter, heldAfter bool // after
}

// The transitions. "Held" blocks are provisional, or freed by something that
// is not durable yet: not in use as far as the disk is concerned, and yet not
// allocatable.
var (
	freeToHeld = change{false, false, false, true}
	heldToFree = change{false, true, false, false}
	heldToUsed = change{false, true, true, false}
	usedToHeld = change{true, false, false, true}
	freeToUsed = change{false, false, true, false}
	usedToFree = change{true, false, false, false}
)

// applyLocked carries out a transition on a run, all or nothing.
func (a *allocator) applyLocked(r format.Run, c change) error {
	if err := format.CheckRun(r, a.s.VolumeBlocks()); err != nil {
		return fmt.Errorf("%w: %w", ErrBadRun, err)
	}
	if r.Blocks > format.GroupBlocks {
		return fmt.Errorf("%w: %v is longer than a group", ErrBadRun, r)
	}
	if err := eachGroup(r, func(g uint64, i, n int) error {
		b, err := a.loadLocked(g)
		if err != nil {
			return err
		}
		if !allBits(&b.used, i, n, c.used) || !allBits(&b.held, i, n, c.held) {
			return fmt.Errorf("%w: %v", ErrBadRun, r)
		}
		return nil
	}); err != nil {
		return err
	}
	return eachGroup(r, func(g uint64, i, n int) error {
		grp := &a.groups[g]
		if c.used != c.usedAfter {
			setBits(&grp.bits.used, i, n, c.usedAfter)
			grp.dirty = true
		}
		if c.held != c.heldAfter {
			setBits(&grp.bits.held, i, n, c.heldAfter)
			if c.heldAfter {
				grp.held += int32(n)
			} else {
				grp.held -= int32(n)
			}
		}
		before, after := !c.used && !c.held, !c.usedAfter && !c.heldAfter
		if before && !after {
			grp.avail -= int32(n)
			a.avail -= int64(n)
		} else if !before && after {
			grp.avail += int32(n)
			a.avail += int64(n)
		}
		return nil
	})
}

// eachGroup calls fn for the part of r in each group that it lies in.
func eachGroup(r format.Run, fn func(g uint64, i, n int) error) error {
	for r.Blocks > 0 {
		g, i := format.GroupOf(r.Start)
		n := min(int(r.Blocks), format.GroupBlocks-i)
		if err := fn(g, i, n); err != nil {
			return err
		}
		r.Start += format.Addr(n)
		r.Blocks -= uint64(n)
	}
	return nil
}

// probeGroups is how many groups with free blocks are searched for a run of
// the full length before the longest one found is taken.
const probeGroups = 8

// takeRunLocked makes up to want contiguous blocks provisional, near goal.
func (a *allocator) takeRunLocked(want int, goal format.Addr) (format.Run, error) {
	want = min(want, format.GroupBlocks)
	if goal.Layer() != 0 || goal.Block() >= a.s.VolumeBlocks() {
		goal = 0
	}
	first, from := format.GroupOf(goal)
	var best format.Run
	var lastErr error
	probed := 0
	for k := range uint64(len(a.groups)) {
		g := (first + k) % uint64(len(a.groups))
		grp := &a.groups[g]
		if grp.avail == 0 {
			continue
		}
		b, err := a.loadLocked(g)
		if err != nil {
			lastErr = err
			continue
		}
		if k > 0 {
			from = 0
		}
		start, n := findRun(b, from, want)
		if n > int(best.Blocks) {
			best = format.Run{Start: format.GroupStart(g) + format.Addr(start), Blocks: uint64(n)}
		}
		probed++
		enough := int(best.Blocks) == want || k == 0 && start == from && n >= goalRun || probed >= probeGroups
		if enough && best.Blocks > 0 {
			break
		}
	}
	if best.Blocks == 0 {
		if lastErr != nil {
			return best, lastErr
		}
		return best, ErrNoSpace
	}
	return best, a.applyLocked(best, freeToHeld)
}

// blameDamage turns a lack of space into what has caused it if that is the
// damage of bitmaps, whose groups are out of use.
func (a *allocator) blameDamage(noSpace error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	for g := range a.groups {
		if a.groups[g].bad {
			return format.Corruptf("bitmap of group %d is damaged, and there is no space outside of it", g)
		}
	}
	return noSpace
}

// goalRun is the length from which a run that begins exactly at the goal is
// taken although a longer one may exist elsewhere.
const goalRun = 16

// findRun looks for want free blocks from index from on, wrapping around. It
// returns the first run that is long enough, or one of at least goalRun that
// begins at from, or else the longest.
func findRun(b *groupBits, from, want int) (start, length int) {
	start, length = from, freeRunAt(b, from, want)
	if length >= min(want, goalRun) {
		return start, length
	}
	for _, part := range [2][2]int{{from + length, format.GroupBlocks}, {0, from}} {
		for i := nextFree(b, part[0]); i < part[1]; {
			n := freeRunAt(b, i, want)
			if n > length {
				start, length = i, n
			}
			if n == want {
				return start, length
			}
			i = nextFree(b, i+n)
		}
	}
	return start, length
}

// nextFree returns the first index from i on whose block is allocatable.
func nextFree(b *groupBits, i int) int {
	w := i / 64
	if w >= groupWords {
		return format.GroupBlocks
	}
	word := ^(b.used[w] | b.held[w]) &^ (1<<(i%64) - 1)
	for word == 0 {
		if w++; w == groupWords {
			return format.GroupBlocks
		}
		word = ^(b.used[w] | b.held[w])
	}
	return w*64 + bits.TrailingZeros64(word)
}

// freeRunAt returns how many blocks from i on are allocatable, at most want.
func freeRunAt(b *groupBits, i, want int) int {
	n := 0
	for n < want && i < format.GroupBlocks {
		w := i / 64
		word := (b.used[w] | b.held[w]) >> (i % 64)
		run := 64 - i%64
		if word != 0 {
			run = min(run, bits.TrailingZeros64(word))
			return min(n+run, want)
		}
		n += run
		i += run
	}
	return min(n, want)
}
