package pcie

import (
	"encoding/binary"
	"errors"
	"unsafe"

	"golang.org/x/sys/unix"
)

// window is a mapped piece of BAR 0.
type window struct {
	area
	mem []byte
}

// registers reach BAR 0: through windows, and by system calls where there is
// none.
type registers struct {
	d       *Device
	at      int64 // of BAR 0 in the device's file
	size    uint64
	windows []window
}

// mapRegisters maps what can be mapped of BAR 0.
func mapRegisters(d *Device, r region) (*registers, error) {
	regs := &registers{d: d, at: int64(r.offset), size: r.size}
	for _, a := range r.areas {
		mem, err := unix.Mmap(int(d.device.Fd()), int64(r.offset+a.offset), int(a.size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			return nil, errors.Join(failed("mapping BAR 0", err), regs.unmap())
		}
		regs.windows = append(regs.windows, window{a, mem})
	}
	return regs, nil
}

// find returns where a register is mapped, or nil. Nearly always the first
// window has it.
func (r *registers) find(reg uint32, n uint64) unsafe.Pointer {
	for i := range r.windows {
		w := &r.windows[i]
		if off := uint64(reg) - w.offset; off < w.size && w.size-off >= n {
			return unsafe.Pointer(&w.mem[off])
		}
	}
	return nil
}

func (r *registers) read32(reg uint32) uint32 {
	if p := r.find(reg, 4); p != nil {
		return load32((*uint32)(p))
	}
	b := [4]byte{0xff, 0xff, 0xff, 0xff}
	r.slowRead(reg, b[:])
	return binary.LittleEndian.Uint32(b[:])
}

func (r *registers) read64(reg uint32) uint64 {
	if p := r.find(reg, 8); p != nil {
		return load64((*uint64)(p))
	}
	b := [8]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	r.slowRead(reg, b[:])
	return binary.LittleEndian.Uint64(b[:])
}

func (r *registers) write32(reg, v uint32) {
	if p := r.find(reg, 4); p != nil {
		store32((*uint32)(p), v)
		return
	}
	r.slowWrite(reg, binary.LittleEndian.AppendUint32(nil, v))
}

func (r *registers) write64(reg uint32, v uint64) {
	if p := r.find(reg, 8); p != nil {
		store64((*uint64)(p), v)
		return
	}
	r.slowWrite(reg, binary.LittleEndian.AppendUint64(nil, v))
}

// slowRead leaves b as it is when the register is not there.
func (r *registers) slowRead(reg uint32, b []byte) {
	if uint64(reg)+uint64(len(b)) <= r.size {
		_, _ = r.d.device.ReadAt(b, r.at+int64(reg))
	}
}

func (r *registers) slowWrite(reg uint32, b []byte) {
	if uint64(reg)+uint64(len(b)) <= r.size {
		_, _ = r.d.device.WriteAt(b, r.at+int64(reg))
	}
}

// retire puts memory of ones in place of the registers, for callers that are on
// their way to them.
func (r *registers) retire() error {
	var errs []error
	for _, w := range r.windows {
		_, err := unix.MmapPtr(-1, 0, unsafe.Pointer(&w.mem[0]), uintptr(len(w.mem)),
			unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED)
		if err != nil {
			errs = append(errs, failed("replacing BAR 0", err))
			continue
		}
		for i := range w.mem {
			w.mem[i] = 0xff
		}
	}
	return errors.Join(errs...)
}

func (r *registers) unmap() error {
	var errs []error
	for _, w := range r.windows {
		errs = append(errs, unix.Munmap(w.mem))
	}
	r.windows = nil
	return errors.Join(errs...)
}
