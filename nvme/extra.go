package nvme

import (
	"encoding/binary"
	"fmt"
	"slices"
	"unsafe"

	"runsc-fs/nvme/spec"
)

// Operations beyond those of a BlockDevice. They take the way of the others,
// through Do.
const (
	opCompare Op = 0x80 + iota
	opVerify
	opCopy // one command; Vec is its source ranges as the controller reads them
)

const copyRangeBytes = int(unsafe.Sizeof(spec.CopyRange{}))

// Range is a range of a namespace in bytes, of whole logical blocks.
type Range struct{ OffsetBytes, LengthBytes int64 }

// copyLimits are those of one Copy command (NVM 1.0, figure 97).
type copyLimits struct {
	ranges      int   // 0: Copy cannot be used
	rangeBlocks int64 // of one source range
	blocks      int64 // of all
}

func (ns *Namespace) setCopyLimits(page []byte) {
	le := binary.LittleEndian
	l := copyLimits{
		ranges:      min(int(page[spec.IDNSMSRC])+1, PageSizeBytes/copyRangeBytes),
		rangeBlocks: min(int64(le.Uint16(page[spec.IDNSMSSRL:])), spec.MaxNLB),
		blocks:      int64(le.Uint32(page[spec.IDNSMCL:])),
	}
	if l.rangeBlocks > 0 && l.blocks > 0 {
		ns.copying = l
	}
}

// Compare compares what the namespace has at offsetBytes with the pieces of vec,
// which lie in the arena. A difference is ErrMiscompare. Safe for concurrent use.
func (ns *Namespace) Compare(offsetBytes int64, vec [][]byte) error {
	if !ns.geometry.Compare {
		return fmt.Errorf("%w: Compare", ErrUnsupported)
	}
	return ns.Do([]Request{{Op: opCompare, OffsetBytes: offsetBytes, Vec: vec}})
}

// Verify has the controller read a range and check it, without a transfer. A
// block that cannot be read is ErrMedia. Safe for concurrent use.
func (ns *Namespace) Verify(offsetBytes, lengthBytes int64) error {
	if !ns.geometry.Verify {
		return fmt.Errorf("%w: Verify", ErrUnsupported)
	}
	return ns.Do([]Request{{Op: opVerify, OffsetBytes: offsetBytes, LengthBytes: lengthBytes}})
}

// Copy has the controller copy the ranges of src, one behind the other, to
// offsetBytes on. Source and target must not overlap. It needs as many commands
// as the controller's limits demand, one after the other; when one fails the
// target has the data of those before. Like a write it needs a Flush to be
// durable. Safe for concurrent use.
func (ns *Namespace) Copy(offsetBytes int64, src []Range) error {
	if !ns.geometry.Copy {
		return fmt.Errorf("%w: Copy", ErrUnsupported)
	}
	var total int64
	for _, r := range src {
		if err := ns.checkRange(r); err != nil {
			return err
		}
		if total += r.LengthBytes; total > ns.sizeBytes.Load() {
			break // does not fit, which is reported below
		}
	}
	if err := ns.checkRange(Range{offsetBytes, total}); err != nil {
		return err
	}
	for _, r := range src {
		if r.OffsetBytes < offsetBytes+total && offsetBytes < r.OffsetBytes+r.LengthBytes && r.LengthBytes > 0 {
			return fmt.Errorf("%w: copy of %d bytes at %d to %d, which overlap", ErrInvalidRequest, r.LengthBytes, r.OffsetBytes, offsetBytes)
		}
	}
	page, err := ns.c.arena.Alloc(1)
	if err != nil {
		return err
	}
	defer ns.c.arena.Free(page)
	left := slices.Clone(src) // its first element shrinks as it is copied
	for {
		var n int
		var blocks int64
		n, blocks, left = ns.fillCopyRanges(page, left)
		if n == 0 {
			return nil
		}
		length := blocks << ns.lbaShift
		ranges := page[:n*copyRangeBytes]
		if err := ns.Do([]Request{{Op: opCopy, OffsetBytes: offsetBytes, LengthBytes: length, Vec: [][]byte{ranges}}}); err != nil {
			return err
		}
		offsetBytes += length
	}
}

func (ns *Namespace) checkRange(r Range) error {
	if (r.OffsetBytes|r.LengthBytes)&(ns.geometry.LBASizeBytes-1) != 0 || r.OffsetBytes < 0 || r.LengthBytes < 0 ||
		r.LengthBytes > ns.sizeBytes.Load() || r.OffsetBytes > ns.sizeBytes.Load()-r.LengthBytes {
		return fmt.Errorf("%w: range of %d bytes at %d of a namespace of %d bytes in blocks of %d",
			ErrInvalidRequest, r.LengthBytes, r.OffsetBytes, ns.sizeBytes.Load(), ns.geometry.LBASizeBytes)
	}
	return nil
}

// fillCopyRanges writes source ranges for one command and returns their number,
// their blocks and what is left of src, whose elements it changes.
func (ns *Namespace) fillCopyRanges(page []byte, src []Range) (n int, blocks int64, rest []Range) {
	list := unsafe.Slice((*spec.CopyRange)(unsafe.Pointer(&page[0])), ns.copying.ranges)
	for len(src) > 0 && n < len(list) && blocks < ns.copying.blocks {
		r := &src[0]
		step := min(r.LengthBytes>>ns.lbaShift, ns.copying.rangeBlocks, ns.copying.blocks-blocks)
		if step > 0 {
			list[n] = spec.CopyRange{SLBA: uint64(r.OffsetBytes) >> ns.lbaShift, NLB: uint16(step - 1)}
			n++
			blocks += step
		}
		r.OffsetBytes += step << ns.lbaShift
		if r.LengthBytes -= step << ns.lbaShift; r.LengthBytes == 0 {
			src = src[1:]
		}
	}
	return n, blocks, src
}

// buildCopyLocked makes a Copy command, source ranges of format 0.
func (q *queuePair) buildCopyLocked(b *batch, r *Request, s *slot) {
	off, _ := q.c.arena.Offset(r.Vec[0])
	s.cmd.CDW0 = spec.CmdCopy
	s.cmd.PRP1 = q.c.dmaBase + uint64(off)
	s.cmd.SetSLBA(uint64(r.OffsetBytes) >> b.ns.lbaShift)
	s.cmd.CDW12 = uint32(len(r.Vec[0])/copyRangeBytes - 1)
}
