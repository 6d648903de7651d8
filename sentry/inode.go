package sentry

import (
	"sync"
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/kernel/pipe"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
	"gvisor.dev/gvisor/pkg/sentry/socket/unix/transport"
	"gvisor.dev/gvisor/pkg/sentry/vfs"

	"runsc-fs/blobfs"
	"runsc-fs/blobfs/format"
)

// inode is what all dentries of one file share. It implements
// memmap.Mappable for regular files.
type inode struct {
	fs   *filesystem   // immutable
	blob *blobfs.Inode // immutable; one reference is held
	ino  uint64        // immutable

	// refs counts the dentries of the inode. It is guarded by fs.inodesMu.
	refs int64

	// mode (with the file type), uid and gid mirror the volume's, so that
	// permission checks need no lock. They change under attrMu, together with
	// the volume's.
	attrMu   sync.Mutex
	mode     atomic.Uint32
	uid, gid atomic.Uint32
	// flags mirrors the inode flags likewise.
	flags atomic.Uint32

	// accessACL and defaultACL are the access control lists, once looked for:
	// noList if there is none. They change under attrMu.
	accessACL, defaultACL atomic.Pointer[accessList]

	// noFileCaps says that the file is known to have no security.capability
	// attribute, which every write would have to remove.
	noFileCaps atomic.Bool

	// linkable marks a file made by O_TMPFILE without O_EXCL, which may get its
	// first name from linkat(2).
	linkable atomic.Bool

	// watched is set for good when VFS has asked for watches.
	watched atomic.Bool
	watches vfs.Watches

	// locks is made when the first lock is taken.
	locks atomic.Pointer[vfs.FileLocks]

	mapsMu sync.Mutex
	// mappings of a regular file; made with the first one.
	mappings *memmap.MappingSet

	specialMu sync.Mutex
	target    string                  // of a symbolic link, once read
	pipe      *pipe.VFSPipe           // of a FIFO, once opened
	endpoint  transport.BoundEndpoint // of a socket that was bound in this sandbox
}

// getInode returns the inode for blob with a reference, taking over the
// caller's reference on blob.
func (fs *filesystem) getInode(blob *blobfs.Inode) *inode {
	ino := blob.Ino()
	fs.inodesMu.Lock()
	if i, ok := fs.inodes[ino]; ok {
		i.refs++
		fs.inodesMu.Unlock()
		blob.DecRef()
		return i
	}
	attr := blob.Attr()
	i := &inode{fs: fs, blob: blob, ino: ino, refs: 1}
	i.mode.Store(attr.Mode)
	i.uid.Store(attr.UID)
	i.gid.Store(attr.GID)
	i.flags.Store(attr.Flags)
	fs.inodes[ino] = i
	fs.inodesMu.Unlock()
	return i
}

// incRef takes a reference for one more dentry.
//
// Preconditions: a reference is held.
func (i *inode) incRef() {
	i.fs.inodesMu.Lock()
	i.refs++
	i.fs.inodesMu.Unlock()
}

// putInode drops the reference of one dentry.
//
// Preconditions: fs.inodesMu is not held. If the file may have lost its last
// name, no locks are held at all, since the volume frees it here.
func (fs *filesystem) putInode(ctx context.Context, i *inode) {
	fs.inodesMu.Lock()
	i.refs--
	last := i.refs == 0
	if last {
		delete(fs.inodes, i.ino)
	}
	fs.inodesMu.Unlock()
	if !last || fs.blobGone.Load() {
		return
	}
	if i.watched.Load() && i.blob.Attr().Nlink == 0 {
		i.watches.HandleDeletion(ctx)
	}
	i.blob.DecRef()
}

// pinned says that the inode has state that its dentry must keep alive.
func (i *inode) pinned() bool {
	if i.watched.Load() && i.watches.Size() != 0 {
		return true
	}
	if i.fileType() != linux.S_IFSOCK {
		return false
	}
	i.specialMu.Lock()
	defer i.specialMu.Unlock()
	return i.endpoint != nil
}

// size is the size of a regular file in bytes.
func (i *inode) size() int64 { return i.blob.Size() }

func (i *inode) fileType() uint32 { return i.mode.Load() & linux.S_IFMT }
func (i *inode) isDir() bool      { return i.fileType() == linux.S_IFDIR }
func (i *inode) isSymlink() bool  { return i.fileType() == linux.S_IFLNK }
func (i *inode) isRegular() bool  { return i.fileType() == linux.S_IFREG }

func (i *inode) kuid() auth.KUID { return auth.KUID(i.uid.Load()) }
func (i *inode) kgid() auth.KGID { return auth.KGID(i.gid.Load()) }

// mayDelete checks the sticky bit of directory i for the removal of child.
func (i *inode) mayDelete(creds *auth.Credentials, child *inode) error {
	return vfs.CheckDeleteSticky(creds, linux.FileMode(i.mode.Load()), i.kuid(), child.kuid(), child.kgid())
}

// readlink returns the target of symbolic link i, which is read through mnt.
func (i *inode) readlink(mnt *vfs.Mount) (string, error) {
	target, err := i.linkTarget()
	if err == nil && i.blob.AtimeDue() {
		// Only now: asking the mount takes a lock that all mounts share.
		if opts := mnt.Options(); !opts.Flags.NoATime && !opts.ReadOnly {
			i.blob.TouchAtime()
		}
	}
	return target, err
}

func (i *inode) linkTarget() (string, error) {
	i.specialMu.Lock()
	defer i.specialMu.Unlock()
	if i.target == "" {
		target, err := i.blob.Readlink()
		if err != nil {
			return "", errno(err)
		}
		i.target = target
	}
	return i.target, nil
}

// fileLocks returns the locks of the file, making them if create is set.
func (i *inode) fileLocks(create bool) *vfs.FileLocks {
	locks := i.locks.Load()
	if locks == nil && create {
		i.locks.CompareAndSwap(nil, &vfs.FileLocks{})
		locks = i.locks.Load()
	}
	return locks
}

// stat fills in what statx(2) says about the file. It takes no lock that
// precedes those of memory mappings.
func (i *inode) stat(st *linux.Statx) {
	attr := i.blob.Attr()
	st.Mask = linux.STATX_TYPE | linux.STATX_MODE | linux.STATX_NLINK |
		linux.STATX_UID | linux.STATX_GID | linux.STATX_INO | linux.STATX_SIZE |
		linux.STATX_BLOCKS | linux.STATX_ATIME | linux.STATX_BTIME |
		linux.STATX_CTIME | linux.STATX_MTIME
	st.Blksize = blobfs.BlockSizeBytes
	st.AttributesMask = linux.STATX_ATTR_IMMUTABLE | linux.STATX_ATTR_APPEND | linux.STATX_ATTR_NODUMP
	st.Attributes = uint64(attr.Flags) & st.AttributesMask // FS_*_FL and STATX_ATTR_* are the same bits
	st.Nlink = attr.Nlink
	st.UID = attr.UID
	st.GID = attr.GID
	st.Mode = uint16(attr.Mode)
	st.Ino = i.ino
	st.Size = uint64(attr.Size)
	st.Blocks = uint64(attr.Blocks)
	st.Atime = timestamp(attr.Atime)
	st.Btime = timestamp(attr.Btime)
	st.Ctime = timestamp(attr.Ctime)
	st.Mtime = timestamp(attr.Mtime)
	st.DevMajor = linux.UNNAMED_MAJOR
	st.DevMinor = i.fs.devMinor
	switch attr.Mode & linux.S_IFMT {
	case linux.S_IFCHR, linux.S_IFBLK:
		major, minor := linux.DecodeDeviceID(uint32(attr.Rdev))
		st.RdevMajor, st.RdevMinor = uint32(major), minor
	}
}

// timestamp converts nanoseconds since the epoch, which may be negative.
func timestamp(ns int64) linux.StatxTimestamp {
	sec, nsec := ns/1e9, ns%1e9
	if nsec < 0 {
		sec, nsec = sec-1, nsec+1e9
	}
	return linux.StatxTimestamp{Sec: sec, Nsec: uint32(nsec)}
}

// The attributes that setStat knows. Linux refuses the others likewise.
const settableStat = linux.STATX_MODE | linux.STATX_UID | linux.STATX_GID |
	linux.STATX_ATIME | linux.STATX_MTIME | linux.STATX_CTIME | linux.STATX_SIZE

// setStat changes attributes as chmod(2), chown(2), utimensat(2) and
// truncate(2) do.
//
// Preconditions: the caller has called CheckBeginWrite on the mount, or has
// the file open for writing.
func (i *inode) setStat(ctx context.Context, creds *auth.Credentials, opts *vfs.SetStatOptions) error {
	stat := &opts.Stat
	if stat.Mask == 0 && !opts.ClearPrivs {
		return nil
	}
	// chown(2) to nobody else takes set-ID bits away like any other.
	if stat.Mask == 0 && !i.isDir() && vfs.ClearSUIDAndSGID(i.mode.Load()) != i.mode.Load() && !vfs.CanActAsOwner(creds, i.kuid()) {
		return linuxerr.EPERM
	}
	if stat.Mask&^settableStat != 0 {
		return linuxerr.EPERM
	}
	if stat.Mask&linux.STATX_SIZE != 0 {
		if err := i.hasSize(); err != nil {
			return err
		}
	}
	if err := i.maySetStat(stat); err != nil {
		return err
	}
	// Setting one time to now and keeping the other is as good as choosing both,
	// which only the owner may do.
	const times = linux.STATX_ATIME | linux.STATX_MTIME
	if one := stat.Mask & times; one != 0 && one != times && !vfs.CanActAsOwner(creds, i.kuid()) {
		return linuxerr.EPERM
	}
	mode, err := i.modeFor(creds, vfs.MayWrite)
	if err != nil {
		return err
	}
	if err := vfs.CheckSetStat(ctx, creds, opts, mode, i.kuid(), i.kgid()); err != nil {
		return err
	}
	if stat.Mask&linux.STATX_SIZE != 0 {
		if err := i.truncate(creds, stat.Size); err != nil {
			return err
		}
	}
	if stat.Mask == linux.STATX_SIZE {
		return nil
	}

	i.attrMu.Lock()
	defer i.attrMu.Unlock()
	var mask blobfs.AttrMask
	attr := blobfs.Attr{Mode: i.mode.Load(), UID: i.uid.Load(), GID: i.gid.Load()}
	if stat.Mask&linux.STATX_MODE != 0 {
		mask |= blobfs.AttrMode
		attr.Mode = attr.Mode&linux.S_IFMT | uint32(stat.Mode)&^linux.S_IFMT
	}
	if stat.Mask&linux.STATX_UID != 0 {
		mask |= blobfs.AttrUID
		attr.UID = stat.UID
	}
	if stat.Mask&linux.STATX_GID != 0 {
		mask |= blobfs.AttrGID
		attr.GID = stat.GID
	}
	if opts.ClearPrivs && !i.isDir() {
		if mode := vfs.ClearSUIDAndSGID(attr.Mode); mode != attr.Mode {
			mask |= blobfs.AttrMode
			attr.Mode = mode
		}
		if err := i.dropFileCaps(); err != nil {
			return err
		}
	}
	if stat.Mask&linux.STATX_ATIME != 0 {
		if stat.Atime.Nsec == linux.UTIME_NOW {
			mask |= blobfs.AttrAtimeNow
		} else {
			mask |= blobfs.AttrAtime
			attr.Atime = stat.Atime.ToNsecCapped()
		}
	}
	if stat.Mask&linux.STATX_MTIME != 0 {
		if stat.Mtime.Nsec == linux.UTIME_NOW {
			mask |= blobfs.AttrMtimeNow
		} else {
			mask |= blobfs.AttrMtime
			attr.Mtime = stat.Mtime.ToNsecCapped()
		}
	}
	if stat.Mask&linux.STATX_CTIME != 0 && stat.Ctime.Nsec != linux.UTIME_NOW {
		mask |= blobfs.AttrCtime
		attr.Ctime = stat.Ctime.ToNsecCapped()
	}
	return i.setAttrLocked(mask, &attr)
}

// hasSize says why the size of the file cannot be set, if it cannot.
func (i *inode) hasSize() error {
	switch {
	case i.isDir():
		return linuxerr.EISDIR
	case !i.isRegular():
		return linuxerr.EINVAL
	}
	return nil
}

// mayTruncate checks what truncate(2) does before it looks whether the mount may
// be written to.
func (i *inode) mayTruncate(creds *auth.Credentials) error {
	if err := i.hasSize(); err != nil {
		return err
	}
	return i.checkPermissions(creds, vfs.MayWrite)
}

// setAttrLocked changes attributes on the volume and in the mirror.
//
// Preconditions: attrMu is held. attr's Mode, UID and GID are set.
func (i *inode) setAttrLocked(mask blobfs.AttrMask, attr *blobfs.Attr) error {
	if mask&blobfs.AttrMode != 0 && (attr.Mode^i.mode.Load())&0777 != 0 && !i.isSymlink() {
		list, err := i.listLocked(format.XattrAccessACL)
		if err != nil {
			return err
		}
		if list != nil {
			return i.setListLocked(mask, attr, format.XattrAccessACL, list.withMode(attr.Mode))
		}
	}
	if err := i.blob.SetAttr(mask, attr); err != nil {
		return errno(err)
	}
	i.mirror(attr)
	return nil
}

// mirror takes over what permission checks need of the attributes.
func (i *inode) mirror(attr *blobfs.Attr) {
	i.mode.Store(attr.Mode)
	i.uid.Store(attr.UID)
	i.gid.Store(attr.GID)
}

// truncate sets the size of a regular file.
func (i *inode) truncate(creds *auth.Credentials, size uint64) error {
	if size > blobfs.MaxFileSizeBytes {
		return linuxerr.EFBIG
	}
	if err := i.fs.usable(); err != nil {
		return err
	}
	if err := i.dropPrivs(creds); err != nil {
		return err
	}
	if err := i.blob.Truncate(int64(size)); err != nil {
		return errno(err)
	}
	i.invalidateBeyond(size)
	return nil
}

// unprivileged says that dropPrivs has nothing to do.
func (i *inode) unprivileged() bool {
	return i.noFileCaps.Load() && i.mode.Load()&(linux.S_ISUID|linux.S_ISGID) == 0
}

// dropPrivs takes away what lets a file act with more privileges than its
// user's, before its content changes.
func (i *inode) dropPrivs(creds *auth.Credentials) error {
	if i.unprivileged() {
		return nil
	}
	i.attrMu.Lock()
	defer i.attrMu.Unlock()
	if err := i.dropFileCaps(); err != nil {
		return err
	}
	attr := blobfs.Attr{Mode: i.mode.Load(), UID: i.uid.Load(), GID: i.gid.Load()}
	mode := vfs.ClearSUIDAndSGID(attr.Mode)
	if mode == attr.Mode || creds.HasCapabilityOnFile(linux.CAP_FSETID, auth.KUID(attr.UID), auth.KGID(attr.GID)) {
		return nil
	}
	attr.Mode = mode
	return i.setAttrLocked(blobfs.AttrMode, &attr)
}

// dropFileCaps removes the file capabilities.
//
// Preconditions: attrMu is held.
func (i *inode) dropFileCaps() error {
	if i.noFileCaps.Load() {
		return nil
	}
	_, err := i.blob.GetXattr(linux.XATTR_SECURITY_CAPABILITY)
	if err == nil {
		err = i.blob.RemoveXattr(linux.XATTR_SECURITY_CAPABILITY)
	}
	if err != nil && !isNoXattr(err) {
		return errno(err)
	}
	i.noFileCaps.Store(true)
	return nil
}
