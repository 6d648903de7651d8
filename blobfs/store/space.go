package store

import (
	"errors"

	"runsc-fs/blobfs/format"
	"runsc-fs/nvme/trace"
)

// Space is promised before it is needed, so that nothing fails half way:
//
//   - Every transaction moves and splits nodes. txBlocks bounds what one with
//     up to guaranteedOps operations takes, undoing it included. An ordinary
//     transaction starts only if twice that is there, one that frees space or
//     completes something promised (UpdateFreeing) if once that is there: so
//     deleting works on a full volume.
//   - Reserve promises data blocks, and with each promise a share of a block
//     for the items that will describe it. It leaves three times txBlocks to
//     metadata.
//   - Blocks of nodes that moved come back with the next checkpoint. When
//     space is short, a checkpoint is made to get them.

// guaranteedOps is the number of operations that every transaction may make
// without meeting ErrNoSpace on the way.
const guaranteedOps = 32

// itemShare is how many reserved data blocks pay for one block of items. Each
// data block may be an extent of its own, of which a half-full leaf holds 45.
const itemShare = 32

// sharedItemShare is itemShare on volumes with shared blocks. A block in the
// place of a shared one splits an extent and the counts of owners, and a
// half-full leaf holds what comes of twelve of them.
const sharedItemShare = 12

// promiseBlocks is what a reservation of n data blocks sets aside.
func (a *allocator) promiseBlocks(n int64) int64 {
	share := int64(itemShare)
	if a.s.HasFeatures(format.IncompatReflink) {
		share = sharedItemShare
	}
	return n + (n+share-1)/share
}

// txBlocks bounds the blocks that a transaction and the checkpoint behind it
// take. mu is held, shared or not.
func (s *Store) txBlocks() int64 {
	h := int64(s.height())
	moved := min(guaranteedOps*h, s.nodes)
	split := guaranteedOps + 2*h
	undone := int64(guaranteedOps)
	groupLeaves := 2 + int64(len(s.alloc.groups))/64
	return moved + split + undone + min(groupLeaves, s.nodes) + h
}

// setFloor tells the allocator what to keep for metadata.
func (s *Store) setFloor() {
	floor := s.txBlocks()
	s.alloc.mu.Lock()
	s.alloc.floor = floor
	s.alloc.mu.Unlock()
}

// spareLocked is what is allocatable and promised to nobody.
func (a *allocator) spareLocked() int64 {
	return a.avail + int64(len(a.pool)) - a.promiseBlocks(a.reserved)
}

// withheldBlocks is what Options.LimitBytes keeps from all who ask for more space.
func (s *Store) withheldBlocks() int64 {
	if s.opts.LimitBytes == 0 {
		return 0
	}
	return max(int64(s.VolumeBlocks())-s.opts.LimitBytes/format.BlockSizeBytes, 0)
}

func (a *allocator) spare() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.spareLocked()
}

// pendingLocked is what will be allocatable after a checkpoint.
func (a *allocator) pendingLocked() int64 {
	return a.pendingBlocks + a.trimming + a.discard.blocks + int64(len(a.oldNodes)+len(a.frozenNodes))
}

// Reserve promises blocks of data space: as many blocks can be allocated later
// with Allocate(…, reserved) whatever else happens. ErrNoSpace if there are
// not that many. It may make a checkpoint, so it must not be called from
// within Update or View.
func (s *Store) Reserve(blocks int64) error {
	if blocks < 0 || blocks > int64(s.VolumeBlocks()) || s.spaceDenied() {
		return ErrNoSpace
	}
	defer trace.Leave(trace.Enter(trace.Alloc))
	return s.withSpace(func(a *allocator) (int64, error) {
		need := a.promiseBlocks(a.reserved+blocks) - a.promiseBlocks(a.reserved) + 3*a.floor + s.withheldBlocks()
		if a.spareLocked() < need {
			return need, ErrNoSpace
		}
		a.reserved += blocks
		return 0, nil
	})
}

// Unreserve gives up what Reserve promised and was not allocated.
func (s *Store) Unreserve(blocks int64) {
	a := s.alloc
	a.mu.Lock()
	defer a.mu.Unlock()
	a.reserved = max(a.reserved-blocks, 0)
}

// spaceAttempts bounds how often a caller makes a checkpoint for space: others
// may take what it brings.
const spaceAttempts = 3

// DenySpace makes requests for space fail, as on a full volume, when fn says so;
// nil ends that. For tests: what has been reserved, and what frees space, is
// never denied.
func (s *Store) DenySpace(fn func() bool) {
	if fn == nil {
		s.denySpace.Store(nil)
		return
	}
	s.denySpace.Store(&fn)
}

func (s *Store) spaceDenied() bool {
	fn := s.denySpace.Load()
	return fn != nil && (*fn)()
}

// withSpace calls try under the allocator's lock. If it reports ErrNoSpace and
// a checkpoint would bring the blocks it needs, one is made and try called again.
func (s *Store) withSpace(try func(a *allocator) (need int64, err error)) error {
	var err error
	locked := func() (again bool) {
		if err = s.writable(); err != nil {
			return false
		}
		a := s.alloc
		a.mu.Lock()
		defer a.mu.Unlock()
		var need int64
		need, err = try(a)
		if err == ErrNoSpace && a.dropDiscardsLocked() {
			need, err = try(a)
		}
		return err == ErrNoSpace && a.spareLocked()+a.pendingLocked() >= need
	}
	again := locked()
	for attempt := 0; again && attempt < spaceAttempts; attempt++ {
		if failed := s.checkpointUnless(func() bool {
			again = locked()
			return !again
		}); failed != nil {
			return failed
		}
		if again {
			again = locked()
		}
	}
	return err
}

// Allocate takes up to maxBlocks contiguous blocks, at or near goal (0: no
// preference). With reserved set it consumes as much of what the caller has
// reserved; otherwise the blocks must be free beyond what is promised to
// others. The run is provisional: it belongs to the caller until Tx.Claim
// makes it persistent or Release gives it back; a crash gives it back too.
// It may make a checkpoint, so it must not be called from within Update or View.
func (s *Store) Allocate(maxBlocks int64, goal format.Addr, reserved bool) (format.Run, error) {
	var run format.Run
	if !reserved && s.spaceDenied() {
		return run, ErrNoSpace
	}
	defer trace.Leave(trace.Enter(trace.Alloc))
	err := s.withSpace(func(a *allocator) (need int64, err error) {
		want := min(maxBlocks, format.GroupBlocks)
		if reserved {
			want = min(want, a.reserved)
		} else if room := a.spareLocked() - 3*a.floor - s.withheldBlocks(); room < want {
			// Room for less than all is room enough, once checkpoints bring no more.
			if want = room; room < 1 {
				return 3*a.floor + s.withheldBlocks() + 1, ErrNoSpace
			}
		}
		if want < 1 {
			return int64(s.VolumeBlocks()) + 1, ErrNoSpace
		}
		if goal == 0 {
			goal = a.dataGoal
		}
		run, err = a.takeRunLocked(int(want), goal)
		if err == ErrNoSpace && a.drainPoolLocked() {
			run, err = a.takeRunLocked(int(want), goal)
		}
		if err != nil {
			return 1, err
		}
		if reserved {
			a.reserved -= int64(run.Blocks)
		}
		a.dataGoal = run.End()
		return 0, nil
	})
	return run, err
}

// Release gives back a provisional run, or a part of one.
func (s *Store) Release(run format.Run) error {
	s.alloc.mu.Lock()
	defer s.alloc.mu.Unlock()
	return s.alloc.applyLocked(run, heldToFree)
}

// A volume whose bitmaps do not know of all blocks in use can make one block
// have two owners. Where that shows in the transition of a block that the
// store itself placed or freed, the store becomes read-only.

// poolRun is how many blocks the pool takes at once: nodes that are written
// together then lie together.
const poolRun = 64

// fillPool makes sure that n nodes can be placed without fail.
func (a *allocator) fillPool(n int) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.poolKeep = n
	for len(a.pool) < n {
		run, err := a.takeRunLocked(poolRun, a.nodeGoal)
		if err != nil {
			return err
		}
		for i := range run.Blocks {
			a.pool = append(a.pool, run.Start+format.Addr(run.Blocks-1-i))
		}
		a.nodeGoal = run.End()
	}
	return nil
}

// drainPoolLocked gives back what the pool holds beyond the needs of an
// operation in progress, and reports whether that was anything.
func (a *allocator) drainPoolLocked() bool {
	n := len(a.pool) - a.poolKeep
	if n <= 0 {
		return false
	}
	for _, addr := range a.pool[:n] {
		a.releaseLocked(format.Run{Start: addr, Blocks: 1})
	}
	a.pool = append(a.pool[:0], a.pool[n:]...)
	return true
}

// takeNode takes a block from the pool for a node.
func (a *allocator) takeNode() format.Addr {
	a.mu.Lock()
	defer a.mu.Unlock()
	last := len(a.pool) - 1
	addr := a.pool[last]
	a.pool = a.pool[:last]
	if err := a.applyLocked(format.Run{Start: addr, Blocks: 1}, heldToUsed); err != nil {
		a.s.fail("placing a node", err)
	}
	return addr
}

// freeNode frees the block of a node that an earlier generation wrote: it
// becomes allocatable when no valid superblock leads to that node any more. A
// block that cannot be freed, because its bitmap is unusable or does not know
// of it, stays out of use.
func (a *allocator) freeNode(addr format.Addr) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.applyLocked(format.Run{Start: addr, Blocks: 1}, usedToHeld); err != nil {
		a.s.stats.leaked.Add(1)
		return
	}
	a.oldNodes = append(a.oldNodes, addr)
}

// freeRun frees a run of a file: it is held until the transaction is durable.
// If the bitmap of its group is unusable, the run stays out of use instead.
func (a *allocator) freeRun(r format.Run) (leaked bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	err = a.applyLocked(r, usedToHeld)
	if err != nil && !errors.Is(err, ErrBadRun) {
		a.s.stats.leaked.Add(r.Blocks)
		return true, nil
	}
	return false, err
}

// freeNewNode frees the block of a node that was never written.
func (a *allocator) freeNewNode(addr format.Addr) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.applyLocked(format.Run{Start: addr, Blocks: 1}, usedToFree); err != nil {
		a.s.fail("freeing a node", err)
	}
}

// apply carries out a transition of a run.
func (a *allocator) apply(r format.Run, c change) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.applyLocked(r, c)
}

// addPending notes the runs that transaction lsn has freed.
func (a *allocator) addPending(runs []format.Run, lsn LSN) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, r := range runs {
		a.pending = append(a.pending, pendingRun{r, lsn})
		a.pendingBlocks += int64(r.Blocks)
	}
}

// releasePending makes allocatable what transactions up to lsn have freed.
func (a *allocator) releasePending(lsn LSN) {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := 0
	for ; n < len(a.pending) && a.pending[n].lsn <= lsn; n++ {
		a.releaseFreedLocked(a.pending[n].run)
		a.returnToLocked(a.pending[n].run)
		a.pendingBlocks -= int64(a.pending[n].run.Blocks)
	}
	a.pending = append(a.pending[:0], a.pending[n:]...)
}

// returnBlocks is how far back data without a goal goes for freed blocks: 16 MiB.
const returnBlocks = 4096

// returnToLocked has data without a goal go to a run that was freed, if that lies
// shortly before where it would go now. Files that come and go, as the journals
// of databases do, then use the same blocks all the time. In an image file those
// have been written before; new ones would be holes, each with a commit of the
// journal of the host's file system, and the file would grow to its full size.
// What waits to be discarded becomes a hole anyway.
func (a *allocator) returnToLocked(r format.Run) {
	if !a.discard.on && r.End() <= a.dataGoal && a.dataGoal-r.Start <= returnBlocks {
		a.dataGoal = r.Start
	}
}

// releaseFrozenNodes makes allocatable what only superseded superblocks lead to.
func (a *allocator) releaseFrozenNodes() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, addr := range a.frozenNodes {
		a.releaseLocked(format.Run{Start: addr, Blocks: 1})
	}
	a.frozenNodes = a.frozenNodes[:0]
}

func (a *allocator) releaseLocked(r format.Run) {
	if err := a.applyLocked(r, heldToFree); err != nil {
		a.s.fail("releasing freed blocks", err)
	}
}
