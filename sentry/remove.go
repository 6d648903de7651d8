package sentry

import (
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/refs"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
)

// removed is what an operation that took names away leaves to be dropped when
// no locks are held.
type removed struct {
	dentry *dentry           // out of the tree, with the reference of the tree
	mounts []refs.RefCounter // of mounts that were on it
}

// drop gives the file back once no operation can still be looking at it.
//
// Preconditions: no locks are held.
func (r *removed) drop(ctx context.Context, fs *filesystem) {
	if r.dentry == nil {
		return
	}
	fs.quiesce()
	r.dentry.DecRef(ctx)
	for _, rc := range r.mounts {
		rc.DecRef(ctx)
	}
}

// RmdirAt implements vfs.FilesystemImpl.RmdirAt.
func (fs *filesystem) RmdirAt(ctx context.Context, rp *vfs.ResolvingPath) error {
	var gone removed
	err := fs.rmdirAt(ctx, rp, &gone)
	gone.drop(ctx, fs)
	return fs.settleNames(err)
}

func (fs *filesystem) rmdirAt(ctx context.Context, rp *vfs.ResolvingPath, gone *removed) error {
	fs.beginWalk()
	defer fs.endWalk(ctx)
	parent, err := fs.walkParent(ctx, rp, rp.Start().Impl().(*dentry))
	if err != nil {
		return err
	}
	creds := rp.Credentials()
	if err := parent.inode.checkPermissions(creds, vfs.MayExec); err != nil {
		return err
	}
	name := rp.Component()
	switch name {
	case ".":
		return linuxerr.EINVAL
	case "..":
		return linuxerr.ENOTEMPTY
	}
	mnt := rp.Mount()
	if err := mnt.CheckBeginWrite(); err != nil {
		return err
	}
	defer mnt.EndWrite()
	parent.dir.opMu.Lock()
	defer parent.dir.opMu.Unlock()
	child, err := parent.childLocked(name)
	if err != nil {
		return err
	}
	if err := parent.mayRemove(rp, child); err != nil {
		return err
	}
	if !child.isDir() {
		return linuxerr.ENOTDIR
	}
	vfsObj := rp.VirtualFilesystem()
	if err := prepareDelete(ctx, vfsObj, child); err != nil {
		return err
	}
	// No name may appear in the directory while it goes.
	child.dir.opMu.Lock()
	err = parent.inode.blob.Rmdir(name, child.inode.blob)
	if err != nil {
		child.dir.opMu.Unlock()
		vfsObj.AbortDeleteDentry(&child.vfsd)
		return errno(err)
	}
	parent.detachChild(child, name)
	child.dir.opMu.Unlock()
	child.dropNegatives()
	if parent.inode.watched.Load() {
		parent.inode.watches.Notify(ctx, name, linux.IN_DELETE|linux.IN_ISDIR, 0, vfs.InodeEvent, true /* unlinked */)
	}
	gone.dentry = child
	gone.mounts = vfsObj.CommitDeleteDentry(ctx, &child.vfsd)
	return nil
}

// UnlinkAt implements vfs.FilesystemImpl.UnlinkAt.
func (fs *filesystem) UnlinkAt(ctx context.Context, rp *vfs.ResolvingPath) error {
	var gone removed
	err := fs.unlinkAt(ctx, rp, &gone)
	gone.drop(ctx, fs)
	return fs.settleNames(err)
}

func (fs *filesystem) unlinkAt(ctx context.Context, rp *vfs.ResolvingPath, gone *removed) error {
	fs.beginWalk()
	defer fs.endWalk(ctx)
	parent, err := fs.walkParent(ctx, rp, rp.Start().Impl().(*dentry))
	if err != nil {
		return err
	}
	creds := rp.Credentials()
	if err := parent.inode.checkPermissions(creds, vfs.MayExec); err != nil {
		return err
	}
	name := rp.Component()
	if name == "." || name == ".." {
		return linuxerr.EISDIR
	}
	mnt := rp.Mount()
	if err := mnt.CheckBeginWrite(); err != nil {
		return err
	}
	defer mnt.EndWrite()
	parent.dir.opMu.Lock()
	defer parent.dir.opMu.Unlock()
	child, err := parent.childLocked(name)
	if err != nil {
		return err
	}
	if rp.MustBeDir() {
		if child.isDir() {
			return linuxerr.EISDIR
		}
		return linuxerr.ENOTDIR
	}
	if err := parent.mayRemove(rp, child); err != nil {
		return err
	}
	if child.isDir() {
		return linuxerr.EISDIR
	}
	vfsObj := rp.VirtualFilesystem()
	if err := prepareDelete(ctx, vfsObj, child); err != nil {
		return err
	}
	if err := parent.inode.blob.Unlink(name, child.inode.blob); err != nil {
		vfsObj.AbortDeleteDentry(&child.vfsd)
		return errno(err)
	}
	parent.detachChild(child, name)
	if child.inode.watched.Load() || parent.inode.watched.Load() {
		vfs.InotifyRemoveChild(ctx, &child.inode.watches, &parent.inode.watches, name)
	}
	gone.dentry = child
	gone.mounts = vfsObj.CommitDeleteDentry(ctx, &child.vfsd)
	return nil
}

// mayRemove checks that child may be taken out of directory d.
func (d *dentry) mayRemove(rp *vfs.ResolvingPath, child *dentry) error {
	creds := rp.Credentials()
	if err := d.inode.checkPermissions(creds, vfs.MayWrite); err != nil {
		return err
	}
	if d.inode.has(appendFlag) || child.inode.has(immutableFlag|appendFlag) {
		return linuxerr.EPERM
	}
	return d.inode.mayDelete(creds, child.inode)
}

// dropNegatives forgets the names that are known not to exist in a directory
// that is gone, and which would keep it in memory.
func (d *dentry) dropNegatives() {
	d.dir.childrenMu.Lock()
	children := d.dir.children
	d.dir.children = nil
	d.dir.childrenMu.Unlock()
	for _, child := range children {
		d.fs.cache.remove(child)
		d.refs.Add(-1)
	}
}

// prepareDelete refuses the removal of mount points.
func prepareDelete(ctx context.Context, vfsObj *vfs.VirtualFilesystem, d *dentry) error {
	mntns := vfs.MountNamespaceFromContext(ctx)
	defer mntns.DecRef(ctx)
	return vfsObj.PrepareDeleteDentry(mntns, &d.vfsd)
}
