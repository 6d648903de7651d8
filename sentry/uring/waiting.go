package uring

import (
	"time"

	abi "gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/usermem"
	"gvisor.dev/gvisor/pkg/waiter"
)

// Flags of polls in sqe.n, IORING_POLL_*.
const (
	pollAddMulti       = 1 << 0
	pollUpdateEvents   = 1 << 1
	pollUpdateUserData = 1 << 2
	pollAddLevel       = 1 << 3
)

// pollMask is what a submission wants to know of its file.
func pollMask(events uint32) waiter.EventMask {
	return waiter.EventMaskFromLinux(events) | waiter.EventErr | waiter.EventHUp
}

func pollAdd(c *call, q *request) (int32, bool) {
	if q.n&^(pollAddMulti|pollAddLevel) != 0 || q.bufIndex != 0 || q.off != 0 || q.addr != 0 {
		return errno(linuxerr.EINVAL), false
	}
	if err := c.getFile(q); err != nil {
		return errno(err), false
	}
	mask := pollMask(q.opFlags)
	if q.n&pollAddMulti == 0 {
		if ready := q.file.Readiness(mask) & mask; ready != 0 {
			return int32(ready.ToLinux()), false
		}
	}
	return c.arm(q, mask)
}

// pollAgain posts what a poll that goes on has seen. It ends when its
// completions have no room.
func (c *call) pollAgain(q *request) {
	r := c.r
	r.mu.Lock()
	if _, ok := r.pending[q]; !ok || q.state != awake {
		r.mu.Unlock()
		return
	}
	q.state = armed // what happens from here on wakes it once more
	mask := q.mask
	r.mu.Unlock()
	ready := q.file.Readiness(mask) & mask
	if ready == 0 || r.post(cqe{data: q.data, res: int32(ready.ToLinux()), flags: cqeMore}) {
		return
	}
	if r.claim(q) {
		q.disarm(c.ctx)
		c.start(c.finish(q, errno(linuxerr.ECANCELED)))
	}
}

// pollRemove ends a poll or changes it.
func pollRemove(c *call, q *request) (int32, bool) {
	const update = pollUpdateEvents | pollUpdateUserData
	if q.n&^(update|pollAddMulti) != 0 || q.bufIndex != 0 || q.n&update == 0 && (q.n != 0 || q.off != 0) {
		return errno(linuxerr.EINVAL), false
	}
	r := c.r
	r.mu.Lock()
	var found *request
	for p := range r.pending {
		if p.op == opPollAdd && p.sqe.data == q.addr && !p.decided {
			found = p
			break
		}
	}
	if found == nil {
		r.mu.Unlock()
		return errno(linuxerr.ENOENT), false
	}
	if q.n&update == 0 {
		r.decideLocked(found, errno(linuxerr.ECANCELED))
		r.mu.Unlock()
		return 0, false
	}
	if q.n&pollUpdateUserData != 0 {
		found.data = q.off
	}
	r.mu.Unlock()
	if q.n&pollUpdateEvents != 0 && r.claim(found) {
		found.disarm(c.ctx)
		found.opFlags = q.opFlags
		found.n = q.n & pollAddMulti
		c.start(found)
	}
	return 0, false
}

// Flags of timeouts, IORING_TIMEOUT_*.
const (
	timeoutAbs          = 1 << 0
	timeoutUpdate       = 1 << 1
	timeoutBoottime     = 1 << 2
	timeoutRealtime     = 1 << 3
	timeoutLinkUpdate   = 1 << 4
	timeoutETimeSuccess = 1 << 5
	timeoutClocks       = timeoutBoottime | timeoutRealtime
)

// duration reads a struct __kernel_timespec and says how long it is until then.
func (c *call) duration(q *request, addr uint64, flags uint32) (time.Duration, error) {
	var raw [16]byte
	if _, err := q.mm.CopyIn(c.ctx, hostarch.Addr(addr), raw[:], usermem.IOOpts{}); err != nil {
		return 0, err
	}
	ts := abi.Timespec{Sec: int64(le.Uint64(raw[:])), Nsec: int64(le.Uint64(raw[8:]))}
	if ts.Sec < 0 || ts.Nsec < 0 {
		return 0, linuxerr.EINVAL
	}
	d := time.Duration(ts.ToNsecCapped())
	if flags&timeoutAbs != 0 {
		k := c.r.owner.Kernel()
		clock := k.MonotonicClock()
		if flags&timeoutRealtime != 0 {
			clock = k.RealtimeClock()
		}
		d -= time.Duration(clock.Now().Nanoseconds())
	}
	return max(d, 0), nil
}

func timeout(c *call, q *request) (int32, bool) {
	const known = timeoutAbs | timeoutClocks | timeoutETimeSuccess
	if q.n != 1 || q.bufIndex != 0 || q.sqe.file != 0 || q.opFlags&^known != 0 || q.opFlags&timeoutClocks == timeoutClocks {
		return errno(linuxerr.EINVAL), false
	}
	d, err := c.duration(q, q.addr, q.opFlags)
	if err != nil {
		return errno(err), false
	}
	r := c.r
	if err := r.enroll(q); err != nil {
		return errno(err), false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if count := uint32(q.off); count > 0 {
		q.target = r.posted + count
		r.counters = append(r.counters, q)
	}
	q.timer = time.AfterFunc(d, func() { r.expire(q) })
	return 0, true
}

// expire ends a timeout whose time has come.
func (r *ring) expire(q *request) {
	r.mu.Lock()
	r.decideLocked(q, errno(linuxerr.ETIME))
	r.mu.Unlock()
}

// wakeCountersLocked ends timeouts whose number of completions has come.
func (r *ring) wakeCountersLocked() {
	if len(r.counters) == 0 {
		return
	}
	left := r.counters[:0]
	for _, q := range r.counters {
		if q.state == running {
			continue
		}
		if int32(r.posted-q.target) >= 0 {
			r.decideLocked(q, 0)
			continue
		}
		left = append(left, q)
	}
	clear(r.counters[len(left):])
	r.counters = left
}

// timeoutRemove ends a timeout or changes it.
func timeoutRemove(c *call, q *request) (int32, bool) {
	const known = timeoutUpdate | timeoutLinkUpdate | timeoutAbs | timeoutClocks
	if q.opFlags&^known != 0 || q.bufIndex != 0 || q.n != 0 || q.sqe.file != 0 ||
		q.opFlags&timeoutUpdate == 0 && q.opFlags != 0 && q.opFlags&timeoutLinkUpdate == 0 {
		return errno(linuxerr.EINVAL), false
	}
	var d time.Duration
	update := q.opFlags&(timeoutUpdate|timeoutLinkUpdate) != 0
	if update {
		var err error
		if d, err = c.duration(q, q.off, q.opFlags); err != nil {
			return errno(err), false
		}
	}
	r := c.r
	r.mu.Lock()
	defer r.mu.Unlock()
	for p := range r.pending {
		if lt := p.timeout; q.opFlags&timeoutLinkUpdate != 0 && lt != nil && lt.data == q.addr && lt.timer != nil {
			lt.timer.Reset(d)
			return 0, false
		}
		if p.op != opTimeout || p.data != q.addr || p.decided || q.opFlags&timeoutLinkUpdate != 0 {
			continue
		}
		if !update {
			r.decideLocked(p, errno(linuxerr.ECANCELED))
		} else if p.timer != nil {
			p.timer.Reset(d)
		}
		return 0, false
	}
	return errno(linuxerr.ENOENT), false
}

// addLinkTimeout bounds the last request of the chain that is being assembled.
func (c *call) addLinkTimeout(q *request) error {
	const known = timeoutAbs | timeoutClocks | timeoutETimeSuccess
	bounded := c.r.chain.tail
	if bounded == nil || bounded.timeout != nil || q.n != 1 || q.off != 0 || q.bufIndex != 0 || q.sqe.file != 0 ||
		q.opFlags&^known != 0 || q.opFlags&timeoutClocks == timeoutClocks {
		return linuxerr.EINVAL
	}
	var err error
	if q.wait, err = c.duration(q, q.addr, q.opFlags); err == nil {
		bounded.timeout = q
	}
	return err
}

// startLinkTimeoutLocked starts the time of what bounds q, which has become
// pending.
func (r *ring) startLinkTimeoutLocked(q *request) {
	lt := q.timeout
	switch {
	case lt == nil:
	case lt.fired:
		r.decideLocked(q, errno(linuxerr.ECANCELED))
	case lt.timer == nil:
		lt.timer = time.AfterFunc(lt.wait, func() {
			r.mu.Lock()
			lt.fired = true
			r.decideLocked(q, errno(linuxerr.ECANCELED))
			r.mu.Unlock()
		})
	}
}

// endLinkTimeout gives the result of what bounds q, which has ended.
func (r *ring) endLinkTimeout(q *request) int32 {
	r.mu.Lock()
	defer r.mu.Unlock()
	lt := q.timeout
	if lt.timer != nil {
		lt.timer.Stop()
	}
	if lt.fired {
		return errno(linuxerr.ETIME)
	}
	return errno(linuxerr.ECANCELED)
}

// Flags of cancelling, IORING_ASYNC_CANCEL_*.
const (
	cancelAll      = 1 << 0
	cancelFD       = 1 << 1
	cancelAny      = 1 << 2
	cancelFDFixed  = 1 << 3
	cancelUserData = 1 << 4
	cancelOp       = 1 << 5
	cancelKnown    = 1<<6 - 1
)

// asyncCancel ends pending requests.
func asyncCancel(c *call, q *request) (int32, bool) {
	flags := q.opFlags
	if flags&^cancelKnown != 0 || q.off != 0 || q.sqe.file != 0 || q.flags&sqeFixedFile != 0 && flags&cancelFD == 0 ||
		flags&cancelAny != 0 && flags&(cancelFD|cancelOp|cancelUserData) != 0 {
		return errno(linuxerr.EINVAL), false
	}
	if flags&cancelFD != 0 {
		if flags&cancelFDFixed != 0 {
			q.flags |= sqeFixedFile
		}
		if err := c.getFile(q); err != nil {
			return errno(err), false
		}
	}
	byData := flags&(cancelFD|cancelAny|cancelOp) == 0 || flags&cancelUserData != 0
	n := int32(0)
	r := c.r
	r.mu.Lock()
	defer r.mu.Unlock()
	for p := range r.pending {
		if p.decided || byData && p.data != q.addr || flags&cancelFD != 0 && p.file != q.file ||
			flags&cancelOp != 0 && uint32(p.op) != q.n {
			continue
		}
		r.decideLocked(p, errno(linuxerr.ECANCELED))
		if n++; flags&(cancelAll|cancelAny) == 0 {
			return 0, false
		}
	}
	if flags&(cancelAll|cancelAny) != 0 {
		return n, false
	}
	return errno(linuxerr.ENOENT), false
}
