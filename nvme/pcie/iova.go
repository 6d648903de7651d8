package pcie

import (
	"fmt"
	"slices"
)

// addressRange is a range of device addresses, both ends belonging to it.
type addressRange struct{ first, last uint64 }

// defaultRanges are what an IOMMU offers whose kernel does not say: not the
// addresses that interrupts are written to, and no more bits than any has.
var defaultRanges = []addressRange{{0, 0xfedfffff}, {0xfef00000, 1<<39 - 1}}

// lowestIOVA keeps small numbers, which mistakes are made of, out of reach.
const lowestIOVA = 2 << 20

// chooseIOVA finds the lowest place for size bytes in the ranges. It is aligned
// so that the IOMMU can use large pages as far as the memory behind does.
func chooseIOVA(ranges []addressRange, size uint64) (uint64, error) {
	sorted := slices.Clone(ranges)
	slices.SortFunc(sorted, func(a, b addressRange) int {
		if a.first < b.first {
			return -1
		}
		return 1
	})
	for align := uint64(1 << 30); align >= 4096; align >>= 9 {
		if align > 2<<20 && size < align {
			continue
		}
		for _, r := range sorted {
			first := max(r.first, lowestIOVA)
			start := (first + align - 1) &^ (align - 1)
			if start < first || start > r.last || r.last-start < size-1 {
				continue
			}
			return start, nil
		}
	}
	return 0, fmt.Errorf("%w: no room for %d bytes in the addresses that the IOMMU translates, %s", ErrUnsupported, size, formatRanges(sorted))
}

func formatRanges(ranges []addressRange) string {
	s := ""
	for i, r := range ranges {
		if i > 0 {
			s += ", "
		}
		s += fmt.Sprintf("%#x to %#x", r.first, r.last)
	}
	return s
}
