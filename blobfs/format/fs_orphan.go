package format

// OrphanKind says what must be finished after a crash.
type OrphanKind uint8

// Values of OrphanKind.
const (
	// OrphanUnlinked: the inode has no name; it goes when nobody has it open.
	OrphanUnlinked OrphanKind = 1
	// OrphanTruncate: extents beyond the inode's size are still to be freed.
	OrphanTruncate OrphanKind = 2
)

// Orphan is the item of key {0, KindOrphan, ino}.
//
//	 0       1       2                               8
//	+-------+-------+-------------------------------+
//	|ver = 1| kind  | 0                             |
//	+-------+-------+-------------------------------+
type Orphan struct {
	Kind OrphanKind
}

// OrphanBytes is the size of an orphan item.
const OrphanBytes = 8

const orphanVersion = 1

// Encode writes the item into b, which must have OrphanBytes bytes.
func (o *Orphan) Encode(b []byte) {
	clear(b[:OrphanBytes])
	b[0], b[1] = orphanVersion, uint8(o.Kind)
}

// DecodeOrphan reads and checks an orphan item. The error wraps ErrCorrupt.
func DecodeOrphan(b []byte) (Orphan, error) {
	if len(b) != OrphanBytes || b[0] != orphanVersion || !allZero(b[2:]) {
		return Orphan{}, itemError("orphan", b, "length, version or reserved bytes")
	}
	o := Orphan{Kind: OrphanKind(b[1])}
	if o.Kind != OrphanUnlinked && o.Kind != OrphanTruncate {
		return o, itemError("orphan", b, "kind")
	}
	return o, nil
}
