package aio

import (
	"math"
	"sync/atomic"

	abi "gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/waiter"
)

// poll is a pending IOCB_CMD_POLL. It belongs to whoever takes it out of
// Context.polls.
type poll struct {
	c       *Context
	ctx     context.Context
	file    *vfs.FileDescription // one reference
	eventFD *vfs.FileDescription // one reference, or nil
	mask    waiter.EventMask
	data    uint64
	obj     uint64
	entry   waiter.Entry
	woken   atomic.Bool // somebody is looking at the file
}

// startPoll makes an iocb a poll. It takes over the references and the room in
// the ring unless it fails.
func startPoll(t *kernel.Task, c *Context, cb *iocb, obj uint64, file, eventFD *vfs.FileDescription) error {
	if cb.buf > math.MaxUint16 || cb.off != 0 || cb.bytes != 0 || cb.rwFlags != 0 {
		return linuxerr.EINVAL
	}
	p := &poll{
		c: c, ctx: t.Kernel().SupervisorContext(), file: file, eventFD: eventFD, data: cb.data, obj: obj,
		mask: waiter.EventMaskFromLinux(uint32(cb.buf)) | waiter.EventErr | waiter.EventHUp,
	}
	p.entry.Init(p, p.mask)
	c.mu.Lock()
	if c.dead {
		c.mu.Unlock()
		return linuxerr.EINVAL
	}
	c.polls[p] = struct{}{}
	c.mu.Unlock()
	if err := file.EventRegister(&p.entry); err != nil {
		if p.claim() {
			return err
		}
		return nil // it was cancelled meanwhile
	}
	// Nobody can be looking yet but a notifier, who sees the same.
	if ready := file.Readiness(p.mask) & p.mask; ready != 0 {
		p.end(ready)
	}
	return nil
}

// NotifyEvent implements waiter.EventListener.NotifyEvent. Its caller holds
// locks of the file.
func (p *poll) NotifyEvent(waiter.EventMask) {
	if p.woken.CompareAndSwap(false, true) {
		p.file.IncRef() // p keeps it as long as it is registered
		go p.look()
	}
}

// look ends the poll if its file is ready.
func (p *poll) look() {
	defer p.file.DecRef(p.ctx)
	for {
		if ready := p.file.Readiness(p.mask) & p.mask; ready != 0 {
			p.end(ready)
			return
		}
		p.woken.Store(false)
		// What came between the look and the store was not passed on.
		if p.file.Readiness(p.mask)&p.mask == 0 || !p.woken.CompareAndSwap(false, true) {
			return
		}
	}
}

// claim takes the poll out of its context; only one caller gets it.
func (p *poll) claim() bool {
	p.c.mu.Lock()
	defer p.c.mu.Unlock()
	_, ok := p.c.polls[p]
	delete(p.c.polls, p)
	return ok
}

// end completes the poll with the events that it has seen, none if it was
// cancelled.
func (p *poll) end(ready waiter.EventMask) {
	if p.claim() {
		p.complete(ready)
	}
}

// complete posts the event of a claimed poll.
func (p *poll) complete(ready waiter.EventMask) {
	p.c.complete([]event{{data: p.data, obj: p.obj, res: int64(ready.ToLinux())}})
	if p.eventFD != nil {
		signal(p.eventFD)
	}
	p.letGo()
}

// letGo drops what the claimed poll holds.
func (p *poll) letGo() {
	p.file.EventUnregister(&p.entry)
	p.file.DecRef(p.ctx)
	if p.eventFD != nil {
		p.eventFD.DecRef(p.ctx)
	}
}

// ioCancel implements io_cancel(2). As on Linux only polls can be cancelled,
// and the event of what was cancelled comes in the ring.
func ioCancel(t *kernel.Task, _ uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
	addr := args[1].Pointer()
	key := t.CopyScratchBuffer(4)
	if _, err := t.CopyInBytes(addr+offKey, key); err != nil {
		return 0, nil, err
	}
	if le.Uint32(key) != 0 {
		return 0, nil, linuxerr.EINVAL
	}
	c := contexts.find(t, args[0].Pointer())
	if c == nil {
		return 0, nil, linuxerr.EINVAL
	}
	var found *poll
	c.mu.Lock()
	for p := range c.polls {
		if p.obj == uint64(addr) {
			found = p
			delete(c.polls, p)
			break
		}
	}
	c.mu.Unlock()
	if found == nil {
		return 0, nil, linuxerr.EINVAL
	}
	found.complete(0)
	return 0, nil, linuxerr.EINPROGRESS
}

// Bits of struct iocb's aio_flags.
const (
	flagResFD  = abi.IOCB_FLAG_RESFD
	flagIOPrio = abi.IOCB_FLAG_IOPRIO
)
