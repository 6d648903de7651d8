package layers

import "math/bits"

// Flush makes data durable and then the bits of the map that speak of it. One
// Flush serves all callers that arrive before it starts, as that of an image
// does.
func (s *stack) Flush() error {
	if s.props.ReadOnly {
		return nil
	}
	want := s.flushesStarted.Load() + 1
	s.flushMu.Lock()
	defer s.flushMu.Unlock()
	if s.flushErr != nil || s.flushesStarted.Load() >= want {
		return s.flushErr
	}
	s.flushesStarted.Add(1)
	s.flushErr = s.flushLocked()
	return s.flushErr
}

func (s *stack) flushLocked() error {
	s.stage()
	if err := s.medium.Flush(); err != nil || len(s.stagedNumbers) == 0 {
		return err
	}
	if err := s.writeStaged(); err != nil {
		return err
	}
	if err := s.medium.Flush(); err != nil {
		return err
	}
	s.published.Add(1)
	return nil
}

// maxStagedBytes is how much memory for map sectors is kept for the next Flush.
const maxStagedBytes = 1 << 20

// stage makes images of the map sectors that have changed. Their bits speak of
// data whose writes have completed, which the next sync of the medium covers.
func (s *stack) stage() {
	if cap(s.staged) > maxStagedBytes {
		s.staged, s.stagedNumbers = nil, nil
	}
	s.staged, s.stagedNumbers = s.staged[:0], s.stagedNumbers[:0]
	s.claimMu.Lock()
	defer s.claimMu.Unlock()
	var zeroes [sectorBytes]byte
	s.dirty.each(func(number int64) {
		s.staged = append(s.staged, zeroes[:]...)
		s.stagedNumbers = append(s.stagedNumbers, number)
		s.imageLocked(s.staged[len(s.staged)-sectorBytes:], number)
	})
	s.dirty.clear()
}

// imageLocked makes the map sector of a number from the table.
func (s *stack) imageLocked(sector []byte, number int64) {
	bitmap := sector[sectorHeadBytes:]
	from := number * bitsPerSector
	to := min(from+bitsPerSector, s.table.blocks())
	for at := from; at < to; {
		layer, end := s.table.run(at, to)
		if layer == s.top {
			for bit := at - from; bit < end-from; bit++ {
				if bit&7 == 0 && bit+8 <= end-from {
					bitmap[bit>>3] = 0xff
					bit += 7
				} else {
					bitmap[bit>>3] |= 1 << (bit & 7)
				}
			}
		}
		at = end
	}
	sealSector(sector, &s.layers[s.top].header.id, number)
}

// writeStaged writes the images, neighbours together.
func (s *stack) writeStaged() error {
	for from := 0; from < len(s.stagedNumbers); {
		to := from + 1
		for to < len(s.stagedNumbers) && s.stagedNumbers[to] == s.stagedNumbers[to-1]+1 {
			to++
		}
		s.piece[0] = s.staged[from*sectorBytes : to*sectorBytes]
		err := s.medium.WriteV(s.piece[:], mapOffset+s.stagedNumbers[from]*sectorBytes, false)
		s.piece[0] = nil
		if err != nil {
			return err
		}
		from = to
	}
	return nil
}

// sectorSet is a set of small numbers.
type sectorSet struct {
	words       []uint64
	first, last int64 // bounds of what was added since clear; last < first: nothing
}

func newSectorSet(size int64) sectorSet {
	return sectorSet{words: make([]uint64, (size+63)/64), first: 0, last: -1}
}

func (s *sectorSet) has(n int64) bool { return s.words[n>>6]&(1<<(n&63)) != 0 }

// add adds the numbers from first to last.
func (s *sectorSet) add(first, last int64) {
	for n := first; n <= last; n++ {
		s.words[n>>6] |= 1 << (n & 63)
	}
	if s.last < s.first {
		s.first, s.last = first, last
	} else {
		s.first, s.last = min(s.first, first), max(s.last, last)
	}
}

// each calls do for all members in their order.
func (s *sectorSet) each(do func(n int64)) {
	if s.last < s.first {
		return
	}
	for i := s.first >> 6; i <= s.last>>6; i++ {
		for word := s.words[i]; word != 0; word &= word - 1 {
			do(i<<6 + int64(bits.TrailingZeros64(word)))
		}
	}
}

func (s *sectorSet) clear() {
	if s.first <= s.last {
		clear(s.words[s.first>>6 : s.last>>6+1])
	}
	s.first, s.last = 0, -1
}
