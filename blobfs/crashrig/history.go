package crashrig

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"runsc-fs/blobfs"
	"runsc-fs/nvme"
	"runsc-fs/nvme/crashdev"
)

// nameMark promises a state of the names from a point on.
type nameMark struct{ point, names int }

// History is one run of a program, below one directory of a file system.
type History struct {
	disk  *crashdev.Disk
	arena *nvme.Arena
	fs    *blobfs.FS
	root  *blobfs.Inode
	base  string // path of root in the file system, "" for its root

	model  *model
	open   map[string]*blobfs.Inode
	steps  []step
	begins []int // of the steps
	marks  []nameMark
	acks   []at // numbers of ack operations
	grown  []at // blocks of the file system
	blind  bool // the model has no opinion

	// mapsMu is the lock of an address space, held from Fault until the store
	// is done, and by the invalidator.
	mapsMu sync.Mutex
}

// at is a number that holds from a point on.
type at struct{ point, value int }

// clock is a clock for file systems that are to do the same in each run.
func clock() func() int64 {
	var now atomic.Int64
	now.Store(1 << 60)
	return func() int64 { return now.Add(1000) }
}

// mountOptions make runs repeatable: nothing happens in the background.
func mountOptions(cacheBytes int64) blobfs.MountOptions {
	return blobfs.MountOptions{
		CacheBytes: cacheBytes, NodeCacheBytes: 1 << 20, MaxIdleInodes: 64, CommitInterval: -1, Discard: true, Now: clock(),
	}
}

func newHistory(disk *crashdev.Disk, arena *nvme.Arena, fs *blobfs.FS, root *blobfs.Inode, base string) *History {
	h := &History{
		disk: disk, arena: arena, fs: fs, root: root, base: base, model: newModel(), open: map[string]*blobfs.Inode{},
	}
	h.model.names[0].op = -1
	h.marks = []nameMark{{}}
	return h
}

// step is an operation that was carried out, with all that the model cannot
// know by itself.
type step struct {
	Op         Op
	Begin, End int // disk's points
	Failed     bool
	Mtime      int64 // of the file, afterwards
}

// Do carries out one operation on the file system and on the model. An error is
// a difference between the two, or a failure of the device.
func (h *History) Do(o Op) error {
	n := len(h.steps)
	st := step{Op: o, Begin: h.disk.Points()}
	err := h.real(n, &o)
	st.Failed = err != nil
	if err == nil {
		err = h.observe(&st)
	}
	if err != nil && !expected(err) {
		return fmt.Errorf("operation %d, %v: %w", n, o, err)
	}
	st.End = h.disk.Points()
	return h.note(st)
}

// note carries out one operation on the model.
func (h *History) note(st step) error {
	n := len(h.steps)
	h.steps = append(h.steps, st)
	h.begins = append(h.begins, st.Begin)
	h.model.op = n
	err := h.model.apply(&st.Op)
	if (err != nil) != st.Failed {
		return fmt.Errorf("operation %d, %v failed: %v, but in the model: %v", n, st.Op, st.Failed, err)
	}
	if err != nil {
		return nil
	}
	if st.Mtime != 0 {
		h.noteTime(&st)
	}
	h.promise(&st.Op, st.End)
	return nil
}

// expected says whether an error is one of the caller's making.
func expected(err error) bool {
	for _, e := range []error{
		blobfs.ErrExist, blobfs.ErrNotExist, blobfs.ErrNotDir, blobfs.ErrIsDir, blobfs.ErrNotEmpty, blobfs.ErrLoop,
		blobfs.ErrNoXattr, blobfs.ErrNotPermitted, blobfs.ErrBeyondEOF, blobfs.ErrInvalid, blobfs.ErrDiffers, errModel,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// look returns the inode of a path or open file, with a reference.
func (h *History) look(path string) (*blobfs.Inode, error) {
	if strings.HasPrefix(path, "@") {
		if i := h.open[path]; i != nil {
			i.IncRef()
			return i, nil
		}
		return nil, fmt.Errorf("%w: %s is not open", errModel, path)
	}
	i := h.root
	i.IncRef()
	for _, s := range strings.FieldsFunc(path, func(c rune) bool { return c == '/' }) {
		next, err := i.Lookup(s)
		i.DecRef()
		if err != nil {
			return nil, err
		}
		i = next
	}
	return i, nil
}

// with calls fn with the inode of a path.
func (h *History) with(path string, fn func(i *blobfs.Inode) error) error {
	i, err := h.look(path)
	if err != nil {
		return err
	}
	defer i.DecRef()
	return fn(i)
}

// withDir calls fn with the directory of a path and the name in it.
func (h *History) withDir(path string, fn func(dir *blobfs.Inode, name string) error) error {
	d, name := splitPath(path)
	return h.with(d, func(dir *blobfs.Inode) error { return fn(dir, name) })
}

// keep gives an open file its name.
func (h *History) keep(name string, i *blobfs.Inode) {
	if old := h.open[name]; old != nil {
		old.DecRef()
	}
	h.open[name] = i
}

// real carries the operation out on the file system.
func (h *History) real(n int, o *Op) error {
	switch o.Kind {
	case "creat", "mkdir", "symlink":
		spec := blobfs.NewInode{Mode: map[string]uint32{
			"creat": blobfs.ModeRegular | 0o644, "mkdir": blobfs.ModeDir | 0o755, "symlink": blobfs.ModeSymlink | 0o777,
		}[o.Kind], Target: o.Path2}
		return h.withDir(o.Path, func(dir *blobfs.Inode, name string) error {
			i, err := dir.Create(name, spec)
			if err == nil {
				i.DecRef()
			}
			return err
		})
	case "link":
		return h.with(o.Path, func(i *blobfs.Inode) error {
			return h.withDir(o.Path2, func(dir *blobfs.Inode, name string) error { return dir.Link(name, i) })
		})
	case "rename", "exchange":
		flags := blobfs.RenameFlags(0)
		if o.Kind == "exchange" {
			flags = blobfs.RenameExchange
		}
		return h.withDir(o.Path, func(dir *blobfs.Inode, name string) error {
			return h.withDir(o.Path2, func(dir2 *blobfs.Inode, name2 string) error {
				return h.fs.Rename(dir, name, dir2, name2, flags)
			})
		})
	case "unlink":
		return h.withDir(o.Path, func(dir *blobfs.Inode, name string) error { return dir.Unlink(name, nil) })
	case "rmdir":
		return h.withDir(o.Path, func(dir *blobfs.Inode, name string) error { return dir.Rmdir(name, nil) })
	case "open":
		i, err := h.look(o.Path2)
		if err == nil {
			h.keep(o.Path, i)
		}
		return err
	case "tmpfile":
		i, err := h.root.CreateUnlinked(blobfs.NewInode{Mode: blobfs.ModeRegular | 0o600})
		if err == nil {
			h.keep(o.Path, i)
		}
		return err
	case "close":
		if i := h.open[o.Path]; i != nil {
			i.DecRef()
			delete(h.open, o.Path)
		}
		return nil
	case "sync":
		return h.fs.Sync(nil)
	case "ack":
		return nil
	case "resize":
		return h.fs.Grow(o.Len)
	case "discard":
		return h.fs.Discard()
	}
	return h.with(o.Path, func(i *blobfs.Inode) error { return h.realFile(n, o, i) })
}

func (h *History) realFile(n int, o *Op, i *blobfs.Inode) error {
	var flags blobfs.IOFlags
	for bit, to := range map[Flags]blobfs.IOFlags{Direct: blobfs.IODirect, DSync: blobfs.IODSync, Sync: blobfs.IOSync} {
		if o.Flags&bit != 0 {
			flags |= to
		}
	}
	keep := blobfs.FallocateMode(0)
	if o.Flags&KeepSize != 0 {
		keep = blobfs.FallocKeepSize
	}
	switch o.Kind {
	case "write":
		return wrote(o)(i.WriteAt(&source{o.payload(n, o.Off)}, o.Off, o.Len, flags))
	case "append":
		_, done, err := i.Append(&source{o.payload(n, i.Size())}, o.Len, flags)
		return wrote(o)(done, err)
	case "store":
		return h.store(n, o, i)
	case "truncate":
		return i.Truncate(o.Len)
	case "falloc":
		return i.Fallocate(keep, o.Off, o.Len)
	case "punch":
		return i.Fallocate(blobfs.FallocPunchHole|blobfs.FallocKeepSize, o.Off, o.Len)
	case "zero":
		return i.Fallocate(blobfs.FallocZeroRange|keep, o.Off, o.Len)
	case "collapse":
		return i.Collapse(o.Off, o.Len)
	case "insert":
		return i.Insert(o.Off, o.Len)
	case "clone", "dedupe":
		return h.with(o.Path2, func(src *blobfs.Inode) error { return remap(o, i, src) })
	case "setxattr":
		return i.SetXattr(o.Path2, []byte(xattrValue(o, n)), 0)
	case "rmxattr":
		return i.RemoveXattr(o.Path2)
	case "chmod":
		return i.SetAttr(blobfs.AttrMode, &blobfs.Attr{Mode: uint32(o.Len)})
	case "fsync", "msync":
		return i.Fsync(nil, false)
	case "fdatasync":
		return i.Fsync(nil, true)
	}
	return fmt.Errorf("unknown operation %q", o.Kind)
}

func wrote(o *Op) func(int64, error) error {
	return func(done int64, err error) error {
		if err == nil && done != o.Len {
			return fmt.Errorf("%d bytes of %d written", done, o.Len)
		}
		return err
	}
}

// remap makes the files share blocks.
func remap(o *Op, dst, src *blobfs.Inode) error {
	if dst == src {
		return fmt.Errorf("%w: one file", errModel)
	}
	if o.Kind == "clone" {
		return dst.CloneRange(src, o.Off, o.Off, o.Len)
	}
	done, err := dst.DedupeRange(src, o.Off, o.Off, o.Len)
	if err == nil && done != o.Len {
		return fmt.Errorf("%d bytes of %d deduplicated", done, o.Len)
	}
	return err
}

// store writes through a mapping.
func (h *History) store(n int, o *Op, i *blobfs.Inode) error {
	if o.Off+o.Len > i.Size() {
		return blobfs.ErrBeyondEOF
	}
	i.SetInvalidator(func(int64, int64) {
		h.mapsMu.Lock() // until the store under way is done
		defer h.mapsMu.Unlock()
	})
	b, off := o.payload(n, o.Off), o.Off
	for len(b) > 0 {
		h.mapsMu.Lock()
		run, err := i.Fault(off&^(pageBytes-1), pageBytes, true)
		if err != nil {
			h.mapsMu.Unlock()
			return err
		}
		mem := h.arena.Bytes()[run.ArenaOffset : run.ArenaOffset+pageBytes]
		done := copy(mem[off%pageBytes:], b)
		h.mapsMu.Unlock()
		b, off = b[done:], off+int64(done)
	}
	return nil
}

// observe asks the file system for the time that the operation gave a file.
func (h *History) observe(st *step) error {
	switch st.Op.Kind {
	case "write", "append", "store", "truncate", "falloc", "punch", "zero", "clone", "collapse", "insert", "chmod", "creat", "tmpfile", "fsync", "fdatasync", "msync":
		return h.with(st.Op.Path, func(i *blobfs.Inode) error {
			if a := i.Attr(); a.Mode&blobfs.ModeTypeMask == blobfs.ModeRegular {
				st.Mtime = a.Mtime
			}
			return nil
		})
	}
	return nil
}

// noteTime gives the present version of the file its time. A sync that has
// noticed stores through mappings makes a version of its own.
func (h *History) noteTime(st *step) {
	n, err := h.model.find(st.Op.Path)
	if err != nil || n.file == nil {
		return
	}
	if v := n.file.last(); v.mtime != st.Mtime {
		if v.op != h.model.op {
			v = n.file.next(h.model.op)
		}
		v.mtime = st.Mtime
	}
}

// promise notes what is durable from the point at which the operation returned.
func (h *History) promise(o *Op, point int) {
	names := func(n int) { h.marks = append(h.marks, nameMark{point, n}) }
	switch {
	case o.Kind == "sync":
		names(len(h.model.names) - 1)
		for _, f := range h.model.files() {
			f.marks = append(f.marks, dataMark{point: point, version: len(f.versions) - 1, whole: true, attrs: true})
		}
	case o.Kind == "resize":
		h.grown = append(h.grown, at{point, int(o.Len / pageBytes)})
	case o.Kind == "ack":
		h.acks = append(h.acks, at{point, int(o.Len)})
	case o.Kind == "fsync", o.Kind == "msync", o.Kind == "fdatasync", o.Flags&(Sync|DSync) != 0:
		n, err := h.model.find(o.Path)
		if err != nil {
			return
		}
		names(n.lastName)
		if n.file == nil {
			return
		}
		m := dataMark{point: point, version: len(n.file.versions) - 1, whole: true}
		m.attrs = o.Kind != "fdatasync" && o.Flags&DSync == 0
		if o.Flags&DSync != 0 {
			m.whole, m.off, m.end = false, o.Off, o.Off+o.Len
			if o.Kind == "append" {
				m.off, m.end = n.file.last().size-o.Len, n.file.last().size
			}
		}
		n.file.marks = append(n.file.marks, m)
	}
}

// files lists all files that have a name or are open.
func (m *model) files() []*mfile {
	seen := map[*mfile]bool{}
	for _, f := range m.names[len(m.names)-1].files {
		seen[f] = true
	}
	for _, n := range m.handles {
		if n.file != nil {
			seen[n.file] = true
		}
	}
	var all []*mfile
	for f := range seen {
		all = append(all, f)
	}
	return all
}

// release gives up all references.
func (h *History) release() {
	for name, i := range h.open {
		i.SetInvalidator(nil)
		i.DecRef()
		delete(h.open, name)
	}
	h.root.DecRef()
}

type source struct{ b []byte }

func (s *source) CopyIn(b []byte) (int, error) {
	n := copy(b, s.b)
	s.b = s.b[n:]
	return n, nil
}
