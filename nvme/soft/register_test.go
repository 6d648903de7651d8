package soft

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"runsc-fs/nvme/spec"
)

// rawHost drives a controller without the driver.
type rawHost struct {
	*testing.T
	c    *Controller
	mem  []byte
	tail uint32
	head uint32
}

const (
	rawASQ   = 0x1000 // offsets in the arena
	rawACQ   = 0x2000
	rawData  = 0x3000
	rawSQ    = 0x10000
	rawCQ    = 0x20000
	rawDepth = 16
)

func newRawHost(t *testing.T) *rawHost {
	t.Helper()
	arena := newArena(t)
	c, err := New(arena, []Backing{newMem(t, 1<<20)}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	h := &rawHost{T: t, c: c, mem: arena.Bytes()}
	c.Write32(spec.RegAQA, spec.AQA(rawDepth, rawDepth))
	c.Write64(spec.RegASQ, dmaBase+rawASQ)
	c.Write64(spec.RegACQ, dmaBase+rawACQ)
	c.Write32(spec.RegCC, spec.SQESLog2<<spec.CCIOSQESShift|spec.CQESLog2<<spec.CCIOCQESShift|spec.CCEN)
	if v := c.Read32(spec.RegCSTS); v != spec.CSTSRDY {
		t.Fatalf("CSTS %#x after enabling", v)
	}
	return h
}

// admin carries out one admin command and returns its status.
func (h *rawHost) admin(cmd spec.SubmissionEntry) spec.Status {
	h.Helper()
	sq, _ := mapQueue[spec.SubmissionEntry](h.c, dmaBase+rawASQ, rawDepth)
	cq, _ := mapQueue[spec.CompletionEntry](h.c, dmaBase+rawACQ, rawDepth)
	sq[h.tail] = cmd
	h.tail = (h.tail + 1) % rawDepth
	h.c.Write32(spec.SQTailDoorbell(0, 0), h.tail)
	e := cq[h.head]
	h.head = (h.head + 1) % rawDepth
	h.c.Write32(spec.CQHeadDoorbell(0, 0), h.head)
	if uint16(e.DW3) != cmd.CID() {
		h.Fatalf("completion of command %#x, want %#x", uint16(e.DW3), cmd.CID())
	}
	return spec.Status(e.DW3 >> 17).Code()
}

func TestQueueCommandsAreChecked(t *testing.T) {
	h := newRawHost(t)
	cq := func(qid, entries int, addr uint64, flags uint32) spec.SubmissionEntry {
		return spec.SubmissionEntry{CDW0: spec.AdminCreateIOCQ, PRP1: addr, CDW10: uint32(entries-1)<<16 | uint32(qid), CDW11: flags}
	}
	sq := func(qid, entries, cqid int, addr uint64) spec.SubmissionEntry {
		return spec.SubmissionEntry{CDW0: spec.AdminCreateIOSQ, PRP1: addr, CDW10: uint32(entries-1)<<16 | uint32(qid), CDW11: uint32(cqid)<<16 | 1}
	}
	del := func(opc uint32, qid int) spec.SubmissionEntry {
		return spec.SubmissionEntry{CDW0: opc, CDW10: uint32(qid)}
	}
	queues := spec.SubmissionEntry{CDW0: spec.AdminSetFeatures, CDW10: spec.FeatureNumberOfQueues, CDW11: 3<<16 | 3}
	for i, c := range []struct {
		cmd  spec.SubmissionEntry
		want spec.Status
	}{
		{queues, spec.Success},
		{cq(0, 8, dmaBase+rawCQ, 1), spec.InvalidQueueID},
		{cq(5, 8, dmaBase+rawCQ, 1), spec.InvalidQueueID}, // four were granted
		{cq(1, 1, dmaBase+rawCQ, 1), spec.InvalidQueueSize},
		{cq(1, 2000, dmaBase+rawCQ, 1), spec.InvalidQueueSize},
		{cq(1, 8, dmaBase+rawCQ, 0), spec.InvalidField},
		{cq(1, 8, dmaBase+rawCQ+64, 1), spec.PRPOffsetInvalid},
		{cq(1, 8, 0, 1), spec.DataTransferError},
		{cq(1, 8, dmaBase+uint64(len(h.mem))-0x1000, 1), spec.Success},
		{cq(1, 8, dmaBase+rawCQ, 1), spec.InvalidQueueID}, // exists
		{queues, spec.CommandSequenceError},
		{sq(1, 8, 2, dmaBase+rawSQ), spec.CQInvalid},
		{sq(1, 8, 0, dmaBase+rawSQ), spec.CQInvalid},
		{sq(1, 8, 1, ^uint64(0)&^0xfff), spec.DataTransferError},
		{sq(1, 8, 1, dmaBase+rawSQ), spec.Success},
		{sq(1, 8, 1, dmaBase+rawSQ), spec.InvalidQueueID},
		{sq(2, 8, 1, dmaBase+rawSQ+0x1000), spec.Success}, // two share one CQ
		{del(spec.AdminDeleteIOCQ, 1), spec.InvalidQueueDeletion},
		{del(spec.AdminDeleteIOSQ, 0), spec.InvalidQueueID},
		{del(spec.AdminDeleteIOSQ, 9), spec.InvalidQueueID},
		{del(spec.AdminDeleteIOSQ, 1), spec.Success},
		{del(spec.AdminDeleteIOSQ, 1), spec.InvalidQueueID},
		{del(spec.AdminDeleteIOSQ, 2), spec.Success},
		{del(spec.AdminDeleteIOCQ, 1), spec.Success},
		{del(spec.AdminDeleteIOCQ, 1), spec.InvalidQueueID},
		{spec.SubmissionEntry{CDW0: 0x7f}, spec.InvalidOpcode},
		{spec.SubmissionEntry{CDW0: spec.AdminIdentify | 1<<14, CDW10: 1, PRP1: dmaBase + rawData}, spec.InvalidField}, // SGL
		{spec.SubmissionEntry{CDW0: spec.AdminIdentify, CDW10: 1, PRP1: dmaBase + rawData + 2}, spec.PRPOffsetInvalid},
		{spec.SubmissionEntry{CDW0: spec.AdminIdentify, CDW10: 1, PRP1: dmaBase - 4096}, spec.DataTransferError},
		{spec.SubmissionEntry{CDW0: spec.AdminIdentify, CDW10: 1, PRP1: dmaBase + rawData + 4, PRP2: 4096}, spec.DataTransferError},
		{spec.SubmissionEntry{CDW0: spec.AdminIdentify, CDW10: 1, PRP1: dmaBase + rawData + 4, PRP2: dmaBase + rawData + 8}, spec.PRPOffsetInvalid},
		{spec.SubmissionEntry{CDW0: spec.AdminIdentify, CDW10: 9, PRP1: dmaBase + rawData}, spec.InvalidField},
		{spec.SubmissionEntry{CDW0: spec.AdminIdentify, CDW10: 0, NSID: 2, PRP1: dmaBase + rawData}, spec.InvalidNamespace},
		{spec.SubmissionEntry{CDW0: spec.AdminGetFeatures, CDW10: 0x55}, spec.InvalidField},
		{spec.SubmissionEntry{CDW0: spec.AdminSetFeatures, CDW10: 1<<31 | spec.FeatureTemperature}, spec.FeatureNotSaveable},
	} {
		c.cmd.SetCID(uint16(i))
		if got := h.admin(c.cmd); got != c.want {
			t.Errorf("command %d, %s: %v, want %v", i, spec.AdminCommandName(c.cmd.OPC()), got, c.want)
		}
	}
}

func TestAsyncEventRequestsAreHeld(t *testing.T) {
	h := newRawHost(t)
	for i := range aerl + 1 {
		sq, _ := mapQueue[spec.SubmissionEntry](h.c, dmaBase+rawASQ, rawDepth)
		sq[h.tail] = spec.SubmissionEntry{CDW0: spec.AdminAsyncEventReq | uint32(i)<<16}
		h.tail++
		h.c.Write32(spec.SQTailDoorbell(0, 0), h.tail)
	}
	cmd := spec.SubmissionEntry{CDW0: spec.AdminAsyncEventReq}
	cmd.SetCID(77)
	if got := h.admin(cmd); got != spec.AERLimitExceeded {
		t.Errorf("one request too many: %v", got)
	}
}

func TestEnableChecksItsRegisters(t *testing.T) {
	for name, set := range map[string]func(c *Controller){
		"no queues":        func(c *Controller) { c.Write32(spec.RegAQA, 0) },
		"queue outside":    func(c *Controller) { c.Write64(spec.RegASQ, 0x1000) },
		"unaligned queue":  func(c *Controller) { c.Write64(spec.RegACQ, dmaBase+rawACQ+16) },
		"other page size":  func(c *Controller) { c.Write32(spec.RegCC, 1<<spec.CCMPSShift) },
		"other I/O set":    func(c *Controller) { c.Write32(spec.RegCC, 6<<spec.CCCSSShift) },
		"beyond the arena": func(c *Controller) { c.Write64(spec.RegACQ, dmaBase+uint64(len(c.mem))) },
	} {
		h := newRawHost(t)
		h.c.Write32(spec.RegCC, 0)
		if v := h.c.Read32(spec.RegCSTS); v != 0 {
			t.Fatalf("CSTS %#x after disabling", v)
		}
		set(h.c)
		h.c.Write32(spec.RegCC, h.c.Read32(spec.RegCC)|spec.CCEN)
		if v := h.c.Read32(spec.RegCSTS); v&spec.CSTSCFS == 0 {
			t.Errorf("%s: CSTS %#x, not fatal", name, v)
		}
	}
}

// TestRandomCommandsDoNoHarm lets loose random commands, registers and queue
// contents on the controller. It may refuse everything, but must not panic,
// hang or touch memory outside the arena, which would be a fault.
func TestRandomCommandsDoNoHarm(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 4))
	h := newRawHost(t)
	done := func() uint64 {
		h.c.mu.Lock()
		defer h.c.mu.Unlock()
		return min(h.c.gone.reads, h.c.gone.writes)
	}
	addr := func() uint64 {
		switch rng.IntN(6) {
		case 0:
			return rng.Uint64()
		case 1:
			return dmaBase + uint64(len(h.mem)) - uint64(rng.IntN(8192))
		case 2:
			return uint64(rng.IntN(1 << 20))
		case 3:
			return dmaBase + uint64(rng.IntN(len(h.mem)))&^3
		}
		return dmaBase + uint64(0x100000+4096*rng.IntN(64))
	}
	fill := func(entries []spec.SubmissionEntry) {
		for i := range entries {
			entries[i] = spec.SubmissionEntry{
				CDW0: uint32(rng.IntN(16)) | rng.Uint32()&0xffff0000, NSID: uint32(rng.IntN(3)), PRP1: addr(), PRP2: addr(),
				CDW10: uint32(rng.IntN(8)) | uint32(rng.IntN(4))<<16, CDW11: uint32(rng.IntN(2)) | uint32(rng.IntN(4))<<16, CDW12: uint32(rng.IntN(300)),
			}
			switch rng.IntN(16) {
			case 0:
				entries[i].CDW0 = rng.Uint32()
			case 1:
				entries[i].CDW10, entries[i].CDW11, entries[i].CDW12 = rng.Uint32(), rng.Uint32(), rng.Uint32()
			}
		}
	}
	opcodes := []uint32{spec.CmdFlush, spec.CmdWrite, spec.CmdRead, spec.CmdCompare, spec.CmdWriteZeroes, spec.CmdDSM}
	fillIO := func(entries []spec.SubmissionEntry) {
		for i := range entries {
			e := &entries[i]
			e.CDW0 = opcodes[rng.IntN(len(opcodes))] | rng.Uint32()&0xffff0000
			e.NSID = 1 + uint32(rng.IntN(20)/19)
			e.CDW10, e.CDW11, e.CDW12 = uint32(rng.IntN(2100)), uint32(rng.IntN(30)/29), uint32(rng.IntN(2)*rng.IntN(2100))
			if e.OPC() == spec.CmdDSM {
				e.CDW10, e.CDW11 = uint32(rng.IntN(256)), rng.Uint32()
			}
		}
	}
	for range 10000 {
		for i := 0; i < 64; i++ { // lists that lead anywhere
			binary.LittleEndian.PutUint64(h.mem[0x100000+4096*rng.IntN(64)+8*rng.IntN(512):], addr())
		}
		for _, off := range []uint64{rawASQ, rawSQ} {
			entries, _ := mapQueue[spec.SubmissionEntry](h.c, dmaBase+off, rawDepth)
			fill(entries)
			if off == rawSQ && rng.IntN(8) != 0 {
				fillIO(entries)
			}
		}
		switch rng.IntN(12) {
		case 0:
			h.c.Write32(uint32(rng.IntN(0x40))&^3, rng.Uint32())
		case 1:
			h.c.Write32(spec.RegCC, 0)
			h.c.Write32(spec.RegAQA, spec.AQA(rawDepth, rawDepth))
			h.c.Write64(spec.RegASQ, dmaBase+rawASQ)
			h.c.Write64(spec.RegACQ, dmaBase+rawACQ)
			h.c.Write32(spec.RegCC, spec.SQESLog2<<spec.CCIOSQESShift|spec.CQESLog2<<spec.CCIOCQESShift|spec.CCEN)
			entries, _ := mapQueue[spec.SubmissionEntry](h.c, dmaBase+rawASQ, rawDepth)
			entries[0] = spec.SubmissionEntry{CDW0: spec.AdminCreateIOCQ, PRP1: dmaBase + rawCQ, CDW10: 15<<16 | 1, CDW11: 1}
			entries[1] = spec.SubmissionEntry{CDW0: spec.AdminCreateIOSQ, PRP1: dmaBase + rawSQ, CDW10: 15<<16 | 1, CDW11: 1<<16 | 1}
			h.c.Write32(spec.SQTailDoorbell(0, 0), 2)
		default:
			qid := uint16(rng.IntN(4))
			h.c.Write32(spec.SQTailDoorbell(qid, 0), uint32(rng.IntN(rawDepth+1)))
			h.c.Write32(spec.CQHeadDoorbell(qid, 0), uint32(rng.IntN(rawDepth+1)))
			h.c.Read32(uint32(rng.IntN(0x2000)) &^ 3)
		}
	}
	h.c.Write32(spec.RegCC, 0)
	if done() == 0 {
		t.Error("no read or no write was ever carried out: the test does not get deep enough")
	}
}
