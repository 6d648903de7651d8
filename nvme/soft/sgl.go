package soft

import (
	"encoding/binary"

	"runsc-fs/nvme/spec"
)

// maxDescriptors bounds the length of a scatter gather list: segments may lead
// to each other in a circle.
const maxDescriptors = 1 << 16

// mapData collects the guest memory of a transfer of n bytes, by PRPs or by an
// SGL. The result is valid until the next call for the same queue.
func (c *Controller) mapData(sq *submissionQueue, cmd *spec.SubmissionEntry, n int) ([][]byte, spec.Status) {
	if cmd.CDW0&spec.PSDTMask == 0 {
		return c.mapPRPs(sq, cmd.PRP1, cmd.PRP2, n)
	}
	return c.mapSGL(sq, cmd.SGL(), n)
}

// mapSGL follows a scatter gather list (Base 2.0, 4.1.2):
//
//	SGL1 ──► data
//	SGL1 ──► segment: | Data Block | Data Block | … | Data Block or (Last) Segment ──► … |
func (c *Controller) mapSGL(sq *submissionQueue, sgl1 spec.SGLDescriptor, n int) ([][]byte, spec.Status) {
	w := sglWalk{c: c, vec: sq.vec[:0], left: n}
	defer func() { sq.vec = w.vec[:0] }()
	status := w.segments(sgl1)
	if status == spec.Success && w.left > 0 {
		status = spec.InvalidSGLLength | spec.StatusDNR
	}
	if status != spec.Success {
		return nil, status
	}
	return w.vec, spec.Success
}

// sglWalk is the progress along a scatter gather list.
type sglWalk struct {
	c    *Controller
	vec  [][]byte
	left int // bytes of the transfer that no memory was found for
	seen int // descriptors
}

// segments begins at SGL1 and goes from segment to segment.
func (w *sglWalk) segments(d spec.SGLDescriptor) spec.Status {
	if d.ID == spec.SGLDataBlock {
		return w.data(d)
	}
	for {
		if d.ID != spec.SGLSegment && d.ID != spec.SGLLastSegment || d.Bytes == 0 || d.Bytes%spec.SGLDescriptorBytes != 0 {
			return spec.InvalidSGLSegment | spec.StatusDNR
		}
		count := int(d.Bytes / spec.SGLDescriptorBytes)
		if w.seen += count; w.seen > maxDescriptors {
			return spec.InvalidSGLCount | spec.StatusDNR
		}
		segment, ok := w.c.slice(d.Address, int(d.Bytes))
		if !ok {
			return spec.DataTransferError | spec.StatusDNR
		}
		last := d.ID == spec.SGLLastSegment
		for i := range count {
			d = readDescriptor(segment[i*spec.SGLDescriptorBytes:])
			if i == count-1 && (d.ID == spec.SGLSegment || d.ID == spec.SGLLastSegment) {
				if last {
					return spec.InvalidSGLSegment | spec.StatusDNR
				}
				break
			}
			if status := w.data(d); status != spec.Success {
				return status
			}
		}
		if d.ID == spec.SGLDataBlock {
			return spec.Success
		}
	}
}

func readDescriptor(b []byte) spec.SGLDescriptor {
	return spec.SGLDescriptor{Address: binary.LittleEndian.Uint64(b), Bytes: binary.LittleEndian.Uint32(b[8:]), ID: b[15]}
}

// data takes the memory of a Data Block.
func (w *sglWalk) data(d spec.SGLDescriptor) spec.Status {
	switch d.ID {
	case spec.SGLDataBlock:
	case spec.SGLSegment, spec.SGLLastSegment: // not at the end of a segment
		return spec.InvalidSGLCount | spec.StatusDNR
	default:
		return spec.InvalidSGLType | spec.StatusDNR
	}
	switch {
	case d.Bytes == 0:
		return spec.Success
	case int64(d.Bytes) > int64(w.left):
		return spec.InvalidSGLLength | spec.StatusDNR
	}
	b, ok := w.c.slice(d.Address, int(d.Bytes))
	if !ok {
		return spec.DataTransferError | spec.StatusDNR
	}
	w.vec = append(w.vec, b)
	w.left -= len(b)
	return spec.Success
}
