package layers

// A program that appends to a log and syncs each record would pay a second sync
// for each block that it reaches first. So where writes go on in order and a
// Flush had to write the map since the last one, the blocks that follow are
// copied up ahead of them and become present together: at first 64 KiB, then
// more, up to 1 MiB. Bulk writes are not followed: they come with few flushes.

const (
	aheadStreams   = 4
	minAheadBlocks = 16
	maxAheadBlocks = 256
)

// aheadState has the sequences of writes that are watched.
type aheadState struct {
	streams [aheadStreams]stream
	oldest  int
	buf     []byte
}

// stream is one sequence of writes to blocks that were not present.
type stream struct {
	next      int64  // the block at which it would go on; 0: none
	window    int64  // blocks copied ahead the last time
	published uint64 // stack.published when it was last written
}

// copyAheadLocked is told that the blocks from … to-1 have become present. It
// may make more blocks present. What fails here is no loss.
func (s *stack) copyAheadLocked(from, to int64) {
	a := &s.ahead
	published := s.published.Load()
	for i := range a.streams {
		st := &a.streams[i]
		if st.next != from || from == 0 {
			continue
		}
		if st.published != published {
			st.window = min(max(4*st.window, minAheadBlocks), maxAheadBlocks)
			to = s.copyUpRunLocked(to, st.window)
		}
		st.next, st.published = to, published
		return
	}
	a.streams[a.oldest] = stream{next: to, published: published}
	a.oldest = (a.oldest + 1) % aheadStreams
}

// copyUpRunLocked makes up to count blocks from a block on present, as far as
// they are not, and returns the block behind them.
func (s *stack) copyUpRunLocked(from, count int64) (end int64) {
	to := min(from+count, s.table.blocks())
	if s.ahead.buf == nil {
		s.ahead.buf = make([]byte, maxAheadBlocks<<blockShift)
	}
	for from < to {
		number, end := s.run(from, to)
		if number == s.top || number == isDamagedTop {
			break
		}
		vec := [][]byte{s.ahead.buf[:(end-from)<<blockShift]}
		off := from << blockShift
		if s.reserveLocked(from, end) != nil || s.readFrom(number, vec, off) != nil || s.store(payload{vec: vec}, off, (end-from)<<blockShift) != nil {
			break
		}
		s.markLocked(from, end)
		from = end
	}
	return from
}
