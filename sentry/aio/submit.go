package aio

import (
	"encoding/binary"
	"sync"

	"golang.org/x/sys/unix"
	abi "gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/eventfd"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/usermem"

	"runsc-fs/sentry/rw"
)

var le = binary.LittleEndian

// iocb is struct iocb.
type iocb struct {
	data         uint64
	key          uint32
	rwFlags      uint32
	op           uint16
	prio         uint16
	fd           int32
	buf, bytes   uint64
	off          int64
	reserved     uint64
	flags, resFD uint32
}

const (
	iocbBytes = 64
	offKey    = 8
)

func (cb *iocb) get(b []byte) {
	_ = b[iocbBytes-1]
	cb.data = le.Uint64(b)
	cb.key = le.Uint32(b[8:])
	cb.rwFlags = le.Uint32(b[12:])
	cb.op = le.Uint16(b[16:])
	cb.prio = le.Uint16(b[18:])
	cb.fd = int32(le.Uint32(b[20:]))
	cb.buf = le.Uint64(b[24:])
	cb.bytes = le.Uint64(b[32:])
	cb.off = int64(le.Uint64(b[40:]))
	cb.reserved = le.Uint64(b[48:])
	cb.flags = le.Uint32(b[56:])
	cb.resFD = le.Uint32(b[60:])
}

// batchMax is how many reads and writes go to their files together.
const batchMax = 64

// submission is the work of one io_submit. Its parts of the same number belong
// together.
type submission struct {
	pointers [batchMax * 8]byte
	raw      [iocbBytes]byte
	n        int
	reqs     [batchMax]rw.Request
	events   [batchMax]event
	eventFDs [batchMax]*vfs.FileDescription // nil for those without
}

var submissions = sync.Pool{New: func() any { return new(submission) }}

// ioSubmit implements io_submit(2).
func ioSubmit(t *kernel.Task, _ uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
	nr, addr := args[1].Int64(), args[2].Pointer()
	if nr < 0 {
		return 0, nil, linuxerr.EINVAL
	}
	c := contexts.find(t, args[0].Pointer())
	if c == nil {
		return 0, nil, linuxerr.EINVAL
	}
	s := submissions.Get().(*submission)
	taken, err := s.submit(t, c, min(nr, int64(c.ring.nr)), addr)
	submissions.Put(s)
	if taken > 0 {
		return uintptr(taken), nil, nil
	}
	return 0, nil, err
}

// submit takes requests until one is wrong, and returns how many it took and
// what was wrong with the next.
func (s *submission) submit(t *kernel.Task, c *Context, nr int64, addr hostarch.Addr) (taken int64, err error) {
	for taken < nr && err == nil {
		want := int(min(nr-taken, batchMax)) * 8
		var got int
		got, err = t.CopyInBytes(addr+hostarch.Addr(taken*8), s.pointers[:want])
		for k := 0; k+8 <= got; k += 8 {
			if err2 := s.one(t, c, hostarch.Addr(le.Uint64(s.pointers[k:]))); err2 != nil {
				err = err2
				break
			}
			taken++
		}
	}
	s.flush(t, c)
	return taken, err
}

// one takes one request.
func (s *submission) one(t *kernel.Task, c *Context, addr hostarch.Addr) error {
	if _, err := t.CopyInBytes(addr, s.raw[:]); err != nil {
		return err
	}
	var cb iocb
	cb.get(s.raw[:])
	if cb.reserved != 0 || int64(cb.bytes) < 0 {
		return linuxerr.EINVAL
	}
	if err := c.reserve(); err != nil {
		return err
	}
	file := t.GetFile(cb.fd)
	if file == nil {
		c.release()
		return linuxerr.EBADF
	}
	var eventFD *vfs.FileDescription
	err := error(nil)
	if cb.flags&flagResFD != 0 {
		eventFD, err = eventFile(t, int32(cb.resFD))
	}
	if err == nil && cb.key != 0 {
		_, err = t.CopyOutBytes(addr+offKey, make([]byte, 4))
	}
	if err == nil {
		err = s.start(t, c, &cb, uint64(addr), file, eventFD)
	}
	if err != nil {
		file.DecRef(t)
		if eventFD != nil {
			eventFD.DecRef(t)
		}
		c.release()
	}
	return err
}

// eventFile returns an eventfd of t.
func eventFile(t *kernel.Task, fd int32) (*vfs.FileDescription, error) {
	file := t.GetFile(fd)
	if file == nil {
		return nil, linuxerr.EBADF
	}
	if _, ok := file.Impl().(*eventfd.EventFileDescription); !ok {
		file.DecRef(t)
		return nil, linuxerr.EINVAL
	}
	return file, nil
}

// start carries out a request, or puts it to those that will be carried out
// together. It takes over the references and the room in the ring unless it
// fails.
func (s *submission) start(t *kernel.Task, c *Context, cb *iocb, obj uint64, file, eventFD *vfs.FileDescription) error {
	write := false
	switch cb.op {
	case abi.IOCB_CMD_PWRITE, abi.IOCB_CMD_PWRITEV:
		write = true
	case abi.IOCB_CMD_PREAD, abi.IOCB_CMD_PREADV:
	case abi.IOCB_CMD_FSYNC, abi.IOCB_CMD_FDSYNC:
		if cb.buf != 0 || cb.off != 0 || cb.bytes != 0 || cb.rwFlags != 0 {
			return linuxerr.EINVAL
		}
		s.flush(t, c) // what was submitted before is to be synced, too
		err := rw.Sync(t, file, cb.op == abi.IOCB_CMD_FDSYNC)
		s.push(event{data: cb.data, obj: obj, res: rw.Errno(err)}, rw.Request{File: file}, eventFD)
		s.finish(t, c)
		return nil
	case abi.IOCB_CMD_POLL:
		return startPoll(t, c, cb, obj, file, eventFD)
	default:
		return linuxerr.EINVAL
	}
	if err := checkFlags(t, cb); err != nil {
		return err
	}
	if write && !file.IsWritable() || !write && !file.IsReadable() {
		return linuxerr.EBADF
	}
	var mem usermem.IOSequence
	var err error
	if cb.op == abi.IOCB_CMD_PREADV || cb.op == abi.IOCB_CMD_PWRITEV {
		if cb.bytes > abi.UIO_MAXIOV {
			return linuxerr.EINVAL
		}
		mem, err = t.IovecsIOSequence(hostarch.Addr(cb.buf), int(cb.bytes), usermem.IOOpts{})
	} else {
		mem, err = t.SingleIOSequence(hostarch.Addr(cb.buf), int(cb.bytes), usermem.IOOpts{})
	}
	if err != nil {
		return err
	}
	if cb.off < 0 {
		return linuxerr.EINVAL
	}
	s.push(event{data: cb.data, obj: obj}, rw.Request{File: file, Mem: mem, Off: cb.off, Flags: cb.rwFlags, Write: write}, eventFD)
	if s.n == batchMax {
		s.flush(t, c)
	}
	return nil
}

// Classes of aio_reqprio, ioprio_set(2).
const (
	prioClassShift = 13
	prioNone       = 0
	prioRealTime   = 1
	prioBestEffort = 2
	prioIdle       = 3
	prioLevelMask  = 7 // the bits between are hints
)

// checkFlags checks aio_rw_flags and aio_reqprio. Priorities have no effect:
// nothing waits.
func checkFlags(t *kernel.Task, cb *iocb) error {
	const known = unix.RWF_HIPRI | unix.RWF_DSYNC | unix.RWF_SYNC | unix.RWF_NOWAIT | unix.RWF_APPEND | unix.RWF_NOAPPEND
	if cb.rwFlags&^known != 0 {
		return linuxerr.EOPNOTSUPP
	}
	if cb.flags&flagIOPrio == 0 {
		return nil
	}
	switch cb.prio >> prioClassShift {
	case prioNone:
		if cb.prio&prioLevelMask != 0 {
			return linuxerr.EINVAL
		}
	case prioRealTime:
		if !t.HasRootCapability(abi.CAP_SYS_ADMIN) && !t.HasRootCapability(abi.CAP_SYS_NICE) {
			return linuxerr.EPERM
		}
	case prioBestEffort, prioIdle:
	default:
		return linuxerr.EINVAL
	}
	return nil
}

// push adds a request with its event.
func (s *submission) push(ev event, req rw.Request, eventFD *vfs.FileDescription) {
	s.events[s.n], s.reqs[s.n], s.eventFDs[s.n] = ev, req, eventFD
	s.n++
}

// flush carries out the reads and writes that are waiting to go together.
func (s *submission) flush(t *kernel.Task, c *Context) {
	if s.n == 0 {
		return
	}
	rw.Do(t, s.reqs[:s.n])
	for k := range s.reqs[:s.n] {
		r := &s.reqs[k]
		if r.WouldBlock() {
			r.Wait(t)
		}
		s.events[k].res = r.Result(t)
		if r.Write {
			t.IOUsage().AccountWriteSyscall(r.Done)
		} else {
			t.IOUsage().AccountReadSyscall(r.Done)
		}
	}
	s.finish(t, c)
}

// finish posts the events and forgets the requests.
func (s *submission) finish(t *kernel.Task, c *Context) {
	c.complete(s.events[:s.n])
	for k := range s.reqs[:s.n] {
		if f := s.eventFDs[k]; f != nil {
			signal(f)
			f.DecRef(t)
			s.eventFDs[k] = nil
		}
		s.reqs[k].File.DecRef(t)
		s.reqs[k] = rw.Request{}
	}
	s.n = 0
}
