package blobfs

import (
	"errors"

	"runsc-fs/blobfs/format"
	"runsc-fs/blobfs/store"
)

// Freeing a big file takes many transactions: an orphan item names the inode
// until the last of them, so that a mount after a crash goes on with it.
const (
	// freeBatch is how many items, extents or others, one transaction frees.
	freeBatch = 128
	// freeBatchTight is the same on a full volume, where only short
	// transactions are sure to succeed.
	freeBatchTight = 8
)

// updateInSteps runs step in transactions until it reports that it is done.
// It shortens the steps when space is tight.
func (fs *FS) updateInSteps(step func(tx *txn, limit int) (done bool, err error)) error {
	limit := freeBatch
	for {
		done := false
		err := fs.updateFreeing(func(tx *txn) (err error) {
			done, err = step(tx, limit)
			return err
		})
		switch {
		case errors.Is(err, ErrNoSpace) && limit > freeBatchTight:
			limit = freeBatchTight
		case err != nil || done:
			return err
		}
	}
}

// victim is an inode that loses a name in a transaction, with a reference.
type victim struct {
	inode *Inode
	dying bool // nobody else has a reference, nor gets one
	gone  bool // freed in the transaction itself
}

// victimItems is how much of an inode the transaction that takes its last name
// frees at once: little enough that it succeeds on a full volume.
const victimItems = 8

// dropLink takes one name from an inode; a directory has only one. Without a
// name and a reference it is freed, at once if it is small. Otherwise it
// becomes an orphan, which goes with the last reference.
func (tx *txn) dropLink(v *victim, now int64) error {
	i := v.inode
	last := false
	tx.change(i, now, func(a *inodeAttrs) {
		if i.typ == ModeDir {
			a.nlink = 0
		} else {
			a.nlink--
		}
		last = a.nlink == 0
	})
	if !last {
		return nil
	}
	i.mu.Lock()
	i.linkable = false
	i.mu.Unlock()
	if v.dying = i.tryDie(); v.dying {
		done, err := tx.destroy(i, victimItems)
		if err != nil || done {
			v.gone = done
			return err
		}
	}
	return tx.putOrphan(i, format.OrphanUnlinked)
}

// settle gives up the reference after the transaction, which has ended with err.
func (v *victim) settle(err error) {
	i := v.inode
	switch {
	case i == nil:
	case !v.dying:
		i.decRef()
	case err != nil:
		i.revive()
		i.decRef()
	case v.gone:
		i.dropAllPages()
		i.ext.reset()
		i.fs.inodes.forget(i)
	default:
		i.fs.reclaim(i)
	}
}

// reclaim frees an inode that has no name and no reference. If it fails, the
// next mount tries again.
func (fs *FS) reclaim(i *Inode) {
	i.dropAllPages()
	i.wbMu.Lock()
	err := fs.updateInSteps(func(tx *txn, limit int) (bool, error) {
		return tx.destroy(i, limit)
	})
	i.ext.reset()
	i.wbMu.Unlock()
	if err != nil {
		fs.opts.Logf("blobfs: freeing inode %d: %v", i.ino, err)
	} else {
		fs.giveInode()
	}
	fs.inodes.forget(i)
}

// destroy deletes at most limit items of an inode that nobody uses, with the
// blocks of those that are extents, and then the inode itself, and reports
// whether it got that far.
func (tx *txn) destroy(i *Inode, limit int) (done bool, err error) {
	tx.touch(i)
	tx.doomed = tx.doomed[:0]
	from := format.Key{Object: i.ino, Kind: format.KindInode, Offset: 1}
	to := format.Key{Object: i.ino, Kind: 255, Offset: 1<<64 - 1}
	more := false
	cost := 0
	err = tx.Scan(from, to, func(k format.Key, v []byte) (bool, error) {
		if more = more || cost >= limit; more {
			return false, nil
		}
		d := doomedItem{key: k}
		cost += extentCost
		var err error
		if k.Kind == format.KindExtent {
			d.piece, err = tx.fs.decodeExtent(k, v)
		}
		if err == nil && d.piece.item.Shared() {
			blocks, owners, err := tx.fs.affordable(&tx.Reader, d.piece.item.Run(), limit-cost)
			if err != nil {
				return false, err
			}
			cost += owners
			if end := d.piece.first + blocks; end < d.piece.end() {
				d.rest, more = d.piece.cut(end, d.piece.end()), true
				d.piece = d.piece.cut(0, end)
			}
		}
		tx.doomed = append(tx.doomed, d)
		return true, err
	})
	if err != nil {
		return false, err
	}
	for n := range tx.doomed {
		d := &tx.doomed[n]
		if err := tx.Delete(d.key); err != nil {
			return false, err
		}
		if d.key.Kind == format.KindExtent {
			if err := tx.free(i, d.piece); err != nil {
				return false, err
			}
		}
		if d.rest.item.Blocks > 0 {
			if err := tx.putExtent(i.ino, &d.rest); err != nil {
				return false, err
			}
		}
	}
	if more {
		return false, nil
	}
	if err := tx.dropOrphan(i); err != nil {
		return false, err
	}
	return true, tx.remove(i)
}

// doomedItem is an item that destroy is about to delete. Of an extent it deletes
// the piece and leaves the rest, if there is any.
type doomedItem struct {
	key         format.Key
	piece, rest piece
}

// shrink logs the inode with whatever size it has in memory now and frees all
// blocks from the given one on. Needs wbMu; no page beyond may be cached.
func (i *Inode) shrink(from uint64) error {
	i.mu.Lock()
	i.truncating = true
	i.mu.Unlock()
	err := i.fs.updateInSteps(func(tx *txn, limit int) (bool, error) {
		tx.touch(i)
		i.mu.Lock()
		i.diskSize = min(i.diskSize, i.size.Load())
		linked, orphan := i.a.nlink > 0, i.a.internal&format.InodeOrphan != 0
		i.mu.Unlock()
		next, err := tx.unmapFree(i, from, format.MaxFileBlocks, limit)
		switch {
		case err != nil:
			return false, err
		case next < format.MaxFileBlocks && !orphan:
			return false, tx.putOrphan(i, format.OrphanTruncate)
		case next < format.MaxFileBlocks:
			return false, nil
		case orphan && linked:
			return true, tx.dropOrphan(i)
		}
		return true, nil
	})
	i.mu.Lock()
	i.truncating = false
	i.mu.Unlock()
	if err != nil {
		i.ext.reset() // some of it may have been freed
	} else {
		i.ext.replace(from, endOfBlocks)
	}
	return err
}

// finishOrphans goes on with what a crash interrupted. What fails is logged
// and left as it is.
func (fs *FS) finishOrphans() error {
	const batch = 256
	from := orphanKey(0)
	for {
		var inos []uint64
		err := fs.store.View(func(r *store.Reader) error {
			inos = inos[:0]
			return r.Scan(from, orphanKey(1<<64-1), func(k format.Key, v []byte) (bool, error) {
				inos = append(inos, k.Offset)
				return len(inos) < batch, nil
			})
		})
		if err != nil {
			return err
		}
		for _, ino := range inos {
			if err := fs.finishOrphan(ino); err != nil {
				fs.opts.Logf("blobfs: inode %d, left unfinished by a crash: %v", ino, err)
			}
		}
		if len(inos) < batch || inos[len(inos)-1] == 1<<64-1 {
			return nil
		}
		from = orphanKey(inos[len(inos)-1] + 1)
	}
}

func (fs *FS) finishOrphan(ino uint64) error {
	i, err := fs.viewInode(func(*store.Reader) (uint64, error) { return ino, nil })
	if err == errNoInode {
		return fs.updateFreeing(func(tx *txn) error { return tx.Delete(orphanKey(ino)) })
	}
	if err != nil {
		return err
	}
	defer i.decRef() // frees it if it has no name
	if !i.hasLinks() {
		return nil
	}
	i.mu.Lock()
	i.a.internal |= format.InodeOrphan
	i.mu.Unlock()
	i.wbMu.Lock()
	defer i.wbMu.Unlock()
	return i.shrink(blocksOf(i.size.Load()))
}

// blocksOf is the number of blocks that size bytes take.
func blocksOf(size int64) uint64 {
	return uint64(size+BlockSizeBytes-1) / BlockSizeBytes
}
