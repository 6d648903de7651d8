package pcie

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"runsc-fs/nvme"
)

// fake is a kernel with one NVMe function at testAddress. The device's file is a
// memfd, so that reading, writing and mapping it are real; ioctls are answered
// as VFIO does, and strict about what it is strict about.
type fake struct {
	t    *testing.T
	root string // has sys and dev

	// What the machine is like.
	barBytes    uint64
	areas       []area      // sparse mappings of BAR 0; nil: no such capability
	oldKernel   bool        // the MSI-X table cannot be mapped, and nothing says so
	noMmap      bool        // BAR 0 cannot be mapped
	notViable   bool        // another driver is in the group
	noReset     bool        // the function cannot be reset
	ranges      [][2]uint64 // of the IOMMU; nil: it does not say
	msixOffset  uint32      // MSI-X table, with the BAR's number
	msixEntries int         // 0: no MSI-X
	errs        map[uintptr]error
	resetting   chan struct{} // a reset begins, and goes on, with a message; nil: it does not wait

	mu       sync.Mutex
	device   *os.File
	requests []uintptr // in order
	opened   []string
	mapped   [][3]uint64      // vaddr, iova, size
	events   map[uint32][]int // dup of eventfds by IRQ index
	busMast  map[uintptr]bool // bus mastering was on at the request
}

const testAddress Address = "0000:03:00.0"

// newFake makes a machine with VFIO groups; iommufd adds the files for that.
func newFake(t *testing.T) *fake {
	f := &fake{
		t: t, root: t.TempDir(), barBytes: 16 << 10, msixOffset: 0x2000, msixEntries: 65,
		ranges: [][2]uint64{{0, 0xfedfffff}, {0xfef00000, 1<<39 - 1}},
		errs:   map[uintptr]error{}, events: map[uint32][]int{}, busMast: map[uintptr]bool{},
	}
	dir := f.path("sys/bus/pci/devices", string(testAddress))
	f.mkdir("sys/bus/pci/drivers/vfio-pci")
	f.mkdir("sys/kernel/iommu_groups/7/devices")
	f.mkdir("sys/bus/pci/devices", string(testAddress))
	f.mkdir("dev/vfio/devices")
	f.link(f.path("sys/bus/pci/drivers/vfio-pci"), filepath.Join(dir, "driver"))
	f.link(f.path("sys/kernel/iommu_groups/7"), filepath.Join(dir, "iommu_group"))
	f.link(dir, f.path("sys/kernel/iommu_groups/7/devices", string(testAddress)))
	f.file("dev/vfio/vfio")
	f.file("dev/vfio/7")
	return f
}

func (f *fake) path(elem ...string) string {
	return filepath.Join(append([]string{f.root}, elem...)...)
}

func (f *fake) mkdir(elem ...string) {
	if err := os.MkdirAll(f.path(elem...), 0o755); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fake) link(target, name string) {
	if err := os.Symlink(target, name); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fake) file(elem ...string) {
	if err := os.WriteFile(f.path(elem...), nil, 0o644); err != nil {
		f.t.Fatal(err)
	}
}

// iommufd adds iommufd and the device's own file.
func (f *fake) iommufd() {
	f.mkdir("sys/bus/pci/devices", string(testAddress), "vfio-dev/vfio0")
	f.file("dev/vfio/devices/vfio0")
	f.file("dev/iommu")
}

func (f *fake) options() Options { return Options{Root: f.root, Logf: f.t.Logf, kernel: f} }

func (f *fake) open(path string) (*os.File, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	rel, err := filepath.Rel(f.root, path)
	if err != nil {
		return nil, err
	}
	f.opened = append(f.opened, rel)
	if rel == "dev/vfio/devices/vfio0" {
		return f.makeDevice()
	}
	return os.OpenFile(path, os.O_RDWR, 0)
}

// makeDevice makes the file of the device: BAR 0 at 0, the configuration space at
// 7 << 40, as VFIO has it.
func (f *fake) makeDevice() (*os.File, error) {
	fd, err := unix.MemfdCreate("fake device", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	dev := os.NewFile(uintptr(fd), "fake device")
	cfg := make([]byte, 256)
	cfg[cfgClass+1], cfg[cfgClass+2], cfg[cfgClass+3] = 0x02, 0x08, 0x01
	cfg[cfgCapabilities] = 0x40
	copy(cfg[0x40:], []byte{0x01, 0x60}) // power management comes first
	if f.msixEntries > 0 {
		cfg[0x60] = capMSIX
		binary.LittleEndian.PutUint16(cfg[0x62:], uint16(f.msixEntries-1))
		binary.LittleEndian.PutUint32(cfg[0x64:], f.msixOffset)
	}
	if _, err := dev.WriteAt(cfg, regionConfig<<40); err != nil {
		return nil, err
	}
	if f.device, err = dup(dev); err != nil {
		return nil, err
	}
	f.t.Cleanup(func() { f.device.Close() })
	return dev, nil
}

func dup(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	return os.NewFile(uintptr(fd), f.Name()), err
}

func (f *fake) ioctlInt(_ *os.File, request, arg uintptr) (int, error) {
	return f.answer(request, nil, arg)
}

func (f *fake) ioctl(_ *os.File, request uintptr, arg unsafe.Pointer) (int, error) {
	return f.answer(request, arg, 0)
}

func (f *fake) answer(request uintptr, p unsafe.Pointer, n uintptr) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.requests = append(f.requests, request)
	if f.device != nil {
		f.busMast[request] = f.commandLocked()&commandBusMaster != 0
	}
	if err := f.errs[request]; err != nil {
		return 0, err
	}
	switch request {
	case vfioGetAPIVersion:
		return 0, nil
	case vfioCheckExtension:
		if n == vfioType1v2 || n == vfioNoIOMMU {
			return 1, nil
		}
		return 0, nil
	case vfioSetIOMMU, vfioGroupSetCtr:
		return 0, nil
	case vfioGroupGetStatus:
		if s := (*groupStatus)(p); !f.notViable {
			s.flags = groupViable
		}
		return 0, nil
	case vfioGroupGetDevice:
		if name := unix.BytePtrToString((*byte)(p)); name != string(testAddress) {
			return 0, unix.ENODEV
		}
		dev, err := f.makeDevice()
		if err != nil {
			return 0, err
		}
		return unix.Dup(int(dev.Fd()))
	case vfioBindIOMMUFD:
		if b := (*bindIOMMUFD)(p); b.argsz != 16 || b.iommufd <= 0 {
			return 0, unix.EBADF
		}
		return 0, nil
	case iommufdIOASAlloc:
		(*ioasAlloc)(p).outID = 3
		return 0, nil
	case vfioAttachIOMMUFD:
		if (*attachIOMMUFD)(p).ptID != 3 {
			return 0, unix.ENOENT
		}
		return 0, nil
	case vfioDeviceGetInfo:
		i := (*deviceInfo)(p)
		i.flags, i.regions, i.irqs = deviceFlagPCI, 9, 5
		if !f.noReset {
			i.flags |= deviceFlagReset
		}
		return 0, nil
	case vfioDeviceReset:
		if f.noReset {
			return 0, unix.ENOTTY
		}
		if f.resetting != nil {
			f.resetting <- struct{}{}
			<-f.resetting
		}
		return 0, nil
	case vfioGetRegionInfo:
		return 0, f.regionLocked((*regionInfo)(p))
	case vfioGetIRQInfo:
		i := (*irqInfo)(p)
		if i.count = 1; i.index == irqMSIX {
			i.count = uint32(f.msixEntries)
		}
		return 0, nil
	case vfioSetIRQs:
		return 0, f.setIRQsLocked(p)
	case vfioIOMMUGetInfo:
		return 0, f.iommuInfoLocked((*iommuInfo)(p))
	case vfioIOMMUMapDMA:
		m := (*dmaMap)(p)
		if m.argsz != 32 || m.flags != dmaMapRead|dmaMapWrite {
			return 0, unix.EINVAL
		}
		f.mapped = append(f.mapped, [3]uint64{m.vaddr, m.iova, m.size})
		return 0, nil
	case iommufdIOASRanges:
		r := (*ioasRanges)(p)
		if r.size != 32 || r.ioas != 3 {
			return 0, unix.EINVAL
		}
		room := r.count
		if r.count = uint32(len(f.ranges)); room < r.count {
			return 0, unix.EMSGSIZE
		}
		copy(unsafe.Slice((*[2]uint64)(*(*unsafe.Pointer)(unsafe.Pointer(&r.pointer))), room), f.ranges)
		return 0, nil
	case iommufdIOASMap:
		m := (*ioasMap)(p)
		if m.size != 40 || m.flags != 7 || m.ioas != 3 {
			return 0, unix.EINVAL
		}
		f.mapped = append(f.mapped, [3]uint64{m.vaddr, m.iova, m.length})
		return 0, nil
	}
	return 0, unix.ENOTTY
}

// putCap writes a capability with pairs of numbers behind a structure of head
// bytes, if size has room; it returns the size that it takes.
func putCap(p unsafe.Pointer, head, size uint32, id uint16, pairs [][2]uint64) (need uint32, done bool) {
	need = head + 16 + 16*uint32(len(pairs))
	if size < need {
		return need, false
	}
	mem := unsafe.Slice((*byte)(p), need)[head:]
	binary.NativeEndian.PutUint16(mem, id)
	binary.NativeEndian.PutUint32(mem[8:], uint32(len(pairs)))
	for i, pair := range pairs {
		binary.NativeEndian.PutUint64(mem[16+16*i:], pair[0])
		binary.NativeEndian.PutUint64(mem[24+16*i:], pair[1])
	}
	return need, true
}

func (f *fake) regionLocked(i *regionInfo) error {
	i.offset = uint64(i.index) << 40
	switch i.index {
	case regionConfig:
		i.size = 256
	case regionBAR0:
		if i.size = f.barBytes; f.noMmap {
			break
		}
		if err := unix.Ftruncate(int(f.device.Fd()), max(int64(f.barBytes), regionConfig<<40+256)); err != nil {
			return err
		}
		i.flags = regionFlagMmap
		if f.oldKernel {
			break
		}
		if f.areas == nil {
			f.mappable(i)
			break
		}
		var pairs [][2]uint64
		for _, a := range f.areas {
			pairs = append(pairs, [2]uint64{a.offset, a.size})
		}
		i.flags |= regionFlagCaps
		need, done := putCap(unsafe.Pointer(i), 32, i.argsz, regionCapSparse, pairs)
		if i.argsz = need; done {
			i.caps = 32
		}
	case 4:
		i.size, i.flags = 8<<10, regionFlagMmap
		f.mappable(i)
	}
	return nil
}

// mappable says that the MSI-X table may be mapped.
func (f *fake) mappable(i *regionInfo) {
	i.flags |= regionFlagCaps
	if i.argsz >= 32+8 {
		binary.NativeEndian.PutUint16(unsafe.Slice((*byte)(unsafe.Pointer(i)), 40)[32:], regionCapMSIXMap)
		i.caps = 32
	}
	i.argsz = 32 + 8
}

func (f *fake) iommuInfoLocked(i *iommuInfo) error {
	i.pageSizes = 4096
	if f.ranges == nil {
		return nil
	}
	i.flags |= iommuFlagCaps
	need, done := putCap(unsafe.Pointer(i), 24, i.argsz, iommuCapRanges, f.ranges)
	if i.argsz = need; done {
		i.caps = 24
	}
	return nil
}

func (f *fake) setIRQsLocked(p unsafe.Pointer) error {
	s := (*irqSet)(p)
	if s.flags != irqSetDataEventfd|irqSetActionTrigger || s.start != 0 || s.argsz != 20+4*s.count {
		return unix.EINVAL
	}
	for _, fd := range unsafe.Slice((*int32)(unsafe.Add(p, 20)), s.count) {
		n, err := unix.Dup(int(fd))
		if err != nil {
			return err
		}
		f.t.Cleanup(func() { unix.Close(n) })
		f.events[s.index] = append(f.events[s.index], n)
	}
	return nil
}

// raise raises an interrupt.
func (f *fake) raise(index uint32, n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, err := unix.Write(f.events[index][n], binary.NativeEndian.AppendUint64(nil, 1)); err != nil {
		f.t.Error(err)
	}
}

func (f *fake) commandLocked() uint16 {
	var b [2]byte
	if _, err := f.device.ReadAt(b[:], regionConfig<<40+cfgCommand); err != nil {
		f.t.Error(err)
	}
	return binary.LittleEndian.Uint16(b[:])
}

func (f *fake) command() uint16 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.commandLocked()
}

// bar reads a register where the device has it.
func (f *fake) bar(off int64) uint32 {
	var b [4]byte
	if _, err := f.device.ReadAt(b[:], off); err != nil {
		f.t.Error(err)
	}
	return binary.LittleEndian.Uint32(b[:])
}

func (f *fake) setBar(off int64, v uint32) {
	if _, err := f.device.WriteAt(binary.LittleEndian.AppendUint32(nil, v), off); err != nil {
		f.t.Error(err)
	}
}

func (f *fake) made(request uintptr) bool { return slices.Contains(f.requests, request) }

// attach opens the device for the test.
func (f *fake) attach(opts Options) (*Transport, *nvme.Arena) {
	f.t.Helper()
	arena, err := nvme.NewArena(nvme.ArenaOptions{SizeBytes: 4 << 20})
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { arena.Close() })
	tr, err := Open(testAddress, arena, opts)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() {
		if err := tr.Close(); err != nil {
			f.t.Errorf("closing: %v", err)
		}
	})
	return tr, arena
}

func (f *fake) String() string { return fmt.Sprintf("fake kernel in %s", f.root) }
