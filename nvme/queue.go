package nvme

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"runsc-fs/nvme/spec"
)

// A command identifier is the number of a slot and, above it, how often that
// slot was used: a completion that comes too late or twice is recognised.
//
//	 15        10 9            0
//	| generation | slot number  |
const (
	slotBits = 10
	slotMask = 1<<slotBits - 1
)

// none ends a list of slots or pages.
const none = 0xffff

// listEntries is the number of PRP entries in one page.
const listEntries = PageSizeBytes / 8

type slotState uint8

const (
	slotFree     slotState = iota
	slotInFlight           // the controller has the command
	slotOrphaned           // as slotInFlight, but nobody waits for it any more
)

// slot is one outstanding command of a queue pair.
type slot struct {
	cmd      spec.SubmissionEntry
	b        *batch
	state    slotState
	expired  bool // its deadline has passed
	aborting bool // an Abort was sent for it
	attempts uint8
	gen      uint16
	next     uint16 // next free slot
	pages    uint16 // first page of its PRP list, range list or bounced data
	deadline int64  // 0: not waited for yet

	// The requests of the batch that it carries.
	first, count int
	// A bounced read is copied to its place when it completes.
	bounce           bool
	bounceVec        int
	bounceOff, bytes int
}

// batch is one call of Do on its way, or one admin command.
type batch struct {
	ns       *Namespace
	reqs     []Request
	inFlight int // commands outstanding
	failed   bool

	// Where the next command begins: request, position in its Vec, bytes done.
	next    int
	started bool
	vec     int
	off     int
	done    int64
	total   int64

	// Result of an admin command.
	dw0 uint32
	err error
}

// queuePair is one submission queue with its completion queue. Queue memory is
//
//	| SQ entries, whole pages | CQ entries, whole pages | pages for PRP lists |
type queuePair struct {
	c     *Controller
	id    uint16
	users atomic.Int32 // callers inside Do: a hint for whoever looks for a free queue

	depth  int    // entries of the submission queue
	mem    []byte // all queue memory
	sq     []spec.SubmissionEntry
	cq     []spec.CompletionEntry
	pages  []byte // memory of the pages
	sqAddr uint64
	cqAddr uint64
	pgAddr uint64
	sqBell uint32
	cqBell uint32
	shadow *shadow // doorbells in memory; nil: registers only

	mu        sync.Mutex
	dead      error // set when nothing can be sent any more
	closing   bool  // no further calls of Do
	fault     error // the controller misbehaved: reset it
	sqTail    uint16
	sqRung    uint16 // tail that the controller knows
	sqHead    uint16 // as last reported in a completion
	cqHead    uint16
	cqRung    uint16
	cqOwed    int // completions consumed but not reported by the doorbell
	cqLazy    int // how many may be owed
	phase     uint32
	slots     []slot
	freeSlot  uint16
	freePage  uint16
	pageNext  []uint16
	batches   []*batch // unused ones
	active    []*batch
	latencyNs int64 // moving average of what waiting took
}

// queuePages is the number of arena pages that a queue pair takes.
func queuePages(depth, cqEntries, listPages int) int {
	return pagesOf(depth*spec.SQEBytes) + pagesOf(cqEntries*spec.CQEBytes) + listPages
}

func pagesOf(n int) int { return (n + PageSizeBytes - 1) / PageSizeBytes }

func newQueuePair(c *Controller, id uint16, depth, cqEntries, listPages int) (*queuePair, error) {
	mem, err := c.arena.Alloc(queuePages(depth, cqEntries, listPages))
	if err != nil {
		return nil, fmt.Errorf("nvme: memory for queue pair %d: %w", id, err)
	}
	off, _ := c.arena.Offset(mem)
	cqOff := pagesOf(depth*spec.SQEBytes) * PageSizeBytes
	pgOff := cqOff + pagesOf(cqEntries*spec.CQEBytes)*PageSizeBytes
	q := &queuePair{
		c: c, id: id, depth: depth, mem: mem,
		sq:       unsafe.Slice((*spec.SubmissionEntry)(unsafe.Pointer(&mem[0])), depth),
		cq:       unsafe.Slice((*spec.CompletionEntry)(unsafe.Pointer(&mem[cqOff])), cqEntries),
		pages:    mem[pgOff:],
		sqAddr:   c.dmaBase + uint64(off),
		cqAddr:   c.dmaBase + uint64(off) + uint64(cqOff),
		pgAddr:   c.dmaBase + uint64(off) + uint64(pgOff),
		sqBell:   spec.SQTailDoorbell(id, c.cap.DSTRD()),
		cqBell:   spec.CQHeadDoorbell(id, c.cap.DSTRD()),
		slots:    make([]slot, 0, depth-1),
		pageNext: make([]uint16, listPages),
		cqLazy:   max(1, cqEntries-depth),
	}
	q.freeSlot, q.freePage = none, none
	for i := len(q.pageNext) - 1; i >= 0; i-- {
		q.pageNext[i], q.freePage = q.freePage, uint16(i)
	}
	q.rewindLocked()
	return q, nil
}

// rewindLocked puts both queues at their beginning, as the controller has them
// after their creation.
func (q *queuePair) rewindLocked() {
	clear(q.cq)
	q.sqTail, q.sqRung, q.sqHead = 0, 0, 0
	q.cqHead, q.cqRung, q.cqOwed, q.phase = 0, 0, 0, 1
	q.fault = nil
}

// beginLocked enters a call of Do. It returns nil when the namespace or the
// controller takes none any more.
func (q *queuePair) beginLocked(ns *Namespace, reqs []Request) (*batch, error) {
	if q.dead != nil {
		return nil, q.dead
	}
	if q.closing {
		return nil, ErrClosed
	}
	if ns.closed.Load() {
		return nil, ns.refusal()
	}
	var b *batch
	if n := len(q.batches); n > 0 {
		b = q.batches[n-1]
		q.batches = q.batches[:n-1]
	} else {
		b = new(batch)
	}
	*b = batch{ns: ns, reqs: reqs}
	q.active = append(q.active, b)
	return b, nil
}

// endLocked leaves a call of Do, all of whose commands are done.
func (q *queuePair) endLocked(b *batch) {
	for i, a := range q.active {
		if a == b {
			last := len(q.active) - 1
			q.active[i], q.active[last] = q.active[last], nil
			q.active = q.active[:last]
			break
		}
	}
	b.ns, b.reqs = nil, nil
	q.batches = append(q.batches, b)
}

// takePageLocked takes a page of the queue's own memory for s.
func (q *queuePair) takePageLocked(s *slot) (mem []byte, addr uint64, ok bool) {
	i := q.freePage
	if i == none {
		return nil, 0, false
	}
	q.freePage = q.pageNext[i]
	q.pageNext[i], s.pages = s.pages, i
	off := int(i) * PageSizeBytes
	return q.pages[off : off+PageSizeBytes : off+PageSizeBytes], q.pgAddr + uint64(off), true
}

func (q *queuePair) freePagesLocked(s *slot) {
	for s.pages != none {
		i := s.pages
		s.pages = q.pageNext[i]
		q.pageNext[i], q.freePage = q.freePage, i
	}
}

// takeSlotLocked takes a free slot for a command of b, or returns nil.
func (q *queuePair) takeSlotLocked(b *batch) (*slot, uint16) {
	i := q.freeSlot
	if i == none {
		i = uint16(len(q.slots))
		if int(i) == cap(q.slots) {
			return nil, none
		}
		q.slots = append(q.slots, slot{next: none, pages: none})
	}
	s := &q.slots[i]
	q.freeSlot = s.next
	s.b = b
	s.attempts = 0
	s.bounce = false
	return s, i
}

func (q *queuePair) freeSlotLocked(s *slot, i uint16) {
	if s.pages != none {
		q.freePagesLocked(s)
	}
	s.b = nil
	s.state = slotFree
	s.next, q.freeSlot = q.freeSlot, i
}

// sendLocked puts the command of a slot into the submission queue. There is
// room: fewer slots than entries exist. The doorbell is rung later.
func (q *queuePair) sendLocked(s *slot, i uint16) {
	if only := q.c.opts.OnlyNamespace; only != 0 && q.id != 0 && s.cmd.NSID != only {
		panic(fmt.Sprintf("nvme: command for namespace %d on its way, only %d is allowed", s.cmd.NSID, only))
	}
	s.gen++
	s.state = slotInFlight
	s.expired, s.aborting, s.deadline = false, false, 0
	s.cmd.SetCID(s.gen<<slotBits | i)
	q.sq[q.sqTail] = s.cmd
	if q.sqTail++; int(q.sqTail) == q.depth {
		q.sqTail = 0
	}
}

func (q *queuePair) ringLocked() {
	if q.sqTail != q.sqRung {
		old := q.sqRung
		q.sqRung = q.sqTail
		q.ringSQ(old, q.sqTail)
	}
}

// reapLocked consumes the completions that are there and returns how many they
// were. A completion that no correct controller sends sets q.fault.
func (q *queuePair) reapLocked() int {
	n := 0
	for q.fault == nil {
		e := &q.cq[q.cqHead]
		dw3 := atomic.LoadUint32(&e.DW3)
		if dw3>>16&1 != q.phase {
			break
		}
		dw0, dw2 := e.DW0, e.DW2
		if q.cqHead++; int(q.cqHead) == len(q.cq) {
			q.cqHead = 0
			q.phase ^= 1
		}
		q.cqOwed++
		n++
		q.acceptLocked(dw0, dw2, dw3)
	}
	if q.cqOwed >= q.cqLazy {
		q.settleLocked()
	}
	if n > 0 {
		q.ringLocked() // for commands that are tried again
	}
	return n
}

// settleLocked reports the completions that were consumed. A controller raises
// no interrupt for further ones before that.
func (q *queuePair) settleLocked() {
	if q.cqOwed == 0 {
		return
	}
	q.cqOwed = 0
	old := q.cqRung
	q.cqRung = q.cqHead
	q.ringCQ(old, q.cqHead)
}

// acceptLocked checks one completion and finishes its command.
func (q *queuePair) acceptLocked(dw0, dw2, dw3 uint32) {
	cid, sqhd, sqid := uint16(dw3), int(uint16(dw2)), uint16(dw2>>16)
	i := cid & slotMask
	if int(i) >= len(q.slots) || q.slots[i].state == slotFree || q.slots[i].gen<<slotBits|i != cid {
		q.fault = fmt.Errorf("%w: queue %d: completion of command %#04x, which is not outstanding", ErrProtocol, q.id, cid)
		return
	}
	behind := func(tail, head int) int { return (tail - head + q.depth) % q.depth }
	if sqid != q.id || sqhd >= q.depth || (sqhd != int(q.sqHead) && behind(sqhd, int(q.sqHead)) > behind(int(q.sqRung), int(q.sqHead))) {
		q.fault = fmt.Errorf("%w: queue %d: completion with submission queue %d head %d, sent were %d to %d of %d",
			ErrProtocol, q.id, sqid, sqhd, q.sqHead, q.sqRung, q.depth)
		return
	}
	q.sqHead = uint16(sqhd)
	s := &q.slots[i]
	status := spec.Status(dw3 >> 17)
	if status.Code() == spec.Success {
		q.finishLocked(s, i, dw0, nil)
		return
	}
	retry := s.state == slotInFlight && s.b.ns != nil && !s.expired && !status.DNR() && status.Code() != spec.CompareFailure
	if retry && int(s.attempts) < q.c.opts.Retries {
		s.attempts++
		q.sendLocked(s, i)
		return
	}
	var err error = newStatusError(&s.cmd, status, q.id == 0)
	if s.expired && status.Code() == spec.AbortRequested {
		err = q.timeoutError(s)
	}
	q.finishLocked(s, i, dw0, err)
}

func (q *queuePair) timeoutError(s *slot) error {
	return fmt.Errorf("%w after %v: %w", ErrTimeout, q.c.opts.CommandTimeout, describe(&s.cmd, q.id == 0))
}

// describe names a command for an error text.
func describe(cmd *spec.SubmissionEntry, admin bool) error {
	if admin {
		return fmt.Errorf("%s", spec.AdminCommandName(cmd.OPC()))
	}
	return fmt.Errorf("%s, namespace %d", spec.IOCommandName(cmd.OPC()), cmd.NSID)
}

// finishLocked gives the result of a command to its batch and frees the slot.
// The controller does not have the command any more.
func (q *queuePair) finishLocked(s *slot, i uint16, dw0 uint32, err error) {
	b := s.b
	if s.state == slotOrphaned {
		q.freeSlotLocked(s, i)
		return
	}
	b.inFlight--
	switch {
	case b == &q.c.events.b:
		q.c.arriveLocked(dw0, err)
	case b.ns == nil:
		b.dw0, b.err = dw0, err
	case err != nil:
		b.fail(s.first, s.count, err)
	case s.bounce:
		q.unbounceLocked(s)
	}
	q.freeSlotLocked(s, i)
}

// fail records the failure of some requests. The first error of each stays.
func (b *batch) fail(first, count int, err error) {
	b.failed = true
	for j := first; j < first+count; j++ {
		if b.reqs[j].Err == nil {
			b.reqs[j].Err = err
		}
	}
}

// finished tells whether all requests are done.
func (b *batch) finished() bool { return b.inFlight == 0 && b.next == len(b.reqs) }

// expireLocked starts the clock of b's commands that have none yet and reports
// whether any has run out.
func (q *queuePair) expireLocked(b *batch, now int64, timeout time.Duration) bool {
	late := false
	for i := range q.slots {
		s := &q.slots[i]
		if s.b != b || s.state != slotInFlight {
			continue
		}
		if s.deadline == 0 {
			s.deadline = now + int64(timeout)
		}
		if now >= s.deadline {
			s.expired, late = true, true
		}
	}
	return late
}
