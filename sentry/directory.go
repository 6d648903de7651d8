package sentry

import (
	"sync"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/sentry/vfs"

	"runsc-fs/blobfs"
)

// direntBatch is how many entries are read from the volume at a time. They are
// handed out after that, since the callback may write to user memory and the
// volume must not be locked then.
const direntBatch = 128

// Offsets of a directory below the cookies of the volume.
const (
	dotOffset    = 0
	dotDotOffset = 1
	firstOffset  = 2 // below blobfs.FirstCookie, so the volume takes it for the beginning
)

// directoryFD implements vfs.FileDescriptionImpl for directories.
type directoryFD struct {
	fileDescription
	vfs.DirectoryFileDescriptionDefaultImpl

	// mu serialises listings and guards what follows.
	mu    sync.Mutex
	off   int64
	batch []vfs.Dirent // room for a batch
}

// IterDirents implements vfs.FileDescriptionImpl.IterDirents.
func (fd *directoryFD) IterDirents(ctx context.Context, cb vfs.IterDirentsCallback) error {
	fd.mu.Lock()
	defer fd.mu.Unlock()
	d := fd.dentry()
	if d.deleted.Load() {
		return linuxerr.ENOENT
	}
	if !fd.keepsAtime() {
		fd.inode.blob.TouchAtime()
	}
	if fd.off <= dotOffset {
		if err := cb.Handle(vfs.Dirent{Name: ".", Type: linux.DT_DIR, Ino: d.inode.ino, NextOff: dotDotOffset}); err != nil {
			return err
		}
		fd.off = dotDotOffset
	}
	if fd.off == dotDotOffset {
		if err := cb.Handle(vfs.Dirent{Name: "..", Type: linux.DT_DIR, Ino: d.parentOrSelf().inode.ino, NextOff: firstOffset}); err != nil {
			return err
		}
		fd.off = firstOffset
	}
	for {
		if err := fd.readBatch(); err != nil {
			return err
		}
		for _, ent := range fd.batch {
			if err := cb.Handle(ent); err != nil {
				return err
			}
			fd.off = ent.NextOff
		}
		if len(fd.batch) < direntBatch {
			return nil
		}
	}
}

// readBatch fills fd.batch with the entries from fd.off on.
//
// Preconditions: fd.mu is held.
func (fd *directoryFD) readBatch() error {
	if fd.batch == nil {
		fd.batch = make([]vfs.Dirent, 0, direntBatch)
	}
	fd.batch = fd.batch[:0]
	err := fd.inode.blob.ReadDir(fd.off, func(ent blobfs.Dirent) bool {
		fd.batch = append(fd.batch, vfs.Dirent{Name: ent.Name, Type: ent.Type, Ino: ent.Ino, NextOff: ent.NextCookie})
		return len(fd.batch) < direntBatch
	})
	return errno(err)
}

// Seek implements vfs.FileDescriptionImpl.Seek. Offsets come from getdents(2)
// and stay valid whatever happens in the directory.
func (fd *directoryFD) Seek(ctx context.Context, offset int64, whence int32) (int64, error) {
	fd.mu.Lock()
	defer fd.mu.Unlock()
	switch whence {
	case linux.SEEK_SET:
	case linux.SEEK_CUR:
		sum, err := addOffsets(fd.off, offset)
		if err != nil {
			return 0, err
		}
		offset = sum
	default:
		return 0, linuxerr.EINVAL
	}
	if offset < 0 {
		return 0, linuxerr.EINVAL
	}
	fd.off = offset
	return offset, nil
}
