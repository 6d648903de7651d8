package aio

import (
	"time"

	"golang.org/x/sys/unix"
	abi "gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/ktime"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
	"gvisor.dev/gvisor/pkg/sentry/pgalloc"
	"gvisor.dev/gvisor/pkg/waiter"
)

const (
	sysIOSetup      = unix.SYS_IO_SETUP
	sysIODestroy    = unix.SYS_IO_DESTROY
	sysIOSubmit     = unix.SYS_IO_SUBMIT
	sysIOCancel     = unix.SYS_IO_CANCEL
	sysIOGetevents  = unix.SYS_IO_GETEVENTS
	sysIOPgetevents = unix.SYS_IO_PGETEVENTS
)

// ioSetup implements io_setup(2).
func ioSetup(t *kernel.Task, _ uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
	events, idAddr := args[0].Uint(), args[1].Pointer()
	id := t.CopyScratchBuffer(8)
	if _, err := t.CopyInBytes(idAddr, id); err != nil {
		return 0, nil, err
	}
	if le.Uint64(id) != 0 || events == 0 || events > maxEvents/2 {
		return 0, nil, linuxerr.EINVAL
	}
	addr, err := newContext(t, events)
	if err != nil {
		return 0, nil, err
	}
	le.PutUint64(id, uint64(addr))
	if _, err := t.CopyOutBytes(idAddr, id); err != nil {
		t.MemoryManager().MUnmap(t, addr, hostarch.PageSize) // which ends the context
		return 0, nil, err
	}
	return 0, nil, nil
}

// newContext makes a context for some events and maps its ring.
func newContext(t *kernel.Task, events uint32) (hostarch.Addr, error) {
	// The limit of the system counts what was asked for; the ring is larger,
	// as Linux's is, where each processor holds some slots back.
	if limit := MaxNr.Load(); int64(events) > int64(limit) {
		return 0, linuxerr.EAGAIN
	} else if int64(Nr.Add(int32(events))) > int64(limit) {
		Nr.Add(-int32(events))
		return 0, linuxerr.EAGAIN
	}
	slots := max(events, uint32(t.Kernel().ApplicationCores())*4)*2 + 2
	r, err := newRing(t, pgalloc.MemoryFileFromContext(t), slots)
	if err != nil {
		Nr.Add(-int32(events))
		return 0, err
	}
	c := &Context{
		ring: r, events: int32(events), space: t.MemoryManager(),
		polls: map[*poll]struct{}{}, idle: make(chan struct{}),
	}
	r.holder = c
	addr, err := t.MemoryManager().MMap(t, memmap.MMapOpts{
		Length:          r.fr.Length(),
		MappingIdentity: r,
		Mappable:        r,
		Perms:           hostarch.ReadWrite,
		MaxPerms:        hostarch.ReadWrite,
	})
	if err != nil {
		Nr.Add(-int32(events))
		r.DecRef(t)
		return 0, err
	}
	contexts.add(c, addr)
	return addr, nil
}

// ioDestroy implements io_destroy(2).
func ioDestroy(t *kernel.Task, _ uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
	addr := args[0].Pointer()
	c := contexts.take(t, addr)
	if c == nil {
		return 0, nil, linuxerr.EINVAL
	}
	size := c.ring.fr.Length()
	c.kill()
	// Whatever is mapped there now goes, as on Linux.
	t.MemoryManager().MUnmap(t, addr, size)
	select {
	case <-c.idle:
	default:
		t.UninterruptibleSleepStart()
		<-c.idle
		t.UninterruptibleSleepFinish()
	}
	return 0, nil, nil
}

// ioGetevents implements io_getevents(2).
func ioGetevents(t *kernel.Task, _ uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
	n, err := getevents(t, args)
	return n, nil, err
}

// ioPgetevents implements io_pgetevents(2).
func ioPgetevents(t *kernel.Task, _ uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
	if addr := args[5].Pointer(); addr != 0 {
		// struct __aio_sigset: a pointer and a size.
		sigset := t.CopyScratchBuffer(16)
		if _, err := t.CopyInBytes(addr, sigset); err != nil {
			return 0, nil, err
		}
		mask, size := hostarch.Addr(le.Uint64(sigset)), le.Uint64(sigset[8:])
		if mask != 0 {
			if size != abi.SignalSetSize {
				return 0, nil, linuxerr.EINVAL
			}
			var set abi.SignalSet
			if _, err := set.CopyIn(t, mask); err != nil {
				return 0, nil, err
			}
			old := t.SignalMask()
			t.SetSignalMask(set &^ kernel.UnblockableSignals)
			t.SetSavedSignalMask(old)
		}
	}
	n, err := getevents(t, args)
	if linuxerr.Equals(linuxerr.EINTR, err) {
		// A signal that has no handler restarts the call.
		err = linuxerr.ERESTARTNOHAND
	}
	return n, nil, err
}

// getevents waits for at least min events and takes up to nr.
func getevents(t *kernel.Task, args arch.SyscallArguments) (uintptr, error) {
	least, nr := args[1].Int64(), args[2].Int64()
	out, timeoutAddr := args[3].Pointer(), args[4].Pointer()
	var deadline ktime.Time
	atOnce := false
	if timeoutAddr != 0 {
		var ts abi.Timespec
		if _, err := ts.CopyIn(t, timeoutAddr); err != nil {
			return 0, err
		}
		atOnce = ts.ToNsecCapped() <= 0
		deadline = t.Kernel().MonotonicClock().Now().Add(max(time.Duration(ts.ToNsecCapped()), 0))
	}
	c := contexts.find(t, args[0].Pointer())
	if c == nil || least > nr || least < 0 {
		return 0, linuxerr.EINVAL
	}
	var done int64
	var w waiter.Entry
	var ch chan struct{}
	for {
		n, err := c.copyOut(t, out+hostarch.Addr(done*eventBytes), nr-done)
		done += n
		switch {
		case err != nil && done == 0:
			return 0, err
		case err != nil || done >= least || atOnce:
			return uintptr(done), nil
		}
		if ch == nil {
			w, ch = waiter.NewChannelEntry(waiter.EventIn)
			c.queue.EventRegister(&w)
			defer c.queue.EventUnregister(&w)
			continue // what came before is not notified
		}
		err = t.BlockWithDeadline(ch, timeoutAddr != 0, deadline)
		if err == nil {
			continue
		}
		n, _ = c.copyOut(t, out+hostarch.Addr(done*eventBytes), nr-done)
		done += n
		if done > 0 || linuxerr.Equals(linuxerr.ETIMEDOUT, err) {
			return uintptr(done), nil
		}
		return 0, linuxerr.EINTR
	}
}

// copyOut moves up to n events to the application and returns how many.
func (c *Context) copyOut(t *kernel.Task, addr hostarch.Addr, n int64) (done int64, err error) {
	b := t.CopyScratchBuffer(eventBytes)
	for done < n {
		found, err := c.reap(b)
		if !found {
			return done, err
		}
		if _, err := t.CopyOutBytes(addr, b); err != nil {
			c.unreap()
			return done, err
		}
		addr += eventBytes
		done++
	}
	return done, nil
}
