package uring

import (
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/vfs"

	"runsc-fs/sentry/rw"
)

// batchMax is how many reads and writes go to their files together.
const batchMax = 64

// batch collects reads and writes that are linked to nothing. ring.turn guards
// it; it is empty between turns.
type batch struct {
	r     *ring
	n     int
	reqs  [batchMax]rw.Request
	sqes  [batchMax]sqe
	owned [batchMax]bool // the file is a reference
	cqes  [batchMax]cqe
}

// chain is what is being assembled of linked requests.
type chain struct {
	head, tail *request
	broken     bool // a member was wrong: all fail
}

// submit takes up to n submissions off the ring and carries them out. It
// returns how many it took. Errors: EBUSY while completions that had no room in
// the ring are as many as it has.
func (c *call) submit(n uint32) (taken uint32, err error) {
	r := c.r
	if left := r.flushOverflow(); left >= int(r.cqEntries) {
		return 0, linuxerr.EBUSY
	}
	task := c.submitter()
	n = min(n, r.sqEntries)
	for taken < n && r.rings.word(offSQTail).Load() != r.sqHead && !(c.t != nil && c.t.Killed()) {
		raw, ok := r.takeSQE()
		if !ok {
			break
		}
		taken++
		var s sqe
		s.get(raw[:])
		if !c.add(&s, task) && r.flags&setupSubmitAll == 0 {
			break
		}
	}
	c.endChain()
	c.flush()
	return taken, nil
}

// submitter is the task in whose name new requests are carried out. Off tasks only
// the poller takes submissions.
func (c *call) submitter() *kernel.Task {
	if c.t != nil {
		return c.t
	}
	return c.r.poller.deputy()
}

// takeSQE copies the next submission. It reports false for an index that leads
// nowhere, which is dropped.
func (r *ring) takeSQE() (raw [sqeBytes]byte, ok bool) {
	index := r.sqHead & (r.sqEntries - 1)
	if r.flags&setupNoSQArray == 0 {
		index = r.rings.word(r.array + index*4).Load()
	}
	if ok = index < r.sqEntries; ok {
		copy(raw[:], r.sqes.b[index*sqeBytes:])
	} else {
		r.rings.word(offSQDropped).Add(1)
	}
	r.sqHead++
	r.rings.word(offSQHead).Store(r.sqHead)
	return raw, ok
}

// add takes a submission. It reports false if it is so wrong that Linux would
// not look at those behind it.
func (c *call) add(s *sqe, task *kernel.Task) bool {
	r := c.r
	const linked = sqeLink | sqeHardLink
	err := r.checkSQE(s)
	if err == nil && r.chain.head == nil && s.flags&(linked|sqeDrain|sqeSkipSuccess) == 0 && len(r.delayed) == 0 && isTransfer(s.op) {
		c.addTransfer(s, task)
		return true
	}
	q := &request{sqe: *s, r: r, task: task, mm: c.mm}
	if err == nil && s.op == opLinkTimeout {
		err = c.addLinkTimeout(q)
		if err == nil {
			if s.flags&linked == 0 {
				c.endChain()
			}
			return true
		}
	}
	if err != nil {
		q.op = opNop
		q.decided, q.res = true, errno(err)
		r.chain.broken = true
	}
	if r.chain.head == nil {
		r.chain.head = q
	} else {
		r.chain.tail.next = q
	}
	r.chain.tail = q
	r.mu.Lock()
	r.flying++
	r.mu.Unlock()
	if s.flags&linked == 0 || err != nil && r.flags&setupSubmitAll == 0 {
		c.endChain()
	}
	return err == nil
}

// checkSQE checks what all operations have in common.
func (r *ring) checkSQE(s *sqe) error {
	switch {
	case s.flags&^sqeKnown != 0, int(s.op) >= len(operations), s.personality != 0:
		return linuxerr.EINVAL
	case operations[s.op].run == nil && s.op != opLinkTimeout:
		return linuxerr.EINVAL
	case s.flags&sqeBufferSelect != 0:
		return linuxerr.EOPNOTSUPP // there are no groups of buffers
	case s.flags&sqeSkipSuccess != 0 && s.flags&sqeDrain != 0:
		return linuxerr.EOPNOTSUPP
	case r.flags&setupIOPoll != 0 && !isTransfer(s.op) && !operations[s.op].polled:
		return linuxerr.EINVAL
	}
	return r.restrictions.check(s)
}

// endChain carries out what has been assembled.
func (c *call) endChain() {
	head, broken := c.r.chain.head, c.r.chain.broken
	c.r.chain = chain{}
	if head == nil {
		return
	}
	c.flush()
	if broken {
		c.failChain(head)
		return
	}
	drain, n := false, 0
	for q := head; q != nil; q = q.next {
		drain = drain || q.flags&sqeDrain != 0
		n++
	}
	if len(c.r.delayed) > 0 || drain && !c.alone(n) {
		head.drains, head.members = drain, n
		c.r.delayed = append(c.r.delayed, head)
		c.r.delayedN += n
		return
	}
	c.start(head)
}

// failChain ends a chain with a wrong member: that one with its error, the
// others are cancelled.
func (c *call) failChain(q *request) {
	for q != nil {
		next := q.next
		q.next = nil
		if !q.decided {
			q.res = errno(linuxerr.ECANCELED)
		}
		c.finish(q, q.res)
		q = next
	}
}

// alone says whether nothing is under way but n requests and what is delayed.
func (c *call) alone(n int) bool {
	c.r.mu.Lock()
	defer c.r.mu.Unlock()
	return c.r.flying == n+c.r.delayedN
}

// runDelayed starts what waited for all others.
func (c *call) runDelayed() {
	r := c.r
	for len(r.delayed) > 0 {
		head := r.delayed[0]
		if head.drains && !c.alone(0) {
			return
		}
		r.delayed[0] = nil
		r.delayed = r.delayed[1:]
		r.delayedN -= head.members
		c.start(head)
	}
}

// addTransfer puts a read or write to those that go together, or completes it
// with an error.
func (c *call) addTransfer(s *sqe, task *kernel.Task) {
	b := &c.r.batch
	if b.n == batchMax {
		c.flush()
	}
	q := request{sqe: *s, r: c.r, task: task, mm: c.mm}
	err := c.getFile(&q)
	if err == nil {
		err = c.prepareTransfer(&q)
	}
	if err != nil {
		q.dropFile(c.ctx)
		c.flush()
		c.r.post(cqe{data: s.data, res: errno(err)})
		return
	}
	b.reqs[b.n], b.sqes[b.n], b.owned[b.n] = q.rw, *s, q.owned
	b.n++
}

// flush carries out the collected reads and writes.
func (c *call) flush() {
	r := c.r
	b := &r.batch
	n := b.n
	if n == 0 {
		return
	}
	b.n = 0
	rw.Do(c.ctx, b.reqs[:n])
	ended := 0
	for k := range n {
		req := &b.reqs[k]
		if req.WouldBlock() {
			c.makePending(&b.sqes[k], req, b.owned[k])
			continue
		}
		b.cqes[ended] = cqe{data: b.sqes[k].data, res: int32(req.Result(c.ctx))}
		ended++
	}
	for k := range n {
		if b.owned[k] && b.reqs[k].File != nil {
			b.reqs[k].File.DecRef(c.ctx)
		}
		b.reqs[k] = rw.Request{}
	}
	r.post(b.cqes[:ended]...)
}

// makePending turns a collected request whose file is not ready into one that waits.
func (c *call) makePending(s *sqe, req *rw.Request, owned bool) {
	q := &request{sqe: *s, r: c.r, task: c.submitter(), mm: c.mm, file: req.File, owned: owned, rw: *req}
	req.File = nil // its reference goes along
	c.r.mu.Lock()
	c.r.flying++
	c.r.mu.Unlock()
	if res, pending := c.arm(q, q.rw.Events()); !pending {
		c.finish(q, res)
	}
}

// isTransfer says whether an operation reads or writes a file.
func isTransfer(op uint8) bool {
	switch op {
	case opRead, opWrite, opReadv, opWritev, opReadFixed, opWriteFixed:
		return true
	}
	return false
}

// buffer is a registered buffer.
type buffer struct {
	addr hostarch.Addr
	n    uint64
}

var _ vfs.FileDescriptionImpl = (*ring)(nil)
