package store

// HasFeatures reports whether the volume has the given incompatible features,
// durably and whichever superblock the next mount finds.
func (s *Store) HasFeatures(incompat uint64) bool { return s.features.Load()&incompat == incompat }

// EnableFeatures gives the volume incompatible features, so that programs that
// do not know them refuse it. When it returns, both pairs of superblocks say so
// durably: no older program finds a superblock without them in front of a log
// that relies on them. It makes checkpoints the first time, so it must not be
// called from within Update or View.
func (s *Store) EnableFeatures(incompat uint64) error {
	if s.HasFeatures(incompat) {
		return nil
	}
	if err := s.writable(); err != nil {
		return err
	}
	s.checkpointMu.Lock()
	defer s.checkpointMu.Unlock()
	s.mu.Lock()
	s.sb.Incompat |= incompat
	all := s.sb.Incompat
	s.mu.Unlock()
	for range 2 {
		if err := s.checkpointLocked(checkpointAlways); err != nil {
			return err
		}
	}
	s.features.Store(all)
	return nil
}
