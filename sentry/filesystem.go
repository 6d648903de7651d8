package sentry

import (
	"hash/fnv"
	"sync"
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/fspath"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/vfs"

	"runsc-fs/blobfs"
)

// filesystemMagic is statfs(2)'s f_type: "blob" in ASCII.
const filesystemMagic = 0x626c6f62

// filesystem implements vfs.FilesystemImpl. There is one for each volume that
// is mounted, however often: all mounts must see one tree.
type filesystem struct {
	vfsfs vfs.Filesystem

	volume   *volume    // immutable
	blob     *blobfs.FS // immutable
	file     *arenaFile // immutable
	devMinor uint32     // immutable
	options  string     // immutable: as shown in /proc/mounts
	// strictAtime says that every read changes the access time. Immutable.
	strictAtime bool
	// sync and dirSync are the mount options. Immutable.
	sync, dirSync bool
	// directAlign is what O_DIRECT has to be aligned to, a power of two.
	directAlign int64 // immutable

	root *dentry // immutable; holds its own reference

	// renameMu is held for reading by every operation that walks the tree, and
	// for writing by those that move or evict what a walk may have found.
	renameMu sync.RWMutex

	// ancestryMu guards dentry.name, together with renameMu.
	ancestryMu sync.RWMutex

	cache dentryCache

	// inodesMu guards inodes and the reference counts of its inodes.
	inodesMu sync.Mutex
	inodes   map[uint64]*inode

	// syncMu guards syncErrors, the errors that syncfs(2) has reported.
	syncMu     sync.Mutex
	syncErrors blobfs.ErrCursor

	// blobGone says that the volume was closed under the mounts.
	blobGone atomic.Bool
	// gone is closed when the last mount is gone and the volume closed.
	gone chan struct{}
}

// Release implements vfs.FilesystemImpl.Release. There are no dentries in use
// any more.
func (fs *filesystem) Release(ctx context.Context) {
	fs.inodesMu.Lock()
	inodes := fs.inodes
	fs.inodes = nil
	fs.inodesMu.Unlock()
	if !fs.blobGone.Load() {
		for _, i := range inodes {
			i.blob.DecRef()
		}
	}
	fs.vfsfs.VirtualFilesystem().PutAnonBlockDevMinor(fs.devMinor)
	fs.volume.closeMounted(fs)
}

// usable returns an error once the volume has been closed under its mounts.
func (fs *filesystem) usable() error {
	if fs.blobGone.Load() {
		return linuxerr.EIO
	}
	return nil
}

// Sync implements vfs.FilesystemImpl.Sync.
func (fs *filesystem) Sync(ctx context.Context) error {
	if err := fs.usable(); err != nil {
		return err
	}
	fs.syncMu.Lock()
	cursor := fs.syncErrors
	fs.syncMu.Unlock()
	err := fs.blob.Sync(&cursor)
	fs.syncMu.Lock()
	fs.syncErrors = cursor
	fs.syncMu.Unlock()
	return errno(err)
}

// AccessAt implements vfs.FilesystemImpl.AccessAt.
func (fs *filesystem) AccessAt(ctx context.Context, rp *vfs.ResolvingPath, creds *auth.Credentials, ats vfs.AccessTypes) error {
	fs.beginWalk()
	defer fs.endWalk(ctx)
	d, err := fs.resolve(ctx, rp)
	if err != nil {
		return err
	}
	if ats.MayExec() && d.inode.isRegular() && rp.Mount().Options().Flags.NoExec {
		return linuxerr.EACCES
	}
	if err := d.inode.checkPermissions(creds, ats); err != nil {
		return err
	}
	if ats.MayWrite() && (rp.Mount().ReadOnly() || fs.blob.ReadOnly()) {
		switch d.inode.fileType() {
		case linux.S_IFREG, linux.S_IFDIR, linux.S_IFLNK:
			return linuxerr.EROFS
		}
	}
	return nil
}

// GetDentryAt implements vfs.FilesystemImpl.GetDentryAt.
func (fs *filesystem) GetDentryAt(ctx context.Context, rp *vfs.ResolvingPath, opts vfs.GetDentryOptions) (*vfs.Dentry, error) {
	fs.beginWalk()
	defer fs.endWalk(ctx)
	d, err := fs.resolve(ctx, rp)
	if err != nil {
		return nil, err
	}
	if opts.CheckSearchable {
		if !d.isDir() {
			return nil, linuxerr.ENOTDIR
		}
		if err := d.inode.checkPermissions(rp.Credentials(), vfs.MayExec); err != nil {
			return nil, err
		}
	}
	d.IncRef()
	return &d.vfsd, nil
}

// GetParentDentryAt implements vfs.FilesystemImpl.GetParentDentryAt. It checks
// that the directory may be searched, since Linux does so for the old path of a
// rename before it looks at the new one.
func (fs *filesystem) GetParentDentryAt(ctx context.Context, rp *vfs.ResolvingPath) (*vfs.Dentry, error) {
	fs.beginWalk()
	defer fs.endWalk(ctx)
	d, err := fs.walkParent(ctx, rp, rp.Start().Impl().(*dentry))
	if err != nil {
		return nil, err
	}
	if err := d.inode.checkPermissions(rp.Credentials(), vfs.MayExec); err != nil {
		return nil, err
	}
	d.IncRef()
	return &d.vfsd, nil
}

// ReadlinkAt implements vfs.FilesystemImpl.ReadlinkAt.
func (fs *filesystem) ReadlinkAt(ctx context.Context, rp *vfs.ResolvingPath) (string, error) {
	fs.beginWalk()
	defer fs.endWalk(ctx)
	d, err := fs.resolve(ctx, rp)
	if err != nil {
		return "", err
	}
	if !d.inode.isSymlink() {
		return "", linuxerr.EINVAL
	}
	return d.inode.readlink(rp.Mount())
}

// StatAt implements vfs.FilesystemImpl.StatAt. Without a path it takes no lock
// that precedes those of memory mappings.
func (fs *filesystem) StatAt(ctx context.Context, rp *vfs.ResolvingPath, opts vfs.StatOptions) (linux.Statx, error) {
	var st linux.Statx
	if rp.Done() {
		d := rp.Start().Impl().(*dentry)
		if rp.MustBeDir() && !d.isDir() {
			return st, linuxerr.ENOTDIR
		}
		d.stat(rp.Mount(), &st)
		return st, nil
	}
	fs.beginWalk()
	defer fs.endWalk(ctx)
	d, err := fs.resolve(ctx, rp)
	if err != nil {
		return st, err
	}
	d.stat(rp.Mount(), &st)
	return st, nil
}

// statxAttrMountRoot is STATX_ATTR_MOUNT_ROOT, which gVisor has no name for.
const statxAttrMountRoot = 0x2000

// stat fills in what statx(2) says about the file as it is seen in a mount.
func (d *dentry) stat(mnt *vfs.Mount, st *linux.Statx) {
	d.inode.stat(st)
	st.AttributesMask |= statxAttrMountRoot
	if mnt.Root() == &d.vfsd {
		st.Attributes |= statxAttrMountRoot
	}
}

// SetStatAt implements vfs.FilesystemImpl.SetStatAt.
func (fs *filesystem) SetStatAt(ctx context.Context, rp *vfs.ResolvingPath, opts vfs.SetStatOptions) error {
	d, err := fs.resolveRef(ctx, rp)
	if err != nil {
		return err
	}
	defer d.DecRef(ctx)
	if opts.Stat.Mask&linux.STATX_SIZE != 0 {
		if err := d.inode.mayTruncate(rp.Credentials()); err != nil {
			return err
		}
	}
	mnt := rp.Mount()
	if err := mnt.CheckBeginWrite(); err != nil {
		return err
	}
	defer mnt.EndWrite()
	if err := d.inode.settle(d.inode.setStat(ctx, rp.Credentials(), &opts)); err != nil {
		return err
	}
	if ev := vfs.InotifyEventFromStatMask(opts.Stat.Mask); ev != 0 {
		d.InotifyWithParent(ctx, ev, 0, vfs.InodeEvent)
	}
	return nil
}

// resolveRef resolves rp to a file and takes a reference on it, for operations
// that may take long.
func (fs *filesystem) resolveRef(ctx context.Context, rp *vfs.ResolvingPath) (*dentry, error) {
	fs.beginWalk()
	defer fs.endWalk(ctx)
	d, err := fs.resolve(ctx, rp)
	if err != nil {
		return nil, err
	}
	d.IncRef()
	return d, nil
}

// StatFSAt implements vfs.FilesystemImpl.StatFSAt.
func (fs *filesystem) StatFSAt(ctx context.Context, rp *vfs.ResolvingPath) (linux.Statfs, error) {
	fs.beginWalk()
	defer fs.endWalk(ctx)
	if _, err := fs.resolve(ctx, rp); err != nil {
		return linux.Statfs{}, err
	}
	return fs.statFS(), nil
}

func (fs *filesystem) statFS() linux.Statfs {
	st := fs.blob.StatFS()
	return linux.Statfs{
		Type:            filesystemMagic,
		BlockSize:       st.BlockSizeBytes,
		FragmentSize:    st.BlockSizeBytes,
		Blocks:          uint64(st.TotalBlocks),
		BlocksFree:      uint64(st.FreeBlocks),
		BlocksAvailable: uint64(st.AvailableBlocks),
		Files:           uint64(st.TotalInodes),
		FilesFree:       uint64(st.FreeInodes),
		FSID:            fs.id(),
		NameLength:      uint64(st.MaxNameBytes),
		Flags:           linux.ST_VALID, // those of the mount are VFS's to add
	}
}

// id makes f_fsid. Clones of a snapshot have the same UUID and differ in their names.
func (fs *filesystem) id() [2]int32 {
	uuid := fs.blob.UUID()
	name := fnv.New32a()
	name.Write([]byte(fs.volume.spec.Name))
	return [2]int32{foldUUID(uuid[:8]), foldUUID(uuid[8:]) ^ int32(name.Sum32())}
}

// foldUUID makes half of f_fsid from half of the UUID.
func foldUUID(half []byte) int32 {
	var v uint32
	for n, b := range half {
		v ^= uint32(b) << (8 * (n % 4))
	}
	return int32(v)
}

// ListXattrAt implements vfs.FilesystemImpl.ListXattrAt.
func (fs *filesystem) ListXattrAt(ctx context.Context, rp *vfs.ResolvingPath, size uint64) ([]string, error) {
	fs.beginWalk()
	defer fs.endWalk(ctx)
	d, err := fs.resolve(ctx, rp)
	if err != nil {
		return nil, err
	}
	return d.inode.listXattr(rp.Credentials(), size)
}

// GetXattrAt implements vfs.FilesystemImpl.GetXattrAt.
func (fs *filesystem) GetXattrAt(ctx context.Context, rp *vfs.ResolvingPath, opts vfs.GetXattrOptions) (string, error) {
	fs.beginWalk()
	defer fs.endWalk(ctx)
	d, err := fs.resolve(ctx, rp)
	if err != nil {
		return "", err
	}
	return d.inode.getXattr(rp.Credentials(), &opts)
}

// SetXattrAt implements vfs.FilesystemImpl.SetXattrAt.
func (fs *filesystem) SetXattrAt(ctx context.Context, rp *vfs.ResolvingPath, opts vfs.SetXattrOptions) error {
	return fs.changeXattr(ctx, rp, func(i *inode) error { return i.setXattr(rp.Credentials(), &opts) })
}

// RemoveXattrAt implements vfs.FilesystemImpl.RemoveXattrAt.
func (fs *filesystem) RemoveXattrAt(ctx context.Context, rp *vfs.ResolvingPath, name string) error {
	return fs.changeXattr(ctx, rp, func(i *inode) error { return i.removeXattr(rp.Credentials(), name) })
}

func (fs *filesystem) changeXattr(ctx context.Context, rp *vfs.ResolvingPath, change func(*inode) error) error {
	d, err := fs.resolveRef(ctx, rp)
	if err != nil {
		return err
	}
	defer d.DecRef(ctx)
	mnt := rp.Mount()
	if err := mnt.CheckBeginWrite(); err != nil {
		return err
	}
	defer mnt.EndWrite()
	if err := d.inode.settle(change(d.inode)); err != nil {
		return err
	}
	d.InotifyWithParent(ctx, linux.IN_ATTRIB, 0, vfs.InodeEvent)
	return nil
}

// PrependPath implements vfs.FilesystemImpl.PrependPath. VFS passes no mount
// to learn the path within the file system.
func (fs *filesystem) PrependPath(ctx context.Context, vfsroot, vd vfs.VirtualDentry, b *fspath.Builder) error {
	fs.ancestryMu.RLock()
	defer fs.ancestryMu.RUnlock()
	mnt := vd.Mount()
	for d := vd.Dentry().Impl().(*dentry); ; {
		if mnt == vfsroot.Mount() && &d.vfsd == vfsroot.Dentry() {
			return vfs.PrependPathAtVFSRootError{}
		}
		if mnt != nil && &d.vfsd == mnt.Root() {
			return nil
		}
		parent := d.parent.Load()
		if parent == nil {
			return vfs.PrependPathAtNonMountRootError{}
		}
		b.PrependComponent(d.name)
		d = parent
	}
}

// IsDescendant implements vfs.FilesystemImpl.IsDescendant.
func (fs *filesystem) IsDescendant(vfsroot, vd vfs.VirtualDentry) bool {
	fs.ancestryMu.RLock()
	defer fs.ancestryMu.RUnlock()
	for d := vd.Dentry().Impl().(*dentry); d != nil; d = d.parent.Load() {
		if &d.vfsd == vfsroot.Dentry() {
			return true
		}
	}
	return false
}

// MountOptions implements vfs.FilesystemImpl.MountOptions.
func (fs *filesystem) MountOptions() string { return fs.options }

// PrepareSave implements vfs.FilesystemImplSaveRestoreExtension.PrepareSave.
func (fs *filesystem) PrepareSave(context.Context) error {
	return errSaveUnsupported(fs.volume.spec.Name)
}

// BeforeResume implements vfs.FilesystemImplSaveRestoreExtension.BeforeResume.
func (fs *filesystem) BeforeResume(context.Context) {}

// CompleteRestore implements
// vfs.FilesystemImplSaveRestoreExtension.CompleteRestore.
func (fs *filesystem) CompleteRestore(context.Context, vfs.CompleteRestoreOptions) error {
	return errSaveUnsupported(fs.volume.spec.Name)
}
