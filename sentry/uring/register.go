package uring

import (
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/eventfd"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
)

// What can be registered, IORING_REGISTER_*.
const (
	registerBuffers      = 0
	unregisterBuffers    = 1
	registerFiles        = 2
	unregisterFiles      = 3
	registerEventFD      = 4
	unregisterEventFD    = 5
	registerFilesUpdate  = 6
	registerEventFDAsync = 7
	registerProbe        = 8
	registerRestrictions = 11
	registerEnableRings  = 12
	registerMaxWorkers   = 19
)

// ioUringRegister implements io_uring_register(2).
func ioUringRegister(t *kernel.Task, _ uintptr, args arch.SyscallArguments) (uintptr, *kernel.SyscallControl, error) {
	file := t.GetFile(args[0].Int())
	if file == nil {
		return 0, nil, linuxerr.EBADF
	}
	defer file.DecRef(t)
	r, ok := file.Impl().(*ring)
	if !ok {
		return 0, nil, linuxerr.EOPNOTSUPP
	}
	op, addr, n := args[1].Uint(), args[2].Pointer(), args[3].Uint()
	r.takeTurn(t)
	defer r.endTurn()
	if r.flags&setupSingleIssuer != 0 && r.owner != t && !r.disabled {
		return 0, nil, linuxerr.EEXIST
	}
	if rs := r.restrictions; rs != nil && !r.disabled && (op >= 64 || rs.register&(1<<op) == 0) {
		return 0, nil, linuxerr.EACCES
	}
	res, err := callOf(r, t).register(op, addr, n)
	return uintptr(res), nil, err
}

func (c *call) register(op uint32, addr hostarch.Addr, n uint32) (int, error) {
	r := c.r
	none := addr != 0 || n != 0
	switch op {
	case registerBuffers:
		return 0, c.registerBuffers(addr, n)
	case unregisterBuffers:
		if none {
			return 0, linuxerr.EINVAL
		}
		if r.buffers == nil {
			return 0, linuxerr.ENXIO
		}
		r.buffers = nil
		return 0, nil
	case registerFiles:
		return 0, c.registerFiles(addr, n)
	case unregisterFiles:
		if none {
			return 0, linuxerr.EINVAL
		}
		if r.files == nil {
			return 0, linuxerr.ENXIO
		}
		files := r.files
		r.files = nil
		for _, f := range files {
			if f != nil {
				f.DecRef(c.ctx)
			}
		}
		return 0, nil
	case registerFilesUpdate:
		// struct io_uring_files_update: offset, reserved, address of the descriptors.
		var raw [16]byte
		if n == 0 {
			return 0, linuxerr.EINVAL
		}
		if _, err := c.t.CopyInBytes(addr, raw[:]); err != nil {
			return 0, err
		}
		if le.Uint32(raw[4:]) != 0 {
			return 0, linuxerr.EINVAL
		}
		return c.updateFiles(le.Uint32(raw[:]), le.Uint64(raw[8:]), n)
	case registerEventFD, registerEventFDAsync:
		return 0, c.registerEventFD(addr, n)
	case unregisterEventFD:
		if none {
			return 0, linuxerr.EINVAL
		}
		r.mu.Lock()
		event := r.eventFD
		r.eventFD = nil
		r.mu.Unlock()
		if event == nil {
			return 0, linuxerr.ENXIO
		}
		event.DecRef(c.ctx)
		return 0, nil
	case registerProbe:
		return 0, c.probe(addr, n)
	case registerRestrictions:
		return 0, c.restrict(addr, n)
	case registerEnableRings:
		if none {
			return 0, linuxerr.EINVAL
		}
		if !r.disabled {
			return 0, linuxerr.EBADFD
		}
		r.disabled = false
		if r.poller != nil {
			go r.poller.run()
		} else if r.flags&setupSingleIssuer != 0 {
			r.owner = c.t
		}
		return 0, nil
	case registerMaxWorkers:
		return 0, c.maxWorkers(addr, n)
	}
	return 0, linuxerr.EINVAL
}

// registerBuffers takes memory for READ_FIXED and WRITE_FIXED. It is looked up
// again for each transfer, so that nothing of it is held.
func (c *call) registerBuffers(addr hostarch.Addr, n uint32) error {
	if c.r.buffers != nil {
		return linuxerr.EBUSY
	}
	if n == 0 || n > maxBuffers {
		return linuxerr.EINVAL
	}
	const maxBufferBytes = 1 << 30
	raw := make([]byte, 16*n)
	if _, err := c.t.CopyInBytes(addr, raw); err != nil {
		return err
	}
	buffers := make([]buffer, n)
	for k := range buffers {
		b := buffer{hostarch.Addr(le.Uint64(raw[16*k:])), le.Uint64(raw[16*k+8:])}
		switch {
		case b.addr == 0 && b.n == 0:
			continue // a place that is left free
		case b.addr == 0 || b.n == 0 || b.n > maxBufferBytes:
			return linuxerr.EFAULT
		}
		// Linux pins the memory, and so notices what is not there.
		var probe [1]byte
		for _, at := range []hostarch.Addr{b.addr, b.addr + hostarch.Addr(b.n) - 1} {
			if _, err := c.t.CopyInBytes(at, probe[:]); err != nil {
				return linuxerr.EFAULT
			}
		}
		buffers[k] = b
	}
	c.r.buffers = buffers
	return nil
}

// registrable returns the file of a descriptor, nil for -1. Rings are refused:
// they would keep each other.
func (c *call) registrable(fd int32) (*vfs.FileDescription, error) {
	if fd == -1 {
		return nil, nil
	}
	file := c.descriptor(fd)
	if file == nil {
		return nil, linuxerr.EBADF
	}
	if _, ok := file.Impl().(*ring); ok {
		file.DecRef(c.ctx)
		return nil, linuxerr.EBADF
	}
	return file, nil
}

func (c *call) registerFiles(addr hostarch.Addr, n uint32) error {
	if c.r.files != nil {
		return linuxerr.EBUSY
	}
	if n == 0 {
		return linuxerr.EINVAL
	}
	if n > maxFiles {
		return linuxerr.EMFILE
	}
	raw := make([]byte, 4*n)
	if _, err := c.t.CopyInBytes(addr, raw); err != nil {
		return err
	}
	files := make([]*vfs.FileDescription, n)
	for k := range files {
		file, err := c.registrable(int32(le.Uint32(raw[4*k:])))
		if err != nil {
			for _, f := range files[:k] {
				if f != nil {
					f.DecRef(c.ctx)
				}
			}
			return err
		}
		files[k] = file
	}
	c.r.files = files
	return nil
}

// skipFile in an update leaves a registered file as it is.
const skipFile = -2

// updateFiles replaces registered files and returns how many.
func (c *call) updateFiles(offset uint32, addr uint64, n uint32) (int, error) {
	r := c.r
	if r.files == nil {
		return 0, linuxerr.ENXIO
	}
	if uint64(offset)+uint64(n) > uint64(len(r.files)) {
		return 0, linuxerr.EINVAL
	}
	raw := make([]byte, 4*n)
	if _, err := c.t.CopyInBytes(hostarch.Addr(addr), raw); err != nil {
		return 0, err
	}
	for k := range int(n) {
		fd := int32(le.Uint32(raw[4*k:]))
		if fd == skipFile {
			continue
		}
		file, err := c.registrable(fd)
		if err != nil {
			if k > 0 {
				return k, nil
			}
			return 0, err
		}
		if old := r.files[int(offset)+k]; old != nil {
			old.DecRef(c.ctx)
		}
		r.files[int(offset)+k] = file
	}
	return int(n), nil
}

// replaceFile puts a file with its reference, or nil, in the place of a
// registered one.
func (c *call) replaceFile(slot int, file *vfs.FileDescription) error {
	if c.r.files == nil {
		return linuxerr.ENXIO
	}
	if slot < 0 || slot >= len(c.r.files) {
		return linuxerr.EINVAL
	}
	old := c.r.files[slot]
	if old == nil && file == nil {
		return linuxerr.EBADF
	}
	c.r.files[slot] = file
	if old != nil {
		old.DecRef(c.ctx)
	}
	return nil
}

func filesUpdate(c *call, q *request) (int32, bool) {
	if q.flags&sqeFixedFile != 0 || q.opFlags != 0 || q.sqe.file != 0 || q.n == 0 {
		return errno(linuxerr.EINVAL), false
	}
	n, err := c.updateFiles(uint32(q.off), q.addr, q.n)
	if err != nil {
		return errno(err), false
	}
	return int32(n), false
}

func (c *call) registerEventFD(addr hostarch.Addr, n uint32) error {
	var raw [4]byte
	if n != 1 {
		return linuxerr.EINVAL
	}
	if _, err := c.t.CopyInBytes(addr, raw[:]); err != nil {
		return err
	}
	file := c.t.GetFile(int32(le.Uint32(raw[:])))
	if file == nil {
		return linuxerr.EBADF
	}
	_, ok := file.Impl().(*eventfd.EventFileDescription)
	r := c.r
	r.mu.Lock()
	busy := r.eventFD != nil
	if ok && !busy {
		r.eventFD = file
	}
	r.mu.Unlock()
	switch {
	case !ok:
		file.DecRef(c.ctx)
		return linuxerr.EINVAL
	case busy:
		file.DecRef(c.ctx)
		return linuxerr.EBUSY
	}
	return nil
}

// probe tells which operations there are: struct io_uring_probe, 16 bytes, and 8
// bytes for each operation.
func (c *call) probe(addr hostarch.Addr, n uint32) error {
	const headBytes, opBytes, supported = 16, 8, 1
	if n > 256 {
		return linuxerr.EINVAL
	}
	raw := make([]byte, headBytes+opBytes*n)
	if _, err := c.t.CopyInBytes(addr, raw); err != nil {
		return err
	}
	for _, b := range raw {
		if b != 0 {
			return linuxerr.EINVAL
		}
	}
	n = min(n, opLast)
	raw[0], raw[1] = opLast-1, byte(n)
	for op := range n {
		b := raw[headBytes+opBytes*op:]
		b[0] = byte(op)
		if operations[op].run != nil || op == opLinkTimeout {
			le.PutUint16(b[2:], supported)
		}
	}
	_, err := c.t.CopyOutBytes(addr, raw)
	return err
}

// maxWorkers answers who wants to bound the threads of a ring: there are none
// to be bounded.
func (c *call) maxWorkers(addr hostarch.Addr, n uint32) error {
	if n != 2 {
		return linuxerr.EINVAL
	}
	var raw [8]byte
	if _, err := c.t.CopyInBytes(addr, raw[:]); err != nil {
		return err
	}
	le.PutUint32(raw[:], 1)
	le.PutUint32(raw[4:], 1)
	_, err := c.t.CopyOutBytes(addr, raw[:])
	return err
}

// restrictions are what a ring allows, once it is enabled.
type restrictions struct {
	register uint64 // bits by what io_uring_register may do
	ops      uint64 // bits by operation
	allowed  uint8  // flags of submissions
	required uint8
}

func (rs *restrictions) check(s *sqe) error {
	if rs == nil {
		return nil
	}
	if rs.ops&(1<<s.op) == 0 || s.flags&rs.required != rs.required || s.flags&^(rs.allowed|rs.required) != 0 {
		return linuxerr.EACCES
	}
	return nil
}

// restrict reads n struct io_uring_restriction of 16 bytes: what, value.
func (c *call) restrict(addr hostarch.Addr, n uint32) error {
	const (
		restrictRegister = 0
		restrictOp       = 1
		restrictAllowed  = 2
		restrictRequired = 3
		most             = 64
	)
	switch {
	case !c.r.disabled:
		return linuxerr.EBADFD
	case c.r.restrictions != nil:
		return linuxerr.EBUSY
	case n == 0 || n > most:
		return linuxerr.EINVAL
	}
	raw := make([]byte, 16*n)
	if _, err := c.t.CopyInBytes(addr, raw); err != nil {
		return err
	}
	rs := &restrictions{}
	for ; len(raw) > 0; raw = raw[16:] {
		value := raw[2]
		switch what := le.Uint16(raw); {
		case what == restrictRegister && value < 64:
			rs.register |= 1 << value
		case what == restrictOp && value < opLast:
			rs.ops |= 1 << value
		case what == restrictAllowed:
			rs.allowed = value
		case what == restrictRequired:
			rs.required = value
		default:
			return linuxerr.EINVAL
		}
	}
	c.r.restrictions = rs
	return nil
}
