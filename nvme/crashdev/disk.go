// Package crashdev is a disk in memory for tests of what sits on an NVMe
// namespace: it records every write, FUA and flush, and builds the images that
// a power cut could leave behind.
//
// What a cut leaves: all that was complete before a completed Flush began, all
// completed FUA writes, and of everything else, including the commands in
// flight at that moment, any subset, in any order, each write torn at the
// atomic unit. An image is a Disk again, so that a cut during the recovery from
// a cut can be tried, too.
//
// Everything is decided by a Crash, a point in the history and a seed: the same
// two numbers build the same image.
//
// Locks: Disk.mu alone.
package crashdev

import (
	"fmt"
	"sync"

	"runsc-fs/nvme"
)

// Options describe a Disk.
type Options struct {
	// SizeBytes is the capacity, a multiple of LBASizeBytes.
	SizeBytes int64
	// LBASizeBytes is the logical block size. Default 512.
	LBASizeBytes int
	// AtomicWriteBytes is what a power cut never tears: a power of two times
	// LBASizeBytes, which is the default.
	AtomicWriteBytes int
	// IgnoreFlush makes a liar of the disk: Flush and FUA complete and
	// guarantee nothing. For canaries: a test rig has to notice.
	IgnoreFlush bool
	// Sabotage, if not nil, sees each command that is about to be recorded, with
	// its number counted from 0. It may change it, for example clear FUA; if it
	// returns false the command completes and is forgotten. For canaries, as if
	// the program had left the command out.
	Sabotage func(n int, e *Event) bool
}

// deallocated is what deallocated blocks contain: deliberately not zeroes.
const deallocated = 0xdb

// Event is one completed command in a Disk's history.
type Event struct {
	Op          nvme.Op // OpWrite, OpWriteZeroes, OpDeallocate or OpFlush
	OffsetBytes int64
	LengthBytes int64
	FUA         bool
	Began       int // number of events complete when the command began
	data        []byte
}

func (e Event) String() string {
	if e.Op == nvme.OpFlush {
		return "flush"
	}
	name := map[nvme.Op]string{nvme.OpWrite: "write", nvme.OpWriteZeroes: "zero", nvme.OpDeallocate: "deallocate"}[e.Op]
	fua := ""
	if e.FUA {
		fua = " FUA"
	}
	return fmt.Sprintf("%s%s %d+%d", name, fua, e.OffsetBytes, e.LengthBytes)
}

// Disk is a recording disk. All methods may be called concurrently. It is
// reached as an nvme.BlockDevice through Device, or as a medium of the software
// controller through Backing.
type Disk struct {
	opts Options

	mu      sync.Mutex
	content store // what reads see
	origin  store // content when recording began
	events  []Event

	commands int // given to Options.Sabotage

	// The durable content before event frontier, kept because crash points
	// are mostly visited in order.
	durable  store
	frontier int
}

// New makes a disk of zeroes.
func New(opts Options) (*Disk, error) {
	if opts.LBASizeBytes == 0 {
		opts.LBASizeBytes = 512
	}
	if opts.AtomicWriteBytes == 0 {
		opts.AtomicWriteBytes = opts.LBASizeBytes
	}
	lba, atomic := int64(opts.LBASizeBytes), int64(opts.AtomicWriteBytes)
	if (lba != 512 && lba != 4096) || opts.SizeBytes <= 0 || opts.SizeBytes%lba != 0 || atomic < lba || atomic&(atomic-1) != 0 {
		return nil, fmt.Errorf("crashdev: no disk has %d bytes in blocks of %d, atomic %d", opts.SizeBytes, lba, atomic)
	}
	return newDisk(opts, newStore(opts.SizeBytes)), nil
}

func newDisk(opts Options, content store) *Disk {
	d := &Disk{opts: opts, content: content}
	d.origin = d.content.clone()
	d.durable = d.origin.clone()
	return d
}

// Restart forgets the history: what the disk contains now is durable, and
// recording begins anew.
func (d *Disk) Restart() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.events, d.frontier = nil, 0
	d.origin = d.content.clone()
	d.durable = d.origin.clone()
}

// Clone is a disk with the present content and without history.
func (d *Disk) Clone() *Disk {
	d.mu.Lock()
	defer d.mu.Unlock()
	return newDisk(d.opts, d.content.clone())
}

// Sum is a fingerprint of the present content: equal contents have equal sums,
// and different ones different sums but for one chance in 2^64. It holds within
// one process.
func (d *Disk) Sum() uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.content.sum()
}

// With is a clone whose options are changed by fn. The size and the block size
// must stay as they are.
func (d *Disk) With(fn func(o *Options)) *Disk {
	c := d.Clone()
	fn(&c.opts)
	return c
}

// ReadAt reads the present content, for tests that look at it directly.
func (d *Disk) ReadAt(b []byte, off int64) (int, error) {
	if err := d.check(off, int64(len(b))); err != nil {
		return 0, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.content.read(b, off)
	return len(b), nil
}

// WriteAt changes the content and leaves no trace in the history, as decay or
// an attacker does: the change is in all images built afterwards that do not
// overwrite it.
func (d *Disk) WriteAt(b []byte, off int64) (int, error) {
	if err := d.check(off, int64(len(b))); err != nil {
		return 0, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.content.write(b, off)
	d.origin.write(b, off)
	d.durable.write(b, off)
	return len(b), nil
}

func (d *Disk) check(off, n int64) error {
	if off < 0 || n < 0 || off > d.opts.SizeBytes || n > d.opts.SizeBytes-off {
		return fmt.Errorf("crashdev: %d bytes at %d are not on a disk of %d bytes", n, off, d.opts.SizeBytes)
	}
	return nil
}

// Options are those the disk was made with, defaults filled in.
func (d *Disk) Options() Options { return d.opts }

// Points is the number of events so far. A power cut at point p comes after
// event p-1 has completed and before event p has.
func (d *Disk) Points() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.events)
}

// Events is a copy of the history, without the data.
func (d *Disk) Events() []Event {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := append([]Event(nil), d.events...)
	for i := range all {
		all[i].data = nil
	}
	return all
}

// began is the point at which a command begins.
func (d *Disk) began() int { return d.Points() }

// complete carries a command out and records it.
func (d *Disk) complete(e Event) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.opts.IgnoreFlush {
		e.FUA = false
		if e.Op == nvme.OpFlush {
			return
		}
	}
	if d.opts.Sabotage != nil {
		n := d.commands
		d.commands++
		if !d.opts.Sabotage(n, &e) {
			return
		}
	}
	apply(&d.content, &e, 0, e.LengthBytes)
	d.events = append(d.events, e)
}

// apply brings the bytes from first to last of a write into s.
func apply(s *store, e *Event, first, last int64) {
	switch e.Op {
	case nvme.OpWrite:
		s.write(e.data[first:last], e.OffsetBytes+first)
	case nvme.OpWriteZeroes:
		s.fill(0, e.OffsetBytes+first, last-first)
	case nvme.OpDeallocate:
		s.fill(deallocated, e.OffsetBytes+first, last-first)
	}
}

func gather(vec [][]byte) []byte {
	var data []byte
	for _, b := range vec {
		data = append(data, b...)
	}
	return data
}

func (d *Disk) readV(vec [][]byte, off int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, b := range vec {
		d.content.read(b, off)
		off += int64(len(b))
	}
}
