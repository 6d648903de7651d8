package store

import (
	"encoding/binary"
	"math/bits"
)

type bitmap = [groupWords]uint64

// wordMask returns the bits of word w that fall into [i, i+n).
func wordMask(w, i, n int) uint64 {
	lo, hi := max(i-w*64, 0), min(i+n-w*64, 64)
	if lo >= hi {
		return 0
	}
	return (^uint64(0) >> (64 - (hi - lo))) << lo
}

func setBits(b *bitmap, i, n int, v bool) {
	for w := i / 64; n > 0 && w*64 < i+n; w++ {
		if m := wordMask(w, i, n); v {
			b[w] |= m
		} else {
			b[w] &^= m
		}
	}
}

// allBits reports whether all n bits from i on equal v.
func allBits(b *bitmap, i, n int, v bool) bool {
	for w := i / 64; n > 0 && w*64 < i+n; w++ {
		m := wordMask(w, i, n)
		want := uint64(0)
		if v {
			want = m
		}
		if b[w]&m != want {
			return false
		}
	}
	return true
}

// countBits counts the set bits among the n from i on.
func countBits(b *bitmap, i, n int) int {
	c := 0
	for w := i / 64; n > 0 && w*64 < i+n; w++ {
		c += bits.OnesCount64(b[w] & wordMask(w, i, n))
	}
	return c
}

func bytesToWords(dst *bitmap, src []byte) {
	for w := range dst {
		dst[w] = binary.LittleEndian.Uint64(src[w*8:])
	}
}

func wordsToBytes(dst []byte, src *bitmap) {
	for w, v := range src {
		binary.LittleEndian.PutUint64(dst[w*8:], v)
	}
}
