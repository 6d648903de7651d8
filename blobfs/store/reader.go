package store

import "runsc-fs/blobfs/format"

// Reader reads the tree. It is valid only within the function that View or
// Update calls.
type Reader struct {
	s    *Store
	inTx bool
}

// InTx reports whether the reader is that of a transaction, and so sees the
// newest state for as long as it is valid.
func (r *Reader) InTx() bool { return r.inTx }

// LSN is the number of the last transaction that the reader sees completed.
func (r *Reader) LSN() LSN { return r.s.lastLSN }

// View runs fn with a consistent view of the tree that contains all completed
// transactions, durable or not. Views run concurrently with each other, but
// hold up transactions: fn must be short, and must not call any method of
// Store that changes something. Errors of fn are returned as they are.
func (s *Store) View(fn func(r *Reader) error) error {
	s.mu.RLock()
	if s.closed.Load() {
		s.mu.RUnlock()
		return ErrClosed
	}
	full := false
	err := func() error {
		defer s.mu.RUnlock()
		err := fn(&s.reader)
		full = s.cacheFull()
		return err
	}()
	if full {
		s.mu.Lock()
		s.sweepLocked()
		s.mu.Unlock()
	}
	return err
}

// Get looks an item up. The value is copied into buf if it fits there, and the
// part of buf that it takes is returned; ok is false if there is no such item.
func (r *Reader) Get(k format.Key, buf []byte) (value []byte, ok bool, err error) {
	leaf, _, err := r.s.findLeaf(k)
	if err != nil {
		return nil, false, err
	}
	i, found := leaf.data.Search(k)
	if !found {
		return nil, false, nil
	}
	return append(buf[:0], leaf.data.Value(i)...), true, nil
}

// Scan calls fn for the items with keys from from to to, both included, in
// order, until fn returns false or an error. v is valid only during the call.
// In a transaction fn may change the tree: the scan goes on behind the key it
// was called with.
func (r *Reader) Scan(from, to format.Key, fn func(k format.Key, v []byte) (more bool, err error)) error {
	key := from
	for !to.Less(key) {
		leaf, sp, err := r.s.findLeaf(key)
		if err != nil {
			return err
		}
		next, ok := sp.high.Next()
		changes := r.s.changes
		i, _ := leaf.data.Search(key)
		for ; i < leaf.data.Count(); i++ {
			k := leaf.data.Key(i)
			if to.Less(k) {
				return nil
			}
			more, err := fn(k, leaf.data.Value(i))
			if err != nil || !more {
				return err
			}
			if r.s.changes != changes {
				next, ok = k.Next()
				break
			}
		}
		if !ok {
			return nil
		}
		key = next
	}
	return nil
}

// SeekLast returns the item with the greatest key from from to to, both
// included. The value is copied into buf, as by Get.
func (r *Reader) SeekLast(from, to format.Key, buf []byte) (k format.Key, v []byte, ok bool, err error) {
	key := to
	for !key.Less(from) {
		leaf, sp, err := r.s.findLeaf(key)
		if err != nil {
			return k, nil, false, err
		}
		i, found := leaf.data.Search(key)
		if !found {
			i--
		}
		if i >= 0 {
			k = leaf.data.Key(i)
			if k.Less(from) {
				return k, nil, false, nil
			}
			return k, append(buf[:0], leaf.data.Value(i)...), true, nil
		}
		if key, ok = sp.low.Prev(); !ok {
			break
		}
	}
	return format.Key{}, nil, false, nil
}
