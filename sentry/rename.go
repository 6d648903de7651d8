package sentry

import (
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/sentry/vfs"

	"runsc-fs/blobfs"
)

const renameFlags = linux.RENAME_NOREPLACE | linux.RENAME_EXCHANGE | linux.RENAME_WHITEOUT

// RenameAt implements vfs.FilesystemImpl.RenameAt.
func (fs *filesystem) RenameAt(ctx context.Context, rp *vfs.ResolvingPath, oldParentVD vfs.VirtualDentry, oldName string, opts vfs.RenameOptions) error {
	var gone removed
	err := fs.renameAt(ctx, rp, oldParentVD, oldName, opts, &gone)
	gone.drop(ctx, fs)
	if fs.cache.overfull() {
		fs.shrink(ctx)
	}
	return fs.settleNames(err)
}

func (fs *filesystem) renameAt(ctx context.Context, rp *vfs.ResolvingPath, oldParentVD vfs.VirtualDentry, oldName string, opts vfs.RenameOptions, gone *removed) error {
	// Held for writing, renameMu stands for the opMu of all directories.
	fs.renameMu.Lock()
	defer fs.renameMu.Unlock()
	newParent, err := fs.walkParent(ctx, rp, rp.Start().Impl().(*dentry))
	if err != nil {
		return err
	}
	if err := newParent.inode.checkPermissions(rp.Credentials(), vfs.MayExec); err != nil {
		return err
	}
	flags := opts.Flags
	exchange := flags&linux.RENAME_EXCHANGE != 0
	if flags&^renameFlags != 0 || (exchange && flags&^linux.RENAME_EXCHANGE != 0) {
		return linuxerr.EINVAL
	}
	if flags&linux.RENAME_WHITEOUT != 0 && !rp.Credentials().HasSelfCapability(linux.CAP_MKNOD) {
		return linuxerr.EPERM
	}
	newName := rp.Component()
	if newName == "." || newName == ".." {
		if flags&linux.RENAME_NOREPLACE != 0 {
			return linuxerr.EEXIST
		}
		return linuxerr.EBUSY
	}
	mnt := rp.Mount()
	if mnt != oldParentVD.Mount() {
		return linuxerr.EXDEV
	}
	if err := mnt.CheckBeginWrite(); err != nil {
		return err
	}
	defer mnt.EndWrite()

	r := rename{
		rp:        rp,
		opts:      opts,
		oldParent: oldParentVD.Dentry().Impl().(*dentry),
		newParent: newParent,
		oldName:   oldName,
		newName:   newName,
		exchange:  exchange,
	}
	if same, err := r.checkLocked(); err != nil || same {
		return err
	}

	vfsObj := rp.VirtualFilesystem()
	var replacedVFSD *vfs.Dentry
	if r.replaced != nil {
		replacedVFSD = &r.replaced.vfsd
	}
	mntns := vfs.MountNamespaceFromContext(ctx)
	defer mntns.DecRef(ctx)
	if err := vfsObj.PrepareRenameDentry(mntns, &r.renamed.vfsd, replacedVFSD); err != nil {
		return err
	}
	if err := fs.blob.Rename(r.oldParent.inode.blob, oldName, newParent.inode.blob, newName, blobfs.RenameFlags(flags)); err != nil {
		vfsObj.AbortRenameDentry(&r.renamed.vfsd, replacedVFSD)
		return errno(err)
	}
	if exchange {
		r.exchangeLocked()
		vfsObj.CommitRenameExchangeDentry(&r.renamed.vfsd, replacedVFSD)
	} else {
		r.replaceLocked()
		gone.dentry = r.replaced
		gone.mounts = vfsObj.CommitRenameReplaceDentry(ctx, &r.renamed.vfsd, replacedVFSD)
	}
	r.notify(ctx)
	return nil
}

// rename is one rename under way.
type rename struct {
	rp                   *vfs.ResolvingPath
	opts                 vfs.RenameOptions
	oldParent, newParent *dentry
	oldName, newName     string
	exchange             bool

	renamed  *dentry
	replaced *dentry // nil if there is nothing at the new name
}

// checkLocked finds the files concerned and checks what is asked against the
// rules. It says whether both names are the same file already, which is success
// without an effect.
//
// Preconditions: renameMu is held for writing.
func (r *rename) checkLocked() (same bool, err error) {
	creds := r.rp.Credentials()
	if err := r.oldParent.inode.checkPermissions(creds, vfs.MayExec); err != nil {
		return false, err
	}
	if r.renamed, err = r.oldParent.childLocked(r.oldName); err != nil {
		return false, err
	}
	r.replaced, err = r.newParent.childLocked(r.newName)
	if linuxerr.Equals(linuxerr.ENOENT, err) {
		r.replaced = nil
	} else if err != nil {
		return false, err
	}
	// The order is Linux's, since more than one of these may hold.
	switch {
	case r.replaced != nil && r.opts.Flags&linux.RENAME_NOREPLACE != 0:
		return false, linuxerr.EEXIST
	case r.replaced == nil && r.exchange:
		return false, linuxerr.ENOENT
	case r.exchange && r.rp.MustBeDir() && !r.replaced.isDir():
		return false, linuxerr.ENOTDIR
	case !r.renamed.isDir() && (r.opts.MustBeDir || (r.rp.MustBeDir() && !r.exchange)):
		return false, linuxerr.ENOTDIR
	case isAncestor(r.renamed, r.newParent):
		return false, linuxerr.EINVAL
	case r.replaced != nil && isAncestor(r.replaced, r.oldParent):
		if r.exchange {
			return false, linuxerr.EINVAL
		}
		return false, linuxerr.ENOTEMPTY
	}
	// Two links to one file: POSIX wants nothing to happen.
	if r.replaced != nil && r.replaced.inode == r.renamed.inode {
		return true, nil
	}
	return false, r.mayMoveLocked()
}

// mayMoveLocked checks the permissions and types of a rename that has an
// effect.
func (r *rename) mayMoveLocked() error {
	creds := r.rp.Credentials()
	if err := r.oldParent.mayRemove(r.rp, r.renamed); err != nil {
		return err
	}
	if r.replaced == nil {
		if err := r.newParent.inode.checkPermissions(creds, vfs.MayWrite); err != nil {
			return err
		}
	} else {
		if err := r.newParent.mayRemove(r.rp, r.replaced); err != nil {
			return err
		}
		if !r.exchange {
			switch {
			case r.renamed.isDir() && !r.replaced.isDir():
				return linuxerr.ENOTDIR
			case !r.renamed.isDir() && r.replaced.isDir():
				return linuxerr.EISDIR
			}
		}
	}
	if r.newParent.deleted.Load() {
		return linuxerr.ENOENT
	}
	if !r.newParent.inode.mayHoldProjectOf(r.renamed.inode) || r.exchange && !r.oldParent.inode.mayHoldProjectOf(r.replaced.inode) {
		return linuxerr.EXDEV
	}
	if r.oldParent == r.newParent {
		return nil
	}
	// A directory that moves has its ".." changed.
	if r.renamed.isDir() {
		if err := r.renamed.inode.checkPermissions(creds, vfs.MayWrite); err != nil {
			return err
		}
	}
	if r.exchange && r.replaced.isDir() {
		return r.replaced.inode.checkPermissions(creds, vfs.MayWrite)
	}
	return nil
}

// replaceLocked carries the renamed file over to its new name in the tree.
//
// Preconditions: renameMu is held for writing; the volume has been changed.
func (r *rename) replaceLocked() {
	if r.replaced != nil {
		r.newParent.detachChild(r.replaced, r.newName)
		if r.replaced.isDir() {
			r.replaced.dropNegatives()
		}
	} else {
		r.newParent.forgetNegative(r.newName)
	}
	r.oldParent.dir.childrenMu.Lock()
	delete(r.oldParent.dir.children, r.oldName)
	r.oldParent.dir.childrenMu.Unlock()
	r.renamed.placeLocked(r.newParent, r.newName)
}

// exchangeLocked swaps the two files in the tree.
//
// Preconditions: as for replaceLocked.
func (r *rename) exchangeLocked() {
	r.renamed.placeLocked(r.newParent, r.newName)
	r.replaced.placeLocked(r.oldParent, r.oldName)
}

// placeLocked makes d the child of parent called name.
//
// Preconditions: renameMu is held for writing.
func (d *dentry) placeLocked(parent *dentry, name string) {
	fs := d.fs
	fs.ancestryMu.Lock()
	oldParent := d.parent.Load()
	if oldParent != parent {
		parent.refs.Add(1)
		d.parent.Store(parent)
	}
	d.name = name
	fs.ancestryMu.Unlock()
	parent.dir.childrenMu.Lock()
	if parent.dir.children == nil {
		parent.dir.children = make(map[string]*dentry)
	}
	parent.dir.children[name] = d
	parent.dir.childrenMu.Unlock()
	if oldParent != parent {
		oldParent.refs.Add(-1) // it is held by the operation
	}
}

func (r *rename) notify(ctx context.Context) {
	renamed, oldDir, newDir := r.renamed.inode, r.oldParent.inode, r.newParent.inode
	if renamed.watched.Load() || oldDir.watched.Load() || newDir.watched.Load() {
		vfs.InotifyRename(ctx, &renamed.watches, &oldDir.watches, &newDir.watches, r.oldName, r.newName, r.renamed.isDir())
	}
	if r.replaced == nil {
		return
	}
	other := r.replaced.inode
	if !r.exchange {
		if other.watched.Load() {
			var dirEv uint32
			if r.replaced.isDir() {
				dirEv = linux.IN_ISDIR
			}
			other.watches.Notify(ctx, "", linux.IN_ATTRIB|dirEv, 0, vfs.InodeEvent, true /* unlinked */)
		}
		return
	}
	if other.watched.Load() || oldDir.watched.Load() || newDir.watched.Load() {
		vfs.InotifyRename(ctx, &other.watches, &newDir.watches, &oldDir.watches, r.newName, r.oldName, r.replaced.isDir())
	}
}

// isAncestor says whether d is other or an ancestor of it.
//
// Preconditions: renameMu is held.
func isAncestor(d, other *dentry) bool {
	for other != nil {
		if other == d {
			return true
		}
		other = other.parent.Load()
	}
	return false
}
