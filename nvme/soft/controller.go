// Package soft is an NVMe controller in software: the register and queue
// interface of the NVM Express Base Specification 2.0 in front of a medium
// that the process has at hand, an image file or memory.
//
// A doorbell write fetches and carries out the commands in the thread that
// writes it, and returns when they are complete: there is no other thread to
// schedule. The controller touches guest memory only through the arena and
// checks every address against it; no command, however wrong, does more than
// complete with an error status.
//
// Lock order: Controller.regMu, then the admin completionQueue.mu, then an I/O
// completionQueue.mu, then the locks of a Backing or Controller.mu. A completion
// queue's mutex guards the submission queues that feed it, too. Reads and
// writes take that one lock only, so that queues share nothing.
package soft

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"runsc-fs/nvme"
	"runsc-fs/nvme/spec"
)

// Limits of Options.
const (
	maxQueuePairs   = 1024
	maxQueueEntries = 16384
	maxMDTS         = 12 // 16 MiB
)

// Options are the parameters of a controller. The zero value gives a good one.
type Options struct {
	// LBASizeBytes is the size of a logical block, 512 or 4096. Default 512.
	LBASizeBytes int
	// MDTS limits one transfer to 4 KiB << MDTS. Default 8: 1 MiB.
	MDTS int
	// MaxQueuePairs is the number of I/O queue pairs offered. Default 64.
	MaxQueuePairs int
	// MaxQueueEntries is the length a queue may have. Default 1024.
	MaxQueueEntries int
	// DoorbellStride is CAP.DSTRD. Default 0.
	DoorbellStride uint
	// BoundaryBlocks is Identify Namespace, NOIOB. Default 0: none.
	BoundaryBlocks uint16
	// DoorbellBuffer offers Doorbell Buffer Config. It gains nothing here, where
	// doorbells are calls; it is there to try drivers with.
	DoorbellBuffer bool
	// Serial and Model are reported by Identify Controller.
	Serial, Model string
	// Injector, when not nil, sees every command first and may spoil it.
	Injector Injector
	// Driver are the options of the driver that Open puts on top.
	Driver nvme.Options
}

func (o *Options) setDefaults() error {
	setInt := func(v *int, def int) {
		if *v == 0 {
			*v = def
		}
	}
	setInt(&o.LBASizeBytes, 512)
	setInt(&o.MDTS, 8)
	setInt(&o.MaxQueuePairs, 64)
	setInt(&o.MaxQueueEntries, 1024)
	if o.Serial == "" {
		o.Serial = "soft0001"
	}
	if o.Model == "" {
		o.Model = "runsc-fs soft NVMe controller"
	}
	switch {
	case o.LBASizeBytes != 512 && o.LBASizeBytes != 4096:
		return fmt.Errorf("soft: LBASizeBytes is %d, not 512 or 4096", o.LBASizeBytes)
	case o.MDTS < 0 || o.MDTS > maxMDTS:
		return fmt.Errorf("soft: MDTS is %d, not within 1 to %d", o.MDTS, maxMDTS)
	case o.MaxQueuePairs < 1 || o.MaxQueuePairs > maxQueuePairs:
		return fmt.Errorf("soft: MaxQueuePairs is %d, not within 1 to %d", o.MaxQueuePairs, maxQueuePairs)
	case o.MaxQueueEntries < 2 || o.MaxQueueEntries > maxQueueEntries:
		return fmt.Errorf("soft: MaxQueueEntries is %d, not within 2 to %d", o.MaxQueueEntries, maxQueueEntries)
	case o.DoorbellStride > 8:
		return fmt.Errorf("soft: DoorbellStride is %d, more than 8", o.DoorbellStride)
	}
	return nil
}

// namespace is one attached namespace.
type namespace struct {
	backing  Backing
	props    Properties // but for SizeBytes
	lbaShift uint
	blocks   atomic.Uint64
	detached atomic.Bool
}

// dmaBase is the device address of the arena: above 4 GiB, so that a driver
// that drops the upper half of an address is noticed.
const dmaBase = 1 << 32

// Controller is the model. It is an nvme.Transport.
type Controller struct {
	arena      *nvme.Arena
	mem        []byte
	opts       Options
	cap        spec.CAP
	maxData    int // bytes of one command
	namespaces []*namespace
	vwc        bool // any backing has a volatile write cache

	injector  atomic.Pointer[Injector]
	csts      atomic.Uint32
	cc        atomic.Uint32 // written under regMu
	dmaOff    atomic.Bool
	wce       atomic.Bool // volatile write cache enabled (feature 06h)
	sqs       []atomic.Pointer[submissionQueue]
	cqs       []atomic.Pointer[completionQueue]
	openedAt  time.Time
	cycles    atomic.Uint64 // power cycles after the first
	badBell   atomic.Uint64 // doorbell writes ignored as invalid
	shadow    atomic.Pointer[shadow]
	threshold atomic.Uint32 // over temperature threshold (feature 04h)
	eventMask atomic.Uint32 // feature 0Bh
	closeOnce sync.Once
	closeErr  error

	regMu    sync.Mutex
	aqa      uint32
	asq, acq uint64
	intMask  uint32

	// State of the admin commands, guarded by the admin queue's mutex.
	queuesSet bool // Number of Queues may not change any more
	ioQueues  int  // queue pairs granted
	features  [32]uint32

	mu         sync.Mutex
	aers       []held   // asynchronous event requests waiting for an event
	events     []uint32 // events waiting for a request
	muted      uint8    // event types reported, but their log not read: one bit each
	changed    []uint32 // Changed Namespace List
	health     Health
	held       []held // commands held back by the injector
	errorLog   []errorEntry
	errorCount uint64
	gone       counters // of deleted queues
}

// New makes a controller with one namespace for each backing, numbered from 1.
// It takes the backings over, unless it fails.
func New(arena *nvme.Arena, backings []Backing, opts Options) (*Controller, error) {
	if err := opts.setDefaults(); err != nil {
		return nil, err
	}
	c := &Controller{
		arena:    arena,
		mem:      arena.Bytes(),
		opts:     opts,
		cap:      spec.MakeCAP(uint16(opts.MaxQueueEntries-1), 10, opts.DoorbellStride),
		maxData:  nvme.PageSizeBytes << opts.MDTS,
		openedAt: time.Now(),
		sqs:      make([]atomic.Pointer[submissionQueue], opts.MaxQueuePairs+1),
		cqs:      make([]atomic.Pointer[completionQueue], opts.MaxQueuePairs+1),
		ioQueues: opts.MaxQueuePairs,
		health:   Health{TemperatureKelvin: 310, SparePercent: 100},
	}
	c.wce.Store(true)
	c.SetInjector(opts.Injector)
	for _, b := range backings {
		ns := &namespace{backing: b, props: b.Properties(), lbaShift: 9}
		if opts.LBASizeBytes == 4096 {
			ns.lbaShift = 12
		}
		ns.blocks.Store(uint64(ns.props.SizeBytes) >> ns.lbaShift)
		if ns.props.SizeBytes < 0 || ns.blocks.Load() == 0 {
			return nil, fmt.Errorf("soft: %v is smaller than one block of %d bytes", b, opts.LBASizeBytes)
		}
		c.vwc = c.vwc || ns.props.VolatileWriteCache
		c.namespaces = append(c.namespaces, ns)
	}
	return c, nil
}

// SetInjector replaces the injector; nil takes it away.
func (c *Controller) SetInjector(i Injector) {
	if i == nil {
		c.injector.Store(nil)
		return
	}
	c.injector.Store(&i)
}

// Arena implements nvme.Transport.
func (c *Controller) Arena() *nvme.Arena { return c.arena }

// DMABase implements nvme.Transport.
func (c *Controller) DMABase() uint64 { return dmaBase }

// StopDMA implements nvme.Transport.
func (c *Controller) StopDMA() {
	c.regMu.Lock()
	defer c.regMu.Unlock()
	c.dmaOff.Store(true)
	c.resetQueues()
}

// Close implements nvme.Transport. It closes the backings, without flushing
// them: a shutdown does that (CC.SHN).
func (c *Controller) Close() error {
	c.closeOnce.Do(func() {
		c.StopDMA()
		for _, ns := range c.namespaces {
			if err := ns.backing.Close(); err != nil && c.closeErr == nil {
				c.closeErr = err
			}
		}
	})
	return c.closeErr
}

// Read32 implements nvme.Transport.
func (c *Controller) Read32(reg uint32) uint32 {
	switch reg {
	case spec.RegCSTS:
		return c.csts.Load()
	case spec.RegVS:
		return spec.Version20
	case spec.RegCAP:
		return uint32(c.cap)
	case spec.RegCAP + 4:
		return uint32(c.cap >> 32)
	}
	c.regMu.Lock()
	defer c.regMu.Unlock()
	switch reg {
	case spec.RegCC:
		return c.cc.Load()
	case spec.RegAQA:
		return c.aqa
	case spec.RegINTMS, spec.RegINTMC:
		return c.intMask
	case spec.RegASQ, spec.RegASQ + 4, spec.RegACQ, spec.RegACQ + 4:
		v := c.asq
		if reg >= spec.RegACQ {
			v = c.acq
		}
		return uint32(v >> (reg & 4 * 8))
	}
	return 0
}

// Read64 implements nvme.Transport.
func (c *Controller) Read64(reg uint32) uint64 {
	return uint64(c.Read32(reg)) | uint64(c.Read32(reg+4))<<32
}

// Write32 implements nvme.Transport.
func (c *Controller) Write32(reg uint32, v uint32) {
	if reg >= spec.RegDoorbells {
		c.doorbell(reg-spec.RegDoorbells, v)
		return
	}
	c.regMu.Lock()
	defer c.regMu.Unlock()
	low := func(old uint64) uint64 { return old>>32<<32 | uint64(v) }
	high := func(old uint64) uint64 { return old&0xffffffff | uint64(v)<<32 }
	switch reg {
	case spec.RegCC:
		c.writeCC(v)
	case spec.RegAQA:
		c.aqa = v & 0x0fff0fff
	case spec.RegASQ:
		c.asq = low(c.asq)
	case spec.RegASQ + 4:
		c.asq = high(c.asq)
	case spec.RegACQ:
		c.acq = low(c.acq)
	case spec.RegACQ + 4:
		c.acq = high(c.acq)
	case spec.RegINTMS:
		c.intMask |= v
	case spec.RegINTMC:
		c.intMask &^= v
	}
}

// Write64 implements nvme.Transport.
func (c *Controller) Write64(reg uint32, v uint64) {
	c.Write32(reg, uint32(v))
	c.Write32(reg+4, uint32(v>>32))
}

// writeCC carries out what a write of Controller Configuration asks for. The
// caller holds regMu.
func (c *Controller) writeCC(v uint32) {
	old := c.cc.Swap(v)
	switch {
	case v&spec.CCEN != 0 && old&spec.CCEN == 0:
		c.enable()
	case v&spec.CCEN == 0 && old&spec.CCEN != 0:
		c.resetQueues()
		c.csts.Store(0)
	}
	if v&spec.CCSHNMask != 0 && old&spec.CCSHNMask == 0 {
		if v&spec.CCSHNMask == spec.CCSHNNormal {
			for _, ns := range c.namespaces {
				if err := ns.backing.Flush(); err != nil {
					c.logError(0, 0, StatusOf(err, true), 0, 0)
				}
			}
		}
		c.csts.Store(c.csts.Load()&^spec.CSTSSHSTMask | spec.CSTSSHSTComplete)
	}
}

// enable follows CC.EN going to 1. The caller holds regMu.
func (c *Controller) enable() {
	asqs, acqs := int(c.aqa&0xfff)+1, int(c.aqa>>16&0xfff)+1
	cc := c.cc.Load()
	ok := cc>>spec.CCCSSShift&7 == 0 && cc>>spec.CCMPSShift&0xf == 0 && cc>>spec.CCAMSShift&7 == 0 &&
		asqs >= 2 && acqs >= 2 && !c.dmaOff.Load()
	asq, okSQ := mapQueue[spec.SubmissionEntry](c, c.asq, asqs)
	acq, okCQ := mapQueue[spec.CompletionEntry](c, c.acq, acqs)
	if !ok || !okSQ || !okCQ {
		c.csts.Store(spec.CSTSCFS)
		return
	}
	c.queuesSet = false
	c.ioQueues = c.opts.MaxQueuePairs
	c.features = [32]uint32{}
	c.threshold.Store(warnKelvin)
	c.eventMask.Store(0)
	c.shadow.Store(nil)
	c.wce.Store(true)
	clear(acq)
	cq := &completionQueue{entries: acq, phase: 1}
	sq := &submissionQueue{cq: cq, entries: asq}
	cq.sqs = append(cq.sqs, sq)
	c.cqs[0].Store(cq)
	c.sqs[0].Store(sq)
	c.csts.Store(spec.CSTSRDY)
}

// resetQueues forgets all queues and outstanding commands. When it returns no
// command is being carried out. The caller holds regMu.
func (c *Controller) resetQueues() {
	for i := range c.sqs { // the admin queue first: it could create others
		sq := c.sqs[i].Swap(nil)
		if sq == nil {
			continue
		}
		sq.cq.mu.Lock()
		sq.deleted = true
		n := sq.counters
		sq.cq.mu.Unlock()
		c.mu.Lock()
		c.gone.add(n)
		c.mu.Unlock()
	}
	for i := range c.cqs {
		c.cqs[i].Store(nil)
	}
	c.mu.Lock()
	c.aers, c.held, c.events, c.muted = nil, nil, nil, 0
	c.mu.Unlock()
}

// fatal turns the controller into one that has failed: CSTS.CFS is set and no
// command is fetched until it is reset.
func (c *Controller) fatal() { c.csts.Or(spec.CSTSCFS) }

// slice is the guest memory at a device address. It reports false unless all of
// it lies in the arena.
func (c *Controller) slice(addr uint64, n int) ([]byte, bool) {
	off := addr - dmaBase
	if size := uint64(len(c.mem)); off > size || uint64(n) > size-off {
		return nil, false
	}
	return c.mem[off : off+uint64(n) : off+uint64(n)], true
}

// mapQueue views the guest memory at a page-aligned address as queue entries.
func mapQueue[E any](c *Controller, addr uint64, entries int) ([]E, bool) {
	var e E
	b, ok := c.slice(addr, entries*int(unsafe.Sizeof(e)))
	if !ok || addr%nvme.PageSizeBytes != 0 {
		return nil, false
	}
	return unsafe.Slice((*E)(unsafe.Pointer(unsafe.SliceData(b))), entries), true
}
