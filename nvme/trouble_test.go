package nvme_test

import (
	"bytes"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"runsc-fs/nvme"
	"runsc-fs/nvme/soft"
	"runsc-fs/nvme/spec"
)

// troubled is a transport whose device can be pulled out, can ignore CC.EN, and
// can have interrupts.
type troubled struct {
	*soft.Controller
	gone     atomic.Bool
	stubborn atomic.Bool
	stopped  atomic.Int32
}

func newTroubled(t *testing.T) *troubled {
	t.Helper()
	arena, err := nvme.NewArena(nvme.ArenaOptions{SizeBytes: 16 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { arena.Close() })
	backing, err := soft.NewMemoryBacking(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	c, err := soft.New(arena, []soft.Backing{backing}, soft.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return &troubled{Controller: c}
}

func (d *troubled) Read32(reg uint32) uint32 {
	v := d.Controller.Read32(reg)
	switch {
	case d.gone.Load():
		return spec.Gone
	case reg == spec.RegCAP:
		return v &^ 0xff000000 // CAP.TO = 0: shorter waits
	case reg == spec.RegCSTS && d.stubborn.Load():
		return v | spec.CSTSRDY
	}
	return v
}

func (d *troubled) Read64(reg uint32) uint64 {
	return uint64(d.Read32(reg)) | uint64(d.Read32(reg+4))<<32
}

func (d *troubled) Write32(reg, v uint32) {
	if !d.gone.Load() && (reg != spec.RegCC || !d.stubborn.Load()) {
		d.Controller.Write32(reg, v)
	}
}

func (d *troubled) StopDMA() {
	d.stopped.Add(1)
	d.Controller.StopDMA()
}

var quick = nvme.Options{CommandTimeout: 20 * time.Millisecond, AdminTimeout: 100 * time.Millisecond}

func open(t *testing.T, tr nvme.Transport) (*nvme.Namespace, []byte) {
	t.Helper()
	ns, err := nvme.OpenNamespace(tr, 1, quick)
	if err != nil {
		t.Fatal(err)
	}
	page, err := tr.Arena().Alloc(1)
	if err != nil {
		t.Fatal(err)
	}
	return ns, page
}

// TestSurpriseRemoval pulls the device while a command is outstanding.
func TestSurpriseRemoval(t *testing.T) {
	d := newTroubled(t)
	ns, page := open(t, d)
	d.SetInjector(soft.NewRules(soft.Rule{Opcode: spec.CmdRead, Action: soft.Action{Hold: true}}))
	go func() {
		for d.Held() == 0 {
			time.Sleep(time.Millisecond)
		}
		d.gone.Store(true)
	}()
	read := []nvme.Request{{Op: nvme.OpRead, Vec: [][]byte{page}}}
	if err := ns.Do(read); !errors.Is(err, nvme.ErrRemoved) && !errors.Is(err, nvme.ErrTimeout) {
		t.Errorf("outstanding command: %v", err)
	}
	if d.stopped.Load() == 0 {
		t.Error("a device that does not answer was not cut off from memory")
	}
	if err := ns.Do(read); !errors.Is(err, nvme.ErrRemoved) || !errors.Is(err, nvme.ErrIO) {
		t.Errorf("next command: %v", err)
	}
	if err := ns.Close(); !errors.Is(err, nvme.ErrRemoved) {
		t.Errorf("closing: %v", err)
	}
}

func TestDeviceThatIsNotThere(t *testing.T) {
	d := newTroubled(t)
	d.gone.Store(true)
	if _, err := nvme.OpenNamespace(d, 1, quick); !errors.Is(err, nvme.ErrRemoved) {
		t.Errorf("opening: %v", err)
	}
}

// TestControllerThatIgnoresDisable has a command outstanding in a controller
// that cannot be stopped: it must be cut off before the memory is given back.
func TestControllerThatIgnoresDisable(t *testing.T) {
	d := newTroubled(t)
	ns, page := open(t, d)
	d.SetInjector(soft.NewRules(soft.Rule{Opcode: spec.CmdRead, Action: soft.Action{Hold: true, NoAbort: true}}))
	d.stubborn.Store(true)
	if err := ns.Do([]nvme.Request{{Op: nvme.OpRead, Vec: [][]byte{page}}}); !errors.Is(err, nvme.ErrTimeout) {
		t.Errorf("outstanding command: %v", err)
	}
	for i := range page {
		page[i] = 0x77
	}
	if d.stopped.Load() == 0 {
		t.Error("not cut off from memory")
	}
	if n := d.Release(); n != 0 || !bytes.Equal(page, bytes.Repeat([]byte{0x77}, len(page))) {
		t.Errorf("%d commands were carried out afterwards", n)
	}
	if err := ns.Do([]nvme.Request{{Op: nvme.OpRead, Vec: [][]byte{page}}}); !errors.Is(err, nvme.ErrControllerFatal) {
		t.Errorf("next command: %v", err)
	}
	ns.Close()
}

// interrupting is a transport whose completions come with an interrupt.
type interrupting struct {
	*soft.Controller
	waits chan struct{}
}

func (d *interrupting) WaitInterrupt(vector uint16, timeout time.Duration) {
	if vector == 0 || timeout <= 0 {
		panic("wait for an interrupt that no I/O queue has")
	}
	select {
	case d.waits <- struct{}{}:
	default:
	}
	time.Sleep(timeout)
}

func TestWaitingForInterrupts(t *testing.T) {
	d := &interrupting{Controller: newTroubled(t).Controller, waits: make(chan struct{}, 1)}
	ns, page := open(t, d)
	defer ns.Close()
	d.SetInjector(soft.NewRules(soft.Rule{Opcode: spec.CmdRead, Count: 1, Action: soft.Action{Hold: true}}))
	go func() {
		<-d.waits
		d.Release()
	}()
	if err := ns.Do([]nvme.Request{{Op: nvme.OpRead, Vec: [][]byte{page}}}); err != nil {
		t.Errorf("read: %v", err)
	}
}

// TestMemoryHasNoWriteCache: nothing is left to flush there.
func TestMemoryHasNoWriteCache(t *testing.T) {
	arena, err := nvme.NewArena(nvme.ArenaOptions{SizeBytes: 16 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer arena.Close()
	backing, err := soft.NewMemoryBacking(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	dev, err := soft.Open(backing, arena, soft.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	if dev.Geometry().VolatileWriteCache {
		t.Error("memory claims to have a volatile write cache")
	}
}

func TestOptionsAreChecked(t *testing.T) {
	for _, o := range []nvme.Options{
		{QueuePairs: -1}, {QueuePairs: 5000}, {QueueDepth: 1}, {QueueDepth: 2000}, {MaxTransferBytes: 5000}, {MaxTransferBytes: -4096}, {CommandTimeout: -1},
	} {
		d := newTroubled(t)
		if c, err := nvme.Open(d, o); err == nil {
			c.Close()
			t.Errorf("%+v accepted", o)
		}
		d.Close()
	}
}

func TestStatusErrorText(t *testing.T) {
	err := error(&nvme.StatusError{SCT: 2, SC: 0x81, DNR: true, Opcode: spec.CmdRead, NSID: 1, SLBA: 77})
	want := "nvme: Read, namespace 1, LBA 77: unrecovered read error (SCT 2, SC 81)"
	if err.Error() != want {
		t.Errorf("text is %q, want %q", err, want)
	}
	if !errors.Is(err, nvme.ErrIO) || !errors.Is(err, nvme.ErrMedia) || errors.Is(err, nvme.ErrNoSpace) || errors.Is(err, nvme.ErrTimeout) {
		t.Error("wrong classes")
	}
	err = &nvme.StatusError{SCT: 7, SC: 0x10, Opcode: 0xc1, Admin: true}
	if !strings.Contains(err.Error(), "vendor specific") || !strings.Contains(err.Error(), "command c1h") {
		t.Errorf("text is %q", err)
	}
}
