package uring

import (
	"errors"
	"sync"
	"sync/atomic"
	"unsafe"

	abi "gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/eventfd"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
	"gvisor.dev/gvisor/pkg/sentry/pgalloc"
	"gvisor.dev/gvisor/pkg/sentry/usage"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/waiter"
)

// ring is the file that io_uring_setup makes. It implements
// vfs.FileDescriptionImpl.
type ring struct {
	vfsfd vfs.FileDescription
	vfs.FileDescriptionDefaultImpl
	vfs.DentryMetadataFileDescriptionImpl
	vfs.NoLockFD

	// Immutable.
	flags                uint32 // IORING_SETUP_*
	sqEntries, cqEntries uint32
	array                uint32 // offset of the indices
	rings, sqes          memory
	owner                *kernel.Task // who made it
	poller               *poller      // nil without SQPOLL

	// turn is a lock that tasks can wait for: it is held by whoever carries out
	// requests. It guards the fields up to mu.
	turn         chan struct{}
	sqHead       uint32
	disabled     bool
	restrictions *restrictions
	buffers      []buffer
	files        []*vfs.FileDescription // each with a reference; nil where there is none
	batch        batch
	chain        chain
	delayed      []*request // heads of chains that wait for all others (IOSQE_IO_DRAIN)
	delayedN     int        // requests in delayed

	queue waiter.Queue // of those who poll the ring

	mu       sync.Mutex
	closed   bool
	cqTail   uint32
	posted   uint32 // completions so far, those of timeouts excepted
	overflow []cqe
	pending  map[*request]struct{}
	counters []*request // timeouts that end after a number of completions
	flying   int        // requests that have begun and not ended
	ready    []*request // pending ones that can go on
	working  bool       // somebody is about to look at ready
	waiters  []*waitEntry
	eventFD  *vfs.FileDescription // one reference, or nil
}

// errSave is what a checkpoint of a sandbox with rings fails with.
var errSave = errors.New("io_uring: rings cannot be saved")

// memory is shared with applications. It implements memmap.Mappable.
type memory struct {
	mf *pgalloc.MemoryFile
	fr memmap.FileRange
	b  []byte // in this address space
}

func newMemory(ctx context.Context, size uint64) (memory, error) {
	length, ok := hostarch.Addr(size).RoundUp()
	if !ok {
		return memory{}, linuxerr.ENOMEM
	}
	mf := pgalloc.MemoryFileFromContext(ctx)
	fr, err := mf.Allocate(uint64(length), pgalloc.AllocOpts{Kind: usage.Anonymous, MemCgID: pgalloc.MemoryCgroupIDFromContext(ctx)})
	if err != nil {
		return memory{}, linuxerr.ENOMEM
	}
	blocks, err := mf.MapInternal(fr, hostarch.ReadWrite)
	if err != nil || blocks.NumBlocks() != 1 {
		mf.DecRef(fr) // it lies across two mappings of the sandbox, which is rare
		return memory{}, linuxerr.ENOMEM
	}
	return memory{mf: mf, fr: fr, b: blocks.Head().ToSlice()}, nil
}

func (m *memory) release() { m.mf.DecRef(m.fr) }

// word is a field that both sides use.
func (m *memory) word(off uint32) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&m.b[off : off+4][0]))
}

// AddMapping implements memmap.Mappable.AddMapping.
func (m *memory) AddMapping(_ context.Context, _ memmap.MappingSpace, ar hostarch.AddrRange, offset uint64, _ bool) error {
	if end := offset + uint64(ar.Length()); end < offset || end > m.fr.Length() {
		return linuxerr.EINVAL
	}
	return nil
}

// RemoveMapping implements memmap.Mappable.RemoveMapping.
func (*memory) RemoveMapping(context.Context, memmap.MappingSpace, hostarch.AddrRange, uint64, bool) {
}

// CopyMapping implements memmap.Mappable.CopyMapping.
func (m *memory) CopyMapping(ctx context.Context, ms memmap.MappingSpace, _, dst hostarch.AddrRange, offset uint64, writable bool) error {
	return m.AddMapping(ctx, ms, dst, offset, writable)
}

// Translate implements memmap.Mappable.Translate.
func (m *memory) Translate(_ context.Context, required, optional memmap.MappableRange, _ hostarch.AccessType) ([]memmap.Translation, error) {
	var err error
	if required.End > m.fr.Length() {
		err = &memmap.BusError{Err: linuxerr.EFAULT}
	}
	source := optional.Intersect(memmap.MappableRange{Start: 0, End: m.fr.Length()})
	if source.Length() == 0 {
		return nil, err
	}
	return []memmap.Translation{{Source: source, File: m.mf, Offset: m.fr.Start + source.Start, Perms: hostarch.AnyAccess}}, err
}

// InvalidateUnsavable implements memmap.Mappable.InvalidateUnsavable.
func (*memory) InvalidateUnsavable(context.Context) error { return errSave }

// newRing makes a ring with the sizes of p, and completes p.
func newRing(t *kernel.Task, p *params) (*ring, error) {
	r := &ring{
		flags: p.flags, sqEntries: p.sqEntries, cqEntries: p.cqEntries, owner: t,
		turn: make(chan struct{}, 1), disabled: p.flags&setupDisabled != 0, pending: map[*request]struct{}{},
	}
	r.batch.r = r
	r.array = offCQEs + r.cqEntries*cqeBytes
	size := uint64(r.array)
	if p.flags&setupNoSQArray == 0 {
		p.arrayOff = r.array
		size += uint64(r.sqEntries) * 4
	}
	var err error
	if r.rings, err = newMemory(t, size); err != nil {
		return nil, err
	}
	if r.sqes, err = newMemory(t, uint64(r.sqEntries)*sqeBytes); err != nil {
		r.rings.release()
		return nil, err
	}
	for off, v := range map[uint32]uint32{
		offSQMask: r.sqEntries - 1, offCQMask: r.cqEntries - 1, offSQEntries: r.sqEntries, offCQEntries: r.cqEntries,
	} {
		r.rings.word(off).Store(v)
	}
	vd := t.Kernel().VFS().NewAnonVirtualDentry("[io_uring]")
	defer vd.DecRef(t)
	if err := r.vfsfd.Init(r, abi.O_RDWR, auth.CredentialsFromContext(t), vd.Mount(), vd.Dentry(), &vfs.FileDescriptionOptions{
		UseDentryMetadata: true, DenyPRead: true, DenyPWrite: true, DenySpliceIn: true,
	}); err != nil {
		r.rings.release()
		r.sqes.release()
		return nil, err
	}
	return r, nil
}

// Release implements vfs.FileDescriptionImpl.Release: what is pending ends
// without a completion.
func (r *ring) Release(ctx context.Context) {
	r.mu.Lock()
	r.closed = true
	pending := r.pending
	r.pending, r.ready, r.overflow = nil, nil, nil
	event := r.eventFD
	r.eventFD = nil
	r.mu.Unlock()
	if r.poller != nil {
		close(r.poller.stop)
	}
	for q := range pending {
		q.disarm(ctx)
		for ; q != nil; q = q.next {
			q.dropFile(ctx)
		}
	}
	for _, f := range r.files {
		if f != nil {
			f.DecRef(ctx)
		}
	}
	if event != nil {
		event.DecRef(ctx)
	}
	r.rings.release()
	r.sqes.release()
}

// ConfigureMMap implements vfs.FileDescriptionImpl.ConfigureMMap.
func (r *ring) ConfigureMMap(_ context.Context, opts *memmap.MMapOpts) error {
	m := &r.rings
	switch opts.Offset {
	case mapSQRing, mapCQRing:
	case mapSQEs:
		m = &r.sqes
	default:
		return linuxerr.EINVAL
	}
	opts.Offset = 0
	return vfs.GenericConfigureMMap(&r.vfsfd, m, opts)
}

// Readiness implements waiter.Waitable.Readiness.
func (r *ring) Readiness(mask waiter.EventMask) waiter.EventMask {
	var ready waiter.EventMask
	r.mu.Lock()
	if r.available() > 0 || len(r.overflow) > 0 {
		ready |= waiter.ReadableEvents
	}
	r.mu.Unlock()
	if r.rings.word(offSQTail).Load()-r.rings.word(offSQHead).Load() < r.sqEntries {
		ready |= waiter.WritableEvents
	}
	return ready & mask
}

// EventRegister implements waiter.Waitable.EventRegister.
func (r *ring) EventRegister(e *waiter.Entry) error {
	r.queue.EventRegister(e)
	return nil
}

// EventUnregister implements waiter.Waitable.EventUnregister.
func (r *ring) EventUnregister(e *waiter.Entry) { r.queue.EventUnregister(e) }

// Epollable implements vfs.FileDescriptionImpl.Epollable.
func (*ring) Epollable() bool { return true }

// available counts the completions that nobody has taken. The head is the
// application's; nonsense there costs it completions.
func (r *ring) available() uint32 {
	return min(r.cqTail-r.rings.word(offCQHead).Load(), r.cqEntries)
}

// post adds completions, and wakes those who wait for them. It reports false if
// one had to wait for room in the ring.
func (r *ring) post(cqes ...cqe) bool { return r.postAll(cqes, uint32(len(cqes))) }

// postAll is post where only some of the completions count for timeouts.
func (r *ring) postAll(cqes []cqe, counted uint32) bool {
	if len(cqes) == 0 {
		return true
	}
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return false
	}
	fit := true
	for k := range cqes {
		if len(r.overflow) > 0 || r.available() == r.cqEntries {
			r.overflow = append(r.overflow, cqes[k])
			fit = false
			continue
		}
		r.putLocked(&cqes[k])
	}
	r.rings.word(offCQTail).Store(r.cqTail)
	if !fit {
		r.rings.word(offSQFlags).Or(sqCQOverflow)
	}
	r.posted += counted
	if counted > 0 {
		r.wakeCountersLocked()
	}
	for _, w := range r.waiters {
		w.wake()
	}
	event := r.eventFD
	if event != nil {
		if r.rings.word(offCQFlags).Load()&cqEventFDDisabled != 0 || !event.TryIncRef() {
			event = nil
		}
	}
	r.mu.Unlock()
	r.queue.Notify(waiter.ReadableEvents)
	if event != nil {
		// A counter at its limit stays there, as on Linux.
		_ = event.Impl().(*eventfd.EventFileDescription).Signal(1)
		event.DecRef(r.owner.Kernel().SupervisorContext())
	}
	return fit
}

func (r *ring) putLocked(c *cqe) {
	off := offCQEs + (r.cqTail&(r.cqEntries-1))*cqeBytes
	c.put(r.rings.b[off : off+cqeBytes])
	r.cqTail++
}

// flushOverflow moves completions that had no room into the ring, and reports
// how many are left.
func (r *ring) flushOverflow() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.overflow) == 0 || r.closed {
		return 0
	}
	n := 0
	for n < len(r.overflow) && r.available() < r.cqEntries {
		r.putLocked(&r.overflow[n])
		n++
	}
	r.rings.word(offCQTail).Store(r.cqTail)
	r.overflow = append(r.overflow[:0], r.overflow[n:]...)
	if len(r.overflow) == 0 {
		r.overflow = nil
		r.rings.word(offSQFlags).And(^uint32(sqCQOverflow))
	}
	return len(r.overflow)
}

// takeTurn waits until nobody else carries out requests; t is nil off tasks.
func (r *ring) takeTurn(t *kernel.Task) {
	select {
	case r.turn <- struct{}{}:
		return
	default:
	}
	if t != nil {
		t.UninterruptibleSleepStart()
		defer t.UninterruptibleSleepFinish()
	}
	r.turn <- struct{}{}
}

func (r *ring) endTurn() { <-r.turn }
