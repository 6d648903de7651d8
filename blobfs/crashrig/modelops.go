package crashrig

import (
	"fmt"
	"slices"

	"runsc-fs/blobfs"
)

func (m *model) refuse(o *Op, why string) error { return fmt.Errorf("%w: %v: %s", errModel, o, why) }

// apply carries an operation out. What is only promised is not its business.
func (m *model) apply(o *Op) error {
	switch o.Kind {
	case "creat", "mkdir", "symlink":
		return m.create(o)
	case "link":
		return m.link(o)
	case "rename", "exchange":
		return m.rename(o)
	case "unlink", "rmdir":
		return m.remove(o)
	case "open":
		n, err := m.find(o.Path2)
		if err == nil {
			m.handles[o.Path] = n
		}
		return err
	case "tmpfile":
		n := m.newFile(0o600)
		n.nlink, n.linkable = 0, true
		m.handles[o.Path] = n
		return nil
	case "close":
		delete(m.handles, o.Path)
		return nil
	case "setxattr", "rmxattr":
		return m.xattr(o)
	case "clone", "dedupe":
		return m.remap(o)
	case "collapse", "insert":
		return m.shift(o)
	case "write", "append", "store", "truncate", "falloc", "punch", "zero", "chmod":
		return m.content(o)
	}
	_, err := m.find(o.Path) // syncs
	return err
}

func (m *model) create(o *Op) error {
	dir, name, n, err := m.entry(o.Path)
	if err != nil {
		return err
	}
	if n != nil {
		return m.refuse(o, "exists")
	}
	switch o.Kind {
	case "creat":
		n = m.newFile(0o644)
	case "mkdir":
		n = newMnode(blobfs.ModeDir)
		n.parent = dir
		dir.nlink++
	case "symlink":
		n = newMnode(blobfs.ModeSymlink)
		n.target = o.Path2
	}
	dir.children[name] = n
	m.changed(dir, n)
	return nil
}

func (m *model) link(o *Op) error {
	n, err := m.find(o.Path)
	if err != nil {
		return err
	}
	dir, name, there, err := m.entry(o.Path2)
	switch {
	case err != nil:
		return err
	case there != nil, n.typ == blobfs.ModeDir, n.nlink == 0 && !n.linkable:
		return m.refuse(o, "exists, is a directory, or was removed")
	}
	n.nlink++
	n.linkable = false
	dir.children[name] = n
	m.changed(dir, n)
	return nil
}

func (m *model) remove(o *Op) error {
	dir, name, n, err := m.entry(o.Path)
	if err != nil {
		return err
	}
	if n == nil || (n.typ == blobfs.ModeDir) != (o.Kind == "rmdir") || len(n.children) > 0 {
		return m.refuse(o, "missing, not empty or of another type")
	}
	delete(dir.children, name)
	if n.typ == blobfs.ModeDir {
		dir.nlink--
		n.nlink = 1
	}
	n.nlink--
	m.changed(dir, n)
	return nil
}

func (m *model) rename(o *Op) error {
	dir, name, n, err := m.entry(o.Path)
	if err != nil {
		return err
	}
	dir2, name2, there, err := m.entry(o.Path2)
	if err != nil {
		return err
	}
	exchange := o.Kind == "exchange"
	switch {
	case n == nil, exchange && there == nil:
		return m.refuse(o, "missing")
	case n == there:
		return nil
	case within(n, dir2), exchange && within(there, dir):
		return m.refuse(o, "into itself")
	}
	isDir := func(n *mnode) bool { return n.typ == blobfs.ModeDir }
	if there != nil && !exchange && (isDir(n) != isDir(there) || len(there.children) > 0) {
		return m.refuse(o, "cannot replace that")
	}
	m.detach(dir, name, n)
	if there != nil {
		m.detach(dir2, name2, there)
	}
	m.attach(dir2, name2, n)
	switch {
	case exchange:
		m.attach(dir, name, there)
	case there != nil:
		if there.nlink--; isDir(there) {
			there.nlink = 0
		}
	}
	m.changed(dir, dir2, n, there)
	if !exchange && there != nil && n.file != nil {
		n.file.settled = append(n.file.settled, settleMark{len(m.names) - 1, len(n.file.versions) - 1})
	}
	return nil
}

func (m *model) detach(dir *mnode, name string, n *mnode) {
	delete(dir.children, name)
	if n.typ == blobfs.ModeDir {
		dir.nlink--
	}
}

func (m *model) attach(dir *mnode, name string, n *mnode) {
	dir.children[name] = n
	if n.typ == blobfs.ModeDir {
		dir.nlink++
		n.parent = dir
	}
}

// within says whether dir is n or below it.
func within(n, dir *mnode) bool {
	for ; ; dir = dir.parent {
		if dir == n {
			return true
		}
		if dir.parent == dir || dir.parent == nil {
			return false
		}
	}
}

func (m *model) xattr(o *Op) error {
	n, err := m.find(o.Path)
	if err != nil {
		return err
	}
	if _, there := n.xattrs[o.Path2]; o.Kind == "rmxattr" && !there {
		return m.refuse(o, "no such attribute")
	}
	if o.Kind == "rmxattr" {
		delete(n.xattrs, o.Path2)
	} else {
		n.xattrs[o.Path2] = xattrValue(o, m.op)
	}
	m.changed(n)
	return nil
}

// xattrValue tells the operation that set it.
func xattrValue(o *Op, op int) string { return fmt.Sprintf("%0*d", o.Len, op) }

func (m *model) content(o *Op) error {
	n, err := m.find(o.Path)
	if err != nil {
		return err
	}
	if n.file == nil && o.Kind == "chmod" {
		return nil // only files' modes are looked at
	}
	if n.file == nil {
		return m.refuse(o, "no file")
	}
	f := n.file
	end := o.Off + o.Len
	if o.Kind == "store" && end > f.last().size {
		return m.refuse(o, "behind the end")
	}
	v := f.next(m.op)
	v.stored = o.Kind == "store"
	switch o.Kind {
	case "write", "store":
		v.write(o.Off, o.payload(m.op, o.Off))
	case "append":
		v.write(v.size, o.payload(m.op, v.size))
	case "truncate":
		v.resize(o.Len)
	case "falloc":
		if o.Flags&KeepSize == 0 && end > v.size {
			v.resize(end)
		}
	case "punch", "zero":
		v.zero(o.Off, end)
		if o.Kind == "zero" && o.Flags&KeepSize == 0 && end > v.size {
			v.resize(end)
		}
	case "chmod":
		v.mode = uint32(o.Len)
	}
	return nil
}

// remap makes a range of the file Path the same as that of Path2; a dedupe only
// finds out that it is, or not.
func (m *model) remap(o *Op) error {
	dst, err := m.find(o.Path)
	if err != nil {
		return err
	}
	src, err := m.find(o.Path2)
	if err != nil {
		return err
	}
	if dst.file == nil || src.file == nil || src == dst {
		return m.refuse(o, "no two files")
	}
	from, end := src.file.last(), o.Off+o.Len
	if o.Off%pageBytes != 0 || o.Len%pageBytes != 0 || end > from.size {
		return m.refuse(o, "not aligned, or behind the end")
	}
	if o.Kind == "dedupe" {
		to := dst.file.last()
		for k := o.Off / pageBytes; k < end/pageBytes; k++ {
			if end > to.size || !samePage(from.pages[k], to.pages[k]) {
				return m.refuse(o, "behind the end, or contents differ")
			}
		}
		return nil
	}
	// The pages of the source as they are now.
	pages := slices.Clone(from.pages[o.Off/pageBytes : end/pageBytes])
	v := dst.file.next(m.op)
	if end > v.size {
		v.resize(end)
	}
	copy(v.pages[o.Off/pageBytes:], pages)
	return nil
}

// shift takes pages out of a file, or puts empty ones in.
func (m *model) shift(o *Op) error {
	n, err := m.find(o.Path)
	if err != nil {
		return err
	}
	size := int64(0)
	if n.file != nil {
		size = n.file.last().size
	}
	end := o.Off + o.Len
	if o.Len == 0 || (o.Off|o.Len)%pageBytes != 0 || o.Off >= size || o.Kind == "collapse" && end >= size {
		return m.refuse(o, "not aligned, or behind the end")
	}
	v := n.file.next(m.op)
	if o.Kind == "collapse" {
		v.pages = slices.Delete(v.pages, int(o.Off/pageBytes), int(end/pageBytes))
		v.size -= o.Len
		return nil
	}
	v.pages = slices.Insert(v.pages, int(o.Off/pageBytes), make([]*[pageBytes]byte, o.Len/pageBytes)...)
	v.size += o.Len
	return nil
}

func samePage(a, b *[pageBytes]byte) bool {
	var zeroes [pageBytes]byte
	if a == nil {
		a = &zeroes
	}
	if b == nil {
		b = &zeroes
	}
	return *a == *b
}
