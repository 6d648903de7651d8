package nvme

import (
	"fmt"
	"time"

	"runsc-fs/nvme/spec"
)

// adminResult is how an admin command ended.
type adminResult struct {
	dw0   uint32
	err   error
	epoch uint64 // number of resets when the command was sent
}

// exec carries out an admin command without data.
func (c *Controller) exec(cmd spec.SubmissionEntry) adminResult {
	c.admin.mu.Lock()
	defer c.admin.mu.Unlock()
	return c.adminLocked(cmd)
}

// adminLocked carries out an admin command and waits for its completion, at
// most for AdminTimeout. The caller holds admin.mu, which is released while
// waiting.
//
// When it fails with anything but a *StatusError the controller may still have
// the command, until it is reset: the caller must not let go of memory that
// the command names before that.
func (c *Controller) adminLocked(cmd spec.SubmissionEntry) (r adminResult) {
	q := c.admin
	b := &batch{}
	deadline := time.Now().Add(c.opts.AdminTimeout)
	var s *slot
	for pause := time.Microsecond; ; pause = min(2*pause, time.Millisecond) {
		if q.dead != nil && (s == nil || b.inFlight > 0) {
			r.err = q.dead
			return r
		}
		if s == nil {
			var i uint16
			if s, i = q.takeSlotLocked(b); s != nil {
				s.cmd = cmd
				b.inFlight = 1
				r.epoch = c.epoch.Load()
				q.sendLocked(s, i)
				q.ringLocked()
			}
		}
		q.reapLocked()
		if s != nil && b.inFlight == 0 {
			r.dw0, r.err = b.dw0, b.err
			return r
		}
		switch status := c.t.Read32(spec.RegCSTS); {
		case q.fault != nil:
			r.err = q.fault
		case status == spec.Gone:
			r.err = ErrRemoved
		case status&spec.CSTSCFS != 0:
			r.err = ErrControllerFatal
		case time.Now().After(deadline):
			r.err = fmt.Errorf("%w after %v: %w", ErrTimeout, c.opts.AdminTimeout, describe(&cmd, true))
		}
		if r.err != nil {
			if s != nil {
				s.state, s.b = slotOrphaned, nil
			}
			return r
		}
		q.mu.Unlock()
		time.Sleep(pause)
		q.mu.Lock()
	}
}

// identify reads an Identify data structure (Base 2.0, 5.17) into memory that
// the controller cannot reach.
func (c *Controller) identify(cns, nsid uint32) ([]byte, error) {
	return c.adminData(spec.SubmissionEntry{CDW0: spec.AdminIdentify, NSID: nsid, CDW10: cns}, spec.IdentifyBytes)
}

// adminData carries out an admin command that returns up to one page.
func (c *Controller) adminData(cmd spec.SubmissionEntry, n int) ([]byte, error) {
	page, err := c.arena.Alloc(1)
	if err != nil {
		return nil, err
	}
	clear(page)
	off, _ := c.arena.Offset(page)
	cmd.PRP1 = c.dmaBase + uint64(off)
	r := c.exec(cmd)
	if r.err != nil {
		if _, completed := r.err.(*StatusError); !completed {
			c.reset(r.epoch, r.err) // afterwards the page is nobody's target
		}
		c.arena.Free(page)
		return nil, r.err
	}
	data := append([]byte(nil), page[:n]...)
	c.arena.Free(page)
	return data, nil
}

// LogPage reads the first n bytes of a log page, at most 4096 (Base 2.0, 5.16).
func (c *Controller) LogPage(id uint8, n int) ([]byte, error) {
	if n < 4 || n > PageSizeBytes || n%4 != 0 {
		return nil, fmt.Errorf("%w: %d bytes of a log page", ErrInvalidRequest, n)
	}
	return c.adminData(spec.SubmissionEntry{CDW0: spec.AdminGetLogPage, NSID: spec.NSIDAll, CDW10: uint32(n/4-1)<<16 | uint32(id)}, n)
}

// feature reads the current value of a feature (Base 2.0, 5.15).
func (c *Controller) feature(id uint8) (uint32, error) {
	r := c.exec(spec.SubmissionEntry{CDW0: spec.AdminGetFeatures, CDW10: uint32(id)})
	return r.dw0, r.err
}
