package crashrig

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"runsc-fs/blobfs"
)

const pageBytes = blobfs.BlockSizeBytes

// errModel is any failure that the model predicts.
var errModel = errors.New("the model refuses this")

// mnode is an inode of the model.
type mnode struct {
	typ      uint32
	nlink    int
	target   string
	xattrs   map[string]string
	children map[string]*mnode
	parent   *mnode // of a directory
	file     *mfile // of a regular file
	linkable bool   // made without a name, and never had one
	lastName int    // state of the names in which it was last changed
}

// mfile is the history of a file's content.
type mfile struct {
	id       int
	versions []version
	marks    []dataMark   // promises, in the order of their points
	settled  []settleMark // versions that come with a state of the names
}

// version is a file after an operation. Pages are shared and never changed; nil
// is zeroes.
type version struct {
	op     int
	size   int64
	pages  []*[pageBytes]byte
	mode   uint32
	mtime  int64
	stored bool // made by a store through a mapping
}

// dataMark promises a version from a point on: bytes [off, end), or all.
type dataMark struct {
	point    int
	version  int
	off, end int64
	attrs    bool // mode and times, too
	whole    bool
}

type settleMark struct{ names, version int }

// nameState is all that is not content, after an operation.
type nameState struct {
	op    int
	text  string
	files map[string]*mfile // by path
}

// model is the model of the tree below one directory.
type model struct {
	root    *mnode
	handles map[string]*mnode
	names   []nameState
	nextID  int
	op      int // number of the operation under way
}

func newModel() *model {
	m := &model{root: newMnode(blobfs.ModeDir), handles: map[string]*mnode{}}
	m.root.parent = m.root
	m.changed()
	return m
}

func newMnode(typ uint32) *mnode {
	n := &mnode{typ: typ, nlink: 1, xattrs: map[string]string{}}
	if typ == blobfs.ModeDir {
		n.nlink, n.children = 2, map[string]*mnode{}
	}
	return n
}

func (m *model) newFile(mode uint32) *mnode {
	n := newMnode(blobfs.ModeRegular)
	m.nextID++
	n.file = &mfile{id: m.nextID, versions: []version{{op: m.op, mode: mode}}}
	return n
}

// last is the present version.
func (f *mfile) last() *version { return &f.versions[len(f.versions)-1] }

// next begins a version that is like the present one.
func (f *mfile) next(op int) *version {
	v := *f.last()
	v.op, v.stored = op, false
	v.pages = slices.Clone(v.pages)
	f.versions = append(f.versions, v)
	return f.last()
}

func (v *version) resize(size int64) {
	count := int((size + pageBytes - 1) / pageBytes)
	for len(v.pages) < count {
		v.pages = append(v.pages, nil)
	}
	v.pages = v.pages[:count]
	if tail := size % pageBytes; size < v.size && tail != 0 && v.pages[count-1] != nil {
		p := *v.pages[count-1]
		clear(p[tail:])
		v.pages[count-1] = &p
	}
	v.size = size
}

func (v *version) write(off int64, b []byte) {
	if end := off + int64(len(b)); end > v.size {
		v.resize(end)
	}
	for len(b) > 0 {
		k, at := off/pageBytes, off%pageBytes
		p := new([pageBytes]byte)
		if v.pages[k] != nil {
			*p = *v.pages[k]
		}
		n := copy(p[at:], b)
		v.pages[k] = p
		b, off = b[n:], off+int64(n)
	}
}

func (v *version) zero(off, end int64) {
	if end = min(end, v.size); off < end {
		v.write(off, make([]byte, end-off))
	}
}

// find returns the node of a path or an open file.
func (m *model) find(path string) (*mnode, error) {
	if strings.HasPrefix(path, "@") {
		if n := m.handles[path]; n != nil {
			return n, nil
		}
		return nil, fmt.Errorf("%w: %s is not open", errModel, path)
	}
	n := m.root
	for _, s := range strings.FieldsFunc(path, func(c rune) bool { return c == '/' }) {
		if n.children[s] == nil {
			return nil, fmt.Errorf("%w: %s does not exist", errModel, path)
		}
		n = n.children[s]
	}
	return n, nil
}

func splitPath(path string) (dir, name string) {
	k := strings.LastIndexByte(path, '/')
	return path[:k+1], path[k+1:]
}

// entry returns the directory of a path and the node there, or nil.
func (m *model) entry(path string) (dir *mnode, name string, n *mnode, err error) {
	d, name := splitPath(path)
	if dir, err = m.find(d); err != nil {
		return nil, "", nil, err
	}
	if dir.typ != blobfs.ModeDir {
		return nil, "", nil, fmt.Errorf("%w: %s is no directory", errModel, d)
	}
	return dir, name, dir.children[name], nil
}

// changed notes a new state of the names, which the given nodes have part in.
func (m *model) changed(nodes ...*mnode) {
	s := nameState{op: m.op, files: map[string]*mfile{}}
	first := map[*mnode]string{}
	var b strings.Builder
	var walk func(path string, n *mnode)
	walk = func(path string, n *mnode) {
		if path != "" {
			if first[n] == "" {
				first[n] = path
			}
			describe(&b, path, n.typ, n.nlink, first[n], n.target, n.xattrs)
			if n.file != nil {
				s.files[path] = n.file
			}
		}
		for _, name := range slices.Sorted(maps.Keys(n.children)) {
			walk(path+"/"+name, n.children[name])
		}
	}
	walk("", m.root)
	s.text = b.String()
	m.names = append(m.names, s)
	for _, n := range nodes {
		if n != nil {
			n.lastName = len(m.names) - 1
		}
	}
}

// describe is the text of one name, of the model's or of a real tree.
func describe(b *strings.Builder, path string, typ uint32, nlink int, first, target string, xattrs map[string]string) {
	fmt.Fprintf(b, "%s %o", path, typ>>12)
	if typ == blobfs.ModeRegular {
		fmt.Fprintf(b, " %d %s", nlink, first)
	} else if typ == blobfs.ModeDir {
		fmt.Fprintf(b, " %d", nlink)
	}
	if target != "" {
		fmt.Fprintf(b, " -> %s", target)
	}
	for _, k := range slices.Sorted(maps.Keys(xattrs)) {
		fmt.Fprintf(b, " %s=%s", k, xattrs[k])
	}
	b.WriteByte('\n')
}
