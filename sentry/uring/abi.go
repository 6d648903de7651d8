package uring

import "encoding/binary"

var le = binary.LittleEndian

// Operations, IORING_OP_*.
const (
	opNop            = 0
	opReadv          = 1
	opWritev         = 2
	opFsync          = 3
	opReadFixed      = 4
	opWriteFixed     = 5
	opPollAdd        = 6
	opPollRemove     = 7
	opSyncFileRange  = 8
	opSendmsg        = 9
	opRecvmsg        = 10
	opTimeout        = 11
	opTimeoutRemove  = 12
	opAccept         = 13
	opAsyncCancel    = 14
	opLinkTimeout    = 15
	opConnect        = 16
	opFallocate      = 17
	opOpenat         = 18
	opClose          = 19
	opFilesUpdate    = 20
	opStatx          = 21
	opRead           = 22
	opWrite          = 23
	opFadvise        = 24
	opMadvise        = 25
	opSend           = 26
	opRecv           = 27
	opOpenat2        = 28
	opEpollCtl       = 29
	opSplice         = 30
	opProvideBuffers = 31
	opRemoveBuffers  = 32
	opTee            = 33
	opShutdown       = 34
	opRenameat       = 35
	opUnlinkat       = 36
	opMkdirat        = 37
	opSymlinkat      = 38
	opLinkat         = 39
	opMsgRing        = 40
	opFsetxattr      = 41
	opSetxattr       = 42
	opFgetxattr      = 43
	opGetxattr       = 44
	opSocket         = 45
	opFtruncate      = 55
	opBind           = 56
	opListen         = 57
	opLast           = 58
)

// Flags of submissions, IOSQE_*.
const (
	sqeFixedFile    = 1 << 0
	sqeDrain        = 1 << 1
	sqeLink         = 1 << 2
	sqeHardLink     = 1 << 3
	sqeAsync        = 1 << 4
	sqeBufferSelect = 1 << 5
	sqeSkipSuccess  = 1 << 6
	sqeKnown        = 1<<7 - 1
)

// Flags of io_uring_setup, IORING_SETUP_*.
const (
	setupIOPoll       = 1 << 0
	setupSQPoll       = 1 << 1
	setupSQAff        = 1 << 2
	setupCQSize       = 1 << 3
	setupClamp        = 1 << 4
	setupAttachWQ     = 1 << 5
	setupDisabled     = 1 << 6
	setupSubmitAll    = 1 << 7
	setupCoopTaskrun  = 1 << 8
	setupTaskrunFlag  = 1 << 9
	setupSingleIssuer = 1 << 12
	setupDeferTaskrun = 1 << 13
	setupNoSQArray    = 1 << 16
	setupKnown        = setupIOPoll | setupSQPoll | setupSQAff | setupCQSize | setupClamp | setupAttachWQ | setupDisabled |
		setupSubmitAll | setupCoopTaskrun | setupTaskrunFlag | setupSingleIssuer | setupDeferTaskrun | setupNoSQArray
)

// What applications may rely on, IORING_FEAT_*.
const (
	featSingleMmap     = 1 << 0
	featNoDrop         = 1 << 1
	featRWCurPos       = 1 << 3
	featCurPersonality = 1 << 4
	featFastPoll       = 1 << 5
	featPoll32Bits     = 1 << 6
	featSQPollNonfixed = 1 << 7
	featExtArg         = 1 << 8
	featCQESkip        = 1 << 11
	featLinkedFile     = 1 << 12
	features           = featSingleMmap | featNoDrop | featRWCurPos | featCurPersonality | featFastPoll | featPoll32Bits |
		featSQPollNonfixed | featExtArg | featCQESkip | featLinkedFile
)

// Flags of io_uring_enter, IORING_ENTER_*.
const (
	enterGetEvents = 1 << 0
	enterSQWakeup  = 1 << 1
	enterSQWait    = 1 << 2
	enterExtArg    = 1 << 3
	enterKnown     = enterGetEvents | enterSQWakeup | enterSQWait | enterExtArg
)

// Bits of the flags word of the submission ring, IORING_SQ_*.
const (
	sqNeedWakeup = 1 << 0
	sqCQOverflow = 1 << 1
)

// cqEventFDDisabled is IORING_CQ_EVENTFD_DISABLED.
const cqEventFDDisabled = 1

// cqeMore is IORING_CQE_F_MORE.
const cqeMore = 1 << 1

// Limits of Linux.
const (
	maxEntries   = 1 << 15
	maxCQEntries = 1 << 16
	maxBuffers   = 1 << 14
	maxFiles     = 1 << 15
)

// The memory of a ring. Every field is where io_uring_params says it is; Linux
// has them at the same places.
const (
	offSQHead     = 0
	offSQTail     = 64
	offCQHead     = 128
	offCQTail     = 192
	offSQMask     = 256
	offCQMask     = 260
	offSQEntries  = 264
	offCQEntries  = 268
	offSQDropped  = 272
	offSQFlags    = 276
	offCQFlags    = 280
	offCQOverflow = 284
	offCQEs       = 320
	cqeBytes      = 16
	sqeBytes      = 64
)

// Offsets for mmap(2).
const (
	mapSQRing = 0
	mapCQRing = 0x8000000
	mapSQEs   = 0x10000000
)

// sqe is struct io_uring_sqe. Fields have the names of their first use; the
// operations say what they mean to them.
type sqe struct {
	op, flags   uint8
	prio        uint16
	fd          int32
	off         uint64
	addr        uint64
	n           uint32
	opFlags     uint32
	data        uint64
	bufIndex    uint16
	personality uint16
	file        int32 // splice_fd_in, file_index
	addr3       uint64
}

func (s *sqe) get(b []byte) {
	_ = b[sqeBytes-1]
	s.op, s.flags, s.prio = b[0], b[1], le.Uint16(b[2:])
	s.fd = int32(le.Uint32(b[4:]))
	s.off, s.addr = le.Uint64(b[8:]), le.Uint64(b[16:])
	s.n, s.opFlags = le.Uint32(b[24:]), le.Uint32(b[28:])
	s.data = le.Uint64(b[32:])
	s.bufIndex, s.personality = le.Uint16(b[40:]), le.Uint16(b[42:])
	s.file = int32(le.Uint32(b[44:]))
	s.addr3 = le.Uint64(b[48:])
}

// cqe is struct io_uring_cqe.
type cqe struct {
	data  uint64
	res   int32
	flags uint32
}

func (c *cqe) put(b []byte) {
	le.PutUint64(b, c.data)
	le.PutUint32(b[8:], uint32(c.res))
	le.PutUint32(b[12:], c.flags)
}

// params is struct io_uring_params.
type params struct {
	sqEntries, cqEntries, flags, sqCPU, sqIdleMs, features, wqFD uint32
	reserved                                                     [3]uint32
	arrayOff                                                     uint32
}

const paramsBytes = 120

func (p *params) get(b []byte) {
	p.sqEntries, p.cqEntries, p.flags = le.Uint32(b), le.Uint32(b[4:]), le.Uint32(b[8:])
	p.sqCPU, p.sqIdleMs, p.features, p.wqFD = le.Uint32(b[12:]), le.Uint32(b[16:]), le.Uint32(b[20:]), le.Uint32(b[24:])
	for k := range p.reserved {
		p.reserved[k] = le.Uint32(b[28+4*k:])
	}
}

func (p *params) put(b []byte) {
	clear(b)
	for k, v := range []uint32{p.sqEntries, p.cqEntries, p.flags, p.sqCPU, p.sqIdleMs, p.features, p.wqFD, 0, 0, 0,
		offSQHead, offSQTail, offSQMask, offSQEntries, offSQFlags, offSQDropped, p.arrayOff, 0, 0, 0,
		offCQHead, offCQTail, offCQMask, offCQEntries, offCQOverflow, offCQEs, offCQFlags} {
		le.PutUint32(b[4*k:], v)
	}
}
