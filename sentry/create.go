package sentry

import (
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/socket/unix/transport"
	"gvisor.dev/gvisor/pkg/sentry/vfs"

	"runsc-fs/blobfs"
	"runsc-fs/blobfs/format"
)

// newInode describes a file that creds make in directory d, with what it
// inherits: access control lists, and the group and the set-group-ID bit as in
// Linux's inode_init_owner.
func (d *dentry) newInode(ctx context.Context, creds *auth.Credentials, mode linux.FileMode) (blobfs.NewInode, error) {
	var list accessList
	if mode.FileType() != linux.S_IFLNK {
		var err error
		if list, err = d.inode.list(format.XattrDefaultACL); err != nil {
			return blobfs.NewInode{}, err
		}
	}
	if list == nil {
		return d.inherit(creds, mode), nil
	}
	mode = withoutUmask(ctx, mode)
	n := d.inherit(creds, mode)
	access := list.inherited(n.Mode)
	perm, equal := access.mode()
	n.Mode = n.Mode&^0777 | perm
	if !equal {
		n.Xattrs = append(n.Xattrs, blobfs.Xattr{Name: format.XattrAccessACL, Value: format.EncodeACL(access)})
	}
	if mode.IsDir() {
		n.Xattrs = append(n.Xattrs, blobfs.Xattr{Name: format.XattrDefaultACL, Value: format.EncodeACL(list)})
	}
	return n, nil
}

// inherit describes a file without access control lists.
func (d *dentry) inherit(creds *auth.Credentials, mode linux.FileMode) blobfs.NewInode {
	n := blobfs.NewInode{
		Mode:  uint32(mode),
		UID:   uint32(creds.EffectiveKUID),
		GID:   uint32(creds.EffectiveKGID),
		Flags: d.inode.flags.Load() & inheritedFlags,
	}
	if d.inode.has(blobfs.FlagProjectInherit) {
		n.ProjectID = d.inode.blob.Attr().ProjectID
		if mode.IsDir() {
			n.Flags |= blobfs.FlagProjectInherit
		}
	}
	if d.inode.mode.Load()&linux.S_ISGID == 0 {
		return n
	}
	n.GID = d.inode.gid.Load()
	const execByGroup = linux.S_ISGID | linux.ModeGroupExec
	switch {
	case mode.IsDir():
		n.Mode |= linux.S_ISGID
	case n.Mode&execByGroup == execByGroup &&
		!creds.InGroup(auth.KGID(n.GID)) &&
		!creds.HasCapabilityOnFile(linux.CAP_FSETID, d.inode.kuid(), d.inode.kgid()):
		n.Mode &^= linux.S_ISGID
	}
	return n
}

// creation is what createAt has to do.
type creation struct {
	dir bool // a directory is made
	// check, if not nil, makes checks that precede those of permissions.
	check func() error
	// create makes the file called name in parent, whose opMu is held for
	// writing, and returns its inode with a reference for the new dentry.
	create func(parent *dentry, name string) (*inode, error)
}

// createAt checks that a file may be made at rp and has c make it.
//
// Preconditions: !rp.Done(); the final symbolic link is not followed.
func (fs *filesystem) createAt(ctx context.Context, rp *vfs.ResolvingPath, c creation) error {
	return fs.settleNames(fs.createNow(ctx, rp, c))
}

func (fs *filesystem) createNow(ctx context.Context, rp *vfs.ResolvingPath, c creation) error {
	fs.beginWalk()
	defer fs.endWalk(ctx)
	parent, err := fs.walkParent(ctx, rp, rp.Start().Impl().(*dentry))
	if err != nil {
		return err
	}
	if err := parent.inode.checkPermissions(rp.Credentials(), vfs.MayExec); err != nil {
		return err
	}
	name := rp.Component()
	if name == "." || name == ".." {
		return linuxerr.EEXIST
	}
	parent.dir.opMu.Lock()
	defer parent.dir.opMu.Unlock()
	mnt := rp.Mount()
	err = mnt.CheckBeginWrite()
	if err == nil {
		defer mnt.EndWrite()
		if c.check != nil {
			err = c.check()
		}
	}
	if !c.dir && rp.MustBeDir() {
		err = linuxerr.ENOENT
	}
	err = parent.mayCreate(rp, name, err)
	var i *inode
	if err == nil {
		i, err = c.create(parent, name)
	}
	if err != nil {
		// Whatever else is wrong, an existing file is reported first.
		if _, lookupErr := parent.childLocked(name); lookupErr == nil {
			return linuxerr.EEXIST
		}
		return err
	}
	parent.insertChild(i, name)
	ev := uint32(linux.IN_CREATE)
	if c.dir {
		ev |= linux.IN_ISDIR
	}
	parent.notify(ctx, name, ev, vfs.InodeEvent)
	return nil
}

// mayCreate checks everything about making name in d that the volume does not
// check itself. otherErr is an objection that counts more than missing
// permissions.
//
// Preconditions: d.dir.opMu is held for writing.
func (d *dentry) mayCreate(rp *vfs.ResolvingPath, name string, otherErr error) error {
	if len(name) > linux.NAME_MAX {
		return linuxerr.ENAMETOOLONG
	}
	if child, known := d.cachedChild(name); known && child != nil {
		return linuxerr.EEXIST
	}
	if d.deleted.Load() {
		return linuxerr.ENOENT
	}
	if otherErr != nil {
		return otherErr
	}
	return d.inode.checkPermissions(rp.Credentials(), vfs.MayWrite)
}

// notify tells the watches of directory d about its entry name.
func (d *dentry) notify(ctx context.Context, name string, events uint32, et vfs.EventType) {
	if d.inode.watched.Load() {
		d.inode.watches.Notify(ctx, name, events, 0, et, false /* unlinked */)
	}
}

// create makes a file in d on the volume and returns its inode.
//
// Preconditions: d.dir.opMu is held for writing, or the file has no name yet.
func (d *dentry) create(name string, n blobfs.NewInode) (*inode, error) {
	blob, err := d.inode.blob.Create(name, n)
	if err != nil {
		return nil, errno(err)
	}
	return d.fs.newInodeFor(blob, &n), nil
}

// newInodeFor returns the inode of a file that has just been made.
func (fs *filesystem) newInodeFor(blob *blobfs.Inode, n *blobfs.NewInode) *inode {
	i := fs.getInode(blob)
	i.noFileCaps.Store(true)
	if len(n.Xattrs) == 0 {
		i.accessACL.CompareAndSwap(nil, noList)
		i.defaultACL.CompareAndSwap(nil, noList)
	}
	return i
}

// MkdirAt implements vfs.FilesystemImpl.MkdirAt.
func (fs *filesystem) MkdirAt(ctx context.Context, rp *vfs.ResolvingPath, opts vfs.MkdirOptions) error {
	return fs.createAt(ctx, rp, creation{dir: true, create: func(parent *dentry, name string) (*inode, error) {
		n, err := parent.newInode(ctx, rp.Credentials(), linux.S_IFDIR|opts.Mode)
		if err != nil {
			return nil, err
		}
		return parent.create(name, n)
	}})
}

// MknodAt implements vfs.FilesystemImpl.MknodAt.
func (fs *filesystem) MknodAt(ctx context.Context, rp *vfs.ResolvingPath, opts vfs.MknodOptions) error {
	return fs.createAt(ctx, rp, creation{create: func(parent *dentry, name string) (*inode, error) {
		n, err := parent.newInode(ctx, rp.Credentials(), opts.Mode)
		if err != nil {
			return nil, err
		}
		switch opts.Mode.FileType() {
		case linux.S_IFREG, linux.S_IFIFO, linux.S_IFSOCK:
		case linux.S_IFCHR, linux.S_IFBLK:
			if opts.DevMajor > maxDevMajor || opts.DevMinor > maxDevMinor {
				return nil, linuxerr.EINVAL
			}
			n.Rdev = uint64(linux.MakeDeviceID(uint16(opts.DevMajor), opts.DevMinor))
		default:
			return nil, linuxerr.EINVAL
		}
		i, err := parent.create(name, n)
		if err == nil && opts.Endpoint != nil {
			i.specialMu.Lock()
			i.endpoint = opts.Endpoint
			i.specialMu.Unlock()
		}
		return i, err
	}})
}

// What st_rdev has room for.
const (
	maxDevMajor = 1<<12 - 1
	maxDevMinor = 1<<20 - 1
)

// SymlinkAt implements vfs.FilesystemImpl.SymlinkAt.
func (fs *filesystem) SymlinkAt(ctx context.Context, rp *vfs.ResolvingPath, target string) error {
	return fs.createAt(ctx, rp, creation{create: func(parent *dentry, name string) (*inode, error) {
		if len(target) > blobfs.MaxSymlinkBytes {
			return nil, linuxerr.ENAMETOOLONG
		}
		n, err := parent.newInode(ctx, rp.Credentials(), linux.S_IFLNK|0777)
		if err != nil {
			return nil, err
		}
		n.Target = target
		return parent.create(name, n)
	}})
}

// LinkAt implements vfs.FilesystemImpl.LinkAt.
func (fs *filesystem) LinkAt(ctx context.Context, rp *vfs.ResolvingPath, vd vfs.VirtualDentry) error {
	check := func() error {
		if rp.Mount() != vd.Mount() {
			return linuxerr.EXDEV
		}
		i := vd.Dentry().Impl().(*dentry).inode
		mode, err := i.modeFor(rp.Credentials(), vfs.MayRead|vfs.MayWrite)
		if err != nil {
			return err
		}
		return vfs.MayLink(rp.Credentials(), mode, i.kuid(), i.kgid())
	}
	return fs.createAt(ctx, rp, creation{check: check, create: func(parent *dentry, name string) (*inode, error) {
		i := vd.Dentry().Impl().(*dentry).inode
		if i.isDir() || i.has(immutableFlag|appendFlag) {
			return nil, linuxerr.EPERM
		}
		if !parent.inode.mayHoldProjectOf(i) {
			return nil, linuxerr.EXDEV
		}
		if i.blob.Attr().Nlink == 0 && !i.linkable.Load() {
			return nil, linuxerr.ENOENT
		}
		if err := parent.inode.blob.Link(name, i.blob); err != nil {
			return nil, errno(err)
		}
		i.linkable.Store(false) // from now on it is a file like any other
		if i.watched.Load() {
			i.watches.Notify(ctx, "", linux.IN_ATTRIB, 0, vfs.InodeEvent, false /* unlinked */)
		}
		i.incRef()
		return i, nil
	}})
}

// BoundEndpointAt implements vfs.FilesystemImpl.BoundEndpointAt.
func (fs *filesystem) BoundEndpointAt(ctx context.Context, rp *vfs.ResolvingPath, opts vfs.BoundEndpointOptions) (transport.BoundEndpoint, error) {
	fs.beginWalk()
	defer fs.endWalk(ctx)
	d, err := fs.resolve(ctx, rp)
	if err != nil {
		return nil, err
	}
	if err := d.inode.checkPermissions(rp.Credentials(), vfs.MayWrite); err != nil {
		return nil, err
	}
	d.inode.specialMu.Lock()
	defer d.inode.specialMu.Unlock()
	if d.inode.endpoint == nil {
		return nil, linuxerr.ECONNREFUSED
	}
	return d.inode.endpoint, nil
}
