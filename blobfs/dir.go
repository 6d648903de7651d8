package blobfs

import (
	"fmt"

	"runsc-fs/blobfs/format"
	"runsc-fs/blobfs/store"
)

// dirSlot is where an entry stands, or could stand, in its directory.
type dirSlot struct {
	key   format.Key
	ino   uint64
	typ   uint32
	found bool
	full  bool // no entry of that name, and no place for one
}

func checkName(name string) error {
	switch {
	case len(name) > format.MaxNameBytes:
		return ErrNameTooLong
	case !format.ValidName([]byte(name)):
		return fmt.Errorf("%w: name %q", ErrInvalid, name)
	}
	return nil
}

func (i *Inode) checkDir(name string) error {
	if i.typ != ModeDir {
		return ErrNotDir
	}
	// As in Linux, a directory that was removed comes before a long name.
	if err := i.alive(); err != nil {
		return err
	}
	return checkName(name)
}

// findEntry looks name up in a directory. If there is no such entry, the slot
// is the first free one for it.
func (fs *FS) findEntry(r *store.Reader, dir *Inode, name string) (dirSlot, error) {
	base := format.DirentOffset(format.NameHash(&fs.seed, []byte(name)))
	from := format.Key{Object: dir.ino, Kind: format.KindDirent, Offset: base}
	to := from
	to.Offset += format.DirentProbes - 1
	slot := dirSlot{key: from}
	err := r.Scan(from, to, func(k format.Key, v []byte) (bool, error) {
		d, err := format.DecodeDirent(v)
		if err != nil {
			return false, corruptf("directory %d, entry %#x: %v", dir.ino, k.Offset, err)
		}
		if string(d.Name) == name {
			slot = dirSlot{key: k, ino: d.Ino, typ: uint32(d.Type) << 12, found: true}
			return false, nil
		}
		if k.Offset == slot.key.Offset {
			slot.key.Offset++
		}
		return true, nil
	})
	slot.full = !slot.found && slot.key.Offset > to.Offset
	return slot, err
}

// entryInode returns, with a reference, the inode of an entry that was found.
func (fs *FS) entryInode(r *store.Reader, dir *Inode, name string, slot *dirSlot) (*Inode, error) {
	i, err := fs.inodeThrough(r, slot.ino)
	switch {
	case err == errNoInode || err == ErrStale:
		return nil, corruptf("directory %d: entry %q names inode %d, which does not exist", dir.ino, name, slot.ino)
	case err != nil:
		return nil, err
	}
	i.mu.Lock()
	parent, nlink := i.a.parent, i.a.nlink
	i.mu.Unlock()
	switch {
	case i.typ != slot.typ:
		err = corruptf("directory %d: entry %q says type %#o, inode %d is of type %#o", dir.ino, name, slot.typ, slot.ino, i.typ)
	case nlink == 0:
		err = corruptf("directory %d: entry %q names inode %d, which has no links", dir.ino, name, slot.ino)
	case i.typ == ModeDir && (parent != dir.ino || slot.ino == format.RootObject):
		err = corruptf("directory %d: entry %q names directory %d, whose parent is %d", dir.ino, name, slot.ino, parent)
	}
	if err != nil {
		i.putBack()
		return nil, err
	}
	return i, nil
}

// putEntry writes an entry into the slot.
func (tx *txn) putEntry(s *dirSlot, name string, ino uint64, typ uint32) error {
	if s.full {
		return fmt.Errorf("%w: too many names with one hash", ErrNoSpace)
	}
	b := format.AppendDirent(tx.item[:0], &format.Dirent{Type: uint8(typ >> 12), Ino: ino, Name: []byte(name)})
	return tx.Put(s.key, b)
}

// Lookup returns the inode of that name, with a reference. Errors: ErrNotExist,
// ErrNotDir, ErrNameTooLong, ErrCorrupt, ErrIO.
func (i *Inode) Lookup(name string) (found *Inode, err error) {
	g, err := i.fs.gate.enter()
	if err != nil {
		return nil, err
	}
	defer g.leave()
	if err := i.checkDir(name); err != nil {
		return nil, err
	}
	err = i.fs.view(func(r *store.Reader) error {
		slot, err := i.fs.findEntry(r, i, name)
		switch {
		case err != nil:
			return err
		case !slot.found:
			return ErrNotExist
		}
		found, err = i.fs.entryInode(r, i, name, &slot)
		return err
	})
	return found, err
}

// alive fails for a directory that has been removed. Only inside a transaction
// does the answer last.
func (i *Inode) alive() error {
	if i.typ != ModeDir {
		return ErrNotDir
	}
	if !i.hasLinks() {
		return ErrNotExist
	}
	return nil
}

// linkRoom fails for a directory that cannot take another subdirectory.
func (i *Inode) linkRoom() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.a.nlink >= MaxLinks {
		return ErrTooManyLinks
	}
	return nil
}

// Create makes an inode of the type in n.Mode and gives it a name. It returns
// the inode with a reference. Errors: ErrExist, ErrNotExist when the directory
// has been removed, ErrTooManyLinks, ErrNoSpace, ErrReadOnly and those of Lookup.
func (i *Inode) Create(name string, n NewInode) (*Inode, error) {
	g, err := i.fs.gate.enter()
	if err != nil {
		return nil, err
	}
	defer g.leave()
	if err := i.checkDir(name); err != nil {
		return nil, err
	}
	if err := n.check(); err != nil {
		return nil, err
	}
	var child *Inode
	err = i.fs.update(func(tx *txn) error {
		if err := i.alive(); err != nil {
			return err
		}
		slot, err := i.fs.findEntry(&tx.Reader, i, name)
		switch {
		case err != nil:
			return err
		case slot.found:
			return ErrExist
		}
		isDir := n.Mode&ModeTypeMask == ModeDir
		more, nlink := 0, uint32(1)
		if isDir {
			if err := i.linkRoom(); err != nil {
				return err
			}
			more, nlink = 1, 2
		}
		now := i.fs.now()
		if child, err = tx.makeInode(&n, i, nlink, now); err != nil {
			return err
		}
		if err := tx.putEntry(&slot, name, child.ino, child.typ); err != nil {
			return err
		}
		tx.changeDir(i, now, 1, more)
		return nil
	})
	if err != nil && child != nil {
		i.fs.unmakeInode(child)
	}
	if err != nil {
		return nil, err
	}
	return child, nil
}

// CreateUnlinked makes a regular file without a name (O_TMPFILE), which Link
// can give it later. The directory only says where.
func (i *Inode) CreateUnlinked(n NewInode) (*Inode, error) {
	g, err := i.fs.gate.enter()
	if err != nil {
		return nil, err
	}
	defer g.leave()
	if i.typ != ModeDir {
		return nil, ErrNotDir
	}
	if err := n.check(); err != nil {
		return nil, err
	}
	if n.Mode&ModeTypeMask != ModeRegular {
		return nil, fmt.Errorf("%w: only regular files can be without a name", ErrInvalid)
	}
	var child *Inode
	// Whether the directory still has a name does not matter, as in Linux.
	err = i.fs.update(func(tx *txn) (err error) {
		if child, err = tx.makeInode(&n, i, 0, i.fs.now()); err != nil {
			return err
		}
		child.linkable = true
		return tx.putOrphan(child, format.OrphanUnlinked)
	})
	if err != nil && child != nil {
		i.fs.unmakeInode(child)
	}
	if err != nil {
		return nil, err
	}
	return child, nil
}

func (n *NewInode) check() error {
	typ := n.Mode & ModeTypeMask
	switch {
	case n.Mode&^uint32(ModeTypeMask|ModePermission) != 0 || !format.ValidFileType(uint8(n.Mode>>12)):
		return fmt.Errorf("%w: mode %#o", ErrInvalid, n.Mode)
	case n.Flags&^uint32(FlagsStored) != 0:
		return fmt.Errorf("%w: inode flags %#x", ErrNotSupported, n.Flags)
	case typ == ModeSymlink && len(n.Target) == 0:
		return fmt.Errorf("%w: empty symbolic link", ErrNotExist)
	case typ == ModeSymlink && len(n.Target) > MaxSymlinkBytes:
		return ErrNameTooLong
	}
	for _, x := range n.Xattrs {
		if err := checkXattr(x.Name, x.Value); err != nil {
			return err
		}
	}
	return nil
}

// makeInode adds an inode to the store and to the cache, with a reference. If
// the transaction fails, the caller must call unmakeInode.
func (tx *txn) makeInode(n *NewInode, dir *Inode, nlink uint32, now int64) (*Inode, error) {
	fs := tx.fs
	if err := fs.takeInode(); err != nil {
		return nil, err
	}
	ino := fs.store.NextObject()
	typ := n.Mode & ModeTypeMask
	item := format.Inode{
		Mode: n.Mode, UID: n.UID, GID: n.GID, Nlink: nlink, Generation: generation(ino, now),
		Atime: now, Mtime: now, Ctime: now, Btime: now, Flags: n.Flags, ProjectID: n.ProjectID,
	}
	switch typ {
	case ModeDir:
		item.Parent = dir.ino
	case ModeSymlink:
		item.Size = uint64(len(n.Target))
		item.Internal |= format.InodeInlineData
	case ModeChar, ModeBlock:
		item.Rdev = n.Rdev
	}
	i := newInode(fs, ino, &item)
	if !fs.inodes.add(i) {
		fs.giveInode()
		return nil, corruptf("inode number %d given out twice", ino)
	}
	tx.touch(i)
	if typ == ModeSymlink {
		if err := tx.putInline(ino, []byte(n.Target)); err != nil {
			return i, err
		}
	}
	for _, x := range n.Xattrs {
		if err := tx.setXattr(i, x.Name, x.Value, 0); err != nil {
			return i, err
		}
	}
	return i, nil
}

// unmakeInode undoes makeInode where undoing the transaction does not.
func (fs *FS) unmakeInode(i *Inode) {
	fs.inodes.forget(i)
	fs.giveInode()
}

// generation makes a number that is unlikely to come back with the same inode number.
func generation(ino uint64, now int64) uint32 {
	return max(uint32(uint64(now)>>10)^uint32(ino*0x9e3779b1), 1)
}

// putInline stores content in chunks.
func (tx *txn) putInline(ino uint64, data []byte) error {
	for off := 0; off < len(data); off += format.MaxValueBytes {
		key := format.Key{Object: ino, Kind: format.KindInline, Offset: uint64(off)}
		if err := tx.Put(key, data[off:min(off+format.MaxValueBytes, len(data))]); err != nil {
			return err
		}
	}
	return nil
}

// Readlink returns the target of a symbolic link.
func (i *Inode) Readlink() (string, error) {
	g, err := i.fs.gate.enter()
	if err != nil {
		return "", err
	}
	defer g.leave()
	if i.typ != ModeSymlink {
		return "", ErrNotSymlink
	}
	size := i.size.Load()
	target := make([]byte, 0, size)
	err = i.fs.store.View(func(r *store.Reader) error {
		target = target[:0]
		from := format.Key{Object: i.ino, Kind: format.KindInline}
		to := format.Key{Object: i.ino, Kind: format.KindInline, Offset: MaxSymlinkBytes}
		return r.Scan(from, to, func(k format.Key, v []byte) (bool, error) {
			if k.Offset != uint64(len(target)) || len(v) == 0 || int64(len(target)+len(v)) > size {
				return false, corruptf("symbolic link %d: chunk at %d of %d bytes", i.ino, k.Offset, len(v))
			}
			target = append(target, v...)
			return true, nil
		})
	})
	switch {
	case err != nil:
		return "", err
	case int64(len(target)) != size:
		return "", corruptf("symbolic link %d: %d of %d bytes", i.ino, len(target), size)
	}
	return string(target), nil
}

// Link gives target another name. Errors: ErrNotPermitted for a directory,
// ErrTooManyLinks, ErrNotExist when target has lost its last name already, and
// those of Create.
func (i *Inode) Link(name string, target *Inode) error {
	g, err := i.fs.gate.enter()
	if err != nil {
		return err
	}
	defer g.leave()
	if err := i.checkDir(name); err != nil {
		return err
	}
	return i.fs.update(func(tx *txn) error {
		if err := i.alive(); err != nil {
			return err
		}
		slot, err := i.fs.findEntry(&tx.Reader, i, name)
		if err != nil {
			return err
		}
		target.mu.Lock()
		nlink, linkable, truncating := target.a.nlink, target.linkable, target.truncating
		target.mu.Unlock()
		switch {
		case slot.found:
			return ErrExist
		case target.typ == ModeDir:
			return ErrNotPermitted
		case nlink == 0 && !linkable:
			return ErrNotExist
		case nlink >= MaxLinks:
			return ErrTooManyLinks
		}
		if err := tx.putEntry(&slot, name, target.ino, target.typ); err != nil {
			return err
		}
		switch {
		case nlink == 0 && truncating:
			err = tx.putOrphan(target, format.OrphanTruncate)
		case nlink == 0:
			err = tx.dropOrphan(target)
		}
		if err != nil {
			return err
		}
		now := i.fs.now()
		tx.change(target, now, func(a *inodeAttrs) { a.nlink++ })
		tx.changeDir(i, now, 1, 0)
		return nil
	})
}

// Unlink removes the name of something that is not a directory. If child is
// not nil, the name must be its (ErrStale).
func (i *Inode) Unlink(name string, child *Inode) error { return i.removeName(name, child, false) }

// Rmdir removes an empty directory. If child is not nil, the name must be its
// (ErrStale).
func (i *Inode) Rmdir(name string, child *Inode) error { return i.removeName(name, child, true) }

func (i *Inode) removeName(name string, child *Inode, dir bool) error {
	g, err := i.fs.gate.enter()
	if err != nil {
		return err
	}
	defer g.leave()
	if err := i.checkDir(name); err != nil {
		return err
	}
	fs := i.fs
	var victim victim
	err = fs.updateFreeing(func(tx *txn) error {
		slot, err := fs.findEntry(&tx.Reader, i, name)
		switch {
		case err != nil:
			return err
		case !slot.found:
			return ErrNotExist
		case child != nil && child.ino != slot.ino:
			return ErrStale
		case dir && slot.typ != ModeDir:
			return ErrNotDir
		case !dir && slot.typ == ModeDir:
			return ErrIsDir
		}
		if victim.inode, err = fs.entryInode(&tx.Reader, i, name, &slot); err != nil {
			return err
		}
		if dir {
			if err := fs.checkEmpty(&tx.Reader, victim.inode); err != nil {
				return err
			}
		}
		if err := tx.Delete(slot.key); err != nil {
			return err
		}
		now := fs.now()
		if dir {
			tx.changeDir(i, now, -1, -1)
		} else {
			tx.changeDir(i, now, -1, 0)
		}
		return tx.dropLink(&victim, now)
	})
	victim.settle(err)
	return err
}

// checkEmpty fails with ErrNotEmpty if the directory has an entry.
func (fs *FS) checkEmpty(r *store.Reader, dir *Inode) error {
	from := format.Key{Object: dir.ino, Kind: format.KindDirent}
	to := format.Key{Object: dir.ino, Kind: format.KindDirent, Offset: 1<<64 - 1}
	return r.Scan(from, to, func(format.Key, []byte) (bool, error) { return false, ErrNotEmpty })
}

// ReadDir calls fn for the entries from cookie on, in the order of their
// cookies, until fn returns false. It calls fn with no lock held. Entries that
// exist during the whole listing appear exactly once.
func (i *Inode) ReadDir(cookie int64, fn func(d Dirent) (more bool)) error {
	g, err := i.fs.gate.enter()
	if err != nil {
		return err
	}
	defer g.leave()
	if i.typ != ModeDir {
		return ErrNotDir
	}
	if cookie < 0 {
		return fmt.Errorf("%w: directory offset %d", ErrInvalid, cookie)
	}
	const batch = 64
	var list []Dirent
	from := format.Key{Object: i.ino, Kind: format.KindDirent, Offset: uint64(cookie)}
	to := format.Key{Object: i.ino, Kind: format.KindDirent, Offset: 1<<64 - 1}
	for {
		list = list[:0]
		err := i.fs.store.View(func(r *store.Reader) error {
			return r.Scan(from, to, func(k format.Key, v []byte) (bool, error) {
				d, err := format.DecodeDirent(v)
				if err != nil || k.Offset < FirstCookie || k.Offset >= 1<<63-1 {
					return false, corruptf("directory %d, entry %#x: %v", i.ino, k.Offset, err)
				}
				list = append(list, Dirent{Name: string(d.Name), Ino: d.Ino, Type: d.Type, NextCookie: int64(k.Offset) + 1})
				return len(list) < batch, nil
			})
		})
		for _, d := range list {
			if !fn(d) {
				return nil
			}
		}
		if err != nil || len(list) < batch {
			return err
		}
		from.Offset = uint64(list[len(list)-1].NextCookie)
	}
}
