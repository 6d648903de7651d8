package blobfs

import (
	"errors"

	"runsc-fs/blobfs/format"
	"runsc-fs/blobfs/store"
	"runsc-fs/nvme"
)

// Errors of names and directories.
var (
	ErrNotExist     = errors.New("no such file or directory")
	ErrExist        = errors.New("file exists")
	ErrNotDir       = errors.New("not a directory")
	ErrIsDir        = errors.New("is a directory")
	ErrNotEmpty     = errors.New("directory not empty")
	ErrNameTooLong  = errors.New("name too long")
	ErrTooManyLinks = errors.New("too many links")
	ErrLoop         = errors.New("directory would become its own descendant")
	ErrNotSymlink   = errors.New("not a symbolic link")
	ErrStale        = errors.New("stale inode reference")
)

// Errors of attributes and extended attributes.
var (
	ErrNoXattr          = errors.New("no such extended attribute")
	ErrXattrTooBig      = errors.New("extended attribute value too big")
	ErrXattrNameTooLong = errors.New("extended attribute name too long")
	ErrNotSupported     = errors.New("operation not supported")
	ErrNotPermitted     = errors.New("operation not permitted")
	ErrXattrListFull    = errors.New("extended attribute list too big")
)

// Errors of data and of the volume as a whole.
var (
	ErrInvalid    = errors.New("invalid argument")
	ErrBeyondEOF  = errors.New("page lies beyond the end of the file")
	ErrNoData     = errors.New("no data or hole beyond the offset")
	ErrFileTooBig = errors.New("file too big")
	ErrWouldBlock = errors.New("operation would block")
	ErrNoMemory   = errors.New("page cache exhausted")
	ErrDiffers    = errors.New("contents differ")
)

// Errors that come up from the layers below. They are the same values there,
// so errors.Is needs no translation.
var (
	ErrCorrupt  = format.ErrCorrupt
	ErrNoSpace  = store.ErrNoSpace
	ErrReadOnly = store.ErrReadOnly
	ErrClosed   = store.ErrClosed
	ErrIO       = nvme.ErrIO
)

func corruptf(text string, args ...any) error {
	return format.Corruptf(text, args...)
}
