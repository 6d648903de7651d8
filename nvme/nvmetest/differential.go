package nvmetest

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"testing"

	"runsc-fs/nvme"
	"runsc-fs/nvme/spec"
)

// Peer is one side of a differential test.
type Peer struct {
	Name string
	Host *Host
}

// Plan says what both controllers of a differential test have.
type Plan struct {
	Seed         uint64
	Steps        int
	LBASizeBytes int
	Blocks       uint64 // of each namespace
	Namespaces   int
	MDTS         int
	QueuePairs   int
	QueueEntries int
	CopyRanges   int // MSRC + 1
	CopyBlocks   int // MSSRL
	SGLSegments  int // that a list may have
	// Allowed returns why two controllers may differ in their statuses, or "".
	Allowed func(admin bool, cmd *spec.SubmissionEntry, a, b spec.Status) string
}

// Differential sends the same random commands, right and wrong ones, to two
// controllers and wants the same statuses, the same memory and, at the end,
// the same content from both. The commands follow from the seed alone.
func Differential(t *testing.T, plan Plan, a, b Peer) {
	t.Helper()
	d := &differential{T: t, Plan: plan, peers: [2]Peer{a, b}, seen: map[string]int{}}
	for i := range plan.Steps {
		d.step = uint64(i)
		if d.stepOnce(); t.Failed() {
			t.Fatalf("seed %d, step %d", plan.Seed, i)
		}
	}
	d.compareContent()
	for _, name := range []string{"Read success", "Write success", "Compare success", "Copy success", "Write Zeroes success", "Identify success"} {
		if d.seen[name] == 0 {
			t.Errorf("seed %d: never seen: %s; seen were %v", plan.Seed, name, d.seen)
		}
	}
	t.Logf("%d commands, %d kinds of outcome", d.commands, len(d.seen))
}

type differential struct {
	*testing.T
	Plan
	peers    [2]Peer
	step     uint64
	commands int
	seen     map[string]int
}

// maker makes the commands of one step for one controller: the same for both
// but for the addresses.
type maker struct {
	*Plan
	*rand.Rand
	h     *Host
	used  int  // bytes of the list memory
	wrong bool // the data pointer being made has a mistake
}

func (d *differential) stepOnce() {
	var sent [2][]spec.SubmissionEntry
	var got [2][]Result
	var admin bool
	for i, p := range d.peers {
		m := &maker{Plan: &d.Plan, Rand: rand.New(rand.NewPCG(d.Seed, d.step)), h: p.Host}
		clear(p.Host.Mem(HostLists)[:HostListsBytes])
		// What the commands of a step are may depend on the results before.
		next := m.next()
		admin = next.admin
		for {
			cmd, ok := next.command(got[i])
			if !ok {
				break
			}
			run := p.Host.IO
			if admin {
				run = p.Host.Admin
			}
			r, err := run(cmd)
			if err != nil {
				d.Fatalf("%s: %v", p.Name, err)
			}
			sent[i], got[i] = append(sent[i], cmd), append(got[i], r)
		}
	}
	d.commands += len(sent[0])
	name := spec.IOCommandName
	if admin {
		name = spec.AdminCommandName
	}
	for k := range min(len(got[0]), len(got[1])) {
		cmd, x, y := &sent[0][k], got[0][k].Status, got[1][k].Status
		outcome := name(cmd.OPC()) + " " + x.String()
		if x.Code() == spec.Success {
			outcome = name(cmd.OPC()) + " success"
		}
		if x != y {
			reason := d.Allowed(admin, cmd, x, y)
			if reason == "" {
				d.Errorf("%s %+v:\n%s: %v, DNR %v\n%s: %v, DNR %v", name(cmd.OPC()), *cmd, d.peers[0].Name, x, x.DNR(), d.peers[1].Name, y, y.DNR())
				return
			}
			outcome = "allowed: " + reason
			copy(d.window(1), d.window(0))
		}
		d.seen[outcome]++
	}
	if len(got[0]) != len(got[1]) {
		d.Errorf("%d commands for %s, %d for %s", len(got[0]), d.peers[0].Name, len(got[1]), d.peers[1].Name)
	}
	if !admin {
		if d.compareMemory(); d.Failed() {
			for i := range sent[0] {
				d.Logf("%s %+v: %v", name(sent[0][i].OPC()), sent[0][i], got[0][i].Status)
			}
		}
	}
}

// window is the data memory of a controller and what surrounds it.
func (d *differential) window(peer int) []byte {
	return d.peers[peer].Host.Mem(windowFrom)[:HostDataBytes+2*hostGuardBytes]
}

const windowFrom = HostData - hostGuardBytes

func (d *differential) compareMemory() {
	x, y := d.window(0), d.window(1)
	if !bytes.Equal(x, y) {
		i := firstDifference(x, y)
		d.Errorf("memory differs from offset %#x on: %s has %#x, %s has %#x", windowFrom+i, d.peers[0].Name, x[i], d.peers[1].Name, y[i])
	}
}

// compareContent reads all namespaces on both sides.
func (d *differential) compareContent() {
	per := uint64(nvme.PageSizeBytes / d.LBASizeBytes)
	for nsid := range uint32(d.Namespaces) {
		for lba := uint64(0); lba < d.Blocks; lba += per {
			for _, p := range d.peers {
				cmd := spec.SubmissionEntry{CDW0: spec.CmdRead, NSID: nsid + 1, PRP1: p.Host.Addr(HostData), CDW12: uint32(per - 1)}
				cmd.SetSLBA(lba)
				if r, err := p.Host.IO(cmd); err != nil || r.Status != spec.Success {
					d.Fatalf("%s: reading LBA %d of namespace %d: %v, %v", p.Name, lba, nsid+1, r.Status, err)
				}
			}
			if d.compareMemory(); d.Failed() {
				d.Fatalf("seed %d: the content of namespace %d differs at LBA %d", d.Seed, nsid+1, lba)
			}
		}
	}
}

// sequence makes the commands of a step one after the other; ok is false when
// there are no more.
type sequence struct {
	admin   bool
	command func(before []Result) (cmd spec.SubmissionEntry, ok bool)
}

// fixed is a sequence of given commands.
func fixed(admin bool, cmds ...spec.SubmissionEntry) sequence {
	return sequence{admin, func(before []Result) (spec.SubmissionEntry, bool) {
		if len(before) == len(cmds) {
			return spec.SubmissionEntry{}, false
		}
		return cmds[len(before)], true
	}}
}

func (m *maker) next() sequence {
	switch n := m.IntN(100); {
	case n < 60:
		return m.transfer()
	case n < 66:
		return m.compare()
	case n < 71:
		return m.writeZeroes()
	case n < 75:
		return m.deallocate()
	case n < 82:
		return m.copy()
	case n < 84:
		return fixed(false, spec.SubmissionEntry{CDW0: spec.CmdFlush, NSID: m.nsid()})
	case n < 87:
		return m.oddIO()
	}
	return m.adminCommand()
}

func (m *maker) nsid() uint32 {
	if m.IntN(24) == 0 {
		return []uint32{0, 1000, spec.NSIDAll, spec.NSIDAll - 1}[m.IntN(4)]
	}
	return uint32(1 + m.IntN(m.Namespaces))
}

// extent sets a range of blocks, mostly one that exists and is small enough.
func (m *maker) extent(cmd *spec.SubmissionEntry) (blocks int) {
	limit := nvme.PageSizeBytes << m.MDTS / m.LBASizeBytes
	blocks = 1 + m.IntN(min(limit, 64*nvme.PageSizeBytes/m.LBASizeBytes))
	if m.IntN(3) != 0 {
		blocks = 1 + m.IntN(min(limit, 4*nvme.PageSizeBytes/m.LBASizeBytes))
	}
	lba := m.Uint64N(m.Blocks - uint64(blocks) + 1)
	switch m.IntN(30) {
	case 0:
		lba = m.Blocks - uint64(blocks) + uint64(m.IntN(3))
	case 1:
		lba = m.Uint64()
	case 2:
		lba = m.Blocks + m.Uint64N(10)
	case 3:
		blocks = limit + 1 + m.IntN(3)
	}
	cmd.SetSLBA(lba)
	cmd.CDW12 = uint32(blocks-1) & 0xffff
	return blocks
}

// transfer is a Read, a Write or a Verify.
func (m *maker) transfer() sequence {
	cmd := spec.SubmissionEntry{CDW0: []uint32{spec.CmdRead, spec.CmdWrite}[m.IntN(2)], NSID: m.nsid()}
	blocks := m.extent(&cmd)
	if m.IntN(12) == 0 {
		cmd.CDW0 = spec.CmdVerify
		return fixed(false, cmd)
	}
	if m.IntN(8) == 0 {
		cmd.CDW12 |= spec.CDW12FUA
	}
	wrong := m.data(&cmd, min(blocks*m.LBASizeBytes, HostDataBytes))
	if cmd.OPC() == spec.CmdRead {
		return fixed(false, cmd)
	}
	m.fillData()
	if !wrong {
		return fixed(false, cmd)
	}
	// What a wrong write has written is open.
	zero := spec.SubmissionEntry{CDW0: spec.CmdWriteZeroes, NSID: cmd.NSID, CDW10: cmd.CDW10, CDW11: cmd.CDW11, CDW12: cmd.CDW12}
	return fixed(false, cmd, zero)
}

// fillData gives the data memory a new content.
func (m *maker) fillData() {
	mem := m.h.Mem(HostData)[:HostDataBytes]
	seed := m.Uint64()
	for i := 0; i < len(mem); i += 8 {
		seed = seed*6364136223846793005 + 1442695040888963407
		binary.LittleEndian.PutUint64(mem[i:], seed)
	}
}

// compare reads some blocks, may change a byte, and compares.
func (m *maker) compare() sequence {
	cmd := spec.SubmissionEntry{CDW0: spec.CmdCompare, NSID: m.nsid()}
	n := min(m.extent(&cmd)*m.LBASizeBytes, HostDataBytes)
	m.data(&cmd, n)
	read := cmd
	read.CDW0 = read.CDW0&^0xff | spec.CmdRead
	spoil, at := m.IntN(2) == 0, m.IntN(HostDataBytes)
	return sequence{false, func(before []Result) (spec.SubmissionEntry, bool) {
		switch len(before) {
		case 0:
			return read, true
		case 1:
			if spoil {
				m.h.Mem(HostData)[at] ^= 0x40
			}
			return cmd, true
		}
		return cmd, false
	}}
}

func (m *maker) writeZeroes() sequence {
	cmd := spec.SubmissionEntry{CDW0: spec.CmdWriteZeroes, NSID: m.nsid()}
	m.extent(&cmd)
	cmd.CDW12 |= []uint32{0, spec.CDW12FUA, spec.CDW12DEAC}[m.IntN(3)]
	return fixed(false, cmd)
}

// deallocate may leave any content in its ranges, which are zeroed afterwards.
func (m *maker) deallocate() sequence {
	count := 1 + m.IntN(4)
	cmd := spec.SubmissionEntry{CDW0: spec.CmdDSM, NSID: m.nsid(), CDW10: uint32(count - 1), CDW11: []uint32{0, 1, spec.CDW11DSMAD, spec.CDW11DSMAD}[m.IntN(4)]}
	cmds := make([]spec.SubmissionEntry, 1, 1+count)
	mem := m.h.Mem(HostData)
	for i := range count {
		blocks := m.IntN(500)
		lba := m.Uint64N(m.Blocks - uint64(blocks))
		switch m.IntN(20) {
		case 0:
			lba = m.Blocks - m.Uint64N(3)
		case 1:
			lba = m.Uint64()
		}
		binary.LittleEndian.PutUint32(mem[16*i:], 0)
		binary.LittleEndian.PutUint32(mem[16*i+4:], uint32(blocks))
		binary.LittleEndian.PutUint64(mem[16*i+8:], lba)
		if lba+uint64(blocks) <= m.Blocks && blocks > 0 && lba < m.Blocks {
			zero := spec.SubmissionEntry{CDW0: spec.CmdWriteZeroes, NSID: cmd.NSID, CDW12: uint32(blocks - 1)}
			zero.SetSLBA(lba)
			cmds = append(cmds, zero)
		}
	}
	cmd.PRP1 = m.h.Addr(HostData)
	cmds[0] = cmd
	return fixed(false, cmds...)
}

// copy copies ranges of the lower half of a namespace to the upper half. When it
// fails the target may have any content and is zeroed.
func (m *maker) copy() sequence {
	count := 1 + m.IntN(5)
	if m.IntN(8) == 0 {
		count = m.CopyRanges - m.IntN(3)
	}
	half := m.Blocks / 2
	cmd := spec.SubmissionEntry{CDW0: spec.CmdCopy, NSID: m.nsid(), PRP1: m.h.Addr(HostData), CDW12: uint32(count - 1)}
	total := uint64(0)
	mem := m.h.Mem(HostData)
	for i := range count {
		blocks := 1 + m.IntN(min(m.CopyBlocks, 64))
		lba := m.Uint64N(half - uint64(blocks))
		switch m.IntN(60) {
		case 0:
			lba = m.Blocks - m.Uint64N(3)
		case 1:
			blocks = m.CopyBlocks + 1
		}
		clear(mem[32*i:][:32])
		binary.LittleEndian.PutUint64(mem[32*i+8:], lba)
		binary.LittleEndian.PutUint16(mem[32*i+16:], uint16(blocks-1))
		total += uint64(blocks)
	}
	to := half + m.Uint64N(half-min(total, half-1))
	if m.IntN(20) == 0 {
		to = m.Blocks - m.Uint64N(total+1)
	}
	if m.IntN(20) == 0 {
		cmd.CDW12 |= uint32(1+m.IntN(15)) << 8 // descriptor format
	}
	cmd.SetSLBA(to)
	zero := spec.SubmissionEntry{CDW0: spec.CmdWriteZeroes, NSID: cmd.NSID, CDW12: uint32(min(total, m.Blocks-min(to, m.Blocks-1)) - 1)}
	zero.SetSLBA(min(to, m.Blocks-1))
	return sequence{false, func(before []Result) (spec.SubmissionEntry, bool) {
		switch {
		case len(before) == 0:
			return cmd, true
		case len(before) == 1 && before[0].Status != spec.Success:
			return zero, true
		}
		return cmd, false
	}}
}

// oddIO is a command that is wrong in its first dword.
func (m *maker) oddIO() sequence {
	cmd := spec.SubmissionEntry{CDW0: spec.CmdRead, NSID: 1, PRP1: m.h.Addr(HostData)}
	switch m.IntN(3) {
	case 0:
		cmd.CDW0 = []uint32{0x03, 0x06, 0x0a, 0x55, 0x7f, 0xff}[m.IntN(6)]
	case 1:
		cmd.CDW0 |= spec.PSDTMask
	case 2:
		cmd.CDW0 |= uint32(1+m.IntN(2)) << 8 // fused
	}
	return fixed(false, cmd)
}
