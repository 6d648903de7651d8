package qtest

import (
	"bytes"
	"fmt"
	"strconv"
	"time"

	"runsc-fs/nvme"
	"runsc-fs/nvme/spec"
)

// Where the controller is: its PCI function, and the address that its registers
// get, above all memory.
const (
	pciFunction = 1 << 11 // 00:01.0
	barAddress  = 0xe0000000

	pciIDs      = 0x00
	pciCommand  = 0x04
	pciBAR0     = 0x10
	pciBAR1     = 0x14
	pciClass    = 0x08
	classNVMe   = 0x010802
	cmdMemory   = 1 << 1
	cmdMaster   = 1 << 2
	portAddress = 0xcf8
	portData    = 0xcfc
)

var _ nvme.Transport = (*Machine)(nil)

// sendLocked says one line, a word and numbers, and returns the value of the
// answer, 0 when it has none. A line that QEMU does not understand ends QEMU.
func (m *Machine) sendLocked(word string, args ...uint64) (uint64, error) {
	if m.broken != nil {
		return 0, m.broken
	}
	m.out = append(m.out[:0], word...)
	for _, v := range args {
		m.out = append(m.out, " 0x"...)
		m.out = strconv.AppendUint(m.out, v, 16)
	}
	m.out = append(m.out, '\n')
	reply, err := m.exchangeLocked()
	if err == nil {
		if v, ok := parseReply(reply); ok {
			return v, nil
		}
		err = fmt.Errorf("%q was answered by %q", m.out, reply)
	}
	m.broken = m.fault(err)
	return 0, m.broken
}

// parseReply understands "OK" and "OK 0x…".
func parseReply(reply []byte) (uint64, bool) {
	if !bytes.HasPrefix(reply, []byte("OK")) {
		return 0, false
	}
	digits := bytes.TrimPrefix(reply[2:], []byte(" 0x"))
	if len(digits) > 16 {
		return 0, false
	}
	var v uint64
	for _, d := range digits {
		switch {
		case '0' <= d && d <= '9':
			v = v<<4 | uint64(d-'0')
		case 'a' <= d && d <= 'f':
			v = v<<4 | uint64(d-'a'+10)
		default:
			return 0, false
		}
	}
	return v, true
}

// exchangeLocked sends out and returns the line that comes back, valid until
// the next call. Only one line is ever under way.
func (m *Machine) exchangeLocked() ([]byte, error) {
	if err := m.conn.SetDeadline(time.Now().Add(replyTimeout)); err != nil {
		return nil, err
	}
	if _, err := m.conn.Write(m.out); err != nil {
		return nil, err
	}
	for n := 0; n < len(m.in); {
		k, err := m.conn.Read(m.in[n:])
		if err != nil {
			return nil, err
		}
		if n += k; m.in[n-1] == '\n' {
			return m.in[:n-1], nil
		}
	}
	return nil, fmt.Errorf("a reply of more than %d bytes", len(m.in))
}

// read carries out one of readl and readq. Nobody answers for a machine that
// is gone: all bits are set, as PCI has it.
func (m *Machine) read(word string, reg uint32) uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	v, err := m.sendLocked(word, barAddress+uint64(reg))
	if err != nil {
		return ^uint64(0)
	}
	return v
}

func (m *Machine) write(word string, reg uint32, v uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, _ = m.sendLocked(word, barAddress+uint64(reg), v) // kept in broken
}

// Read32 implements nvme.Transport.
func (m *Machine) Read32(reg uint32) uint32 { return uint32(m.read("readl", reg)) }

// Read64 implements nvme.Transport.
func (m *Machine) Read64(reg uint32) uint64 { return m.read("readq", reg) }

// Write32 implements nvme.Transport.
func (m *Machine) Write32(reg uint32, v uint32) { m.write("writel", reg, uint64(v)) }

// Write64 implements nvme.Transport.
func (m *Machine) Write64(reg uint32, v uint64) { m.write("writeq", reg, v) }

// StopDMA implements nvme.Transport: it takes bus mastership away.
func (m *Machine) StopDMA() {
	m.mu.Lock()
	_, err := m.configLocked(pciCommand, true, cmdMemory)
	m.mu.Unlock()
	if err != nil {
		m.Kill() // a machine that does not listen must not write either
	}
}

// Err is why the connection to QEMU is broken, or nil.
func (m *Machine) Err() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.broken
}

// configLocked accesses a register of the PCI configuration space.
func (m *Machine) configLocked(reg uint32, write bool, v uint32) (uint32, error) {
	if _, err := m.sendLocked("outl", portAddress, uint64(1<<31|pciFunction|reg)); err != nil {
		return 0, err
	}
	if write {
		_, err := m.sendLocked("outl", portData, uint64(v))
		return 0, err
	}
	got, err := m.sendLocked("inl", portData)
	return uint32(got), err
}

// enablePCI gives the registers their address and lets the controller use them
// and the memory.
func (m *Machine) enablePCI() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	ids, err := m.configLocked(pciIDs, false, 0)
	if err != nil {
		return err
	}
	class, err := m.configLocked(pciClass, false, 0)
	if err != nil {
		return err
	}
	if class>>8 != classNVMe {
		return fmt.Errorf("qtest: function 00:01.0 is no NVMe controller: device %#x, class %#x", ids, class)
	}
	for _, w := range [][2]uint32{{pciBAR0, barAddress}, {pciBAR1, 0}, {pciCommand, cmdMemory | cmdMaster}} {
		if _, err := m.configLocked(w[0], true, w[1]); err != nil {
			return err
		}
	}
	if vs, err := m.sendLocked("readl", barAddress+spec.RegVS); err != nil || vs == spec.Gone || vs == 0 {
		return fmt.Errorf("qtest: no registers at %#x: VS is %#x, %v", barAddress, vs, err)
	}
	return nil
}
