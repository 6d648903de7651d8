package blobfs

import (
	"runsc-fs/blobfs/format"
	"runsc-fs/nvme"
	"runsc-fs/nvme/trace"
)

// maxRuns is how many runs of newly allocated or newly written blocks one
// transaction of write-back describes: few enough that it succeeds even when
// nothing but reserved space is left.
const maxRuns = 6

// newRun is a run of file blocks that write-back is about to make readable.
type newRun struct {
	first     uint64
	run       format.Run
	unwritten bool // allocated before: its extent is only marked
	shared    bool // new blocks in place of shared ones
	reserved  bool // allocated from what was reserved for the pages
}

// collect gathers dirty pages in [from, to) in order, pins them and takes their
// dirty marks away, and returns where to go on. Pages mapped for writing keep
// the mark of the flag, so that they are found again.
func (i *Inode) collect(b *batch, from, to uint64) (next uint64) {
	i.treeMu.Lock()
	defer i.treeMu.Unlock()
	for b.n < batchPages {
		p := i.pages.nextDirty(from)
		if p == nil || p.index >= to {
			return to
		}
		from = p.index + 1
		p.refs.Add(1) // the tree's reference keeps it from being free
		i.cleanLocked(p)
		b.pages[b.n] = p
		b.n++
	}
	return from
}

// release ends the write-back of collected pages: those from number done on
// were not written and are dirty again, like those that are mapped for writing.
func (i *Inode) release(b *batch, done int) {
	i.treeMu.Lock()
	again := false
	for k, p := range b.pages[:b.n] {
		if k >= done || p.has(pageMappedWrite) {
			i.dirtyLocked(p)
			again = true
		}
	}
	i.treeMu.Unlock()
	if again {
		i.fs.markDirty(i)
	}
	for _, p := range b.pages[:b.n] {
		i.fs.cache.unpin(p)
	}
}

// writeBackAll writes all dirty pages to the device and logs what makes them
// readable. It does not commit.
func (i *Inode) writeBackAll() error { return i.writeBackRange(0, endOfBlocks) }

// writeBackRange is writeBackAll for the pages in [from, to).
func (i *Inode) writeBackRange(from, to uint64) error {
	if i.typ != ModeRegular {
		return nil
	}
	i.wbMu.Lock()
	defer i.wbMu.Unlock()
	return i.writeBackLocked(from, to)
}

// writeBackLocked needs wbMu. A failure is also kept for the next fsync.
func (i *Inode) writeBackLocked(from, to uint64) error {
	if i.nDirty.Load() == 0 && from > 0 {
		return nil
	}
	defer trace.Leave(trace.Enter(trace.Cache))
	// Data up to this size is dirty now or on the device. Blocks become part
	// of the file in the same transaction as the size that covers them, or
	// else they would show up when the file is extended after a crash. So what
	// lies between the logged size and the range goes first, and pages that a
	// writer is adding behind the end wait.
	size := i.size.Load()
	to = min(to, blocksOf(size))
	i.mu.Lock()
	onDisk := uint64(i.diskSize) / BlockSizeBytes
	i.mu.Unlock()
	grows := to > onDisk
	if grows {
		from = min(from, onDisk)
	}
	b := getBatch()
	defer b.put()
	for from < to && i.nDirty.Load() > 0 {
		b.reset()
		next := i.collect(b, from, to)
		if b.n == 0 {
			break
		}
		settled := int64(0)
		if grows {
			settled = min(size, int64(min(next, format.MaxFileBlocks))*BlockSizeBytes)
		}
		done, err := i.writeBatch(b, settled)
		i.release(b, done)
		if err != nil {
			i.recordWriteError(err)
			return err
		}
		if done < b.n {
			next = b.pages[done].index
		}
		from = next
	}
	if to == blocksOf(size) {
		i.settleSize(size)
	}
	i.checkInvariants()
	return nil
}

// settleSize notes that all data below size is on the device, so that this
// size may be logged. It needs the wbMu under which size was the size of the
// file. A Truncate may have set a smaller one since: it waits for wbMu to free
// what lies beyond, and until then the blocks logged must be covered.
func (i *Inode) settleSize(size int64) {
	i.mu.Lock()
	if size > i.diskSize {
		i.diskSize = size
		i.attrChangedLocked()
	}
	i.mu.Unlock()
}

// writeBatch writes as many of the collected pages as one transaction can
// describe, from the first on, and returns how many that were. settled is the
// size up to which the data is on the device when all pages are.
func (i *Inode) writeBatch(b *batch, settled int64) (done int, err error) {
	fs := i.fs
	done, err = i.planWrite(b)
	if err == nil && done > 0 {
		err = fs.writeData(b)
	}
	if err != nil {
		i.releaseRuns(b)
		return 0, err
	}
	if done < b.n {
		settled = min(settled, int64(b.pages[done].index)*BlockSizeBytes)
	}
	if b.nRuns == 0 {
		i.settleSize(settled)
		return done, nil
	}
	shared := b.replacesShared()
	if shared {
		i.fillMu.Lock()
	}
	err = i.logRuns(b, settled, true)
	if shared {
		i.fillMu.Unlock()
	}
	if err != nil {
		i.releaseRuns(b)
		return 0, err
	}
	return done, nil
}

// replacesShared reports whether blocks leave the file that others may hold.
func (b *batch) replacesShared() bool {
	for n := range b.runs[:b.nRuns] {
		if b.runs[n].shared {
			return true
		}
	}
	return false
}

// planWrite finds or allocates the place of each page.
func (i *Inode) planWrite(b *batch) (done int, err error) {
	fs := i.fs
	for k := 0; k < b.n; {
		p := b.pages[k]
		length := 1 // pages in a row that are alike
		for k+length < b.n && b.pages[k+length].index == p.index+uint64(length) {
			length++
		}
		m, err := i.mapToWrite(p.index, uint64(length))
		if err != nil {
			return k, err
		}
		length = min(length, int(m.blocks))
		if !m.needsBlocks() {
			// Allocated by something else since the page reserved its block, or
			// no longer shared.
			i.dropReservations(b.pages[k:k+length], true)
		}
		if m.state != blockWritten {
			if b.nRuns == maxRuns {
				return k, nil
			}
			r := newRun{first: p.index, run: format.Run{Start: m.addr, Blocks: uint64(length)}, unwritten: true}
			if m.needsBlocks() {
				r.unwritten, r.shared, r.reserved = false, m.state == blockShared, p.has(pageReserved)
				for n := range length {
					if b.pages[k+n].has(pageReserved) != r.reserved {
						length = n
						break
					}
				}
				if r.run, err = fs.store.Allocate(int64(length), i.allocGoal(p.index), r.reserved); err != nil {
					return k, err
				}
				length = int(r.run.Blocks)
				m.addr = r.run.Start
			}
			b.runs[b.nRuns] = r
			b.nRuns++
		}
		for n := range length {
			b.add(nvme.OpWrite, (m.addr + format.Addr(n)).OffsetBytes(), fs.cache.frameData(b.pages[k+n]))
		}
		k += length
	}
	return b.n, nil
}

// allocGoal is where a new block at index would continue what is in front of it.
func (i *Inode) allocGoal(index uint64) format.Addr {
	if index == 0 {
		return 0
	}
	m, err := i.mapBlock(index-1, 1)
	if err != nil || m.state == blockHole {
		return 0
	}
	return m.addr + 1
}

// dropReservations takes the reservations of pages away: given back to the
// store, or used up.
func (i *Inode) dropReservations(pages []*page, giveBack bool) {
	dropped := int64(0)
	for _, p := range pages {
		if !p.has(pageReserved) {
			continue
		}
		i.treeMu.Lock()
		if p.has(pageReserved) {
			p.clear(pageReserved)
			i.reserved.Add(-1)
			dropped++
		}
		i.treeMu.Unlock()
	}
	if giveBack && dropped > 0 {
		i.fs.store.Unreserve(dropped)
	}
}

// mapRuns makes the runs of the batch that are not logged yet part of the file,
// as far as limit allows. It returns the number of the first run that is not, and
// where in the file it, or what is missing of it, begins.
func (tx *txn) mapRuns(i *Inode, b *batch, limit int) (n int, next uint64, err error) {
	cost := 0
	for n = b.nLogged; n < b.nRuns; n++ {
		r := &b.runs[n]
		next = r.first
		if cost >= limit {
			return n, next, nil
		}
		cost += extentCost
		end := r.first + r.run.Blocks
		switch {
		case r.unwritten:
			err = tx.markWritten(i, r.first, end)
		case r.shared:
			if next, err = tx.replaceShared(i, r, limit-cost); err == nil && next < end {
				return n, next, nil
			}
			cost = limit
		default:
			err = tx.claim(i, r.first, r.run, false)
		}
		if err != nil {
			return n, next, err
		}
		next = end
	}
	return n, next, nil
}

// adoptRuns brings the cache of extents and the pages up to date after mapRuns,
// with what that has returned.
func (i *Inode) adoptRuns(b *batch, n int, next uint64) {
	for ; b.nLogged < n; b.nLogged++ {
		i.adopt(b, b.runs[b.nLogged])
	}
	if n == b.nRuns || next == b.runs[n].first {
		return
	}
	rest := &b.runs[n]
	part := *rest
	part.run.Blocks = next - part.first
	rest.first = next
	rest.run.Start += format.Addr(part.run.Blocks)
	rest.run.Blocks -= part.run.Blocks
	i.adopt(b, part)
}

func (i *Inode) adopt(b *batch, r newRun) {
	i.ext.replace(r.first, r.first+r.run.Blocks,
		extent{first: r.first, addr: r.run.Start, blocks: uint32(r.run.Blocks)})
	// Only now: whoever finds a page without a reservation must find the extent.
	if r.reserved {
		i.dropReservations(b.pagesOf(&r), false)
	}
}

// pagesOf returns the pages of the batch that a run is for.
func (b *batch) pagesOf(r *newRun) []*page {
	for k, p := range b.pages[:b.n] {
		if p.index == r.first {
			return b.pages[k : k+int(r.run.Blocks)]
		}
	}
	return nil
}

// releaseRuns gives back what was allocated for a batch that failed, and
// reserves it again for the pages.
func (i *Inode) releaseRuns(b *batch) {
	fs := i.fs
	for n := b.nLogged; n < b.nRuns; n++ {
		r := &b.runs[n]
		if r.unwritten {
			continue
		}
		if err := fs.store.Release(r.run); err != nil {
			fs.opts.Logf("blobfs: releasing %v: %v", r.run, err)
		}
		if r.reserved && fs.store.Reserve(int64(r.run.Blocks)) != nil {
			// The pages stay dirty and take their chance with the next
			// allocation.
			i.dropReservations(b.pagesOf(r), false)
		}
	}
	b.nRuns, b.nLogged = 0, 0
}

// logAttrs logs the inode if its attributes differ from what was logged.
func (i *Inode) logAttrs() error {
	i.mu.Lock()
	dirty := i.attrDirty
	i.mu.Unlock()
	if !dirty {
		return nil
	}
	return i.fs.updateFreeing(func(tx *txn) error {
		tx.touch(i)
		tx.attrsOnly = true
		return nil
	})
}
