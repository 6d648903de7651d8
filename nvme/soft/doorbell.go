package soft

import (
	"sync/atomic"

	"runsc-fs/nvme"
	"runsc-fs/nvme/spec"
)

// shadow are the doorbells in the host's memory (Base 2.0, 5.8): their values,
// and the event indexes with which the controller says from which value on it
// wants the register to be written.
type shadow struct{ values, events []uint32 }

func (c *Controller) configureDoorbells(cmd *spec.SubmissionEntry) spec.Status {
	if !c.opts.DoorbellBuffer {
		return spec.InvalidOpcode | spec.StatusDNR
	}
	values, ok := mapQueue[uint32](c, cmd.PRP1, nvme.PageSizeBytes/4)
	events, ok2 := mapQueue[uint32](c, cmd.PRP2, nvme.PageSizeBytes/4)
	if !ok || !ok2 {
		return invalidField
	}
	c.shadow.Store(&shadow{values, events})
	return spec.Success
}

// bell finds a doorbell in the shadow; both are nil when it has none. The admin
// queue has registers only.
func (c *Controller) bell(reg uint32) (value, event *uint32) {
	s := c.shadow.Load()
	i := (reg - spec.RegDoorbells) / 4
	if s == nil || i < 2 || int(i) >= len(s.values) {
		return nil, nil
	}
	return &s.values[i], &s.events[i]
}

// pullTailLocked takes a submission queue's tail over from memory and reports
// whether there are commands. No thread looks again later, so before it stops
// it puts the event index where the host has to write the register for the
// next command, and then looks once more.
func (c *Controller) pullTailLocked(sq *submissionQueue) bool {
	value, event := c.bell(spec.SQTailDoorbell(sq.id, c.opts.DoorbellStride))
	if value == nil {
		return false
	}
	for range 2 {
		if v := atomic.LoadUint32(value); int(v) < len(sq.entries) {
			sq.tail = uint16(v)
		}
		if sq.tail != sq.head {
			return true
		}
		atomic.StoreUint32(event, uint32(sq.tail))
	}
	return false
}

// roomLocked tells whether another completion can be posted. It takes the head
// over from memory when there is no room without, and says first that the
// register has to be written for more.
func (c *Controller) roomLocked(cq *completionQueue) bool {
	if !cq.fullLocked() {
		return true
	}
	value, event := c.bell(spec.CQHeadDoorbell(cq.id, c.opts.DoorbellStride))
	if value == nil {
		return false
	}
	atomic.StoreUint32(event, uint32(cq.head))
	if v := atomic.LoadUint32(value); int(v) < len(cq.entries) {
		cq.head = uint16(v)
	}
	if cq.fullLocked() {
		return false
	}
	// Behind the head: not passed before the queue has been round once.
	atomic.StoreUint32(event, uint32(cq.head+uint16(len(cq.entries))-1)%uint32(len(cq.entries)))
	return true
}
