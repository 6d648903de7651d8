package nvme

import (
	"encoding/binary"
	"fmt"
	"unsafe"

	"runsc-fs/nvme/spec"
	"runsc-fs/nvme/trace"
)

// submitLocked turns as much of b as fits into commands, rings the doorbell
// once, and returns the number of commands sent or requests disposed of.
func (q *queuePair) submitLocked(b *batch) int {
	if q.dead != nil && b.next < len(b.reqs) {
		b.fail(b.next, len(b.reqs)-b.next, q.dead)
		b.next = len(b.reqs)
		return 1
	}
	n := 0
	for b.next < len(b.reqs) && q.fault == nil {
		r := &b.reqs[b.next]
		if !b.started {
			if err := b.ns.startRequest(b, r); err != nil {
				b.fail(b.next, 1, err)
				b.next++
				n++
				continue
			}
			if b.total == 0 {
				b.next++
				n++
				continue
			}
			b.started = true
		}
		s, i := q.takeSlotLocked(b)
		if s == nil {
			break
		}
		if !q.buildLocked(b, r, s) {
			q.freeSlotLocked(s, i)
			break
		}
		b.inFlight++
		q.sendLocked(s, i)
		n++
	}
	if n > 0 {
		trace.Enter(trace.Device) // Do leaves it
	}
	q.ringLocked()
	return n
}

// startRequest checks a request and sets the cursor of b to its beginning.
// b.total becomes the bytes to do, 0 when there is nothing to do.
func (ns *Namespace) startRequest(b *batch, r *Request) error {
	b.vec, b.off, b.done, b.total = 0, 0, 0, 0
	g := &ns.geometry
	var total int64
	switch r.Op {
	case OpRead, OpWrite, opCompare:
		for _, p := range r.Vec {
			if len(p) == 0 {
				continue
			}
			if _, ok := ns.c.arena.Offset(p); !ok {
				return fmt.Errorf("%w: memory outside the arena", ErrInvalidRequest)
			}
			total += int64(len(p))
		}
	case OpWriteZeroes:
		if !g.WriteZeroes {
			return fmt.Errorf("%w: Write Zeroes", ErrUnsupported)
		}
		total = r.LengthBytes
	case OpDeallocate:
		if !g.Deallocate {
			return fmt.Errorf("%w: deallocate", ErrUnsupported)
		}
		total = r.LengthBytes
	case opVerify:
		total = r.LengthBytes
	case opCopy:
		if len(r.Vec) != 1 || len(r.Vec[0]) < copyRangeBytes || len(r.Vec[0]) > PageSizeBytes {
			return fmt.Errorf("%w: copy without source ranges", ErrInvalidRequest)
		}
		if off, ok := ns.c.arena.Offset(r.Vec[0]); !ok || off%PageSizeBytes != 0 {
			return fmt.Errorf("%w: memory outside the arena", ErrInvalidRequest)
		}
		total = r.LengthBytes
	case OpFlush:
		if g.VolatileWriteCache {
			b.total = 1
		}
		return nil
	default:
		return fmt.Errorf("%w: unknown operation %d", ErrInvalidRequest, r.Op)
	}
	if (r.OffsetBytes|total)&(g.LBASizeBytes-1) != 0 || r.OffsetBytes < 0 || total < 0 || total > ns.sizeBytes.Load() || r.OffsetBytes > ns.sizeBytes.Load()-total {
		return fmt.Errorf("%w: %d bytes at %d of a namespace of %d bytes in blocks of %d", ErrInvalidRequest, total, r.OffsetBytes, ns.sizeBytes.Load(), g.LBASizeBytes)
	}
	b.total = total
	return nil
}

// buildLocked makes the next command of b in s and moves the cursor of b on. It
// reports false when the queue lacks pages at the moment.
func (q *queuePair) buildLocked(b *batch, r *Request, s *slot) bool {
	ns := b.ns
	s.first, s.count = b.next, 1
	s.cmd = spec.SubmissionEntry{NSID: ns.id}
	left := b.total - b.done
	switch r.Op {
	case OpFlush:
		s.cmd.CDW0 = spec.CmdFlush
		b.next++
		b.started = false
		return true
	case OpDeallocate:
		return q.buildDeallocateLocked(b, s)
	case OpWriteZeroes:
		n := min(left, ns.maxZeroes)
		s.cmd.CDW0 = spec.CmdWriteZeroes
		q.setExtentLocked(b, r, s, n)
		b.advance(n)
		return true
	case opVerify:
		n := min(left, ns.maxVerify)
		s.cmd.CDW0 = spec.CmdVerify
		q.setExtentLocked(b, r, s, n)
		b.advance(n)
		return true
	case opCopy:
		q.buildCopyLocked(b, r, s)
		b.advance(left)
		return true
	}
	limit := min(left, int64(ns.maxData))
	// What is written atomically must stay one command.
	if g := &ns.geometry; g.BoundaryBytes != 0 && (r.Op != OpWrite || b.total > int64(g.AtomicWriteBytes)) {
		limit = min(limit, g.BoundaryBytes-(r.OffsetBytes+b.done)%g.BoundaryBytes)
	}
	s.cmd.CDW0 = spec.CmdRead
	switch r.Op {
	case OpWrite:
		s.cmd.CDW0 = spec.CmdWrite
	case opCompare:
		s.cmd.CDW0 = spec.CmdCompare
	}
	n, ok := q.mapLocked(b, r, s, int(limit))
	if !ok {
		return false
	}
	q.setExtentLocked(b, r, s, int64(n))
	for rest := n; rest > 0; { // move on in Vec
		step := min(rest, len(r.Vec[b.vec])-b.off)
		rest -= step
		if b.off += step; b.off == len(r.Vec[b.vec]) {
			b.vec, b.off = b.vec+1, 0
		}
	}
	b.advance(int64(n))
	return true
}

// advance records that n bytes of the current request are in commands.
func (b *batch) advance(n int64) {
	if b.done += n; b.done == b.total {
		b.next++
		b.started = false
	}
}

// setExtentLocked sets SLBA, NLB and FUA.
func (q *queuePair) setExtentLocked(b *batch, r *Request, s *slot, n int64) {
	shift := b.ns.lbaShift
	s.cmd.SetSLBA(uint64(r.OffsetBytes+b.done) >> shift)
	s.cmd.CDW12 = uint32(n>>shift) - 1
	if r.FUA && (r.Op == OpWrite || r.Op == OpWriteZeroes) && b.ns.geometry.VolatileWriteCache {
		s.cmd.CDW12 |= spec.CDW12FUA
	}
}

// buildDeallocateLocked gathers the ranges of as many requests in a row as one
// Dataset Management command takes.
func (q *queuePair) buildDeallocateLocked(b *batch, s *slot) bool {
	page, addr, ok := q.takePageLocked(s)
	if !ok {
		return false
	}
	ns, n, limits := b.ns, 0, &b.ns.c.limits
	room := limits.blocks
	for n < limits.ranges && room > 0 && b.next < len(b.reqs) && b.reqs[b.next].Op == OpDeallocate {
		r := &b.reqs[b.next]
		if !b.started {
			if err := ns.startRequest(b, r); err != nil || b.total == 0 {
				if err != nil {
					b.fail(b.next, 1, err)
				}
				b.next++
				continue
			}
			b.started = true
		}
		blocks := min(uint64(b.total-b.done)>>ns.lbaShift, limits.rangeBlocks, room)
		room -= blocks
		e := page[n*16:]
		binary.LittleEndian.PutUint32(e, 0)
		binary.LittleEndian.PutUint32(e[4:], uint32(blocks))
		binary.LittleEndian.PutUint64(e[8:], uint64(r.OffsetBytes+b.done)>>ns.lbaShift)
		n++
		s.count = b.next - s.first + 1
		b.advance(int64(blocks << ns.lbaShift))
	}
	s.cmd.CDW0 = spec.CmdDSM
	s.cmd.PRP1 = addr
	s.cmd.CDW10 = uint32(n - 1)
	s.cmd.CDW11 = spec.CDW11DSMAD
	return true
}

// mapLocked sets PRP1 and PRP2 for up to limit bytes from the cursor of b and
// returns how many bytes the command covers, a multiple of the block size.
//
// PRPs describe memory that is contiguous but for page boundaries (Base 2.0,
// 4.1.1). Where the pieces of Vec do not fit that, an SGL takes their place if
// the controller knows those. Else the command ends there, if a logical block
// does, too; a block that itself consists of pieces that do not fit is bounced:
// it goes through a page of the queue.
func (q *queuePair) mapLocked(b *batch, r *Request, s *slot, limit int) (int, bool) {
	mask := 1<<b.ns.lbaShift - 1
	for {
		n, ok := q.buildPRPsLocked(b, r, s, limit)
		if !ok {
			return 0, false
		}
		if n == limit {
			return n, true
		}
		q.freePagesLocked(s)
		if q.c.sgl != 0 {
			if m, ok := q.buildSGLLocked(b, r, s, limit); m > n || !ok {
				return m, ok
			}
			q.dropSGLLocked(s)
		}
		if limit = n &^ mask; limit == 0 { // else the same again, for fewer pages
			return q.bounceLocked(b, r, s)
		}
	}
}

// buildPRPsLocked maps memory from the cursor until limit bytes are covered or
// the next piece does not fit. It reports false when pages are lacking.
func (q *queuePair) buildPRPsLocked(b *batch, r *Request, s *slot, limit int) (int, bool) {
	const pageMask = PageSizeBytes - 1
	w := prpWriter{q: q, s: s}
	n, end := 0, uint64(0)
	for i, off := b.vec, b.off; n < limit; i, off = i+1, 0 {
		p := r.Vec[i][off:]
		if len(p) == 0 {
			continue
		}
		at, _ := q.c.arena.Offset(p)
		addr := q.c.dmaBase + uint64(at)
		step := min(len(p), limit-n)
		switch {
		case n == 0:
			if addr&3 != 0 {
				return 0, true
			}
			w.add(addr)
		case addr == end:
			if addr&pageMask == 0 && !w.add(addr) {
				return 0, false
			}
		case (addr|end)&pageMask != 0:
			return n, true
		default:
			if !w.add(addr) {
				return 0, false
			}
		}
		end = addr + uint64(step)
		for page := addr&^pageMask + PageSizeBytes; page < end; page += PageSizeBytes {
			if !w.add(page) {
				return 0, false
			}
		}
		n += step
	}
	return n, true
}

// prpWriter writes PRP entries: the first to PRP1, a second to PRP2, more to
// lists, the last entry of a full list leading to the next one.
type prpWriter struct {
	q    *queuePair
	s    *slot
	n    int
	list []uint64
	fill int
}

func (w *prpWriter) add(addr uint64) bool {
	switch {
	case w.n == 0:
		w.s.cmd.PRP1 = addr
	case w.n == 1:
		w.s.cmd.PRP2 = addr
	default:
		if w.n == 2 || w.fill == listEntries {
			mem, page, ok := w.q.takePageLocked(w.s)
			if !ok {
				return false
			}
			list := unsafe.Slice((*uint64)(unsafe.Pointer(&mem[0])), listEntries)
			if w.n == 2 {
				list[0], w.s.cmd.PRP2 = w.s.cmd.PRP2, page
			} else {
				list[0], w.list[listEntries-1] = w.list[listEntries-1], page
			}
			w.list, w.fill = list, 1
		}
		w.list[w.fill] = addr
		w.fill++
	}
	w.n++
	return true
}

// bounceLocked maps a page of the queue for whole blocks at the cursor, and
// copies the data of a write there.
func (q *queuePair) bounceLocked(b *batch, r *Request, s *slot) (int, bool) {
	mem, addr, ok := q.takePageLocked(s)
	if !ok {
		return 0, false
	}
	n := int(min(b.total-b.done, PageSizeBytes)) &^ (1<<b.ns.lbaShift - 1)
	s.cmd.PRP1, s.cmd.PRP2 = addr, 0
	if s.cmd.OPC() == spec.CmdRead {
		s.bounce, s.bounceVec, s.bounceOff, s.bytes = true, b.vec, b.off, n
		return n, true
	}
	mem = mem[:n]
	for i, off := b.vec, b.off; len(mem) > 0; i, off = i+1, 0 {
		mem = mem[copy(mem, r.Vec[i][off:]):]
	}
	return n, true
}

// unbounceLocked copies the data of a bounced read to where it belongs.
func (q *queuePair) unbounceLocked(s *slot) {
	mem := q.pages[int(s.pages)*PageSizeBytes:][:s.bytes]
	r := &s.b.reqs[s.first]
	for i, off := s.bounceVec, s.bounceOff; len(mem) > 0; i, off = i+1, 0 {
		mem = mem[copy(r.Vec[i][off:], mem):]
	}
}
