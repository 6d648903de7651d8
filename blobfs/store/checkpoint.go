package store

import (
	"slices"

	"runsc-fs/blobfs/format"
)

// A checkpoint publishes the tree in memory as the one that a mount begins
// with:
//
//  1. freeze, with transactions stopped: the items of all groups whose bitmap
//     changed are updated; the dirty nodes and bitmaps are listed; a new
//     generation begins, so that later changes move these nodes again instead
//     of touching them.
//  2. write nodes and bitmaps, with transactions going on. All go to places
//     that no valid superblock leads to.
//  3. flush.
//  4. write the other pair of superblocks, durably.
//  5. release what only the previous superblock led to.

// snapshot is what a freeze leaves to be written.
type snapshot struct {
	nodes   []*node
	bitmaps []bitmapCopy
	sb      format.Superblock
	mark    logMark
}

// bitmapCopy is a bitmap block to be written.
type bitmapCopy struct {
	group uint64
	addr  format.Addr
	block *[format.BlockSizeBytes]byte
}

// Checkpoint publishes all completed transactions, which makes them durable,
// and empties the log. Transactions go on meanwhile.
func (s *Store) Checkpoint() error {
	s.checkpointMu.Lock()
	defer s.checkpointMu.Unlock()
	return s.checkpointLocked(checkpointIfNeeded)
}

// startCheckpoint makes a checkpoint in the background, unless one has already
// been started. A failure is remembered by the store.
func (s *Store) startCheckpoint() {
	if s.inline {
		_ = s.Checkpoint()
		return
	}
	if s.started.CompareAndSwap(false, true) {
		go func() {
			defer s.started.Store(false)
			_ = s.Checkpoint()
		}()
	}
}

// checkpointMode says why a checkpoint is made.
type checkpointMode int

const (
	checkpointIfNeeded checkpointMode = iota // only if there is something to publish
	checkpointAlways                         // write a superblock in any case
	checkpointFinal                          // and mark the volume as cleanly closed
)

// checkpointLocked makes a checkpoint. checkpointMu is held.
func (s *Store) checkpointLocked(mode checkpointMode) error {
	s.mu.Lock()
	err := s.failure()
	if s.closed.Load() && mode != checkpointFinal {
		err = ErrClosed
	} else if s.opts.ReadOnly {
		err = ErrReadOnly
	}
	if err != nil || mode == checkpointIfNeeded && s.dirty == 0 && s.lastLSN == s.published {
		s.mu.Unlock()
		return err
	}
	snap, err := s.freeze(mode == checkpointFinal)
	s.mu.Unlock()
	written := s.dataWrites.Load()
	if err == nil {
		err = s.publish(snap)
	}
	if err != nil {
		s.fail("writing a checkpoint", err)
		return s.failure()
	}

	s.stats.checkpoints.Add(1)
	s.stats.checkpointNodes.Add(uint64(len(snap.nodes)))
	s.mu.Lock()
	for _, n := range snap.nodes {
		n.writing = false
	}
	s.frozen = 0
	s.published = snap.mark.lsn
	s.setFloor()
	s.mu.Unlock()
	s.alloc.thaw(snap.bitmaps)
	s.alloc.releaseFrozenNodes()
	s.alloc.releasePending(snap.mark.lsn)
	s.log.truncate(snap.mark, written)
	return nil
}

// freeze begins a new generation and returns what the old one has to write. mu
// is held exclusively.
func (s *Store) freeze(final bool) (*snapshot, error) {
	copies, err := s.placeGroups()
	if err != nil {
		return nil, err
	}
	snap := &snapshot{bitmaps: copies, mark: s.log.mark(s.lastLSN)}
	snap.nodes = s.collectDirty(nil, s.root)
	for _, n := range snap.nodes {
		n.writing = true
	}
	slices.SortFunc(snap.nodes, func(a, b *node) int {
		if a.addr < b.addr {
			return -1
		}
		return 1
	})
	sb := *s.sb
	sb.Generation = s.gen
	sb.Flags &^= format.FlagClean
	if final {
		sb.Flags |= format.FlagClean
	}
	sb.Root, sb.RootLevel, sb.Nodes = s.root.ptr(), uint8(s.root.data.Level()), uint64(max(s.nodes, 1))
	root := *s.root.data
	root.SetIdentity(s.sb.UUID, s.root.addr, s.root.gen)
	sb.RootCRC = format.Seal(root[:])
	sb.LogPos, sb.LogSeq, sb.LSN = snap.mark.pos, snap.mark.seq, uint64(snap.mark.lsn)
	sb.NextObject = s.nextObject.Load()
	sb.WrittenNs = s.opts.Now().UnixNano()
	snap.sb = sb

	a := s.alloc
	a.mu.Lock()
	a.frozenNodes = append(a.frozenNodes, a.oldNodes...)
	a.oldNodes = a.oldNodes[:0]
	a.mu.Unlock()
	s.gen++
	s.dirty, s.frozen = 0, len(snap.nodes)
	return snap, nil
}

// collectDirty appends n, if it is dirty, and all dirty nodes below it. All
// nodes above a dirty one are dirty.
func (s *Store) collectDirty(list []*node, n *node) []*node {
	if n.gen != s.gen {
		return list
	}
	list = append(list, n)
	if n.kids == nil {
		return list
	}
	for i := range n.data.Count() {
		if kid := n.kids[i].Load(); kid != nil {
			list = s.collectDirty(list, kid)
		}
	}
	return list
}

// placeGroups brings the items of all groups with changed bitmaps up to date
// and returns the bitmap blocks to write. Updating an item moves nodes, which
// changes bitmaps; so first all items are put where they no longer move, until
// no further group has changed, and then they get their final values.
func (s *Store) placeGroups() ([]bitmapCopy, error) {
	var placed []uint64
	var value [format.GroupItemBytes]byte
	done := make(map[uint64]bool)
	for {
		fresh := s.alloc.dirtyGroups(done)
		if len(fresh) == 0 {
			break
		}
		for _, g := range fresh {
			done[g] = true
			if err := s.putDirect(format.GroupKey(g), value[:]); err != nil {
				return nil, err
			}
		}
		placed = append(placed, fresh...)
	}
	copies := make([]bitmapCopy, len(placed))
	for i, g := range placed {
		item, c := s.alloc.freezeGroup(g, s.gen)
		copies[i] = c
		if err := s.putDirect(format.GroupKey(g), item.Append(value[:0])); err != nil {
			return nil, err
		}
	}
	return copies, nil
}

// putDirect stores an item without logging it.
func (s *Store) putDirect(k format.Key, value []byte) error {
	if err := s.prepareTree(); err != nil {
		return err
	}
	if err := s.walk(&s.path, k); err != nil {
		return err
	}
	s.putAt(&s.path, k, value)
	return nil
}

// dirtyGroups returns the groups whose bitmap changed and that are not in done.
func (a *allocator) dirtyGroups(done map[uint64]bool) []uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	var list []uint64
	for g := range a.groups {
		if a.groups[g].dirty && !done[uint64(g)] {
			list = append(list, uint64(g))
		}
	}
	return list
}

// freezeGroup makes the bitmap block of a group for generation gen, in the
// slot that is not valid now, and returns the item that goes with it.
func (a *allocator) freezeGroup(g uint64, gen uint64) (format.GroupItem, bitmapCopy) {
	a.mu.Lock()
	defer a.mu.Unlock()
	grp := &a.groups[g]
	slot := uint8(0)
	if grp.hasItem {
		slot = 1 - grp.item.Slot
	}
	c := bitmapCopy{g, format.BitmapAddr(g, int(slot)), new([format.BlockSizeBytes]byte)}
	var raw [format.BitmapBytes]byte
	wordsToBytes(raw[:], &grp.bits.used)
	size := format.GroupSize(g, a.s.sb.VolumeBlocks) // as the superblock of this checkpoint will say
	grp.item = format.GroupItem{
		Free:       uint32(size - countBits(&grp.bits.used, 0, size)),
		Slot:       slot,
		CRC:        format.EncodeBitmap(c.block[:], a.s.sb.UUID, c.addr, gen, raw[:]),
		Generation: gen,
	}
	grp.hasItem, grp.dirty, grp.writing = true, false, true
	return grp.item, c
}

// thaw says that bitmaps are written.
func (a *allocator) thaw(copies []bitmapCopy) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, c := range copies {
		a.groups[c.group].writing = false
	}
}

// publish writes a snapshot and makes it the valid one.
func (s *Store) publish(snap *snapshot) error {
	w := &s.writer
	for _, c := range snap.bitmaps {
		page, err := w.next(c.addr)
		if err != nil {
			return err
		}
		copy(page, c.block[:])
	}
	for _, n := range snap.nodes {
		page, err := w.next(n.addr)
		if err != nil {
			return err
		}
		out := (*format.Node)(page)
		*out = *n.data
		out.SetIdentity(s.sb.UUID, n.addr, n.gen)
		format.Seal(page)
	}
	if err := w.write(false); err != nil {
		return err
	}
	if err := s.flush(); err != nil {
		return err
	}
	return s.writeSuperblock(&snap.sb)
}

// writeSuperblock writes both superblocks of the pair that is not valid now,
// and makes that pair the valid one.
func (s *Store) writeSuperblock(sb *format.Superblock) error {
	pair := 1 - s.pair
	w := &s.writer
	for slot := pair; slot < format.SuperblockSlots; slot += 2 {
		page, err := w.next(format.SuperblockAddr(slot))
		if err != nil {
			return err
		}
		sb.Encode(page, slot)
	}
	if err := w.write(true); err != nil {
		return err
	}
	s.pair = pair
	return nil
}
