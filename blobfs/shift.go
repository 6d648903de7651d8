package blobfs

import (
	"errors"
	"fmt"

	"runsc-fs/blobfs/format"
)

// maxShiftExtents is how many extents one transaction can move. A file is
// collapsed or opened up at once or not at all, so those that have more behind
// the place are left alone.
const maxShiftExtents = 1500

// shiftAttempts is how often shift tries to find the rest of the file at rest.
const shiftAttempts = 100

var errTooFragmented = fmt.Errorf("%w: more than %d extents would have to move", ErrNotSupported, maxShiftExtents)

// Collapse takes [off, off+n) out of a file: what lies behind moves to off. Both
// are multiples of BlockSizeBytes, and something must be left behind them. It is
// durable when Collapse returns; a crash before leaves it done or not. Errors: ErrInvalid, ErrIsDir, ErrNotSupported
// for a file in too many pieces, ErrWouldBlock if somebody does not stop to write
// through a mapping, ErrNoSpace, ErrReadOnly, ErrIO.
func (i *Inode) Collapse(off, n int64) error {
	return i.shift(off, n, func(size int64) (int64, error) {
		if n >= size-off {
			return 0, fmt.Errorf("%w: %d bytes at %d in a file of %d bytes", ErrInvalid, n, off, size)
		}
		return size - n, nil
	}, func(tx *txn, first, blocks uint64) error {
		next, err := tx.unmapFree(i, first, first+blocks, maxShiftExtents)
		if err == nil && next < first+blocks {
			err = errTooFragmented
		}
		if err != nil {
			return err
		}
		return tx.moveExtents(i, first+blocks, -blocks)
	})
}

// Insert makes a hole of n bytes at off in a file, and what lies there and behind
// moves by n. Errors: as Collapse, and ErrFileTooBig.
func (i *Inode) Insert(off, n int64) error {
	return i.shift(off, n, func(size int64) (int64, error) {
		switch {
		case off >= size:
			return 0, fmt.Errorf("%w: offset %d in a file of %d bytes", ErrInvalid, off, size)
		case n > MaxFileSizeBytes-size:
			return 0, ErrFileTooBig
		}
		return size + n, nil
	}, func(tx *txn, first, blocks uint64) error { return tx.moveExtents(i, first, blocks) })
}

// shift changes where the blocks from off on are, by move, and the size, to what
// resize says.
func (i *Inode) shift(off, n int64, resize func(size int64) (int64, error), move func(tx *txn, first, blocks uint64) error) error {
	g, err := i.fs.gate.enter()
	if err != nil {
		return err
	}
	defer g.leave()
	if err := i.checkIO(off, n); err != nil {
		return err
	}
	switch {
	case n == 0 || (off|n)%BlockSizeBytes != 0:
		return fmt.Errorf("%w: %d bytes at %d are no whole blocks", ErrInvalid, n, off)
	case i.fs.ReadOnly():
		return ErrReadOnly
	}
	i.ioMu.Lock()
	defer i.ioMu.Unlock()
	size, err := resize(i.size.Load())
	if err != nil {
		return err
	}
	first, blocks := uint64(off)/BlockSizeBytes, uint64(n)/BlockSizeBytes
	var detached []*page
	for range shiftAttempts {
		i.revoke()
		var quiet bool
		detached, quiet, err = i.shiftLocked(first, size, func(tx *txn) error { return move(tx, first, blocks) })
		if quiet || err != nil {
			break
		}
		err = ErrWouldBlock
	}
	if len(detached) > 0 {
		i.callInvalidator(off, MaxFileSizeBytes-off)
	}
	for _, p := range detached {
		i.fs.cache.unpin(p)
	}
	return err
}

// shiftLocked does it, unless somebody may be storing to pages from first on. It
// returns, pinned, the pages that left the file and may be mapped for reading.
func (i *Inode) shiftLocked(first uint64, size int64, move func(tx *txn) error) (detached []*page, quiet bool, err error) {
	i.wbMu.Lock()
	defer i.wbMu.Unlock()
	if err := i.writeBackLocked(0, endOfBlocks); err != nil {
		return nil, false, err
	}
	// From here on nobody reads blocks of the file, and no Fault returns a page.
	i.fillMu.Lock()
	defer i.fillMu.Unlock()
	if i.isDirty(first, endOfBlocks) {
		return nil, false, nil
	}
	change := size - i.size.Load()
	err = i.fs.updateFreeing(func(tx *txn) error {
		tx.touch(i)
		i.mu.Lock()
		if at := int64(first) * BlockSizeBytes; i.diskSize > at {
			i.diskSize = max(i.diskSize+change, at)
		}
		i.mu.Unlock()
		return move(tx)
	})
	if errors.Is(err, errTooFragmented) {
		return nil, true, errTooFragmented
	}
	if err != nil {
		return nil, true, err
	}
	i.ext.reset()
	i.dropPages(first, endOfBlocks, true)
	detached = i.detachPages(first, endOfBlocks, nil)
	i.mu.Lock()
	i.size.Store(size)
	i.attrChangedLocked()
	i.mu.Unlock()
	i.modified()
	i.checkInvariants()
	// The blocks that moved are written in place from here on. That must not show
	// in the places they had before, so the move is durable first.
	return detached, true, volumeError(i.fs.store.CommitLog(i.fs.store.LastLSN()))
}

// moveExtents moves everything from block first on by a distance, modulo 2^64.
func (tx *txn) moveExtents(i *Inode, first, distance uint64) error {
	next, err := tx.unmap(i, first, format.MaxFileBlocks, maxShiftExtents, func(p piece) error {
		p.first += distance
		if p.end() > format.MaxFileBlocks {
			return ErrFileTooBig
		}
		return tx.mapPiece(i.ino, p)
	})
	if err == nil && next < format.MaxFileBlocks {
		err = errTooFragmented
	}
	return err
}
