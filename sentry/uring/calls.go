package uring

import (
	"math"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/sentry/arch"
)

// systemCalls are the operations that are system calls in all but the way they
// are asked for. What a field of a submission means is in io_uring_enter(2).
var systemCalls = map[uint8]struct {
	number    uintptr
	arguments func(s *sqe) [6]uint64
}{
	opSyncFileRange: {unix.SYS_SYNC_FILE_RANGE, func(s *sqe) [6]uint64 { return [6]uint64{fd(s.fd), s.off, uint64(s.n), uint64(s.opFlags)} }},
	opOpenat:        {unix.SYS_OPENAT, func(s *sqe) [6]uint64 { return [6]uint64{fd(s.fd), s.addr, uint64(s.opFlags), uint64(s.n)} }},
	opOpenat2:       {unix.SYS_OPENAT2, func(s *sqe) [6]uint64 { return [6]uint64{fd(s.fd), s.addr, s.off, uint64(s.n)} }},
	opStatx:         {unix.SYS_STATX, func(s *sqe) [6]uint64 { return [6]uint64{fd(s.fd), s.addr, uint64(s.opFlags), uint64(s.n), s.off} }},
	opFadvise:       {unix.SYS_FADVISE64, func(s *sqe) [6]uint64 { return [6]uint64{fd(s.fd), s.off, uint64(s.n), uint64(s.opFlags)} }},
	opMadvise:       {unix.SYS_MADVISE, func(s *sqe) [6]uint64 { return [6]uint64{s.addr, uint64(s.n), uint64(s.opFlags)} }},
	opEpollCtl:      {unix.SYS_EPOLL_CTL, func(s *sqe) [6]uint64 { return [6]uint64{fd(s.fd), uint64(s.n), s.off, s.addr} }},
	opTee:           {unix.SYS_TEE, func(s *sqe) [6]uint64 { return [6]uint64{fd(s.file), fd(s.fd), uint64(s.n), uint64(s.opFlags)} }},
	opShutdown:      {unix.SYS_SHUTDOWN, func(s *sqe) [6]uint64 { return [6]uint64{fd(s.fd), uint64(s.n)} }},
	opRenameat:      {unix.SYS_RENAMEAT2, func(s *sqe) [6]uint64 { return [6]uint64{fd(s.fd), s.addr, fd(int32(s.n)), s.off, uint64(s.opFlags)} }},
	opUnlinkat:      {unix.SYS_UNLINKAT, func(s *sqe) [6]uint64 { return [6]uint64{fd(s.fd), s.addr, uint64(s.opFlags)} }},
	opMkdirat:       {unix.SYS_MKDIRAT, func(s *sqe) [6]uint64 { return [6]uint64{fd(s.fd), s.addr, uint64(s.n)} }},
	opSymlinkat:     {unix.SYS_SYMLINKAT, func(s *sqe) [6]uint64 { return [6]uint64{s.addr, fd(s.fd), s.off} }},
	opLinkat:        {unix.SYS_LINKAT, func(s *sqe) [6]uint64 { return [6]uint64{fd(s.fd), s.addr, fd(int32(s.n)), s.off, uint64(s.opFlags)} }},
	opFsetxattr:     {unix.SYS_FSETXATTR, func(s *sqe) [6]uint64 { return [6]uint64{fd(s.fd), s.addr, s.off, uint64(s.n), uint64(s.opFlags)} }},
	opSetxattr:      {unix.SYS_SETXATTR, func(s *sqe) [6]uint64 { return [6]uint64{s.addr3, s.addr, s.off, uint64(s.n), uint64(s.opFlags)} }},
	opFgetxattr:     {unix.SYS_FGETXATTR, func(s *sqe) [6]uint64 { return [6]uint64{fd(s.fd), s.addr, s.off, uint64(s.n)} }},
	opGetxattr:      {unix.SYS_GETXATTR, func(s *sqe) [6]uint64 { return [6]uint64{s.addr3, s.addr, s.off, uint64(s.n)} }},
	opSocket:        {unix.SYS_SOCKET, func(s *sqe) [6]uint64 { return [6]uint64{fd(s.fd), s.off, uint64(s.n)} }},
	opFtruncate:     {unix.SYS_FTRUNCATE, func(s *sqe) [6]uint64 { return [6]uint64{fd(s.fd), s.off} }},
	opBind:          {unix.SYS_BIND, func(s *sqe) [6]uint64 { return [6]uint64{fd(s.fd), s.addr, s.off} }},
	opListen:        {unix.SYS_LISTEN, func(s *sqe) [6]uint64 { return [6]uint64{fd(s.fd), uint64(s.n)} }},
}

// fd is a descriptor as an argument of a system call.
func fd(n int32) uint64 { return uint64(int64(n)) }

// systemCall carries out one of systemCalls.
func systemCall(c *call, q *request) (int32, bool) {
	sc := systemCalls[q.op]
	s := q.sqe
	if s.flags&sqeFixedFile != 0 {
		// These calls know descriptors only.
		return errno(linuxerr.EBADF), false
	}
	switch q.op {
	case opOpenat, opOpenat2, opSocket:
		if s.file != 0 {
			return errno(linuxerr.EINVAL), false // into the table of registered files
		}
	}
	return c.invoke(sc.number, sc.arguments(&s)), false
}

// invoke makes a system call, with others at their turn meanwhile: it may take
// long.
func (c *call) invoke(number uintptr, values [6]uint64) int32 {
	fn := c.t.SyscallTable().Lookup(number)
	if fn == nil {
		return errno(linuxerr.EINVAL)
	}
	var args arch.SyscallArguments
	for k, v := range values {
		args[k].Value = uintptr(v)
	}
	c.r.endTurn()
	n, _, err := fn(c.t, number, args)
	c.r.takeTurn(c.t)
	if err != nil {
		return errno(err)
	}
	return int32(min(n, math.MaxInt32))
}

// closeFile is close(2), of a registered file too.
func closeFile(c *call, q *request) (int32, bool) {
	if q.off != 0 || q.addr != 0 || q.n != 0 || q.opFlags != 0 || q.bufIndex != 0 || q.flags&sqeFixedFile != 0 {
		return errno(linuxerr.EINVAL), false
	}
	if slot := q.sqe.file; slot != 0 {
		if q.fd != 0 {
			return errno(linuxerr.EINVAL), false
		}
		return errno(c.replaceFile(int(slot)-1, nil)), false
	}
	file := c.t.GetFile(q.fd)
	if file == nil {
		return errno(linuxerr.EBADF), false
	}
	_, isRing := file.Impl().(*ring)
	file.DecRef(c.t)
	if isRing {
		return errno(linuxerr.EBADF), false
	}
	return c.invoke(unix.SYS_CLOSE, [6]uint64{fd(q.fd)}), false
}

// noOffset is the offset of splice(2) that stands for none.
const noOffset = math.MaxUint64

// splice is splice(2) between descriptors at their own offsets.
func splice(c *call, q *request) (int32, bool) {
	const fixedIn = 1 << 31
	if q.off != noOffset || q.addr != noOffset || q.opFlags&fixedIn != 0 || q.flags&sqeFixedFile != 0 {
		return errno(linuxerr.EINVAL), false
	}
	return c.invoke(unix.SYS_SPLICE, [6]uint64{fd(q.sqe.file), 0, fd(q.fd), 0, uint64(q.n), uint64(q.opFlags)}), false
}
