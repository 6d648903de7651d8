package store

import (
	"cmp"
	"slices"

	"runsc-fs/blobfs/format"
	"runsc-fs/nvme"
)

// With Options.Discard, runs that become allocatable because the transaction that
// freed them is durable are kept back until Discard has told the device that they
// hold nothing. That is a hint, so nobody waits for it: who needs space gets it
// first, and what does not fit into the list is not told.
const (
	maxDiscardRuns  = 1 << 16 // waiting: 1 MiB of memory
	discardRequests = 32      // of one batch
)

// discardList are the runs that wait. Their blocks are held.
type discardList struct {
	on     bool
	runs   []format.Run
	blocks int64 // their sum
	sorted bool
}

// releaseFreedLocked makes a run allocatable that was freed, at once or after it
// has been discarded.
func (a *allocator) releaseFreedLocked(r format.Run) {
	d := &a.discard
	if !d.on || len(d.runs) >= maxDiscardRuns {
		a.releaseLocked(r)
		return
	}
	d.runs = append(d.runs, r)
	d.blocks += int64(r.Blocks)
	d.sorted = false
}

// dropDiscardsLocked makes allocatable what waits, and reports whether that was
// anything.
func (a *allocator) dropDiscardsLocked() bool {
	d := &a.discard
	if len(d.runs) == 0 {
		return false
	}
	for _, r := range d.runs {
		a.releaseLocked(r)
	}
	d.runs, d.blocks = d.runs[:0], 0
	return true
}

// Discard tells the device of the runs that are waiting, and returns how many
// blocks they were. Other stores than those with Options.Discard have none. A
// device that refuses is not told any more.
func (s *Store) Discard() (blocks uint64, err error) {
	s.discardMu.Lock()
	defer s.discardMu.Unlock()
	a := s.alloc
	a.mu.Lock()
	left := a.discard.blocks // what comes meanwhile waits for the next call
	a.mu.Unlock()
	for left > 0 {
		if err := s.writable(); err != nil {
			return blocks, err
		}
		var batch [discardRequests]format.Run
		n := a.takeDiscards(&batch)
		if n == 0 {
			break
		}
		var reqs [discardRequests]nvme.Request
		for i, r := range batch[:n] {
			reqs[i] = nvme.Request{Op: nvme.OpDeallocate, OffsetBytes: r.Start.OffsetBytes(), LengthBytes: int64(r.Blocks) * format.BlockSizeBytes}
			left -= int64(r.Blocks)
			blocks += r.Blocks
		}
		err := s.dev.Do(reqs[:n])
		for _, r := range batch[:n] {
			a.releaseTrimmed(r)
		}
		if err != nil {
			a.mu.Lock()
			a.discard.on = false
			a.dropDiscardsLocked()
			a.mu.Unlock()
			s.logf("blobfs: freed blocks are not discarded any more: %v", err)
			return blocks, err
		}
	}
	return blocks, nil
}

// takeDiscards moves runs of at most trimStepBlocks in all from the list to what
// is being deallocated, and returns their number. Nearly all space must not be
// there: then the list is given up.
func (a *allocator) takeDiscards(batch *[discardRequests]format.Run) (n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	d := &a.discard
	d.sort()
	room := min(trimStepBlocks, a.spareLocked()/8)
	if room <= 0 {
		a.dropDiscardsLocked()
	}
	for n < len(batch) && room > 0 && len(d.runs) > 0 {
		last := &d.runs[len(d.runs)-1]
		take := min(int64(last.Blocks), room)
		last.Blocks -= uint64(take)
		batch[n] = format.Run{Start: last.End(), Blocks: uint64(take)}
		if last.Blocks == 0 {
			d.runs = d.runs[:len(d.runs)-1]
		}
		n++
		room -= take
		d.blocks -= take
		a.trimming += take
	}
	return n
}

// sort brings the runs in order and joins neighbours that lie in one group.
func (d *discardList) sort() {
	if d.sorted {
		return
	}
	slices.SortFunc(d.runs, func(x, y format.Run) int { return cmp.Compare(x.Start, y.Start) })
	out := d.runs[:0]
	for _, r := range d.runs {
		if n := len(out); n > 0 && out[n-1].End() == r.Start {
			if g, _ := format.GroupOf(out[n-1].Start); r.End() <= format.GroupStart(g+1) {
				out[n-1].Blocks += r.Blocks
				continue
			}
		}
		out = append(out, r)
	}
	d.runs, d.sorted = out, true
}
