package crashrig

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
)

// What PostgreSQL asks of a file system, in small: a log in segments that is
// appended to in place and synced before a transaction is acknowledged; data pages
// that are written later, and synced by a checkpoint before the control file says
// that the log before it is not needed; segments that are made whole under another
// name, and recycled by renaming them.
const (
	pgSegmentBytes = 16 << 10
	pgWALPage      = 8 << 10
	pgRecordBytes  = 64
	pgPageBytes    = 512 // what no power cut tears, so that no full page images are needed
	pgPages        = 40
	pgTxs          = 1500
	pgCheckpoint   = 300 // transactions from one checkpoint to the next
	pgSpare        = 2   // segments made ahead
)

// pgTx says what a transaction does: it gives a page a value.
func pgTx(tx int) (page int, value uint64) {
	rng := rand.New(rand.NewPCG(uint64(tx), 0x96))
	return rng.IntN(pgPages), rng.Uint64()
}

func pgSegment(n int) string { return fmt.Sprintf("/pg_wal/%08d", n) }

// pgRecord is the record of a transaction: LSN, number, page, value and CRC. The
// LSN is where it stands in the whole log.
func pgRecord(tx int) []byte {
	b := make([]byte, pgRecordBytes)
	page, value := pgTx(tx)
	le := binary.LittleEndian
	le.PutUint64(b, pgLSN(tx))
	le.PutUint64(b[8:], uint64(tx))
	le.PutUint64(b[16:], uint64(page))
	le.PutUint64(b[24:], value)
	le.PutUint32(b[60:], crc32.ChecksumIEEE(b[:60]))
	return b
}

// pgLSN is the place of the record of a transaction; they count from 1.
func pgLSN(tx int) uint64 { return uint64(tx-1) * pgRecordBytes }

func pgDataPage(tx int, value uint64) []byte {
	b := make([]byte, pgPageBytes)
	le := binary.LittleEndian
	le.PutUint64(b, uint64(tx))
	le.PutUint64(b[8:], value)
	le.PutUint32(b[pgPageBytes-4:], crc32.ChecksumIEEE(b[:pgPageBytes-4]))
	return b
}

// pgControl says from which transaction on the log must be read.
func pgControl(redo int) []byte { return pgDataPage(redo, ^uint64(redo)) }

// postgresProgram is what such a server does.
func postgresProgram() Program {
	var p Program
	add := func(text string) {
		q, err := Parse(text)
		if err != nil {
			panic(err)
		}
		p = append(p, q...)
	}
	write := func(path string, off int64, b []byte) {
		p = append(p, Op{Kind: "write", Path: path, Off: off, Len: int64(len(b)), Data: b})
	}
	made := 0
	makeSegment := func() {
		add("creat /pg_wal/temp")
		for off := int64(0); off < pgSegmentBytes; off += pgWALPage {
			write("/pg_wal/temp", off, make([]byte, pgWALPage))
		}
		add(fmt.Sprintf("fsync /pg_wal/temp; rename /pg_wal/temp %s; fsync /pg_wal", pgSegment(made)))
		made++
	}
	add("mkdir /pg_wal; mkdir /base; creat /base/1; creat /pg_control")
	write("/pg_control", 0, pgControl(1))
	write("/base/1", 0, make([]byte, pgPages*pgPageBytes))
	for range 1 + pgSpare {
		makeSegment()
	}
	add("sync; ack 0; open @data /base/1")
	var pages [pgPages]int // the last transaction of each
	dirty := map[int]bool{}
	oldest, open := 0, -1
	var wal [pgWALPage]byte
	for tx := 1; tx <= pgTxs; tx++ {
		page, _ := pgTx(tx)
		pages[page], dirty[page] = tx, true
		segment, off := int(pgLSN(tx)/pgSegmentBytes), int64(pgLSN(tx)%pgSegmentBytes)
		if segment != open {
			if segment >= made {
				makeSegment()
			}
			add(fmt.Sprintf("close @wal; open @wal %s", pgSegment(segment)))
			open = segment
		}
		if off%pgWALPage == 0 {
			clear(wal[:])
		}
		copy(wal[off%pgWALPage:], pgRecord(tx))
		if tx%3 == 0 || tx == pgTxs || (off+pgRecordBytes)%pgWALPage == 0 { // a group of commits
			write("@wal", off&^(pgWALPage-1), append([]byte{}, wal[:]...))
			add(fmt.Sprintf("fdatasync @wal; ack %d", tx))
			if tx%7 == 0 { // the background writer; the log is ahead of it
				_, value := pgTx(pages[page])
				write("@data", int64(page*pgPageBytes), pgDataPage(pages[page], value))
				delete(dirty, page)
			}
		}
		if tx%pgCheckpoint == 0 {
			for page := range pgPages {
				if dirty[page] {
					_, value := pgTx(pages[page])
					write("@data", int64(page*pgPageBytes), pgDataPage(pages[page], value))
				}
			}
			clear(dirty)
			add("fsync @data")
			write("/pg_control", 0, pgControl(tx+1))
			add("fsync /pg_control")
			for ; oldest < segment && made-segment <= pgSpare+1; oldest, made = oldest+1, made+1 {
				add(fmt.Sprintf("rename %s %s; fsync /pg_wal", pgSegment(oldest), pgSegment(made)))
			}
			for ; oldest < segment; oldest++ {
				add("unlink " + pgSegment(oldest))
			}
		}
	}
	return p
}

// checkPostgres recovers as such a server does, and wants the state after a
// transaction that is not before the last acknowledged one.
func checkPostgres(files map[string][]byte, acked int) error {
	control, data := files["/pg_control"], files["/base/1"]
	if len(control) == 0 {
		if acked > 0 {
			return fmt.Errorf("there is no control file after %d transactions", acked)
		}
		return nil
	}
	le := binary.LittleEndian
	valid := func(b []byte) bool {
		return len(b) == pgPageBytes && le.Uint32(b[pgPageBytes-4:]) == crc32.ChecksumIEEE(b[:pgPageBytes-4])
	}
	if len(control) != pgPageBytes || !valid(control) || len(data) != pgPages*pgPageBytes {
		if acked == 0 {
			return nil // it was being set up
		}
		return fmt.Errorf("a control file of %d bytes and %d bytes of data", len(control), len(data))
	}
	last := int(le.Uint64(control)) - 1
	for {
		tx := last + 1
		b := files[pgSegment(int(pgLSN(tx)/pgSegmentBytes))]
		off := pgLSN(tx) % pgSegmentBytes
		if uint64(len(b)) < off+pgRecordBytes || string(b[off:off+pgRecordBytes]) != string(pgRecord(tx)) {
			break
		}
		last = tx
	}
	if last < acked {
		return fmt.Errorf("the log ends with transaction %d of %d that were acknowledged", last, acked)
	}
	var want, got [pgPages]int
	for tx := 1; tx <= last; tx++ {
		page, _ := pgTx(tx)
		want[page] = tx
	}
	for page := range pgPages {
		b := data[page*pgPageBytes : (page+1)*pgPageBytes]
		if tx := int(le.Uint64(b)); tx > 0 {
			_, value := pgTx(tx)
			if !valid(b) || string(b) != string(pgDataPage(tx, value)) || tx > last {
				return fmt.Errorf("page %d has the content of transaction %d, damaged or not logged; the log ends with %d", page, tx, last)
			}
			got[page] = tx
		}
	}
	for tx := int(le.Uint64(control)); tx <= last; tx++ {
		page, _ := pgTx(tx)
		got[page] = max(got[page], tx)
	}
	if got != want {
		return fmt.Errorf("after transaction %d the pages are of %v, not of %v", last, got, want)
	}
	return nil
}
