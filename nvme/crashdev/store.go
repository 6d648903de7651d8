package crashdev

import (
	"hash/maphash"
	"sync/atomic"
)

const (
	pageBytes  = 4096
	chunkPages = 512
)

// store is sparse memory that is cheap to clone: clones share pages until one
// of them writes. What carries another token than the store's own is shared.
type store struct {
	token uint64
	top   []*chunk
}

type chunk struct {
	token uint64
	pages [chunkPages]*page
}

type page struct {
	token uint64
	hash  atomic.Uint64 // of data; 0: not known
	data  [pageBytes]byte
}

var tokens atomic.Uint64

func newStore(sizeBytes int64) store {
	const chunkBytes = pageBytes * chunkPages
	return store{token: tokens.Add(1), top: make([]*chunk, (sizeBytes+chunkBytes-1)/chunkBytes)}
}

// clone returns an independent copy. Both sides copy what they write later.
func (s *store) clone() store {
	s.token = tokens.Add(1)
	return store{token: tokens.Add(1), top: append([]*chunk(nil), s.top...)}
}

func (s *store) read(b []byte, off int64) {
	for len(b) > 0 {
		p, at := off/pageBytes, int(off%pageBytes)
		n := min(len(b), pageBytes-at)
		if c := s.top[p/chunkPages]; c != nil && c.pages[p%chunkPages] != nil {
			copy(b[:n], c.pages[p%chunkPages].data[at:])
		} else {
			clear(b[:n])
		}
		b, off = b[n:], off+int64(n)
	}
}

func (s *store) write(b []byte, off int64) {
	for len(b) > 0 {
		at := int(off % pageBytes)
		n := min(len(b), pageBytes-at)
		copy(s.own(off / pageBytes).data[at:], b[:n])
		b, off = b[n:], off+int64(n)
	}
}

// fill stores n bytes of one value.
func (s *store) fill(v byte, off, n int64) {
	var buf [pageBytes]byte
	if v != 0 {
		for i := range buf {
			buf[i] = v
		}
	}
	for n > 0 {
		step := min(n, pageBytes-off%pageBytes)
		if v != 0 || s.present(off/pageBytes) {
			s.write(buf[:step], off)
		}
		off, n = off+step, n-step
	}
}

func (s *store) present(p int64) bool {
	c := s.top[p/chunkPages]
	return c != nil && c.pages[p%chunkPages] != nil
}

// own returns a page that only this store sees.
func (s *store) own(p int64) *page {
	c := s.top[p/chunkPages]
	if c == nil {
		c = &chunk{token: s.token}
		s.top[p/chunkPages] = c
	} else if c.token != s.token {
		c = &chunk{token: s.token, pages: c.pages}
		s.top[p/chunkPages] = c
	}
	pg := c.pages[p%chunkPages]
	if pg == nil {
		pg = &page{token: s.token}
		c.pages[p%chunkPages] = pg
	} else if pg.token != s.token {
		pg = &page{token: s.token, data: pg.data}
		c.pages[p%chunkPages] = pg
	}
	pg.hash.Store(0)
	return pg
}

var (
	hashSeed = maphash.MakeSeed()
	zeroHash = maphash.Bytes(hashSeed, make([]byte, pageBytes)) | 1
)

// sum is a fingerprint of the content. Pages keep their part of it, so that
// stores that share most pages cost little.
func (s *store) sum() uint64 {
	var total uint64
	for ci, c := range s.top {
		if c == nil {
			continue
		}
		for pi, pg := range c.pages {
			if pg == nil {
				continue
			}
			h := pg.hash.Load()
			if h == 0 {
				h = maphash.Bytes(hashSeed, pg.data[:]) | 1
				pg.hash.Store(h)
			}
			if h != zeroHash { // as if the page was not there
				total += maphash.Comparable(hashSeed, [2]uint64{uint64(ci*chunkPages + pi), h})
			}
		}
	}
	return total
}
