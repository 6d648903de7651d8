package fsck

import (
	"runsc-fs/blobfs/format"
)

// xattrState follows the extended attributes of one inode. Its items come in
// the order hash, probe, chunk.
type xattrState struct {
	attrs int

	open  bool   // an attribute's head was seen; the fields below belong to it
	at    uint64 // key offset of its head
	next  uint64 // key offset of its next chunk
	rest  int    // value bytes to come
	noted bool   // its chunks were complained about

	hash   uint64   // key offset of probe 0 of the names below
	names  [][]byte // names of this hash so far, copied
	probes uint64   // probe numbers so far: the next one must have this
}

func (s *xattrState) reset() { *s = xattrState{names: s.names[:0]} }

func (o *object) xattrItem(it *items) {
	s := &o.xattr
	off := it.key.Offset
	if off%format.XattrProbeStep == 0 {
		o.finishXattr()
		o.xattrHead(off, it.value)
		return
	}
	if !s.open || off-off%format.XattrProbeStep != s.at {
		o.finishXattr()
		if !s.noted && !o.c.damagedObject(o.ino) {
			o.found(Error, CodeXattrChunk, "has a piece of an extended attribute, %#x, without its beginning", off)
		}
		s.noted = true
		return
	}
	want := min(s.rest, format.MaxValueBytes)
	if (off != s.next || len(it.value) != want || want == 0) && !s.noted && !o.c.damagedObject(o.ino) {
		s.noted = true
		o.found(Error, CodeXattrChunk, "piece %#x of an extended attribute has %d bytes, expected is piece %#x of %d", off, len(it.value), s.next, want)
	}
	s.next = off + 1
	s.rest -= min(len(it.value), s.rest)
}

func (o *object) xattrHead(off uint64, v []byte) {
	s := &o.xattr
	s.open, s.noted = false, false
	h, err := format.DecodeXattrHead(v)
	if err != nil {
		s.noted = true
		o.found(Error, CodeXattrItem, "extended attribute %#x: %s", off, reason(err))
		return
	}
	s.attrs++
	o.c.rep.Counters.Xattrs++
	s.open, s.at, s.next, s.rest = true, off, off+1, h.ValueBytes-len(h.Value)

	hash := format.XattrOffset(format.NameHash(&o.c.sb.HashSeed, h.Name))
	probe := (off - off&^0xffff) / format.XattrProbeStep
	switch {
	case off&^0xffff != hash:
		o.found(Error, CodeXattrPlace, "extended attribute %q is at %#x, but would be looked for at %#x", h.Name, off, hash)
		return
	case hash != s.hash || s.attrs == 1:
		s.hash, s.probes, s.names = hash, 0, s.names[:0]
	}
	if probe != s.probes && !o.c.damagedObject(o.ino) {
		o.found(Error, CodeXattrPlace, "extended attribute %q is at probe %d, but no other is at %d, where a search ends", h.Name, probe, s.probes)
	}
	s.probes = probe + 1
	for _, name := range s.names {
		if string(name) == string(h.Name) {
			o.found(Error, CodeXattrTwice, "has two extended attributes %q", h.Name)
		}
	}
	s.names = append(s.names, append([]byte(nil), h.Name...))
}

// finishXattr checks that the attribute that came last is complete.
func (o *object) finishXattr() {
	s := &o.xattr
	if s.open && s.rest > 0 && !s.noted && !o.c.damagedObject(o.ino) {
		o.found(Error, CodeXattrChunk, "extended attribute %#x lacks %d bytes of its value", s.at, s.rest)
	}
	s.open = false
}

func (o *object) finishXattrs() {
	o.finishXattr()
	o.xattr.noted = false
}
