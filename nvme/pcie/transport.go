package pcie

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"runsc-fs/nvme"
	"runsc-fs/nvme/spec"
)

// Transport reaches the registers of a function. It implements nvme.Transport
// and nvme.InterruptWaiter.
type Transport struct {
	d       *Device
	arena   *nvme.Arena
	base    uint64
	regs    *registers
	cfg     config
	vectors []*vector // not changed after Attach
	table   []byte    // the MSI-X table's pages, when they are not part of regs
	request *os.File  // eventfd: the kernel wants the device back; nil: it cannot say

	gone atomic.Bool

	closeMu sync.Mutex
	retired bool // nothing but memory is left of the device
	closed  bool
}

var (
	_ nvme.Transport       = (*Transport)(nil)
	_ nvme.InterruptWaiter = (*Transport)(nil)
)

// Open opens a device for this process: OpenDevice and Attach.
func Open(addr Address, arena *nvme.Arena, opts Options) (*Transport, error) {
	d, err := OpenDevice(addr, opts)
	if err != nil {
		return nil, err
	}
	return d.Attach(arena)
}

// Attach makes a transport of the device, which belongs to it afterwards, also
// on failure. The whole arena is mapped for DMA, and nothing else; that takes
// its memory at once. The arena has to outlive the transport.
func (d *Device) Attach(arena *nvme.Arena) (*Transport, error) {
	t := &Transport{d: d, arena: arena, cfg: config{d: d}}
	if err := t.attach(); err != nil {
		return nil, fmt.Errorf("device %s: %w", d.handle.Address, errors.Join(err, t.release(true)))
	}
	return t, nil
}

func (t *Transport) attach() error {
	d := t.d
	r, err := d.region(regionConfig)
	if err != nil {
		return err
	}
	t.cfg.at = int64(r.offset)
	if err := t.checkClass(); err != nil {
		return err
	}
	// Registers can be read when memory is on; DMA stays off.
	if err := t.cfg.setCommand(commandMemory|commandNoINTx, commandBusMaster); err != nil {
		return err
	}
	bar, err := d.region(regionBAR0)
	if err != nil {
		return err
	}
	if bar.size < spec.RegDoorbells+8 {
		return fmt.Errorf("%w: BAR 0 has %d bytes, too few for the registers", ErrUnsupported, bar.size)
	}
	table, err := t.cfg.findMSIX()
	if err != nil {
		return err
	}
	if table.bar == regionBAR0 {
		bar.spare(table)
	}
	if t.regs, err = mapRegisters(d, bar); err != nil {
		return err
	}
	if err := t.openInterrupts(table); err != nil {
		return err
	}
	if err := t.watchRequests(); err != nil {
		return err
	}
	if t.base, err = d.mapArena(t.arena); err != nil {
		return err
	}
	// The device and its mappings keep the address space.
	if err := d.space.Close(); err != nil {
		return err
	}
	return t.cfg.setCommand(commandBusMaster, 0)
}

// checkClass makes sure that the function is an NVMe controller.
func (t *Transport) checkClass() error {
	var b [4]byte
	if err := t.cfg.read(cfgClass, b[:]); err != nil {
		return err
	}
	if class := binary.LittleEndian.Uint32(b[:]) >> 8; class != classNVMe {
		return fmt.Errorf("%w: it is no NVMe controller (class %06x instead of %06x)", ErrUnsupported, class, classNVMe)
	}
	return nil
}

// openInterrupts sets MSI-X up if the device has it and the kernel lets its table
// be mapped; without that, waiting is sleeping.
func (t *Transport) openInterrupts(table msixTable) error {
	n := wantedVectors(min(table.entries, t.d.irqCount(irqMSIX)))
	if n < 1 {
		return nil
	}
	mem, err := t.mapTable(table)
	if err != nil || mem == nil {
		return err
	}
	t.vectors, err = openVectors(t.d, mem, n)
	return err
}

// mapTable finds the MSI-X table in the registers' windows or maps its pages.
// It returns nil when the kernel does not allow it.
func (t *Transport) mapTable(table msixTable) ([]byte, error) {
	want := table.area()
	if table.bar == regionBAR0 {
		for _, w := range t.regs.windows {
			if off := want.offset - w.offset; off < w.size && w.size-off >= want.size {
				return w.mem[off:][:want.size], nil
			}
		}
		return nil, nil
	}
	r, err := t.d.region(table.bar)
	if err != nil {
		return nil, err
	}
	r.spare(table)
	page := uint64(unix.Getpagesize())
	for _, a := range r.areas {
		if want.offset < a.offset || want.offset+want.size > a.offset+a.size {
			continue
		}
		first := want.offset &^ (page - 1)
		end := (want.offset + want.size + page - 1) &^ (page - 1)
		mem, err := unix.Mmap(int(t.d.device.Fd()), int64(r.offset+first), int(end-first), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			return nil, failed("mapping the MSI-X table", err)
		}
		t.table = mem
		return mem[want.offset-first:][:want.size], nil
	}
	return nil, nil
}

// watchRequests lets go of the device when the kernel asks for it: it is about
// to be removed, or its driver to be unbound.
func (t *Transport) watchRequests() error {
	if t.d.irqCount(irqRequest) == 0 {
		return nil
	}
	f, err := newEventfd()
	if err != nil {
		return err
	}
	t.request = f
	if err := t.d.setEvents(irqRequest, []*os.File{f}); err != nil {
		return err
	}
	go func() {
		var count [8]byte
		if _, err := f.Read(count[:]); err == nil {
			t.d.logf("pcie: device %s is being taken away", t.d.handle.Address)
			t.Retire()
		}
	}()
	return nil
}

// Address is the function's place on the bus.
func (t *Transport) Address() Address { return t.d.handle.Address }

// API is the kernel interface that is used.
func (t *Transport) API() API { return t.d.handle.API }

// Read32 implements nvme.Transport.
func (t *Transport) Read32(reg uint32) uint32 {
	if t.gone.Load() {
		return ^uint32(0)
	}
	return t.regs.read32(reg)
}

// Read64 implements nvme.Transport.
func (t *Transport) Read64(reg uint32) uint64 {
	if t.gone.Load() {
		return ^uint64(0)
	}
	return t.regs.read64(reg)
}

// Write32 implements nvme.Transport.
func (t *Transport) Write32(reg uint32, v uint32) {
	if !t.gone.Load() {
		t.regs.write32(reg, v)
	}
}

// Write64 implements nvme.Transport.
func (t *Transport) Write64(reg uint32, v uint64) {
	if !t.gone.Load() {
		t.regs.write64(reg, v)
	}
}

// Arena implements nvme.Transport.
func (t *Transport) Arena() *nvme.Arena { return t.arena }

// DMABase implements nvme.Transport.
func (t *Transport) DMABase() uint64 { return t.base }

// Vectors implements nvme.InterruptWaiter.
func (t *Transport) Vectors() int { return len(t.vectors) }

// WaitInterrupt implements nvme.InterruptWaiter.
func (t *Transport) WaitInterrupt(vector uint16, timeout time.Duration) bool {
	if t.gone.Load() {
		return false
	}
	return t.vectors[vector].wait(timeout)
}

// StopDMA implements nvme.Transport: the function is no bus master any more. A
// read of its configuration space waits for the writes that it had sent. When
// that cannot be had, the device is given up: the kernel resets it then. One that
// is being given up already is waited for.
func (t *Transport) StopDMA() {
	if t.gone.Load() {
		t.Retire()
		return
	}
	err := t.cfg.setCommand(0, commandBusMaster)
	var b [2]byte
	if err == nil {
		err = t.cfg.read(cfgCommand, b[:])
	}
	if err != nil || binary.LittleEndian.Uint16(b[:])&commandBusMaster != 0 {
		t.d.logf("pcie: device %s cannot be stopped (%v); giving it up", t.d.handle.Address, err)
		t.Retire()
	}
}

// Retire gives the device back to the kernel at once, whatever it is doing: its
// registers read as all ones from now on. The kernel takes the arena away from
// it and resets it.
func (t *Transport) Retire() {
	t.gone.Store(true)
	if err := t.release(false); err != nil {
		t.d.logf("pcie: giving device %s up: %v", t.d.handle.Address, err)
	}
}

// Close implements nvme.Transport.
func (t *Transport) Close() error {
	t.closeMu.Lock()
	closed := t.closed
	t.closed = true
	t.closeMu.Unlock()
	if closed {
		return nil
	}
	t.gone.Store(true)
	return t.release(true)
}

// release lets go of the device, once. Unless final is set somebody may still
// be on the way to a register: ordinary memory is left in their place.
func (t *Transport) release(final bool) error {
	t.closeMu.Lock()
	defer t.closeMu.Unlock()
	var errs []error
	if !t.retired {
		t.retired = true
		errs = append(errs, closeVectors(t.vectors))
		if t.request != nil {
			errs = append(errs, t.request.Close())
		}
		if t.cfg.at != 0 {
			// A device that is gone has no command register.
			_ = t.cfg.setCommand(0, commandBusMaster)
		}
		if t.table != nil {
			errs = append(errs, unix.Munmap(t.table)) // vectors are closed
			t.table = nil
		}
		if !t.d.foreign && t.d.device != nil {
			_ = t.d.reset() // the kernel does it as well, if it can
		}
		if t.regs != nil && !final {
			errs = append(errs, t.regs.retire())
		}
		errs = append(errs, t.d.Close())
	}
	if final && t.regs != nil {
		errs = append(errs, t.regs.unmap())
		t.regs = nil
	}
	return errors.Join(errs...)
}
