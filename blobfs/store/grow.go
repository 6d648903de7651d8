package store

import (
	"fmt"

	"runsc-fs/blobfs/format"
)

// Grow makes the volume as large as sizeBytes allows, which the device must
// have. A volume that is as large already, or larger, stays as it is. When it
// returns, both pairs of superblocks have the new size durably, and only then is
// anything behind the old end allocated: so no superblock that a mount may find
// stands in front of a log, or a tree, that reaches behind its end. A crash
// before leaves the old size or the new one. It makes checkpoints, so it must
// not be called from within Update or View.
func (s *Store) Grow(sizeBytes int64) error {
	if err := s.writable(); err != nil {
		return err
	}
	if have := s.dev.Geometry().SizeBytes(); sizeBytes > have {
		return fmt.Errorf("%w: a volume of %d bytes on a device of %d", ErrBadRange, sizeBytes, have)
	}
	blocks := format.UsableBlocks(uint64(max(sizeBytes, 0)) >> format.BlockShift)
	s.checkpointMu.Lock()
	defer s.checkpointMu.Unlock()
	old := s.VolumeBlocks()
	if blocks <= old {
		return nil
	}
	s.mu.Lock()
	err := s.writable()
	if err == nil {
		err = s.alloc.pinLast(old)
	}
	if err == nil {
		// Of interest to checkpoints only: the item of the last group changes with
		// the superblock.
		s.sb.VolumeBlocks = blocks
	}
	s.mu.Unlock()
	if err != nil {
		return err
	}
	for range 2 {
		if err := s.checkpointLocked(checkpointAlways); err != nil {
			return err // the store has failed: nothing is allocated any more
		}
	}
	s.mu.Lock()
	s.blocks.Store(blocks)
	s.alloc.grow(old, blocks)
	s.setFloor()
	s.mu.Unlock()
	return nil
}

// pinLast keeps the bitmaps of a last group that is not full in memory until
// grow, and has the next checkpoint write its item anew.
func (a *allocator) pinLast(volumeBlocks uint64) error {
	if volumeBlocks%format.GroupBlocks == 0 {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	g := uint64(len(a.groups) - 1)
	if _, err := a.loadLocked(g); err != nil {
		return fmt.Errorf("the volume cannot grow: %w", err)
	}
	grp := &a.groups[g]
	grp.pinned = true
	grp.dirty = grp.dirty || grp.hasItem // pristine groups have none, whatever their size
	return nil
}

// grow makes allocatable what has come behind the old end.
func (a *allocator) grow(old, volumeBlocks uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if rest := int(old % format.GroupBlocks); rest != 0 {
		g := uint64(len(a.groups) - 1)
		grp := &a.groups[g]
		more := format.GroupSize(g, volumeBlocks) - rest
		setBits(&grp.bits.held, rest, more, false) // they were behind the end
		grp.avail += int32(more)
		a.avail += int64(more)
		grp.pinned = false
	}
	a.addGroups(format.Groups(volumeBlocks))
}

// addGroups appends pristine groups up to a number of them.
func (a *allocator) addGroups(groups uint64) {
	blocks := a.s.VolumeBlocks()
	for g := uint64(len(a.groups)); g < groups; g++ {
		avail := format.GroupSize(g, blocks)
		for _, r := range a.s.sb.FixedRuns(g) {
			avail -= int(r.Blocks)
		}
		a.groups = append(a.groups, group{avail: int32(avail)})
		a.avail += int64(avail)
	}
}
