package uring

import (
	"time"

	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/mm"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/waiter"

	"runsc-fs/sentry/rw"
)

// state is where a pending request is.
type state uint8

const (
	running state = iota // not pending: it belongs to who has the turn
	armed                // waits for its file, its time or its task
	awake                // in ring.ready
)

// request is one submission.
type request struct {
	sqe
	r    *ring
	task *kernel.Task      // who submitted it; with SQPOLL, who made the ring
	mm   *mm.MemoryManager // where its addresses are

	file  *vfs.FileDescription // while it is under way; a reference unless it is a registered one
	owned bool                 // file is a reference
	again bool                 // it has been pending
	short bool                 // it has done less than it should: what is linked fails
	rw    rw.Request           // of reads and writes

	next    *request // what is linked to it
	timeout *request // IORING_OP_LINK_TIMEOUT that bounds it

	// Of the first one of a delayed chain, guarded by ring.turn.
	drains  bool // it waits for all others
	members int

	// ring.mu guards what follows while the request is pending.
	state      state
	decided    bool // res is the result
	res        int32
	registered bool // entry is in the queue of file
	entry      waiter.Entry
	mask       waiter.EventMask
	timer      *time.Timer
	wait       time.Duration // of a LINK_TIMEOUT
	fired      bool          // the same: its time has come
	target     uint32        // ring.posted that ends a timeout
}

// call is what somebody who has the turn carries out requests with.
type call struct {
	r   *ring
	t   *kernel.Task    // nil off tasks
	ctx context.Context // t, or one that stands for the task of the requests
	mm  *mm.MemoryManager
}

func callOf(r *ring, t *kernel.Task) *call { return &call{r: r, t: t, ctx: t, mm: t.MemoryManager()} }

// canRun says whether q, if its operation needs a task, can run here.
func (c *call) canRun(q *request) bool {
	return !operations[q.op].needsTask || c.t != nil && c.mm == q.mm
}

// getFile gives q the file that its submission names. Errors: EBADF.
func (c *call) getFile(q *request) error {
	if q.file != nil {
		return nil
	}
	if q.flags&sqeFixedFile != 0 {
		if q.fd < 0 || int(q.fd) >= len(c.r.files) || c.r.files[q.fd] == nil {
			return linuxerr.EBADF
		}
		q.file, q.owned = c.r.files[q.fd], false
		return nil
	}
	if q.file = c.descriptor(q.fd); q.file == nil {
		return linuxerr.EBADF
	}
	q.owned = true
	return nil
}

// descriptor returns a file of the process with a reference, nil if there is none.
func (c *call) descriptor(fd int32) (file *vfs.FileDescription) {
	if c.t != nil {
		return c.t.GetFile(fd)
	}
	c.r.owner.WithMuLocked(func(t *kernel.Task) {
		if table := t.FDTable(); table != nil {
			file, _ = table.Get(fd)
		}
	})
	return file
}

// keepFile makes the file of a request that becomes pending its own.
func (q *request) keepFile() {
	if q.file != nil && !q.owned {
		q.file.IncRef()
		q.owned = true
	}
}

func (q *request) dropFile(ctx context.Context) {
	if q.file != nil && q.owned {
		q.file.DecRef(ctx)
	}
	q.file, q.owned = nil, false
}

// start carries out q and what is linked to it, as far as it goes.
func (c *call) start(q *request) {
	for q != nil {
		if !c.canRun(q) {
			c.delegate(q)
			return
		}
		res, pending := c.issue(q)
		if pending {
			return
		}
		q = c.finish(q, res)
	}
}

// issue carries out one request.
func (c *call) issue(q *request) (res int32, pending bool) {
	if q.mm != c.mm {
		if !q.mm.IncUsers() {
			return errno(linuxerr.ECANCELED), false
		}
		defer q.mm.DecUsers(c.ctx)
	}
	return operations[q.op].run(c, q)
}

// finish posts the completion of q and returns what is to be started next.
func (c *call) finish(q *request, res int32) *request {
	r := c.r
	q.dropFile(c.ctx)
	failed := res < 0 || q.short
	if q.op == opTimeout && res == errno(linuxerr.ETIME) && q.opFlags&timeoutETimeSuccess != 0 {
		failed = false
	}
	cqes := [2]cqe{{data: q.data, res: res}}
	list := cqes[:1]
	if q.flags&sqeSkipSuccess != 0 && !failed {
		list = cqes[:0]
	}
	if q.timeout != nil {
		if lt := r.endLinkTimeout(q); lt != 0 {
			list = append(list, cqe{data: q.timeout.data, res: lt})
		}
	}
	counted := uint32(len(list))
	if q.op == opTimeout {
		counted = 0
	}
	next := q.next
	q.next = nil
	r.mu.Lock()
	r.flying--
	r.mu.Unlock()
	r.postAll(list, counted)
	if failed && q.flags&sqeHardLink == 0 {
		c.cancelChain(next)
		next = nil
	}
	return next
}

// cancelChain ends requests that were linked to one that has failed.
func (c *call) cancelChain(q *request) {
	for q != nil {
		c.r.post(cqe{data: q.data, res: errno(linuxerr.ECANCELED)})
		if q.timeout != nil {
			c.r.post(cqe{data: q.timeout.data, res: errno(linuxerr.ECANCELED)})
		}
		c.r.mu.Lock()
		c.r.flying--
		c.r.mu.Unlock()
		q.dropFile(c.ctx)
		q = q.next
	}
}

// enroll makes q pending. It fails for more than a ring may have, and for one
// that is being closed.
func (r *ring) enroll(q *request) error {
	q.keepFile()
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || len(r.pending) >= maxPending {
		return linuxerr.ENOMEM
	}
	q.state, q.again = armed, true
	r.pending[q] = struct{}{}
	r.startLinkTimeoutLocked(q)
	return nil
}

// maxPending bounds the requests that are pending in one ring.
const maxPending = 1 << 16

// arm makes q wait for events of its file.
func (c *call) arm(q *request, mask waiter.EventMask) (res int32, pending bool) {
	if _, self := q.file.Impl().(*ring); self {
		// The request would keep a ring that keeps the request.
		return errno(linuxerr.EINVAL), false
	}
	q.mask = mask
	q.entry.Init(q, mask)
	if err := c.r.enroll(q); err != nil {
		return errno(err), false
	}
	if err := q.file.EventRegister(&q.entry); err != nil {
		if c.r.claim(q) {
			return errno(err), false
		}
		return 0, true
	}
	c.r.mu.Lock()
	q.registered = true
	c.r.mu.Unlock()
	if q.file.Readiness(mask)&mask != 0 {
		q.NotifyEvent(mask)
	}
	return 0, true
}

// NotifyEvent implements waiter.EventListener.NotifyEvent. Its caller holds
// locks of the file.
func (q *request) NotifyEvent(waiter.EventMask) {
	q.r.mu.Lock()
	q.r.awakeLocked(q)
	q.r.mu.Unlock()
}

// decide wakes a pending request with a result.
func (r *ring) decideLocked(q *request, res int32) {
	if q.decided || q.state == running {
		return
	}
	q.decided, q.res = true, res
	r.awakeLocked(q)
}

// awakeLocked puts a pending request to those that can go on, and sees to it
// that somebody looks at them.
func (r *ring) awakeLocked(q *request) {
	if q.state != armed || r.closed {
		return
	}
	q.state = awake
	r.ready = append(r.ready, q)
	switch {
	case len(r.waiters) > 0:
		r.waiters[0].wake()
	case !r.working:
		r.working = true
		go r.work()
	}
}

// claim takes q out of those that are pending; only one caller gets it.
func (r *ring) claim(q *request) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.pending[q]; !ok {
		return false
	}
	delete(r.pending, q)
	q.state = running
	return true
}

// disarm ends the waiting of a request that has been claimed.
func (q *request) disarm(context.Context) {
	q.r.mu.Lock()
	registered, timer := q.registered, q.timer
	q.registered, q.timer = false, nil
	q.r.mu.Unlock()
	if timer != nil {
		timer.Stop()
	}
	if registered {
		q.file.EventUnregister(&q.entry)
	}
}

// runReady goes on with the requests that can, those that become ready
// meanwhile not included.
func (c *call) runReady() {
	r := c.r
	r.mu.Lock()
	list := r.ready
	r.ready = nil
	r.mu.Unlock()
	for _, q := range list {
		c.resume(q)
	}
	c.runDelayed()
}

// resume goes on with a pending request.
func (c *call) resume(q *request) {
	if !q.decided && !c.canRun(q) {
		c.r.mu.Lock()
		q.state = armed // it waits for its task now; a second waking does no harm
		c.r.mu.Unlock()
		c.wakeTask(q)
		return
	}
	if q.op == opPollAdd && q.n&pollAddMulti != 0 && !q.decided {
		c.pollAgain(q)
		return
	}
	if !c.r.claim(q) {
		return
	}
	q.disarm(c.ctx)
	if q.decided {
		c.start(c.finish(q, q.res))
		return
	}
	c.start(q)
}

// delegate leaves a request to the task that submitted it.
func (c *call) delegate(q *request) {
	if err := c.r.enroll(q); err != nil {
		c.start(c.finish(q, errno(err)))
		return
	}
	c.wakeTask(q)
}

// wakeTask has the task of a pending request go on with it before it returns to
// its program.
func (c *call) wakeTask(q *request) {
	if q.task.ExitState() != kernel.TaskExitNone {
		c.r.mu.Lock()
		c.r.decideLocked(q, errno(linuxerr.ECANCELED))
		c.r.mu.Unlock()
		return
	}
	q.task.RegisterWork(&taskWork{q})
	q.task.Interrupt()
}

// taskWork implements kernel.TaskWorker.
type taskWork struct{ q *request }

// TaskWork implements kernel.TaskWorker.TaskWork.
func (w *taskWork) TaskWork(t *kernel.Task) {
	r := w.q.r
	if !r.vfsfd.TryIncRef() {
		return
	}
	defer r.vfsfd.DecRef(t)
	r.takeTurn(t)
	defer r.endTurn()
	c := callOf(r, t)
	if !c.canRun(w.q) { // the task has executed another program
		r.mu.Lock()
		r.decideLocked(w.q, errno(linuxerr.ECANCELED))
		r.mu.Unlock()
		return
	}
	c.resume(w.q)
	c.runDelayed()
}

// context stands for the process of the ring off its tasks. That of a task that
// has ended lacks what others may ask it for.
func (r *ring) context() context.Context {
	if r.owner.ExitState() != kernel.TaskExitNone {
		return r.owner.Kernel().SupervisorContext()
	}
	return r.owner.AsyncContext()
}

// work is the goroutine of a ring that goes on with what is ready.
func (r *ring) work() {
	for {
		if !r.vfsfd.TryIncRef() {
			return
		}
		ctx := r.context()
		r.takeTurn(nil)
		c := &call{r: r, ctx: ctx}
		c.runReady()
		r.endTurn()
		r.mu.Lock()
		more := len(r.ready) > 0 && len(r.waiters) == 0
		r.working = more
		if !more && len(r.ready) > 0 {
			r.waiters[0].wake()
		}
		r.mu.Unlock()
		r.vfsfd.DecRef(ctx)
		if !more {
			return
		}
	}
}

// errno is an error as the result of a request.
func errno(err error) int32 { return int32(rw.Errno(err)) }
