package blobfs

import (
	"fmt"

	"runsc-fs/blobfs/format"
	"runsc-fs/blobfs/store"
)

// maxDepth bounds the walk from a directory to the root: deeper trees can be
// made only by renaming, and directories in them cannot be moved.
const maxDepth = 1 << 16

// renaming is the state of one Rename inside its transaction.
type renaming struct {
	tx             *txn
	oldDir, newDir *Inode
	oldName        string
	newName        string
	from, to       dirSlot
	src, dst       *Inode // dst is nil when the new name is free
	victim         victim // dst, if it loses its name
	now            int64
}

// Rename gives what is oldName in oldDir the name newName in newDir, in one
// transaction. What had that name before loses it (or, with RenameExchange,
// gets the old one). Data of a file that takes the place of another is on the
// device before the new name is: after a crash the name stands for the
// complete old or the complete new file. The caller keeps concurrent renames
// of directories away. Errors: ErrNotExist, ErrExist, ErrNotDir, ErrIsDir,
// ErrNotEmpty, ErrLoop, ErrTooManyLinks, ErrInvalid, ErrNoSpace, ErrReadOnly.
func (fs *FS) Rename(oldDir *Inode, oldName string, newDir *Inode, newName string, flags RenameFlags) error {
	g, err := fs.gate.enter()
	if err != nil {
		return err
	}
	defer g.leave()
	const known = RenameNoReplace | RenameExchange | RenameWhiteout
	if flags&^known != 0 || flags&RenameExchange != 0 && flags != RenameExchange {
		return fmt.Errorf("%w: rename flags %#x", ErrInvalid, flags)
	}
	if err := oldDir.checkDir(oldName); err != nil {
		return err
	}
	if err := newDir.checkDir(newName); err != nil {
		// The old name comes first, as in Linux.
		old, err2 := oldDir.Lookup(oldName)
		if err2 != nil {
			return err2
		}
		old.DecRef()
		return err
	}
	if flags&(RenameExchange|RenameNoReplace) == 0 {
		if err := fs.settleReplacement(oldDir, oldName, newDir, newName); err != nil {
			return err
		}
	}
	r := renaming{oldDir: oldDir, newDir: newDir, oldName: oldName, newName: newName}
	var whiteout *Inode
	err = fs.update(func(tx *txn) (err error) {
		r.tx = tx
		r.now = fs.now()
		done, err := r.resolve(flags)
		if err != nil || done {
			return err
		}
		if flags&RenameExchange != 0 {
			return r.exchange()
		}
		if flags&RenameWhiteout != 0 {
			n := NewInode{Mode: ModeChar}
			if whiteout, err = tx.makeInode(&n, oldDir, 1, r.now); err != nil {
				return err
			}
		}
		return r.move(whiteout)
	})
	if err != nil && whiteout != nil {
		fs.unmakeInode(whiteout)
	} else if whiteout != nil {
		whiteout.decRef()
	}
	if r.src != nil {
		r.src.decRef()
	}
	if r.victim.inode != nil {
		r.victim.settle(err)
	} else if r.dst != nil {
		r.dst.decRef()
	}
	return err
}

// settleReplacement writes back the data of a file that is about to replace
// another.
func (fs *FS) settleReplacement(oldDir *Inode, oldName string, newDir *Inode, newName string) error {
	var src *Inode
	err := fs.view(func(r *store.Reader) error {
		from, err := fs.findEntry(r, oldDir, oldName)
		if err != nil || !from.found || from.typ != ModeRegular {
			return err
		}
		to, err := fs.findEntry(r, newDir, newName)
		if err != nil || !to.found || to.ino == from.ino {
			return err
		}
		src, err = fs.entryInode(r, oldDir, oldName, &from)
		return err
	})
	if err != nil || src == nil {
		return err
	}
	defer src.decRef()
	return src.writeBackAll()
}

// resolve finds both names and checks that the rename is allowed. It reports
// true when there is nothing to do.
func (r *renaming) resolve(flags RenameFlags) (done bool, err error) {
	fs := r.tx.fs
	if err := r.oldDir.alive(); err != nil {
		return false, err
	}
	if err := r.newDir.alive(); err != nil {
		return false, err
	}
	if r.from, err = fs.findEntry(&r.tx.Reader, r.oldDir, r.oldName); err != nil {
		return false, err
	}
	if r.to, err = fs.findEntry(&r.tx.Reader, r.newDir, r.newName); err != nil {
		return false, err
	}
	switch {
	case !r.from.found:
		return false, ErrNotExist
	case flags&RenameExchange != 0 && !r.to.found:
		return false, ErrNotExist
	case flags&RenameNoReplace != 0 && r.to.found:
		return false, ErrExist
	}
	if r.src, err = fs.entryInode(&r.tx.Reader, r.oldDir, r.oldName, &r.from); err != nil {
		return false, err
	}
	if r.to.found {
		if r.dst, err = fs.entryInode(&r.tx.Reader, r.newDir, r.newName, &r.to); err != nil {
			return false, err
		}
		if r.src == r.dst {
			return true, nil // two names of one file: POSIX wants both to stay
		}
	}
	if r.oldDir != r.newDir {
		if err := r.checkLoop(r.src, r.newDir); err != nil {
			return false, err
		}
		if r.dst != nil && flags&RenameExchange != 0 {
			if err := r.checkLoop(r.dst, r.oldDir); err != nil {
				return false, err
			}
		}
	}
	if flags&RenameExchange == 0 {
		return false, r.checkReplace()
	}
	if r.src.typ != r.dst.typ && r.oldDir != r.newDir {
		if r.src.typ == ModeDir {
			err = r.newDir.linkRoom()
		} else if r.dst.typ == ModeDir {
			err = r.oldDir.linkRoom()
		}
	}
	return false, err
}

func (r *renaming) checkReplace() error {
	srcDir := r.src.typ == ModeDir
	switch {
	case r.dst == nil:
		if srcDir && r.oldDir != r.newDir {
			return r.newDir.linkRoom()
		}
	case srcDir && r.dst.typ != ModeDir:
		return ErrNotDir
	case !srcDir && r.dst.typ == ModeDir:
		// A directory that the file lies in is first of all not empty.
		if err := r.checkLoop(r.dst, r.oldDir); err == ErrLoop {
			return ErrNotEmpty
		}
		return ErrIsDir
	case srcDir:
		return r.tx.fs.checkEmpty(&r.tx.Reader, r.dst)
	}
	return nil
}

// checkLoop fails if moved is dir or an ancestor of it.
func (r *renaming) checkLoop(moved, dir *Inode) error {
	if moved.typ != ModeDir {
		return nil
	}
	fs := r.tx.fs
	at := dir.ino
	for range maxDepth {
		switch at {
		case moved.ino:
			return ErrLoop
		case format.RootObject:
			return nil
		}
		parent, err := fs.parentOf(&r.tx.Reader, at)
		if err != nil {
			return err
		}
		at = parent
	}
	return corruptf("directory %d: no way to the root", dir.ino)
}

// parentOf reads the parent of a directory without keeping its inode in memory.
func (fs *FS) parentOf(r *store.Reader, ino uint64) (uint64, error) {
	i, err := fs.inodeThrough(r, ino)
	if err == errNoInode || err == ErrStale {
		return 0, corruptf("directory %d does not exist, but is a parent", ino)
	}
	if err != nil {
		return 0, err
	}
	defer i.putBack()
	if i.typ != ModeDir {
		return 0, corruptf("inode %d is a parent, but no directory", ino)
	}
	return i.Parent(), nil
}

func (r *renaming) move(whiteout *Inode) error {
	tx := r.tx
	fromEntries := -1
	if whiteout != nil {
		if err := tx.putEntry(&r.from, r.oldName, whiteout.ino, whiteout.typ); err != nil {
			return err
		}
		fromEntries = 0
	} else if err := tx.Delete(r.from.key); err != nil {
		return err
	}
	if err := tx.putEntry(&r.to, r.newName, r.src.ino, r.src.typ); err != nil {
		return err
	}
	toEntries, fromLinks, toLinks := 1, 0, 0
	if r.src.typ == ModeDir {
		fromLinks, toLinks = -1, 1
	}
	if r.dst != nil {
		toEntries = 0
		if r.dst.typ == ModeDir {
			toLinks--
		}
		r.victim.inode = r.dst
		if err := tx.dropLink(&r.victim, r.now); err != nil {
			return err
		}
	}
	if r.oldDir == r.newDir {
		tx.changeDir(r.oldDir, r.now, fromEntries+toEntries, fromLinks+toLinks)
	} else {
		tx.changeDir(r.oldDir, r.now, fromEntries, fromLinks)
		tx.changeDir(r.newDir, r.now, toEntries, toLinks)
	}
	r.reparent(r.src, r.newDir)
	return nil
}

func (r *renaming) exchange() error {
	tx := r.tx
	if err := tx.putEntry(&r.from, r.oldName, r.dst.ino, r.dst.typ); err != nil {
		return err
	}
	if err := tx.putEntry(&r.to, r.newName, r.src.ino, r.src.typ); err != nil {
		return err
	}
	oldLinks := 0 // subdirectories that oldDir gains and newDir loses
	if r.src.typ == ModeDir {
		oldLinks--
	}
	if r.dst.typ == ModeDir {
		oldLinks++
	}
	if r.oldDir == r.newDir {
		oldLinks = 0
	}
	tx.changeDir(r.oldDir, r.now, 0, oldLinks)
	tx.changeDir(r.newDir, r.now, 0, -oldLinks)
	r.reparent(r.src, r.newDir)
	r.reparent(r.dst, r.oldDir)
	return nil
}

// reparent records where i is now, and the time of the move.
func (r *renaming) reparent(i, dir *Inode) {
	r.tx.change(i, r.now, func(a *inodeAttrs) {
		if i.typ == ModeDir {
			a.parent = dir.ino
		}
	})
}
