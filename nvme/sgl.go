package nvme

import (
	"unsafe"

	"runsc-fs/nvme/spec"
)

// maxSGL is the number of descriptors in the one segment that a list has.
const maxSGL = PageSizeBytes / spec.SGLDescriptorBytes

// buildSGLLocked maps up to limit bytes from the cursor by a scatter gather list
// (Base 2.0, 4.1.2) and returns how many whole blocks, in bytes, it covers. It
// reports false when pages are lacking.
//
//	one piece:   SGL1 = Data Block
//	more pieces: SGL1 = Last Segment ──► | Data Block | Data Block | … |
func (q *queuePair) buildSGLLocked(b *batch, r *Request, s *slot, limit int) (int, bool) {
	page, addr, ok := q.takePageLocked(s)
	if !ok {
		return 0, false
	}
	list := unsafe.Slice((*spec.SGLDescriptor)(unsafe.Pointer(&page[0])), maxSGL)
	n, count, end := 0, 0, uint64(0)
	for i, off := b.vec, b.off; n < limit; i, off = i+1, 0 {
		p := r.Vec[i][off:]
		if len(p) == 0 {
			continue
		}
		at, _ := q.c.arena.Offset(p)
		from, step := q.c.dmaBase+uint64(at), min(len(p), limit-n)
		if q.c.sgl == spec.SGLSDword && (from|uint64(step))&3 != 0 {
			break
		}
		if count > 0 && from == end {
			list[count-1].Bytes += uint32(step)
		} else {
			if count == maxSGL {
				break
			}
			list[count] = spec.SGLDescriptor{Address: from, Bytes: uint32(step), ID: spec.SGLDataBlock}
			count++
		}
		end = from + uint64(step)
		n += step
	}
	// Give back what is not a whole block.
	surplus := uint32(n & (1<<b.ns.lbaShift - 1))
	n -= int(surplus)
	for surplus > 0 {
		last := &list[count-1]
		cut := min(last.Bytes, surplus)
		surplus -= cut
		if last.Bytes -= cut; last.Bytes == 0 {
			count--
		}
	}
	switch count {
	case 0:
	case 1:
		s.cmd.SetSGL(list[0])
		q.freePagesLocked(s)
	default:
		s.cmd.SetSGL(spec.SGLDescriptor{Address: addr, Bytes: uint32(count) * spec.SGLDescriptorBytes, ID: spec.SGLLastSegment})
	}
	return n, true
}

// dropSGLLocked takes back what buildSGLLocked did.
func (q *queuePair) dropSGLLocked(s *slot) {
	q.freePagesLocked(s)
	s.cmd.CDW0 &^= spec.PSDTMask
	s.cmd.PRP1, s.cmd.PRP2 = 0, 0
}
