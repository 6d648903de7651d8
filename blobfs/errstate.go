package blobfs

// errState remembers write-back errors until every open description has seen
// them once. seq counts errors; cursors keep the count they have seen.
type errState struct {
	seq  uint64
	seen bool // somebody has seen error number seq
	err  error
}

func (s *errState) record(err error) {
	s.seq++
	s.seen = false
	s.err = err
}

// cursor is the starting point of a new open description: errors that nobody
// has seen yet are still ahead of it.
func (s *errState) cursor() ErrCursor {
	if s.seq > 0 && !s.seen {
		return ErrCursor{seen: s.seq - 1}
	}
	return ErrCursor{seen: s.seq}
}

// check returns the latest error if the cursor has not seen it, once.
func (s *errState) check(c *ErrCursor) error {
	if c == nil {
		if s.seen || s.seq == 0 {
			return nil
		}
		return s.err // peek: without a cursor it stays unseen
	}
	if c.seen == s.seq {
		return nil
	}
	c.seen = s.seq
	s.seen = true
	return s.err
}

// pending reports whether an error has been seen by nobody.
func (s *errState) pending() bool { return s.seq > 0 && !s.seen }

// ErrCursor remembers which write-back errors one open description has seen:
// each failure is reported once to each cursor that existed when it happened,
// and one that nobody has seen yet also to the next cursor. It is guarded by
// the caller, like the offset of an open file.
type ErrCursor struct{ seen uint64 }

// ErrCursor returns a new cursor for an open description of the inode.
func (i *Inode) ErrCursor() ErrCursor {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.wbErr.cursor()
}

// CheckErr reports a write-back error that the cursor has not seen, once.
func (i *Inode) CheckErr(cur *ErrCursor) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.wbErr.check(cur)
}

// ErrCursor returns a new cursor for Sync.
func (fs *FS) ErrCursor() ErrCursor {
	fs.errMu.Lock()
	defer fs.errMu.Unlock()
	return fs.wbErr.cursor()
}

// recordWriteError keeps a failed write-back for all who ask.
func (i *Inode) recordWriteError(err error) {
	i.mu.Lock()
	i.wbErr.record(err)
	i.mu.Unlock()
	i.fs.errMu.Lock()
	i.fs.wbErr.record(err)
	i.fs.errMu.Unlock()
	i.fs.opts.Logf("blobfs: writing back inode %d: %v", i.ino, err)
}
