package blobfs

import (
	"runsc-fs/blobfs/format"
	"runsc-fs/blobfs/store"
)

// countInodes sets inodeCount. Nothing else uses the file system yet.
func (fs *FS) countInodes() error {
	var n int64
	err := fs.store.View(func(r *store.Reader) error {
		last := format.Key{Object: 1<<64 - 1, Kind: 255, Offset: 1<<64 - 1}
		for from := (format.Key{}); ; {
			// The items of a file may be many: from its inode on to the next object.
			found := false
			err := r.Scan(from, last, func(k format.Key, _ []byte) (bool, error) {
				if k.Kind == format.KindInode && k.Offset == 0 {
					n++
				}
				found, from = true, format.Key{Object: k.Object + 1}
				return false, nil
			})
			if err != nil || !found || from.Object == 0 {
				return err
			}
		}
	})
	fs.inodeCount.Store(n)
	return err
}

// takeInode counts one inode more, or says that there may be no more.
func (fs *FS) takeInode() error {
	limit := fs.opts.MaxInodes
	if fs.inodeCount.Add(1) > limit && limit > 0 {
		fs.inodeCount.Add(-1)
		return ErrNoSpace
	}
	return nil
}

// giveInode counts one inode less.
func (fs *FS) giveInode() { fs.inodeCount.Add(-1) }

// SyncNames makes everything durable that was done to names and attributes before
// the call: the log, and no data. Errors: ErrIO.
func (fs *FS) SyncNames() error {
	g, err := fs.gate.enter()
	if err != nil {
		return err
	}
	defer g.leave()
	if fs.opts.ReadOnly {
		return nil
	}
	return fsyncError(fs.store.CommitLog(fs.store.LastLSN()))
}
