package nvmetest

import (
	"encoding/binary"

	"runsc-fs/nvme"
	"runsc-fs/nvme/spec"
)

const pageBytes = nvme.PageSizeBytes

// take reserves list memory and returns its offset in the arena. It reports
// false when there is no more.
func (m *maker) take(n, align int) (off int, ok bool) {
	m.used = (m.used + align - 1) &^ (align - 1)
	if m.used+n > HostListsBytes {
		return 0, false
	}
	off = HostLists + m.used
	m.used += n
	return off, true
}

// data gives a command memory for n bytes, in one of many ways, few of them
// wrong, which it reports.
func (m *maker) data(cmd *spec.SubmissionEntry, n int) (wrong bool) {
	m.wrong = false
	if m.IntN(2) == 0 {
		m.prps(cmd, n)
	} else {
		m.sgl(cmd, n)
	}
	return m.wrong
}

// mistake decides, one time in n, to do something wrong.
func (m *maker) mistake(n int) bool {
	if m.IntN(n) != 0 {
		return false
	}
	m.wrong = true
	return true
}

// page is the device address of a page of the data memory.
func (m *maker) page(i int) uint64 { return m.h.Addr(HostData + i*pageBytes) }

// prps describes n bytes by PRPs: the first page from some dword on, the others
// in any order, the list beginning anywhere in a page.
func (m *maker) prps(cmd *spec.SubmissionEntry, n int) {
	order := m.Perm(HostDataBytes / pageBytes)
	off := 4 * m.IntN(pageBytes/4)
	if m.IntN(2) == 0 || n > HostDataBytes-pageBytes {
		off = 0
	}
	var entries []uint64
	for left := n + off; left > 0; left -= pageBytes {
		entries = append(entries, m.page(order[len(entries)]))
	}
	entries[0] += uint64(off)
	if len(entries) > 1 && m.mistake(40) { // an entry that is not a page
		entries[1+m.IntN(len(entries)-1)] += uint64(4 * (1 + m.IntN(1000)))
	}
	cmd.PRP1 = entries[0]
	switch {
	case len(entries) == 2:
		cmd.PRP2 = entries[1]
	case len(entries) > 2:
		cmd.PRP2 = m.prpList(entries[1:])
	}
}

// prpList writes a list and returns where it begins.
func (m *maker) prpList(entries []uint64) uint64 {
	start, _ := m.take(pageBytes, pageBytes)
	at := start + 8*(pageBytes/8-1-m.IntN(min(pageBytes/8-1, 2*len(entries))))
	first := m.h.Addr(at)
	for len(entries) > 0 {
		if at%pageBytes == pageBytes-8 && len(entries) > 1 {
			next, ok := m.take(pageBytes, pageBytes)
			if !ok {
				panic("nvmetest: the list memory is too small for two PRP lists")
			}
			binary.LittleEndian.PutUint64(m.h.Mem(at), m.h.Addr(next))
			at = next
			continue
		}
		binary.LittleEndian.PutUint64(m.h.Mem(at), entries[0])
		entries = entries[1:]
		at += 8
	}
	return first
}

// sgl describes n bytes by a scatter gather list of pieces of any size, in one
// or several segments.
func (m *maker) sgl(cmd *spec.SubmissionEntry, n int) {
	var list []spec.SGLDescriptor
	order := m.Perm(HostDataBytes / pageBytes)
	left := n
	for k := 0; left > 0 && k < len(order); k++ {
		size := min(left, pageBytes)
		if m.IntN(3) == 0 && left < (len(order)-k-1)*pageBytes {
			size = min(left, 1+m.IntN(pageBytes))
		}
		off := m.IntN(pageBytes - size + 1)
		list = append(list, spec.SGLDescriptor{Address: m.page(order[k]) + uint64(off), Bytes: uint32(size), ID: spec.SGLDataBlock})
		if m.IntN(20) == 0 {
			list = append(list, spec.SGLDescriptor{Address: m.page(0), ID: spec.SGLDataBlock}) // empty
		}
		left -= size
	}
	if m.mistake(6) {
		d := &list[m.IntN(len(list))]
		switch m.IntN(5) {
		case 0:
			d.Bytes += uint32(1 + m.IntN(5))
		case 1:
			d.Bytes = max(d.Bytes, 1) - 1
		case 2:
			d.ID = 0x50
		case 3:
			d.ID = []uint8{spec.SGLSegment, spec.SGLLastSegment}[m.IntN(2)]
		case 4:
			list = append(list, list[0])
		}
	}
	if len(list) == 1 && m.IntN(4) != 0 {
		cmd.SetSGL(list[0])
		return
	}
	m.segments(cmd, list)
}

// segments puts descriptors into one segment or more.
func (m *maker) segments(cmd *spec.SubmissionEntry, list []spec.SGLDescriptor) {
	const size = spec.SGLDescriptorBytes
	put := func(off int, d spec.SGLDescriptor) {
		b := m.h.Mem(off)[:size]
		clear(b)
		binary.LittleEndian.PutUint64(b, d.Address)
		binary.LittleEndian.PutUint32(b[8:], d.Bytes)
		b[15] = d.ID
	}
	link := cmd.SetSGL
	for segment := 1; ; segment++ {
		count := len(list)
		if count > 1 && segment < m.SGLSegments && m.IntN(3) == 0 {
			count = 1 + m.IntN(count)
		}
		last := count == len(list)
		slots := count
		if !last {
			slots++ // for what leads to the next segment
		}
		at, ok := m.take(slots*size, size)
		if !ok {
			panic("nvmetest: the list memory is too small for an SGL")
		}
		d := spec.SGLDescriptor{Address: m.h.Addr(at), Bytes: uint32(slots * size), ID: spec.SGLSegment}
		if last && m.IntN(8) != 0 {
			d.ID = spec.SGLLastSegment
		}
		if m.mistake(70) {
			switch m.IntN(3) {
			case 0:
				d.Bytes += 4
			case 1:
				d.Bytes = 0
			case 2:
				d.ID = spec.SGLLastSegment
			}
		}
		link(d)
		for i, e := range list[:count] {
			put(at+i*size, e)
		}
		if last {
			return
		}
		list = list[count:]
		behind := at + count*size
		link = func(d spec.SGLDescriptor) { put(behind, d) }
	}
}

// adminCommand is one that leaves the controller as it is, or is refused.
func (m *maker) adminCommand() sequence {
	cmd := spec.SubmissionEntry{PRP1: m.h.Addr(hostReplies)}
	switch m.IntN(8) {
	case 0:
		cmd.CDW0 = spec.AdminIdentify
		cmd.CDW10 = []uint32{spec.CNSNamespace, spec.CNSController, spec.CNSActiveNSIDList, spec.CNSCommandSetCtrl, 0x30, 0xff}[m.IntN(6)]
		cmd.NSID = []uint32{0, 1, 2, 1000, spec.NSIDAll, spec.NSIDAll - 1}[m.IntN(6)]
	case 1:
		cmd.CDW0 = spec.AdminGetFeatures
		cmd.CDW10 = uint32([]int{0, 1, 2, 4, 5, 6, 7, 8, 9, 0xa, 0xb, 0x3f, 0xbf}[m.IntN(13)])
	case 2:
		cmd.CDW0 = spec.AdminSetFeatures
		cmd.CDW10 = uint32([]int{0, 6, 7, 0xb, 0x3f, 0xbf}[m.IntN(6)]) | uint32(m.IntN(4)/3)<<31
		cmd.CDW11 = 1
	case 3:
		cmd.CDW0 = spec.AdminGetLogPage
		cmd.NSID = spec.NSIDAll
		cmd.CDW10 = uint32([]int{0, 1, 2, 3, 4, 0x7f, 0xff}[m.IntN(7)]) | uint32(m.IntN(128))<<16
		if m.IntN(3) == 0 {
			cmd.CDW12 = uint32(4 * m.IntN(2000))
		}
	case 4:
		cmd.CDW0 = spec.AdminAbort
		cmd.CDW10 = uint32(m.IntN(2)) | m.Uint32()<<16
	case 5:
		cmd = m.oddQueue()
	case 6:
		cmd.CDW0 = uint32([]int{0x03, 0x07, 0x1b, 0x7f, 0xff}[m.IntN(5)])
	case 7:
		cmd.CDW0 = spec.AdminIdentify | uint32(1+m.IntN(3))<<14 // SGLs are for I/O commands
		cmd.CDW10 = spec.CNSController
	}
	return fixed(true, cmd)
}

// oddQueue is a Create or Delete that is refused.
func (m *maker) oddQueue() spec.SubmissionEntry {
	entries := func(n int) uint32 { return uint32(n-1) << 16 }
	page := m.page(8)
	return []spec.SubmissionEntry{
		{CDW0: spec.AdminCreateIOCQ, PRP1: page, CDW10: entries(8), CDW11: 1},
		{CDW0: spec.AdminCreateIOCQ, PRP1: page, CDW10: entries(8) | 1, CDW11: 1}, // exists
		{CDW0: spec.AdminCreateIOCQ, PRP1: page, CDW10: entries(8) | uint32(m.QueuePairs+1), CDW11: 1},
		{CDW0: spec.AdminCreateIOCQ, PRP1: page, CDW10: entries(1) | 2, CDW11: 1},
		{CDW0: spec.AdminCreateIOCQ, PRP1: page, CDW10: entries(m.QueueEntries+1) | 2, CDW11: 1},
		{CDW0: spec.AdminCreateIOCQ, PRP1: page + 8, CDW10: entries(8) | 2, CDW11: 1},
		{CDW0: spec.AdminCreateIOCQ, PRP1: page, CDW10: entries(8) | 2}, // not contiguous
		{CDW0: spec.AdminCreateIOSQ, PRP1: page, CDW10: entries(8), CDW11: 1<<16 | 1},
		{CDW0: spec.AdminCreateIOSQ, PRP1: page, CDW10: entries(8) | 1, CDW11: 1<<16 | 1}, // exists
		{CDW0: spec.AdminCreateIOSQ, PRP1: page, CDW10: entries(8) | uint32(m.QueuePairs+1), CDW11: 1<<16 | 1},
		{CDW0: spec.AdminCreateIOSQ, PRP1: page, CDW10: entries(8) | 2, CDW11: 2<<16 | 1}, // no such CQ
		{CDW0: spec.AdminCreateIOSQ, PRP1: page, CDW10: entries(8) | 2, CDW11: 1},         // the admin CQ
		{CDW0: spec.AdminCreateIOSQ, PRP1: page, CDW10: entries(1) | 2, CDW11: 1<<16 | 1},
		{CDW0: spec.AdminCreateIOSQ, PRP1: page, CDW10: entries(m.QueueEntries+1) | 2, CDW11: 1<<16 | 1},
		{CDW0: spec.AdminCreateIOSQ, PRP1: page + 8, CDW10: entries(8) | 2, CDW11: 1<<16 | 1},
		{CDW0: spec.AdminCreateIOSQ, PRP1: page, CDW10: entries(8) | 2, CDW11: 1 << 16},
		{CDW0: spec.AdminDeleteIOSQ},
		{CDW0: spec.AdminDeleteIOSQ, CDW10: 3},
		{CDW0: spec.AdminDeleteIOSQ, CDW10: 0xffff},
		{CDW0: spec.AdminDeleteIOCQ},
		{CDW0: spec.AdminDeleteIOCQ, CDW10: 3},
		{CDW0: spec.AdminDeleteIOCQ, CDW10: 1}, // in use
	}[m.IntN(22)]
}
