package blobfs

import (
	"errors"

	"runsc-fs/blobfs/format"
	"runsc-fs/blobfs/store"
)

// Blocks that other extents may hold are never overwritten: what is written
// goes to new blocks, and the file gives its share of the old ones up. A page on
// such a block has a block reserved while it is dirty, like one in a hole.

// ownBlocks looks whether the shared run m, at file block index, has become the
// file's own, and returns what is known of its beginning: then it is marked so,
// and may be overwritten. Needs wbMu, which keeps others from sharing it anew.
func (i *Inode) ownBlocks(index uint64, m mapping) (mapping, error) {
	fs := i.fs
	alone := false
	var seen store.LSN
	err := fs.store.View(func(r *store.Reader) error {
		seen = r.LSN()
		return fs.eachOwnedRun(r, format.Run{Start: m.addr, Blocks: m.blocks}, func(o ownedRun) bool {
			m.blocks, alone = o.Blocks, o.owners == 1
			return false
		})
	})
	// A crash may bring back the owner that has gone last, and with it the
	// blocks as they were.
	if err != nil || !alone || !fs.store.Durable(seen) {
		return m, err
	}
	err = fs.updateFreeing(func(tx *txn) error { return tx.markOwned(i, index, index+m.blocks) })
	if errors.Is(err, ErrNoSpace) {
		return m, nil
	}
	if err != nil {
		return m, err
	}
	m.state = blockWritten
	i.ext.replace(index, index+m.blocks, extent{first: index, addr: m.addr, blocks: uint32(m.blocks)})
	return m, nil
}

// mapToWrite is mapBlock for those who are about to write there. Needs wbMu.
func (i *Inode) mapToWrite(block, limit uint64) (mapping, error) {
	m, err := i.mapBlock(block, limit)
	if err != nil || m.state != blockShared {
		return m, err
	}
	// Whoever writes here will probably go on.
	if m, err = i.mapBlock(block, format.MaxExtentBlocks); err != nil {
		return m, err
	}
	m, err = i.ownBlocks(block, m)
	m.blocks = min(m.blocks, limit)
	return m, err
}

// replaceShared gives the file the blocks of r, which have been written, in
// place of shared ones, as far as limit allows. It returns where to go on.
func (tx *txn) replaceShared(i *Inode, r *newRun, limit int) (next uint64, err error) {
	if next, err = tx.unmapFree(i, r.first, r.first+r.run.Blocks, max(limit, 1)); err != nil {
		return r.first, err
	}
	return next, tx.claim(i, r.first, format.Run{Start: r.run.Start, Blocks: next - r.first}, false)
}

// logRuns makes the runs of the batch part of the file, and the cache of extents
// follow. The size that is logged with them grows to settled at most, and never
// beyond blocks that are not the file's yet. Several transactions are needed
// only where blocks are shared; fillMu must then be held, since shared blocks
// may be free after the first. Write-back completes what has been promised, so
// that it works on a full volume, too.
func (i *Inode) logRuns(b *batch, settled int64, writeBack bool) error {
	limit := freeBatch
	for b.nLogged < b.nRuns {
		var n int
		var next uint64
		err := i.fs.transact(writeBack, func(tx *txn) (err error) {
			tx.touch(i)
			if n, next, err = tx.mapRuns(i, b, limit); err != nil {
				return err
			}
			size := settled
			if n < b.nRuns {
				size = min(size, int64(next)*BlockSizeBytes)
			}
			if writeBack {
				i.settleSize(size)
			} else {
				i.writtenTo(size)
			}
			return nil
		})
		switch {
		case errors.Is(err, ErrNoSpace) && limit > freeBatchTight:
			limit = freeBatchTight
			continue
		case err != nil:
			return err
		}
		i.adoptRuns(b, n, next)
	}
	return nil
}

// unshare gives the file blocks of its own for all that are shared in
// [first, end), which lies within the file. Needs ioMu.
func (i *Inode) unshare(first, end uint64) error {
	for index := first; index < end; {
		i.wbMu.Lock()
		m, err := i.mapToWrite(index, min(end-index, batchPages))
		i.wbMu.Unlock()
		if err != nil {
			return err
		}
		next := index + m.blocks
		if m.state != blockShared {
			index = next
			continue
		}
		from := index
		for ; index < next; index++ {
			p, err := i.pageAt(index, int(next-index))
			if p == nil || err != nil {
				return errors.Join(ErrIO, err)
			}
			if _, err = i.reservePage(index, p); err == nil {
				i.markPageDirty(p)
			}
			i.fs.cache.unpin(p)
			if err != nil {
				return err
			}
		}
		if err := i.writeBackRange(from, next); err != nil {
			return err
		}
	}
	return nil
}
