// Package blobfstest compares a blobfs file system with a simple model of one
// in memory: random operations must have the same results on both, before and
// after remounts.
package blobfstest

import (
	"maps"
	"slices"

	"runsc-fs/blobfs"
)

// Node is an inode of the model.
type Node struct {
	Mode     uint32
	UID, GID uint32
	Nlink    uint32
	Rdev     uint64
	Target   string
	Data     []byte
	Xattrs   map[string][]byte
	Children map[string]*Node
	Parent   *Node // of a directory

	names  map[name]bool
	handle *blobfs.Inode // reference to the real inode, or nil
	number uint64        // inode number, once known
}

type name struct {
	dir  *Node
	name string
}

func (n *Node) typ() uint32   { return n.Mode & blobfs.ModeTypeMask }
func (n *Node) isDir() bool   { return n.typ() == blobfs.ModeDir }
func (n *Node) isFile() bool  { return n.typ() == blobfs.ModeRegular }
func (n *Node) removed() bool { return n.Nlink == 0 }

func newNode(mode uint32) *Node {
	n := &Node{Mode: mode, Nlink: 1, Xattrs: map[string][]byte{}, names: map[name]bool{}}
	if n.isDir() {
		n.Nlink = 2
		n.Children = map[string]*Node{}
	}
	return n
}

// Model is the model of a file system.
type Model struct {
	Root *Node
}

// NewModel returns an empty file system.
func NewModel() *Model {
	root := newNode(blobfs.ModeDir | 0o755)
	root.Parent = root
	return &Model{Root: root}
}

func (m *Model) attach(dir *Node, s string, n *Node) {
	dir.Children[s] = n
	n.names[name{dir, s}] = true
	if n.isDir() {
		n.Parent = dir
		dir.Nlink++
	}
}

func (m *Model) detach(dir *Node, s string) *Node {
	n := dir.Children[s]
	delete(dir.Children, s)
	delete(n.names, name{dir, s})
	if n.isDir() {
		dir.Nlink--
	}
	return n
}

func checkDir(dir *Node, s string) error {
	switch {
	case !dir.isDir():
		return blobfs.ErrNotDir
	case dir.removed():
		return blobfs.ErrNotExist
	case len(s) > blobfs.MaxNameBytes:
		return blobfs.ErrNameTooLong
	}
	return nil
}

func (m *Model) create(dir *Node, s string, n *Node) error {
	if err := checkDir(dir, s); err != nil {
		return err
	}
	if dir.Children[s] != nil {
		return blobfs.ErrExist
	}
	m.attach(dir, s, n)
	return nil
}

func (m *Model) link(dir *Node, s string, n *Node, linkable bool) error {
	if err := checkDir(dir, s); err != nil {
		return err
	}
	switch {
	case dir.Children[s] != nil:
		return blobfs.ErrExist
	case n.isDir():
		return blobfs.ErrNotPermitted
	case n.removed() && !linkable:
		return blobfs.ErrNotExist
	}
	n.Nlink++
	m.attach(dir, s, n)
	return nil
}

func (m *Model) remove(dir *Node, s string, rmdir bool) error {
	if err := checkDir(dir, s); err != nil {
		return err
	}
	n := dir.Children[s]
	switch {
	case n == nil:
		return blobfs.ErrNotExist
	case rmdir && !n.isDir():
		return blobfs.ErrNotDir
	case !rmdir && n.isDir():
		return blobfs.ErrIsDir
	case rmdir && len(n.Children) > 0:
		return blobfs.ErrNotEmpty
	}
	m.detach(dir, s)
	m.drop(n)
	return nil
}

// drop takes one link from a node that has been detached.
func (m *Model) drop(n *Node) {
	if n.isDir() {
		n.Nlink = 0
	} else {
		n.Nlink--
	}
}

func within(n, dir *Node) bool {
	for ; ; dir = dir.Parent {
		if dir == n {
			return true
		}
		if dir.Parent == dir {
			return false
		}
	}
}

func (m *Model) rename(oldDir *Node, oldName string, newDir *Node, newName string, flags blobfs.RenameFlags) error {
	exchange := flags&blobfs.RenameExchange != 0
	if exchange && flags != blobfs.RenameExchange {
		return blobfs.ErrInvalid
	}
	if err := checkDir(oldDir, oldName); err != nil {
		return err
	}
	src, dst := oldDir.Children[oldName], newDir.Children[newName]
	if src == nil {
		return blobfs.ErrNotExist
	}
	if err := checkDir(newDir, newName); err != nil {
		return err
	}
	switch {
	case exchange && dst == nil:
		return blobfs.ErrNotExist
	case flags&blobfs.RenameNoReplace != 0 && dst != nil:
		return blobfs.ErrExist
	case src == dst:
		return nil
	case oldDir != newDir && src.isDir() && within(src, newDir):
		return blobfs.ErrLoop
	case exchange && oldDir != newDir && dst.isDir() && within(dst, oldDir):
		return blobfs.ErrLoop
	}
	if exchange {
		m.detach(oldDir, oldName)
		m.detach(newDir, newName)
		m.attach(newDir, newName, src)
		m.attach(oldDir, oldName, dst)
		return nil
	}
	if dst != nil {
		switch {
		case src.isDir() && !dst.isDir():
			return blobfs.ErrNotDir
		case !src.isDir() && dst.isDir() && within(dst, oldDir):
			return blobfs.ErrNotEmpty
		case !src.isDir() && dst.isDir():
			return blobfs.ErrIsDir
		case src.isDir() && len(dst.Children) > 0:
			return blobfs.ErrNotEmpty
		}
		m.detach(newDir, newName)
		m.drop(dst)
	}
	m.detach(oldDir, oldName)
	m.attach(newDir, newName, src)
	if flags&blobfs.RenameWhiteout != 0 {
		m.attach(oldDir, oldName, newNode(blobfs.ModeChar))
	}
	return nil
}

// resize sets the size of a file.
func (n *Node) resize(size int64) {
	old := len(n.Data)
	n.Data = slices.Grow(n.Data, max(int(size)-old, 0))[:size]
	if int(size) > old {
		clear(n.Data[old:])
	}
}

func (n *Node) write(off int64, b []byte) {
	if end := off + int64(len(b)); end > int64(len(n.Data)) {
		n.resize(end)
	}
	copy(n.Data[off:], b)
}

func (n *Node) zero(off, end int64) {
	end = min(end, int64(len(n.Data)))
	if off < end {
		clear(n.Data[off:end])
	}
}

// nodes lists all nodes that have a name, in an order that depends on names only.
func (m *Model) nodes() []*Node {
	var list []*Node
	seen := map[*Node]bool{}
	var walk func(n *Node)
	walk = func(n *Node) {
		if seen[n] {
			return
		}
		seen[n] = true
		list = append(list, n)
		for _, s := range slices.Sorted(maps.Keys(n.Children)) {
			walk(n.Children[s])
		}
	}
	walk(m.Root)
	return list
}
