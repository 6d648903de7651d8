package uring

import (
	"slices"
	"time"

	abi "gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/ktime"
	"gvisor.dev/gvisor/pkg/waiter"
)

// ioUringEnter implements io_uring_enter(2).
func ioUringEnter(t *kernel.Task, _ uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
	fd, toSubmit, least, flags := args[0].Int(), args[1].Uint(), args[2].Uint(), args[3].Uint()
	if flags&^uint32(enterKnown) != 0 {
		return 0, nil, linuxerr.EINVAL
	}
	file := t.GetFile(fd)
	if file == nil {
		return 0, nil, linuxerr.EBADF
	}
	defer file.DecRef(t)
	r, ok := file.Impl().(*ring)
	if !ok {
		return 0, nil, linuxerr.EOPNOTSUPP
	}
	taken, err := r.submitFrom(t, toSubmit, flags)
	if err != nil {
		return 0, nil, err
	}
	if flags&enterGetEvents == 0 || taken != toSubmit {
		return uintptr(taken), nil, nil
	}
	w, err := waitArguments(t, flags, args[4].Pointer(), args[5].Uint64())
	if err == nil {
		err = r.wait(t, min(least, r.cqEntries), w)
	}
	if taken > 0 {
		err = nil
	}
	return uintptr(taken), nil, err
}

// submitFrom carries out what is in the submission ring, or has the poller do it.
func (r *ring) submitFrom(t *kernel.Task, n, flags uint32) (taken uint32, err error) {
	if r.poller != nil {
		return n, r.poller.attend(t, flags)
	}
	r.takeTurn(t)
	defer r.endTurn()
	switch {
	case r.disabled:
		return 0, linuxerr.EBADFD
	case r.flags&setupSingleIssuer != 0 && r.owner != t:
		return 0, linuxerr.EEXIST
	}
	c := callOf(r, t)
	if n > 0 {
		if taken, err = c.submit(n); err != nil {
			return 0, err
		}
	}
	c.runReady()
	return taken, nil
}

// waiting is how io_uring_enter waits.
type waiting struct {
	bounded bool
	limit   ktime.Time
}

// waitArguments reads the last arguments of io_uring_enter: a set of signals to
// block meanwhile, or a structure with one and a time.
func waitArguments(t *kernel.Task, flags uint32, addr hostarch.Addr, size uint64) (waiting, error) {
	var w waiting
	mask, maskSize := addr, size
	if flags&enterExtArg != 0 {
		// struct io_uring_getevents_arg: sigmask, sigmask_sz, min_wait_usec, ts.
		const argBytes = 24
		var raw [argBytes]byte
		if size != argBytes {
			return w, linuxerr.EINVAL
		}
		if _, err := t.CopyInBytes(addr, raw[:]); err != nil {
			return w, err
		}
		mask, maskSize = hostarch.Addr(le.Uint64(raw[:])), uint64(le.Uint32(raw[8:]))
		if at := hostarch.Addr(le.Uint64(raw[16:])); at != 0 {
			var ts abi.Timespec
			if _, err := ts.CopyIn(t, at); err != nil {
				return w, err
			}
			w.bounded = true
			w.limit = t.Kernel().MonotonicClock().Now().Add(max(time.Duration(ts.ToNsecCapped()), 0))
		}
	}
	if mask != 0 {
		if maskSize != abi.SignalSetSize {
			return w, linuxerr.EINVAL
		}
		var set abi.SignalSet
		if _, err := set.CopyIn(t, mask); err != nil {
			return w, err
		}
		old := t.SignalMask()
		t.SetSignalMask(set &^ kernel.UnblockableSignals)
		t.SetSavedSignalMask(old)
	}
	return w, nil
}

// waitEntry is a task in io_uring_enter.
type waitEntry struct{ ch chan struct{} }

func (w *waitEntry) wake() {
	select {
	case w.ch <- struct{}{}:
	default:
	}
}

// wait waits until there are least completions, and goes on with pending
// requests meanwhile.
func (r *ring) wait(t *kernel.Task, least uint32, how waiting) error {
	var w *waitEntry
	for {
		r.flushOverflow()
		r.mu.Lock()
		enough, ready := r.available() >= least, len(r.ready) > 0
		if !enough && w == nil {
			w = &waitEntry{make(chan struct{}, 1)}
			r.waiters = append(r.waiters, w)
			defer r.leave(w)
		}
		r.mu.Unlock()
		switch {
		case enough:
			return nil
		case ready:
			r.takeTurn(t)
			callOf(r, t).runReady()
			r.endTurn()
			if !t.Interrupted() {
				continue
			}
		}
		if err := t.BlockWithDeadline(w.ch, how.bounded, how.limit); err != nil {
			if linuxerr.Equals(linuxerr.ETIMEDOUT, err) {
				return linuxerr.ETIME
			}
			if t.PendingSignals()&^t.SignalMask() == 0 {
				return linuxerr.ERESTARTNOINTR // it is to do something for another ring
			}
			return linuxerr.EINTR
		}
	}
}

// leave takes w out of those who wait, and passes on what it would have done.
func (r *ring) leave(w *waitEntry) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiters = slices.DeleteFunc(r.waiters, func(o *waitEntry) bool { return o == w })
	switch {
	case len(r.ready) == 0 || r.closed:
	case len(r.waiters) > 0:
		r.waiters[0].wake()
	case !r.working:
		r.working = true
		go r.work()
	}
}

var _ waiter.Waitable = (*ring)(nil)
