package blobfs

import (
	"fmt"
	"strings"

	"runsc-fs/blobfs/format"
	"runsc-fs/blobfs/store"
)

// xattrSlot is where an extended attribute stands, or could stand.
type xattrSlot struct {
	key        format.Key // of chunk 0
	valueBytes int
	found      bool
	full       bool // not found, and no place for it
}

func checkXattr(name string, value []byte) error {
	switch {
	case name == "" || strings.IndexByte(name, 0) >= 0:
		return fmt.Errorf("%w: name of an extended attribute", ErrInvalid)
	case len(name) > MaxXattrNameBytes:
		return ErrXattrNameTooLong
	case len(value) > MaxXattrValueBytes:
		return ErrXattrTooBig
	}
	return nil
}

func (i *Inode) hasXattrs() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.a.internal&format.InodeHasXattrs != 0
}

// findXattr looks an attribute up. With a non-nil value it also reads the
// value, into a buffer of its own.
func (fs *FS) findXattr(r *store.Reader, ino uint64, name string, value *[]byte) (xattrSlot, error) {
	base := format.XattrOffset(format.NameHash(&fs.seed, []byte(name)))
	slot := xattrSlot{key: format.Key{Object: ino, Kind: format.KindXattr, Offset: base}}
	var buf [format.MaxValueBytes]byte
	for range format.XattrProbes {
		b, ok, err := r.Get(slot.key, buf[:0])
		if err != nil || !ok {
			return slot, err
		}
		head, err := format.DecodeXattrHead(b)
		if err != nil {
			return slot, corruptf("inode %d: %v", ino, err)
		}
		if string(head.Name) != name {
			slot.key.Offset += format.XattrProbeStep
			continue
		}
		slot.found = true
		slot.valueBytes = head.ValueBytes
		if value != nil {
			*value = append(make([]byte, 0, head.ValueBytes), head.Value...)
			err = readXattrRest(r, slot.key, head.ValueBytes, value)
		}
		return slot, err
	}
	slot.full = true
	return slot, nil
}

// readXattrRest appends chunks 1, 2, … of a value of total bytes.
func readXattrRest(r *store.Reader, key format.Key, total int, value *[]byte) error {
	var buf [format.MaxValueBytes]byte
	for len(*value) < total {
		key.Offset++
		b, ok, err := r.Get(key, buf[:0])
		if err != nil {
			return err
		}
		if want := min(total-len(*value), format.MaxValueBytes); !ok || len(b) != want {
			return corruptf("inode %d: xattr chunk %#x has %d bytes, not %d", key.Object, key.Offset, len(b), want)
		}
		*value = append(*value, b...)
	}
	return nil
}

// GetXattr returns the value of an extended attribute. Errors: ErrNoXattr,
// ErrInvalid, ErrCorrupt, ErrIO.
func (i *Inode) GetXattr(name string) ([]byte, error) {
	g, err := i.fs.gate.enter()
	if err != nil {
		return nil, err
	}
	defer g.leave()
	if err := checkXattr(name, nil); err != nil {
		return nil, err
	}
	if !i.hasXattrs() {
		return nil, ErrNoXattr
	}
	var value []byte
	err = i.fs.store.View(func(r *store.Reader) error {
		slot, err := i.fs.findXattr(r, i.ino, name, &value)
		if err == nil && !slot.found {
			err = ErrNoXattr
		}
		return err
	})
	return value, err
}

// ListXattr returns the names of all extended attributes, sorted by nothing in
// particular. Errors: ErrXattrListFull when there are more than listxattr(2)
// can return, ErrCorrupt, ErrIO.
func (i *Inode) ListXattr() ([]string, error) {
	g, err := i.fs.gate.enter()
	if err != nil {
		return nil, err
	}
	defer g.leave()
	if !i.hasXattrs() {
		return nil, nil
	}
	var names []string
	err = i.fs.store.View(func(r *store.Reader) error {
		names = names[:0]
		total := 0
		return eachXattr(r, i.ino, func(_ format.Key, h *format.XattrHead) (bool, error) {
			names = append(names, string(h.Name))
			if total += len(h.Name) + 1; total > MaxXattrListBytes {
				return false, ErrXattrListFull
			}
			return true, nil
		})
	})
	return names, err
}

// eachXattr calls fn with the first chunk of every attribute.
func eachXattr(r *store.Reader, ino uint64, fn func(format.Key, *format.XattrHead) (bool, error)) error {
	from := format.Key{Object: ino, Kind: format.KindXattr}
	to := format.Key{Object: ino, Kind: format.KindXattr, Offset: 1<<64 - 1}
	return r.Scan(from, to, func(k format.Key, v []byte) (bool, error) {
		if k.Offset%format.XattrProbeStep != 0 {
			return true, nil
		}
		head, err := format.DecodeXattrHead(v)
		if err != nil {
			return false, corruptf("inode %d: %v", ino, err)
		}
		return fn(k, &head)
	})
}

// SetXattr gives an extended attribute a value. Errors: ErrExist and ErrNoXattr
// as flags say, ErrXattrTooBig, ErrXattrNameTooLong, ErrNoSpace, ErrReadOnly.
func (i *Inode) SetXattr(name string, value []byte, flags XattrFlags) error {
	g, err := i.fs.gate.enter()
	if err != nil {
		return err
	}
	defer g.leave()
	if flags&^(XattrCreate|XattrReplace) != 0 || flags == XattrCreate|XattrReplace {
		return fmt.Errorf("%w: xattr flags %#x", ErrInvalid, flags)
	}
	if err := checkXattr(name, value); err != nil {
		return err
	}
	return i.fs.update(func(tx *txn) error {
		if err := tx.setXattr(i, name, value, flags); err != nil {
			return err
		}
		tx.change(i, i.fs.now(), func(*inodeAttrs) {})
		return nil
	})
}

func (tx *txn) setXattr(i *Inode, name string, value []byte, flags XattrFlags) error {
	slot, err := tx.fs.findXattr(&tx.Reader, i.ino, name, nil)
	switch {
	case err != nil:
		return err
	case slot.full:
		return fmt.Errorf("%w: too many attributes with one hash", ErrNoSpace)
	case slot.found && flags&XattrCreate != 0:
		return ErrExist
	case !slot.found && flags&XattrReplace != 0:
		return ErrNoXattr
	}
	chunks := format.XattrChunks(len(name), len(value))
	if slot.found {
		if err := tx.trimXattr(slot, name, chunks); err != nil {
			return err
		}
	}
	n := min(len(value), format.XattrHeadSpace(len(name)))
	head := format.XattrHead{Name: []byte(name), ValueBytes: len(value), Value: value[:n]}
	if err := tx.Put(slot.key, format.AppendXattrHead(tx.item[:0], &head)); err != nil {
		return err
	}
	key := slot.key
	for rest := value[n:]; len(rest) > 0; {
		key.Offset++
		n := min(len(rest), format.MaxValueBytes)
		if err := tx.Put(key, rest[:n]); err != nil {
			return err
		}
		rest = rest[n:]
	}
	tx.touch(i)
	i.mu.Lock()
	i.a.internal |= format.InodeHasXattrs
	i.mu.Unlock()
	return nil
}

// trimXattr deletes the chunks of an attribute from number keep on.
func (tx *txn) trimXattr(slot xattrSlot, name string, keep int) error {
	for n := keep; n < format.XattrChunks(len(name), slot.valueBytes); n++ {
		key := slot.key
		key.Offset += uint64(n)
		if err := tx.Delete(key); err != nil {
			return corruptf("inode %d: xattr chunk %#x: %v", key.Object, key.Offset, err)
		}
	}
	return nil
}

// RemoveXattr removes an extended attribute. Errors: ErrNoXattr, ErrReadOnly.
func (i *Inode) RemoveXattr(name string) error {
	g, err := i.fs.gate.enter()
	if err != nil {
		return err
	}
	defer g.leave()
	if err := checkXattr(name, nil); err != nil {
		return err
	}
	if i.fs.ReadOnly() {
		return ErrReadOnly
	}
	if !i.hasXattrs() {
		return ErrNoXattr
	}
	return i.fs.updateFreeing(func(tx *txn) error {
		if err := tx.removeXattr(i, name); err != nil {
			return err
		}
		tx.change(i, i.fs.now(), func(*inodeAttrs) {})
		return nil
	})
}

func (tx *txn) removeXattr(i *Inode, name string) error {
	slot, err := tx.fs.findXattr(&tx.Reader, i.ino, name, nil)
	switch {
	case err != nil:
		return err
	case !slot.found:
		return ErrNoXattr
	}
	if err := tx.trimXattr(slot, name, 0); err != nil {
		return err
	}
	if err := tx.closeXattrGap(slot.key); err != nil {
		return err
	}
	left := false
	err = eachXattr(&tx.Reader, i.ino, func(format.Key, *format.XattrHead) (bool, error) {
		left = true
		return false, nil
	})
	if err != nil {
		return err
	}
	tx.touch(i)
	if !left {
		i.mu.Lock()
		i.a.internal &^= format.InodeHasXattrs
		i.mu.Unlock()
	}
	return nil
}

// SetAttrAndXattrs is SetAttr together with changes of extended attributes: a
// crash leaves all of it or nothing. An attribute with a nil value is removed,
// if it is there. Errors: those of SetAttr and SetXattr.
func (i *Inode) SetAttrAndXattrs(mask AttrMask, a *Attr, xattrs ...Xattr) error {
	g, err := i.fs.gate.enter()
	if err != nil {
		return err
	}
	defer g.leave()
	if err := checkSetAttr(mask, a); err != nil {
		return err
	}
	for _, x := range xattrs {
		if err := checkXattr(x.Name, x.Value); err != nil {
			return err
		}
	}
	return i.fs.update(func(tx *txn) error {
		tx.touch(i)
		for _, x := range xattrs {
			var err error
			if x.Value != nil {
				err = tx.setXattr(i, x.Name, x.Value, 0)
			} else if err = tx.removeXattr(i, x.Name); err == ErrNoXattr {
				err = nil
			}
			if err != nil {
				return err
			}
		}
		i.setAttr(mask, a)
		return nil
	})
}

// closeXattrGap moves the last attribute of the same hash into the place that
// became free, so that a lookup may stop at the first free place.
func (tx *txn) closeXattrGap(gap format.Key) error {
	last := gap
	for {
		next := last
		next.Offset += format.XattrProbeStep
		if next.Offset>>16 != gap.Offset>>16 {
			break
		}
		_, ok, err := tx.Get(next, tx.value[:0])
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		last = next
	}
	if last == gap {
		return nil
	}
	b, _, err := tx.Get(last, tx.value[:0])
	if err != nil {
		return err
	}
	head, err := format.DecodeXattrHead(b)
	if err != nil {
		return err
	}
	for n := range format.XattrChunks(len(head.Name), head.ValueBytes) {
		from, to := last, gap
		from.Offset += uint64(n)
		to.Offset += uint64(n)
		b, ok, err := tx.Get(from, tx.item[:0])
		if err != nil {
			return err
		}
		if !ok {
			return corruptf("inode %d: xattr chunk %#x is missing", from.Object, from.Offset)
		}
		if err := tx.Put(to, b); err != nil {
			return err
		}
		if err := tx.Delete(from); err != nil {
			return err
		}
	}
	return nil
}
