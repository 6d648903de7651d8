package pcie

import (
	"encoding/binary"
	"fmt"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// area is a range of a region that may be mapped.
type area struct{ offset, size uint64 }

// region is what VFIO says about a BAR or the configuration space.
type region struct {
	size, offset uint64 // offset in the device's file
	areas        []area // ascending, in whole pages; nil: nothing can be mapped
	tableToo     bool   // the areas are meant to have the MSI-X table, if it is here
}

// region reads the description of a region.
func (d *Device) region(index uint32) (region, error) {
	head := uint32(unsafe.Sizeof(regionInfo{}))
	buf := make([]uint64, head/8)
	for range 2 { // the second time with room for the capabilities
		info := (*regionInfo)(unsafe.Pointer(&buf[0]))
		*info = regionInfo{argsz: uint32(len(buf) * 8), index: index}
		if _, err := d.kernel.ioctl(d.device, vfioGetRegionInfo, unsafe.Pointer(info)); err != nil {
			return region{}, failed("VFIO_DEVICE_GET_REGION_INFO", err)
		}
		if info.argsz <= uint32(len(buf)*8) || info.argsz > 1<<20 {
			break
		}
		buf = make([]uint64, (info.argsz+7)/8)
	}
	info := (*regionInfo)(unsafe.Pointer(&buf[0]))
	r := region{size: info.size, offset: info.offset}
	if info.flags&regionFlagMmap == 0 {
		return r, nil
	}
	r.areas = []area{{0, info.size}}
	if info.flags&regionFlagCaps != 0 {
		mem := unsafe.Slice((*byte)(unsafe.Pointer(&buf[0])), len(buf)*8)
		_, r.tableToo = findCap(mem, info.caps, regionCapMSIXMap)
		if pairs, ok := rangesOf(mem, info.caps, regionCapSparse); ok {
			r.areas, r.tableToo = nil, true
			for _, p := range pairs {
				r.areas = append(r.areas, area{p[0], p[1]})
			}
		}
	}
	r.areas = wholePages(r.areas, info.size)
	return r, nil
}

// findCap finds a capability in a chain that begins at the offset at of mem, and
// returns the memory from there on.
func findCap(mem []byte, at uint32, id uint16) ([]byte, bool) {
	ne := binary.NativeEndian
	for steps := 0; at != 0 && steps < 64; steps++ {
		if uint64(at)+uint64(unsafe.Sizeof(capHeader{})) > uint64(len(mem)) {
			break
		}
		if ne.Uint16(mem[at:]) == id {
			return mem[at:], true
		}
		at = ne.Uint32(mem[at+4:])
	}
	return nil, false
}

// rangesOf reads a capability that is a list of pairs of numbers.
func rangesOf(mem []byte, at uint32, id uint16) (pairs [][2]uint64, found bool) {
	ne := binary.NativeEndian
	const head = int(unsafe.Sizeof(rangesCap{}))
	c, ok := findCap(mem, at, id)
	if !ok || len(c) < head {
		return nil, false
	}
	count := ne.Uint32(c[8:])
	for c = c[head:]; count > 0 && len(c) >= 16; c = c[16:] {
		pairs = append(pairs, [2]uint64{ne.Uint64(c), ne.Uint64(c[8:])})
		count--
	}
	return pairs, count == 0
}

// wholePages sorts areas and cuts them to whole pages inside the region.
func wholePages(areas []area, size uint64) []area {
	page := uint64(unix.Getpagesize())
	var out []area
	for _, a := range areas {
		end := min(a.offset+a.size, size)
		first := (a.offset + page - 1) &^ (page - 1)
		if end &^= page - 1; a.offset <= a.offset+a.size && first < end {
			out = append(out, area{first, end - first})
		}
	}
	slices.SortFunc(out, func(a, b area) int {
		if a.offset < b.offset {
			return -1
		}
		return 1
	})
	return out
}

// spare leaves the MSI-X table out of the areas of its region unless the kernel
// has said that it may be mapped: it would refuse the whole area.
func (r *region) spare(table msixTable) {
	if table.entries > 0 && !r.tableToo {
		r.areas = without(r.areas, table.area())
	}
}

// without cuts the pages of a hole out of areas.
func without(areas []area, hole area) []area {
	page := uint64(unix.Getpagesize())
	first, end := hole.offset&^(page-1), (hole.offset+hole.size+page-1)&^(page-1)
	var out []area
	for _, a := range areas {
		if a.offset < first {
			out = append(out, area{a.offset, min(a.offset+a.size, first) - a.offset})
		}
		if aEnd := a.offset + a.size; aEnd > end {
			start := max(a.offset, end)
			out = append(out, area{start, aEnd - start})
		}
	}
	return out
}

// config accesses the configuration space.
type config struct {
	d  *Device
	at int64 // in the device's file
}

// Registers of the configuration space (PCI Local Bus 3.0, 6.1 and 6.8.2).
const (
	cfgCommand       = 0x04
	cfgClass         = 0x08
	cfgCapabilities  = 0x34
	cfgMinBytes      = 0x40
	commandMemory    = 1 << 1
	commandBusMaster = 1 << 2
	commandNoINTx    = 1 << 10
	classNVMe        = 0x010802
	capMSIX          = 0x11
	msixEntryBytes   = 16
	msixVectorCtl    = 12
	msixMasked       = 1
)

func (c config) read(off int64, b []byte) error {
	n, err := c.d.device.ReadAt(b, c.at+off)
	if n < len(b) {
		return fmt.Errorf("reading the configuration space at %#x: %w", off, err)
	}
	return nil
}

func (c config) write16(off int64, v uint16) error {
	if _, err := c.d.device.WriteAt(binary.LittleEndian.AppendUint16(nil, v), c.at+off); err != nil {
		return fmt.Errorf("writing the configuration space at %#x: %w", off, err)
	}
	return nil
}

// setCommand sets and clears bits of the command register.
func (c config) setCommand(set, clear uint16) error {
	var b [2]byte
	if err := c.read(cfgCommand, b[:]); err != nil {
		return err
	}
	return c.write16(cfgCommand, binary.LittleEndian.Uint16(b[:])&^clear|set)
}

// msixTable is the place of the MSI-X table.
type msixTable struct {
	entries int // 0: there is none
	bar     uint32
	offset  uint64
}

func (t msixTable) area() area { return area{t.offset, uint64(t.entries) * msixEntryBytes} }

// findMSIX looks the MSI-X table up in the list of capabilities.
func (c config) findMSIX() (msixTable, error) {
	var b [12]byte
	if err := c.read(cfgCapabilities, b[:1]); err != nil {
		return msixTable{}, err
	}
	at := int64(b[0] &^ 3)
	for steps := 0; at >= cfgMinBytes && steps < 48; steps++ {
		if err := c.read(at, b[:]); err != nil {
			return msixTable{}, err
		}
		if b[0] == capMSIX {
			table := binary.LittleEndian.Uint32(b[4:])
			t := msixTable{
				entries: int(binary.LittleEndian.Uint16(b[2:])&0x7ff) + 1,
				bar:     table & 7, offset: uint64(table &^ 7),
			}
			if t.bar > regionBAR5 {
				return msixTable{}, fmt.Errorf("%w: MSI-X table in BAR %d", ErrUnsupported, t.bar)
			}
			return t, nil
		}
		at = int64(b[1] &^ 3)
	}
	return msixTable{}, nil
}
