package blobfs

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"runsc-fs/blobfs/format"
	"runsc-fs/blobfs/store"
	"runsc-fs/nvme"
)

// FS is a mounted file system. All methods may be called concurrently.
type FS struct {
	opts             MountOptions
	clock            clock
	dev              nvme.BlockDevice
	store            *store.Store
	cache            *PageCache
	inodes           inodeCache
	root             *Inode // holds a reference
	seed             [16]byte
	lbaBytes         int64
	maxTransferBytes int64
	gate             gate
	revoking         atomic.Int32 // invalidators called by revoke that have not returned

	// inodeCount is the number of inodes if there is a limit on it, and means nothing otherwise.
	inodeCount atomic.Int64

	// txMu serialises transactions, together with what they do in memory.
	txMu sync.Mutex
	tx   txn

	// dirtyMu guards dirty, the inodes to be written back, oldest first. An
	// inode that has left the cache meanwhile is passed over.
	dirtyMu sync.Mutex
	dirty   []*Inode

	// flushing is held shared by those who have taken an inode off that list
	// until they have written it back, and exclusively for a moment by those
	// who must not miss it.
	flushing sync.RWMutex

	errMu sync.Mutex
	wbErr errState

	flusher flusher
}

// Mkfs makes an empty file system on dev. The device stays the caller's to
// close. Errors: ErrInvalid and those of the store and the device.
func Mkfs(dev nvme.BlockDevice, opts MkfsOptions) error {
	if opts.RootMode&^uint32(ModePermission) != 0 {
		return fmt.Errorf("%w: mode %#o of the root directory", ErrInvalid, opts.RootMode)
	}
	if opts.RootMode == 0 {
		opts.RootMode = 0o755
	}
	if opts.Now == nil {
		opts.Now = wallClock
	}
	clock := func() time.Time { return time.Unix(0, opts.Now()) }
	err := store.Format(dev, store.FormatOptions{Label: opts.Label, UUID: opts.UUID, HashSeed: opts.HashSeed, LogBytes: opts.LogBytes, Now: clock})
	if err != nil {
		return err
	}
	s, err := store.Open(dev, store.Options{Now: clock})
	if err != nil {
		return err
	}
	now := opts.Now()
	_, err = s.Update(func(tx *store.Tx) error {
		root := format.Inode{
			Mode: ModeDir | opts.RootMode, UID: opts.RootUID, GID: opts.RootGID, Nlink: 2,
			Generation: generation(format.RootObject, now),
			Atime:      now, Mtime: now, Ctime: now, Btime: now, Parent: format.RootObject,
		}
		var b [format.InodeBytes]byte
		root.Encode(b[:])
		return tx.Put(inodeKey(format.RootObject), b[:])
	})
	return errors.Join(err, s.Close())
}

// Mount opens the file system on dev. It finishes what a crash has interrupted,
// unless ReadOnly is set. The device stays the caller's to close. Errors wrap
// format.ErrNotBlobfs, ErrVersion, ErrFeature or ErrReadOnlyFeature, ErrCorrupt,
// or are the device's.
func Mount(dev nvme.BlockDevice, opts MountOptions) (*FS, error) {
	if err := opts.setDefaults(dev.Arena().SizeBytes()); err != nil {
		return nil, err
	}
	s, err := store.Open(dev, store.Options{
		ReadOnly: opts.ReadOnly, Discard: opts.Discard, LimitBytes: opts.LimitBytes, NodeCacheBytes: opts.NodeCacheBytes, Logf: opts.Logf,
		Now: func() time.Time { return time.Unix(0, opts.Now()) },
	})
	if err != nil {
		return nil, err
	}
	if opts.GrowToBytes > 0 && !opts.ReadOnly {
		if err := s.Grow(opts.GrowToBytes); err != nil {
			opts.Logf("blobfs: the file system stays as large as it is: %v", err)
		}
	}
	fs := &FS{
		opts: opts, dev: dev, store: s, seed: s.HashSeed(),
		lbaBytes: dev.Geometry().LBASizeBytes, maxTransferBytes: int64(dev.Geometry().MaxTransferBytes),
	}
	fs.clock.now, fs.clock.grainNs = opts.Now, opts.TimeGrain.Nanoseconds()
	fs.cache = newPageCache(dev.Arena(), opts.CacheBytes)
	fs.inodes.init(opts.MaxIdleInodes)
	fs.root, err = fs.viewInode(func(*store.Reader) (uint64, error) { return format.RootObject, nil })
	if err == errNoInode {
		err = corruptf("there is no root directory")
	}
	if err == nil && fs.root.typ != ModeDir {
		err = corruptf("the root directory is of type %#o", fs.root.typ)
	}
	if err == nil && !opts.ReadOnly {
		err = fs.finishOrphans()
	}
	if err == nil && opts.MaxInodes > 0 {
		err = fs.countInodes()
	}
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	fs.startFlusher()
	return fs, nil
}

// Root returns the root directory with a new reference.
func (fs *FS) Root() *Inode {
	fs.root.IncRef()
	return fs.root
}

// UUID identifies the file system.
func (fs *FS) UUID() [16]byte { return fs.store.UUID() }

// Label is the name that the file system was made with.
func (fs *FS) Label() string { return fs.store.Label() }

// CommitInterval is the time between commits in the background; negative if
// there are none.
func (fs *FS) CommitInterval() time.Duration { return fs.opts.CommitInterval }

// Pages is the page cache, for taking references to what Fault returns.
func (fs *FS) Pages() *PageCache { return fs.cache }

// ReadOnly reports whether changes are refused: by option, or because an error
// has made it impossible to keep the metadata safe.
func (fs *FS) ReadOnly() bool {
	if fs.opts.ReadOnly {
		return true
	}
	ro, _ := fs.store.ReadOnly()
	return ro
}

// now is the time for what happens now, as coarse as file times are.
func (fs *FS) now() int64 { return fs.clock.coarse() }

// bytesPerInode is the share of space that statfs counts as one inode: what
// the smallest file takes in the tree.
const bytesPerInode = 512

// StatFS describes the space of the volume.
func (fs *FS) StatFS() StatFS {
	st := fs.store.StatFS()
	perBlock := int64(BlockSizeBytes / bytesPerInode)
	total, free := int64(st.TotalBlocks)*perBlock, int64(st.FreeBlocks)*perBlock
	if limit := fs.opts.MaxInodes; limit > 0 {
		total, free = limit, min(free, max(limit-fs.inodeCount.Load(), 0))
	}
	return StatFS{
		BlockSizeBytes: BlockSizeBytes, MaxNameBytes: MaxNameBytes,
		TotalBlocks: int64(st.TotalBlocks), FreeBlocks: int64(st.FreeBlocks), AvailableBlocks: int64(st.AvailBlocks),
		TotalInodes: total, FreeInodes: free,
	}
}

// Grow makes the file system as large as sizeBytes allows, which its device must
// have. It never becomes smaller. When it returns, the new space is there for
// good; a crash before leaves the old size or the new one.
func (fs *FS) Grow(sizeBytes int64) error {
	g, err := fs.gate.enter()
	if err != nil {
		return err
	}
	defer g.leave()
	return volumeError(fs.store.Grow(sizeBytes))
}

// Close refuses all further calls with ErrClosed, waits for those inside, takes
// mapped pages back, writes everything back and makes it durable. Memory of the
// arena that is still referenced stays allocated until PageCache.DecRef; the
// rest is given back. The error says that something may not be durable. Of
// calls that do not come to an end, Close waits for none longer than 30 s:
// then it leaves them what memory they have.
func (fs *FS) Close() error {
	if !fs.gate.close() {
		return ErrClosed
	}
	idle := fs.gate.drain(closePatience)
	if !idle {
		fs.opts.Logf("blobfs: closing with calls that have not come to an end in %v", closePatience)
	}
	fs.stopFlusher()
	var err error
	if !fs.opts.ReadOnly {
		fs.revokeWritable()
		err = fs.flushAll()
		_ = fs.discard() // hints
	}
	if idle {
		fs.inodes.all(func(i *Inode) {
			i.invalidate(0, MaxFileSizeBytes)
			i.dropAllPages()
		})
	}
	err = errors.Join(err, fs.store.Close())
	if idle {
		fs.cache.close()
	}
	return err
}

// volumeError gives errors of the store the meaning they have for a caller.
func volumeError(err error) error {
	if err == nil {
		return nil
	}
	var failed *store.FailedError
	switch {
	case errors.As(err, &failed):
		return err // an ErrReadOnly that says why
	case errors.Is(err, store.ErrBadRange), errors.Is(err, store.ErrBadRun), errors.Is(err, store.ErrNotFound):
		return corruptf("%v", err)
	case errors.Is(err, store.ErrTooBig):
		return fmt.Errorf("%w: %w", ErrNoSpace, err)
	case errors.Is(err, store.ErrBusy):
		return fmt.Errorf("%w: %w", ErrIO, err)
	}
	return err
}

func (fs *FS) readData(b *batch) error  { return volumeError(fs.store.ReadData(b.reqs)) }
func (fs *FS) writeData(b *batch) error { return volumeError(fs.store.WriteData(b.reqs)) }
