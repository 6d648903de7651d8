package format

import "encoding/binary"

// MaxXattrValueBytes is the longest value of an extended attribute.
const MaxXattrValueBytes = 64 << 10

// XattrHead is the first chunk of an extended attribute, the item of key
// {ino, KindXattr, hash48<<16 | probe<<12 | 0}. hash48 comes from NameHash of
// the full name ("user.x"); probe tells apart names of one hash. The rest of
// the value follows in items with chunk numbers 1, 2, … in the low 12 bits,
// which hold nothing but value bytes and are all full except the last.
//
//	 0       1       2               4               8
//	+-------+-------+---------------+---------------+-------+----------------
//	|ver = 1|namelen| 0             | value length  | name… | value begins…
//	+-------+-------+---------------+---------------+-------+----------------
type XattrHead struct {
	Name       []byte
	ValueBytes int    // of the whole attribute
	Value      []byte // the part in this chunk
}

const (
	xattrVersion = 1
	xattrHeader  = 8

	// XattrProbes is the number of attributes that one hash can have.
	XattrProbes = 1 << 4
	// XattrProbeStep is the distance of two probes in key offsets.
	XattrProbeStep = 1 << 12
)

// XattrOffset gives the key offset of chunk 0 of probe 0 for a name's hash.
func XattrOffset(hash uint64) uint64 { return hash >> 16 << 16 }

// XattrHeadSpace is how many value bytes fit beside a name in the first chunk.
func XattrHeadSpace(nameBytes int) int { return MaxValueBytes - xattrHeader - nameBytes }

// XattrChunks is the number of items that an attribute has.
func XattrChunks(nameBytes, valueBytes int) int {
	rest := valueBytes - XattrHeadSpace(nameBytes)
	if rest <= 0 {
		return 1
	}
	return 1 + (rest+MaxValueBytes-1)/MaxValueBytes
}

// AppendXattrHead appends the encoded first chunk to b.
func AppendXattrHead(b []byte, h *XattrHead) []byte {
	b = append(b, xattrVersion, uint8(len(h.Name)), 0, 0)
	b = binary.LittleEndian.AppendUint32(b, uint32(h.ValueBytes))
	b = append(b, h.Name...)
	return append(b, h.Value...)
}

// DecodeXattrHead reads and checks a first chunk; the result points into b.
// The error wraps ErrCorrupt.
func DecodeXattrHead(b []byte) (XattrHead, error) {
	var h XattrHead
	if len(b) < xattrHeader || b[0] != xattrVersion {
		return h, itemError("xattr", b, "length or version")
	}
	nameBytes := int(b[1])
	if nameBytes == 0 || len(b) < xattrHeader+nameBytes || b[2] != 0 || b[3] != 0 {
		return h, itemError("xattr", b, "name length or reserved bytes")
	}
	size := binary.LittleEndian.Uint32(b[4:])
	if size > MaxXattrValueBytes {
		return h, itemError("xattr", b, "value length")
	}
	h = XattrHead{
		Name:       b[xattrHeader : xattrHeader+nameBytes],
		ValueBytes: int(size),
		Value:      b[xattrHeader+nameBytes:],
	}
	if len(h.Value) != min(h.ValueBytes, XattrHeadSpace(nameBytes)) {
		return h, itemError("xattr", b, "chunk length")
	}
	for _, c := range h.Name {
		if c == 0 {
			return h, itemError("xattr", b, "name")
		}
	}
	return h, nil
}
