package sentry

import (
	"math"

	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/hostarch"

	"runsc-fs/blobfs"
)

// Flags of FS_IOC_FIEMAP and of its extents.
const (
	fiemapSync  = 0x1
	fiemapCache = 0x4

	fiemapLast      = 0x1
	fiemapUnknown   = 0x2
	fiemapDelayed   = 0x4
	fiemapUnwritten = 0x800
	fiemapShared    = 0x2000
)

// Sizes of struct fiemap and struct fiemap_extent, and how many extents are
// looked up at a time.
const (
	fiemapBytes  = 32
	extentBytes  = 56
	fiemapAtOnce = 256
)

// fiemap tells where the file lies on the volume.
//
//	 0               8               16      20      24      28      32
//	+---------------+---------------+-------+-------+-------+-------+------------
//	| start         | length        | flags | mapped| room  | 0     | extents…
//	+---------------+---------------+-------+-------+-------+-------+------------
func (fd *regularFD) fiemap(arg *userArgument) error {
	le := hostarch.ByteOrder
	var b [fiemapBytes]byte
	if err := arg.copyIn(b[:]); err != nil {
		return err
	}
	start, length := le.Uint64(b[0:]), le.Uint64(b[8:])
	flags, room := le.Uint32(b[16:]), le.Uint32(b[24:])
	var mapped uint32
	var err error
	switch {
	case room > math.MaxUint32/extentBytes, length == 0:
		return linuxerr.EINVAL
	case start >= blobfs.MaxFileSizeBytes:
		return linuxerr.EFBIG
	case flags&^(fiemapSync|fiemapCache) != 0:
		// The caller is told which flags are not known.
		flags &^= fiemapSync | fiemapCache
		err = linuxerr.EBADR
	default:
		end := int64(blobfs.MaxFileSizeBytes)
		if length < blobfs.MaxFileSizeBytes-start {
			end = int64(start + length)
		}
		mapped, err = fd.copyOutExtents(arg, int64(start), end, room, flags&fiemapSync != 0)
	}
	le.PutUint32(b[16:], flags)
	le.PutUint32(b[20:], mapped)
	if copyErr := arg.copyOut(b[:]); err == nil {
		err = copyErr
	}
	return err
}

// copyOutExtents copies the extents in [off, end) to behind the header, and
// returns how many they are. Without room it only counts.
func (fd *regularFD) copyOutExtents(arg *userArgument, off, end int64, room uint32, sync bool) (n uint32, err error) {
	if err := fd.fs().usable(); err != nil {
		return 0, err
	}
	if sync {
		cursor := fd.inode.blob.ErrCursor()
		if err := fd.inode.blob.Fsync(&cursor, true /* dataOnly */); err != nil {
			return 0, errno(err)
		}
	}
	var b [fiemapAtOnce * extentBytes]byte
	for more := true; more && off < end && (room == 0 || n < room); {
		limit := fiemapAtOnce
		if room != 0 {
			limit = min(limit, int(room-n))
		}
		var list []blobfs.Extent
		list, more, err = fd.inode.blob.Extents(off, end, limit)
		if err != nil || len(list) == 0 {
			return n, errno(err)
		}
		for k := range list {
			putExtent(b[k*extentBytes:], &list[k], !more && k == len(list)-1)
		}
		if room != 0 {
			if err := arg.copyOutAt(fiemapBytes+uint64(n)*extentBytes, b[:len(list)*extentBytes]); err != nil {
				return n, err
			}
		}
		n += uint32(len(list))
		off = list[len(list)-1].Offset + list[len(list)-1].Length
	}
	return n, nil
}

// putExtent writes a struct fiemap_extent into b.
func putExtent(b []byte, e *blobfs.Extent, last bool) {
	clear(b[:extentBytes])
	var flags uint32
	for _, f := range [...]struct {
		is   bool
		flag uint32
	}{{last, fiemapLast}, {e.Delayed, fiemapDelayed | fiemapUnknown}, {e.Unwritten, fiemapUnwritten}, {e.Shared, fiemapShared}} {
		if f.is {
			flags |= f.flag
		}
	}
	le := hostarch.ByteOrder
	le.PutUint64(b[0:], uint64(e.Offset))
	le.PutUint64(b[8:], uint64(e.Address))
	le.PutUint64(b[16:], uint64(e.Length))
	le.PutUint32(b[40:], flags)
}
