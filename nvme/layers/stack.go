package layers

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"runsc-fs/nvme/soft"
	"runsc-fs/nvme/spec"
)

// layer is one file of a stack.
type layer struct {
	backing    soft.Backing
	header     *header // nil: a plain image
	dataOffset int64
	blocks     int64
}

// stack is the medium. It implements soft.Backing.
type stack struct {
	layers []layer // base first
	top    byte    // number of the last one
	medium soft.Backing
	below  int64           // while opening: blocks of the largest file merged so far
	props  soft.Properties // but for SizeBytes
	table  *table
	name   string

	// claimMu is held while blocks become present in the top layer.
	claimMu sync.Mutex
	// dirty has the map sectors with bits that are not on the medium yet.
	dirty sectorSet
	// reserved has the pages of the map that have their place on the medium.
	reserved sectorSet
	buf      []byte // one block on its way up
	ahead    aheadState

	flushMu        sync.Mutex
	flushErr       error         // first failure, never forgotten
	flushesStarted atomic.Uint64 // written under flushMu
	staged         []byte        // map sectors to be written
	stagedNumbers  []int64
	piece          [1][]byte
	// published counts flushes that had to write the map.
	published atomic.Uint64
}

// errDamagedMap is the error of blocks whose map sector is damaged.
var errDamagedMap = &soft.Error{
	Status: spec.UnrecoveredReadError | spec.StatusDNR,
	Err:    fmt.Errorf("%w: the map that tells where the block lies", ErrDamaged),
}

var errReadOnly = &soft.Error{Status: spec.NamespaceWriteProtected | spec.StatusDNR}

func (s *stack) String() string { return s.name }

// Properties implements soft.Backing.Properties.
func (s *stack) Properties() soft.Properties {
	p := s.props
	p.SizeBytes = s.table.blocks() << blockShift
	return p
}

// Grow implements soft.Grower: the top layer's file has been made longer.
func (s *stack) Grow(sizeBytes int64) error {
	g, ok := s.medium.(soft.Grower)
	if !ok || s.props.ReadOnly {
		return fmt.Errorf("layers: %s cannot grow", s.name)
	}
	if err := g.Grow(s.layers[s.top].dataOffset + sizeBytes); err != nil {
		return err
	}
	s.claimMu.Lock()
	defer s.claimMu.Unlock()
	blocks := sizeBytes >> blockShift
	if blocks > s.layers[s.top].header.capacityBlocks || !s.table.grow(blocks) {
		return failf(ErrTooLarge, "%s has no room for %d bytes", s.name, sizeBytes)
	}
	return nil
}

// run returns the layer of block from and the first block below to that is in
// another, else to.
func (s *stack) run(from, to int64) (layer byte, end int64) {
	layer, end = s.table.run(from, to)
	if base := s.layers[0].blocks; layer == 0 && end > base { // in no layer
		if from >= base {
			return isZeroes, end
		}
		end = base
	}
	return layer, end
}

// Close implements soft.Backing.Close.
func (s *stack) Close() error {
	var errs []error
	for i := range s.layers {
		errs = append(errs, s.layers[i].backing.Close())
	}
	return errors.Join(append(errs, s.table.close())...)
}

// ReadV implements soft.Backing.ReadV.
func (s *stack) ReadV(vec [][]byte, off int64) error {
	left := vecBytes(vec)
	if left == 0 {
		return nil
	}
	end := blockAfter(off + left)
	number, next := s.run(off>>blockShift, end)
	if next == end {
		return s.readFrom(number, vec, off)
	}
	cursor := newCursor(vec)
	defer cursor.release()
	for {
		n := min(left, next<<blockShift-off)
		if err := s.readFrom(number, cursor.take(n), off); err != nil {
			return err
		}
		off, left = off+n, left-n
		if left == 0 {
			return nil
		}
		number, next = s.run(off>>blockShift, end)
	}
}

// readFrom reads blocks that are all in the same layer.
func (s *stack) readFrom(number byte, vec [][]byte, off int64) error {
	switch number {
	case isZeroes:
		for _, b := range vec {
			clear(b)
		}
		return nil
	case isDamaged, isDamagedTop:
		return errDamagedMap
	}
	l := &s.layers[number]
	return l.backing.ReadV(vec, l.dataOffset+off)
}

// WriteV implements soft.Backing.WriteV.
func (s *stack) WriteV(vec [][]byte, off int64, fua bool) error {
	return s.change(payload{vec: vec}, off, vecBytes(vec), fua)
}

// Zero implements soft.Backing.Zero.
func (s *stack) Zero(off, n int64, fua bool) error { return s.change(payload{}, off, n, fua) }

// Deallocate implements soft.Backing.Deallocate. The blocks must not show what
// the parent has there, so they read as zeroes: as holes, if the host has any.
func (s *stack) Deallocate(off, n int64) error { return s.change(payload{hole: true}, off, n, false) }

// payload is what is stored: vec, or zeroes if that is nil, which hole wants to
// take no space.
type payload struct {
	vec  [][]byte
	hole bool
}

// change stores n bytes at off.
func (s *stack) change(c payload, off, n int64, fua bool) error {
	switch {
	case s.props.ReadOnly:
		return errReadOnly
	case n == 0:
		return nil
	}
	var err error
	if number, end := s.table.run(off>>blockShift, blockAfter(off+n)); number == s.top && end == blockAfter(off+n) {
		err = s.store(c, off, n)
	} else {
		err = s.claim(c, off, n)
	}
	if err == nil && fua {
		err = s.Flush()
	}
	return err
}

// store changes data in the top layer.
func (s *stack) store(c payload, off, n int64) error {
	off += s.layers[s.top].dataOffset
	if c.vec != nil {
		return s.medium.WriteV(c.vec, off, false)
	}
	if p, ok := s.medium.(soft.Puncher); ok && c.hole {
		if done, err := p.Punch(off, n); done || err != nil {
			return err
		}
	}
	return s.medium.Zero(off, n, false)
}

// claim is change for a range in which some blocks are not present, and makes
// them so. What the first and the last block have besides comes from below.
func (s *stack) claim(c payload, off, n int64) error {
	s.claimMu.Lock()
	defer s.claimMu.Unlock()
	first, end := off>>blockShift, blockAfter(off+n)
	if err := s.checkWritableLocked(first, end); err != nil {
		return err
	}
	if err := s.reserveLocked(first, end); err != nil {
		return err
	}
	if off&(BlockBytes-1) != 0 {
		if err := s.copyUpLocked(first); err != nil {
			return err
		}
	}
	if last := end - 1; (off+n)&(BlockBytes-1) != 0 && (last != first || off&(BlockBytes-1) == 0) {
		if err := s.copyUpLocked(last); err != nil {
			return err
		}
	}
	if err := s.store(c, off, n); err != nil {
		return err
	}
	s.markLocked(first, end)
	s.copyAheadLocked(first, end)
	return nil
}

// checkWritableLocked refuses blocks of which the top layer does not know
// whether it has them: their map sector cannot be written again.
func (s *stack) checkWritableLocked(from, to int64) error {
	for from < to {
		number, end := s.table.run(from, to)
		if number == isDamagedTop {
			return errDamagedMap
		}
		from = end
	}
	return nil
}

// copyUpLocked stores in the top layer what a block reads as, unless it is
// there. The block is not present by that.
func (s *stack) copyUpLocked(block int64) error {
	number, _ := s.run(block, block+1)
	if number == s.top {
		return nil
	}
	vec := [][]byte{s.buf}
	off := block << blockShift
	if err := s.readFrom(number, vec, off); err != nil {
		return err
	}
	return s.store(payload{vec: vec}, off, BlockBytes)
}

// markLocked makes blocks present whose data is stored.
func (s *stack) markLocked(from, to int64) {
	s.table.fill(from, to, s.top)
	s.dirty.add(from/bitsPerSector, (to-1)/bitsPerSector)
}

// reserveLocked takes the space for the map of some blocks, so that a host whose
// disk is full fails the write and not the Flush after it.
func (s *stack) reserveLocked(from, to int64) error {
	const perPage = mapOffset / sectorBytes
	first, last := from/bitsPerSector/perPage, (to-1)/bitsPerSector/perPage
	for page := first; page <= last; page++ {
		if s.reserved.has(page) {
			continue
		}
		// The page is all zeroes: those that are not were reserved by Open.
		if err := s.medium.Zero(mapOffset+page*perPage*sectorBytes, perPage*sectorBytes, false); err != nil {
			return err
		}
		s.reserved.add(page, page)
	}
	return nil
}

// blockAfter is the number of the block behind the last of n bytes.
func blockAfter(n int64) int64 { return (n + BlockBytes - 1) >> blockShift }

func vecBytes(vec [][]byte) (n int64) {
	for _, b := range vec {
		n += int64(len(b))
	}
	return n
}

// cursor hands a vector out in pieces.
type cursor struct {
	rest  [][]byte
	skip  int // bytes of rest[0] already handed out
	piece [][]byte
}

var cursorPool = sync.Pool{New: func() any { return new(cursor) }}

func newCursor(vec [][]byte) *cursor {
	c := cursorPool.Get().(*cursor)
	c.rest, c.skip = vec, 0
	return c
}

func (c *cursor) release() {
	clear(c.piece[:cap(c.piece)])
	c.rest, c.piece = nil, c.piece[:0]
	cursorPool.Put(c)
}

// take returns the next n bytes, valid until the next call.
func (c *cursor) take(n int64) [][]byte {
	c.piece = c.piece[:0]
	for n > 0 {
		b := c.rest[0][c.skip:]
		if int64(len(b)) > n {
			b = b[:n]
			c.skip += len(b)
		} else {
			c.rest, c.skip = c.rest[1:], 0
		}
		if len(b) > 0 {
			c.piece = append(c.piece, b)
		}
		n -= int64(len(b))
	}
	return c.piece
}
