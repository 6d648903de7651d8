package pcie

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	"runsc-fs/nvme"
)

// mapArena makes the arena, and only the arena, reachable for the device and
// returns the device address of its first byte. From then on its pages are in
// memory and stay where they are.
func (d *Device) mapArena(arena *nvme.Arena) (base uint64, err error) {
	mem := arena.Bytes()
	arena.Pin()
	switch d.handle.API {
	case APINoIOMMU:
		return physicalBase(mem)
	case APIIOMMUFD:
		base, err = d.mapIOAS(mem)
	default:
		base, err = d.mapContainer(mem)
	}
	runtime.KeepAlive(arena)
	if errors.Is(err, unix.ENOMEM) {
		return 0, fmt.Errorf("%w: the limit of locked memory does not allow the %d MiB of the arena (ulimit -l)", err, len(mem)>>20)
	}
	return base, err
}

func (d *Device) mapContainer(mem []byte) (uint64, error) {
	ranges, err := d.containerRanges()
	if err != nil {
		return 0, err
	}
	base, err := chooseIOVA(ranges, uint64(len(mem)))
	if err != nil {
		return 0, err
	}
	m := &dmaMap{
		argsz: uint32(unsafe.Sizeof(dmaMap{})), flags: dmaMapRead | dmaMapWrite,
		vaddr: uint64(uintptr(unsafe.Pointer(&mem[0]))), iova: base, size: uint64(len(mem)),
	}
	if _, err := d.kernel.ioctl(d.space, vfioIOMMUMapDMA, unsafe.Pointer(m)); err != nil {
		return 0, failed("VFIO_IOMMU_MAP_DMA", err)
	}
	return base, nil
}

// containerRanges is what addresses the IOMMU of a container translates.
func (d *Device) containerRanges() ([]addressRange, error) {
	buf := make([]uint64, unsafe.Sizeof(iommuInfo{})/8)
	for range 2 { // the second time with room for the capabilities
		info := (*iommuInfo)(unsafe.Pointer(&buf[0]))
		*info = iommuInfo{argsz: uint32(len(buf) * 8)}
		if _, err := d.kernel.ioctl(d.space, vfioIOMMUGetInfo, unsafe.Pointer(info)); err != nil {
			return nil, failed("VFIO_IOMMU_GET_INFO", err)
		}
		if info.argsz <= uint32(len(buf)*8) || info.argsz > 1<<20 {
			break
		}
		buf = make([]uint64, (info.argsz+7)/8)
	}
	info := (*iommuInfo)(unsafe.Pointer(&buf[0]))
	if info.flags&iommuFlagCaps != 0 {
		mem := unsafe.Slice((*byte)(unsafe.Pointer(&buf[0])), len(buf)*8)
		if pairs, ok := rangesOf(mem, info.caps, iommuCapRanges); ok {
			return rangesFromPairs(pairs), nil
		}
	}
	return defaultRanges, nil
}

func rangesFromPairs(pairs [][2]uint64) []addressRange {
	ranges := make([]addressRange, 0, len(pairs))
	for _, p := range pairs {
		ranges = append(ranges, addressRange{p[0], p[1]})
	}
	return ranges
}

func (d *Device) mapIOAS(mem []byte) (uint64, error) {
	ranges, err := d.ioasRanges()
	if err != nil {
		return 0, err
	}
	base, err := chooseIOVA(ranges, uint64(len(mem)))
	if err != nil {
		return 0, err
	}
	m := &ioasMap{
		size: uint32(unsafe.Sizeof(ioasMap{})), flags: ioasMapFixed | ioasMapWrite | ioasMapRead, ioas: d.handle.IOAS,
		vaddr: uint64(uintptr(unsafe.Pointer(&mem[0]))), length: uint64(len(mem)), iova: base,
	}
	if _, err := d.kernel.ioctl(d.space, iommufdIOASMap, unsafe.Pointer(m)); err != nil {
		return 0, failed("IOMMU_IOAS_MAP", err)
	}
	return base, nil
}

func (d *Device) ioasRanges() ([]addressRange, error) {
	pairs := make([][2]uint64, 16)
	for range 2 { // the second time with as much room as there are ranges
		r := &ioasRanges{
			size: uint32(unsafe.Sizeof(ioasRanges{})), ioas: d.handle.IOAS,
			count: uint32(len(pairs)), pointer: uint64(uintptr(unsafe.Pointer(&pairs[0]))),
		}
		_, err := d.kernel.ioctl(d.space, iommufdIOASRanges, unsafe.Pointer(r))
		runtime.KeepAlive(pairs)
		switch {
		case err == nil && int(r.count) <= len(pairs):
			return rangesFromPairs(pairs[:r.count]), nil
		case errors.Is(err, unix.EMSGSIZE) && r.count < 1<<16:
			pairs = make([][2]uint64, r.count)
		default:
			return nil, failed("IOMMU_IOAS_IOVA_RANGES", err)
		}
	}
	return nil, fmt.Errorf("%w: the ranges of device addresses keep changing", ErrUnsupported)
}

// physicalBase is the physical address of memory that is contiguous for the
// machine, too: that of one huge page, or of some that happen to be neighbours.
func physicalBase(mem []byte) (uint64, error) {
	f, err := os.Open("/proc/self/pagemap")
	if err != nil {
		return 0, fmt.Errorf("physical addresses: %w", err)
	}
	defer f.Close()
	return contiguous(f, uintptr(unsafe.Pointer(&mem[0])), len(mem))
}

// Layout of an entry of pagemap.
const (
	pagemapPresent = 1 << 63
	pagemapFrame   = 1<<55 - 1
)

// contiguous looks n bytes at vaddr up in a pagemap.
func contiguous(pagemap interface {
	ReadAt([]byte, int64) (int, error)
}, vaddr uintptr, n int) (uint64, error) {
	const page = nvme.PageSizeBytes
	entries := make([]byte, n/page*8)
	if _, err := pagemap.ReadAt(entries, int64(vaddr/page*8)); err != nil {
		return 0, fmt.Errorf("physical addresses: %w", err)
	}
	var first uint64
	for i := 0; i < len(entries); i += 8 {
		e := binary.NativeEndian.Uint64(entries[i:])
		frame := e & pagemapFrame
		switch {
		case e&pagemapPresent == 0:
			return 0, fmt.Errorf("%w: page %d of the arena is not in memory; touch it and lock it before", ErrUnsupported, i/8)
		case frame == 0:
			return 0, fmt.Errorf("%w: physical addresses are hidden; run this as root", ErrUnsupported)
		case i == 0:
			first = frame
		case frame != first+uint64(i/8):
			return 0, fmt.Errorf("%w: without an IOMMU the arena has to be physically contiguous, which it is for %d of %d bytes; use memory of one huge page (hugetlbfs)",
				ErrUnsupported, i/8*page, n)
		}
	}
	return first * page, nil
}
