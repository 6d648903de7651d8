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

var quick = nvme.Options{CommandTimeout: 20 * time.Millisecond, AdminTimeout: 100 * time.Millisecond, RemovalGrace: 50 * time.Millisecond}

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
	vectors int
	waits   chan uint16   // vectors that are waited for
	raised  chan struct{} // nil: interrupts do not arrive
}

func (d *interrupting) Vectors() int { return d.vectors }

func (d *interrupting) WaitInterrupt(vector uint16, timeout time.Duration) bool {
	if timeout <= 0 {
		panic("wait without end")
	}
	select {
	case d.waits <- vector:
	default:
	}
	select {
	case <-d.raised:
		return true
	case <-time.After(timeout):
		return false
	}
}

// queueSpy tells which queue the first command is sent to.
type queueSpy struct {
	soft.Injector
	first chan uint16
}

func (s *queueSpy) Inject(c soft.CommandInfo) soft.Action {
	select {
	case s.first <- c.QueueID:
	default:
	}
	return s.Injector.Inject(c)
}

func TestWaitingForInterrupts(t *testing.T) {
	for vectors, wantOf := range map[int]func(queue uint16) uint16{
		1: func(uint16) uint16 { return 0 },
		2: func(uint16) uint16 { return 1 },
		4: func(q uint16) uint16 { return 1 + (q-1)%3 },
	} {
		d := &interrupting{Controller: newTroubled(t).Controller, vectors: vectors, waits: make(chan uint16, 1), raised: make(chan struct{})}
		ns, page := open(t, d)
		queue := make(chan uint16, 1)
		d.SetInjector(&queueSpy{soft.NewRules(soft.Rule{Opcode: spec.CmdRead, Count: 1, Action: soft.Action{Hold: true}}), queue})
		go func() {
			v := <-d.waits
			if want := wantOf(<-queue); v != want {
				t.Errorf("of %d vectors %d is waited for, not %d", vectors, v, want)
			}
			d.Release()
			d.raised <- struct{}{}
		}()
		if err := ns.Do([]nvme.Request{{Op: nvme.OpRead, Vec: [][]byte{page}}}); err != nil {
			t.Errorf("read: %v", err)
		}
		ns.Close()
	}
}

// silent is a transport that has interrupts, none of which arrives: a command
// that is held back completes while its interrupt is waited for.
type silent struct {
	*soft.Controller
	waits atomic.Int32
}

func (d *silent) Vectors() int { return 2 }

func (d *silent) WaitInterrupt(uint16, time.Duration) bool {
	d.waits.Add(1)
	d.Release()
	return false
}

// TestInterruptsThatDoNotArrive: the driver finds completions nevertheless, and
// stops to wait for interrupts.
func TestInterruptsThatDoNotArrive(t *testing.T) {
	d := &silent{Controller: newTroubled(t).Controller}
	var notices atomic.Int32
	ns, err := nvme.OpenNamespace(d, 1, nvme.Options{Logf: func(format string, args ...any) {
		notices.Add(1)
		t.Logf(format, args...)
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	page, err := ns.Arena().Alloc(1)
	if err != nil {
		t.Fatal(err)
	}
	heldRead := func() {
		d.SetInjector(soft.NewRules(soft.Rule{Opcode: spec.CmdRead, Count: 1, Action: soft.Action{Hold: true}}))
		if err := ns.Do([]nvme.Request{{Op: nvme.OpRead, Vec: [][]byte{page}}}); err != nil {
			t.Fatal(err)
		}
	}
	reads := 0
	for ; notices.Load() == 0 && reads < 100; reads++ {
		heldRead()
	}
	if reads < 2 || reads == 100 {
		t.Errorf("interrupts were given up after %d reads", reads)
	}
	before := d.waits.Load()
	go func() {
		for d.Release() == 0 {
			time.Sleep(time.Millisecond)
		}
	}()
	heldRead()
	if d.waits.Load() != before {
		t.Error("the driver goes on to wait for interrupts")
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
