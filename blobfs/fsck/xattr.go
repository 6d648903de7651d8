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

	list  string // the name, if the attribute holds an access control list
	value []byte // of a list, as far as it was seen

	hash   uint64   // key offset of probe 0 of the names below
	names  [][]byte // names of this hash so far, copied
	probes uint64   // probe numbers so far: the next one must have this
}

func (s *xattrState) reset() { *s = xattrState{names: s.names[:0], value: s.value[:0]} }

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
	if s.list != "" {
		s.value = append(s.value, it.value...)
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
	s.list, s.value = "", append(s.value[:0], h.Value...)
	switch string(h.Name) {
	case format.XattrAccessACL, format.XattrDefaultACL:
		s.list = string(h.Name)
	}

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
	} else if s.open && s.list != "" && !s.noted {
		o.accessList()
	}
	s.open = false
}

// accessList checks a complete access control list, and that the mode, which
// shows parts of it, agrees.
func (o *object) accessList() {
	s := &o.xattr
	list, err := format.DecodeACL(s.value)
	switch {
	case err != nil:
		o.found(Error, CodeXattrACL, "%s: %s", s.list, reason(err))
	case len(list) == 0:
		o.found(Error, CodeXattrACL, "%s has no entries", s.list)
	case s.list == format.XattrDefaultACL && o.good && o.node.Mode&format.ModeTypeMask != format.ModeDir:
		o.found(Error, CodeXattrACL, "has a default access control list, but is no directory")
	case s.list == format.XattrAccessACL && o.good && shownMode(list) != o.node.Mode&0o777:
		o.found(Error, CodeXattrACL, "the access control list gives mode %#o, the inode has %#o", shownMode(list), o.node.Mode&0o777)
	}
}

// shownMode gives the permission bits that stand for a list: those of the group
// are its mask, if there is one.
func shownMode(list []format.ACLEntry) uint32 {
	var perm [3]uint32
	for _, e := range list {
		switch e.Tag {
		case format.ACLUserObj:
			perm[0] = uint32(e.Perm)
		case format.ACLGroupObj, format.ACLMask: // the mask comes later
			perm[1] = uint32(e.Perm)
		case format.ACLOther:
			perm[2] = uint32(e.Perm)
		}
	}
	return perm[0]<<6 | perm[1]<<3 | perm[2]
}

func (o *object) finishXattrs() {
	o.finishXattr()
	o.xattr.noted = false
}
