package store

import (
	"sync"

	"runsc-fs/blobfs/format"
	"runsc-fs/nvme"
)

// logWriter gathers the logged form of transactions and writes it in records.
// Whoever needs something durable and finds no write in flight becomes the
// leader: it takes all that is gathered, writes it, and wakes the others, most
// of whom then find their own transaction durable too. So at most one record
// is in flight, and transactions go on while it is.
type logWriter struct {
	s *Store

	mu   sync.Mutex
	cond sync.Cond // signalled when a write ends

	buf     []byte // record being gathered; its header's room included
	n       int    // bytes of buf in use
	spare   []byte // the other buffer; nil while it is being written
	writing bool
	io      pageIO // the leader's

	firstLSN LSN  // of buf
	ordered  bool // something in buf needs the data written before it
	appended LSN  // last transaction appended, ever
	durable  LSN  // last transaction known durable
	flushed  uint64

	head uint32 // block of the region for the next record
	used uint32 // blocks of the region that a replay would need, and gaps
	seq  uint64 // of the next record
}

// init gives the writer its buffers, of the given number of blocks each.
func (l *logWriter) init(s *Store, blocks int) error {
	l.s = s
	l.cond.L = &l.mu
	for _, b := range []*[]byte{&l.buf, &l.spare} {
		mem, err := s.dev.Arena().Alloc(blocks)
		if err != nil {
			return err
		}
		*b = mem
	}
	l.empty(l.buf)
	return nil
}

// empty begins a new record in buf.
func (l *logWriter) empty(buf []byte) { l.buf, l.n, l.ordered = buf, format.RecordHeaderBytes, false }

func (l *logWriter) release() {
	for _, b := range [][]byte{l.buf, l.spare} {
		if b != nil {
			l.s.dev.Arena().Free(b)
		}
	}
	l.buf, l.spare = nil, nil
}

// bufBlocks is the size of a buffer, and so of the largest record.
func (l *logWriter) bufBlocks() uint32 { return uint32(len(l.buf) / format.BlockSizeBytes) }

// room says whether the buffer lacks room for one more transaction, and
// whether the region lacks room for what the buffers may hold: a record in the
// buffer, one in flight that was not counted yet, and the gap at the region's end.
func (l *logWriter) room() (bufferFull, regionFull bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.n+MaxTxBytes > len(l.buf), l.used+3*l.bufBlocks() > l.s.sb.LogBlocks
}

// append adds a transaction, for which room has been found to be there; alone
// says that it does not need the data written before it. It reports whether a
// checkpoint should be made. Store.mu is held exclusively.
func (l *logWriter) append(enc []byte, lsn LSN, alone bool) (full bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.n == format.RecordHeaderBytes {
		l.firstLSN = lsn
	}
	l.n += copy(l.buf[l.n:], enc)
	l.appended = lsn
	l.ordered = l.ordered || !alone
	return l.used > l.s.sb.LogBlocks/2
}

func (l *logWriter) lastAppended() LSN {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.appended
}

// commit returns when all transactions up to lsn and the first dataWrites data
// writes are durable.
func (l *logWriter) commit(lsn LSN, dataWrites uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	lsn = min(lsn, l.appended)
	for {
		if err := l.s.failure(); err != nil {
			return err
		}
		if l.durable >= lsn && (l.flushed >= dataWrites || !l.s.volatileCache) {
			return nil
		}
		if l.writing {
			l.cond.Wait()
			continue
		}
		l.lead()
	}
}

// lead flushes what data was written and writes the gathered record: in this
// order if the record needs the data, and otherwise so that one flush serves
// both. mu is held, and released during I/O.
func (l *logWriter) lead() {
	s := l.s
	l.writing = true
	var rec format.Record
	record := l.buf
	last, ordered := l.appended, l.ordered
	if l.n > format.RecordHeaderBytes {
		rec = format.Record{
			Header:     format.Header{UUID: s.sb.UUID, Generation: s.sb.LogEpoch},
			Seq:        l.seq,
			Length:     uint32(l.n),
			Txs:        uint32(last - l.firstLSN + 1),
			FirstLSN:   uint64(l.firstLSN),
			LastLSN:    uint64(last),
			NextObject: s.nextObject.Load(),
		}
		if l.head+rec.Blocks() > s.sb.LogBlocks {
			l.used += s.sb.LogBlocks - l.head
			l.head = 0
		}
		rec.Addr = s.sb.LogStart + format.Addr(l.head)
		l.head += rec.Blocks()
		l.used += rec.Blocks()
		l.seq++
		l.empty(l.spare)
		l.spare = nil
		if l.head == s.sb.LogBlocks {
			l.head = 0
		}
	}
	flushed := l.flushed
	l.mu.Unlock()

	// All data that transactions of the record refer to was complete before
	// they were appended, so it counts as written here.
	written := s.dataWrites.Load()
	flush := written > flushed && s.volatileCache
	var err error
	if flush && (ordered || rec.Length == 0) {
		err = s.flush()
		flush = false
	}
	if err == nil && rec.Length > 0 {
		err = l.writeRecord(&rec, record, !flush)
	}
	if err == nil && flush {
		err = s.flush()
	}
	if err != nil {
		s.fail("writing the log", err)
	} else if rec.Length > 0 {
		s.alloc.releasePending(last)
	}

	l.mu.Lock()
	l.writing = false
	if rec.Length > 0 {
		l.spare = record
	}
	if err == nil {
		l.flushed = max(l.flushed, written)
		if rec.Length > 0 {
			l.durable = max(l.durable, last)
		}
	}
	l.cond.Broadcast()
}

// drain waits for the write in flight.
func (l *logWriter) drain() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.writing {
		l.cond.Wait()
	}
}

// writeRecord writes a record in one request, durably unless a flush follows.
// Only the leader calls it.
func (l *logWriter) writeRecord(rec *format.Record, buf []byte, durably bool) error {
	blocks := rec.Encode(buf)
	s := l.s
	s.stats.logRecords.Add(1)
	s.stats.logBytes.Add(uint64(len(blocks)))
	l.io.vec[0] = blocks
	l.io.req[0] = nvme.Request{Op: nvme.OpWrite, FUA: durably && s.volatileCache, OffsetBytes: rec.Addr.OffsetBytes(), Vec: l.io.vec[:]}
	return s.dev.Do(l.io.req[:])
}

// logMark is a place in the log: what a checkpoint makes superfluous ends here.
type logMark struct {
	pos uint32
	seq uint64
	lsn LSN
}

// mark returns the place of the next record. All transactions up to lsn are in
// records before it, or still gathered and then part of later records, which a
// replay skips by their LSN. Store.mu is held exclusively.
func (l *logWriter) mark(lsn LSN) logMark {
	l.mu.Lock()
	defer l.mu.Unlock()
	return logMark{l.head, l.seq, lsn}
}

// truncate forgets what is before a mark that a durable superblock refers to.
func (l *logWriter) truncate(m logMark, flushed uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	size := l.s.sb.LogBlocks
	l.used = (l.head + size - m.pos) % size
	l.durable = max(l.durable, m.lsn)
	l.flushed = max(l.flushed, flushed)
	if l.appended <= m.lsn {
		l.empty(l.buf)
	}
	l.cond.Broadcast()
}
