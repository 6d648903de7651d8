package soft

import (
	"fmt"
	"slices"

	"runsc-fs/nvme/spec"
)

// maxEvents is how many events wait for a request; more are dropped.
const maxEvents = 64

// Health is what a test can change about the health that the SMART log reports.
type Health struct {
	TemperatureKelvin int
	SparePercent      int
	Critical          uint8 // spec.WarningReliability …, beside what follows from the others
}

// critical is the critical warning field for a temperature threshold.
func (h *Health) critical(threshold uint32) uint8 {
	w := h.Critical
	if uint32(h.TemperatureKelvin) >= threshold {
		w |= spec.WarningTemperature
	}
	if h.SparePercent < spareThreshold {
		w |= spec.WarningSpare
	}
	return w
}

// SetHealth changes the controller's health and raises the events that belong to
// it, if the host enabled them.
func (c *Controller) SetHealth(h Health) {
	c.mu.Lock()
	c.health = h
	c.mu.Unlock()
	c.judgeHealth()
	c.postEvents()
}

// CyclePower makes the controller what it is after its power was away: disabled, with one
// power cycle more. Backings keep what was written.
func (c *Controller) CyclePower() {
	c.Write32(spec.RegCC, 0)
	c.cycles.Add(1)
}

// judgeHealth queues the events of warnings that are there and enabled.
func (c *Controller) judgeHealth() {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := uint32(c.health.critical(c.threshold.Load())) & c.eventMask.Load()
	for _, k := range []struct {
		bits uint32
		info uint8
	}{
		{spec.WarningTemperature, spec.HealthTemperature},
		{spec.WarningSpare, spec.HealthSpare},
		{spec.WarningReliability | spec.WarningReadOnly | spec.WarningBackup, spec.HealthReliability},
	} {
		if w&k.bits != 0 {
			c.queueEventLocked(spec.MakeEvent(spec.EventTypeHealth, k.info, spec.LogSMART))
		}
	}
}

// Detach makes a namespace inactive, Attach active again, as the administrator
// of a shared device may do at any time (Base 2.0, 3.2.1.4). Commands to an
// inactive one fail.
func (c *Controller) Detach(nsid uint32) error { return c.attach(nsid, true) }

// Attach is described at Detach.
func (c *Controller) Attach(nsid uint32) error { return c.attach(nsid, false) }

func (c *Controller) attach(nsid uint32, detached bool) error {
	if nsid == 0 || uint64(nsid) > uint64(len(c.namespaces)) {
		return fmt.Errorf("soft: there is no namespace %d", nsid)
	}
	c.namespaces[nsid-1].detached.Store(detached)
	c.namespaceChanged(nsid)
	return nil
}

// Grow makes a namespace larger whose medium has become larger, and says so to
// the host, as a controller does whose namespace has been given more of the
// device. Commands in progress go on.
func (c *Controller) Grow(nsid uint32, sizeBytes int64) error {
	if nsid == 0 || uint64(nsid) > uint64(len(c.namespaces)) {
		return fmt.Errorf("soft: there is no namespace %d", nsid)
	}
	ns := c.namespaces[nsid-1]
	g, ok := ns.backing.(Grower)
	if !ok {
		return fmt.Errorf("soft: %v cannot grow", ns.backing)
	}
	if err := g.Grow(sizeBytes); err != nil {
		return err
	}
	blocks := uint64(g.Properties().SizeBytes) >> ns.lbaShift
	for old := ns.blocks.Load(); blocks > old; old = ns.blocks.Load() {
		if ns.blocks.CompareAndSwap(old, blocks) {
			c.namespaceChanged(nsid)
		}
	}
	return nil
}

// namespaceChanged adds to the Changed Namespace List and raises the event.
func (c *Controller) namespaceChanged(nsid uint32) {
	c.mu.Lock()
	if !slices.Contains(c.changed, nsid) {
		c.changed = append(c.changed, nsid)
		slices.Sort(c.changed)
	}
	if c.eventMask.Load()&spec.EventNamespace != 0 {
		c.queueEventLocked(spec.MakeEvent(spec.EventTypeNotice, spec.NoticeNamespace, spec.LogChangedNamespaces))
	}
	c.mu.Unlock()
	c.postEvents()
}

// RaiseEvent raises an asynchronous event, whether the host enabled it or not.
// dw0 is as spec.MakeEvent makes it.
func (c *Controller) RaiseEvent(dw0 uint32) {
	c.mu.Lock()
	c.queueEventLocked(dw0)
	c.mu.Unlock()
	c.postEvents()
}

// invalidDoorbell raises the event for a doorbell write that was ignored: info
// 0 for a doorbell that does not exist, 1 for a value that it cannot take.
func (c *Controller) invalidDoorbell(info uint8) {
	c.badBell.Add(1)
	c.RaiseEvent(spec.MakeEvent(spec.EventTypeError, info, spec.LogError))
}

// queueEventLocked lets an event wait for a request. The caller holds c.mu.
func (c *Controller) queueEventLocked(dw0 uint32) {
	if len(c.events) < maxEvents && !slices.Contains(c.events, dw0) {
		c.events = append(c.events, dw0)
	}
}

// postEvents completes requests with the events that wait. The caller holds no
// lock.
func (c *Controller) postEvents() {
	if sq := c.sqs[0].Load(); sq != nil {
		sq.cq.mu.Lock()
		c.postEventsLocked(sq)
		sq.cq.mu.Unlock()
	}
}

// postEventsLocked is postEvents for a caller that holds the admin queue's lock.
// A type of events is reported once until the host has read its log.
func (c *Controller) postEventsLocked(sq *submissionQueue) {
	for !sq.deleted && !sq.cq.fullLocked() {
		c.mu.Lock()
		i := slices.IndexFunc(c.events, func(dw0 uint32) bool { return c.muted&(1<<(dw0&7)) == 0 })
		if i < 0 || len(c.aers) == 0 {
			c.mu.Unlock()
			return
		}
		dw0 := c.events[i]
		c.events = slices.Delete(c.events, i, i+1)
		c.muted |= 1 << (dw0 & 7)
		cid := c.aers[0].cmd.CID()
		c.aers = slices.Delete(c.aers, 0, 1)
		c.mu.Unlock()
		c.postLocked(sq, cid, spec.Success, dw0)
	}
}

// acknowledge lets events be reported again whose log the host has read.
func (c *Controller) acknowledge(log uint8) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch log {
	case spec.LogError:
		c.muted &^= 1 << spec.EventTypeError
	case spec.LogSMART:
		c.muted &^= 1 << spec.EventTypeHealth
	case spec.LogChangedNamespaces:
		c.changed = nil
		c.muted &^= 1 << spec.EventTypeNotice
	case spec.LogFirmwareSlot:
		c.muted &^= 1 << spec.EventTypeNotice
	}
}
