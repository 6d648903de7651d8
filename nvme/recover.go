package nvme

import (
	"errors"
	"fmt"
	"runtime"
	"time"

	"runsc-fs/nvme/spec"
)

// Stages of waiting for completions: spin, then yield the processor to other
// goroutines, then wait for an interrupt, or sleep longer and longer where there
// are none. Who usually gets that far with interrupts does not yield before.
const (
	maxSpin  = 20 * time.Microsecond
	minSpin  = 1 * time.Microsecond
	maxYield = 200 * time.Microsecond
	minSleep = 20 * time.Microsecond
	maxSleep = 1 * time.Millisecond

	// maxInterruptWait bounds what a lost interrupt costs; after maxMissed of
	// them in a row the driver trusts none any more.
	maxInterruptWait = 20 * time.Millisecond
	maxMissed        = 8
)

// Registers that do not answer, because the function is being reset, read as all
// ones or as zeroes.
const (
	minAnswerPause = 100 * time.Microsecond
	maxAnswerPause = 10 * time.Millisecond
)

// maxRestarts is how often one reset begins anew because somebody else has reset
// the controller meanwhile.
const maxRestarts = 3

// minAbortTimeout is what an Abort gets at least, up to AdminTimeout.
const minAbortTimeout = 100 * time.Millisecond

// errNoAnswer: the registers read as all ones. Whether that is for good is not known yet.
var errNoAnswer error = ioError("nvme: the controller's registers do not answer")

// waiter is the progress of one wait.
type waiter struct {
	began    int64 // 0: the wait has not begun
	sleep    time.Duration
	timedOut bool // the last wait for an interrupt ended without one
}

// driveLocked sends all of b and returns when it is done. The caller holds
// q.mu, which is released while waiting.
func (q *queuePair) driveLocked(b *batch) {
	var w waiter
	for {
		n := q.submitLocked(b)
		n += q.reapLocked()
		if w.timedOut {
			w.timedOut = false
			if n > 0 {
				q.c.missInterrupt()
			}
		}
		if b.finished() {
			break
		}
		if q.fault != nil {
			epoch, cause := q.c.epoch.Load(), q.fault
			q.mu.Unlock()
			q.c.reset(epoch, cause)
			q.mu.Lock()
		} else if n == 0 {
			q.waitLocked(b, &w)
		}
	}
	if w.began != 0 {
		q.latencyNs += (q.c.now() - w.began - q.latencyNs) / 8
	}
}

// waitLocked lets some time pass and looks after deadlines and the state of
// the controller.
func (q *queuePair) waitLocked(b *batch, w *waiter) {
	now := q.c.now()
	if w.began == 0 {
		w.began = now
	}
	waited := time.Duration(now - w.began)
	spin := minSpin
	if l := time.Duration(q.latencyNs); l < maxSpin {
		spin = min(max(2*l, minSpin), maxSpin)
	}
	interrupts := q.c.trustsInterrupts()
	switch {
	case waited < spin:
		q.mu.Unlock()
		q.mu.Lock()
	case waited < maxYield && !(interrupts && time.Duration(q.latencyNs) > maxYield):
		q.mu.Unlock()
		runtime.Gosched()
		q.mu.Lock()
	default:
		epoch := q.c.epoch.Load()
		late := q.expireLocked(b, now, q.c.opts.CommandTimeout)
		q.insistLocked()
		q.settleLocked()
		alone := len(q.active) == 1 // otherwise another one may find the completion, and the interrupt
		q.mu.Unlock()
		if late {
			q.c.abortExpired(q, b, epoch)
		} else if err := q.c.health(); err != nil {
			q.c.reset(epoch, err)
		} else {
			w.sleep = min(max(2*w.sleep, minSleep), maxSleep)
			switch {
			case !interrupts:
				time.Sleep(w.sleep)
			case alone:
				w.timedOut = !q.c.waitInterrupt(q.id, maxInterruptWait)
			default:
				q.c.waitInterrupt(q.id, w.sleep)
			}
		}
		q.mu.Lock()
	}
}

// health is the state of the controller as its status register has it.
func (c *Controller) health() error {
	switch v := c.t.Read32(spec.RegCSTS); {
	case v == spec.Gone:
		return errNoAnswer
	case v&spec.CSTSCFS != 0:
		return fmt.Errorf("%w (CSTS %#x)", ErrControllerFatal, v)
	case v&spec.CSTSRDY == 0:
		// Waiting for its commands would fail them.
		return fmt.Errorf("%w (CSTS %#x)", ErrStateLost, v)
	}
	return nil
}

// awaitAnswer waits until the registers answer, at most for Options.RemovalGrace: those of
// a function that has just been reset read as all ones or zeroes for a while (PCIe
// 5.0, 6.6.2: 100 ms, longer with retries). VS is 0 in no controller. What has not
// answered by then is gone for good.
func (c *Controller) awaitAnswer() error {
	deadline := time.Now().Add(c.opts.RemovalGrace)
	for pause := minAnswerPause; ; pause = min(2*pause, maxAnswerPause) {
		if v := c.t.Read32(spec.RegVS); v != spec.Gone && v != 0 {
			return nil
		}
		if c.removed.Load() || time.Now().After(deadline) {
			c.removed.Store(true)
			return ErrRemoved
		}
		time.Sleep(pause)
	}
}

// abortExpired sends Abort for commands of b whose deadline has passed, as many
// at a time as the controller takes (Base 2.0, 5.1), and resets the controller
// if that does not bring them back. A controller that does not even answer the Abort has
// forgotten all its queues, whatever its status register says: its commands have
// not failed.
func (c *Controller) abortExpired(q *queuePair, b *batch, epoch uint64) {
	sent := 0
	for sent < c.info.AbortLimit {
		q.mu.Lock()
		cid, left := q.nextExpiredLocked(b)
		q.mu.Unlock()
		if left == 0 {
			return
		}
		if cid < 0 {
			break
		}
		sent++
		c.opts.Logf("nvme: command %#04x of queue %d timed out after %v; aborting it", cid, q.id, c.opts.CommandTimeout)
		patience := min(c.opts.AdminTimeout, max(c.opts.CommandTimeout/4, minAbortTimeout))
		r := c.execWithin(spec.SubmissionEntry{CDW0: spec.AdminAbort, CDW10: uint32(cid)<<16 | uint32(q.id)}, patience)
		if errors.Is(r.err, ErrTimeout) {
			c.reset(epoch, fmt.Errorf("%w: queue %d; then no answer to Abort: %w", ErrTimeout, q.id, ErrStateLost))
			return
		}
		if r.err != nil || r.dw0&1 != 0 {
			break // not aborted
		}
	}
	deadline := time.Now().Add(min(c.opts.CommandTimeout/4, time.Second))
	for {
		q.mu.Lock()
		q.reapLocked()
		_, left := q.nextExpiredLocked(b)
		q.mu.Unlock()
		if left == 0 {
			return
		}
		if time.Now().After(deadline) {
			break
		}
		time.Sleep(maxSleep)
	}
	c.reset(epoch, fmt.Errorf("%w: queue %d", ErrTimeout, q.id))
}

// nextExpiredLocked marks one more expired command of b for abortion and
// returns its identifier, or -1; left counts the expired commands outstanding.
func (q *queuePair) nextExpiredLocked(b *batch) (cid, left int) {
	cid = -1
	for i := range q.slots {
		s := &q.slots[i]
		if s.b != b || s.state != slotInFlight || !s.expired {
			continue
		}
		left++
		if !s.aborting && cid < 0 {
			s.aborting = true
			cid = int(s.cmd.CID())
		}
	}
	return cid, left
}

// reset brings the controller back by disabling and initialising it anew
// (Controller Level Reset, Base 2.0, 3.7.2). Once it is disabled it has none
// of the commands any more: those whose time is up fail, the others are sent
// again. A controller that cannot be brought back is cut off from memory and
// given up. epoch is the number of resets at which the caller saw the trouble:
// if there was another one meanwhile nothing is done.
func (c *Controller) reset(epoch uint64, cause error) {
	c.resetMu.Lock()
	defer c.resetMu.Unlock()
	if c.epoch.Load() != epoch || c.failure != nil || c.closed {
		return
	}
	for _, q := range c.io {
		q.mu.Lock()
		defer q.mu.Unlock()
	}
	c.admin.mu.Lock()
	defer c.admin.mu.Unlock()
	c.opts.Logf("nvme: resetting the controller: %v", cause)
	c.epoch.Add(1)

	err := c.stop()
	c.admin.cancelLocked(cause)
	for _, q := range c.io {
		q.outliveLocked(cause)
	}
	if err == nil {
		err = c.bringBackLocked(cause)
	}
	if err != nil {
		c.giveUpLocked(fmt.Errorf("%w; reset: %w", cause, err))
		return
	}
	for _, q := range c.io {
		q.resendLocked()
	}
}

// bringBackLocked restarts the controller, which is stopped, also when it is reset by others
// meanwhile. All queues are locked.
func (c *Controller) bringBackLocked(cause error) error {
	foreign := wasReset(cause)
	for attempt := 0; ; attempt++ {
		err := c.restart()
		var lost bool
		if err == nil && foreign {
			lost, err = c.lostCacheLocked()
		}
		if err == nil || lost || attempt == maxRestarts || !wasReset(err) {
			return err
		}
		foreign = true
		c.opts.Logf("nvme: resetting the controller once more: %v", err)
		if err := c.stop(); err != nil {
			return err
		}
		c.admin.cancelLocked(cause)
	}
}

// lostCacheLocked tells whether somebody else's reset has taken the controller's power away,
// and with it what was in its volatile write cache: such a controller has to be opened
// anew. The caller holds admin.mu.
func (c *Controller) lostCacheLocked() (bool, error) {
	if !c.info.VolatileWriteCache || c.powerCycles == 0 {
		return false, nil // nothing to lose, or no way to tell
	}
	off, _ := c.arena.Offset(c.scratch)
	r := c.adminLocked(spec.SubmissionEntry{CDW0: spec.AdminGetLogPage, NSID: spec.NSIDAll,
		CDW10: (spec.SMARTBytes/4-1)<<16 | spec.CDW10RAE | spec.LogSMART, PRP1: c.dmaBase + uint64(off)})
	if r.err != nil {
		return false, fmt.Errorf("reading the SMART log: %w", r.err)
	}
	if n := decodeHealth(c.scratch[:spec.SMARTBytes]).PowerCycles; n != c.powerCycles {
		return true, fmt.Errorf("%w and had no power (%d power cycles, %d before): its write cache is lost", ErrStateLost, n, c.powerCycles)
	}
	return false, nil
}

// stop makes sure that the controller touches no memory any more: it is disabled, or cut
// off if that fails.
func (c *Controller) stop() error {
	err := c.awaitAnswer()
	if err == nil {
		err = c.disable()
	}
	if err != nil {
		c.t.StopDMA()
	}
	return err
}

// wasReset tells whether an error can come from somebody else's reset.
func wasReset(err error) bool { return errors.Is(err, ErrStateLost) || errors.Is(err, errNoAnswer) }

// restart enables the disabled controller and creates the same queues.
func (c *Controller) restart() error {
	for _, q := range c.io {
		q.rewindLocked()
	}
	if err := c.enable(); err != nil {
		return err
	}
	if len(c.io) == 0 {
		return nil // not opened completely yet
	}
	n, err := c.negotiateQueues(len(c.io))
	if err == nil && n < len(c.io) {
		err = fmt.Errorf("%w: %d queue pairs instead of %d", ErrProtocol, n, len(c.io))
	}
	if err == nil {
		err = c.createQueues(n)
	}
	if err == nil {
		err = c.startEventsLocked()
	}
	return err
}

// giveUpLocked fails everything from now on. All queues are locked.
func (c *Controller) giveUpLocked(err error) {
	c.quiesce()
	if !errors.Is(err, ErrRemoved) && !errors.Is(err, ErrControllerFatal) {
		err = fmt.Errorf("%w: %w", ErrControllerFatal, err)
	}
	c.opts.Logf("nvme: giving the controller up: %v", err)
	c.failure = err
	for _, q := range append([]*queuePair{c.admin}, c.io...) {
		q.dead = err
		q.cancelLocked(err)
	}
}

// cancelLocked fails all outstanding commands, which the controller does not
// have any more.
func (q *queuePair) cancelLocked(err error) {
	for i := range q.slots {
		if s := &q.slots[i]; s.state != slotFree {
			if s.expired {
				q.finishLocked(s, uint16(i), 0, q.timeoutError(s))
			} else {
				q.finishLocked(s, uint16(i), 0, err)
			}
		}
	}
}

// outliveLocked fails the commands that must not outlive a reset. Those that a controller
// has forgotten get their time once more, but not again and again.
func (q *queuePair) outliveLocked(cause error) {
	for i := range q.slots {
		s := &q.slots[i]
		switch {
		case s.state == slotFree:
		case s.expired && !(s.attempts == 0 && errors.Is(cause, ErrStateLost)):
			q.finishLocked(s, uint16(i), 0, q.timeoutError(s))
		case int(s.attempts) >= q.c.opts.Retries:
			q.finishLocked(s, uint16(i), 0, cause)
		}
	}
}

// resendLocked sends what is outstanding again after a reset.
func (q *queuePair) resendLocked() {
	for i := range q.slots {
		if s := &q.slots[i]; s.state != slotFree {
			s.attempts++
			q.sendLocked(s, uint16(i))
		}
	}
	q.ringLocked()
}

// waitIdle returns when no call of Do for ns is under way; nil means any.
func (q *queuePair) waitIdle(ns *Namespace) {
	for pause := minSleep; ; pause = min(2*pause, 10*maxSleep) {
		q.mu.Lock()
		busy := false
		for _, b := range q.active {
			busy = busy || ns == nil || b.ns == ns
		}
		q.mu.Unlock()
		if !busy {
			return
		}
		time.Sleep(pause)
	}
}

// vector is the interrupt vector of a queue.
func (c *Controller) vector(queue uint16) uint16 {
	if queue == 0 || c.vectors == 1 {
		return 0
	}
	return 1 + (queue-1)%uint16(c.vectors-1)
}

// trustsInterrupts tells whether waiting for an interrupt makes sense.
func (c *Controller) trustsInterrupts() bool {
	return c.interrupts != nil && c.missed.Load() < maxMissed
}

// waitInterrupt waits for the interrupt of a queue.
func (c *Controller) waitInterrupt(queue uint16, d time.Duration) bool {
	came := c.interrupts.WaitInterrupt(c.vector(queue), d)
	if came && c.missed.Load() != 0 {
		c.missed.Store(0)
	}
	return came
}

// missInterrupt counts a completion that came without its interrupt.
func (c *Controller) missInterrupt() {
	if c.missed.Add(1) == maxMissed {
		c.opts.Logf("nvme: interrupts do not arrive; polling instead")
	}
}
