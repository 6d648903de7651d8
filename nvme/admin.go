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
	return c.execWithin(cmd, c.opts.AdminTimeout)
}

// execWithin is exec with another timeout.
func (c *Controller) execWithin(cmd spec.SubmissionEntry, timeout time.Duration) adminResult {
	c.admin.mu.Lock()
	defer c.admin.mu.Unlock()
	return c.adminWithinLocked(cmd, timeout)
}

// adminLocked carries out an admin command and waits for its completion, at
// most for AdminTimeout. The caller holds admin.mu, which is released while
// waiting.
//
// When it fails with anything but a *StatusError the controller may still have
// the command, until it is reset: the caller must not let go of memory that
// the command names before that.
func (c *Controller) adminLocked(cmd spec.SubmissionEntry) adminResult {
	return c.adminWithinLocked(cmd, c.opts.AdminTimeout)
}

// adminWithinLocked is adminLocked with another timeout.
func (c *Controller) adminWithinLocked(cmd spec.SubmissionEntry, timeout time.Duration) (r adminResult) {
	q := c.admin
	b := &batch{}
	deadline := time.Now().Add(timeout)
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
			r.err = errNoAnswer // and the reset that follows tells whether it ever will
			if c.removed.Load() {
				r.err = ErrRemoved
			}
		case status&spec.CSTSCFS != 0:
			r.err = ErrControllerFatal
		case status&spec.CSTSRDY == 0:
			r.err = ErrStateLost
		case time.Now().After(deadline):
			r.err = fmt.Errorf("%w after %v: %w", ErrTimeout, timeout, describe(&cmd, true))
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

// adminData carries out an admin command that returns up to one page and changes nothing:
// it is sent again when somebody else has reset the controller.
func (c *Controller) adminData(cmd spec.SubmissionEntry, n int) ([]byte, error) {
	data := make([]byte, n)
	for attempt := 0; ; attempt++ {
		_, err := c.adminPage(cmd, data)
		if err == nil {
			return data, nil
		}
		if attempt >= c.opts.Retries || !wasReset(err) {
			return nil, err
		}
		clear(data)
	}
}

// adminPage carries out an admin command whose data pointer is a page, which
// begins with data before and is copied there afterwards.
func (c *Controller) adminPage(cmd spec.SubmissionEntry, data []byte) (dw0 uint32, err error) {
	page, err := c.arena.Alloc(1)
	if err != nil {
		return 0, err
	}
	clear(page[copy(page, data):])
	off, _ := c.arena.Offset(page)
	cmd.PRP1 = c.dmaBase + uint64(off)
	r := c.exec(cmd)
	if r.err != nil {
		if _, completed := r.err.(*StatusError); !completed {
			c.reset(r.epoch, r.err) // afterwards the page is nobody's target
		}
		c.arena.Free(page)
		return 0, r.err
	}
	copy(data, page)
	c.arena.Free(page)
	return r.dw0, nil
}

// LogPage reads the first n bytes of a log page, at most 4096 (Base 2.0, 5.16). An
// event that the page belongs to stays what it is.
func (c *Controller) LogPage(id uint8, n int) ([]byte, error) {
	return c.logPage(id, n, spec.CDW10RAE)
}

// logPage reads a log page. Without spec.CDW10RAE among flags that lets the
// controller report the next event that the page belongs to.
func (c *Controller) logPage(id uint8, n int, flags uint32) ([]byte, error) {
	if n < 4 || n > PageSizeBytes || n%4 != 0 {
		return nil, fmt.Errorf("%w: %d bytes of a log page", ErrInvalidRequest, n)
	}
	return c.adminData(spec.SubmissionEntry{CDW0: spec.AdminGetLogPage, NSID: spec.NSIDAll, CDW10: uint32(n/4-1)<<16 | flags | uint32(id)}, n)
}

// Admin carries out an admin command that the driver has no method for. Its data,
// at most 4096 bytes, goes through a page of the arena: data is what the
// controller reads there, and has what it left there afterwards. Commands that
// would change the driver's queues are refused.
func (c *Controller) Admin(cmd spec.SubmissionEntry, data []byte) (dw0 uint32, err error) {
	switch cmd.OPC() {
	case spec.AdminCreateIOCQ, spec.AdminCreateIOSQ, spec.AdminDeleteIOCQ, spec.AdminDeleteIOSQ, spec.AdminAsyncEventReq, spec.AdminDoorbellConfig:
		return 0, fmt.Errorf("%w: %s is the driver's", ErrInvalidRequest, spec.AdminCommandName(cmd.OPC()))
	}
	if only := c.opts.OnlyNamespace; only != 0 && cmd.NSID != 0 && cmd.NSID != only {
		return 0, fmt.Errorf("%w: %s of namespace %#x, here only %d is", ErrNotAllowed, spec.AdminCommandName(cmd.OPC()), cmd.NSID, only)
	}
	if len(data) > PageSizeBytes {
		return 0, fmt.Errorf("%w: %d bytes of data of an admin command", ErrInvalidRequest, len(data))
	}
	return c.adminPage(cmd, data)
}

// SetTemperatureThreshold sets the composite temperature from which on the
// controller raises a health event (Set Features, 04h), until it is reset.
func (c *Controller) SetTemperatureThreshold(kelvin int) error {
	if kelvin < 0 || kelvin > 0xffff {
		return fmt.Errorf("%w: %d kelvin", ErrInvalidRequest, kelvin)
	}
	return c.exec(spec.SubmissionEntry{CDW0: spec.AdminSetFeatures, CDW10: spec.FeatureTemperature, CDW11: uint32(kelvin)}).err
}

// feature reads the current value of a feature (Base 2.0, 5.15).
func (c *Controller) feature(id uint8) (uint32, error) {
	r := c.exec(spec.SubmissionEntry{CDW0: spec.AdminGetFeatures, CDW10: uint32(id)})
	return r.dw0, r.err
}
