package sentry

import (
	"fmt"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/sentry/kernel/pipe"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
)

// OpenAt implements vfs.FilesystemImpl.OpenAt.
func (fs *filesystem) OpenAt(ctx context.Context, rp *vfs.ResolvingPath, opts vfs.OpenOptions) (*vfs.FileDescription, error) {
	var d *dentry
	var err error
	created := false
	switch {
	case opts.Flags&linux.O_TMPFILE != 0:
		d, err = fs.createUnlinked(ctx, rp, &opts)
		created = true
	case opts.Flags&linux.O_CREAT != 0:
		d, created, err = fs.openCreate(ctx, rp, &opts)
		if created {
			if err = fs.settleNames(nil); err != nil {
				d.DecRef(ctx)
			}
		}
	case opts.Flags&noFollowDirectory == noFollowDirectory:
		d, err = fs.resolveNoFollow(ctx, rp)
	default:
		d, err = fs.resolveRef(ctx, rp)
	}
	if err != nil {
		return nil, err
	}
	fd, err := d.open(ctx, rp, &opts, created)
	if err == nil && created && opts.Flags&linux.O_TMPFILE == 0 {
		fd.SetCreated()
	}
	d.DecRef(ctx)
	return fd, err
}

// noFollowDirectory opens a directory and nothing that a link leads to, as
// programs do that remove or copy trees while others change them.
const noFollowDirectory = linux.O_NOFOLLOW | linux.O_DIRECTORY

// resolveNoFollow is resolveRef for noFollowDirectory. VFS would follow a link at
// the end of the path, since the flag O_DIRECTORY looks to it like a slash behind
// the link. If there is a slash, a hook in VFS has taken O_NOFOLLOW away.
func (fs *filesystem) resolveNoFollow(ctx context.Context, rp *vfs.ResolvingPath) (*dentry, error) {
	fs.beginWalk()
	defer fs.endWalk(ctx)
	d := rp.Start().Impl().(*dentry)
	if !rp.Done() {
		parent, err := fs.walkParent(ctx, rp, d)
		if err != nil {
			return nil, err
		}
		var followed bool
		d, followed, err = fs.step(ctx, rp, parent)
		if followed {
			return nil, linuxerr.ENOTDIR
		}
		if err != nil {
			return nil, err
		}
	}
	if !d.isDir() {
		return nil, linuxerr.ENOTDIR
	}
	d.IncRef()
	return d, nil
}

// openCreate finds the file to open with O_CREAT, or makes it. It returns it
// with a reference, and whether it was made.
func (fs *filesystem) openCreate(ctx context.Context, rp *vfs.ResolvingPath, opts *vfs.OpenOptions) (*dentry, bool, error) {
	fs.beginWalk()
	defer fs.endWalk(ctx)
	mustCreate := opts.Flags&linux.O_EXCL != 0
	start := rp.Start().Impl().(*dentry)
	if rp.Done() {
		if rp.MustBeDir() {
			return nil, false, linuxerr.EISDIR
		}
		if mustCreate {
			return nil, false, linuxerr.EEXIST
		}
		start.IncRef()
		return start, false, nil
	}
	for {
		parent, err := fs.walkParent(ctx, rp, start)
		if err != nil {
			return nil, false, err
		}
		if err := parent.inode.checkPermissions(rp.Credentials(), vfs.MayExec); err != nil {
			return nil, false, err
		}
		name := rp.Component()
		if rp.MustBeDir() && name != "." && name != ".." {
			return nil, false, linuxerr.EISDIR
		}
		child, followed, err := fs.step(ctx, rp, parent)
		switch {
		case followed:
			if mustCreate {
				return nil, false, linuxerr.EEXIST
			}
			if err != nil {
				return nil, false, err // VFS goes on from another mount
			}
			start = parent
			continue
		case linuxerr.Equals(linuxerr.ENOENT, err):
			child, err := fs.createRegular(ctx, rp, parent, name, opts)
			if linuxerr.Equals(linuxerr.EEXIST, err) && !mustCreate {
				// Someone was faster.
				start = parent
				continue
			}
			return child, err == nil, err
		case err != nil:
			return nil, false, err
		case mustCreate:
			return nil, false, linuxerr.EEXIST
		}
		child.IncRef()
		return child, false, nil
	}
}

// createRegular makes the regular file name in parent and returns it with a
// reference.
//
// Preconditions: between beginWalk and endWalk.
func (fs *filesystem) createRegular(ctx context.Context, rp *vfs.ResolvingPath, parent *dentry, name string, opts *vfs.OpenOptions) (*dentry, error) {
	parent.dir.opMu.Lock()
	defer parent.dir.opMu.Unlock()
	mnt := rp.Mount()
	writeErr := mnt.CheckBeginWrite()
	if writeErr == nil {
		defer mnt.EndWrite()
	}
	if err := parent.mayCreate(rp, name, writeErr); err != nil {
		return nil, err
	}
	n, err := parent.newInode(ctx, rp.Credentials(), linux.S_IFREG|opts.Mode)
	if err != nil {
		return nil, err
	}
	i, err := parent.create(name, n)
	if err != nil {
		return nil, err
	}
	child := parent.insertChild(i, name)
	child.IncRef()
	parent.notify(ctx, name, linux.IN_CREATE, vfs.PathEvent)
	return child, nil
}

// createUnlinked makes a file without a name in the directory at rp, for
// O_TMPFILE, and returns it with a reference.
func (fs *filesystem) createUnlinked(ctx context.Context, rp *vfs.ResolvingPath, opts *vfs.OpenOptions) (*dentry, error) {
	fs.beginWalk()
	defer fs.endWalk(ctx)
	parent, err := fs.resolve(ctx, rp)
	if err != nil {
		return nil, err
	}
	if !parent.isDir() {
		return nil, linuxerr.ENOTDIR
	}
	mnt := rp.Mount()
	if err := mnt.CheckBeginWrite(); err != nil {
		return nil, err
	}
	defer mnt.EndWrite()
	if err := parent.inode.checkPermissions(rp.Credentials(), vfs.MayWrite|vfs.MayExec); err != nil {
		return nil, err
	}
	if parent.deleted.Load() {
		return nil, linuxerr.ENOENT
	}
	n, err := parent.newInode(ctx, rp.Credentials(), linux.S_IFREG|opts.Mode)
	if err != nil {
		return nil, err
	}
	blob, err := parent.inode.blob.CreateUnlinked(n)
	if err != nil {
		return nil, errno(err)
	}
	i := fs.newInodeFor(blob, &n)
	i.linkable.Store(opts.Flags&linux.O_EXCL == 0)
	d := fs.newDentry(i, parent, fmt.Sprintf("#%d", i.ino))
	d.deleted.Store(true)
	// The dentry is no mount point, so nothing is to be dropped.
	rp.VirtualFilesystem().InvalidateDentry(ctx, &d.vfsd)
	return d, nil
}

// open returns a description of the file at d. The caller holds a reference on
// d and no locks, since opening a FIFO may block.
func (d *dentry) open(ctx context.Context, rp *vfs.ResolvingPath, opts *vfs.OpenOptions, created bool) (*vfs.FileDescription, error) {
	i := d.inode
	ats := vfs.AccessTypesForOpenFlags(opts)
	if opts.FileExec {
		ats = vfs.MayExec // a program that is run need not be readable
	}
	// What cannot be opened so by anybody is said before who may open it.
	switch {
	case i.isSymlink():
		// O_PATH, which could open the link itself, is VFS's own.
		return nil, linuxerr.ELOOP
	case i.isDir() && (opts.Flags&linux.O_CREAT != 0 || ats.MayWrite()):
		return nil, linuxerr.EISDIR
	case i.isRegular() && opts.Flags&linux.O_TRUNC != 0 && rp.Mount().ReadOnly():
		return nil, linuxerr.EROFS
	}
	if !created {
		if err := i.checkPermissions(rp.Credentials(), ats); err != nil {
			return nil, err
		}
		if err := i.mayOpen(opts); err != nil {
			return nil, err
		}
		if opts.Flags&linux.O_NOATIME != 0 && !vfs.CanActAsOwner(rp.Credentials(), i.kuid()) {
			return nil, linuxerr.EPERM
		}
	}
	switch i.fileType() {
	case linux.S_IFREG:
		return d.openRegular(ctx, rp, opts, created)
	case linux.S_IFDIR:
		return d.openDirectory(ctx, rp, opts)
	case linux.S_IFIFO:
		return i.fifo().Open(ctx, rp.Mount(), &d.vfsd, opts.Flags, i.fileLocks(true))
	case linux.S_IFCHR, linux.S_IFBLK:
		return d.openDevice(ctx, rp, opts)
	case linux.S_IFSOCK:
		return nil, linuxerr.ENXIO
	}
	return nil, linuxerr.EUCLEAN
}

func (d *dentry) openRegular(ctx context.Context, rp *vfs.ResolvingPath, opts *vfs.OpenOptions, created bool) (*vfs.FileDescription, error) {
	i := d.inode
	mnt := rp.Mount()
	truncate := !created && opts.Flags&linux.O_TRUNC != 0
	if (truncate || vfs.MayWriteFileWithOpenFlags(opts.Flags)) && i.fs.blob.ReadOnly() {
		return nil, linuxerr.EROFS
	}
	if truncate {
		if err := mnt.CheckBeginWrite(); err != nil {
			return nil, err
		}
		defer mnt.EndWrite()
	}
	fd := &regularFD{}
	fd.init(ctx, i, mnt)
	if err := fd.vfsfd.Init(fd, opts.Flags, rp.Credentials(), mnt, &d.vfsd, &vfs.FileDescriptionOptions{AllowDirectIO: true}); err != nil {
		return nil, err
	}
	if truncate {
		if err := i.settle(i.truncate(rp.Credentials(), 0)); err != nil {
			fd.vfsfd.DecRef(ctx)
			return nil, err
		}
	}
	return &fd.vfsfd, nil
}

func (d *dentry) openDirectory(ctx context.Context, rp *vfs.ResolvingPath, opts *vfs.OpenOptions) (*vfs.FileDescription, error) {
	if opts.Flags&linux.O_DIRECT != 0 {
		return nil, linuxerr.EINVAL
	}
	fd := &directoryFD{}
	fd.init(ctx, d.inode, rp.Mount())
	if err := fd.vfsfd.Init(fd, opts.Flags, rp.Credentials(), rp.Mount(), &d.vfsd, &vfs.FileDescriptionOptions{AllowDirectIO: true}); err != nil {
		return nil, err
	}
	return &fd.vfsfd, nil
}

func (d *dentry) openDevice(ctx context.Context, rp *vfs.ResolvingPath, opts *vfs.OpenOptions) (*vfs.FileDescription, error) {
	if rp.Mount().Options().Flags.NoDev {
		return nil, linuxerr.EACCES
	}
	kind := vfs.CharDevice
	if d.inode.fileType() == linux.S_IFBLK {
		kind = vfs.BlockDevice
	}
	major, minor := linux.DecodeDeviceID(uint32(d.inode.blob.Attr().Rdev))
	return rp.VirtualFilesystem().OpenDeviceSpecialFile(ctx, rp.Mount(), &d.vfsd, kind, uint32(major), minor, opts)
}

// fifo returns the pipe behind a FIFO, which all who have it open share.
func (i *inode) fifo() *pipe.VFSPipe {
	i.specialMu.Lock()
	defer i.specialMu.Unlock()
	if i.pipe == nil {
		i.pipe = pipe.NewVFSPipe(true /* isNamed */, pipe.DefaultPipeSize)
	}
	return i.pipe
}
