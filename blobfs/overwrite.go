package blobfs

// overwriteDirect is the way of direct writes within the file to blocks that
// are written already. Nothing moves and nothing is logged but times, so any
// number of them go on side by side, holding ioMu shared. It takes nothing from
// src and reports false unless all of [off, off+n) is like that. fua asks for
// data that is durable when it returns; it reports whether it is.
func (i *Inode) overwriteDirect(src Source, off, n int64, fua bool) (done int64, durable, ok bool, err error) {
	fs := i.fs
	if n == 0 || (off|n)%fs.lbaBytes != 0 || n > i.size.Load()-off || !i.allWritten(off, n) {
		return 0, false, false, nil
	}
	b := getBatch()
	defer b.put()
	durable = fua
	for done < n && err == nil {
		first := off % BlockSizeBytes
		b.reset()
		if err = fs.frames(b, int(min(blocksOf(first+n-done), directPages))); err != nil {
			break
		}
		chunk := min(n-done, int64(b.n)*BlockSizeBytes-first)
		var m int64
		m, err = fs.copyIn(src, b, first, first+chunk)
		short := m < chunk
		m -= m % fs.lbaBytes
		if m > 0 {
			written, flushed, err2 := i.overwriteFrames(b, off, m, fua && m == n)
			m, durable = written, durable && flushed
			if err2 != nil {
				err = err2
			}
		}
		fs.releaseFrames(b)
		done += m
		off += m
		if short || m == 0 {
			break
		}
	}
	if done > 0 {
		i.modified()
	}
	return done, durable, true, err
}

// allWritten reports whether all blocks of [off, off+n) are written.
func (i *Inode) allWritten(off, n int64) bool {
	for index, end := uint64(off)/BlockSizeBytes, blocksOf(off+n); index < end; {
		m, err := i.mapBlock(index, end-index)
		if err != nil || m.state != blockWritten {
			return false
		}
		index += m.blocks
	}
	return true
}

// overwriteFrames writes the frames of the batch over the file bytes
// [off, off+n). What is cached of them must change, too, and in the same order
// for all who write there: then one writes at a time. Needs ioMu shared.
func (i *Inode) overwriteFrames(b *batch, off, n int64, fua bool) (done int64, durable bool, err error) {
	fs := i.fs
	start, end := uint64(off)/BlockSizeBytes, blocksOf(off+n)
	alone := i.cacheMu.enter(overwriting)
	if i.isCached(start, end) {
		i.cacheMu.leave(overwriting)
		i.cacheMu.enter(filling)
		defer i.cacheMu.leave(filling)
		done, err = i.writeFrames(b, off, n)
		return done, false, err
	}
	defer i.cacheMu.leave(overwriting)
	b.resetIO()
	for index := start; index < end; {
		m, err := i.mapBlock(index, end-index)
		if err != nil {
			return 0, false, err
		}
		i.addDirect(b, m, start, index, off, n)
		index += m.blocks
	}
	// Alone, one durable write is less than a write and a flush; others share
	// the flush.
	durable = fua && alone && len(b.reqs) == 1 && n <= fs.maxTransferBytes
	b.reqs[0].FUA = durable
	if err = fs.writeData(b); err != nil {
		return 0, false, err
	}
	return n, durable, nil
}

// isCached reports whether any page of [start, end) is in the cache.
func (i *Inode) isCached(start, end uint64) bool {
	if i.cached.Load() == 0 {
		return false
	}
	i.treeMu.Lock()
	defer i.treeMu.Unlock()
	p := i.pages.next(start)
	return p != nil && p.index < end
}
