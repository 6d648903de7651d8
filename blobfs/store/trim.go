package store

import (
	"runsc-fs/blobfs/format"
	"runsc-fs/nvme"
)

// trimStepBlocks bounds what Trim deallocates with one command, and so how long
// the blocks cannot be allocated: 8 MiB.
const trimStepBlocks = 2048

// Trim tells the device that the free blocks in [from, to) hold nothing, and
// returns how many they are. Runs of less than minBlocks are left out, and
// nearly everything on a nearly full volume: blocks that are being deallocated
// cannot be allocated, and must not be missing. ErrReadOnly, ErrIO.
func (s *Store) Trim(from, to, minBlocks uint64) (blocks uint64, err error) {
	to = min(to, s.VolumeBlocks())
	wanted := minBlocks
	for from < to {
		if err := s.writable(); err != nil {
			return blocks, err
		}
		run, left := s.alloc.holdFree(&from, to, minBlocks, wanted)
		// What is left of a run that was long enough is wanted, however short.
		wanted = minBlocks
		if left > 0 {
			wanted = 1
		}
		if run.Blocks == 0 {
			continue
		}
		req := [1]nvme.Request{{Op: nvme.OpDeallocate, OffsetBytes: run.Start.OffsetBytes(), LengthBytes: int64(run.Blocks) * format.BlockSizeBytes}}
		err := s.dev.Do(req[:])
		s.alloc.releaseTrimmed(run)
		if err != nil {
			return blocks, err
		}
		blocks += run.Blocks
	}
	return blocks, nil
}

// holdFree makes the beginning of the first run of allocatable blocks in
// [*from, to) provisional, that has minBlocks, or wanted if it is at *from. It
// moves *from to where to go on, and returns how many blocks of the run are left
// there. It goes no further than to the end of a group, and may find nothing.
func (a *allocator) holdFree(from *uint64, to, minBlocks, wanted uint64) (run format.Run, left int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	g, i := format.GroupOf(format.Addr(*from))
	base := format.GroupStart(g).Block()
	end := int(min(to-base, format.GroupBlocks))
	*from = base + uint64(end)
	b, err := a.loadLocked(g)
	if err != nil {
		return run, 0 // out of use, which has been logged
	}
	for first := nextFree(b, i); first < end; {
		n := freeRunAt(b, first, end-first)
		if first != i {
			wanted = minBlocks
		}
		if uint64(n) < wanted {
			first = nextFree(b, first+n)
			continue
		}
		take := min(int64(n), trimStepBlocks, a.spareLocked()/8)
		if take <= 0 {
			break
		}
		run = format.Run{Start: format.Addr(base + uint64(first)), Blocks: uint64(take)}
		if err := a.applyLocked(run, freeToHeld); err != nil {
			a.s.fail("trimming free blocks", err)
			return format.Run{}, 0
		}
		a.trimming += take
		*from = run.End().Block()
		return run, int64(n) - take
	}
	return run, 0
}

func (a *allocator) releaseTrimmed(run format.Run) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.trimming -= int64(run.Blocks)
	a.releaseLocked(run)
}
