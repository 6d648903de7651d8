package blobfs

import (
	"fmt"
	"time"
)

// BlockSizeBytes is the unit of allocation, of the page cache and of Fault.
const BlockSizeBytes = 4096

// Limits of names and files.
const (
	MaxNameBytes       = 255
	MaxLinks           = 65000
	MaxFileSizeBytes   = 16 << 40
	MaxSymlinkBytes    = 4095
	MaxXattrNameBytes  = 255
	MaxXattrValueBytes = 64 << 10
	// MaxXattrListBytes bounds the names of one inode, each with a NUL, as
	// listxattr(2) does.
	MaxXattrListBytes = 64 << 10
)

// File types and permission bits of Attr.Mode, with the values of stat(2).
const (
	ModeTypeMask   = 0o170000
	ModeSocket     = 0o140000
	ModeSymlink    = 0o120000
	ModeRegular    = 0o100000
	ModeBlock      = 0o060000
	ModeDir        = 0o040000
	ModeChar       = 0o020000
	ModeFIFO       = 0o010000
	ModeSetUID     = 0o4000
	ModeSetGID     = 0o2000
	ModeSticky     = 0o1000
	ModePermission = 0o7777 // everything that is not the type
)

// Inode flags of Attr.Flags, with the values of FS_IOC_GETFLAGS. They are
// stored only: who may do what is the caller's to decide.
const (
	FlagImmutable = 0x10
	FlagAppend    = 0x20
	FlagNoDump    = 0x40
	FlagNoAtime   = 0x80
	// FlagProjectInherit, of a directory: what is made in it gets its project id.
	FlagProjectInherit = 0x20000000
	FlagsStored        = FlagImmutable | FlagAppend | FlagNoDump | FlagNoAtime | FlagProjectInherit
)

// Attr holds the attributes of an inode. Times are nanoseconds since the Unix
// epoch.
type Attr struct {
	Ino        uint64
	Generation uint32
	Mode       uint32 // type and permissions as in st_mode
	UID, GID   uint32
	Nlink      uint32
	Size       int64
	Blocks     int64 // allocated space in units of 512 bytes
	Rdev       uint64
	Atime      int64
	Mtime      int64
	Ctime      int64
	Btime      int64
	Flags      uint32
	ProjectID  uint32
}

// AttrMask names the fields of Attr that SetAttr changes.
type AttrMask uint32

// What SetAttr can change. Size changes through Truncate.
const (
	AttrMode AttrMask = 1 << iota // permission bits only; the type is fixed
	AttrUID
	AttrGID
	AttrAtime
	AttrMtime
	AttrCtime // without it SetAttr sets ctime to now
	AttrFlags
	AttrProjectID
	AttrAtimeNow // atime becomes the time of the call
	AttrMtimeNow // mtime becomes the time of the call
)

// NewInode describes an inode to be made. The type comes from Mode.
type NewInode struct {
	Mode     uint32
	UID, GID uint32
	Rdev     uint64  // character and block devices, encoded as in st_rdev
	Target   string  // symbolic links
	Xattrs   []Xattr // stored in the same transaction (security labels, ACLs)
	Flags    uint32

	ProjectID uint32
}

// Xattr is one extended attribute.
type Xattr struct {
	Name  string
	Value []byte
}

// XattrFlags says whether SetXattr may create or replace.
type XattrFlags uint32

// Values of XattrFlags, as in setxattr(2). 0 allows both.
const (
	XattrCreate  XattrFlags = 1 // ErrExist when the attribute exists
	XattrReplace XattrFlags = 2 // ErrNoXattr when it does not
)

// RenameFlags modifies Rename.
type RenameFlags uint32

// Values of RenameFlags, as in renameat2(2).
const (
	RenameNoReplace RenameFlags = 1
	RenameExchange  RenameFlags = 2
	RenameWhiteout  RenameFlags = 4
)

// Dirent is one entry of a directory.
type Dirent struct {
	Name string
	Ino  uint64
	Type uint8 // DT_* as in readdir(3): the type bits of the mode, shifted right by 12
	// NextCookie continues a listing behind this entry. Cookies stay valid
	// whatever is created and removed in between, and across mounts.
	NextCookie int64
}

// FirstCookie is the lowest cookie of an entry. Smaller ones all mean the
// beginning, so that the caller can number "." and ".." with them.
const FirstCookie = 128

// Sink receives the data of a read. CopyOut takes bytes from b, which is only
// valid during the call, and returns how many it took. An error, or taking
// fewer than len(b) bytes, ends the read. No lock is held that Fault needs.
type Sink interface {
	CopyOut(b []byte) (int, error)
}

// Source provides the data of a write. CopyIn fills b, which is only valid
// during the call, and returns how many bytes it filled. An error, or filling
// fewer than len(b) bytes, ends the write. No lock is held that Fault needs.
type Source interface {
	CopyIn(b []byte) (int, error)
}

// IOFlags modifies ReadAt and WriteAt.
type IOFlags uint32

// Values of IOFlags.
const (
	// IODirect bypasses the page cache, coherently. Offset and length must be
	// multiples of FS.DirectAlignBytes.
	IODirect IOFlags = 1 << iota
	// IODSync makes the data, and what is needed to read it back, durable
	// before WriteAt returns (O_DSYNC, RWF_DSYNC).
	IODSync
	// IOSync also makes all attributes durable (O_SYNC, RWF_SYNC).
	IOSync
	// IONoWait gives ErrWouldBlock where the device or a lock had to be waited for.
	IONoWait
	// IONoAtime leaves the access time alone (O_NOATIME).
	IONoAtime
)

// FallocateMode modifies Fallocate.
type FallocateMode uint32

// Values of FallocateMode, as in fallocate(2).
const (
	FallocKeepSize  FallocateMode = 0x01
	FallocPunchHole FallocateMode = 0x02 // requires FallocKeepSize
	FallocZeroRange FallocateMode = 0x10
	FallocUnshare   FallocateMode = 0x40 // alone or with FallocKeepSize
)

// PageRun is a piece of a file in the arena.
type PageRun struct {
	ArenaOffset int64 // in the arena's descriptor and mapping
	FileOffset  int64
	Length      int64 // multiple of BlockSizeBytes
	// Writable says that the pages may be mapped writable: their blocks are
	// reserved and they count as dirty until the invalidator takes them.
	Writable bool
}

// StatFS describes the space of a volume.
type StatFS struct {
	BlockSizeBytes  int64
	TotalBlocks     int64
	FreeBlocks      int64
	AvailableBlocks int64 // what writers may still use
	TotalInodes     int64
	FreeInodes      int64
	MaxNameBytes    int64
}

// MkfsOptions are the parameters of Mkfs.
type MkfsOptions struct {
	// Label names the volume, at most 64 bytes of text.
	Label string
	// UUID identifies the file system. All zeroes: a random one.
	UUID [16]byte
	// HashSeed keys the hashes of names, and with them the shape of the tree. All
	// zeroes: a random one.
	HashSeed [16]byte
	// LogBytes is the size of the log. 0: chosen by the size of the device.
	LogBytes int64
	// RootUID, RootGID and RootMode (permission bits) are those of the root
	// directory. RootMode 0 means 0755.
	RootUID, RootGID uint32
	RootMode         uint32
	// Now is the clock of the root directory's times. nil: time.Now.
	Now func() int64
}

// MountOptions are the parameters of Mount.
type MountOptions struct {
	// ReadOnly refuses changes and writes nothing to the device.
	ReadOnly bool
	// CacheBytes bounds the page cache. 0: half of the device's arena.
	CacheBytes int64
	// NodeCacheBytes bounds the cache of metadata blocks. 0: the store's default.
	NodeCacheBytes int64
	// MaxIdleInodes bounds the inodes kept in memory that nobody references.
	// 0: 16384.
	MaxIdleInodes int
	// LimitBytes lets the file system fill only as if its device had that size. 0: no limit.
	LimitBytes int64
	// MaxInodes bounds the number of inodes: no more are made while there are as
	// many. With it, mounting takes a look at every inode. 0: as many as there is space for.
	MaxInodes int64
	// CommitInterval is the time between background commits. 0: 5 s.
	// Negative: no background commits (tests).
	CommitInterval time.Duration
	// NoAtime never updates access times; StrictAtime updates them at each
	// read. Neither: relatime.
	NoAtime     bool
	StrictAtime bool
	// Discard tells the device of freed blocks, in batches, with each background
	// commit and when the file system is closed, after the transactions that freed
	// them are durable.
	Discard bool
	// GrowToBytes makes the file system as large as this allows, as Grow does,
	// if it is smaller. What keeps it from growing is logged and keeps nobody
	// from mounting it. 0: it stays as large as it is.
	GrowToBytes int64
	// Now is the clock for all times, in nanoseconds since the Unix epoch.
	// nil: time.Now.
	Now func() int64
	// TimeGrain is how long changes get the same time, unless somebody looks at
	// it in between. 0: as fine as the clock.
	TimeGrain time.Duration
	// Logf receives one line per event worth knowing. nil: dropped.
	Logf func(format string, args ...any)
}

func (o *MountOptions) setDefaults(arenaBytes int64) error {
	if o.CacheBytes < 0 || o.NodeCacheBytes < 0 || o.MaxIdleInodes < 0 {
		return fmt.Errorf("%w: negative cache size", ErrInvalid)
	}
	if o.LimitBytes < 0 || o.MaxInodes < 0 {
		return fmt.Errorf("%w: negative limit", ErrInvalid)
	}
	if o.TimeGrain < 0 {
		return fmt.Errorf("%w: negative grain of times", ErrInvalid)
	}
	if o.NoAtime && o.StrictAtime {
		return fmt.Errorf("%w: NoAtime and StrictAtime exclude each other", ErrInvalid)
	}
	if o.CacheBytes == 0 || o.CacheBytes > arenaBytes {
		o.CacheBytes = arenaBytes / 2
	}
	if o.MaxIdleInodes == 0 {
		o.MaxIdleInodes = 16384
	}
	if o.CommitInterval == 0 {
		o.CommitInterval = 5 * time.Second
	}
	if o.Now == nil {
		o.Now = wallClock
	}
	if o.Logf == nil {
		o.Logf = func(string, ...any) {}
	}
	return nil
}

func wallClock() int64 { return time.Now().UnixNano() }
