package fsck

import (
	"fmt"
	"slices"

	"runsc-fs/blobfs/format"
)

// change is what the log does to one item in the end.
type change struct {
	key          format.Key
	off          uint32 // of the value in checker.values
	seq          uint32 // order in the log
	size         uint16
	deleted      bool
	deletesFirst bool // the first thing the log does is to delete the item
}

func (ch *change) value(c *checker) []byte { return c.values[ch.off : ch.off+uint32(ch.size)] }

// runOp is a claim or a free of the log. Its record is named in findings.
type runOp struct {
	start  format.Addr
	blocks uint32
	free   bool
	record uint32 // number in the chain, from 0
}

// logChain reads the records that a mount replays, in order.
type logChain struct {
	c    *checker
	pos  uint32 // block of the region where the next record is looked for
	seq  uint64 // its number
	lsn  uint64 // last transaction of the records so far; 0 before the first
	rec  format.Record
	at   uint32 // where rec stands
	data []byte // all of it
	n    int    // records so far
}

func (c *checker) newLogChain() *logChain {
	return &logChain{
		c: c, pos: c.sb.LogPos, seq: c.sb.LogSeq, data: make([]byte, format.BlockSizeBytes),
	}
}

// next reads the next record. false without an error is the end of the log.
func (l *logChain) next() (bool, error) {
	sb := l.c.sb
	if l.n > int(sb.LogBlocks) {
		return false, nil
	}
	// A record that did not fit at the end of the region begins at its start.
	for _, pos := range [2]uint32{l.pos, 0} {
		ok, err := l.readAt(pos, sb.LogEpoch)
		if err != nil {
			return false, err
		}
		if ok && l.rec.Seq == l.seq {
			l.at = pos
			l.pos = pos + l.rec.Blocks()
			if l.pos == sb.LogBlocks {
				l.pos = 0
			}
			l.seq++
			l.n++
			return true, nil
		}
	}
	return false, nil
}

// readAt reads the record at a block of the region and reports whether there
// is a valid one.
func (l *logChain) readAt(pos uint32, epoch uint64) (bool, error) {
	sb := l.c.sb
	addr := sb.LogStart + format.Addr(pos)
	first := l.data[:format.BlockSizeBytes]
	if err := l.c.io.read(addr, first); err != nil {
		return false, err
	}
	rec, ok := format.DecodeRecordHeader(first, sb.UUID, addr, epoch)
	if !ok || rec.Blocks() > sb.LogBlocks-pos {
		return false, nil
	}
	size := int(rec.Blocks()) * format.BlockSizeBytes // at most MaxRecordBlocks
	if size > len(l.data) {
		l.data = append(make([]byte, 0, size), first...)[:size]
	}
	if err := l.c.io.read(addr+1, l.data[format.BlockSizeBytes:size]); err != nil {
		return false, err
	}
	l.rec = rec
	return rec.CheckCRC(l.data[:size]), nil
}

// record is the bytes of the current record.
func (l *logChain) record() []byte { return l.data[:l.rec.Blocks()*format.BlockSizeBytes] }

func recordName(r *format.Record) string { return fmt.Sprintf("log record %d", r.Seq) }

// checkLog follows the log and gathers what it changes.
func (c *checker) checkLog() {
	l := c.newLogChain()
	ctr := &c.rep.Counters
	for {
		ok, err := l.next()
		if err != nil {
			c.found(Error, CodeLogIO, "log", "%v; what it holds from record %d on is lost", err, l.seq)
			break
		}
		if !ok {
			c.checkLogEnd(l)
			break
		}
		ctr.LogRecords++
		if !allZero(l.data[80:format.RecordHeaderBytes]) {
			c.found(Warning, CodeReserved, recordName(&l.rec), "reserved bytes are set")
		}
		if !c.takeRecord(l) {
			break
		}
	}
	if c.rep.Closed && ctr.LogRecords > 0 {
		c.found(Error, CodeLogClean, "log", "has %d records although the volume was closed", ctr.LogRecords)
	}
	c.compactOverlay()
}

// takeRecord takes over the operations of a record, and reports whether the
// log goes on.
func (c *checker) takeRecord(l *logChain) bool {
	rec := &l.rec
	// Transactions that the published tree contains need not be in the log.
	if want := max(l.lsn, c.sb.LSN) + 1; rec.FirstLSN > want || rec.FirstLSN <= l.lsn {
		c.found(Error, CodeLogGap, recordName(rec), "begins with transaction %d, expected is %d: for a mount the log ends before it", rec.FirstLSN, want)
		return false
	}
	// What was already in the tree when it was published is skipped.
	skip := false
	err := rec.Transactions(l.record(), func(lsn uint64) error {
		if skip = lsn <= c.sb.LSN; !skip {
			c.rep.Counters.LogTransactions++
		}
		return nil
	}, func(o *format.Op) error {
		if !skip {
			c.takeOp(rec, uint32(l.n-1), o)
		}
		return nil
	})
	if err != nil {
		c.found(Error, CodeLogRecord, recordName(rec), "%s", reason(err))
		return false
	}
	l.lsn = rec.LastLSN
	c.nextObject = max(c.nextObject, rec.NextObject)
	return true
}

func (c *checker) takeOp(rec *format.Record, number uint32, o *format.Op) {
	c.rep.Counters.LogOperations++
	switch o.Code {
	case format.OpPut, format.OpDelete:
		if o.Key.Object == 0 && o.Key.Kind == format.KindGroup {
			c.found(Error, CodeLogKey, recordName(rec), "changes the item of group %d, as only checkpoints may", o.Key.Offset)
			return
		}
		c.overlay = append(c.overlay, change{
			key: o.Key, off: uint32(len(c.values)), seq: uint32(len(c.overlay)), size: uint16(len(o.Value)), deleted: o.Code == format.OpDelete,
		})
		c.values = append(c.values, o.Value...)
	case format.OpClaim, format.OpFree:
		if err := c.checkDataRun(o.Run); err != "" {
			c.found(Error, CodeLogRun, recordName(rec), "claims or frees what cannot be file data: %s", err)
			return
		}
		c.runs = append(c.runs, runOp{o.Run.Start, uint32(o.Run.Blocks), o.Code == format.OpFree, number})
	}
}

// checkDataRun says why a run cannot hold file data; "" if it can.
func (c *checker) checkDataRun(r format.Run) string {
	if err := format.CheckRun(r, c.sb.VolumeBlocks); err != nil {
		return reason(err)
	}
	fixed := format.Run{}
	first, _ := format.GroupOf(r.Start)
	last, _ := format.GroupOf(r.End() - 1)
	// A run that reaches over a whole group covers the fixed blocks of the
	// second group, so no more than two need a look.
	for g := first; g <= min(last, first+1); g++ {
		for _, f := range c.sb.FixedRuns(g) {
			if r.Start < f.End() && f.Start < r.End() {
				fixed = f
			}
		}
	}
	if fixed.Blocks > 0 {
		return fmt.Sprintf("%v cover fixed %v", r, fixed)
	}
	return ""
}

// compactOverlay sorts the changes by key and keeps the last of each.
func (c *checker) compactOverlay() {
	slices.SortFunc(c.overlay, func(a, b change) int {
		if d := a.key.Compare(b.key); d != 0 {
			return d
		}
		return int(int64(a.seq) - int64(b.seq))
	})
	kept := c.overlay[:0]
	for _, ch := range c.overlay {
		n := len(kept)
		if n == 0 || kept[n-1].key != ch.key {
			ch.deletesFirst = ch.deleted
			kept = append(kept, ch)
			continue
		}
		last := &kept[n-1]
		if last.deleted && ch.deleted {
			c.found(Error, CodeLogDelete, "log", "deletes item %v twice", ch.key)
		}
		ch.deletesFirst = last.deletesFirst
		*last = ch
	}
	c.overlay = kept
}

// maxCandidates bounds the records behind the end of the log whose checksums
// are computed.
const maxCandidates = 32

// checkLogEnd looks for records that a mount would not find, but that prove
// that the log once went on: a record is written only when the one before it
// is durable, and an epoch begins with a durable superblock.
func (c *checker) checkLogEnd(l *logChain) {
	block := make([]byte, readAhead*format.BlockSizeBytes)
	tried := 0
	for pos := uint32(0); pos < c.sb.LogBlocks; pos += readAhead {
		n := min(c.sb.LogBlocks-pos, readAhead)
		if err := c.io.read(c.sb.LogStart+format.Addr(pos), block[:n*format.BlockSizeBytes]); err != nil {
			c.found(Warning, CodeLogIO, "log", "%v", err)
			continue
		}
		for i := range n {
			b := block[i*format.BlockSizeBytes:][:format.BlockSizeBytes]
			epoch := format.ReadHeader(b).Generation
			rec, ok := format.DecodeRecordHeader(b, c.sb.UUID, c.sb.LogStart+format.Addr(pos+i), epoch)
			if !ok || epoch < c.sb.LogEpoch || epoch == c.sb.LogEpoch && rec.Seq < l.seq || tried == maxCandidates {
				continue
			}
			tried++
			if ok, err := l.readAt(pos+i, epoch); !ok || err != nil {
				continue
			}
			if epoch == c.sb.LogEpoch {
				c.found(Error, CodeLogBroken, "log", "ends before record %d, but record %d exists at block %v: what was synced since is lost", l.seq, rec.Seq, rec.Addr)
			} else {
				c.found(Error, CodeLogBroken, "log", "a record of epoch %d exists at block %v, but the newest superblock is of epoch %d: newer superblocks were lost", epoch, rec.Addr, c.sb.LogEpoch)
			}
			return
		}
	}
}
