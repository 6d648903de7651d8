package blobfs

import (
	"math/rand/v2"
	"testing"
)

func TestFrameSet(t *testing.T) {
	for _, frames := range []int{1, 64, 65, 5000, 70000} {
		s := newFrameSet(frames)
		rng := rand.New(rand.NewPCG(1, uint64(frames)))
		in := make(map[int]bool)
		lowest := func() int {
			for n := range frames {
				if in[n] {
					return n
				}
			}
			return -1
		}
		for range 200 {
			if rng.IntN(3) > 0 {
				n := rng.IntN(frames)
				s.put(n)
				in[n] = true
				continue
			}
			want := lowest()
			if got := s.take(); got != want {
				t.Fatalf("of %d frames: took %d, not %d", frames, got, want)
			}
			delete(in, want)
		}
		if s.clear(); s.take() != -1 {
			t.Errorf("of %d frames: a cleared set is not empty", frames)
		}
	}
}
