package blobfs

import (
	"errors"

	"runsc-fs/blobfs/format"
	"runsc-fs/blobfs/store"
	"runsc-fs/nvme/trace"
)

// errRetry says that what was read from the store may be outdated.
var errRetry = errors.New("read again")

// txn is one transaction of the file system: a transaction of the store, and
// the inodes whose attributes change with it.
type txn struct {
	*store.Tx
	fs                   *FS
	touched              []touchedInode
	attrsOnly            bool                       // nothing changes but attributes of inodes
	doomed               []doomedItem               // scratch of destroy
	oldOwners, newOwners []ownedRun                 // scratch of recount
	orphaned             []format.Run               // likewise
	item                 [format.MaxValueBytes]byte // scratch for encoding
	value                [format.MaxValueBytes]byte // scratch for reading
}

type touchedInode struct {
	inode    *Inode
	before   inodeAttrs
	blocks   uint64
	diskSize int64
	seq      uint64 // attrSeq that was logged
	size     int64  // diskSize that was logged
	gone     bool   // the item is deleted, not written
}

// touch declares that the transaction logs i. It must come before the first
// change of the inode's attributes, block count or logged size; the item is
// written at the end.
func (tx *txn) touch(i *Inode) {
	for n := range tx.touched {
		if tx.touched[n].inode == i {
			return
		}
	}
	i.mu.Lock()
	tx.touched = append(tx.touched, touchedInode{inode: i, before: i.a, blocks: i.blocks, diskSize: i.diskSize})
	i.mu.Unlock()
}

// change is touch with a change of attributes, and of ctime.
func (tx *txn) change(i *Inode, now int64, fn func(a *inodeAttrs)) {
	tx.touch(i)
	i.mu.Lock()
	fn(&i.a)
	i.ctime.Store(i.stampLocked(now))
	i.attrChangedLocked()
	i.mu.Unlock()
}

// changeDir is change for a directory whose entries change.
func (tx *txn) changeDir(i *Inode, now int64, entries, nlink int) {
	tx.touch(i)
	i.mu.Lock()
	// A directory of a damaged image may count less than it has.
	i.a.entries = uint64(max(int64(i.a.entries)+int64(entries), 0))
	i.a.nlink = uint32(max(int(i.a.nlink)+nlink, 2))
	now = i.stampLocked(now)
	i.mtime.Store(now)
	i.ctime.Store(now)
	i.attrChangedLocked()
	i.mu.Unlock()
}

// remove declares that the inode's item is deleted.
func (tx *txn) remove(i *Inode) error {
	tx.touch(i)
	for n := range tx.touched {
		if tx.touched[n].inode == i {
			tx.touched[n].gone = true
		}
	}
	return tx.Delete(inodeKey(i.ino))
}

func (tx *txn) writeItems() error {
	var b [format.InodeBytes]byte
	grown := false
	for n := range tx.touched {
		t := &tx.touched[n]
		if t.gone {
			continue
		}
		i := t.inode
		i.mu.Lock()
		i.itemLocked(&b)
		t.seq, t.size = i.attrSeq, i.diskSize
		grown = grown || t.size > i.loggedSize
		i.mu.Unlock()
		if err := tx.Put(inodeKey(i.ino), b[:]); err != nil {
			return err
		}
	}
	if tx.attrsOnly && !grown { // times, mostly: right with or without the data
		tx.Independent()
	}
	return nil
}

// update runs fn as one atomic transaction. Changes of attributes that fn made
// in memory after touch are undone if it fails. Needs no lock below txMu held.
func (fs *FS) update(fn func(tx *txn) error) error { return fs.transact(false, fn) }

// updateFreeing is update for what gives space back: it works on a full volume.
func (fs *FS) updateFreeing(fn func(tx *txn) error) error { return fs.transact(true, fn) }

func (fs *FS) transact(freeing bool, fn func(tx *txn) error) error {
	if fs.opts.ReadOnly {
		return ErrReadOnly
	}
	defer trace.Leave(trace.Enter(trace.Log))
	fs.txMu.Lock()
	defer fs.txMu.Unlock()
	tx := &fs.tx
	tx.fs = fs
	tx.touched, tx.attrsOnly = tx.touched[:0], false
	run := func(stx *store.Tx) error {
		tx.Tx = stx
		defer func() { tx.Tx = nil }()
		if err := fn(tx); err != nil {
			return err
		}
		return tx.writeItems()
	}
	// Called by name, so that no closure has to be allocated, fn included.
	var lsn store.LSN
	var err error
	if freeing {
		lsn, err = fs.store.UpdateFreeing(run)
	} else {
		lsn, err = fs.store.Update(run)
	}
	err = volumeError(err)
	for n := range tx.touched {
		t := &tx.touched[n]
		i := t.inode
		i.mu.Lock()
		if err != nil {
			i.a, i.blocks, i.diskSize = t.before, t.blocks, t.diskSize
			i.attrChangedLocked()
		} else {
			i.lsn = lsn
			i.loggedSize = t.size
			if t.seq == i.attrSeq {
				i.attrDirty = false
			}
		}
		i.mu.Unlock()
		t.inode = nil
	}
	return err
}

// view runs fn with a consistent view of the store, again if fn asks for it.
func (fs *FS) view(fn func(r *store.Reader) error) error {
	const patience = 64
	for range patience {
		if err := fs.store.View(fn); err != errRetry {
			return err
		}
	}
	// Keep changes away, so that nothing read can be outdated.
	fs.txMu.Lock()
	defer fs.txMu.Unlock()
	for range patience * patience {
		if err := fs.store.View(fn); err != errRetry {
			return err
		}
	}
	return ErrIO
}

// viewInode returns, with a reference, the inode whose number fn finds.
func (fs *FS) viewInode(fn func(r *store.Reader) (uint64, error)) (i *Inode, err error) {
	err = fs.view(func(r *store.Reader) error {
		ino, err := fn(r)
		if err != nil {
			return err
		}
		i, err = fs.inodeThrough(r, ino)
		return err
	})
	return i, err
}

func inodeKey(ino uint64) format.Key { return format.Key{Object: ino, Kind: format.KindInode} }

func orphanKey(ino uint64) format.Key { return format.Key{Kind: format.KindOrphan, Offset: ino} }

// putOrphan notes that something is left to be done for the inode.
func (tx *txn) putOrphan(i *Inode, kind format.OrphanKind) error {
	var b [format.OrphanBytes]byte
	(&format.Orphan{Kind: kind}).Encode(b[:])
	tx.touch(i)
	i.mu.Lock()
	i.a.internal |= format.InodeOrphan
	i.mu.Unlock()
	return tx.Put(orphanKey(i.ino), b[:])
}

// dropOrphan removes the note.
func (tx *txn) dropOrphan(i *Inode) error {
	tx.touch(i)
	i.mu.Lock()
	had := i.a.internal&format.InodeOrphan != 0
	i.a.internal &^= format.InodeOrphan
	i.mu.Unlock()
	if !had {
		return nil
	}
	return tx.Delete(orphanKey(i.ino))
}
