package sentry

import (
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
)

// beginWalk starts an operation on the tree. Until endWalk, dentries found by
// path stay valid without references.
func (fs *filesystem) beginWalk() { fs.renameMu.RLock() }

// endWalk ends what beginWalk began.
func (fs *filesystem) endWalk(ctx context.Context) {
	fs.renameMu.RUnlock()
	if fs.cache.overfull() {
		fs.shrink(ctx)
	}
}

// quiesce returns when every operation on the tree that was under way has
// ended, so that none can still hold a dentry found by path before: nothing is
// done under the lock, waiting for it is the point.
//
// Preconditions: no locks are held.
func (fs *filesystem) quiesce() {
	fs.renameMu.Lock()
	fs.renameMu.Unlock()
}

// step resolves rp's next component from directory d. It returns the dentry to
// go on from and whether a symbolic link was followed.
//
// Preconditions: between beginWalk and endWalk; !rp.Done().
func (fs *filesystem) step(ctx context.Context, rp *vfs.ResolvingPath, d *dentry) (*dentry, bool, error) {
	if !d.isDir() {
		return nil, false, linuxerr.ENOTDIR
	}
	if err := d.inode.checkPermissions(rp.Credentials(), vfs.MayExec); err != nil {
		return nil, false, err
	}
	name := rp.Component()
	switch name {
	case ".":
		rp.Advance()
		return d, false, nil
	case "..":
		parent := d.parent.Load()
		if isRoot, err := rp.CheckRoot(ctx, &d.vfsd); err != nil {
			return nil, false, err
		} else if isRoot || parent == nil {
			rp.Advance()
			return d, false, nil
		}
		if err := rp.CheckMount(ctx, &parent.vfsd); err != nil {
			return nil, false, err
		}
		rp.Advance()
		return parent, false, nil
	}
	child, err := d.child(name)
	if err != nil {
		return nil, false, err
	}
	if err := rp.CheckMount(ctx, &child.vfsd); err != nil {
		return nil, false, err
	}
	if child.inode.isSymlink() && rp.ShouldFollowSymlink() {
		target, err := child.inode.readlink(rp.Mount())
		if err != nil {
			return nil, false, err
		}
		followed, err := rp.HandleSymlink(target)
		return d, followed, err
	}
	rp.Advance()
	return child, false, nil
}

// walkParent resolves all but the last component of rp to a directory. It does
// not check that the directory may be searched.
//
// Preconditions: between beginWalk and endWalk; !rp.Done().
func (fs *filesystem) walkParent(ctx context.Context, rp *vfs.ResolvingPath, d *dentry) (*dentry, error) {
	for !rp.Final() {
		next, _, err := fs.step(ctx, rp, d)
		if err != nil {
			return nil, err
		}
		d = next
	}
	if !d.isDir() {
		return nil, linuxerr.ENOTDIR
	}
	return d, nil
}

// resolve resolves rp to an existing file.
//
// Preconditions: between beginWalk and endWalk.
func (fs *filesystem) resolve(ctx context.Context, rp *vfs.ResolvingPath) (*dentry, error) {
	d := rp.Start().Impl().(*dentry)
	for !rp.Done() {
		next, _, err := fs.step(ctx, rp, d)
		if err != nil {
			return nil, err
		}
		d = next
	}
	if rp.MustBeDir() && !d.isDir() {
		return nil, linuxerr.ENOTDIR
	}
	return d, nil
}
