// Package store is the crash-consistent core of blobfs: an ordered map from
// format.Key to small values with atomic transactions, and an allocator for
// the blocks of files, on one nvme.BlockDevice.
//
// The tree in memory is always ahead of the disk. Update changes it and
// gathers the change in logical form; Commit writes what is gathered as one
// log record; a checkpoint writes the changed nodes to new places and then a
// superblock that leads to them, which makes the log before it superfluous. A
// crash leaves the tree of the last superblock and the log behind it, and Open
// replays that. So what is found after a crash is always the state after some
// transaction, at or after the last one that was committed.
//
// # Lock order
//
//	Store.discardMu      one Discard at a time; held during its I/O
//	Store.checkpointMu   one checkpoint at a time; held during its I/O
//	Store.mu             the tree; exclusive for transactions
//	allocator.mu         bitmaps and space; held while a bitmap is read
//	logWriter.mu         the log buffer; never held during I/O
//
// Store.mu is held during I/O only to read nodes that are not in memory.
package store

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"runsc-fs/blobfs/format"
	"runsc-fs/nvme"
	"runsc-fs/nvme/trace"
)

// Options are the parameters of Open. The zero value is usable.
type Options struct {
	// ReadOnly opens without writing anything; the log is replayed in memory.
	ReadOnly bool
	// Discard has freed blocks wait for Store.Discard, which tells the device of
	// them, as long as nobody needs the space.
	Discard bool
	// LimitBytes lets the volume fill only as if it had that size: requests for space
	// fail beyond, and StatFS tells of no more. What frees space always works. 0: no limit.
	LimitBytes int64
	// NodeCacheBytes bounds the memory for clean tree nodes. Dirty ones come
	// on top, at most 32 MiB. 0 means 64 MiB; at least 1 MiB.
	NodeCacheBytes int64
	// Now is the clock; nil means time.Now.
	Now func() time.Time
	// Logf reports what an administrator should know; nil drops it.
	Logf func(text string, args ...any)
}

func (o *Options) setDefaults() error {
	if o.NodeCacheBytes == 0 {
		o.NodeCacheBytes = 64 << 20
	}
	if o.NodeCacheBytes < 1<<20 {
		return fmt.Errorf("store: node cache of %d bytes, at least 1 MiB is needed", o.NodeCacheBytes)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logf == nil {
		o.Logf = func(string, ...any) {}
	}
	return nil
}

const (
	// dirtySoft is the number of dirty nodes that calls for a checkpoint,
	// dirtyHard the one at which transactions wait for it. With a small node
	// cache both are smaller.
	dirtySoft    = 4096
	dirtyHard    = 8192
	minDirtySoft = 512
	// maxReplayDirty bounds the memory of a replay. Our own log stays below
	// it: it goes back at most two generations.
	maxReplayDirty = 4 * dirtyHard
	// maxLoadedGroups bounds the memory for bitmaps, at 8 KiB each, as far as
	// they can be read again.
	maxLoadedGroups = 1024
)

// Store is an open volume. All methods may be called concurrently, except as
// they say.
type Store struct {
	dev           nvme.BlockDevice
	opts          Options
	volatileCache bool
	sb            *format.Superblock // as opened; after that only its constant fields are used, and Incompat and VolumeBlocks under mu

	failed     atomic.Pointer[FailedError]
	closed     atomic.Bool
	released   atomic.Bool // pages and staging are gone
	nextObject atomic.Uint64
	dataWrites atomic.Uint64 // completed data writes
	features   atomic.Uint64 // Superblock.Incompat, as far as it is durable
	blocks     atomic.Uint64 // Superblock.VolumeBlocks, likewise
	stats      counters

	pages   chan *pageIO // arena pages for reading nodes and bitmaps
	staging []byte       // arena pages for writing, guarded by checkpointMu

	log   logWriter
	alloc *allocator

	discardMu    sync.Mutex  // one Discard at a time; before all others
	started      atomic.Bool // a checkpoint in the background
	checkpointMu sync.Mutex
	pair         int // the valid pair of superblock slots
	writer       blockWriter

	mu        sync.RWMutex
	root      *node
	gen       uint64 // generation that dirty nodes belong to
	lastLSN   LSN    // last completed transaction
	published LSN    // last one that the valid superblock contains
	nodes     int64  // nodes of the tree
	dirty     int    // nodes of generation gen
	frozen    int    // nodes that a checkpoint is writing
	changes   uint64 // counts changes to the tree, for scans in transactions
	undoing   bool   // a transaction is being undone
	path      treePath
	tx        Tx
	reader    Reader // for views; as a field it costs no allocation
	sweepPos  int
	resident  atomic.Int64 // nodes in memory

	// Constant after Open, apart from tests.
	maxResident          int64
	dirtySoft, dirtyHard int
	maxGroups            int
	inline               bool                        // no checkpoints in the background: tests that must repeat exactly
	denySpace            atomic.Pointer[func() bool] // see DenySpace
}

// Open opens the volume on dev: it chooses the newest superblock and replays
// the log. Unless ReadOnly is set it then writes a superblock, so that nothing
// of what an earlier life left in the log can be mistaken for later. The
// device stays the caller's to close.
//
// Errors wrap format.ErrNotBlobfs, ErrVersion, ErrFeature,
// ErrReadOnlyFeature or ErrCorrupt, or are the device's.
func Open(dev nvme.BlockDevice, opts Options) (*Store, error) {
	if err := opts.setDefaults(); err != nil {
		return nil, err
	}
	if err := checkGeometry(dev); err != nil {
		return nil, err
	}
	s := &Store{
		dev: dev, opts: opts, volatileCache: dev.Geometry().VolatileWriteCache,
		maxGroups:   maxLoadedGroups,
		maxResident: opts.NodeCacheBytes / format.BlockSizeBytes,
	}
	s.dirtySoft = int(min(dirtySoft, max(s.maxResident/2, minDirtySoft)))
	s.dirtyHard = s.dirtySoft * (dirtyHard / dirtySoft)
	s.tx.s, s.reader.s = s, s
	s.tx.inTx = true
	s.writer.s = s
	if err := s.open(); err != nil {
		s.releaseMemory()
		return nil, err
	}
	return s, nil
}

// checkGeometry says whether a device can hold a volume.
func checkGeometry(dev nvme.BlockDevice) error {
	g := dev.Geometry()
	if g.LBASizeBytes <= 0 || g.LBASizeBytes > format.BlockSizeBytes || format.BlockSizeBytes%g.LBASizeBytes != 0 {
		return fmt.Errorf("store: device has logical blocks of %d bytes; blobfs needs a divisor of %d", g.LBASizeBytes, format.BlockSizeBytes)
	}
	if g.SizeBytes() < format.MinBlocks*format.BlockSizeBytes {
		return fmt.Errorf("%w: %d bytes, at least %d are needed", format.ErrTooSmall, g.SizeBytes(), format.MinBlocks*format.BlockSizeBytes)
	}
	return nil
}

func (s *Store) open() error {
	if err := s.allocateMemory(); err != nil {
		return err
	}
	slot, err := s.readSuperblock()
	if err != nil {
		return err
	}
	if !s.opts.ReadOnly {
		if err := s.sb.CheckWritable(); err != nil {
			return err
		}
	}
	s.pair = slot % 2
	// One generation is skipped: a checkpoint that did not get as far as its
	// superblock may have left nodes of it behind.
	s.gen = s.sb.Generation + 2
	s.lastLSN, s.published = LSN(s.sb.LSN), LSN(s.sb.LSN)
	s.nodes = int64(s.sb.Nodes)
	s.features.Store(s.sb.Incompat)
	s.blocks.Store(s.sb.VolumeBlocks)
	s.nextObject.Store(s.sb.NextObject)
	s.root, err = s.loadNode(s.sb.Root, int(s.sb.RootLevel), wholeTree)
	if err != nil {
		return err
	}
	s.resident.Add(1)
	if crc := format.ReadHeader(s.root.data[:]).CRC; crc != s.sb.RootCRC {
		return format.Corruptf("root at block %v: not the one that the superblock names", s.sb.Root.Addr)
	}
	s.alloc = newAllocator(s)
	if err := s.loadGroups(); err != nil {
		return err
	}
	end, err := s.replay()
	if err == nil {
		s.setFloor()
		if !s.opts.ReadOnly {
			err = s.openForWriting(end)
		}
	}
	if errors.Is(err, ErrNoSpace) {
		return s.alloc.blameDamage(err)
	}
	return err
}

// openForWriting gives this life its own log epoch, starting at end, and
// publishes that together with what was replayed.
func (s *Store) openForWriting(end logMark) error {
	blocks := int(min(max(s.sb.LogBlocks/8, minLogBuffer), format.MaxRecordBlocks))
	if err := s.log.init(s, blocks); err != nil {
		return fmt.Errorf("store: log buffers: %w", err)
	}
	if err := s.placeCondemned(); err != nil {
		return err
	}
	s.log.head, s.log.seq = end.pos, end.seq
	s.log.appended, s.log.durable = end.lsn, end.lsn
	s.sb.LogEpoch++
	s.sb.Mounts++
	s.sb.MountedNs = s.opts.Now().UnixNano()
	s.checkpointMu.Lock()
	defer s.checkpointMu.Unlock()
	return s.checkpointLocked(checkpointAlways)
}

// minLogBuffer is the smallest log buffer in blocks: more than the largest
// transaction.
const minLogBuffer = 64

var _ = [minLogBuffer * format.BlockSizeBytes]struct{}{}[MaxTxBytes+format.RecordHeaderBytes]

// allocateMemory takes the pages for metadata I/O from the arena.
func (s *Store) allocateMemory() error {
	arena := s.dev.Arena()
	s.pages = make(chan *pageIO, readPages)
	for range readPages {
		page, err := arena.Alloc(1)
		if err != nil {
			return fmt.Errorf("store: I/O memory: %w", err)
		}
		s.pages <- &pageIO{vec: [1][]byte{page}}
	}
	var err error
	if s.staging, err = arena.Alloc(stagingPages); err != nil {
		return fmt.Errorf("store: I/O memory: %w", err)
	}
	return nil
}

// releaseMemory gives the arena back what is not in use any more.
func (s *Store) releaseMemory() {
	arena := s.dev.Arena()
	for range len(s.pages) {
		arena.Free((<-s.pages).vec[0])
	}
	if s.staging != nil {
		arena.Free(s.staging)
		s.staging = nil
	}
	if s.log.s != nil {
		s.log.release()
	}
}

// readSuperblock reads all slots, sets s.sb to the best and returns its slot.
func (s *Store) readSuperblock() (slot int, err error) {
	var slots [format.SuperblockSlots][]byte
	var readErr error
	for i := range slots {
		b := make([]byte, format.BlockSizeBytes)
		if err := s.readBlock(format.SuperblockAddr(i), b); err != nil {
			readErr = err
			continue
		}
		slots[i] = b
	}
	s.sb, slot, err = format.BestSuperblock(slots, uint64(s.dev.Geometry().SizeBytes())>>format.BlockShift)
	if err != nil && readErr != nil {
		return 0, fmt.Errorf("%w (%w)", err, readErr)
	}
	return slot, err
}

// loadGroups reads the items of all groups.
func (s *Store) loadGroups() error {
	return s.reader.Scan(format.GroupKey(0), format.GroupKey(^uint64(0)), func(k format.Key, v []byte) (bool, error) {
		item, err := format.DecodeGroupItem(k, v, s.VolumeBlocks())
		if err != nil {
			return false, err
		}
		s.alloc.setItem(k.Offset, item)
		return true, nil
	})
}

// Close makes a last checkpoint and releases all memory. It waits for calls in
// progress; later calls return ErrClosed. The error says that something may
// not be durable.
func (s *Store) Close() error {
	s.checkpointMu.Lock()
	defer s.checkpointMu.Unlock()
	if s.closed.Load() {
		return ErrClosed
	}
	var err error
	if !s.opts.ReadOnly {
		s.mu.Lock()
		s.closed.Store(true) // no transaction begins after this
		s.mu.Unlock()
		err = s.checkpointLocked(checkpointFinal)
		s.log.drain()
	} else {
		s.mu.Lock()
		s.closed.Store(true)
		s.mu.Unlock()
	}
	s.alloc.mu.Lock() // nothing reads a bitmap any more
	defer s.alloc.mu.Unlock()
	s.released.Store(true)
	s.releaseMemory()
	return err
}

// Commit makes durable all transactions up to lsn and all data writes that
// completed before the call. Concurrent calls share log writes and flushes;
// when there is nothing to do it costs next to nothing. After an error the
// store is read-only: what a failed flush or write left on the device is
// unknown.
func (s *Store) Commit(lsn LSN) error {
	if s.opts.ReadOnly {
		return nil
	}
	if s.closed.Load() {
		return ErrClosed
	}
	defer trace.Leave(trace.Enter(trace.Log))
	return s.log.commit(lsn, s.dataWrites.Load())
}

// CommitLog is Commit for transactions alone: data writes are made durable only
// as far as these transactions refer to them.
func (s *Store) CommitLog(lsn LSN) error {
	if s.opts.ReadOnly {
		return nil
	}
	if s.closed.Load() {
		return ErrClosed
	}
	defer trace.Leave(trace.Enter(trace.Log))
	return s.log.commit(lsn, 0)
}

// LastLSN returns the number of the last completed transaction.
func (s *Store) LastLSN() LSN {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.lastLSN
}

// Durable reports whether all transactions up to lsn will be there after a crash.
func (s *Store) Durable(lsn LSN) bool {
	if s.opts.ReadOnly {
		return true
	}
	l := &s.log
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.durable >= lsn
}

// NextObject returns a number for a new object that was never used before. It
// is not used again once a transaction completed after this call is durable.
func (s *Store) NextObject() uint64 { return s.nextObject.Add(1) - 1 }

// UUID identifies the volume.
func (s *Store) UUID() format.UUID { return s.sb.UUID }

// Label is the name that the volume was formatted with.
func (s *Store) Label() string { return s.sb.Label }

// HashSeed keys the hashes of names in this volume.
func (s *Store) HashSeed() [16]byte { return s.sb.HashSeed }

// VolumeBlocks is the size of the volume in blocks. Grow makes it larger.
func (s *Store) VolumeBlocks() uint64 { return s.blocks.Load() }

// ReadOnly reports whether changes are refused, and if that is because of a
// failure, why.
func (s *Store) ReadOnly() (bool, error) {
	if err := s.failure(); err != nil {
		return true, err
	}
	return s.opts.ReadOnly, nil
}

// writable returns why nothing can be changed, or nil.
func (s *Store) writable() error {
	switch {
	case s.closed.Load():
		return ErrClosed
	case s.opts.ReadOnly:
		return ErrReadOnly
	}
	return s.failure()
}

func (s *Store) failure() error {
	if f := s.failed.Load(); f != nil {
		return f
	}
	return nil
}

// fail makes the store read-only for good. The first cause is kept.
func (s *Store) fail(doing string, cause error) {
	f := &FailedError{Doing: doing, Cause: cause}
	if s.failed.CompareAndSwap(nil, f) {
		s.logf("blobfs: volume %v: %v", s.sb.UUID, f)
	}
}

// poison makes the store read-only because its tree in memory is wrong.
func (s *Store) poison(cause error) { s.fail("internal error", cause) }

func (s *Store) logf(text string, args ...any) { s.opts.Logf(text, args...) }
