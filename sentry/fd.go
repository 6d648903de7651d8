package sentry

import (
	"sync"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/lock"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/vfs"

	"runsc-fs/blobfs"
	"runsc-fs/nvme/trace"
	"runsc-fs/sentry/volumestats"
)

// fileDescription is what descriptions of files and directories have in
// common.
type fileDescription struct {
	vfsfd vfs.FileDescription
	vfs.FileDescriptionDefaultImpl

	inode *inode // immutable; the dentry of vfsfd holds it
	// noAtime is the mount's setting when the file was opened. Asking the
	// mount at each read would take a lock that all mounts share.
	noAtime bool // immutable
	// stats counts what is done through the description, for the container that
	// opened it, whoever has it by now.
	stats *volumestats.User // immutable

	// errorsMu guards errors, the write-back errors that this description has
	// reported. It is not held while a sync is under way.
	errorsMu sync.Mutex
	errors   blobfs.ErrCursor
}

func (fd *fileDescription) init(ctx context.Context, i *inode, mnt *vfs.Mount) {
	fd.inode = i
	fd.stats = i.fs.volume.stats.User(containerOf(ctx))
	opts := mnt.Options()
	fd.noAtime = opts.Flags.NoATime || opts.ReadOnly
	fd.errors = i.blob.ErrCursor()
}

// VolumeUser implements volumestats.Counted.
func (fd *fileDescription) VolumeUser() *volumestats.User { return fd.stats }

// containerOf names the container of the task that ctx is of.
func containerOf(ctx context.Context) string {
	if t := kernel.TaskFromContext(ctx); t != nil {
		return t.ContainerID()
	}
	return sandboxItself
}

// sandboxItself stands for the sandbox's own work on volumes, in place of a container.
const sandboxItself = "(sandbox)"

// keepsAtime says that reading through the description leaves the access time
// alone.
func (fd *fileDescription) keepsAtime() bool {
	return fd.noAtime || fd.vfsfd.StatusFlags()&linux.O_NOATIME != 0
}

func (fd *fileDescription) fs() *filesystem { return fd.inode.fs }

func (fd *fileDescription) dentry() *dentry { return fd.vfsfd.Dentry().Impl().(*dentry) }

// Release implements vfs.FileDescriptionImpl.Release. Closing a file does not
// write it back.
func (fd *fileDescription) Release(context.Context) {}

// Stat implements vfs.FileDescriptionImpl.Stat.
func (fd *fileDescription) Stat(ctx context.Context, opts vfs.StatOptions) (linux.Statx, error) {
	var st linux.Statx
	fd.dentry().stat(fd.vfsfd.Mount(), &st)
	return st, nil
}

// SetStat implements vfs.FileDescriptionImpl.SetStat.
func (fd *fileDescription) SetStat(ctx context.Context, opts vfs.SetStatOptions) error {
	mnt := fd.vfsfd.Mount()
	if err := mnt.CheckBeginWrite(); err != nil {
		return err
	}
	defer mnt.EndWrite()
	return fd.inode.settle(fd.inode.setStat(ctx, auth.CredentialsFromContext(ctx), &opts))
}

// StatFS implements vfs.FileDescriptionImpl.StatFS.
func (fd *fileDescription) StatFS(context.Context) (linux.Statfs, error) {
	return fd.fs().statFS(), nil
}

// Sync implements vfs.FileDescriptionImpl.Sync: fsync(2), for files and
// directories.
func (fd *fileDescription) Sync(context.Context) error { return fd.sync(false) }

// sync makes the file durable: only its data, and what is needed to read them
// back, if dataOnly.
func (fd *fileDescription) sync(dataOnly bool) error {
	if err := fd.fs().usable(); err != nil {
		return err
	}
	fd.errorsMu.Lock()
	cursor := fd.errors
	fd.errorsMu.Unlock()
	was := trace.Enter(trace.FS)
	call := fd.stats.Begin(volumestats.Sync)
	err := fd.inode.blob.Fsync(&cursor, dataOnly)
	call.End(0, err != nil)
	trace.Leave(was)
	if err != nil {
		fd.errorsMu.Lock()
		fd.errors = cursor
		fd.errorsMu.Unlock()
	}
	return errno(err)
}

// ListXattr implements vfs.FileDescriptionImpl.ListXattr.
func (fd *fileDescription) ListXattr(ctx context.Context, size uint64) ([]string, error) {
	return fd.inode.listXattr(auth.CredentialsFromContext(ctx), size)
}

// GetXattr implements vfs.FileDescriptionImpl.GetXattr.
func (fd *fileDescription) GetXattr(ctx context.Context, opts vfs.GetXattrOptions) (string, error) {
	return fd.inode.getXattr(auth.CredentialsFromContext(ctx), &opts)
}

// SetXattr implements vfs.FileDescriptionImpl.SetXattr.
func (fd *fileDescription) SetXattr(ctx context.Context, opts vfs.SetXattrOptions) error {
	mnt := fd.vfsfd.Mount()
	if err := mnt.CheckBeginWrite(); err != nil {
		return err
	}
	defer mnt.EndWrite()
	return fd.inode.settle(fd.inode.setXattr(auth.CredentialsFromContext(ctx), &opts))
}

// RemoveXattr implements vfs.FileDescriptionImpl.RemoveXattr.
func (fd *fileDescription) RemoveXattr(ctx context.Context, name string) error {
	mnt := fd.vfsfd.Mount()
	if err := mnt.CheckBeginWrite(); err != nil {
		return err
	}
	defer mnt.EndWrite()
	return fd.inode.settle(fd.inode.removeXattr(auth.CredentialsFromContext(ctx), name))
}

// The locks of a file are made with its first lock: most files never see one.

// SupportsLocks implements vfs.FileDescriptionImpl.SupportsLocks.
func (fd *fileDescription) SupportsLocks() bool { return true }

// LockBSD implements vfs.FileDescriptionImpl.LockBSD.
func (fd *fileDescription) LockBSD(ctx context.Context, uid lock.UniqueID, ownerPID int32, t lock.LockType, block bool) error {
	return fd.inode.fileLocks(true).LockBSD(ctx, uid, ownerPID, t, block)
}

// UnlockBSD implements vfs.FileDescriptionImpl.UnlockBSD.
func (fd *fileDescription) UnlockBSD(ctx context.Context, uid lock.UniqueID) error {
	if locks := fd.inode.fileLocks(false); locks != nil {
		locks.UnlockBSD(uid)
	}
	return nil
}

// LockPOSIX implements vfs.FileDescriptionImpl.LockPOSIX.
func (fd *fileDescription) LockPOSIX(ctx context.Context, uid lock.UniqueID, ownerPID int32, t lock.LockType, r lock.LockRange, block bool) error {
	return fd.inode.fileLocks(true).LockPOSIX(ctx, uid, ownerPID, t, r, block)
}

// UnlockPOSIX implements vfs.FileDescriptionImpl.UnlockPOSIX.
func (fd *fileDescription) UnlockPOSIX(ctx context.Context, uid lock.UniqueID, r lock.LockRange) error {
	if locks := fd.inode.fileLocks(false); locks != nil {
		return locks.UnlockPOSIX(ctx, uid, r)
	}
	return nil
}

// TestPOSIX implements vfs.FileDescriptionImpl.TestPOSIX.
func (fd *fileDescription) TestPOSIX(ctx context.Context, uid lock.UniqueID, t lock.LockType, r lock.LockRange) (linux.Flock, error) {
	return fd.inode.fileLocks(true).TestPOSIX(ctx, uid, t, r)
}
