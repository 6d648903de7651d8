package store

import (
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

func (s *Store) replayRun(r format.Run, c change) error {
	err := s.checkDataRun(r)
	if err == nil {
		err = s.alloc.apply(r, c)
	}
	if err != nil {
		return format.Corruptf("replaying the log: %v", err)
	}
	return nil
}

func (s *Store) replayItem(o *format.Op) error {
	if o.Code != format.OpPut && o.Code != format.OpDelete {
		return nil
	}
	if o.Key.Object == 0 && o.Key.Kind == format.KindGroup {
		return format.Corruptf("replaying the log: item %v is not changed by transactions", o.Key)
	}
	if s.dirty > maxReplayDirty {
		return format.Corruptf("replaying the log: it changes more than %d nodes", maxReplayDirty)
	}
	if o.Code == format.OpPut {
		return s.putDirect(o.Key, o.Value)
	}
	if err := s.alloc.fillPool(s.opBlocks()); err != nil {
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
	buf := make([]byte, format.MaxRecordBlocks*format.BlockSizeBytes)
	for until == 0 || at.seq < until {
		rec, blocks, ok, err := s.nextRecord(at, buf)
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
// the region if it did not fit.
func (s *Store) nextRecord(at logMark, buf []byte) (format.Record, []byte, bool, error) {
	rec, blocks, ok, err := s.recordAt(at.pos, at.seq, buf)
	if err == nil && !ok && at.pos != 0 {
		rec, blocks, ok, err = s.recordAt(0, at.seq, buf)
	}
	return rec, blocks, ok, err
}

// recordAt reads the record at a block of the region if there is a sound one
// with the given sequence number.
func (s *Store) recordAt(pos uint32, seq uint64, buf []byte) (rec format.Record, blocks []byte, ok bool, err error) {
	addr := s.sb.LogStart + format.Addr(pos)
	if err := s.readBlock(addr, buf[:format.BlockSizeBytes]); err != nil {
		return rec, nil, false, err
	}
	rec, ok = format.DecodeRecordHeader(buf, s.sb.UUID, addr, s.sb.LogEpoch)
	if !ok || rec.Seq != seq || pos+rec.Blocks() > s.sb.LogBlocks {
		return rec, nil, false, nil
	}
	for i := uint32(1); i < rec.Blocks(); i++ {
		at := i * format.BlockSizeBytes
		if err := s.readBlock(addr+format.Addr(i), buf[at:at+format.BlockSizeBytes]); err != nil {
			return rec, nil, false, err
		}
	}
	return rec, buf, rec.CheckCRC(buf), nil
}

// checkLogEnd tells a log that ends from one that is broken. Records are
// written one after the other, so a crash never leaves one behind a missing one.
func (s *Store) checkLogEnd(end logMark) error {
	buf := make([]byte, format.MaxRecordBlocks*format.BlockSizeBytes)
	check := func(from, to uint32) error {
		for pos := from; pos < min(to, s.sb.LogBlocks); pos++ {
			_, _, ok, err := s.recordAt(pos, end.seq+1, buf)
			if err != nil {
				return err
			}
			if ok {
				return format.Corruptf("log record %d is damaged: a later one exists at block %v", end.seq, s.sb.LogStart+format.Addr(pos))
			}
		}
		return nil
	}
	if err := check(end.pos+1, end.pos+1+format.MaxRecordBlocks); err != nil {
		return err
	}
	return check(0, 1+format.MaxRecordBlocks)
}
