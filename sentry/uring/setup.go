package uring

import (
	"math/bits"

	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
)

// ioUringSetup implements io_uring_setup(2).
func ioUringSetup(t *kernel.Task, _ uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
	entries, addr := args[0].Uint(), args[1].Pointer()
	var raw [paramsBytes]byte
	if _, err := t.CopyInBytes(addr, raw[:]); err != nil {
		return 0, nil, err
	}
	var p params
	p.get(raw[:])
	if p.reserved != [3]uint32{} {
		return 0, nil, linuxerr.EINVAL
	}
	if err := p.check(entries); err != nil {
		return 0, nil, err
	}
	if p.flags&setupAttachWQ != 0 {
		// Rings share no threads here, but what is named must be one.
		if err := checkRing(t, int32(p.wqFD)); err != nil {
			return 0, nil, err
		}
	}
	r, err := newRing(t, &p)
	if err != nil {
		return 0, nil, err
	}
	defer r.vfsfd.DecRef(t)
	p.features = features
	p.put(raw[:])
	if _, err := t.CopyOutBytes(addr, raw[:]); err != nil {
		return 0, nil, err
	}
	if p.flags&setupSQPoll != 0 {
		r.poller = newPoller(r, t, p.sqIdleMs)
	}
	fd, err := t.NewFDFrom(0, &r.vfsfd, kernel.FDFlags{CloseOnExec: true})
	if err != nil {
		return 0, nil, err
	}
	if r.poller != nil && !r.disabled {
		go r.poller.run()
	}
	return uintptr(fd), nil, nil
}

// check checks the flags and computes the sizes of the rings.
func (p *params) check(entries uint32) error {
	f := p.flags
	switch {
	case f&^setupKnown != 0,
		f&setupSQAff != 0 && f&setupSQPoll == 0,
		f&setupSQPoll != 0 && f&(setupCoopTaskrun|setupTaskrunFlag|setupDeferTaskrun) != 0,
		f&setupTaskrunFlag != 0 && f&(setupCoopTaskrun|setupDeferTaskrun) == 0,
		f&setupDeferTaskrun != 0 && f&setupSingleIssuer == 0,
		entries == 0:
		return linuxerr.EINVAL
	}
	if entries > maxEntries {
		if f&setupClamp == 0 {
			return linuxerr.EINVAL
		}
		entries = maxEntries
	}
	p.sqEntries = powerOfTwo(entries)
	if f&setupCQSize == 0 {
		p.cqEntries = 2 * p.sqEntries
		return nil
	}
	if p.cqEntries == 0 {
		return linuxerr.EINVAL
	}
	if p.cqEntries > maxCQEntries {
		if f&setupClamp == 0 {
			return linuxerr.EINVAL
		}
		p.cqEntries = maxCQEntries
	}
	if p.cqEntries = powerOfTwo(p.cqEntries); p.cqEntries < p.sqEntries {
		return linuxerr.EINVAL
	}
	return nil
}

// powerOfTwo is the least power of two that is at least n, which is not 0.
func powerOfTwo(n uint32) uint32 { return 1 << bits.Len32(n-1) }

// checkRing says whether a descriptor is that of a ring.
func checkRing(t *kernel.Task, fd int32) error {
	file := t.GetFile(fd)
	if file == nil {
		return linuxerr.ENXIO
	}
	defer file.DecRef(t)
	if _, ok := file.Impl().(*ring); !ok {
		return linuxerr.EINVAL
	}
	return nil
}
