package sentry

import (
	"errors"

	gverrors "gvisor.dev/gvisor/pkg/errors"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"

	"runsc-fs/blobfs"
)

// errnoTable says which errno an application sees for an error of the volume.
// The first entry that matches counts. What is not in the table is EIO.
var errnoTable = [...]struct {
	err   error
	errno *gverrors.Error
}{
	{blobfs.ErrNotExist, linuxerr.ENOENT},
	{blobfs.ErrExist, linuxerr.EEXIST},
	{blobfs.ErrNotDir, linuxerr.ENOTDIR},
	{blobfs.ErrIsDir, linuxerr.EISDIR},
	{blobfs.ErrNotEmpty, linuxerr.ENOTEMPTY},
	{blobfs.ErrNameTooLong, linuxerr.ENAMETOOLONG},
	{blobfs.ErrTooManyLinks, linuxerr.EMLINK},
	{blobfs.ErrLoop, linuxerr.EINVAL},
	{blobfs.ErrNotSymlink, linuxerr.EINVAL},
	{blobfs.ErrStale, linuxerr.ESTALE},

	{blobfs.ErrNoXattr, linuxerr.ENODATA},
	{blobfs.ErrXattrTooBig, linuxerr.E2BIG},
	{blobfs.ErrXattrNameTooLong, linuxerr.ERANGE},
	{blobfs.ErrXattrListFull, linuxerr.ENOSPC}, // as ext4 when an inode's attributes no longer fit
	{blobfs.ErrNotSupported, linuxerr.EOPNOTSUPP},
	{blobfs.ErrNotPermitted, linuxerr.EPERM},

	{blobfs.ErrInvalid, linuxerr.EINVAL},
	{blobfs.ErrBeyondEOF, linuxerr.EINVAL}, // of a page fault only, where it is SIGBUS
	{blobfs.ErrNoData, linuxerr.ENXIO},
	{blobfs.ErrFileTooBig, linuxerr.EFBIG},
	{blobfs.ErrWouldBlock, linuxerr.EAGAIN},
	{blobfs.ErrNoMemory, linuxerr.ENOMEM},

	{blobfs.ErrNoSpace, linuxerr.ENOSPC},
	{blobfs.ErrReadOnly, linuxerr.EROFS},
	{blobfs.ErrCorrupt, linuxerr.EUCLEAN}, // Linux calls it EFSCORRUPTED
	{blobfs.ErrIO, linuxerr.EIO},
	{blobfs.ErrClosed, linuxerr.EIO},
}

// errno turns an error of the volume into one that VFS knows. Errors that are
// of VFS already, such as a fault while user memory was copied, pass through.
func errno(err error) error {
	if err == nil {
		return nil
	}
	if e, ok := err.(*gverrors.Error); ok {
		return e
	}
	for i := range errnoTable {
		if errors.Is(err, errnoTable[i].err) {
			return errnoTable[i].errno
		}
	}
	if e := (*gverrors.Error)(nil); errors.As(err, &e) {
		return e
	}
	if e, ok := linuxerr.TranslateError(err); ok {
		return e
	}
	return linuxerr.EIO
}

func isNotExist(err error) bool {
	return err == blobfs.ErrNotExist || errors.Is(err, blobfs.ErrNotExist)
}

func isNoXattr(err error) bool { return errors.Is(err, blobfs.ErrNoXattr) }
