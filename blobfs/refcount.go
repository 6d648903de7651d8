package blobfs

import (
	"runsc-fs/blobfs/format"
	"runsc-fs/blobfs/store"
)

// Blocks with several owners are counted by refcount items (format.RefcountItem).
// Only what adds or removes owners of shared blocks looks at them; whether a
// block may be overwritten shows in the extent.

// ownedRun is a run of blocks with one number of owners.
type ownedRun struct {
	format.Run
	owners uint64
}

func (r ownedRun) cut(from, to format.Addr) ownedRun {
	from, to = max(from, r.Start), min(to, r.End())
	return ownedRun{format.Run{Start: from, Blocks: uint64(to - from)}, r.owners}
}

func (fs *FS) decodeRefcount(k format.Key, v []byte) (ownedRun, error) {
	item, err := format.DecodeRefcountItem(k, v, fs.store.VolumeBlocks())
	if err != nil {
		return ownedRun{}, err
	}
	return ownedRun{format.Run{Start: format.Addr(k.Offset), Blocks: uint64(item.Blocks)}, item.Owners}, nil
}

// eachRefcount calls fn for the items that overlap the blocks [from, to), in
// order and whole, until fn returns false.
func (fs *FS) eachRefcount(r *store.Reader, from, to format.Addr, fn func(o ownedRun) bool) error {
	var buf [format.RefcountItemBytes]byte
	k, v, ok, err := r.SeekLast(format.RefcountKey(0), format.RefcountKey(from), buf[:0])
	if err != nil {
		return err
	}
	end := format.Addr(0)
	if ok {
		o, err := fs.decodeRefcount(k, v)
		if err != nil {
			return err
		}
		if end = o.End(); end > from && !fn(o) {
			return nil
		}
	}
	if from+1 >= to {
		return nil
	}
	return r.Scan(format.RefcountKey(from+1), format.RefcountKey(to-1), func(k format.Key, v []byte) (bool, error) {
		o, err := fs.decodeRefcount(k, v)
		if err != nil {
			return false, err
		}
		if o.Start < end {
			return false, corruptf("the owners of block %v are counted twice", o.Start)
		}
		end = o.End()
		return fn(o), nil
	})
}

// eachOwnedRun calls fn for the parts of run, in order, with their numbers of
// owners, until fn returns false.
func (fs *FS) eachOwnedRun(r *store.Reader, run format.Run, fn func(o ownedRun) bool) error {
	at, more := run.Start, true
	err := fs.eachRefcount(r, run.Start, run.End(), func(o ownedRun) bool {
		o = o.cut(run.Start, run.End())
		if o.Start > at {
			more = fn(ownedRun{format.Run{Start: at, Blocks: uint64(o.Start - at)}, 1})
		}
		at = o.End()
		more = more && fn(o)
		return more
	})
	if err == nil && more && at < run.End() {
		fn(ownedRun{format.Run{Start: at, Blocks: uint64(run.End() - at)}, 1})
	}
	return err
}

// The costs of steps, as limits count them: what is bounded is the number of
// operations of a transaction.
const (
	extentCost = 1
	ownersCost = 2 // of each run of shared blocks with one number of owners
)

// affordable returns how many of the blocks of run, from its beginning on, may
// get or lose an owner at no more than limit, but at least one run of them, and
// what that costs.
func (fs *FS) affordable(r *store.Reader, run format.Run, limit int) (blocks uint64, cost int, err error) {
	err = fs.eachOwnedRun(r, run, func(o ownedRun) bool {
		if cost > 0 && cost+ownersCost > limit {
			return false
		}
		cost += ownersCost
		blocks += o.Blocks
		return true
	})
	return blocks, cost, err
}

// addOwner counts one owner more for each block of run.
func (tx *txn) addOwner(run format.Run) error { return tx.recount(run, 1) }

// dropOwner counts one owner less for each block of run and frees those that
// have lost the last.
func (tx *txn) dropOwner(run format.Run) error { return tx.recount(run, ^uint64(0)) }

// recount adds delta to the numbers of owners of a run. Neighbouring items of
// equal numbers become one.
func (tx *txn) recount(run format.Run, delta uint64) error {
	old, now, orphaned := tx.oldOwners[:0], tx.newOwners[:0], tx.orphaned[:0]
	add := func(o ownedRun) {
		if n := len(now); n > 0 && now[n-1].End() == o.Start && now[n-1].owners == o.owners &&
			now[n-1].Blocks+o.Blocks <= format.MaxRefcountBlocks {
			now[n-1].Blocks += o.Blocks
		} else if o.owners > 1 && o.Blocks > 0 {
			now = append(now, o)
		}
	}
	at := run.Start
	change := func(o ownedRun) { // of a part of run
		if o.owners += delta; o.owners == 0 {
			orphaned = append(orphaned, o.Run)
		} else {
			add(o)
		}
		at = o.End()
	}
	gap := func(to format.Addr) {
		if to > at {
			change(ownedRun{format.Run{Start: at, Blocks: uint64(to - at)}, 1})
		}
	}
	// What touches the run takes part, to be joined.
	err := tx.fs.eachRefcount(&tx.Reader, run.Start-1, run.End()+1, func(o ownedRun) bool {
		old = append(old, o)
		if o.Start < run.Start {
			add(o.cut(0, run.Start))
		}
		if o.Start < run.End() && o.End() > run.Start {
			gap(o.Start)
			change(o.cut(run.Start, run.End()))
		}
		if o.End() > run.End() {
			gap(run.End())
			add(o.cut(run.End(), o.End()))
		}
		return true
	})
	if err != nil {
		return err
	}
	gap(run.End())
	tx.oldOwners, tx.newOwners, tx.orphaned = old, now, orphaned
	if err := tx.putOwners(old, now); err != nil {
		return err
	}
	for _, r := range orphaned {
		if err := tx.Free(r); err != nil {
			return err
		}
	}
	return nil
}

// putOwners replaces the refcount items of old by those of now.
func (tx *txn) putOwners(old, now []ownedRun) error {
	n := 0
	for _, o := range old {
		for n < len(now) && now[n].Start < o.Start {
			n++
		}
		if n < len(now) && now[n].Start == o.Start {
			continue
		}
		if err := tx.Delete(format.RefcountKey(o.Start)); err != nil {
			return err
		}
	}
	n = 0
	for _, o := range now {
		for n < len(old) && old[n].Start < o.Start {
			n++
		}
		if n < len(old) && old[n] == o {
			continue
		}
		item := format.RefcountItem{Blocks: uint32(o.Blocks), Owners: o.owners}
		if err := tx.Put(format.RefcountKey(o.Start), item.Append(tx.item[:0])); err != nil {
			return err
		}
	}
	return nil
}

// checkSoleOwner returns an error if a run whose extent is not marked as shared
// is counted as having several owners: the others must not lose it.
func (tx *txn) checkSoleOwner(run format.Run) error {
	if !tx.fs.sharing() {
		return nil
	}
	var err error
	err2 := tx.fs.eachRefcount(&tx.Reader, run.Start, run.End(), func(o ownedRun) bool {
		err = corruptf("block %v has %d owners, and one does not know of the others", o.Start, o.owners)
		return false
	})
	if err2 != nil {
		return err2
	}
	return err
}

// sharing reports whether there may be blocks with several owners.
func (fs *FS) sharing() bool { return fs.store.HasFeatures(format.IncompatReflink) }
