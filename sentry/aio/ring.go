package aio

import (
	"encoding/binary"
	"sync/atomic"
	"unsafe"

	abi "gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
	"gvisor.dev/gvisor/pkg/sentry/pgalloc"
	"gvisor.dev/gvisor/pkg/sentry/usage"
)

// The ring as applications see it (struct aio_ring of Linux's fs/aio.c):
//
//	0   id                 ┐
//	4   nr                 │ number of slots
//	8   head               │ next event to reap, written by whoever reaps
//	12  tail               │ next slot to fill
//	16  magic              │
//	20  compat_features    │
//	24  incompat_features  │
//	28  header_length      ┘
//	32  struct io_event[nr]: data, obj, res, res2, 8 bytes each
const (
	offID       = 0
	offNr       = 4
	offHead     = 8
	offTail     = 12
	offMagic    = 16
	offCompat   = 20
	offIncompat = 24
	offLength   = 28
	headerBytes = abi.AIORingSize
	eventBytes  = 32

	compatFeatures   = 1
	incompatFeatures = 0
)

// event is struct io_event.
type event struct {
	data, obj uint64
	res, res2 int64
}

func (e *event) put(b []byte) {
	le := binary.LittleEndian
	le.PutUint64(b, e.data)
	le.PutUint64(b[8:], e.obj)
	le.PutUint64(b[16:], uint64(e.res))
	le.PutUint64(b[24:], uint64(e.res2))
}

// ring is the memory of a ring, and what applications map.
type ring struct {
	refs   atomic.Int64
	mf     *pgalloc.MemoryFile
	fr     memmap.FileRange
	mem    []byte // fr in this address space
	nr     uint32 // slots
	holder *Context
}

// newRing makes a ring with at least slots slots and one reference.
func newRing(ctx context.Context, mf *pgalloc.MemoryFile, slots uint32) (*ring, error) {
	size, ok := hostarch.Addr(headerBytes + uint64(slots)*eventBytes).RoundUp()
	if !ok {
		return nil, linuxerr.EINVAL
	}
	fr, err := mf.Allocate(uint64(size), pgalloc.AllocOpts{Kind: usage.Anonymous, MemCgID: pgalloc.MemoryCgroupIDFromContext(ctx)})
	if err != nil {
		return nil, linuxerr.ENOMEM
	}
	blocks, err := mf.MapInternal(fr, hostarch.ReadWrite)
	if err != nil || blocks.NumBlocks() != 1 {
		mf.DecRef(fr) // it lies across two mappings of the sandbox, which is rare
		return nil, linuxerr.ENOMEM
	}
	r := &ring{mf: mf, fr: fr, mem: blocks.Head().ToSlice()}
	r.nr = uint32((uint64(size) - headerBytes) / eventBytes)
	r.refs.Store(1)
	for off, v := range map[int]uint32{
		offNr: r.nr, offMagic: abi.AIO_RING_MAGIC, offCompat: compatFeatures,
		offIncompat: incompatFeatures, offLength: headerBytes,
	} {
		r.word(off).Store(v)
	}
	return r, nil
}

// word is a field of the header. The application may change it at any time.
func (r *ring) word(off int) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&r.mem[off]))
}

// head is the position up to which events have been reaped, within the ring
// whatever the application has written.
func (r *ring) head() uint32 { return r.word(offHead).Load() % r.nr }

// slot is the memory of one event.
func (r *ring) slot(pos uint32) []byte {
	off := headerBytes + int(pos)*eventBytes
	return r.mem[off : off+eventBytes : off+eventBytes]
}

// IncRef implements memmap.MappingIdentity.IncRef.
func (r *ring) IncRef() { r.refs.Add(1) }

// DecRef implements memmap.MappingIdentity.DecRef.
func (r *ring) DecRef(context.Context) {
	if r.refs.Add(-1) == 0 {
		r.mf.DecRef(r.fr)
	}
}

// MappedName implements memmap.MappingIdentity.MappedName.
func (*ring) MappedName(context.Context) string { return "/[aio] (deleted)" }

// DeviceID implements memmap.MappingIdentity.DeviceID.
func (*ring) DeviceID() uint64 { return 0 }

// InodeID implements memmap.MappingIdentity.InodeID.
func (*ring) InodeID() uint64 { return 0 }

// Msync implements memmap.MappingIdentity.Msync.
func (*ring) Msync(context.Context, memmap.MappableRange) error { return linuxerr.EINVAL }

// AddMapping implements memmap.Mappable.AddMapping. Mappings may shrink, but
// not grow.
func (r *ring) AddMapping(_ context.Context, _ memmap.MappingSpace, ar hostarch.AddrRange, offset uint64, _ bool) error {
	if end := offset + uint64(ar.Length()); end < offset || end > r.fr.Length() {
		return linuxerr.EFAULT
	}
	return nil
}

// RemoveMapping implements memmap.Mappable.RemoveMapping. The context ends with
// the first page of its ring in the address space that made it.
func (r *ring) RemoveMapping(_ context.Context, ms memmap.MappingSpace, ar hostarch.AddrRange, offset uint64, _ bool) {
	if offset == 0 {
		contexts.unmapped(r.holder, ms, ar.Start)
	}
}

// CopyMapping implements memmap.Mappable.CopyMapping. A ring that is moved by
// mremap(2) takes its context with it, if it is moved as a whole.
func (r *ring) CopyMapping(ctx context.Context, ms memmap.MappingSpace, src, dst hostarch.AddrRange, offset uint64, writable bool) error {
	if err := r.AddMapping(ctx, ms, dst, offset, writable); err != nil {
		return err
	}
	if offset != 0 || uint64(dst.Length()) != r.fr.Length() || !contexts.moved(r.holder, ms, src.Start, dst.Start) {
		return linuxerr.EINVAL
	}
	return nil
}

// Translate implements memmap.Mappable.Translate.
func (r *ring) Translate(_ context.Context, required, optional memmap.MappableRange, _ hostarch.AccessType) ([]memmap.Translation, error) {
	var err error
	if required.End > r.fr.Length() {
		err = &memmap.BusError{Err: linuxerr.EFAULT}
	}
	source := optional.Intersect(memmap.MappableRange{Start: 0, End: r.fr.Length()})
	if source.Length() == 0 {
		return nil, err
	}
	return []memmap.Translation{{
		Source: source,
		File:   r.mf,
		Offset: r.fr.Start + source.Start,
		Perms:  hostarch.AnyAccess,
	}}, err
}

// InvalidateUnsavable implements memmap.Mappable.InvalidateUnsavable.
func (*ring) InvalidateUnsavable(context.Context) error { return errSave }
