package crashdev

import (
	"fmt"
	"sync/atomic"

	"runsc-fs/nvme"
	"runsc-fs/nvme/soft"
)

// device is a Disk as a BlockDevice.
type device struct {
	d      *Disk
	arena  *nvme.Arena
	closed atomic.Bool
}

// Device gives access to the disk without a controller in between. The
// requests of one Do are in flight together: none is ordered before another.
// Several devices of one disk may exist; closing one leaves the disk alone.
func (d *Disk) Device(arena *nvme.Arena) nvme.BlockDevice { return &device{d: d, arena: arena} }

func (v *device) Geometry() nvme.Geometry {
	o := v.d.opts
	return nvme.Geometry{
		LBASizeBytes:       int64(o.LBASizeBytes),
		Blocks:             o.SizeBytes / int64(o.LBASizeBytes),
		MaxTransferBytes:   1 << 20,
		AtomicWriteBytes:   o.AtomicWriteBytes,
		VolatileWriteCache: true,
		Deallocate:         true,
		WriteZeroes:        true,
	}
}

func (v *device) Arena() *nvme.Arena { return v.arena }

func (v *device) Do(reqs []nvme.Request) (first error) {
	began := v.d.began()
	for i := range reqs {
		r := &reqs[i]
		if r.Err = v.one(r, began); r.Err != nil && first == nil {
			first = r.Err
		}
	}
	return first
}

func (v *device) one(r *nvme.Request, began int) error {
	if v.closed.Load() {
		return nvme.ErrClosed
	}
	n := r.LengthBytes
	switch r.Op {
	case nvme.OpFlush:
		v.d.complete(Event{Op: nvme.OpFlush, Began: began})
		return nil
	case nvme.OpRead, nvme.OpWrite:
		n = 0
		for _, b := range r.Vec {
			if _, ok := v.arena.Offset(b); !ok && len(b) > 0 {
				return fmt.Errorf("%w: memory outside the arena", nvme.ErrInvalidRequest)
			}
			n += int64(len(b))
		}
	case nvme.OpWriteZeroes, nvme.OpDeallocate:
	default:
		return fmt.Errorf("%w: unknown operation %d", nvme.ErrInvalidRequest, r.Op)
	}
	if err := v.d.check(r.OffsetBytes, n); err != nil {
		return fmt.Errorf("%w: %w", nvme.ErrInvalidRequest, err)
	}
	if (r.OffsetBytes|n)%int64(v.d.opts.LBASizeBytes) != 0 {
		return fmt.Errorf("%w: %d bytes at %d in blocks of %d", nvme.ErrInvalidRequest, n, r.OffsetBytes, v.d.opts.LBASizeBytes)
	}
	switch {
	case n == 0:
	case r.Op == nvme.OpRead:
		v.d.readV(r.Vec, r.OffsetBytes)
	case r.Op == nvme.OpWrite:
		v.d.complete(Event{Op: r.Op, OffsetBytes: r.OffsetBytes, LengthBytes: n, FUA: r.FUA, Began: began, data: gather(r.Vec)})
	default:
		v.d.complete(Event{Op: r.Op, OffsetBytes: r.OffsetBytes, LengthBytes: n, FUA: r.FUA && r.Op == nvme.OpWriteZeroes, Began: began})
	}
	return nil
}

func (v *device) Close() error {
	v.closed.Store(true)
	return nil
}

// backing is a Disk as a medium of the software controller.
type backing struct{ d *Disk }

// Backing gives access to the disk through a controller. Closing it leaves the
// disk alone.
func (d *Disk) Backing() soft.Backing { return backing{d} }

func (b backing) String() string {
	return fmt.Sprintf("recording disk of %d bytes", b.d.opts.SizeBytes)
}

func (b backing) Properties() soft.Properties {
	return soft.Properties{SizeBytes: b.d.opts.SizeBytes, VolatileWriteCache: true, AtomicWriteBytes: b.d.opts.AtomicWriteBytes}
}

func (b backing) ReadV(vec [][]byte, off int64) error {
	b.d.readV(vec, off)
	return nil
}

func (b backing) WriteV(vec [][]byte, off int64, fua bool) error {
	began, data := b.d.began(), gather(vec)
	b.d.complete(Event{Op: nvme.OpWrite, OffsetBytes: off, LengthBytes: int64(len(data)), FUA: fua, Began: began, data: data})
	return nil
}

func (b backing) Zero(off, n int64, fua bool) error {
	b.d.complete(Event{Op: nvme.OpWriteZeroes, OffsetBytes: off, LengthBytes: n, FUA: fua, Began: b.d.began()})
	return nil
}

func (b backing) Deallocate(off, n int64) error {
	b.d.complete(Event{Op: nvme.OpDeallocate, OffsetBytes: off, LengthBytes: n, Began: b.d.began()})
	return nil
}

func (b backing) Flush() error {
	b.d.complete(Event{Op: nvme.OpFlush, Began: b.d.began()})
	return nil
}

func (b backing) Close() error { return nil }
