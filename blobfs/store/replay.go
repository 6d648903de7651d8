package store

import (
	"errors"
	"fmt"

	"runsc-fs/blobfs/format"
)

// replay applies the log behind the superblock to the tree in memory and
// returns the place where it ends.
//
// The log is read twice. The first time all claims and frees are applied to
// the bitmaps, in order, so that they show the blocks of files as they are at
// the end of the log. The second time the items are applied; nodes that move
// then find places that no file owns at the end, and that the tree of the
// superblock does not use either, so the replay can be repeated if this one is
// interrupted while its result is written.
func (s *Store) replay() (logMark, error) {
	start := logMark{s.sb.LogPos, s.sb.LogSeq, LSN(s.sb.LSN)}
	end, err := s.scanLog(start, 0, func(o *format.Op) error {
		switch o.Code {
		case format.OpClaim:
			return s.replayRun(o.Run, freeToUsed)
		case format.OpFree:
			return s.replayRun(o.Run, usedToFree)
		}
		return nil
	})
	if err != nil {
		return end, err
	}
	if err := s.checkLogEnd(end); err != nil {
		return end, err
	}
	if end.seq == start.seq {
		return end, nil
	}
	s.stats.replayedRecords.Store(end.seq - start.seq)
	s.stats.replayedTxs.Store(uint64(end.lsn - start.lsn))
	_, err = s.scanLog(start, end.seq, s.replayItem)
	s.lastLSN = end.lsn
	return end, err
}

// replayRun applies a claim or free. A bitmap that is damaged cannot take it
// in, and so must not be believed later either.
func (s *Store) replayRun(r format.Run, c change) error {
	err := s.checkDataRun(r)
	if err == nil {
		err = s.alloc.apply(r, c)
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, ErrBadRun) || errors.Is(err, ErrBadRange):
		return format.Corruptf("replaying the log: %v", err)
	case errors.Is(err, format.ErrCorrupt):
		s.alloc.condemn(r)
		return nil
	}
	return fmt.Errorf("replaying the log: %w", err)
}

// condemn notes that the damaged bitmaps of a run's groups lack something that
// happened. A part of the run in another group may be applied or not: leaking
// it is harmless, so claims are and frees are not.
func (a *allocator) condemn(r format.Run) {
	a.mu.Lock()
	defer a.mu.Unlock()
	_ = eachGroup(r, func(g uint64, i, n int) error {
		grp := &a.groups[g]
		if grp.bad {
			grp.condemned = true
		} else if b, err := a.loadLocked(g); err == nil && allBits(&b.used, i, n, false) && allBits(&b.held, i, n, false) {
			return a.applyLocked(format.Run{Start: format.GroupStart(g) + format.Addr(i), Blocks: uint64(n)}, freeToUsed)
		}
		return nil
	})
}

// placeCondemned makes the items of condemned groups name bitmaps that cannot
// exist, so that the groups stay out of use until a repair.
func (s *Store) placeCondemned() error {
	for g := range s.alloc.groups {
		grp := &s.alloc.groups[g]
		if !grp.condemned {
			continue
		}
		item := grp.item
		item.Free, item.CRC = 0, ^item.CRC
		if err := s.putDirect(format.GroupKey(uint64(g)), item.Append(nil)); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) replayItem(o *format.Op) error {
	if o.Code != format.OpPut && o.Code != format.OpDelete {
		return nil
	}
	if isOwn(o.Key) {
		return format.Corruptf("replaying the log: item %v is not changed by transactions", o.Key)
	}
	if s.dirty > maxReplayDirty {
		return format.Corruptf("replaying the log: it changes more than %d nodes", maxReplayDirty)
	}
	if o.Code == format.OpPut {
		return s.putDirect(o.Key, o.Value)
	}
	if err := s.prepareTree(); err != nil {
		return err
	}
	if err := s.walk(&s.path, o.Key); err != nil {
		return err
	}
	i, found := s.path.leaf().data.Search(o.Key)
	if !found {
		return format.Corruptf("replaying the log: item %v to delete does not exist", o.Key)
	}
	s.deleteAt(&s.path, i)
	return nil
}

// scanLog calls fn for the operations of all transactions behind start that
// are not in the superblock's tree, and returns the end of the chain of
// records. until bounds the chain; 0 means as far as it goes.
func (s *Store) scanLog(start logMark, until uint64, fn func(o *format.Op) error) (logMark, error) {
	at := start
	walked := uint32(0)
	var buf []byte
	for until == 0 || at.seq < until {
		rec, blocks, ok, err := s.nextRecord(at, &buf)
		if err != nil {
			return at, err
		}
		if !ok {
			break
		}
		if walked += rec.Blocks(); walked > s.sb.LogBlocks {
			return at, format.Corruptf("log record %d: the log goes round in a circle", rec.Seq)
		}
		if rec.FirstLSN > uint64(at.lsn)+1 || at.seq > start.seq && rec.FirstLSN != uint64(at.lsn)+1 {
			return at, format.Corruptf("log record %d: begins with LSN %d after %d", rec.Seq, rec.FirstLSN, at.lsn)
		}
		skip := false
		err = rec.Transactions(blocks,
			func(lsn uint64) error { skip = lsn <= s.sb.LSN; return nil },
			func(o *format.Op) error {
				if skip {
					return nil
				}
				return fn(o)
			})
		if err != nil {
			return at, err
		}
		if n := s.nextObject.Load(); rec.NextObject > n {
			s.nextObject.Store(rec.NextObject)
		}
		at = logMark{(uint32(rec.Addr-s.sb.LogStart) + rec.Blocks()) % s.sb.LogBlocks, at.seq + 1, LSN(rec.LastLSN)}
	}
	return at, nil
}

// nextRecord looks for the record that follows at: there, or at the start of
// the region if it did not fit. buf is used, and grown, for its blocks.
func (s *Store) nextRecord(at logMark, buf *[]byte) (format.Record, []byte, bool, error) {
	rec, blocks, ok, err := s.recordAt(at.pos, at.seq, buf)
	if err == nil && !ok && at.pos != 0 {
		rec, blocks, ok, err = s.recordAt(0, at.seq, buf)
	}
	return rec, blocks, ok, err
}

// recordAt reads the record at a block of the region if there is a sound one
// with the given sequence number.
func (s *Store) recordAt(pos uint32, seq uint64, buf *[]byte) (rec format.Record, blocks []byte, ok bool, err error) {
	addr := s.sb.LogStart + format.Addr(pos)
	var first [format.BlockSizeBytes]byte
	if err := s.readBlock(addr, first[:]); err != nil {
		return rec, nil, false, err
	}
	rec, ok = format.DecodeRecordHeader(first[:], s.sb.UUID, addr, s.sb.LogEpoch)
	if !ok || rec.Seq != seq || pos+rec.Blocks() > s.sb.LogBlocks {
		return rec, nil, false, nil
	}
	size := int(rec.Blocks()) * format.BlockSizeBytes
	if cap(*buf) < size {
		*buf = make([]byte, size)
	}
	blocks = (*buf)[:size]
	if err := s.readStaged(addr, blocks); err != nil {
		return rec, nil, false, err
	}
	// The header is decoded again: what is checked is what was read now.
	rec, ok = format.DecodeRecordHeader(blocks, s.sb.UUID, addr, s.sb.LogEpoch)
	return rec, blocks, ok && rec.Seq == seq && int(rec.Blocks())*format.BlockSizeBytes == size && rec.CheckCRC(blocks), nil
}

// checkLogEnd tells a log that ends from one that is broken. Records are
// written one after the other, so a crash never leaves one behind a missing
// one, and none is longer than MaxRecordBlocks.
func (s *Store) checkLogEnd(end logMark) error {
	last := end.pos + format.MaxRecordBlocks
	if err := s.findLaterRecord(end, end.pos+1, min(last+1, s.sb.LogBlocks)); err != nil {
		return err
	}
	if last < s.sb.LogBlocks {
		return nil
	}
	return s.findLaterRecord(end, 0, min(format.MaxRecordBlocks+1, end.pos))
}

// findLaterRecord returns an error if there is a sound record with the
// sequence number behind end's in blocks [from, to) of the region.
func (s *Store) findLaterRecord(end logMark, from, to uint32) error {
	part := make([]byte, stagingPages*format.BlockSizeBytes)
	var buf []byte
	for ; from < to; from += stagingPages {
		n := min(to-from, stagingPages)
		addr := s.sb.LogStart + format.Addr(from)
		if err := s.readStaged(addr, part[:n*format.BlockSizeBytes]); err != nil {
			return err
		}
		for i := range n {
			rec, ok := format.DecodeRecordHeader(part[i*format.BlockSizeBytes:], s.sb.UUID, addr+format.Addr(i), s.sb.LogEpoch)
			if !ok || rec.Seq != end.seq+1 {
				continue
			}
			_, _, ok, err := s.recordAt(from+i, end.seq+1, &buf)
			if err != nil {
				return err
			}
			if ok {
				return format.Corruptf("log record %d is damaged: a later one exists at block %v", end.seq, addr+format.Addr(i))
			}
		}
	}
	return nil
}
