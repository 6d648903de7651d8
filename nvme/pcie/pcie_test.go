package pcie

import (
	"encoding/binary"
	"errors"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"runsc-fs/nvme"
)

func TestParseAddress(t *testing.T) {
	for in, want := range map[string]Address{
		"0000:03:00.0": "0000:03:00.0", "03:00.0": "0000:03:00.0", "10000:E1:1F.7": "10000:e1:1f.7",
		"": "", "03:00": "", "03:00.8": "", "03:20.0": "", "../03:00.0": "", "0000:03:00.0/": "", "zz:00.0": "",
	} {
		got, err := ParseAddress(in)
		if got != want || (err == nil) == (want == "") {
			t.Errorf("%q: %q, %v", in, got, err)
		}
	}
}

// TestOpen goes through both interfaces from the first file to the last one.
func TestOpen(t *testing.T) {
	for _, api := range []API{APIGroup, APIIOMMUFD} {
		t.Run(string(api), func(t *testing.T) {
			f := newFake(t)
			if api == APIIOMMUFD {
				f.iommufd()
			}
			tr, arena := f.attach(f.options())
			if tr.API() != api || tr.Address() != testAddress || tr.Arena() != arena {
				t.Errorf("opened %s by %s", tr.Address(), tr.API())
			}
			vaddr := uint64(uintptr(unsafe.Pointer(&arena.Bytes()[0])))
			if want := [][3]uint64{{vaddr, tr.DMABase(), uint64(arena.SizeBytes())}}; !slices.Equal(f.mapped, want) {
				t.Errorf("mapped for DMA %x, want the arena only: %x", f.mapped, want)
			}
			if tr.DMABase() != 2<<20 {
				t.Errorf("the arena is at %#x for the device", tr.DMABase())
			}
			if !f.made(vfioDeviceReset) {
				t.Error("the device was not reset")
			}
			if f.busMast[vfioIOMMUMapDMA] || f.busMast[iommufdIOASMap] {
				t.Error("the device is bus master before it has its own addresses")
			}
			if c := f.command(); c&(commandBusMaster|commandMemory|commandNoINTx) != commandBusMaster|commandMemory|commandNoINTx {
				t.Errorf("command register %#x", c)
			}
			if _, err := tr.d.space.Stat(); !errors.Is(err, os.ErrClosed) {
				t.Errorf("the I/O address space can still be changed: %v", err)
			}
			tr.StopDMA()
			if c := f.command(); c&commandBusMaster != 0 {
				t.Errorf("command register %#x after StopDMA", c)
			}
			f.requests = nil
			if err := tr.Close(); err != nil {
				t.Error(err)
			}
			if !f.made(vfioDeviceReset) || tr.Read32(0x1c) != math.MaxUint32 {
				t.Error("not reset by Close, or still there")
			}
		})
	}
}

func TestAPIIsChosen(t *testing.T) {
	f := newFake(t)
	f.iommufd()
	opts := f.options()
	opts.API = APIGroup
	if tr, _ := f.attach(opts); tr.API() != APIGroup {
		t.Errorf("group demanded, got %s", tr.API())
	}
	f = newFake(t)
	opts = f.options()
	opts.API = APIIOMMUFD
	if _, err := OpenDevice(testAddress, opts); !errors.Is(err, ErrUnsupported) {
		t.Errorf("iommufd where there is none: %v", err)
	}
	opts.API = "uio"
	if _, err := OpenDevice(testAddress, opts); !errors.Is(err, ErrUnsupported) {
		t.Errorf("unknown interface: %v", err)
	}
}

// TestAdoptedDeviceMakesNoIoctl: a sandbox's filter would kill it.
func TestAdoptedDeviceMakesNoIoctl(t *testing.T) {
	f := newFake(t)
	opened, err := OpenDevice(testAddress, f.options())
	if err != nil {
		t.Fatal(err)
	}
	device, space := opened.Files()
	d := AdoptDevice(opened.Handle(), device, space, t.Logf)
	d.kernel = f
	arena, err := nvme.NewArena(nvme.ArenaOptions{SizeBytes: 4 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer arena.Close()
	tr, err := d.Attach(arena)
	if err != nil {
		t.Fatal(err)
	}
	f.requests = nil
	tr.Write32(0x1000, 5)
	tr.WaitInterrupt(1, time.Microsecond)
	tr.StopDMA()
	tr.Retire()
	if err := tr.Close(); err != nil {
		t.Error(err)
	}
	if len(f.requests) != 0 {
		t.Errorf("requests after Attach: %x", f.requests)
	}
}

func TestErrors(t *testing.T) {
	for _, test := range []struct {
		name   string
		spoil  func(f *fake)
		class  error
		remedy string
	}{
		{"no device", func(f *fake) { os.RemoveAll(f.path("sys/bus")) }, ErrNoDevice, "device ls"},
		{"no driver", func(f *fake) { os.Remove(f.path("sys/bus/pci/devices", string(testAddress), "driver")) }, ErrNotBound, "device bind 0000:03:00.0"},
		{"other driver", func(f *fake) {
			driver := f.path("sys/bus/pci/devices", string(testAddress), "driver")
			os.Remove(driver)
			f.link("/x/nvme", driver)
		}, ErrNotBound, "to nvme"},
		{"no IOMMU", func(f *fake) { os.Remove(f.path("sys/bus/pci/devices", string(testAddress), "iommu_group")) }, ErrNoIOMMU, "intel_iommu=on"},
		{"no-IOMMU group", func(f *fake) {
			os.WriteFile(f.path("sys/kernel/iommu_groups/7/name"), []byte("vfio-noiommu\n"), 0o644)
		}, ErrNoIOMMU, "overwrite any memory"},
		{"no VFIO", func(f *fake) { os.Remove(f.path("dev/vfio/vfio")) }, ErrUnsupported, "modprobe vfio-pci"},
		{"not viable", func(f *fake) {
			f.notViable = true
			f.mkdir("sys/kernel/iommu_groups/7/devices/0000:04:00.0")
			f.link("/x/e1000e", f.path("sys/kernel/iommu_groups/7/devices/0000:04:00.0/driver"))
		}, ErrNotViable, "0000:04:00.0 (e1000e)"},
		{"locked memory", func(f *fake) { f.errs[vfioIOMMUMapDMA] = unix.ENOMEM }, unix.ENOMEM, "ulimit -l"},
		{"no room", func(f *fake) { f.ranges = [][2]uint64{{0, 4 << 20}} }, ErrUnsupported, "0x0 to 0x400000"},
		{"unsafe interrupts", func(f *fake) { f.errs[vfioSetIOMMU] = unix.EPERM }, unix.EPERM, "allow_unsafe_interrupts=1"},
		{"small BAR", func(f *fake) { f.barBytes = 4096 }, ErrUnsupported, "BAR 0"},
		{"no reset", func(f *fake) { f.errs[vfioDeviceReset] = unix.EIO }, unix.EIO, "VFIO_DEVICE_RESET"},
		{"no events", func(f *fake) { f.errs[vfioSetIRQs] = unix.ENOSPC }, unix.ENOSPC, "VFIO_DEVICE_SET_IRQS"},
		{"used by iommufd", func(f *fake) { f.iommufd(); f.errs[vfioBindIOMMUFD] = unix.EBUSY }, ErrInUse, "another process"},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := newFake(t)
			test.spoil(f)
			arena, err := nvme.NewArena(nvme.ArenaOptions{SizeBytes: 4 << 20})
			if err != nil {
				t.Fatal(err)
			}
			defer arena.Close()
			tr, err := Open(testAddress, arena, f.options())
			if err == nil {
				tr.Close()
				t.Fatal("no error")
			}
			if !errors.Is(err, test.class) || !strings.Contains(err.Error(), test.remedy) || !strings.HasPrefix(err.Error(), "device 0000:03:00.0: ") || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %q, want one line that is %q and has %q", err, test.class, test.remedy)
			}
		})
	}
}

// TestHoles: registers in pages that cannot be mapped are reached nevertheless.
func TestHoles(t *testing.T) {
	for _, test := range []struct {
		name    string
		set     func(f *fake)
		windows []area
		vectors bool
	}{
		{"whole", func(f *fake) {}, []area{{0, 16 << 10}}, true},
		{"around the MSI-X table", func(f *fake) { f.areas = []area{{0x3000, 0x1000}, {0, 0x2000}} }, []area{{0, 0x2000}, {0x3000, 0x1000}}, false},
		{"table that the kernel keeps", func(f *fake) { f.oldKernel = true }, []area{{0, 0x2000}, {0x3000, 0x1000}}, false},
		{"doorbells in the hole", func(f *fake) { f.areas = []area{{0, 0x1000}} }, []area{{0, 0x1000}}, false},
		{"nothing", func(f *fake) { f.noMmap = true }, nil, false},
		{"no whole page", func(f *fake) { f.areas = []area{{0x10, 0x1000}} }, nil, false},
		{"beyond the end", func(f *fake) { f.areas = []area{{0x1000, math.MaxUint64}, {0x2000, 1 << 40}} }, []area{{0x2000, 0x2000}}, true},
		{"table in BAR 4", func(f *fake) { f.msixOffset = 0x1000 | 4 }, []area{{0, 16 << 10}}, true},
		{"no MSI-X", func(f *fake) { f.msixEntries = 0 }, []area{{0, 16 << 10}}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := newFake(t)
			test.set(f)
			tr, _ := f.attach(f.options())
			var got []area
			for _, w := range tr.regs.windows {
				got = append(got, w.area)
			}
			if !slices.Equal(got, test.windows) {
				t.Errorf("mapped %x, want %x", got, test.windows)
			}
			if (tr.Vectors() > 0) != test.vectors {
				t.Errorf("%d vectors", tr.Vectors())
			}
			for _, reg := range []uint32{0x14, 0xffc, 0x1000, 0x1ffc, 0x3000, 0x3ffc} {
				tr.Write32(reg, reg*7)
				if got := f.bar(int64(reg)); got != reg*7 {
					t.Errorf("register %#x has %#x, %#x was written", reg, got, reg*7)
				}
				f.setBar(int64(reg), reg*5)
				if got := tr.Read32(reg); got != reg*5 {
					t.Errorf("register %#x reads as %#x instead of %#x", reg, got, reg*5)
				}
			}
			tr.Write64(0x28, 0x1122334455667788)
			if lo, hi := f.bar(0x28), f.bar(0x2c); lo != 0x55667788 || hi != 0x11223344 || tr.Read64(0x28) != 0x1122334455667788 {
				t.Errorf("64 bits: %#x %#x", lo, hi)
			}
			if got := tr.Read32(0x4000); got != math.MaxUint32 {
				t.Errorf("beyond the end: %#x", got)
			}
			tr.Write32(0x3ffe, 1) // half of it is beyond the end
		})
	}
}

func TestWithout(t *testing.T) {
	const p = 4096
	for _, test := range []struct {
		hole area
		want []area
	}{
		{area{0, p}, []area{{p, 3 * p}}},
		{area{p + 16, 16}, []area{{0, p}, {2 * p, 2 * p}}},
		{area{2*p - 8, 16}, []area{{0, p}, {3 * p, p}}},
		{area{0, 4 * p}, nil},
		{area{8 * p, p}, []area{{0, 4 * p}}},
	} {
		if got := without([]area{{0, 4 * p}}, test.hole); !slices.Equal(got, test.want) {
			t.Errorf("without %x: %x, want %x", test.hole, got, test.want)
		}
	}
}

func TestChooseIOVA(t *testing.T) {
	const M, G = 1 << 20, 1 << 30
	for _, test := range []struct {
		ranges []addressRange
		size   uint64
		want   uint64 // 0: none
	}{
		{defaultRanges, 64 * M, 2 * M},
		{defaultRanges, G, G},
		{defaultRanges, 4 * G, 4 * G},                                                         // not over the interrupts' addresses
		{[]addressRange{{8 * G, 9*G - 1}, {0, 512*M - 1}}, G, 8 * G},                          // unsorted
		{[]addressRange{{0, 3*G/2 - 1}}, G, 2 * M},                                            // no room for the best alignment
		{[]addressRange{{5 * M, 6*M - 1}}, M, 5 * M},                                          // nor for the next one
		{[]addressRange{{0, math.MaxUint64}}, 1 << 40, G},                                     // no overflow
		{[]addressRange{{math.MaxUint64 - M, math.MaxUint64}}, 2 * M, 0},                      // too small, at the very end
		{[]addressRange{{math.MaxUint64 - M + 1, math.MaxUint64}}, M, math.MaxUint64 - M + 1}, // exactly
		{nil, M, 0},
	} {
		got, err := chooseIOVA(test.ranges, test.size)
		if got != test.want || (err == nil) != (test.want != 0) {
			t.Errorf("%x, %x bytes: %#x, %v; want %#x", test.ranges, test.size, got, err, test.want)
		}
	}
}

// TestManyRanges: more of them than there is room for at first.
func TestManyRanges(t *testing.T) {
	for _, api := range []API{APIGroup, APIIOMMUFD} {
		f := newFake(t)
		if f.ranges = nil; api == APIIOMMUFD {
			f.iommufd()
		}
		for i := range uint64(40) {
			f.ranges = append(f.ranges, [2]uint64{i << 32, i<<32 + 1<<20})
		}
		f.ranges = append(f.ranges, [2]uint64{1 << 42, 1<<43 - 1})
		if tr, _ := f.attach(f.options()); tr.DMABase() != 1<<42 {
			t.Errorf("%s: the arena is at %#x", api, tr.DMABase())
		}
	}
	f := newFake(t)
	f.ranges = nil // an old kernel
	if tr, _ := f.attach(f.options()); tr.DMABase() != 2<<20 {
		t.Errorf("without ranges the arena is at %#x", tr.DMABase())
	}
}

func TestBrokenCapabilities(t *testing.T) {
	mem := make([]byte, 64)
	for _, at := range []uint32{1, 60, 64, 1 << 31} {
		if _, ok := rangesOf(mem, at, 9); ok {
			t.Errorf("capability at %d of nothing", at)
		}
	}
	binary.NativeEndian.PutUint16(mem[8:], 9)
	binary.NativeEndian.PutUint32(mem[12:], 8)   // the chain leads to itself
	binary.NativeEndian.PutUint32(mem[16:], 100) // more pairs than memory
	if _, ok := rangesOf(mem, 8, 9); ok {
		t.Error("100 pairs in 40 bytes")
	}
	if _, ok := rangesOf(mem, 8, 5); ok {
		t.Error("found in a ring")
	}
}

func TestInterrupts(t *testing.T) {
	f := newFake(t)
	tr, _ := f.attach(f.options())
	control := func(n int) uint32 { return f.bar(0x2000 + int64(n)*msixEntryBytes + msixVectorCtl) }
	if n := tr.Vectors(); n < 2 || n > maxVectors || len(f.events[irqMSIX]) != n {
		t.Fatalf("%d vectors, %d eventfds", n, len(f.events[irqMSIX]))
	}
	for i := range tr.Vectors() {
		if control(i)&msixMasked == 0 {
			t.Errorf("vector %d is not masked", i)
		}
	}
	if tr.WaitInterrupt(1, time.Millisecond) {
		t.Error("an interrupt out of nothing")
	}
	if control(1)&msixMasked == 0 {
		t.Error("not masked after the wait")
	}
	var wg sync.WaitGroup
	for range 3 { // all of them are woken by one interrupt
		wg.Go(func() {
			if !tr.WaitInterrupt(1, time.Minute) {
				t.Error("no interrupt")
			}
		})
	}
	for done := false; !done; time.Sleep(time.Millisecond) {
		v := tr.vectors[1]
		v.mu.Lock()
		done = len(v.waiters) == 3
		v.mu.Unlock()
	}
	if control(1)&msixMasked != 0 || control(0)&msixMasked == 0 {
		t.Error("vector 1 is masked while it is waited for, or vector 0 is not")
	}
	f.raise(irqMSIX, 1)
	wg.Wait()
	if control(1)&msixMasked == 0 {
		t.Error("not masked after the interrupt")
	}
	tr.WaitInterrupt(1, 0) // has made what a wait needs
	if n := testing.AllocsPerRun(100, func() { tr.WaitInterrupt(1, time.Microsecond) }); n > 0.5 {
		t.Errorf("%v allocations for a wait", n)
	}
}

// TestCloseWakes: whoever waits for an interrupt does not wait on.
func TestCloseWakes(t *testing.T) {
	f := newFake(t)
	tr, _ := f.attach(f.options())
	done := make(chan bool)
	go func() { done <- tr.WaitInterrupt(1, time.Hour) }()
	for waiting := false; !waiting; time.Sleep(time.Millisecond) {
		v := tr.vectors[1]
		v.mu.Lock()
		waiting = len(v.waiters) == 1
		v.mu.Unlock()
	}
	tr.Retire()
	<-done
	if tr.WaitInterrupt(1, time.Hour) {
		t.Error("an interrupt of a device that is gone")
	}
}

// TestRequest: the kernel wants the device back. Callers on their way to a
// register find memory there.
func TestRequest(t *testing.T) {
	f := newFake(t)
	tr, _ := f.attach(f.options())
	f.setBar(0x1c, 1)
	if v := tr.Read32(0x1c); v != 1 {
		t.Fatalf("CSTS %#x", v)
	}
	f.raise(irqRequest, 0)
	for tr.Read32(0x1c) != math.MaxUint32 {
		time.Sleep(time.Millisecond)
	}
	tr.closeMu.Lock() // released by now
	tr.closeMu.Unlock()
	if v := tr.regs.read32(0x1c); v != math.MaxUint32 {
		t.Errorf("a late reader finds %#x", v)
	}
	tr.regs.write32(0x1000, 7)
	if v := f.bar(0x1000); v == 7 {
		t.Error("a late write reached the device")
	}
	if f.command()&commandBusMaster != 0 {
		t.Error("still bus master")
	}
	if _, err := tr.d.device.Stat(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("the device's file is open: %v", err)
	}
	tr.Write32(0x1000, 9)
	tr.StopDMA()
}

// TestRemovedDevice: the driver on a device that was pulled out ends with
// nvme.ErrRemoved.
func TestRemovedDevice(t *testing.T) {
	f := newFake(t)
	tr, _ := f.attach(f.options())
	tr.Retire()
	if _, err := nvme.Open(tr, nvme.Options{}); !errors.Is(err, nvme.ErrRemoved) {
		t.Errorf("opening a controller that is gone: %v", err)
	}
}

// TestStopDMAWaits: memory is not given back while a device that is being given up could
// still write to it.
func TestStopDMAWaits(t *testing.T) {
	f := newFake(t)
	tr, _ := f.attach(f.options())
	f.mu.Lock()
	f.resetting = make(chan struct{})
	f.mu.Unlock()
	go tr.Retire()
	<-f.resetting
	stopped := make(chan error)
	go func() {
		tr.StopDMA()
		_, err := tr.d.device.Stat()
		stopped <- err
	}()
	select {
	case <-stopped:
		t.Error("StopDMA returned while the device was open")
		f.resetting <- struct{}{}
	case <-time.After(20 * time.Millisecond): // a wrong one may be missed, a right one never blamed
		f.resetting <- struct{}{}
		if err := <-stopped; !errors.Is(err, os.ErrClosed) {
			t.Errorf("the device's file is open: %v", err)
		}
	}
}

// TestNoIOMMU: only on demand, with a warning, and only where the arena is contiguous.
func TestNoIOMMU(t *testing.T) {
	f := newFake(t)
	f.file("dev/vfio/noiommu-7")
	if err := os.WriteFile(f.path("sys/kernel/iommu_groups/7/name"), []byte("vfio-noiommu\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	opts := f.options()
	opts.API = APINoIOMMU
	warned := false
	opts.Logf = func(format string, args ...any) { warned = warned || strings.Contains(format, "NO IOMMU") }
	for _, pages := range []int64{1, 1024} {
		arena, err := nvme.NewArena(nvme.ArenaOptions{SizeBytes: pages * nvme.PageSizeBytes})
		if err != nil {
			t.Fatal(err)
		}
		defer arena.Close()
		for i := 0; i < len(arena.Bytes()); i += nvme.PageSizeBytes {
			arena.Bytes()[i] = 1
		}
		tr, err := Open(testAddress, arena, opts)
		switch {
		case pages == 1 && os.Geteuid() == 0: // one page is contiguous, and its address is visible
			if err != nil {
				t.Fatal(err)
			}
			if tr.DMABase() == 0 || tr.DMABase()%nvme.PageSizeBytes != 0 || f.mapped != nil || tr.API() != APINoIOMMU {
				t.Errorf("%s, the arena is at %#x, mapped %x", tr.API(), tr.DMABase(), f.mapped)
			}
			if err := tr.Close(); err != nil {
				t.Error(err)
			}
		case err == nil: // the kernel happened to give neighbouring pages
			tr.Close()
		case !errors.Is(err, ErrUnsupported):
			t.Errorf("%d pages: %v", pages, err)
		}
	}
	if !warned {
		t.Error("no warning")
	}
	f = newFake(t)
	opts = f.options()
	opts.API = APINoIOMMU
	if _, err := OpenDevice(testAddress, opts); !errors.Is(err, ErrUnsupported) || !strings.Contains(err.Error(), "not to be given up") {
		t.Errorf("a device with an IOMMU: %v", err)
	}
}

type pages []byte

func (p pages) ReadAt(b []byte, off int64) (int, error) { return copy(b, p[off:]), nil }

func TestContiguous(t *testing.T) {
	entries := func(e ...uint64) (p pages) {
		p = make(pages, 16) // two pages before
		for _, v := range e {
			p = binary.NativeEndian.AppendUint64(p, v)
		}
		return p
	}
	const here = pagemapPresent
	if base, err := contiguous(entries(here|1<<62|100, here|101, here|102), 2*4096, 3*4096); err != nil || base != 100*4096 {
		t.Errorf("base %#x, %v", base, err)
	}
	for name, p := range map[string]pages{
		"absent": entries(here|100, 101), "hidden": entries(here, here), "scattered": entries(here|100, here|99),
	} {
		if _, err := contiguous(p, 2*4096, 2*4096); !errors.Is(err, ErrUnsupported) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestNeighbours(t *testing.T) {
	f := newFake(t)
	if got := neighbours(filepath.Join(f.root, "nowhere"), testAddress); got == "" {
		t.Error("no text at all")
	}
}
