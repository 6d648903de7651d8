package sentry

import (
	"strings"
	"sync"
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
)

// dentry implements vfs.DentryImpl: one name in the tree. A dentry without an
// inode is a negative entry: its name is known not to exist.
type dentry struct {
	vfsd vfs.Dentry

	// refs counts the references of VFS, one for each child dentry, and one of
	// the tree itself as long as the dentry can be reached by a path. Zero is
	// final: only dentries that no path walk can find get there.
	refs atomic.Int64

	fs    *filesystem // immutable
	inode *inode      // immutable; nil for a negative entry
	dir   *directory  // immutable; nil unless the inode is a directory

	// parent changes only with renameMu held for writing, in renames. It stays
	// set after removal, so that deleted files keep a path. It is nil for the
	// root.
	parent atomic.Pointer[dentry]
	// name is guarded by ancestryMu.
	name string

	// deleted is set when the name goes away, under the parent's opMu or with
	// renameMu held for writing.
	deleted atomic.Bool

	cacheEntry
}

// directory is what the dentry of a directory has beyond others.
type directory struct {
	// opMu is held for writing by everything that adds or removes names, and
	// for reading while a name is looked up on the volume.
	opMu sync.RWMutex

	// childrenMu lets a walk find children while an operation holds opMu.
	childrenMu sync.RWMutex
	children   map[string]*dentry
}

// newDentry returns a dentry for i, which may be nil, holding the reference of
// the tree. It takes over the caller's reference on i.
func (fs *filesystem) newDentry(i *inode, parent *dentry, name string) *dentry {
	d := &dentry{fs: fs, inode: i, name: name}
	if i != nil && i.isDir() {
		d.dir = &directory{}
	}
	if parent != nil {
		parent.refs.Add(1)
		d.parent.Store(parent)
	}
	d.refs.Store(1)
	d.vfsd.Init(d)
	return d
}

// IncRef implements vfs.DentryImpl.IncRef.
func (d *dentry) IncRef() {
	if d.refs.Add(1) <= 1 {
		panic("sentry: reference taken on a dead dentry")
	}
}

// TryIncRef implements vfs.DentryImpl.TryIncRef.
func (d *dentry) TryIncRef() bool {
	for {
		n := d.refs.Load()
		if n <= 0 {
			return false
		}
		if d.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// DecRef implements vfs.DentryImpl.DecRef. Dropping the last reference of a
// deleted file frees the file, so the caller must not hold locks of this
// package then.
func (d *dentry) DecRef(ctx context.Context) {
	for d != nil {
		switch n := d.refs.Add(-1); {
		case n > 0:
			return
		case n < 0:
			panic("sentry: reference dropped twice on a dentry")
		}
		if d.inode != nil {
			d.fs.putInode(ctx, d.inode)
		}
		d = d.parent.Load()
	}
}

// InotifyWithParent implements vfs.DentryImpl.InotifyWithParent.
func (d *dentry) InotifyWithParent(ctx context.Context, events, cookie uint32, et vfs.EventType) {
	parent := d.parent.Load()
	// Nearly every read and write comes here, and nearly no file is watched.
	if !d.inode.watched.Load() && (parent == nil || !parent.inode.watched.Load()) {
		return
	}
	if d.dir != nil {
		events |= linux.IN_ISDIR
	}
	deleted := d.deleted.Load()
	d.fs.ancestryMu.RLock()
	parent, name := d.parent.Load(), d.name
	d.fs.ancestryMu.RUnlock()
	// Linux notifies the parent first.
	if parent != nil {
		parent.inode.watches.Notify(ctx, name, events, cookie, et, deleted)
	}
	d.inode.watches.Notify(ctx, "", events, cookie, et, deleted)
}

// Watches implements vfs.DentryImpl.Watches.
func (d *dentry) Watches() *vfs.Watches {
	d.inode.watched.Store(true)
	return &d.inode.watches
}

// OnZeroWatches implements vfs.DentryImpl.OnZeroWatches. A watched dentry
// stays in the tree and is found evictable by the next pass over the cache.
func (d *dentry) OnZeroWatches(context.Context) {}

// cachedChild returns the child called name as far as memory knows, and
// whether it knows. A nil child is known not to exist.
//
// Preconditions: renameMu is held.
func (d *dentry) cachedChild(name string) (child *dentry, known bool) {
	d.dir.childrenMu.RLock()
	child, known = d.dir.children[name]
	d.dir.childrenMu.RUnlock()
	if !known {
		return nil, false
	}
	child.touch()
	if child.inode == nil {
		return nil, true
	}
	return child, true
}

// child returns the child called name, reading it from the volume if need be.
// It returns ENOENT if there is none.
//
// Preconditions: renameMu is held, d is a directory, d.dir.opMu is not held.
func (d *dentry) child(name string) (*dentry, error) {
	if child, known := d.cachedChild(name); known {
		if child == nil {
			return nil, linuxerr.ENOENT
		}
		return child, nil
	}
	d.dir.opMu.RLock()
	defer d.dir.opMu.RUnlock()
	return d.childLocked(name)
}

// childLocked is child for callers that keep names from changing.
//
// Preconditions: renameMu is held for writing, or for reading and d.dir.opMu
// in any mode.
func (d *dentry) childLocked(name string) (*dentry, error) {
	if len(name) > linux.NAME_MAX {
		return nil, linuxerr.ENAMETOOLONG
	}
	child, known := d.cachedChild(name)
	if !known {
		blob, err := d.inode.blob.Lookup(name)
		switch {
		case err == nil:
			child = d.insertChild(d.fs.getInode(blob), name)
		case isNotExist(err):
			if !d.deleted.Load() {
				d.insertChild(nil, name)
			}
		default:
			return nil, errno(err)
		}
	}
	if child == nil {
		return nil, linuxerr.ENOENT
	}
	return child, nil
}

// insertChild puts a dentry for i into the tree, or returns the one that
// another walk has put there first. A negative entry in the way is replaced. It
// takes over the caller's reference on i.
//
// Preconditions: as for childLocked; with a nil i, name must not be cached as
// an existing file.
func (d *dentry) insertChild(i *inode, name string) *dentry {
	name = strings.Clone(name)
	d.dir.childrenMu.Lock()
	old := d.dir.children[name]
	if old != nil && (old.inode != nil || i == nil) {
		d.dir.childrenMu.Unlock()
		if i != nil {
			d.fs.putInode(nil, i)
		}
		return old
	}
	child := d.fs.newDentry(i, d, name)
	if d.dir.children == nil {
		d.dir.children = make(map[string]*dentry)
	}
	d.dir.children[name] = child
	d.dir.childrenMu.Unlock()
	if old != nil {
		d.fs.cache.remove(old)
		d.refs.Add(-1) // of the negative entry, which nothing else refers to
	}
	d.fs.cache.add(child)
	return child
}

// forgetChild drops what is cached under name, if that is a negative entry.
//
// Preconditions: as for childLocked, for writing.
func (d *dentry) forgetNegative(name string) {
	d.dir.childrenMu.Lock()
	old := d.dir.children[name]
	if old == nil || old.inode != nil {
		d.dir.childrenMu.Unlock()
		return
	}
	delete(d.dir.children, name)
	d.dir.childrenMu.Unlock()
	d.fs.cache.remove(old)
	d.refs.Add(-1)
}

// detachChild takes child, whose name has gone from the volume, out of the
// tree. The reference of the tree passes to the caller, who drops it after
// filesystem.quiesce.
//
// Preconditions: as for childLocked, for writing.
func (d *dentry) detachChild(child *dentry, name string) {
	d.dir.childrenMu.Lock()
	delete(d.dir.children, name)
	d.dir.childrenMu.Unlock()
	child.deleted.Store(true)
	d.fs.cache.remove(child)
}

func (d *dentry) isDir() bool { return d.dir != nil }

// parentOrSelf returns the parent, or d if d is the root.
func (d *dentry) parentOrSelf() *dentry {
	if p := d.parent.Load(); p != nil {
		return p
	}
	return d
}
