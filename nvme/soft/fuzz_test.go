package soft

import (
	"encoding/binary"
	"testing"
	"time"

	"runsc-fs/nvme/spec"
)

// fuzzEntryBytes is what one command takes of the fuzz input.
const fuzzEntryBytes = 24

// FuzzHost: whatever a host sends, the controller completes or refuses it. It
// does not panic, hang or touch memory outside the arena.
func FuzzHost(f *testing.F) {
	command := func(queue, opc, flags, nsid byte, cdw10, cdw11, cdw12 uint32, places ...byte) []byte {
		b := []byte{queue, opc, flags, nsid}
		for _, v := range []uint32{cdw10, cdw11, cdw12} {
			b = binary.LittleEndian.AppendUint32(b, v)
		}
		b = append(b, places...)
		return append(b, make([]byte, fuzzEntryBytes-len(b))...)
	}
	f.Add(command(1, spec.CmdRead, 0, 1, 0, 0, 31, 0, 4, 0, 5))
	f.Add(command(1, spec.CmdWrite, 0x40, 1, 0, 0, 31, 1, 0, 8, 0, 0x30, 0, 32))
	f.Add(command(1, spec.CmdCopy, 0, 1, 512, 0, 3, 0, 8))
	f.Add(command(1, spec.CmdDSM, 0, 1, 9, 4, 0, 0, 8))
	f.Add(command(1, spec.CmdVerify, 0, 1, 0, 0, 77))
	f.Add(command(1, spec.CmdCompare, 0x40, 2, 0, 0, 77, 0, 5, 1, 0, 0x20, 0, 16))
	f.Add(command(0, spec.AdminGetLogPage, 0, 255, 0x00ff0002, 0, 0, 0, 4))
	f.Add(command(0, spec.AdminDoorbellConfig, 0, 0, 0, 0, 0, 0, 6, 0, 7))
	f.Add(append(command(0, spec.AdminDeleteIOSQ, 0, 0, 1, 0, 0), command(0, spec.AdminCreateIOSQ, 0, 0, 0x00070001, 0x00010001, 0, 0, 4)...))
	f.Fuzz(func(t *testing.T, data []byte) {
		defer time.AfterFunc(30*time.Second, func() { panic("it does not end") }).Stop()
		h := newRawHost(t)
		h.c.opts.DoorbellBuffer = len(data)%2 == 0
		create := []spec.SubmissionEntry{
			{CDW0: spec.AdminCreateIOCQ, PRP1: dmaBase + rawCQ, CDW10: (rawDepth-1)<<16 | 1, CDW11: 1},
			{CDW0: spec.AdminCreateIOSQ, PRP1: dmaBase + rawSQ, CDW10: (rawDepth-1)<<16 | 1, CDW11: 1<<16 | 1},
		}
		for i, cmd := range create {
			cmd.SetCID(uint16(i))
			if status := h.admin(cmd); status != spec.Success {
				t.Fatal(status)
			}
		}
		// The host's memory has the input everywhere, and lists of addresses.
		for i := range 16 {
			copy(h.mem[0x40000+i*len(data):], data)
		}
		for i := range 4 * 512 {
			binary.LittleEndian.PutUint64(h.mem[0x8000+8*i:], dmaBase+0x40000+0x1000*uint64(i%48))
		}
		place := func(a, b byte) uint64 {
			switch a & 7 {
			case 1:
				return dmaBase + 0x8000 + 8*uint64(b)
			case 2:
				return uint64(b) << 32
			case 3:
				return dmaBase + uint64(len(h.mem)) - uint64(b)*64
			case 4:
				return dmaBase + 0x40000 + uint64(b)
			}
			return dmaBase + 0x1000*uint64(b)
		}
		tails := [2]uint32{h.tail, 0}
		for n := 0; len(data) >= fuzzEntryBytes && n < 64; n++ {
			le := binary.LittleEndian
			e := spec.SubmissionEntry{
				CDW0: uint32(data[1]) | uint32(data[2])<<8 | uint32(n)<<16, NSID: uint32(int32(int8(data[3]))),
				CDW10: le.Uint32(data[4:]), CDW11: le.Uint32(data[8:]), CDW12: le.Uint32(data[12:]),
				PRP1: place(data[16], data[17]), PRP2: place(data[18], data[19]),
			}
			if e.CDW0&spec.PSDTMask != 0 {
				e.SetSGL(spec.SGLDescriptor{Address: e.PRP1, ID: data[20], Bytes: uint32(data[21])<<8 | uint32(data[22])})
			}
			q := int(data[0] & 1)
			sq, _ := mapQueue[spec.SubmissionEntry](h.c, dmaBase+[2]uint64{rawASQ, rawSQ}[q], rawDepth)
			sq[tails[q]] = e
			tails[q] = (tails[q] + 1) % rawDepth
			h.c.Write32(spec.SQTailDoorbell(uint16(q), 0), tails[q])
			h.c.Write32(spec.CQHeadDoorbell(uint16(q), 0), uint32(data[23])%rawDepth)
			data = data[fuzzEntryBytes:]
		}
		h.c.Write32(spec.RegCC, 0)
		if v := h.c.Read32(spec.RegCSTS); v&spec.CSTSRDY != 0 {
			t.Errorf("CSTS %#x after disabling", v)
		}
	})
}
