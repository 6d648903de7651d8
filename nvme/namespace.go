package nvme

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync/atomic"

	"runsc-fs/nvme/spec"
	"runsc-fs/nvme/trace"
)

// Namespace is one namespace of a Controller. It is a BlockDevice.
type Namespace struct {
	c         *Controller
	id        uint32
	geometry  Geometry     // but for Blocks
	sizeBytes atomic.Int64 // it may grow
	lbaShift  uint
	maxData   int
	maxZeroes int64 // bytes of one Write Zeroes
	maxVerify int64 // bytes of one Verify
	copying   copyLimits
	identity  [24]byte // NGUID and EUI64
	closed    atomic.Bool
	changed   atomic.Pointer[error] // why it was closed by the driver
	owner     bool                  // Close closes the controller, too
}

var _ BlockDevice = (*Namespace)(nil)

// ActiveNamespaces lists the numbers of the active namespaces in ascending
// order (Identify, CNS 02h).
func (c *Controller) ActiveNamespaces() ([]uint32, error) {
	var ids []uint32
	after := uint32(0)
	for {
		page, err := c.identify(spec.CNSActiveNSIDList, after)
		if err != nil {
			return nil, fmt.Errorf("listing namespaces: %w", err)
		}
		for ; len(page) >= 4; page = page[4:] {
			id := binary.LittleEndian.Uint32(page)
			if id == 0 {
				return ids, nil
			}
			if id <= after || id > c.info.Namespaces || id >= spec.NSIDAll-1 {
				return nil, fmt.Errorf("listing namespaces: %w: number %d after %d, of at most %d", ErrProtocol, id, after, c.info.Namespaces)
			}
			ids = append(ids, id)
			after = id
		}
	}
}

// Namespace opens a namespace by its number (Identify, CNS 00h). Closing it
// leaves the controller open.
func (c *Controller) Namespace(nsid uint32) (*Namespace, error) {
	if nsid == 0 || nsid >= spec.NSIDAll-1 {
		return nil, fmt.Errorf("%w: number %d", ErrNoNamespace, nsid)
	}
	if only := c.opts.OnlyNamespace; only != 0 && nsid != only {
		return nil, fmt.Errorf("%w: namespace %d, here only %d is", ErrNotAllowed, nsid, only)
	}
	page, err := c.identify(spec.CNSNamespace, nsid)
	var status *StatusError
	if errors.As(err, &status) && status.Status() == spec.InvalidNamespace {
		return nil, fmt.Errorf("%w: number %d", ErrNoNamespace, nsid)
	}
	if err != nil {
		return nil, fmt.Errorf("identifying namespace %d: %w", nsid, err)
	}
	ns := &Namespace{c: c, id: nsid}
	if err := ns.setGeometry(page); err != nil {
		return nil, fmt.Errorf("namespace %d: %w", nsid, err)
	}
	c.namespacesMu.Lock()
	c.namespaces[ns] = struct{}{}
	c.namespacesMu.Unlock()
	return ns, nil
}

// checkNamespaces looks at the open namespaces among ids, or at all of them,
// after an event said that they changed. One that went away, was formatted
// with other blocks or is another one now is closed: its users would write to
// the wrong places. One that grew offers what it has got. One that shrank stays
// as it was opened: requests for what is gone fail.
func (c *Controller) checkNamespaces(ids []uint32, all bool) {
	c.namespacesMu.Lock()
	var affected []*Namespace
	for ns := range c.namespaces {
		if all || slices.Contains(ids, ns.id) {
			affected = append(affected, ns)
		}
	}
	c.namespacesMu.Unlock()
	for _, ns := range affected {
		now := &Namespace{c: c, id: ns.id}
		page, err := c.identify(spec.CNSNamespace, ns.id)
		var status *StatusError
		switch {
		case err == nil:
			err = now.setGeometry(page)
		case !errors.As(err, &status):
			c.opts.Logf("nvme: looking at namespace %d, which changed: %v", ns.id, err)
			continue
		}
		switch {
		case err != nil:
		case now.lbaShift != ns.lbaShift:
			err = fmt.Errorf("it has blocks of %d bytes instead of %d", now.geometry.LBASizeBytes, ns.geometry.LBASizeBytes)
		case now.identity != ns.identity:
			err = errors.New("it is another one")
		default:
			if old, size := ns.sizeBytes.Load(), now.sizeBytes.Load(); size > old && ns.sizeBytes.CompareAndSwap(old, size) {
				c.opts.Logf("nvme: namespace %d grew from %d to %d bytes", ns.id, old, size)
			}
			continue
		}
		err = fmt.Errorf("%w: namespace %d: %w", ErrNamespaceChanged, ns.id, err)
		c.opts.Logf("nvme: %v", err)
		ns.changed.CompareAndSwap(nil, &err)
		ns.closed.Store(true)
	}
}

// refusal is why a closed namespace takes no requests.
func (ns *Namespace) refusal() error {
	if err := ns.changed.Load(); err != nil {
		return *err
	}
	return ErrClosed
}

// OpenNamespace opens a controller for one of its namespaces. Closing the
// device closes the controller and t. On failure t is closed, too.
func OpenNamespace(t Transport, nsid uint32, opts Options) (*Namespace, error) {
	c, err := Open(t, opts)
	if err != nil {
		return nil, errors.Join(err, t.Close())
	}
	ns, err := c.Namespace(nsid)
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	ns.owner = true
	return ns, nil
}

// setGeometry takes over the Identify Namespace structure (NVM 1.0, figure 97)
// and refuses what the driver cannot serve.
func (ns *Namespace) setGeometry(page []byte) error {
	le := binary.LittleEndian
	blocks := le.Uint64(page[spec.IDNSNSZE:])
	if blocks == 0 {
		return fmt.Errorf("%w: not active", ErrNoNamespace)
	}
	index := spec.FormatIndex(page[spec.IDNSFLBAS])
	if index > int(page[spec.IDNSNLBAF]) || index > 63 {
		return fmt.Errorf("%w: LBA format %d of %d is in use", ErrProtocol, index, int(page[spec.IDNSNLBAF])+1)
	}
	format := le.Uint32(page[spec.IDNSLBAF+4*index:])
	if ms := format & 0xffff; ms != 0 || page[spec.IDNSDPS]&7 != 0 {
		return fmt.Errorf("%w: its LBA format has %d bytes of metadata for each block (protection type %d); format it without metadata", ErrUnsupported, ms, page[spec.IDNSDPS]&7)
	}
	lbads := uint(format >> 16 & 0xff)
	if lbads < 9 || lbads > 12 {
		return fmt.Errorf("%w: logical blocks of 2^%d bytes, not of 512 to 4096", ErrUnsupported, lbads)
	}
	if blocks > math.MaxInt64>>lbads {
		return fmt.Errorf("%w: %d blocks of 2^%d bytes", ErrProtocol, blocks, lbads)
	}
	c := ns.c
	ns.lbaShift = lbads
	ns.maxData = min(c.maxData, spec.MaxNLB<<lbads)
	ns.maxZeroes = int64(min(spec.MaxNLB<<lbads, c.limits.zeroes))
	ns.maxVerify = int64(min(spec.MaxNLB<<lbads, c.limits.verify))
	copy(ns.identity[:], page[spec.IDNSNGUID:])
	ns.setCopyLimits(page)
	boundary := int64(le.Uint16(page[spec.IDNSNOIOB:])) << lbads
	if boundary < PageSizeBytes || boundary >= int64(blocks)<<lbads {
		boundary = 0 // no boundary, or not one to be taken seriously
	}
	ns.sizeBytes.Store(int64(blocks) << lbads)
	atomicBlocks := c.info.AtomicWriteBlocks
	if page[spec.IDNSNSFEAT]&spec.NSFEATAtomics != 0 {
		atomicBlocks = int(le.Uint16(page[spec.IDNSNAWUPF:])) + 1
	}
	if le.Uint16(page[spec.IDNSNABSPF:]) != 0 {
		atomicBlocks = 1 // a write across such a boundary may be torn there
	}
	vwc := c.info.VolatileWriteCache
	if vwc {
		if v, err := c.feature(spec.FeatureVolatileWriteCache); err == nil {
			vwc = v&1 != 0 // present, but turned off: nothing to flush
		}
	}
	ns.geometry = Geometry{
		LBASizeBytes:       1 << lbads,
		MaxTransferBytes:   ns.maxData,
		AtomicWriteBytes:   min(atomicBlocks<<lbads, ns.maxData),
		VolatileWriteCache: vwc,
		BoundaryBytes:      boundary,
		Deallocate:         c.info.ONCS&spec.ONCSDSM != 0,
		WriteZeroes:        c.info.ONCS&spec.ONCSWriteZeroes != 0,
		Compare:            c.info.ONCS&spec.ONCSCompare != 0,
		Verify:             c.info.ONCS&spec.ONCSVerify != 0,
		Copy:               c.info.ONCS&spec.ONCSCopy != 0 && ns.copying.ranges > 0,
	}
	return nil
}

// ID is the namespace's number.
func (ns *Namespace) ID() uint32 { return ns.id }

// Controller is the controller that the namespace belongs to.
func (ns *Namespace) Controller() *Controller { return ns.c }

// Geometry implements BlockDevice.
func (ns *Namespace) Geometry() Geometry {
	g := ns.geometry
	g.Blocks = ns.sizeBytes.Load() >> ns.lbaShift
	return g
}

// Refresh looks at the namespace again, as after an event that it changed, so
// that what it has grown by can be used without waiting for the event.
func (ns *Namespace) Refresh() error {
	ns.c.checkNamespaces([]uint32{ns.id}, false)
	if ns.closed.Load() {
		return ns.refusal()
	}
	return nil
}

// Arena implements BlockDevice.
func (ns *Namespace) Arena() *Arena { return ns.c.arena }

// Do implements BlockDevice. All requests go to one queue pair, a free one if
// there is any. Requests are split where the controller or the layout of Vec
// demands it; each fails or succeeds as a whole and independently of the
// others. An error of a request is ErrInvalidRequest, ErrUnsupported or
// ErrClosed when nothing was sent, a *StatusError, or one of the conditions of
// the controller; see the variables. Once Do returns the controller does not
// touch the memory of the requests any more, whatever happened.
func (ns *Namespace) Do(reqs []Request) error {
	if len(reqs) == 0 {
		return nil
	}
	for i := range reqs {
		reqs[i].Err = nil
	}
	was := trace.Enter(trace.Queue)
	q := ns.c.pick()
	q.mu.Lock()
	b, err := q.beginLocked(ns, reqs)
	failed := err != nil
	if !failed {
		q.driveLocked(b)
		failed = b.failed
		q.endLocked(b)
	}
	q.mu.Unlock()
	q.users.Add(-1)
	trace.Leave(was)
	if !failed {
		return nil
	}
	for i := range reqs {
		if err != nil {
			reqs[i].Err = err
		}
		if reqs[i].Err != nil {
			return reqs[i].Err
		}
	}
	return nil
}

// Close implements BlockDevice.
func (ns *Namespace) Close() error {
	ns.closed.Store(true)
	ns.c.namespacesMu.Lock()
	delete(ns.c.namespaces, ns)
	ns.c.namespacesMu.Unlock()
	for _, q := range ns.c.io {
		q.waitIdle(ns)
	}
	if ns.owner {
		return ns.c.Close()
	}
	return nil
}
