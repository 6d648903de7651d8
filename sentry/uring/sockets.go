package uring

import (
	"golang.org/x/sys/unix"
	abi "gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/sentry/ktime"
	"gvisor.dev/gvisor/pkg/sentry/socket"
	"gvisor.dev/gvisor/pkg/sentry/socket/control"
	"gvisor.dev/gvisor/pkg/sentry/syscalls/linux"
	"gvisor.dev/gvisor/pkg/waiter"

	"runsc-fs/sentry/rw"
)

// socketOf gives q its file, which must be a socket.
func (c *call) socketOf(q *request) (socket.Socket, error) {
	if err := c.getFile(q); err != nil {
		return nil, err
	}
	s, ok := q.file.Impl().(socket.Socket)
	if !ok {
		return nil, linuxerr.ENOTSOCK
	}
	return s, nil
}

// orWait is the outcome of a call that has not waited: it lets the request wait
// for its file if the call would have, and if that is allowed.
func (c *call) orWait(q *request, res int32, flags uint32, mask waiter.EventMask) (int32, bool) {
	if res == errno(linuxerr.EAGAIN) && flags&abi.MSG_DONTWAIT == 0 && q.file.StatusFlags()&abi.O_NONBLOCK == 0 {
		return c.arm(q, mask)
	}
	return res, false
}

func send(c *call, q *request) (int32, bool) {
	const known = abi.MSG_DONTWAIT | abi.MSG_NOSIGNAL | abi.MSG_MORE | abi.MSG_EOR | abi.MSG_WAITALL
	s, err := c.socketOf(q)
	if err == nil && (q.opFlags&^known != 0 || q.prio != 0) {
		err = linuxerr.EINVAL
	}
	if err != nil {
		return errno(err), false
	}
	src, err := c.single(q, q.addr, uint64(q.n))
	if err != nil {
		return errno(err), false
	}
	var to []byte
	if n := uint16(q.sqe.file); n != 0 {
		if to, err = linux.CaptureAddress(c.t, hostarch.Addr(q.off), uint32(n)); err != nil {
			return errno(err), false
		}
	}
	flags := int(q.opFlags&^abi.MSG_WAITALL) | abi.MSG_DONTWAIT
	n, e := s.SendMsg(c.t, src, to, flags, false, ktime.Time{}, socket.ControlMessages{Unix: control.New(c.t, s)})
	res := int32(n)
	if e != nil && n == 0 {
		res = errno(e.ToError())
	}
	q.short = res >= 0 && uint32(res) < q.n
	return c.orWait(q, res, q.opFlags, rw.WriteEvents)
}

func recv(c *call, q *request) (int32, bool) {
	const known = abi.MSG_DONTWAIT | abi.MSG_PEEK | abi.MSG_TRUNC | abi.MSG_WAITALL | abi.MSG_NOSIGNAL | abi.MSG_CMSG_CLOEXEC
	s, err := c.socketOf(q)
	if err == nil && (q.opFlags&^known != 0 || q.prio != 0) {
		err = linuxerr.EINVAL
	}
	if err != nil {
		return errno(err), false
	}
	dst, err := c.single(q, q.addr, uint64(q.n))
	if err != nil {
		return errno(err), false
	}
	done := q.rw.Done // of MSG_WAITALL, before it waited
	flags := int(q.opFlags&^(abi.MSG_WAITALL|abi.MSG_NOSIGNAL)) | abi.MSG_DONTWAIT
	n, _, _, _, cm, e := s.RecvMsg(c.t, dst.DropFirst64(done), flags, false, ktime.Time{}, false, 0)
	cm.Release(c.t)
	res := int32(done) + int32(n)
	if e != nil {
		res = errno(e.ToError())
		if done > 0 && res != errno(linuxerr.EAGAIN) {
			res = int32(done)
		}
	} else if q.opFlags&(abi.MSG_WAITALL|abi.MSG_PEEK) == abi.MSG_WAITALL && n > 0 && uint32(res) < q.n && isStream(s) {
		q.rw.Done = int64(res)
		res = errno(linuxerr.EAGAIN)
	}
	if res == errno(linuxerr.EAGAIN) && q.rw.Done > 0 && (q.opFlags&abi.MSG_DONTWAIT != 0 || q.file.StatusFlags()&abi.O_NONBLOCK != 0) {
		return int32(q.rw.Done), false
	}
	q.short = q.opFlags&abi.MSG_WAITALL != 0 && res >= 0 && uint32(res) < q.n
	return c.orWait(q, res, q.opFlags, rw.ReadEvents)
}

func isStream(s socket.Socket) bool {
	_, kind, _ := s.Type()
	return kind == abi.SOCK_STREAM
}

// message is sendmsg(2) or recvmsg(2), on a descriptor.
func (c *call) message(q *request, number uintptr, mask waiter.EventMask) (int32, bool) {
	if q.flags&sqeFixedFile != 0 {
		return errno(linuxerr.EBADF), false // the call knows descriptors only
	}
	if _, err := c.socketOf(q); err != nil {
		return errno(err), false
	}
	if q.prio != 0 {
		return errno(linuxerr.EINVAL), false
	}
	res := c.invoke(number, [6]uint64{fd(q.fd), q.addr, uint64(q.opFlags | abi.MSG_DONTWAIT)})
	return c.orWait(q, res, q.opFlags, mask)
}

func sendmsg(c *call, q *request) (int32, bool) {
	return c.message(q, unix.SYS_SENDMSG, rw.WriteEvents)
}
func recvmsg(c *call, q *request) (int32, bool) { return c.message(q, unix.SYS_RECVMSG, rw.ReadEvents) }

func accept(c *call, q *request) (int32, bool) {
	if q.n != 0 || q.bufIndex != 0 || q.prio != 0 || q.sqe.file != 0 {
		return errno(linuxerr.EINVAL), false
	}
	s, err := c.socketOf(q)
	if err != nil {
		return errno(err), false
	}
	if q.opFlags&^(abi.SOCK_NONBLOCK|abi.SOCK_CLOEXEC) != 0 {
		return errno(linuxerr.EINVAL), false
	}
	wantPeer := q.off != 0
	n, peer, peerLen, e := s.Accept(c.t, wantPeer, int(q.opFlags), false /* blocking */)
	if e != nil {
		return c.orWait(q, errno(e.ToError()), 0, rw.ReadEvents)
	}
	if wantPeer {
		c.putAddress(peer, peerLen, hostarch.Addr(q.addr), hostarch.Addr(q.off))
	}
	return n, false
}

// putAddress gives the address of a peer to the application. As for accept4(2),
// one that does not want it does not learn of it.
func (c *call) putAddress(a abi.SockAddr, n uint32, to, lengthAt hostarch.Addr) {
	var length [4]byte
	if _, err := c.t.CopyInBytes(lengthAt, length[:]); err != nil || int32(le.Uint32(length[:])) < 0 {
		return
	}
	room := le.Uint32(length[:])
	le.PutUint32(length[:], n)
	if _, err := c.t.CopyOutBytes(lengthAt, length[:]); err != nil || a == nil {
		return
	}
	raw := make([]byte, a.SizeBytes())
	a.MarshalUnsafe(raw)
	_, _ = c.t.CopyOutBytes(to, raw[:min(room, n, uint32(len(raw)))])
}

func connect(c *call, q *request) (int32, bool) {
	if q.n != 0 || q.bufIndex != 0 || q.opFlags != 0 || q.prio != 0 {
		return errno(linuxerr.EINVAL), false
	}
	s, err := c.socketOf(q)
	if err != nil {
		return errno(err), false
	}
	addr, err := linux.CaptureAddress(c.t, hostarch.Addr(q.addr), uint32(min(q.off, 1<<31)))
	if err != nil {
		return errno(err), false
	}
	e := s.Connect(c.t, addr, false /* blocking */)
	res := int32(0)
	if e != nil {
		res = errno(e.ToError())
	}
	switch {
	case q.again && res == errno(linuxerr.EISCONN):
		return 0, false
	case res == errno(linuxerr.EINPROGRESS), q.again && res == errno(linuxerr.EALREADY):
		if q.file.StatusFlags()&abi.O_NONBLOCK != 0 {
			return res, false
		}
		return c.arm(q, rw.WriteEvents)
	}
	return res, false
}
