package uring

import (
	"math"

	abi "gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/usermem"

	"runsc-fs/sentry/rw"
)

// operation is what a submission can ask for.
type operation struct {
	// run carries out a request whose turn it is, or lets it wait (pending). A
	// request that has waited for its file comes again.
	run func(c *call, q *request) (res int32, pending bool)
	// needsTask says that it must be a task that runs it.
	needsTask bool
	// polled says that rings with IORING_SETUP_IOPOLL have it.
	polled bool
}

var operations [opLast]operation

func init() {
	at := func(op uint8, run func(*call, *request) (int32, bool)) { operations[op] = operation{run: run} }
	onTask := func(op uint8, run func(*call, *request) (int32, bool)) {
		operations[op] = operation{run: run, needsTask: true}
	}
	operations[opNop] = operation{run: nop, polled: true}
	for _, op := range []uint8{opRead, opWrite, opReadv, opWritev, opReadFixed, opWriteFixed} {
		at(op, transfer)
	}
	at(opFsync, fsync)
	onTask(opFallocate, fallocate)
	operations[opFilesUpdate] = operation{run: filesUpdate, needsTask: true, polled: true}
	at(opPollAdd, pollAdd)
	at(opPollRemove, pollRemove)
	at(opTimeout, timeout)
	at(opTimeoutRemove, timeoutRemove)
	at(opAsyncCancel, asyncCancel)
	onTask(opSend, send)
	onTask(opRecv, recv)
	onTask(opSendmsg, sendmsg)
	onTask(opRecvmsg, recvmsg)
	onTask(opAccept, accept)
	onTask(opConnect, connect)
	onTask(opClose, closeFile)
	onTask(opSplice, splice)
	for op := range systemCalls {
		onTask(op, systemCall)
	}
}

func nop(_ *call, q *request) (int32, bool) { return q.res, false }

// single is memory of n bytes at addr.
func (c *call) single(q *request, addr, n uint64) (usermem.IOSequence, error) {
	if n > math.MaxInt64 {
		return usermem.IOSequence{}, linuxerr.EINVAL
	}
	ar, ok := q.mm.CheckIORange(hostarch.Addr(addr), int64(min(n, uint64(abi.MAX_RW_COUNT))))
	if !ok {
		return usermem.IOSequence{}, linuxerr.EFAULT
	}
	return usermem.IOSequence{IO: q.mm, Addrs: hostarch.AddrRangeSeqOf(ar)}, nil
}

// iovecs is the memory that n struct iovec at addr describe.
func (c *call) iovecs(q *request, addr uint64, n uint32) (usermem.IOSequence, error) {
	if n > abi.UIO_MAXIOV {
		return usermem.IOSequence{}, linuxerr.EINVAL
	}
	raw := make([]byte, 16*n)
	if _, err := q.mm.CopyIn(c.ctx, hostarch.Addr(addr), raw, usermem.IOOpts{}); err != nil {
		return usermem.IOSequence{}, err
	}
	ranges := make([]hostarch.AddrRange, 0, n)
	left := uint64(abi.MAX_RW_COUNT)
	for ; len(raw) > 0; raw = raw[16:] {
		base, length := le.Uint64(raw), le.Uint64(raw[8:])
		if int64(length) < 0 {
			return usermem.IOSequence{}, linuxerr.EINVAL
		}
		length = min(length, left)
		ar, ok := q.mm.CheckIORange(hostarch.Addr(base), int64(length))
		if !ok {
			return usermem.IOSequence{}, linuxerr.EFAULT
		}
		left -= length
		if length > 0 {
			ranges = append(ranges, ar)
		}
	}
	return usermem.IOSequence{IO: q.mm, Addrs: hostarch.AddrRangeSeqFromSlice(ranges)}, nil
}

// fixed is memory within a registered buffer.
func (c *call) fixed(q *request) (usermem.IOSequence, error) {
	if int(q.bufIndex) >= len(c.r.buffers) {
		return usermem.IOSequence{}, linuxerr.EFAULT
	}
	b := c.r.buffers[q.bufIndex]
	first := q.addr - uint64(b.addr)
	if q.addr < uint64(b.addr) || first > b.n || uint64(q.n) > b.n-first {
		return usermem.IOSequence{}, linuxerr.EFAULT
	}
	return c.single(q, q.addr, uint64(q.n))
}

// prepareTransfer makes q.rw of a read or write that has its file.
func (c *call) prepareTransfer(q *request) error {
	const known = abi.RWF_VALID | rw.RWFNoWait | rwfAppend | rwfNoAppend
	r := &q.rw
	*r = rw.Request{File: q.file, Off: int64(q.off), Flags: q.opFlags}
	var err error
	switch q.op {
	case opWrite, opWritev, opWriteFixed:
		r.Write = true
	}
	switch q.op {
	case opRead, opWrite:
		r.Mem, err = c.single(q, q.addr, uint64(q.n))
	case opReadv, opWritev:
		r.Mem, err = c.iovecs(q, q.addr, q.n)
	default:
		r.Mem, err = c.fixed(q)
	}
	switch {
	case q.opFlags&^known != 0:
		return linuxerr.EOPNOTSUPP
	case err != nil:
		return err
	case r.Write && !q.file.IsWritable() || !r.Write && !q.file.IsReadable():
		return linuxerr.EBADF
	case r.Off < rw.CurrentOffset:
		return linuxerr.EINVAL
	}
	if c.r.flags&setupIOPoll != 0 {
		if _, ok := q.file.Impl().(rw.Batcher); !ok || q.file.StatusFlags()&abi.O_DIRECT == 0 {
			return linuxerr.EOPNOTSUPP
		}
	}
	return nil
}

// Flags of preadv2(2) and pwritev2(2) that gVisor has no names for.
const (
	rwfAppend   = 0x10
	rwfNoAppend = 0x20
)

// transfer is a read or write that is part of a chain, or has waited.
func transfer(c *call, q *request) (int32, bool) {
	if q.again {
		q.rw.Again(c.ctx)
	} else {
		err := c.getFile(q)
		if err == nil {
			err = c.prepareTransfer(q)
		}
		if err != nil {
			return errno(err), false
		}
		one := [1]rw.Request{q.rw}
		rw.Do(c.ctx, one[:])
		q.rw = one[0]
	}
	if q.rw.WouldBlock() {
		return c.arm(q, q.rw.Events())
	}
	res := q.rw.Result(c.ctx)
	q.short = res != q.rw.Mem.NumBytes()
	return int32(res), false
}

// fsyncDataSync is IORING_FSYNC_DATASYNC.
const fsyncDataSync = 1

func fsync(c *call, q *request) (int32, bool) {
	if q.opFlags&^fsyncDataSync != 0 || q.addr != 0 || q.bufIndex != 0 || q.sqe.file != 0 {
		return errno(linuxerr.EINVAL), false
	}
	if err := c.getFile(q); err != nil {
		return errno(err), false
	}
	return errno(rw.Sync(c.ctx, q.file, q.opFlags&fsyncDataSync != 0)), false
}

// Fallocate is what carries out fallocate(2). The package that knows more modes
// than gVisor puts its own here before there are tasks.
var Fallocate = func(t *kernel.Task, file *vfs.FileDescription, mode uint32, offset, length int64) error {
	return file.Allocate(t, uint64(mode), uint64(offset), uint64(length))
}

func fallocate(c *call, q *request) (int32, bool) {
	if q.bufIndex != 0 || q.opFlags != 0 {
		return errno(linuxerr.EINVAL), false
	}
	if err := c.getFile(q); err != nil {
		return errno(err), false
	}
	return errno(Fallocate(c.t, q.file, q.n, int64(q.off), int64(q.addr))), false
}
