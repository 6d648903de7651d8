package nvme

import (
	"errors"
	"fmt"
	"sync/atomic"
	"unsafe"

	"runsc-fs/nvme/spec"
)

// Doorbells in memory (Doorbell Buffer Config, Base 2.0, 5.8), for controllers
// that are software, where a register access is expensive. The controller looks
// at the first page by itself while it is busy, and says in the second one from
// which value on it wants the register to be written:
//
//	| shadow doorbells, laid out as the registers | event indexes, the same |

// bell is one doorbell in memory.
type bell struct{ value, event *uint32 }

// moved stores a doorbell's new value and reports whether the register has to
// be written: when the value passed the event index. Both accesses are
// sequentially consistent, so that either the controller sees the value or the
// driver sees that the controller wants to be told.
func (b *bell) moved(old, v uint16) bool {
	atomic.StoreUint32(b.value, uint32(v))
	event := uint16(atomic.LoadUint32(b.event))
	return v-event-1 < v-old
}

// shadow are the doorbells of a queue pair, and what was last written to the
// registers: to write the same again is an error (Base 2.0, figure 146).
type shadow struct {
	sq, cq         bell
	sqTold, cqTold uint16
}

// ringSQ and ringCQ write the doorbells, in memory only if that is enough.
func (q *queuePair) ringSQ(old, v uint16) {
	if q.shadow != nil {
		if !q.shadow.sq.moved(old, v) {
			return
		}
		q.shadow.sqTold = v
	}
	q.c.t.Write32(q.sqBell, uint32(v))
}

func (q *queuePair) ringCQ(old, v uint16) {
	if q.shadow != nil {
		if !q.shadow.cq.moved(old, v) {
			return
		}
		q.shadow.cqTold = v
	}
	q.c.t.Write32(q.cqBell, uint32(v))
}

// insistLocked writes the doorbell registers of a queue that waits unusually
// long, in case the controller missed what it was told in memory.
func (q *queuePair) insistLocked() {
	s := q.shadow
	if s == nil {
		return
	}
	if s.sqTold != q.sqRung {
		s.sqTold = q.sqRung
		q.c.t.Write32(q.sqBell, uint32(q.sqRung))
	}
	if s.cqTold != q.cqRung {
		s.cqTold = q.cqRung
		q.c.t.Write32(q.cqBell, uint32(q.cqRung))
	}
}

// allocateShadow takes memory for doorbells if the controller offers their use
// and those of n queue pairs fit.
func (c *Controller) allocateShadow(n int) error {
	last := spec.CQHeadDoorbell(uint16(n), c.cap.DSTRD()) - spec.RegDoorbells
	if c.info.OACS&spec.OACSDoorbellConfig == 0 || c.opts.Avoid&FeatureDoorbellBuffer != 0 || last > PageSizeBytes-4 {
		return nil
	}
	mem, err := c.arena.Alloc(2)
	if err != nil {
		return fmt.Errorf("nvme: memory for doorbells: %w", err)
	}
	c.shadow = mem
	return nil
}

// configureShadow tells a controller that was just enabled about the doorbells
// in memory. The caller holds admin.mu. A controller that refuses them gets
// registers.
func (c *Controller) configureShadow() error {
	if c.shadow == nil {
		return nil
	}
	clear(c.shadow)
	off, _ := c.arena.Offset(c.shadow)
	addr := c.dmaBase + uint64(off)
	r := c.adminLocked(spec.SubmissionEntry{CDW0: spec.AdminDoorbellConfig, PRP1: addr, PRP2: addr + PageSizeBytes})
	var status *StatusError
	switch {
	case errors.As(r.err, &status):
		c.opts.Logf("nvme: no doorbells in memory: %v", r.err)
		c.arena.Free(c.shadow)
		c.shadow = nil
	case r.err != nil:
		return fmt.Errorf("setting up doorbells in memory: %w", r.err)
	}
	return nil
}

// setShadow makes an I/O queue pair use the doorbells in mem, or registers when
// that is nil.
func (q *queuePair) setShadow(mem []byte) {
	q.shadow = nil
	if mem == nil {
		return
	}
	at := func(reg uint32) bell {
		off := reg - spec.RegDoorbells
		return bell{value: (*uint32)(unsafe.Pointer(&mem[off])), event: (*uint32)(unsafe.Pointer(&mem[PageSizeBytes+off]))}
	}
	q.shadow = &shadow{sq: at(q.sqBell), cq: at(q.cqBell)}
}
