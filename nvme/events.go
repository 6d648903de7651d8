package nvme

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"runsc-fs/nvme/spec"
)

// maxEventRequests is how many Asynchronous Event Requests are kept outstanding,
// if the controller takes as many.
const maxEventRequests = 4

// eventPause lies between an event and its treatment, so that a controller that
// floods its host with events does not keep it busy.
const eventPause = 10 * time.Millisecond

// Event is an asynchronous event of a controller (Base 2.0, 5.2).
type Event struct {
	Type    uint8 // spec.EventTypeError …
	Info    uint8 // which event of that type
	LogPage uint8 // the log that tells more, which the driver has read: 0 if none

	Health     *Health      // of a health event
	Errors     []ErrorEntry // of an error event: the log, newest first
	Namespaces []uint32     // of a change of namespaces: which
	All        bool         // more of them than the controller can list
}

// String shows the event on one line.
func (e Event) String() string {
	var text string
	switch {
	case e.Type == spec.EventTypeError:
		text = oneOf(e.Info, "error status", "write to an invalid doorbell", "invalid doorbell value", "diagnostic failure",
			"persistent internal error", "transient internal error", "firmware image load error")
		if len(e.Errors) > 0 {
			text += "; " + e.Errors[0].String()
		}
	case e.Type == spec.EventTypeHealth:
		text = oneOf(e.Info, "health", "reliability is degraded", "temperature beyond a threshold", "spare below its threshold")
		if e.Health != nil {
			text += fmt.Sprintf("; %d °C, spare %d %%, warnings %#x", celsius(e.Health.TemperatureKelvin), e.Health.SparePercent, e.Health.CriticalWarning)
		}
	case e.Type == spec.EventTypeNotice && e.Info == spec.NoticeNamespace && e.All:
		text = "many namespaces changed"
	case e.Type == spec.EventTypeNotice && e.Info == spec.NoticeNamespace:
		text = "namespaces changed: " + strings.Trim(fmt.Sprint(e.Namespaces), "[]")
	case e.Type == spec.EventTypeNotice && e.Info == spec.NoticeFirmware:
		text = "firmware activation starts"
	default:
		text = "event"
	}
	return fmt.Sprintf("%s (type %d, %02xh)", text, e.Type, e.Info)
}

// oneOf is texts[i], or what the others have in common.
func oneOf(i uint8, common string, texts ...string) string {
	if int(i) < len(texts) {
		return texts[i]
	}
	return common
}

// eventQueue is the state of the asynchronous events of a controller.
type eventQueue struct {
	mu      sync.Mutex // held while events are dealt with; before Controller.resetMu
	timer   *time.Timer
	stopped bool
	warned  uint8 // warnings that are in the log: spec.WarningSpare …

	// Under the mu of the admin queue.
	b       batch    // which the outstanding requests belong to
	wanted  int      // requests to keep outstanding
	arrived []uint32 // DW0 of completions not dealt with, at most wanted
}

// startEventsLocked enables events and sends the first requests for them. The
// caller holds admin.mu; the controller has just been enabled.
func (c *Controller) startEventsLocked() error {
	enable := spec.EventWarnings | c.info.OAES&(spec.EventNamespace|spec.EventFirmware)
	r := c.adminLocked(spec.SubmissionEntry{CDW0: spec.AdminSetFeatures, CDW10: spec.FeatureAsyncEventConfig, CDW11: enable})
	var status *StatusError
	if r.err != nil && !errors.As(r.err, &status) {
		return fmt.Errorf("enabling events: %w", r.err)
	}
	if r.err != nil {
		c.opts.Logf("nvme: the controller does not enable events: %v", r.err)
	}
	c.events.wanted = min(c.info.EventLimit, maxEventRequests)
	c.requestEventsLocked()
	return nil
}

// requestEventsLocked sends as many requests as are missing.
func (c *Controller) requestEventsLocked() {
	q := c.admin
	for q.dead == nil && q.fault == nil && c.events.b.inFlight+len(c.events.arrived) < c.events.wanted {
		s, i := q.takeSlotLocked(&c.events.b)
		if s == nil {
			break
		}
		s.cmd = spec.SubmissionEntry{CDW0: spec.AdminAsyncEventReq}
		c.events.b.inFlight++
		q.sendLocked(s, i)
	}
	q.ringLocked()
}

// arriveLocked takes the completion of a request for events.
func (c *Controller) arriveLocked(dw0 uint32, err error) {
	var status *StatusError
	switch {
	case err == nil:
		c.events.arrived = append(c.events.arrived, dw0)
		c.events.timer.Reset(eventPause)
	case errors.As(err, &status):
		c.events.wanted-- // it takes fewer than it said
	}
}

// PollEvents looks for events and deals with them: it reads the log that an
// event points to, acts on namespaces that changed, and tells Options.Logf and
// Options.OnEvent. The driver does this by itself every Options.EventInterval
// and soon after it has come across an event.
func (c *Controller) PollEvents() {
	c.events.mu.Lock()
	defer c.events.mu.Unlock()
	if c.events.stopped {
		return
	}
	q := c.admin
	q.mu.Lock()
	q.reapLocked()
	epoch, fault := c.epoch.Load(), q.fault
	arrived := slices.Clone(c.events.arrived)
	c.events.arrived = c.events.arrived[:0]
	q.mu.Unlock()
	if fault == nil {
		fault = c.health() // an idle controller may have been reset: then no event would come
	}
	if fault != nil {
		c.reset(epoch, fault)
	}
	for _, dw0 := range arrived {
		c.dealWith(dw0)
	}
	q.mu.Lock()
	c.requestEventsLocked()
	more := len(c.events.arrived) > 0
	q.mu.Unlock()
	switch {
	case more: // came while these were dealt with
		c.events.timer.Reset(eventPause)
	case c.opts.EventInterval > 0:
		c.events.timer.Reset(c.opts.EventInterval)
	default:
		c.events.timer.Stop()
	}
}

// stopEvents ends the treatment of events and waits for one under way.
func (c *Controller) stopEvents() {
	c.events.mu.Lock()
	defer c.events.mu.Unlock()
	c.events.stopped = true
	c.events.timer.Stop()
}

// dealWith reads the log of an event, which lets the controller report the next
// one of its type, and acts on it. The caller holds events.mu.
func (c *Controller) dealWith(dw0 uint32) {
	e := Event{Type: uint8(dw0 & 7), Info: uint8(dw0 >> 8), LogPage: uint8(dw0 >> 16)}
	n := spec.SMARTBytes
	switch e.LogPage {
	case spec.LogError:
		n = min(c.info.ErrorLogEntries, PageSizeBytes/spec.ErrorEntryBytes) * spec.ErrorEntryBytes
	case spec.LogChangedNamespaces:
		n = PageSizeBytes
	}
	var page []byte
	var err error
	news := true
	if e.LogPage != 0 {
		if page, err = c.logPage(e.LogPage, n, 0); err != nil {
			c.opts.Logf("nvme: reading log page %02xh for an event: %v", e.LogPage, err)
		}
	}
	switch {
	case page == nil:
	case e.LogPage == spec.LogError:
		e.Errors = decodeErrors(page)
	case e.LogPage == spec.LogSMART:
		h := decodeHealth(page)
		e.Health = &h
		news = c.warn(&h)
	case e.LogPage == spec.LogChangedNamespaces:
		e.Namespaces, e.All = decodeChangedNamespaces(page)
		c.checkNamespaces(e.Namespaces, e.All)
	}
	if news {
		c.opts.Logf("nvme: %v", e)
	}
	if c.opts.OnEvent != nil {
		c.opts.OnEvent(e)
	}
}

// warn logs what the health log complains of and did not when it was last looked at: a
// controller may raise the same event again and again. It reports whether there
// was anything new. The caller holds events.mu.
func (c *Controller) warn(h *Health) bool {
	before, news := c.events.warned, false
	c.events.warned = 0
	for _, w := range h.complaints(c.info.WarnKelvin) {
		c.events.warned |= w.bit
		if before&w.bit == 0 {
			news = true
			c.opts.Logf("nvme: WARNING: %s: %s", c.info.Serial, w.text)
		}
	}
	return news
}

// checkHealth looks at the health of a controller that was just opened. One
// without a SMART log is taken as it is.
func (c *Controller) checkHealth() error {
	h, err := c.Health()
	var status *StatusError
	switch {
	case err == nil:
		c.powerCycles = h.PowerCycles
		c.events.mu.Lock()
		c.warn(&h)
		c.events.mu.Unlock()
	case !errors.As(err, &status) && !errors.Is(err, ErrArenaFull):
		return err
	}
	return nil
}
