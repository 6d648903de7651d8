package soft

import (
	"encoding/binary"

	"runsc-fs/nvme"
	"runsc-fs/nvme/spec"
)

// mapPRPs collects the guest memory of a transfer of n bytes (Base 2.0, 4.1.1).
// Pages that lie behind one another become one piece. The result is valid
// until the next call for the same queue.
//
//	PRP1 ──► page, from any dword of it
//	PRP2 ──► second page, or list of entries:
//	           | page | page | … | page or next list |
func (c *Controller) mapPRPs(sq *submissionQueue, prp1, prp2 uint64, n int) ([][]byte, spec.Status) {
	const page = nvme.PageSizeBytes
	vec := sq.vec[:0]
	first := min(n, page-int(prp1%page))
	b, ok := c.slice(prp1, first)
	if prp1%4 != 0 {
		return nil, spec.PRPOffsetInvalid | spec.StatusDNR
	}
	if !ok {
		return nil, spec.DataTransferError | spec.StatusDNR
	}
	vec = append(vec, b)
	end := prp1 + uint64(first)
	n -= first
	if n == 0 {
		sq.vec = vec
		return vec, spec.Success
	}
	var list []byte // entries of the list not read yet
	if n > page {
		if prp2%8 != 0 {
			return nil, spec.PRPOffsetInvalid | spec.StatusDNR
		}
		if list, ok = c.slice(prp2, page-int(prp2%page)); !ok {
			return nil, spec.DataTransferError | spec.StatusDNR
		}
	}
	for n > 0 {
		entry := prp2
		if list != nil {
			entry = binary.LittleEndian.Uint64(list)
			if len(list) == 8 && n > page { // the last entry leads to the next list
				if entry%page != 0 {
					return nil, spec.PRPOffsetInvalid | spec.StatusDNR
				}
				if list, ok = c.slice(entry, page); !ok {
					return nil, spec.DataTransferError | spec.StatusDNR
				}
				continue
			}
			list = list[8:]
		}
		if entry%page != 0 {
			return nil, spec.PRPOffsetInvalid | spec.StatusDNR
		}
		step := min(n, page)
		if b, ok = c.slice(entry, step); !ok {
			return nil, spec.DataTransferError | spec.StatusDNR
		}
		if last := len(vec) - 1; entry == end {
			start := end - uint64(len(vec[last]))
			vec[last], _ = c.slice(start, len(vec[last])+step)
		} else {
			vec = append(vec, b)
		}
		end = entry + uint64(step)
		n -= step
	}
	sq.vec = vec
	return vec, spec.Success
}
