package format

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Kind says what an item of the tree is. The numbers are frozen.
type Kind uint8

// Kinds of items. Object is an inode number where nothing else is said, and 0
// for the volume's own bookkeeping.
const (
	KindInode    Kind = 1  // Offset 0: the inode
	KindInline   Kind = 2  // Offset = byte offset: content of a small file or symlink
	KindXattr    Kind = 3  // Offset = hash48<<16 | chunk: extended attributes
	KindDirent   Kind = 4  // Offset = hash56<<7 | probe: directory entries
	KindExtent   Kind = 5  // Offset = file block: ExtentItem
	KindOrphan   Kind = 6  // Object 0, Offset = inode number: unlinked but perhaps open
	KindRefcount Kind = 7  // Object 0, Offset = address: blocks with several owners
	KindGroup    Kind = 8  // Object 0, Offset = group number: GroupItem
	KindSnapshot Kind = 9  // Object 0, Offset = snapshot number
	KindQuota    Kind = 10 // Object 0, Offset = project number
)

var kindNames = [...]string{
	KindInode: "inode", KindInline: "inline", KindXattr: "xattr", KindDirent: "dirent", KindExtent: "extent",
	KindOrphan: "orphan", KindRefcount: "refcount", KindGroup: "group", KindSnapshot: "snapshot", KindQuota: "quota",
}

func (k Kind) String() string {
	if int(k) < len(kindNames) && kindNames[k] != "" {
		return kindNames[k]
	}
	return fmt.Sprintf("kind%d", uint8(k))
}

// Key orders the items of the tree: by Object, then Kind, then Offset.
//
//	 0                 8      9                 17
//	┌─────────────────┬──────┬─────────────────┐
//	│ object (BE)     │ kind │ offset (BE)     │
//	└─────────────────┴──────┴─────────────────┘
type Key struct {
	Object uint64
	Kind   Kind
	Offset uint64
}

// KeyBytes is the size of a Key on disk.
const KeyBytes = 17

// MaxKey sorts behind, or equals, every key.
var MaxKey = Key{math.MaxUint64, math.MaxUint8, math.MaxUint64}

func (k Key) String() string { return fmt.Sprintf("(%d,%v,%d)", k.Object, k.Kind, k.Offset) }

// Compare returns -1, 0 or +1 as k sorts before, equal to or after o.
func (k Key) Compare(o Key) int {
	switch {
	case k.Object != o.Object:
		if k.Object < o.Object {
			return -1
		}
		return 1
	case k.Kind != o.Kind:
		if k.Kind < o.Kind {
			return -1
		}
		return 1
	case k.Offset != o.Offset:
		if k.Offset < o.Offset {
			return -1
		}
		return 1
	}
	return 0
}

// Less reports whether k sorts before o.
func (k Key) Less(o Key) bool { return k.Compare(o) < 0 }

// Next returns the smallest key greater than k, and false if k is MaxKey.
func (k Key) Next() (Key, bool) {
	if k.Offset++; k.Offset != 0 {
		return k, true
	}
	if k.Kind++; k.Kind != 0 {
		return k, true
	}
	k.Object++
	return k, k.Object != 0
}

// Prev returns the greatest key smaller than k, and false if k is the zero key.
func (k Key) Prev() (Key, bool) {
	if k.Offset--; k.Offset != math.MaxUint64 {
		return k, true
	}
	if k.Kind--; k.Kind != math.MaxUint8 {
		return k, true
	}
	k.Object--
	return k, k.Object != math.MaxUint64
}

// PutKey encodes k into b[:KeyBytes].
func PutKey(b []byte, k Key) {
	_ = b[KeyBytes-1]
	binary.BigEndian.PutUint64(b, k.Object)
	b[8] = byte(k.Kind)
	binary.BigEndian.PutUint64(b[9:], k.Offset)
}

// GetKey decodes b[:KeyBytes].
func GetKey(b []byte) Key {
	_ = b[KeyBytes-1]
	return Key{binary.BigEndian.Uint64(b), Kind(b[8]), binary.BigEndian.Uint64(b[9:])}
}
