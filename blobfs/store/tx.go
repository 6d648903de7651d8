package store

import (
	"errors"
	"fmt"

	"runsc-fs/blobfs/format"
)

// LSN numbers transactions in the order in which they happened.
type LSN uint64

// MaxTxBytes bounds the logged form of one transaction: the keys and values of
// all its operations, and about twenty bytes for each.
const MaxTxBytes = 192 << 10

// Tx is a transaction in progress. It is valid only within the function that
// Update calls, and only in the goroutine that called it.
type Tx struct {
	Reader
	enc     []byte // logged form
	ops     int
	freeing bool
	active  bool
	alone   bool // see Independent

	undo    []undoOp
	undoOld []byte       // values that undo refers to
	freed   []format.Run // runs to release once this is durable
}

// undoOp reverts one operation.
type undoOp struct {
	code     format.OpCode // what was done
	key      format.Key
	existed  bool
	from, to int // the old value, in undoOld
	run      format.Run
}

// maxKeepBytes bounds the buffers kept from one transaction to the next.
const maxKeepBytes = 64 << 10

func (tx *Tx) begin(freeing bool) {
	if cap(tx.enc) > maxKeepBytes || cap(tx.undoOld) > maxKeepBytes {
		tx.enc, tx.undoOld, tx.undo = nil, nil, nil
	}
	tx.enc = append(tx.enc[:0], make([]byte, format.TxHeaderBytes)...)
	tx.ops, tx.freeing, tx.active, tx.alone = 0, freeing, true, false
	tx.undo, tx.undoOld, tx.freed = tx.undo[:0], tx.undoOld[:0], tx.freed[:0]
}

// Update runs fn as one transaction: after a crash either all or nothing of
// what it did is there. Transactions are serialised, and fn must not call
// Update, View, Commit, Checkpoint, Reserve or Allocate. If fn returns an
// error, all it did is undone and Update returns that error. The result is
// durable after Commit of the returned LSN.
//
// ErrNoSpace is returned before fn runs if there is not enough room for
// metadata; up to 32 operations then cannot meet it. Longer transactions may,
// and are undone.
func (s *Store) Update(fn func(tx *Tx) error) (LSN, error) { return s.update(fn, false) }

// UpdateFreeing is Update for transactions that free space, or complete what
// Reserve has promised: it may use a reserve that Update leaves alone, so that
// it works on a full volume.
func (s *Store) UpdateFreeing(fn func(tx *Tx) error) (LSN, error) { return s.update(fn, true) }

func (s *Store) update(fn func(tx *Tx) error, freeing bool) (LSN, error) {
	if !freeing && s.spaceDenied() {
		return 0, ErrNoSpace
	}
	if err := s.lockForUpdate(freeing); err != nil {
		return 0, err
	}
	lsn, checkpoint, err := s.runLocked(fn, freeing)
	if err == nil && checkpoint {
		s.startCheckpoint()
	}
	return lsn, err
}

// runLocked runs fn with mu held exclusively and unlocks it.
func (s *Store) runLocked(fn func(tx *Tx) error, freeing bool) (lsn LSN, checkpoint bool, err error) {
	tx := &s.tx
	tx.begin(freeing)
	done := false
	defer func() {
		if !done { // fn panicked
			tx.rollback()
		}
		tx.active = false
		if s.cacheFull() {
			s.sweepLocked()
		}
		s.mu.Unlock()
	}()
	err = fn(tx)
	done = true
	if err != nil {
		tx.rollback()
		return 0, false, err
	}
	if tx.ops == 0 {
		return s.lastLSN, false, nil
	}
	s.lastLSN++
	format.PutTxHeader(tx.enc, tx.ops, uint64(s.lastLSN))
	logFull := s.log.append(tx.enc, s.lastLSN, tx.alone)
	if len(tx.freed) > 0 {
		s.alloc.addPending(tx.freed, s.lastLSN)
	}
	s.setFloor()
	s.stats.updates.Add(1)
	return s.lastLSN, logFull || s.dirty >= s.dirtySoft, nil
}

// updateAttempts bounds how often a transaction makes room before it gives up.
const updateAttempts = 1000

// lockForUpdate locks mu exclusively in a state in which a transaction can run
// to its end: there is room in the log, in the node cache and on the volume.
func (s *Store) lockForUpdate(freeing bool) error {
	forSpace := 0
	for range updateAttempts {
		s.mu.Lock()
		want, err := s.admitLocked(freeing, forSpace < spaceAttempts)
		if want == admitNow && err == nil {
			return nil
		}
		s.mu.Unlock()
		if err != nil {
			return err
		}
		switch want {
		case admitAfterCommit:
			err = s.log.commit(s.log.lastAppended(), 0)
		case admitAfterSpace:
			forSpace++
			fallthrough
		case admitAfterCheckpoint:
			err = s.checkpointUnless(func() bool {
				s.mu.RLock()
				defer s.mu.RUnlock()
				want, err := s.admitLocked(freeing, true)
				return want < admitAfterCheckpoint || err != nil
			})
		}
		if err != nil {
			return err
		}
	}
	return ErrBusy
}

// checkpointUnless waits for the checkpoint in progress, if any, and makes one
// unless it is no longer wanted then.
func (s *Store) checkpointUnless(enough func() bool) error {
	s.checkpointMu.Lock()
	defer s.checkpointMu.Unlock()
	if enough() {
		return nil
	}
	return s.checkpointLocked(checkpointIfNeeded)
}

// admission is what must happen before a transaction may run.
type admission int

const (
	admitNow             admission = iota
	admitAfterCommit               // log buffer full
	admitAfterCheckpoint           // log region full, or too many dirty nodes
	admitAfterSpace                // volume full, but a checkpoint brings blocks
)

// admitLocked says what must happen first. mu is held, shared or not.
func (s *Store) admitLocked(freeing, retrySpace bool) (admission, error) {
	if err := s.writable(); err != nil {
		return admitNow, err
	}
	bufferFull, regionFull := s.log.room()
	switch {
	case regionFull || s.dirty >= s.dirtyHard:
		return admitAfterCheckpoint, nil
	case bufferFull:
		return admitAfterCommit, nil
	}
	need := s.txBlocks()
	if !freeing {
		need = 2*need + s.withheldBlocks()
	}
	a := s.alloc
	a.mu.Lock()
	if a.spareLocked() < need {
		a.dropDiscardsLocked()
	}
	spare, pending := a.spareLocked(), a.pendingLocked()
	a.mu.Unlock()
	switch {
	case spare >= need:
		return admitNow, nil
	case retrySpace && spare+pending >= need:
		return admitAfterSpace, nil
	}
	return admitNow, ErrNoSpace
}

// prepare makes sure that the next operation, whose logged form takes size
// bytes, and its undoing cannot fail for lack of room.
func (tx *Tx) prepare(size int) error {
	s := tx.s
	if !tx.active {
		return ErrClosed
	}
	if len(tx.enc)+size > MaxTxBytes {
		return ErrTooBig
	}
	blocks := s.opBlocks()
	if tx.ops >= guaranteedOps {
		if s.alloc.spare() < int64(2*blocks+tx.ops) {
			return ErrNoSpace
		}
	}
	return s.prepareTree()
}

// Put stores an item, replacing the value if the key exists. value is copied.
func (tx *Tx) Put(k format.Key, value []byte) error {
	if len(value) > format.MaxValueBytes {
		return ErrTooBig
	}
	if isOwn(k) {
		return ErrBadKey
	}
	if err := tx.prepare(format.KeyBytes + 3 + len(value)); err != nil {
		return err
	}
	s := tx.s
	if err := s.walk(&s.path, k); err != nil {
		return err
	}
	u := undoOp{code: format.OpPut, key: k}
	leaf := s.path.leaf()
	if i, found := leaf.data.Search(k); found {
		u.existed, u.from = true, len(tx.undoOld)
		tx.undoOld = append(tx.undoOld, leaf.data.Value(i)...)
		u.to = len(tx.undoOld)
	}
	s.putAt(&s.path, k, value)
	tx.undo = append(tx.undo, u)
	tx.enc = format.AppendPut(tx.enc, k, value)
	tx.ops++
	return nil
}

// Delete removes an item; ErrNotFound if there is none.
func (tx *Tx) Delete(k format.Key) error {
	if isOwn(k) {
		return ErrBadKey
	}
	if err := tx.prepare(format.KeyBytes + 1); err != nil {
		return err
	}
	s := tx.s
	if err := s.walk(&s.path, k); err != nil {
		return err
	}
	leaf := s.path.leaf()
	i, found := leaf.data.Search(k)
	if !found {
		return ErrNotFound
	}
	u := undoOp{code: format.OpDelete, key: k, existed: true, from: len(tx.undoOld)}
	tx.undoOld = append(tx.undoOld, leaf.data.Value(i)...)
	u.to = len(tx.undoOld)
	s.deleteAt(&s.path, i)
	tx.undo = append(tx.undo, u)
	tx.enc = format.AppendDelete(tx.enc, k)
	tx.ops++
	return nil
}

// isOwn reports whether an item is the store's own.
func isOwn(k format.Key) bool { return k.Object == 0 && k.Kind == format.KindGroup }

// Claim makes a provisional run, or a part of one, persistent with this
// transaction.
func (tx *Tx) Claim(run format.Run) error { return tx.changeRun(format.OpClaim, run) }

// Free frees a run, or a part of one, with this transaction. Its blocks are
// allocatable again once the transaction is durable.
func (tx *Tx) Free(run format.Run) error { return tx.changeRun(format.OpFree, run) }

func (tx *Tx) changeRun(code format.OpCode, run format.Run) error {
	s := tx.s
	if err := tx.prepare(16); err != nil {
		return err
	}
	if err := s.checkDataRun(run); err != nil {
		return err
	}
	if code == format.OpClaim {
		if err := s.alloc.apply(run, heldToUsed); err != nil {
			return err
		}
		tx.enc = format.AppendClaim(tx.enc, run)
	} else {
		leaked, err := s.alloc.freeRun(run)
		if err != nil {
			// Somebody else freed them, or they never were in use.
			if !errors.Is(err, format.ErrCorrupt) {
				err = fmt.Errorf("%w: %w", format.ErrCorrupt, err)
			}
			return err
		}
		if leaked {
			return nil
		}
		tx.enc = format.AppendFree(tx.enc, run)
		tx.freed = append(tx.freed, run)
	}
	tx.undo = append(tx.undo, undoOp{code: code, run: run})
	tx.ops++
	return nil
}

// Independent declares that this transaction makes sense without the data that
// was written before it: it neither makes blocks readable nor promises anything
// of their content. Its record then shares one flush with that data instead of
// waiting for one of its own.
func (tx *Tx) Independent() { tx.alone = true }

// Generation returns the generation that this transaction belongs to, for the
// birth of extents.
func (tx *Tx) Generation() uint64 { return tx.s.gen }

// rollback undoes all operations, the last one first. Each of them met a tree
// in which its undoing fits, all nodes it needs are dirty and so in memory,
// and prepare has seen to the blocks; if it fails nevertheless, the tree in
// memory is wrong and must never reach the disk.
func (tx *Tx) rollback() {
	s := tx.s
	s.undoing = true
	defer func() { s.undoing = false }()
	for i := len(tx.undo) - 1; i >= 0; i-- {
		if err := tx.revert(&tx.undo[i]); err != nil {
			s.poison(fmt.Errorf("undoing a transaction: %w", err))
			return
		}
	}
}

func (tx *Tx) revert(u *undoOp) error {
	s := tx.s
	switch u.code {
	case format.OpClaim:
		return s.alloc.apply(u.run, usedToHeld)
	case format.OpFree:
		return s.alloc.apply(u.run, heldToUsed)
	}
	if err := s.prepareTree(); err != nil {
		return err
	}
	if err := s.walk(&s.path, u.key); err != nil {
		return err
	}
	if u.existed {
		s.putAt(&s.path, u.key, tx.undoOld[u.from:u.to])
		return nil
	}
	i, found := s.path.leaf().data.Search(u.key)
	if !found {
		return ErrNotFound
	}
	s.deleteAt(&s.path, i)
	return nil
}
