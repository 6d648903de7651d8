package nvme

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"runsc-fs/nvme/spec"
)

// Lengths of the admin queues.
const (
	adminDepth     = 32
	adminListPages = 1
)

// ControllerInfo is what Identify Controller says (Base 2.0, figure 275).
type ControllerInfo struct {
	Serial, Model, Firmware string
	Version                 uint32 // as in VS
	MaxTransferBytes        int    // from MDTS; 0: no limit
	Namespaces              uint32 // NN: the greatest namespace number
	VolatileWriteCache      bool
	AtomicWriteBlocks       int // AWUPF, 1's based
	ONCS                    uint16
	OACS                    uint16
	OAES                    uint32
	SGLS                    uint32
	AbortLimit              int           // ACL, 1's based
	EventLimit              int           // AERL, 1's based
	ErrorLogEntries         int           // ELPE, 1's based
	WarnKelvin, CritKelvin  int           // WCTEMP, CCTEMP; 0: not reported
	ShutdownTime            time.Duration // RTD3E; 0: not reported
}

// limits are those of single commands beside MDTS (NVM 1.0, figure 102), as
// numbers that can be used as they are.
type limits struct {
	verify, zeroes uint64 // bytes
	ranges         int    // of Dataset Management
	rangeBlocks    uint64
	blocks         uint64 // of all ranges
}

// Controller is an enabled controller. All methods may be called concurrently.
type Controller struct {
	t       Transport
	arena   *Arena
	dmaBase uint64
	opts    Options
	cap     spec.CAP
	start   time.Time
	info    ControllerInfo
	maxData int    // bytes of one command: MDTS and Options
	sgl     uint32 // spec.SGLSAnywhere, spec.SGLSDword, 0: none
	limits  limits
	shadow  []byte // doorbell buffers; nil: not in use

	admin *queuePair
	io    []*queuePair // set up by Open, not changed afterwards

	interrupts InterruptWaiter // nil: waiting is sleeping
	vectors    int
	missed     atomic.Int32 // interrupts in a row that did not come

	powerCycles uint64 // when it was opened; 0: not known
	scratch     []byte // a page for the driver's own log reading during a reset

	removed atomic.Bool // it did not answer for RemovalGrace: it is not waited for again

	epoch  atomic.Uint64 // number of resets; written with all queues locked
	events eventQueue

	namespacesMu sync.Mutex
	namespaces   map[*Namespace]struct{} // open ones

	resetMu sync.Mutex // serialises reset and Close
	failure error      // why the controller is given up, under resetMu
	closed  bool       // under resetMu
}

// Open initialises a controller (Base 2.0, 3.5.1): it disables it, sets up the
// admin queue, enables and identifies it and creates the I/O queues. On
// success the controller owns t; on failure the caller still has to close t.
func Open(t Transport, opts Options) (*Controller, error) {
	if err := opts.setDefaults(); err != nil {
		return nil, err
	}
	c := &Controller{t: t, arena: t.Arena(), dmaBase: t.DMABase(), opts: opts, start: time.Now(), namespaces: map[*Namespace]struct{}{}}
	if w, ok := t.(InterruptWaiter); ok {
		if c.vectors = min(w.Vectors(), math.MaxUint16); c.vectors > 0 {
			c.interrupts = w
		}
	}
	c.events.timer = time.AfterFunc(math.MaxInt64, c.PollEvents)
	if err := c.open(); err != nil {
		c.stopEvents()
		c.quiesce()
		c.freeQueues()
		return nil, err
	}
	return c, nil
}

func (c *Controller) open() error {
	if err := c.awaitAnswer(); err != nil { // it may have been reset when it was opened
		return fmt.Errorf("opening the controller: %w", err)
	}
	c.cap = spec.CAP(c.t.Read64(spec.RegCAP))
	if !c.cap.CSSNVM() || c.cap.MPSMIN() != 0 {
		return fmt.Errorf("%w: controller without the NVM command set or 4 KiB pages (CAP %#x)", ErrUnsupported, uint64(c.cap))
	}
	if err := c.disable(); err != nil {
		return err
	}
	var err error
	if c.admin, err = newQueuePair(c, 0, adminDepth, adminDepth, adminListPages); err != nil {
		return err
	}
	if err := c.enable(); err != nil {
		return err
	}
	page, err := c.identify(spec.CNSController, 0)
	if err != nil {
		return fmt.Errorf("identifying the controller: %w", err)
	}
	c.setInfo(page)
	if page, err = c.identify(spec.CNSCommandSetCtrl, 0); err != nil {
		var status *StatusError
		if !errors.As(err, &status) {
			return fmt.Errorf("identifying the NVM command set: %w", err)
		}
		page = make([]byte, spec.IdentifyBytes) // older than these limits
	}
	c.setLimits(page)
	if err := c.openQueues(); err != nil {
		return err
	}
	if err := c.checkHealth(); err != nil {
		return err
	}
	if c.opts.EventInterval > 0 {
		c.events.timer.Reset(c.opts.EventInterval)
	}
	return nil
}

// openQueues creates the I/O queues and enables events.
func (c *Controller) openQueues() error {
	c.admin.mu.Lock()
	defer c.admin.mu.Unlock()
	n, err := c.negotiateQueues(c.wantedQueues())
	if err != nil {
		return err
	}
	if c.scratch, err = c.arena.Alloc(1); err != nil {
		return fmt.Errorf("nvme: memory for log pages: %w", err)
	}
	if err := c.allocateShadow(n); err != nil {
		return err
	}
	if err := c.createQueues(n); err != nil {
		return err
	}
	return c.startEventsLocked()
}

// setInfo takes over the Identify Controller structure.
func (c *Controller) setInfo(page []byte) {
	le := binary.LittleEndian
	c.info = ControllerInfo{
		Serial:             printable(page[spec.IDCtrlSN:][:spec.IDCtrlSNBytes]),
		Model:              printable(page[spec.IDCtrlMN:][:spec.IDCtrlMNBytes]),
		Firmware:           printable(page[spec.IDCtrlFR:][:spec.IDCtrlFRBytes]),
		Version:            le.Uint32(page[spec.IDCtrlVER:]),
		Namespaces:         le.Uint32(page[spec.IDCtrlNN:]),
		VolatileWriteCache: page[spec.IDCtrlVWC]&spec.VWCPresent != 0,
		AtomicWriteBlocks:  int(le.Uint16(page[spec.IDCtrlAWUPF:])) + 1,
		ONCS:               le.Uint16(page[spec.IDCtrlONCS:]),
		OACS:               le.Uint16(page[spec.IDCtrlOACS:]),
		OAES:               le.Uint32(page[spec.IDCtrlOAES:]),
		SGLS:               le.Uint32(page[spec.IDCtrlSGLS:]),
		AbortLimit:         int(page[spec.IDCtrlACL]) + 1,
		EventLimit:         int(page[spec.IDCtrlAERL]) + 1,
		ErrorLogEntries:    int(page[spec.IDCtrlELPE]) + 1,
		WarnKelvin:         int(le.Uint16(page[spec.IDCtrlWCTEMP:])),
		CritKelvin:         int(le.Uint16(page[spec.IDCtrlCCTEMP:])),
		ShutdownTime:       time.Duration(le.Uint32(page[spec.IDCtrlRTD3E:])) * time.Microsecond,
	}
	c.maxData = c.opts.MaxTransferBytes
	if mdts := page[spec.IDCtrlMDTS]; mdts != 0 && mdts < 20 {
		c.info.MaxTransferBytes = PageSizeBytes << mdts
		c.maxData = min(c.maxData, c.info.MaxTransferBytes)
	}
	if s := c.info.SGLS & spec.SGLSMask; (s == spec.SGLSAnywhere || s == spec.SGLSDword) && c.opts.Avoid&FeatureSGL == 0 {
		c.sgl = s
	}
}

// setLimits takes over the Identify Controller structure of the NVM command set.
func (c *Controller) setLimits(page []byte) {
	le := binary.LittleEndian
	power := func(v uint8) uint64 { // as MDTS
		if v == 0 || v >= 20 {
			return math.MaxInt64
		}
		return PageSizeBytes << v
	}
	c.limits = limits{
		verify: power(page[spec.IDNVMVSL]), zeroes: power(page[spec.IDNVMWZSL]),
		ranges: spec.MaxDSMRanges, rangeBlocks: math.MaxUint32, blocks: math.MaxInt64,
	}
	if v := int(page[spec.IDNVMDMRL]); v != 0 {
		c.limits.ranges = v
	}
	if v := le.Uint32(page[spec.IDNVMDMRSL:]); v != 0 {
		c.limits.rangeBlocks = uint64(v)
	}
	if v := le.Uint64(page[spec.IDNVMDMSL:]); v != 0 {
		c.limits.blocks = min(v, math.MaxInt64)
	}
}

// printable is the text of an Identify field, without padding and without
// anything that could disturb a terminal.
func printable(b []byte) string {
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return -1
		}
		return r
	}, string(b)))
}

// ioDepth is the length of the I/O queues.
func (c *Controller) ioDepth() (sq, cq int) {
	limit := int(c.cap.MQES()) + 1
	sq = max(2, min(c.opts.QueueDepth, limit))
	return sq, min(2*sq, max(limit, sq))
}

// ioListPages is the number of list pages of an I/O queue: enough for the
// longest command, whatever else is outstanding.
func (c *Controller) ioListPages() int {
	entries := c.maxData/PageSizeBytes + 1
	return max(entries/(listEntries-1)+2, c.opts.QueueDepth/8)
}

// wantedQueues is how many queue pairs are asked for: a small arena must not be
// filled with queues.
func (c *Controller) wantedQueues() int {
	sq, cq := c.ioDepth()
	fit := int(c.arena.SizeBytes()) / PageSizeBytes / 4 / queuePages(sq, cq, c.ioListPages())
	return max(1, min(c.opts.QueuePairs, fit))
}

// negotiateQueues sets the Number of Queues feature (Base 2.0, 5.27.1.5) and
// returns how many of n queue pairs there may be.
func (c *Controller) negotiateQueues(n int) (int, error) {
	v := uint32(n - 1)
	r := c.adminLocked(spec.SubmissionEntry{CDW0: spec.AdminSetFeatures, CDW10: spec.FeatureNumberOfQueues, CDW11: v<<16 | v})
	if r.err != nil {
		return 0, fmt.Errorf("setting the number of queues: %w", r.err)
	}
	return min(n, int(r.dw0&0xffff)+1, int(r.dw0>>16)+1), nil
}

// createQueues makes n I/O queue pairs, using the memory of those that exist.
func (c *Controller) createQueues(n int) error {
	sqEntries, cqEntries := c.ioDepth()
	if err := c.configureShadow(); err != nil {
		return err
	}
	for i := range n {
		id := uint16(i + 1)
		if i == len(c.io) {
			q, err := newQueuePair(c, id, sqEntries, cqEntries, c.ioListPages())
			if err != nil {
				return err
			}
			c.io = append(c.io, q)
		}
		q := c.io[i]
		q.setShadow(c.shadow)
		cq := spec.SubmissionEntry{CDW0: spec.AdminCreateIOCQ, PRP1: q.cqAddr,
			CDW10: uint32(cqEntries-1)<<16 | uint32(id), CDW11: spec.CDW11QueuePC}
		if c.interrupts != nil {
			cq.CDW11 |= uint32(c.vector(id))<<16 | spec.CDW11CQIEN
		}
		sq := spec.SubmissionEntry{CDW0: spec.AdminCreateIOSQ, PRP1: q.sqAddr,
			CDW10: uint32(sqEntries-1)<<16 | uint32(id), CDW11: uint32(id)<<16 | spec.CDW11QueuePC}
		for _, cmd := range []spec.SubmissionEntry{cq, sq} {
			if r := c.adminLocked(cmd); r.err != nil {
				return fmt.Errorf("creating queue pair %d: %w", id, r.err)
			}
		}
	}
	return nil
}

// disable clears CC.EN and waits until the controller has stopped; it touches
// no memory afterwards. It is harmless when it is not enabled.
func (c *Controller) disable() error {
	if cc := c.t.Read32(spec.RegCC); cc&spec.CCEN != 0 {
		c.t.Write32(spec.RegCC, cc&^(spec.CCEN|spec.CCSHNMask))
	}
	return c.waitStatus("to stop", c.readyTimeout(), spec.CSTSRDY, 0)
}

// readyTimeout is CAP.TO, with some grace for models that say 0.
func (c *Controller) readyTimeout() time.Duration { return max(c.cap.TO(), time.Second) }

// enable hands the admin queue over and sets CC.EN.
func (c *Controller) enable() error {
	c.admin.rewindLocked()
	c.t.Write32(spec.RegAQA, spec.AQA(adminDepth, adminDepth))
	c.t.Write64(spec.RegASQ, c.admin.sqAddr)
	c.t.Write64(spec.RegACQ, c.admin.cqAddr)
	c.t.Write32(spec.RegCC, spec.SQESLog2<<spec.CCIOSQESShift|spec.CQESLog2<<spec.CCIOCQESShift|spec.CCEN)
	return c.waitStatus("to become ready", c.readyTimeout(), spec.CSTSRDY, spec.CSTSRDY)
}

// waitStatus waits until CSTS has the wanted value under mask.
func (c *Controller) waitStatus(what string, timeout time.Duration, mask, want uint32) error {
	deadline := time.Now().Add(timeout)
	for pause := 20 * time.Microsecond; ; pause = min(2*pause, 10*time.Millisecond) {
		v := c.t.Read32(spec.RegCSTS)
		switch {
		case v == spec.Gone:
			if err := c.awaitAnswer(); err != nil {
				return fmt.Errorf("waiting for the controller %s: %w", what, err)
			}
			if want != 0 { // it has forgotten what it was told
				return fmt.Errorf("waiting for the controller %s: %w", what, ErrStateLost)
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("waiting for the controller %s: %w after %v", what, ErrTimeout, timeout)
			}
		case v&mask == want:
			return nil
		case want == spec.CSTSRDY && c.t.Read32(spec.RegCC)&spec.CCEN == 0:
			return fmt.Errorf("waiting for the controller %s: %w", what, ErrStateLost)
		case v&spec.CSTSCFS != 0 && want != 0:
			return fmt.Errorf("waiting for the controller %s: %w (CSTS %#x)", what, ErrControllerFatal, v)
		case time.Now().After(deadline):
			return fmt.Errorf("waiting for the controller %s: %w after %v (CSTS %#x)", what, ErrTimeout, timeout, v)
		}
		time.Sleep(pause)
	}
}

// quiesce makes sure that the controller touches no memory any more.
func (c *Controller) quiesce() {
	if err := c.disable(); err != nil {
		c.t.StopDMA()
	}
}

func (c *Controller) freeQueues() {
	for _, q := range append([]*queuePair{c.admin}, c.io...) {
		if q != nil && q.mem != nil {
			c.arena.Free(q.mem)
			q.mem, q.sq, q.cq, q.pages = nil, nil, nil, nil
		}
	}
	for _, mem := range []*[]byte{&c.shadow, &c.scratch} {
		if *mem != nil {
			c.arena.Free(*mem)
			*mem = nil
		}
	}
}

// Info is what the controller said about itself.
func (c *Controller) Info() ControllerInfo { return c.info }

// QueuePairs is the number of I/O queue pairs in use.
func (c *Controller) QueuePairs() int { return len(c.io) }

// Close ends the treatment of events, waits for outstanding requests, whose waiting is bounded by their
// deadlines, deletes the queues, notifies the controller of the shutdown
// (Base 2.0, 3.6.1), disables it and closes the transport. Requests that come
// later fail with ErrClosed. A second call does nothing.
func (c *Controller) Close() error {
	c.stopEvents()
	for _, q := range c.io {
		q.mu.Lock()
		q.closing = true
		q.mu.Unlock()
	}
	for _, q := range c.io {
		q.waitIdle(nil)
	}
	c.resetMu.Lock()
	defer c.resetMu.Unlock()
	if c.closed {
		return nil
	}
	c.closed = true
	err := c.failure
	if err == nil {
		err = c.shutdown()
	}
	c.quiesce()
	c.admin.mu.Lock()
	c.admin.dead = ErrClosed
	c.admin.cancelLocked(ErrClosed)
	c.freeQueues()
	c.admin.mu.Unlock()
	return errors.Join(err, c.t.Close())
}

// shutdown deletes the I/O queues and lets the controller make its cache
// durable.
func (c *Controller) shutdown() error {
	for _, opc := range []uint32{spec.AdminDeleteIOSQ, spec.AdminDeleteIOCQ} {
		for _, q := range c.io {
			if r := c.exec(spec.SubmissionEntry{CDW0: opc, CDW10: uint32(q.id)}); r.err != nil {
				return fmt.Errorf("deleting queue pair %d: %w", q.id, r.err)
			}
		}
	}
	c.t.Write32(spec.RegCC, c.t.Read32(spec.RegCC)&^spec.CCSHNMask|spec.CCSHNNormal)
	timeout := max(c.info.ShutdownTime, c.opts.AdminTimeout)
	return c.waitStatus("to shut down", min(timeout, 5*time.Minute), spec.CSTSSHSTMask, spec.CSTSSHSTComplete)
}

// pick returns a queue that nobody uses, or one that is shared, and counts the
// caller in. The address of the stack spreads callers over the queues without
// a variable that all of them would write.
func (c *Controller) pick() *queuePair {
	var here byte
	n := uint(len(c.io))
	first := uint(uintptr(unsafe.Pointer(&here))>>11) % n
	for i := range n {
		j := first + i
		if j >= n {
			j -= n
		}
		if q := c.io[j]; q.users.Load() == 0 && q.users.CompareAndSwap(0, 1) {
			return q
		}
	}
	q := c.io[first]
	q.users.Add(1)
	return q
}

// now is the time since Open in nanoseconds, never 0.
func (c *Controller) now() int64 { return int64(time.Since(c.start)) + 1 }
