package format

import (
	"encoding/binary"
	"fmt"
)

// Items of the file system inside the tree of the store. Object is the inode
// number; object 0 holds items of the volume as a whole. All integers are
// little-endian. Every item begins with a version byte; reserved bytes are
// zero and a decoder insists on it, so that they can get a meaning later.
//
// The layouts in the files fs_*.go are frozen: a change needs a new item
// version, which only images with a feature flag for it may hold.

// RootObject is the inode number of the root directory of every volume.
const RootObject = 1

// FirstFreeObject is the lowest inode number given to new inodes. Those
// between it and RootObject are reserved for the volume's own objects.
const FirstFreeObject = 16

// File types in Inode.Mode, with the values of stat(2).
const (
	ModeTypeMask = 0o170000
	ModeSocket   = 0o140000
	ModeSymlink  = 0o120000
	ModeRegular  = 0o100000
	ModeBlock    = 0o060000
	ModeDir      = 0o040000
	ModeChar     = 0o020000
	ModeFIFO     = 0o010000
)

// ValidFileType reports whether t, the type bits of a mode shifted right by
// 12, is one of the seven types that exist.
func ValidFileType(t uint8) bool {
	switch uint32(t) << 12 {
	case ModeSocket, ModeSymlink, ModeRegular, ModeBlock, ModeDir, ModeChar, ModeFIFO:
		return true
	}
	return false
}

// Limits of the file system items.
const (
	MaxFileBlocks   = 1 << 32 // 16 TiB in blocks of 4 KiB
	MaxExtentBlocks = 1 << 20 // of one ExtentItem of a file
	MaxFileBytes    = MaxFileBlocks * BlockSizeBytes
	MaxLinkCount    = 65000
	MaxSymlinkBytes = 4095
)

// InodeFlags are the volume's own flags of an inode, invisible to users.
type InodeFlags uint16

// Values of InodeFlags.
const (
	InodeHasXattrs  InodeFlags = 1 << iota // there may be xattr items
	InodeInlineData                        // content in inline items; regular files: reserved
	InodeOrphan                            // an orphan item exists

	knownInodeFlags = InodeHasXattrs | InodeInlineData | InodeOrphan
)

// Inode is the item of key {ino, KindInode, 0}.
//
//	 0       1       2               4               8              12              16
//	+-------+-------+---------------+---------------+---------------+---------------+
//	|ver = 1|   0   | InodeFlags    | mode          | uid           | gid           |
//	+-------+-------+---------------+---------------+---------------+---------------+
//	| nlink                         | generation    | size                          |
//	+-------------------------------+---------------+-------------------------------+
//	| blocks                                        | rdev                          |
//	+-----------------------------------------------+-------------------------------+
//	| atime (ns)                                    | mtime (ns)                    |
//	+-----------------------------------------------+-------------------------------+
//	| ctime (ns)                                    | btime (ns)                    |
//	+-------------------------------+---------------+-------------------------------+
//	| flags                         | project id    | parent                        |
//	+-------------------------------+---------------+-------------------------------+
//	| 0 (reserved, 16 bytes)                                                        |
//	+-------------------------------------------------------------------------------+
//
// Rows are 16 bytes; nlink, generation, flags and project id have 4 bytes each,
// all other fields from size on have 8.
type Inode struct {
	Internal   InodeFlags
	Mode       uint32
	UID, GID   uint32
	Nlink      uint32
	Generation uint32
	Size       uint64 // bytes; of a directory: number of entries
	Blocks     uint64 // allocated data blocks
	Rdev       uint64
	Atime      int64 // nanoseconds since the Unix epoch
	Mtime      int64
	Ctime      int64
	Btime      int64
	Flags      uint32 // as in FS_IOC_GETFLAGS
	ProjectID  uint32
	Parent     uint64 // of a directory: the directory that holds it; else 0
}

// InodeBytes is the size of an inode item.
const InodeBytes = 112

const inodeVersion = 1

// Encode writes the item into b, which must have InodeBytes bytes.
func (n *Inode) Encode(b []byte) {
	_ = b[InodeBytes-1]
	le := binary.LittleEndian
	b[0], b[1] = inodeVersion, 0
	le.PutUint16(b[2:], uint16(n.Internal))
	le.PutUint32(b[4:], n.Mode)
	le.PutUint32(b[8:], n.UID)
	le.PutUint32(b[12:], n.GID)
	le.PutUint32(b[16:], n.Nlink)
	le.PutUint32(b[20:], n.Generation)
	le.PutUint64(b[24:], n.Size)
	le.PutUint64(b[32:], n.Blocks)
	le.PutUint64(b[40:], n.Rdev)
	le.PutUint64(b[48:], uint64(n.Atime))
	le.PutUint64(b[56:], uint64(n.Mtime))
	le.PutUint64(b[64:], uint64(n.Ctime))
	le.PutUint64(b[72:], uint64(n.Btime))
	le.PutUint32(b[80:], n.Flags)
	le.PutUint32(b[84:], n.ProjectID)
	le.PutUint64(b[88:], n.Parent)
	clear(b[96:InodeBytes])
}

// DecodeInode reads and checks an inode item. The error wraps ErrCorrupt.
func DecodeInode(b []byte) (Inode, error) {
	var n Inode
	if len(b) != InodeBytes || b[0] != inodeVersion {
		return n, itemError("inode", b, "length or version")
	}
	le := binary.LittleEndian
	n = Inode{
		Internal:   InodeFlags(le.Uint16(b[2:])),
		Mode:       le.Uint32(b[4:]),
		UID:        le.Uint32(b[8:]),
		GID:        le.Uint32(b[12:]),
		Nlink:      le.Uint32(b[16:]),
		Generation: le.Uint32(b[20:]),
		Size:       le.Uint64(b[24:]),
		Blocks:     le.Uint64(b[32:]),
		Rdev:       le.Uint64(b[40:]),
		Atime:      int64(le.Uint64(b[48:])),
		Mtime:      int64(le.Uint64(b[56:])),
		Ctime:      int64(le.Uint64(b[64:])),
		Btime:      int64(le.Uint64(b[72:])),
		Flags:      le.Uint32(b[80:]),
		ProjectID:  le.Uint32(b[84:]),
		Parent:     le.Uint64(b[88:]),
	}
	isDir := n.Mode&ModeTypeMask == ModeDir
	switch {
	case b[1] != 0 || !allZero(b[96:]):
		return n, itemError("inode", b, "reserved bytes")
	case n.Internal&^knownInodeFlags != 0:
		return n, itemError("inode", b, "unknown internal flags")
	case n.Mode&^uint32(ModeTypeMask|0o7777) != 0 || !ValidFileType(uint8(n.Mode>>12)):
		return n, itemError("inode", b, "mode")
	case n.Nlink > MaxLinkCount:
		return n, itemError("inode", b, "link count")
	case n.Size > MaxFileBytes:
		return n, itemError("inode", b, "size")
	case n.Blocks > MaxFileBlocks:
		return n, itemError("inode", b, "block count")
	case n.Mode&ModeTypeMask == ModeSymlink && (n.Size == 0 || n.Size > MaxSymlinkBytes):
		return n, itemError("inode", b, "size of a symbolic link")
	case isDir != (n.Parent != 0):
		return n, itemError("inode", b, "parent")
	}
	return n, nil
}

// itemError says what is wrong with an item of the file system.
func itemError(item string, b []byte, what string) error {
	return fmt.Errorf("%w: %s item of %d bytes: bad %s", ErrCorrupt, item, len(b), what)
}

func allZero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}
