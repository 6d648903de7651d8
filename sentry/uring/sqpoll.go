package uring

import (
	"runtime"
	"time"

	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/mm"
	"gvisor.dev/gvisor/pkg/waiter"
)

// How a poller looks for work: at first without pause, then with short ones,
// and after the time that the application asked for it sleeps until it is woken.
const (
	pollHot         = 100 * time.Microsecond
	pollPause       = 50 * time.Microsecond
	defaultPollIdle = time.Second
	maxPollIdle     = time.Minute
)

// poller is the goroutine of a ring with IORING_SETUP_SQPOLL. It stands for the
// process that made the ring.
type poller struct {
	r    *ring
	task *kernel.Task // who made the ring: what needs a task is done in its name
	mm   *mm.MemoryManager
	idle time.Duration
	bell chan struct{} // rung to wake it
	stop chan struct{} // closed with the ring
	dead chan struct{} // closed when it has ended
}

func newPoller(r *ring, t *kernel.Task, idleMs uint32) *poller {
	idle := time.Duration(idleMs) * time.Millisecond
	if idle == 0 {
		idle = defaultPollIdle
	}
	// Threads come and go; the first one stays longest.
	r.owner = t.ThreadGroup().Leader()
	return &poller{
		r: r, task: t, mm: t.MemoryManager(), idle: min(idle, maxPollIdle),
		bell: make(chan struct{}, 1), stop: make(chan struct{}), dead: make(chan struct{}),
	}
}

// deputy is the task whose requests the poller carries out: the one that made the
// ring, whose credentials the poller has under Linux, and when that has ended the
// first one of its process.
func (p *poller) deputy() *kernel.Task {
	if p.task.ExitState() == kernel.TaskExitNone {
		return p.task
	}
	return p.r.owner
}

// run carries out submissions until the ring or the process ends.
func (p *poller) run() {
	defer close(p.dead)
	r := p.r
	ctx := r.owner.Kernel().SupervisorContext() // to drop references with
	last := time.Now()
	for r.vfsfd.TryIncRef() {
		alive, sleep := true, false
		if r.rings.word(offSQTail).Load() != r.rings.word(offSQHead).Load() {
			alive = p.carryOut()
			last = time.Now()
		} else if since := time.Since(last); since < pollHot {
			runtime.Gosched()
		} else if since < p.idle {
			time.Sleep(pollPause)
		} else {
			// The application looks at the flag after it has moved the tail.
			r.rings.word(offSQFlags).Or(sqNeedWakeup)
			sleep = r.rings.word(offSQTail).Load() == r.rings.word(offSQHead).Load()
		}
		r.vfsfd.DecRef(ctx)
		if !alive {
			return
		}
		if sleep {
			select {
			case <-p.stop:
				return
			case <-p.bell:
			}
			last = time.Now()
		}
		if r.vfsfd.TryIncRef() {
			r.rings.word(offSQFlags).And(^uint32(sqNeedWakeup))
			r.vfsfd.DecRef(ctx)
		}
	}
}

// carryOut takes what is in the submission ring. It reports false if the
// process is gone.
func (p *poller) carryOut() bool {
	r := p.r
	if r.owner.ExitState() != kernel.TaskExitNone || !p.mm.IncUsers() {
		return false
	}
	ctx := r.owner.AsyncContext()
	defer p.mm.DecUsers(ctx)
	r.takeTurn(nil)
	c := &call{r: r, ctx: ctx, mm: p.mm}
	n, err := c.submit(r.sqEntries)
	c.runReady()
	r.endTurn()
	r.queue.Notify(waiter.WritableEvents)
	if err != nil || n == 0 {
		time.Sleep(pollPause) // completions have no room
	}
	return true
}

// attend is the part of io_uring_enter that has to do with the poller.
func (p *poller) attend(t *kernel.Task, flags uint32) error {
	r := p.r
	r.takeTurn(t)
	disabled := r.disabled
	r.endTurn()
	if disabled {
		return linuxerr.EBADFD
	}
	if flags&enterSQWakeup != 0 {
		select {
		case p.bell <- struct{}{}:
		default:
		}
	}
	w, ch := waiter.NewChannelEntry(waiter.WritableEvents)
	if flags&enterSQWait != 0 {
		r.queue.EventRegister(&w)
		defer r.queue.EventUnregister(&w)
	}
	for {
		select {
		case <-p.dead:
			return linuxerr.EOWNERDEAD
		default:
		}
		if flags&enterSQWait == 0 || r.Readiness(waiter.WritableEvents) != 0 {
			return nil
		}
		if err := t.Block(ch); err != nil {
			return linuxerr.EINTR
		}
	}
}
