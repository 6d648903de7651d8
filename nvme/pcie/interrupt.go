package pcie

import (
	"errors"
	"os"
	"runtime"
	"slices"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxVectors bounds what one device takes of a machine's interrupt vectors.
const maxVectors = 33

// wantedVectors is how many of the device's vectors are used: one for the admin
// queue and as many as can be waited for at the same time.
func wantedVectors(available int) int { return min(available, runtime.GOMAXPROCS(0)+1, maxVectors) }

// vector is one MSI-X vector with its eventfd.
type vector struct {
	event *os.File
	ctl   *uint32 // vector control in the mapped table

	mu      sync.Mutex
	open    uint32    // value of *ctl that lets interrupts through
	waiters []*waiter // the vector is masked when there are none
}

// waiter is one call of WaitInterrupt.
type waiter struct {
	ch    chan struct{} // one element: its interrupt came
	timer *time.Timer
}

var waiters = sync.Pool{New: func() any {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return &waiter{ch: make(chan struct{}, 1), timer: t}
}}

// newEventfd makes an eventfd that goroutines can wait for without a thread.
func newEventfd() (*os.File, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, failed("eventfd", err)
	}
	return os.NewFile(uintptr(fd), "eventfd"), nil
}

// setEvents makes eventfds the targets of interrupts from 0 on.
func (d *Device) setEvents(index uint32, events []*os.File) error {
	const head = int(unsafe.Sizeof(irqSet{}) / 4)
	buf := make([]int32, head+len(events))
	*(*irqSet)(unsafe.Pointer(&buf[0])) = irqSet{
		argsz: uint32(4 * len(buf)), flags: irqSetDataEventfd | irqSetActionTrigger, index: index, count: uint32(len(events)),
	}
	for i, f := range events {
		raw, err := f.SyscallConn() // Fd would make it blocking
		if err == nil {
			err = raw.Control(func(fd uintptr) { buf[head+i] = int32(fd) })
		}
		if err != nil {
			return err
		}
	}
	if _, err := d.kernel.ioctl(d.device, vfioSetIRQs, unsafe.Pointer(&buf[0])); err != nil {
		return failed("VFIO_DEVICE_SET_IRQS", err)
	}
	return nil
}

// irqCount is how many interrupts of a kind the device has.
func (d *Device) irqCount(index uint32) int {
	info := &irqInfo{argsz: uint32(unsafe.Sizeof(irqInfo{})), index: index}
	if _, err := d.kernel.ioctl(d.device, vfioGetIRQInfo, unsafe.Pointer(info)); err != nil {
		return 0
	}
	return int(info.count)
}

// openVectors turns MSI-X on, with all vectors masked. table is the mapped MSI-X table.
func openVectors(d *Device, table []byte, n int) (_ []*vector, err error) {
	var list []*vector
	defer func() {
		if err != nil {
			closeVectors(list)
		}
	}()
	var events []*os.File
	for i := range n {
		f, err := newEventfd()
		if err != nil {
			return nil, err
		}
		events = append(events, f)
		list = append(list, &vector{event: f, ctl: (*uint32)(unsafe.Pointer(&table[i*msixEntryBytes+msixVectorCtl]))})
	}
	if err := d.setEvents(irqMSIX, events); err != nil {
		return nil, err
	}
	for _, v := range list {
		v.open = load32(v.ctl) &^ msixMasked
		v.maskLocked()
		go v.pump()
	}
	return list, nil
}

func closeVectors(list []*vector) error {
	var errs []error
	for _, v := range list {
		v.mu.Lock()
		v.ctl = nil
		v.wakeLocked()
		v.mu.Unlock()
		errs = append(errs, v.event.Close())
	}
	return errors.Join(errs...)
}

// maskLocked keeps interrupts back: the device remembers that there is one.
func (v *vector) maskLocked() {
	if v.ctl != nil {
		store32(v.ctl, v.open|msixMasked)
	}
}

// pump wakes whoever waits for each interrupt, until the eventfd is closed.
func (v *vector) pump() {
	var count [8]byte
	for {
		if _, err := v.event.Read(count[:]); err != nil {
			return
		}
		v.mu.Lock()
		v.wakeLocked()
		v.mu.Unlock()
	}
}

func (v *vector) wakeLocked() {
	if len(v.waiters) == 0 {
		return
	}
	v.maskLocked()
	for i, w := range v.waiters {
		w.ch <- struct{}{} // has room: a waiter is in the list once
		v.waiters[i] = nil
	}
	v.waiters = v.waiters[:0]
}

// wait waits for an interrupt, or for one that came while nobody waited.
func (v *vector) wait(timeout time.Duration) bool {
	w := waiters.Get().(*waiter)
	v.mu.Lock()
	if v.ctl == nil { // closed
		v.mu.Unlock()
		waiters.Put(w)
		return false
	}
	if v.waiters = append(v.waiters, w); len(v.waiters) == 1 {
		store32(v.ctl, v.open)
	}
	v.mu.Unlock()

	w.timer.Reset(timeout)
	came := false
	select {
	case <-w.ch:
		came = true
	case <-w.timer.C:
	}
	w.timer.Stop()
	if !came {
		v.mu.Lock()
		if i := slices.Index(v.waiters, w); i >= 0 {
			last := len(v.waiters) - 1
			v.waiters[i], v.waiters[last] = v.waiters[last], nil
			if v.waiters = v.waiters[:last]; last == 0 {
				v.maskLocked()
			}
		} else { // woken this very moment
			<-w.ch
			came = true
		}
		v.mu.Unlock()
	}
	waiters.Put(w)
	return came
}
