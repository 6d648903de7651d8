package blobfs

import "math/bits"

// frameSet is a set of frame numbers from which the lowest comes first: frames
// taken one after the other are neighbours if any are, so that they can be
// mapped, and written, in one piece; and of a mostly free cache the same few
// are used again and again. It is a bitmap with summaries: a bit of
// levels[n+1] is set when a word of levels[n] is not zero.
type frameSet struct {
	levels [][]uint64
}

func newFrameSet(frames int) frameSet {
	var s frameSet
	for n := frames; ; {
		n = (n + 63) / 64
		s.levels = append(s.levels, make([]uint64, n))
		if n <= 1 {
			return s
		}
	}
}

// put adds a frame.
func (s *frameSet) put(frame int) {
	for _, level := range s.levels {
		w := &level[frame/64]
		old := *w
		*w |= 1 << (frame % 64)
		if old != 0 {
			return
		}
		frame /= 64
	}
}

// take removes the lowest frame and returns it, or -1 from an empty set.
func (s *frameSet) take() int {
	frame := 0
	for n := len(s.levels) - 1; n >= 0; n-- {
		w := s.levels[n][frame]
		if w == 0 {
			return -1 // only possible at the top
		}
		frame = frame*64 + bits.TrailingZeros64(w)
	}
	at := frame
	for _, level := range s.levels {
		level[at/64] &^= 1 << (at % 64)
		if level[at/64] != 0 {
			break
		}
		at /= 64
	}
	return frame
}

// clear removes all frames.
func (s *frameSet) clear() {
	for _, level := range s.levels {
		clear(level)
	}
}
