package pcie

import (
	"errors"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"runsc-fs/nvme"
	"runsc-fs/nvme/nvmetest"
)

// The tests of this file need an NVMe function that is bound to vfio-pci and whose
// namespaces may be overwritten; 'make test-vfio' runs them in a virtual machine.
const (
	devicesEnv = "RUNSC_FS_NVME"     // addresses, separated by spaces: the first one is used
	apiEnv     = "RUNSC_FS_NVME_API" // the interface to use; empty: the best one
)

func needDevice(t testing.TB) (Address, Options) {
	t.Helper()
	list := strings.Fields(os.Getenv(devicesEnv))
	if len(list) == 0 {
		t.Skipf("NOT TESTED: needs an NVMe device for VFIO, whose address %s has; 'make test-vfio' makes one", devicesEnv)
	}
	addr, err := ParseAddress(list[0])
	if err != nil {
		t.Fatal(err)
	}
	return addr, Options{API: API(os.Getenv(apiEnv)), Logf: t.Logf}
}

// openReal opens the device with an arena that ends with the test.
func openReal(t testing.TB) *Transport {
	t.Helper()
	addr, opts := needDevice(t)
	arena, err := nvme.NewArena(nvme.ArenaOptions{SizeBytes: 24 << 20})
	if err != nil {
		t.Fatal(err)
	}
	tr, err := Open(addr, arena, opts)
	if err != nil {
		t.Fatal(err, arena.Close())
	}
	t.Cleanup(func() {
		if err := errors.Join(tr.Close(), arena.Close()); err != nil {
			t.Error(err)
		}
	})
	return tr
}

// lent is a transport that its driver does not close.
type lent struct{ *Transport }

func (lent) Close() error { return nil }

// clearNamespaces makes the content of all namespaces zero.
func clearNamespaces(t testing.TB, tr *Transport) {
	t.Helper()
	c, err := nvme.Open(lent{tr}, nvme.Options{Logf: t.Logf})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ids, err := c.ActiveNamespaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		ns, err := c.Namespace(id)
		if err != nil {
			t.Fatal(err)
		}
		if err := ns.Do([]nvme.Request{{Op: nvme.OpWriteZeroes, LengthBytes: ns.Geometry().SizeBytes()}}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestDeviceConformance runs the suite that every transport passes.
func TestDeviceConformance(t *testing.T) {
	needDevice(t)
	nvmetest.RunTransport(t, func(t testing.TB, c nvmetest.Config) nvme.Transport {
		t.Helper()
		tr := openReal(t)
		clearNamespaces(t, tr)
		return tr
	}, nvmetest.Options{Slow: true})
}

// TestDeviceIsExclusive: nobody else gets a device that is open.
func TestDeviceIsExclusive(t *testing.T) {
	addr, opts := needDevice(t)
	tr := openReal(t)
	if d, err := OpenDevice(addr, opts); !errors.Is(err, ErrInUse) {
		t.Errorf("second process: %v", err)
		if err == nil {
			d.Close()
		}
	}
	if err := tr.Close(); err != nil {
		t.Error(err)
	}
	d, err := OpenDevice(addr, opts)
	if err != nil {
		t.Fatalf("after Close: %v", err)
	}
	d.Close()
}

// counting counts interrupts.
type counting struct {
	*Transport
	came atomic.Int32
}

func (c *counting) WaitInterrupt(vector uint16, timeout time.Duration) bool {
	came := c.Transport.WaitInterrupt(vector, timeout)
	if came {
		c.came.Add(1)
	}
	return came
}

// TestDeviceInterrupts reads so much at once that the end is waited for.
func TestDeviceInterrupts(t *testing.T) {
	tr := &counting{Transport: openReal(t)}
	if tr.Vectors() == 0 {
		t.Fatal("no interrupt vectors")
	}
	ns, err := nvme.OpenNamespace(tr, 1, nvme.Options{Logf: t.Logf})
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	mem, err := tr.Arena().Alloc(1024)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Arena().Free(mem)
	for i := range 200 {
		if err := ns.Do([]nvme.Request{{Op: nvme.OpRead, Vec: [][]byte{mem}}}); err != nil {
			t.Fatalf("read %d: %v", i, err)
		}
		if tr.came.Load() >= 10 {
			break
		}
	}
	if n := tr.came.Load(); n < 10 {
		t.Errorf("%d interrupts arrived", n)
	}
}

// TestDeviceIdleUsesNoCPU: an open device that nobody uses costs the process next to
// nothing. What there is belongs to the runtime, in a machine that may be very slow.
func TestDeviceIdleUsesNoCPU(t *testing.T) {
	tr := openReal(t)
	ns, err := nvme.OpenNamespace(tr, 1, nvme.Options{Logf: t.Logf})
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	used := func() time.Duration {
		var u unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
			t.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	const idle = 4 * time.Second
	before := used()
	time.Sleep(idle)
	if cpu := used() - before; cpu > idle/10 {
		t.Errorf("%v of processor time in %v of idleness", cpu, idle)
	} else {
		t.Logf("%v of processor time in %v of idleness", cpu, idle)
	}
}

// TestDeviceRetire takes the device away under load: all callers get an error,
// none waits on, and the device works when it is opened again.
func TestDeviceRetire(t *testing.T) {
	tr := openReal(t)
	ns, err := nvme.OpenNamespace(tr, 1, nvme.Options{Logf: t.Logf})
	if err != nil {
		t.Fatal(err)
	}
	const callers = 3
	result := make(chan error, callers)
	var done atomic.Int64
	for i := range callers {
		mem, err := tr.Arena().Alloc(16)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			for {
				if err := ns.Do([]nvme.Request{{Op: nvme.OpRead, OffsetBytes: int64(i) << 16, Vec: [][]byte{mem}}}); err != nil {
					result <- err
					return
				}
				done.Add(1)
			}
		}()
	}
	for done.Load() < 50 {
		time.Sleep(time.Millisecond)
	}
	tr.Retire()
	for range callers {
		if err := <-result; !errors.Is(err, nvme.ErrRemoved) {
			t.Errorf("a reader got %v, want %v", err, nvme.ErrRemoved)
		}
	}
	if err := ns.Close(); !errors.Is(err, nvme.ErrRemoved) {
		t.Errorf("closing: %v", err)
	}
	again, err := nvme.OpenNamespace(openReal(t), 1, nvme.Options{Logf: t.Logf})
	if err != nil {
		t.Fatalf("opening it again: %v", err)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
}
