package format

import "encoding/binary"

// MaxNameBytes is the longest name of a directory entry or an extended attribute.
const MaxNameBytes = 255

// Dirent is the item of key {directory, KindDirent, hash56<<7 | probe}: hash56
// comes from NameHash, and probe counts the names of one hash in the order of
// their arrival, first free value first.
//
//	 0       1       2               4               8                              16
//	+-------+-------+---------------+---------------+-------------------------------+----
//	|ver = 1| type  | name length   | 0             | ino                           | name…
//	+-------+-------+---------------+---------------+-------------------------------+----
type Dirent struct {
	Type uint8 // type bits of the inode's mode, shifted right by 12
	Ino  uint64
	Name []byte
}

const (
	direntVersion = 1
	direntHeader  = 16

	// MaxDirentBytes is the size of the largest directory entry item.
	MaxDirentBytes = direntHeader + MaxNameBytes
	// DirentProbes is the number of entries that one hash can have.
	DirentProbes = 1 << 7
)

// DirentOffset gives the key offset of probe 0 for a name's hash. Offsets below
// DirentProbes and the highest possible ones are never used, so that a
// directory listing can number what precedes and follows the entries.
func DirentOffset(hash uint64) uint64 {
	h := hash >> 8 // 56 bits
	h = min(max(h, 1), 1<<56-2)
	return h << 7
}

// AppendDirent appends the encoded item to b.
func AppendDirent(b []byte, d *Dirent) []byte {
	b = append(b, direntVersion, d.Type)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(d.Name)))
	b = binary.LittleEndian.AppendUint32(b, 0)
	b = binary.LittleEndian.AppendUint64(b, d.Ino)
	return append(b, d.Name...)
}

// DecodeDirent reads and checks a directory entry. Name is part of b. The
// error wraps ErrCorrupt.
func DecodeDirent(b []byte) (Dirent, error) {
	var d Dirent
	if len(b) < direntHeader || b[0] != direntVersion {
		return d, itemError("directory entry", b, "length or version")
	}
	le := binary.LittleEndian
	d = Dirent{Type: b[1], Ino: le.Uint64(b[8:]), Name: b[direntHeader:]}
	switch {
	case le.Uint32(b[4:]) != 0:
		return d, itemError("directory entry", b, "reserved bytes")
	case !ValidFileType(d.Type):
		return d, itemError("directory entry", b, "type")
	case d.Ino == 0:
		return d, itemError("directory entry", b, "inode number")
	case int(le.Uint16(b[2:])) != len(d.Name) || !ValidName(d.Name):
		return d, itemError("directory entry", b, "name")
	}
	return d, nil
}

// ValidName reports whether name can stand in a directory.
func ValidName(name []byte) bool {
	if len(name) == 0 || len(name) > MaxNameBytes || string(name) == "." || string(name) == ".." {
		return false
	}
	for _, c := range name {
		if c == 0 || c == '/' {
			return false
		}
	}
	return true
}
