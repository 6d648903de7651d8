package blobfs

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"runsc-fs/blobfs/format"
	"runsc-fs/blobfs/store"
)

// Inode is the in-memory state of one inode. There is one object per inode
// number while anybody references it, and for some time after. All methods may
// be called concurrently by holders of a reference.
type Inode struct {
	fs  *FS
	ino uint64
	gen uint32
	typ uint32 // type bits of the mode, fixed

	refs atomic.Int64

	// Owned by the inode cache, under its shard's mu.
	idle       bool // on the list of unreferenced inodes
	dying      bool // being reclaimed: lookups fail
	prev, next *Inode

	ioMu     sync.RWMutex
	revokeMu sync.Mutex
	cacheMu  groupLock
	wbMu     sync.Mutex
	fillMu   sync.RWMutex
	ext      extMap

	treeMu sync.Mutex
	pages  pageTree
	wfNext uint64 // the page that a sequential writer through a mapping faults next

	// Changed under treeMu, read anywhere.
	reserved atomic.Int64 // blocks of the store reserved for pages

	cached   atomic.Int64 // pages in the tree
	nDirty   atomic.Int64 // of them dirty
	nFaulted atomic.Int64 // handed out by Fault since the last invalidation; an upper bound
	nMapped  atomic.Int64 // handed out for writing; an upper bound

	// Written under mu, read anywhere.
	size  atomic.Int64
	atime atomic.Int64
	mtime atomic.Int64
	ctime atomic.Int64

	// onDirty is set while the inode is on the file system's list of inodes to
	// be written back; guarded by fs.dirtyMu, read anywhere.
	onDirty atomic.Bool

	raNext   atomic.Uint64 // the page that a sequential reader reads next
	raWindow atomic.Uint32 // pages to read ahead of it

	mu          sync.Mutex
	a           inodeAttrs
	diskSize    int64     // bytes below it are on the device: what may be logged as the size
	loggedSize  int64     // what was logged as the size
	blocks      uint64    // allocated blocks
	attrDirty   bool      // attributes changed since they were last logged
	attrSeq     uint64    // counts changes of attributes
	lsn         store.LSN // of the last transaction that concerned it, or unknownLSN
	wbErr       errState
	truncating  bool // blocks beyond the size are being freed
	linkable    bool // made without a name, and never had one
	timesSeen   bool // somebody has looked at the times since they last changed
	invalidator func(off, length int64)
}

// inodeAttrs are the attributes that change only inside a transaction. They
// change in memory there and then, and are put back if the transaction fails.
type inodeAttrs struct {
	mode      uint32
	uid, gid  uint32
	nlink     uint32
	flags     uint32
	projectID uint32
	internal  format.InodeFlags
	rdev      uint64
	btime     int64
	parent    uint64 // directories
	entries   uint64 // directories
}

// unknownLSN is the lsn of an inode read from the store, where nothing says
// which transaction put it there. All completed ones are early enough.
const unknownLSN = store.LSN(1<<64 - 1)

// relatimeAge is the age from which relatime updates an access time anyway.
const relatimeAge = int64(24 * time.Hour)

func newInode(fs *FS, ino uint64, n *format.Inode) *Inode {
	i := &Inode{fs: fs, ino: ino, gen: n.Generation, typ: n.Mode & ModeTypeMask, lsn: unknownLSN}
	i.a = inodeAttrs{
		mode: n.Mode, uid: n.UID, gid: n.GID, nlink: n.Nlink, flags: n.Flags, projectID: n.ProjectID,
		internal: n.Internal, rdev: n.Rdev, btime: n.Btime, parent: n.Parent,
	}
	if i.typ == ModeDir {
		i.a.entries = n.Size
	} else {
		i.size.Store(int64(n.Size))
		i.diskSize, i.loggedSize = int64(n.Size), int64(n.Size)
	}
	i.blocks = n.Blocks
	i.atime.Store(n.Atime)
	i.mtime.Store(n.Mtime)
	i.ctime.Store(n.Ctime)
	return i
}

// itemLocked encodes what is to be logged of the inode. Of a file that has
// grown only the part is logged whose data is on the device. Needs i.mu.
func (i *Inode) itemLocked(b *[format.InodeBytes]byte) {
	n := format.Inode{
		Internal: i.a.internal, Mode: i.a.mode, UID: i.a.uid, GID: i.a.gid, Nlink: i.a.nlink, Generation: i.gen,
		Size: uint64(i.diskSize), Blocks: i.blocks, Rdev: i.a.rdev,
		Atime: i.atime.Load(), Mtime: i.mtime.Load(), Ctime: i.ctime.Load(), Btime: i.a.btime,
		Flags: i.a.flags, ProjectID: i.a.projectID, Parent: i.a.parent,
	}
	if i.typ == ModeDir {
		n.Size = i.a.entries
	}
	n.Encode(b[:])
}

// FS is the file system that the inode belongs to.
func (i *Inode) FS() *FS { return i.fs }

// Ino is the inode number.
func (i *Inode) Ino() uint64 { return i.ino }

// Generation tells apart inodes that have the same number at different times.
func (i *Inode) Generation() uint32 { return i.gen }

// Parent is the inode number of the directory that holds this directory; the
// root's parent is the root. It is 0 for everything that is not a directory.
func (i *Inode) Parent() uint64 {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.a.parent
}

// Size is the size of a file or symbolic link in bytes. It takes no lock.
func (i *Inode) Size() int64 { return i.size.Load() }

// Attr returns a consistent copy of the attributes. The next change of the file
// then gets a time of its own, however coarse times are otherwise.
func (i *Inode) Attr() Attr {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.timesSeen = true
	a := Attr{
		Ino: i.ino, Generation: i.gen, Mode: i.a.mode, UID: i.a.uid, GID: i.a.gid, Nlink: i.a.nlink, Rdev: i.a.rdev,
		Size: i.size.Load(), Blocks: int64(i.blocks) * (BlockSizeBytes / 512),
		Atime: i.atime.Load(), Mtime: i.mtime.Load(), Ctime: i.ctime.Load(), Btime: i.a.btime,
		Flags: i.a.flags, ProjectID: i.a.projectID,
	}
	if i.typ == ModeDir {
		a.Size = dirSizeBytes(i.a.entries)
		a.Blocks = a.Size / 512
	} else {
		// Blocks that are reserved but not allocated yet count, as du(1)
		// expects of data just written.
		a.Blocks += i.reserved.Load() * (BlockSizeBytes / 512)
	}
	return a
}

// dirSizeBytes is what stat shows as the size of a directory.
func dirSizeBytes(entries uint64) int64 {
	const typicalEntryBytes = 64
	bytes := int64(entries) * typicalEntryBytes
	return max((bytes+BlockSizeBytes-1)&^(BlockSizeBytes-1), BlockSizeBytes)
}

// SetAttr changes the attributes named by mask to those of a. Mode, owner,
// flags and project id are logged before it returns; times follow with the
// next commit. Errors: ErrReadOnly, ErrIO.
func (i *Inode) SetAttr(mask AttrMask, a *Attr) error {
	g, err := i.fs.gate.enter()
	if err != nil {
		return err
	}
	defer g.leave()
	if i.fs.ReadOnly() {
		return ErrReadOnly
	}
	if err := checkSetAttr(mask, a); err != nil {
		return err
	}
	const logged = AttrMode | AttrUID | AttrGID | AttrFlags | AttrProjectID
	if mask&logged != 0 {
		return i.fs.update(func(tx *txn) error {
			tx.touch(i)
			i.setAttr(mask, a)
			return nil
		})
	}
	i.setAttr(mask, a)
	i.fs.markDirty(i)
	return nil
}

func checkSetAttr(mask AttrMask, a *Attr) error {
	if mask&AttrFlags != 0 && a.Flags&^uint32(FlagsStored) != 0 {
		return fmt.Errorf("%w: inode flags %#x", ErrNotSupported, a.Flags)
	}
	return nil
}

func (i *Inode) setAttr(mask AttrMask, a *Attr) {
	now := i.fs.now()
	i.mu.Lock()
	defer i.mu.Unlock()
	now = i.stampLocked(now)
	if mask&AttrMode != 0 {
		i.a.mode = i.typ | a.Mode&ModePermission
	}
	if mask&AttrUID != 0 {
		i.a.uid = a.UID
	}
	if mask&AttrGID != 0 {
		i.a.gid = a.GID
	}
	if mask&AttrFlags != 0 {
		i.a.flags = a.Flags
	}
	if mask&AttrProjectID != 0 {
		i.a.projectID = a.ProjectID
	}
	switch {
	case mask&AttrAtimeNow != 0:
		i.atime.Store(now)
	case mask&AttrAtime != 0:
		i.atime.Store(a.Atime)
	}
	switch {
	case mask&AttrMtimeNow != 0:
		i.mtime.Store(now)
	case mask&AttrMtime != 0:
		i.mtime.Store(a.Mtime)
	}
	if mask&AttrCtime != 0 {
		i.ctime.Store(a.Ctime)
	} else {
		i.ctime.Store(now)
	}
	i.attrChangedLocked()
}

// attrChangedLocked notes that attributes differ from those logged. Needs i.mu;
// the caller puts the inode on the dirty list or logs it itself.
func (i *Inode) attrChangedLocked() {
	i.attrDirty = true
	i.attrSeq++
}

// TouchAtime records an access now, as the mount options say (relatime by
// default). Reads of files do it themselves, those of directories and symbolic
// links leave it to the caller, who may know the content already.
func (i *Inode) TouchAtime() {
	g, err := i.fs.gate.enter()
	if err != nil {
		return
	}
	defer g.leave()
	i.touchAtime()
}

// AtimeDue reports whether TouchAtime would change anything, for those to whom
// it costs something to find out whether they should call it.
func (i *Inode) AtimeDue() bool {
	_, due := i.atimeDue()
	return due
}

func (i *Inode) atimeDue() (now int64, due bool) {
	fs := i.fs
	if fs.opts.NoAtime || fs.opts.ReadOnly {
		return 0, false
	}
	now = fs.now()
	if fs.opts.StrictAtime {
		return now, true
	}
	at := i.atime.Load()
	return now, at <= i.mtime.Load() || at <= i.ctime.Load() || now-at >= relatimeAge
}

func (i *Inode) touchAtime() {
	now, due := i.atimeDue()
	if !due {
		return
	}
	i.mu.Lock()
	if i.a.flags&FlagNoAtime != 0 || i.atime.Load() == now {
		i.mu.Unlock()
		return
	}
	i.atime.Store(now)
	i.attrChangedLocked()
	i.mu.Unlock()
	i.fs.markDirty(i)
}

// modified sets mtime and ctime to now and marks the inode dirty.
func (i *Inode) modified() {
	now := i.fs.now()
	i.mu.Lock()
	now = i.stampLocked(now)
	if i.mtime.Load() != now || i.ctime.Load() != now {
		i.mtime.Store(now)
		i.ctime.Store(now)
		i.attrChangedLocked()
	}
	i.mu.Unlock()
	i.fs.markDirty(i)
}

// SetInvalidator registers what is called, with no lock held that Fault needs,
// before pages in [off, off+length) that Fault may have handed out leave the
// file or must be mapped afresh. It must remove all mappings of the range and
// return only then. nil removes it; the file has no mapping then.
func (i *Inode) SetInvalidator(fn func(off, length int64)) {
	i.mu.Lock()
	i.invalidator = fn
	i.mu.Unlock()
}

// invalidate calls the invalidator, if there can be mappings. Needs no lock held
// that Fault takes.
func (i *Inode) invalidate(off, length int64) {
	if i.nFaulted.Load() > 0 {
		i.callInvalidator(off, length)
	}
}

// callInvalidator is invalidate for pages that have left the file already.
func (i *Inode) callInvalidator(off, length int64) {
	i.mu.Lock()
	fn := i.invalidator
	i.mu.Unlock()
	if fn != nil {
		fn(off, length)
	}
}

func (i *Inode) hasLinks() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.a.nlink > 0
}
