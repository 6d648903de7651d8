package blobfs

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"runsc-fs/blobfs/store"
)

// Fsync makes the file durable: its data and what is needed to read them back,
// and unless dataOnly is set all attributes, too. Of a directory it makes all
// entries durable. It also reports write-back errors that cur has not seen yet;
// cur may be nil. Errors: ErrIO, ErrNoSpace when space ran out that could not
// be reserved. The invalidator may be called, so nothing that it needs may be held.
func (i *Inode) Fsync(cur *ErrCursor, dataOnly bool) error {
	g, err := i.fs.gate.enter()
	if err != nil {
		return err
	}
	defer g.leave()
	err = i.sync(dataOnly)
	if cur != nil {
		if seen := i.CheckErr(cur); err == nil {
			err = seen
		}
	}
	return err
}

// revokeAbove is the number of pages mapped for writing above which it is cheaper
// to take them back, and have those that are written again faulted again, than
// to write all of them with each sync.
const revokeAbove = 64

func (i *Inode) sync(dataOnly bool) error {
	fs := i.fs
	if fs.opts.ReadOnly {
		return nil
	}
	if i.nMapped.Load() > revokeAbove {
		i.revoke()
	}
	if err := i.writeBackAll(); err != nil {
		return fsyncError(err)
	}
	i.mu.Lock()
	log := i.attrDirty && (!dataOnly || i.diskSize != i.loggedSize)
	i.mu.Unlock()
	if log {
		if err := i.logAttrs(); err != nil {
			return fsyncError(err)
		}
	}
	return i.commit(false)
}

// commit makes durable what has been logged of the inode, and unless logOnly is
// set all data that has been written.
func (i *Inode) commit(logOnly bool) error {
	i.mu.Lock()
	lsn := i.lsn
	i.mu.Unlock()
	unknown := lsn == unknownLSN
	if unknown {
		lsn = i.fs.store.LastLSN()
	}
	commit := i.fs.store.Commit
	if logOnly {
		commit = i.fs.store.CommitLog
	}
	if err := commit(lsn); err != nil {
		return fsyncError(err)
	}
	if unknown {
		i.mu.Lock()
		if i.lsn == unknownLSN {
			i.lsn = lsn
		}
		i.mu.Unlock()
	}
	return nil
}

// syncRange makes the bytes [off, end) durable, for O_DSYNC and O_SYNC writes.
// durable says that the data is already.
func (i *Inode) syncRange(off, end int64, dataOnly, durable bool) error {
	i.mu.Lock()
	inside := end <= i.loggedSize
	i.mu.Unlock()
	if !dataOnly || !inside {
		return i.sync(dataOnly)
	}
	if durable {
		return i.commit(true)
	}
	if err := i.writeBackRange(uint64(off)/BlockSizeBytes, blocksOf(end)); err != nil {
		return fsyncError(err)
	}
	return i.commit(false)
}

// fsyncError is what a sync reports: a volume that cannot be written any more
// is an I/O error here, not a read-only file system.
func fsyncError(err error) error {
	var failed *store.FailedError
	if errors.As(err, &failed) {
		return fmt.Errorf("%w: %v", ErrIO, err)
	}
	return err
}

// Sync makes everything durable that was done before the call. It also reports
// write-back errors that cur has not seen yet; cur may be nil.
func (fs *FS) Sync(cur *ErrCursor) error {
	g, err := fs.gate.enter()
	if err != nil {
		return err
	}
	defer g.leave()
	err = fs.commitAll()
	if cur != nil {
		fs.errMu.Lock()
		seen := fs.wbErr.check(cur)
		fs.errMu.Unlock()
		if err == nil {
			err = seen
		}
	}
	return err
}

func (fs *FS) commitAll() error {
	if fs.opts.ReadOnly {
		return nil
	}
	err := fs.flushAll()
	if err2 := fs.store.Commit(fs.store.LastLSN()); err == nil {
		err = err2
	}
	return fsyncError(err)
}

// markDirty puts the inode on the list of those to be written back.
func (fs *FS) markDirty(i *Inode) {
	if i.onDirty.Load() || !i.onDirty.CompareAndSwap(false, true) {
		return
	}
	fs.dirtyMu.Lock()
	fs.dirty = append(fs.dirty, i)
	n := len(fs.dirty)
	fs.dirtyMu.Unlock()
	if n > maxDirtyInodes {
		fs.kickFlusher()
	}
}

// popDirty takes the oldest inode off the list, with a reference. It returns
// nil for one that is gone.
func (fs *FS) popDirty() *Inode {
	fs.dirtyMu.Lock()
	if len(fs.dirty) == 0 {
		fs.dirtyMu.Unlock()
		return nil
	}
	i := fs.dirty[0]
	fs.dirty[0] = nil
	fs.dirty = fs.dirty[1:]
	fs.dirtyMu.Unlock()
	held := i.tryIncRef()
	i.onDirty.Store(false)
	if !held {
		return nil
	}
	return i
}

func (fs *FS) countDirty() int {
	fs.dirtyMu.Lock()
	defer fs.dirtyMu.Unlock()
	return len(fs.dirty)
}

// flushAll writes back and logs every inode that was dirty when it began.
func (fs *FS) flushAll() error {
	var errs error
	for n := fs.countDirty(); n > 0; n-- {
		if _, err := fs.flushOne(true); err != nil {
			errs = err
		}
	}
	// Others may still be at it with inodes that they had taken off the list.
	fs.flushing.Lock()
	fs.flushing.Unlock() //nolint:staticcheck // waiting is all
	return errs
}

// writeBackSome writes back the oldest dirty inodes until about pages of their
// pages are written. The caller may hold ioMu of inodes.
func (fs *FS) writeBackSome(pages int64) error {
	var errs error
	for n := fs.countDirty(); n > 0 && pages > 0; n-- {
		written, err := fs.flushOne(false)
		if err != nil {
			errs = err
		}
		pages -= written
	}
	return errs
}

// flushOne writes back the oldest dirty inode, and logs its attributes if
// attrs is set. It returns how many pages were dirty.
func (fs *FS) flushOne(attrs bool) (pages int64, err error) {
	fs.flushing.RLock()
	i := fs.popDirty()
	if i == nil {
		fs.flushing.RUnlock()
		return 0, nil
	}
	pages = i.nDirty.Load()
	err = i.writeBackAll()
	if err == nil && attrs {
		err = i.logAttrs()
	}
	if i.mustFlush() {
		fs.markDirty(i)
	}
	fs.flushing.RUnlock()
	i.decRef()
	return pages, err
}

// mustFlush reports whether there is something to write back or log.
func (i *Inode) mustFlush() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.attrDirty || i.nDirty.Load() > 0
}

// maxDirtyInodes is the number of dirty inodes that wakes the flusher early.
const maxDirtyInodes = 16384

// balanceDirty keeps the number of dirty pages bounded, by letting writers
// write back. It fails only if nothing can be written back.
func (fs *FS) balanceDirty(i *Inode) error {
	c := fs.cache
	limit := int64(c.limit)
	dirty := c.dirty.Load()
	if dirty > limit/4 {
		fs.kickFlusher()
	}
	if dirty <= limit/2 {
		return nil
	}
	if i.nDirty.Load() > 0 {
		if err := i.writeBackAll(); err != nil {
			return err
		}
	}
	if c.dirty.Load() > limit/2 {
		return fs.writeBackSome(c.dirty.Load() - limit/4)
	}
	return nil
}

// flusher is the goroutine that writes back in the background.
type flusher struct {
	kick chan struct{}
	stop chan struct{}
	done sync.WaitGroup
}

func (fs *FS) startFlusher() {
	f := &fs.flusher
	f.kick = make(chan struct{}, 1)
	f.stop = make(chan struct{})
	f.done.Add(1)
	go fs.runFlusher()
}

func (fs *FS) stopFlusher() {
	close(fs.flusher.stop)
	fs.flusher.done.Wait()
}

// kickFlusher makes the flusher look now. It never waits.
func (fs *FS) kickFlusher() {
	select {
	case fs.flusher.kick <- struct{}{}:
	default:
	}
}

func (fs *FS) runFlusher() {
	defer fs.flusher.done.Done()
	var ticks <-chan time.Time
	if fs.opts.CommitInterval > 0 && !fs.opts.ReadOnly {
		t := time.NewTicker(fs.opts.CommitInterval)
		defer t.Stop()
		ticks = t.C
	}
	for {
		select {
		case <-fs.flusher.stop:
			return
		case <-fs.flusher.kick:
			fs.relieve()
		case <-ticks:
			fs.periodicCommit()
		}
	}
}

// periodicCommit makes durable what has been done. Pages mapped for writing are
// taken back first, so that those not written again become clean.
func (fs *FS) periodicCommit() {
	defer fs.discard()
	if fs.countDirty() == 0 {
		// Namespace changes are logged already.
		_ = fs.store.Commit(fs.store.LastLSN()) // a failure is sticky and logged
		return
	}
	fs.revokeWritable()
	_ = fs.commitAll() // failures are kept for those who sync
}

// revokeWritable takes all pages back that are mapped for writing.
func (fs *FS) revokeWritable() {
	fs.inodes.all(func(i *Inode) {
		if i.nMapped.Load() > 0 {
			i.revoke()
		}
	})
}

// relieve brings mapped and dirty pages below what keeps the cache working.
func (fs *FS) relieve() {
	c := fs.cache
	limit := int64(c.limit)
	if c.mapped.Load() > limit/2 {
		fs.inodes.all(func(i *Inode) {
			if c.mapped.Load() > limit/4 {
				i.revoke()
			}
		})
	}
	if fs.opts.ReadOnly {
		return
	}
	if dirty := c.dirty.Load(); dirty > limit/4 {
		_ = fs.writeBackSome(dirty - limit/8) // kept for those who sync
	}
	if fs.countDirty() > maxDirtyInodes {
		_ = fs.flushAll()
	}
}
