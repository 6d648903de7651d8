package soft

import (
	"sync"
	"sync/atomic"

	"runsc-fs/nvme/spec"
)

// completionQueue is a queue of completions and the lock of the submission
// queues that feed it.
type completionQueue struct {
	id     uint16
	vector uint16

	mu      sync.Mutex
	entries []spec.CompletionEntry
	head    uint16 // what the host has consumed, from the doorbell
	tail    uint16 // next entry to fill
	phase   uint32 // phase bit of the entries of this round
	sqs     []*submissionQueue
}

// submissionQueue is guarded by the mutex of its completion queue.
type submissionQueue struct {
	id      uint16
	cq      *completionQueue
	entries []spec.SubmissionEntry
	head    uint16
	tail    uint16
	deleted bool
	running bool // guards against a backing or injector that comes back here

	vec      [][]byte // scratch of the command being carried out
	counters counters
}

// counters feed the SMART log.
type counters struct {
	reads, writes, readBytes, writeBytes, mediaErrors uint64
}

func (n *counters) add(m counters) {
	n.reads += m.reads
	n.writes += m.writes
	n.readBytes += m.readBytes
	n.writeBytes += m.writeBytes
	n.mediaErrors += m.mediaErrors
}

// held is a command that is outstanding without being worked on.
type held struct {
	sq      *submissionQueue
	cmd     spec.SubmissionEntry
	noAbort bool
	lost    bool // never completes
}

// doorbell takes the write of a doorbell at off from the first one.
func (c *Controller) doorbell(off, v uint32) {
	i := off >> (2 + c.opts.DoorbellStride)
	y := i >> 1
	if int(y) >= len(c.sqs) {
		c.invalidDoorbell(0)
		return
	}
	if i&1 == 0 {
		sq := c.sqs[y].Load()
		if sq == nil {
			c.invalidDoorbell(0)
			return
		}
		if uint64(v) >= uint64(len(sq.entries)) {
			c.invalidDoorbell(1)
			return
		}
		sq.cq.mu.Lock()
		if !sq.deleted {
			sq.tail = uint16(v)
			c.runLocked(sq)
		}
		sq.cq.mu.Unlock()
		return
	}
	cq := c.cqs[y].Load()
	if cq == nil {
		c.invalidDoorbell(0)
		return
	}
	if uint64(v) >= uint64(len(cq.entries)) {
		c.invalidDoorbell(1)
		return
	}
	cq.mu.Lock()
	defer cq.mu.Unlock()
	cq.head = uint16(v)
	for _, sq := range cq.sqs { // some may have waited for room
		c.runLocked(sq)
	}
}

// fullLocked tells whether there is no room for another completion.
func (cq *completionQueue) fullLocked() bool {
	next := cq.tail + 1
	if int(next) == len(cq.entries) {
		next = 0
	}
	return next == cq.head
}

// runLocked fetches and carries out the commands of sq until it is empty, the
// completion queue is full or the controller fails. The caller holds sq.cq.mu.
func (c *Controller) runLocked(sq *submissionQueue) {
	if sq.running {
		return
	}
	sq.running = true
	inMemory := c.shadow.Load() != nil
	for (sq.head != sq.tail || (inMemory && c.pullTailLocked(sq))) && !sq.deleted && c.roomLocked(sq.cq) && c.csts.Load()&(spec.CSTSCFS|spec.CSTSRDY) == spec.CSTSRDY {
		cmd := sq.entries[sq.head]
		if sq.head++; int(sq.head) == len(sq.entries) {
			sq.head = 0
		}
		if inj := c.injector.Load(); inj != nil && !c.injectLocked(sq, &cmd, *inj) {
			continue
		}
		c.executeLocked(sq, &cmd)
	}
	if sq.id == 0 {
		c.postEventsLocked(sq)
	}
	sq.running = false
}

// executeLocked carries out one command and completes it, unless it is one
// that stays outstanding.
func (c *Controller) executeLocked(sq *submissionQueue, cmd *spec.SubmissionEntry) {
	if sq.id == 0 {
		if dw0, status, done := c.admin(sq, cmd); done {
			c.postLocked(sq, cmd.CID(), status, dw0)
		}
		return
	}
	status := c.io(sq, cmd)
	if status != spec.Success {
		c.logError(sq.id, cmd.CID(), status, cmd.NSID, cmd.SLBA())
		if status.SCT() == 2 {
			sq.counters.mediaErrors++
		}
	}
	c.postLocked(sq, cmd.CID(), status, 0)
}

// postLocked puts a completion into the queue. The caller made sure that there
// is room.
func (c *Controller) postLocked(sq *submissionQueue, cid uint16, status spec.Status, dw0 uint32) {
	cq := sq.cq
	e := &cq.entries[cq.tail]
	e.DW0 = dw0
	e.DW1 = 0
	e.DW2 = uint32(sq.id)<<16 | uint32(sq.head)
	atomic.StoreUint32(&e.DW3, spec.MakeDW3(cid, status, cq.phase))
	if cq.tail++; int(cq.tail) == len(cq.entries) {
		cq.tail = 0
		cq.phase ^= 1
	}
}
