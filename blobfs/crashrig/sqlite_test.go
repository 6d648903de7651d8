package crashrig

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// sqliteDB reads the tables of an SQLite database as SQLite does after a crash:
// it plays a hot journal back, or takes the committed frames of the write-ahead
// log into account. It follows "Database File Format" of sqlite.org.
type sqliteDB struct {
	pageBytes int
	pages     [][]byte // page 1 is the first
}

var be = binary.BigEndian

// openSQLite takes the database, its rollback journal and its write-ahead log;
// what does not exist is nil.
func openSQLite(db, journal, wal []byte) (*sqliteDB, error) {
	s := &sqliteDB{pageBytes: 1024}
	for off := 0; off+s.pageBytes <= len(db); off += s.pageBytes {
		s.pages = append(s.pages, db[off:off+s.pageBytes])
	}
	if err := s.rollBack(journal); err != nil {
		return nil, err
	}
	if err := s.applyWAL(wal); err != nil {
		return nil, err
	}
	if len(s.pages) > 0 && !bytes.HasPrefix(s.pages[0], []byte("SQLite format 3\x00")) {
		return nil, errors.New("no SQLite database")
	}
	return s, nil
}

// set makes a page what it is given.
func (s *sqliteDB) set(number uint32, page []byte) {
	for len(s.pages) < int(number) {
		s.pages = append(s.pages, make([]byte, s.pageBytes))
	}
	s.pages[number-1] = page
}

// rollBack plays the journal back, if it is hot: if its header is there.
func (s *sqliteDB) rollBack(j []byte) error {
	magic := []byte{0xd9, 0xd5, 0x05, 0xf9, 0x20, 0xa1, 0x63, 0xd7}
	if len(j) < 28 || !bytes.Equal(j[:8], magic) {
		return nil
	}
	records, nonce, pages, sector := be.Uint32(j[8:]), be.Uint32(j[12:]), be.Uint32(j[16:]), be.Uint32(j[20:])
	if int(be.Uint32(j[24:])) != s.pageBytes {
		return fmt.Errorf("journal with pages of %d bytes", be.Uint32(j[24:]))
	}
	rest := j[sector:]
	for range records {
		if len(rest) < s.pageBytes+8 {
			return errors.New("the journal ends early")
		}
		page, sum := rest[4:4+s.pageBytes], nonce
		for k := s.pageBytes - 200; k > 0; k -= 200 {
			sum += uint32(page[k])
		}
		if sum != be.Uint32(rest[4+s.pageBytes:]) {
			return errors.New("a page of the journal has a wrong checksum")
		}
		s.set(be.Uint32(rest), page)
		rest = rest[s.pageBytes+8:]
	}
	s.pages = s.pages[:min(int(pages), len(s.pages))]
	return nil
}

// applyWAL takes the frames up to the last commit.
func (s *sqliteDB) applyWAL(w []byte) error {
	if len(w) < 32 {
		return nil
	}
	var order binary.ByteOrder = binary.LittleEndian
	switch be.Uint32(w) {
	case 0x377f0682:
	case 0x377f0683:
		order = be
	default:
		return nil // a header that was never synced: an empty log
	}
	var s0, s1 uint32
	sum := func(b []byte) {
		for k := 0; k < len(b); k += 8 {
			s0 += order.Uint32(b[k:]) + s1
			s1 += order.Uint32(b[k+4:]) + s0
		}
	}
	if sum(w[:24]); s0 != be.Uint32(w[24:]) || s1 != be.Uint32(w[28:]) {
		return nil
	}
	pending := map[uint32][]byte{}
	frame := 24 + s.pageBytes
	for off := 32; off+frame <= len(w); off += frame {
		f := w[off : off+frame]
		if !bytes.Equal(f[8:16], w[16:24]) { // salts of an earlier round
			return nil
		}
		sum(f[:8])
		if sum(f[24:]); s0 != be.Uint32(f[16:]) || s1 != be.Uint32(f[20:]) {
			return nil
		}
		pending[be.Uint32(f)] = f[24:]
		if size := be.Uint32(f[4:]); size != 0 {
			for _, n := range slices.Sorted(maps.Keys(pending)) {
				s.set(n, pending[n])
			}
			s.pages = s.pages[:size]
			clear(pending)
		}
	}
	return nil
}

// varint reads a variable-length integer and returns its length.
func varint(b []byte) (v uint64, n int) {
	for n < 8 {
		v = v<<7 | uint64(b[n]&0x7f)
		if n++; b[n-1] < 0x80 {
			return v, n
		}
	}
	return v<<8 | uint64(b[8]), 9
}

// row is a row of a table: its id and its columns, as integers or text.
type row struct {
	id      uint64
	columns []any
}

// table reads the table whose b-tree begins at a page. Rows must fit a page.
func (s *sqliteDB) table(root uint32) ([]row, error) {
	if root == 0 || int(root) > len(s.pages) {
		return nil, fmt.Errorf("page %d of %d", root, len(s.pages))
	}
	page := s.pages[root-1]
	head := page
	if root == 1 {
		head = page[100:]
	}
	cells := int(be.Uint16(head[3:]))
	var rows []row
	switch head[0] {
	case 5: // interior
		for k := range cells + 1 {
			child := be.Uint32(head[8:])
			if k < cells {
				child = be.Uint32(page[be.Uint16(head[12+2*k:]):])
			}
			below, err := s.table(child)
			if err != nil {
				return nil, err
			}
			rows = append(rows, below...)
		}
	case 13: // leaf
		for k := range cells {
			r, err := s.cell(page[be.Uint16(head[8+2*k:]):])
			if err != nil {
				return nil, fmt.Errorf("page %d, cell %d: %w", root, k, err)
			}
			rows = append(rows, r)
		}
	default:
		return nil, fmt.Errorf("page %d is of type %d", root, head[0])
	}
	return rows, nil
}

func (s *sqliteDB) cell(b []byte) (r row, err error) {
	size, n := varint(b)
	id, m := varint(b[n:])
	r.id = id
	b = b[n+m:]
	if size > uint64(min(len(b), s.pageBytes-35)) {
		return r, fmt.Errorf("a row of %d bytes", size)
	}
	headBytes, at := varint(b)
	if headBytes > size {
		return r, errors.New("the head of a row is longer than the row")
	}
	body := b[headBytes:size]
	for uint64(at) < headBytes {
		typ, n := varint(b[at:])
		at += n
		length := 0
		switch {
		case typ <= 4:
			length = int(typ)
		case typ == 8, typ == 9:
		case typ >= 13 && typ%2 == 1 && typ < 4096:
			length = int(typ-13) / 2
		default:
			return r, fmt.Errorf("column of type %d", typ)
		}
		if length > len(body) {
			return r, errors.New("a column is longer than its row")
		}
		value := body[:length]
		body = body[length:]
		if typ >= 13 {
			r.columns = append(r.columns, string(value))
			continue
		}
		number := uint64(typ) - 8 // for types 8 and 9, 0 and 1
		if typ < 8 {
			number = 0
			for _, c := range value {
				number = number<<8 | uint64(c)
			}
		}
		r.columns = append(r.columns, number)
	}
	return r, nil
}

// checkSQLite checks a database of the recorded workload: transactions insert
// rows into t, whose text tells their id, and update total to their number; all
// of a transaction is there or nothing, and all that was acknowledged.
func checkSQLite(files map[string][]byte, acked int) error {
	s, err := openSQLite(files["/db"], files["/db-journal"], files["/db-wal"])
	if err != nil {
		return err
	}
	if len(s.pages) == 0 {
		if acked > 0 {
			return fmt.Errorf("the database is empty, %d rows were acknowledged", acked)
		}
		return nil
	}
	schema, err := s.table(1)
	if err != nil {
		return err
	}
	tables := map[string][]row{}
	for _, r := range schema {
		if len(r.columns) != 5 {
			return errors.New("the schema is damaged")
		}
		name := r.columns[1].(string)
		if tables[name], err = s.table(uint32(r.columns[3].(uint64))); err != nil {
			return fmt.Errorf("table %s: %w", name, err)
		}
	}
	total := uint64(0)
	if len(tables["total"]) == 1 {
		total = tables["total"][0].columns[1].(uint64)
	}
	rows := tables["t"]
	if uint64(len(rows)) != total || total < uint64(acked) {
		return fmt.Errorf("%d rows, total says %d, %d were acknowledged", len(rows), total, acked)
	}
	for k, r := range rows {
		if want := fmt.Sprintf("%0*d", 40+r.id*37%300, r.id); r.id != uint64(k+1) || r.columns[1].(string) != want {
			return fmt.Errorf("row %d is %d with %q", k+1, r.id, r.columns[1])
		}
	}
	return nil
}
