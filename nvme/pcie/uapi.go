package pcie

import "unsafe"

// Layouts and numbers of linux/vfio.h and linux/iommufd.h. The kernel never
// changes them: it adds fields at the end and goes by the size that comes first.
// All requests are made by _IO, without direction and size: type ';', number.

const ioctlType = ';' << 8

// Requests to a VFIO container (100 to 102, 112 to 114), group (103 to 106)
// and device (107 to 111, 118, 119).
const (
	vfioGetAPIVersion   = ioctlType | 100
	vfioCheckExtension  = ioctlType | 101
	vfioSetIOMMU        = ioctlType | 102
	vfioGroupGetStatus  = ioctlType | 103
	vfioGroupSetCtr     = ioctlType | 104
	vfioGroupGetDevice  = ioctlType | 106
	vfioDeviceGetInfo   = ioctlType | 107
	vfioGetRegionInfo   = ioctlType | 108
	vfioGetIRQInfo      = ioctlType | 109
	vfioSetIRQs         = ioctlType | 110
	vfioDeviceReset     = ioctlType | 111
	vfioIOMMUGetInfo    = ioctlType | 112
	vfioIOMMUMapDMA     = ioctlType | 113
	vfioIOMMUUnmapDMA   = ioctlType | 114
	vfioBindIOMMUFD     = ioctlType | 118
	vfioAttachIOMMUFD   = ioctlType | 119
	iommufdIOASAlloc    = ioctlType | 0x81
	iommufdIOASRanges   = ioctlType | 0x84
	iommufdIOASMap      = ioctlType | 0x85
	vfioAPIVersion      = 0
	vfioType1v2         = 3 // VFIO_TYPE1v2_IOMMU
	vfioNoIOMMU         = 8 // VFIO_NOIOMMU_IOMMU
	groupViable         = 1 << 0
	deviceFlagReset     = 1 << 0
	deviceFlagPCI       = 1 << 1
	regionFlagMmap      = 1 << 2
	regionFlagCaps      = 1 << 3
	regionCapSparse     = 1
	regionCapMSIXMap    = 3
	iommuFlagCaps       = 1 << 1
	iommuCapRanges      = 1
	dmaMapRead          = 1 << 0
	dmaMapWrite         = 1 << 1
	ioasMapFixed        = 1 << 0
	ioasMapWrite        = 1 << 1
	ioasMapRead         = 1 << 2
	irqSetDataEventfd   = 1 << 2
	irqSetActionTrigger = 1 << 5
)

// Indexes of VFIO's PCI regions and interrupts.
const (
	regionBAR0   = 0
	regionBAR5   = 5
	regionConfig = 7
	irqMSIX      = 2
	irqRequest   = 4 // the kernel wants the device back
)

// deviceInfo is vfio_device_info, without what was added to it.
//
//	0        4        8        12       16
//	| argsz  | flags  | regions| irqs   |
type deviceInfo struct{ argsz, flags, regions, irqs uint32 }

// regionInfo is vfio_region_info.
//
//	0        4        8        12        16       24       32
//	| argsz  | flags  | index  | caps at | size   | offset |
//
// Capabilities follow in the same memory if argsz leaves room for them.
type regionInfo struct {
	argsz, flags, index, caps uint32
	size, offset              uint64
}

// irqInfo is vfio_irq_info.
//
//	0        4        8        12       16
//	| argsz  | flags  | index  | count  |
type irqInfo struct{ argsz, flags, index, count uint32 }

// irqSet is vfio_irq_set; count descriptors of 4 bytes follow.
//
//	0        4        8        12       16       20
//	| argsz  | flags  | index  | start  | count  | …
type irqSet struct{ argsz, flags, index, start, count uint32 }

// groupStatus is vfio_group_status.
//
//	0        4        8
//	| argsz  | flags  |
type groupStatus struct{ argsz, flags uint32 }

// capHeader is vfio_info_cap_header; next counts from the beginning of the
// structure that the chain belongs to, 0 ends it.
//
//	0    2         4        8
//	| id | version | next   |
type capHeader struct {
	id, version uint16
	next        uint32
}

// rangesCap is the beginning of vfio_region_info_cap_sparse_mmap and of
// vfio_iommu_type1_info_cap_iova_range: count pairs of 64-bit numbers follow,
// offset and size in the first, first and last address in the second.
//
//	0        8        12         16
//	| header | count  | reserved | pairs …
type rangesCap struct {
	capHeader
	count, reserved uint32
}

// iommuInfo is vfio_iommu_type1_info.
//
//	0        4        8             16        20    24
//	| argsz  | flags  | page sizes  | caps at | pad |
type iommuInfo struct {
	argsz, flags uint32
	pageSizes    uint64
	caps, pad    uint32
}

// dmaMap is vfio_iommu_type1_dma_map.
//
//	0        4        8       16     24     32
//	| argsz  | flags  | vaddr | iova | size |
type dmaMap struct {
	argsz, flags      uint32
	vaddr, iova, size uint64
}

// dmaUnmap is vfio_iommu_type1_dma_unmap.
//
//	0        4        8      16     24
//	| argsz  | flags  | iova | size |
type dmaUnmap struct {
	argsz, flags uint32
	iova, size   uint64
}

// bindIOMMUFD is vfio_device_bind_iommufd, without what was added to it.
//
//	0        4        8         12        16
//	| argsz  | flags  | iommufd | out id  |
type bindIOMMUFD struct {
	argsz, flags uint32
	iommufd      int32
	outID        uint32
}

// attachIOMMUFD is vfio_device_attach_iommufd_pt, without what was added to it.
//
//	0        4        8       12
//	| argsz  | flags  | pt id |
type attachIOMMUFD struct{ argsz, flags, ptID uint32 }

// ioasAlloc is iommu_ioas_alloc.
//
//	0       4        8        12
//	| size  | flags  | out id |
type ioasAlloc struct{ size, flags, outID uint32 }

// ioasRanges is iommu_ioas_iova_ranges; pointer leads to count pairs of first
// and last address.
//
//	0       4      8       12         16        24          32
//	| size  | ioas | count | reserved | pointer | alignment |
type ioasRanges struct {
	size, ioas, count, reserved uint32
	pointer, alignment          uint64
}

// ioasMap is iommu_ioas_map.
//
//	0       4       8      12         16      24       32     40
//	| size  | flags | ioas | reserved | vaddr | length | iova |
type ioasMap struct {
	size, flags, ioas, reserved uint32
	vaddr, length, iova         uint64
}

// Sizes that the kernel expects: a wrong one does not compile.
var (
	_ [16]byte = [unsafe.Sizeof(deviceInfo{})]byte{}
	_ [32]byte = [unsafe.Sizeof(regionInfo{})]byte{}
	_ [16]byte = [unsafe.Sizeof(irqInfo{})]byte{}
	_ [20]byte = [unsafe.Sizeof(irqSet{})]byte{}
	_ [8]byte  = [unsafe.Sizeof(groupStatus{})]byte{}
	_ [8]byte  = [unsafe.Sizeof(capHeader{})]byte{}
	_ [16]byte = [unsafe.Sizeof(rangesCap{})]byte{}
	_ [24]byte = [unsafe.Sizeof(iommuInfo{})]byte{}
	_ [32]byte = [unsafe.Sizeof(dmaMap{})]byte{}
	_ [24]byte = [unsafe.Sizeof(dmaUnmap{})]byte{}
	_ [16]byte = [unsafe.Sizeof(bindIOMMUFD{})]byte{}
	_ [12]byte = [unsafe.Sizeof(attachIOMMUFD{})]byte{}
	_ [12]byte = [unsafe.Sizeof(ioasAlloc{})]byte{}
	_ [32]byte = [unsafe.Sizeof(ioasRanges{})]byte{}
	_ [40]byte = [unsafe.Sizeof(ioasMap{})]byte{}
)

// Offsets that alignment could move.
var (
	_ [16]byte = [unsafe.Offsetof(regionInfo{}.size)]byte{}
	_ [8]byte  = [unsafe.Offsetof(iommuInfo{}.pageSizes)]byte{}
	_ [8]byte  = [unsafe.Offsetof(dmaMap{}.vaddr)]byte{}
	_ [8]byte  = [unsafe.Offsetof(dmaUnmap{}.iova)]byte{}
	_ [16]byte = [unsafe.Offsetof(ioasRanges{}.pointer)]byte{}
	_ [16]byte = [unsafe.Offsetof(ioasMap{}.vaddr)]byte{}
)
