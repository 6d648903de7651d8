package nvmetest

import (
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"runsc-fs/nvme"
	"runsc-fs/nvme/spec"
)

// Host drives a controller without the driver: commands go to it as they are,
// right or wrong, one at a time. It uses the arena by fixed offsets, as follows,
// and nobody else may use it.
//
//	0           admin queues, I/O queues
//	HostLists   memory for PRP lists and SGL segments
//	hostReplies a page for replies to admin commands
//	HostData    memory for data, with untouched memory on both sides
type Host struct {
	tr    nvme.Transport
	mem   []byte
	admin rawQueue
	io    rawQueue
}

// Offsets and sizes of a Host's memory.
const (
	HostLists      = 0x10000
	HostListsBytes = 16 * nvme.PageSizeBytes
	HostData       = 0x100000
	HostDataBytes  = 64 * nvme.PageSizeBytes
	hostReplies    = 0x40000
	hostGuardBytes = 16 * nvme.PageSizeBytes

	rawDepth = 16
)

// Result is the completion of a command.
type Result struct {
	Status spec.Status // with DNR
	DW0    uint32
}

// rawQueue is a queue pair of rawDepth entries.
type rawQueue struct {
	id       uint16
	sq       []spec.SubmissionEntry
	cq       []spec.CompletionEntry
	sqAddr   uint64
	cqAddr   uint64
	tail     uint32
	head     uint32
	phase    uint32
	cid      uint16
	dstrdLog uint
}

// NewHost enables a controller with an admin queue and one I/O queue pair.
func NewHost(tr nvme.Transport) (*Host, error) {
	h := &Host{tr: tr, mem: tr.Arena().Bytes()}
	dstrd := spec.CAP(tr.Read64(spec.RegCAP)).DSTRD()
	h.admin = h.queue(0, 0, dstrd)
	h.io = h.queue(1, 2*nvme.PageSizeBytes, dstrd)
	tr.Write32(spec.RegCC, 0)
	if err := h.waitReady(0); err != nil {
		return nil, err
	}
	tr.Write32(spec.RegAQA, spec.AQA(rawDepth, rawDepth))
	tr.Write64(spec.RegASQ, h.admin.sqAddr)
	tr.Write64(spec.RegACQ, h.admin.cqAddr)
	tr.Write32(spec.RegCC, spec.SQESLog2<<spec.CCIOSQESShift|spec.CQESLog2<<spec.CCIOCQESShift|spec.CCEN)
	if err := h.waitReady(spec.CSTSRDY); err != nil {
		return nil, err
	}
	for _, cmd := range []spec.SubmissionEntry{
		{CDW0: spec.AdminCreateIOCQ, PRP1: h.io.cqAddr, CDW10: (rawDepth-1)<<16 | 1, CDW11: spec.CDW11QueuePC},
		{CDW0: spec.AdminCreateIOSQ, PRP1: h.io.sqAddr, CDW10: (rawDepth-1)<<16 | 1, CDW11: 1<<16 | spec.CDW11QueuePC},
	} {
		r, err := h.Admin(cmd)
		if err != nil {
			return nil, err
		}
		if r.Status != spec.Success {
			return nil, fmt.Errorf("nvmetest: %s: %v", spec.AdminCommandName(cmd.OPC()), r.Status)
		}
	}
	return h, nil
}

func (h *Host) queue(id uint16, off int, dstrd uint) rawQueue {
	sq, cq := h.mem[off:], h.mem[off+nvme.PageSizeBytes:]
	clear(cq[:nvme.PageSizeBytes])
	return rawQueue{
		id: id, phase: 1, dstrdLog: dstrd,
		sq:     unsafe.Slice((*spec.SubmissionEntry)(unsafe.Pointer(&sq[0])), rawDepth),
		cq:     unsafe.Slice((*spec.CompletionEntry)(unsafe.Pointer(&cq[0])), rawDepth),
		sqAddr: h.Addr(off), cqAddr: h.Addr(off + nvme.PageSizeBytes),
	}
}

func (h *Host) waitReady(want uint32) error {
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if h.tr.Read32(spec.RegCSTS)&spec.CSTSRDY == want {
			return nil
		}
	}
	return fmt.Errorf("nvmetest: CSTS is %#x", h.tr.Read32(spec.RegCSTS))
}

// Addr is the device address of an offset in the arena.
func (h *Host) Addr(off int) uint64 { return h.tr.DMABase() + uint64(off) }

// Mem is the arena from an offset on.
func (h *Host) Mem(off int) []byte { return h.mem[off:] }

// Admin carries out an admin command.
func (h *Host) Admin(cmd spec.SubmissionEntry) (Result, error) { return h.run(&h.admin, cmd) }

// IO carries out an I/O command.
func (h *Host) IO(cmd spec.SubmissionEntry) (Result, error) { return h.run(&h.io, cmd) }

func (h *Host) run(q *rawQueue, cmd spec.SubmissionEntry) (Result, error) {
	q.cid++
	cmd.SetCID(q.cid)
	q.sq[q.tail] = cmd
	q.tail = (q.tail + 1) % rawDepth
	h.tr.Write32(spec.SQTailDoorbell(q.id, q.dstrdLog), q.tail)
	e := &q.cq[q.head]
	end := time.Now().Add(20 * time.Second)
	for spins := 0; atomic.LoadUint32(&e.DW3)>>16&1 != q.phase; spins++ {
		if spins > 1000 {
			time.Sleep(20 * time.Microsecond)
			if time.Now().After(end) {
				return Result{}, fmt.Errorf("nvmetest: %s: no completion", h.name(q, &cmd))
			}
		}
	}
	dw0, dw2, dw3 := e.DW0, e.DW2, e.DW3
	if q.head = (q.head + 1) % rawDepth; q.head == 0 {
		q.phase ^= 1
	}
	h.tr.Write32(spec.CQHeadDoorbell(q.id, q.dstrdLog), q.head)
	if uint16(dw3) != q.cid || uint16(dw2>>16) != q.id || uint32(uint16(dw2)) != q.tail {
		return Result{}, fmt.Errorf("nvmetest: %s: completion of command %#x of queue %d, head %d; sent was %#x, tail %d",
			h.name(q, &cmd), uint16(dw3), dw2>>16, uint16(dw2), q.cid, q.tail)
	}
	return Result{Status: spec.Status(dw3 >> 17), DW0: dw0}, nil
}

func (h *Host) name(q *rawQueue, cmd *spec.SubmissionEntry) string {
	if q.id == 0 {
		return spec.AdminCommandName(cmd.OPC())
	}
	return spec.IOCommandName(cmd.OPC())
}
