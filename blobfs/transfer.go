package blobfs

import "sync"

// Transfer is one read or write of several that are handed over together.
type Transfer struct {
	Sink   Sink   // where a read puts its data; nil for a write
	Source Source // where a write takes its data; nil for a read
	Off, N int64
	Flags  IOFlags

	// Done and Err are what ReadAt or WriteAt would have returned.
	Done int64
	Err  error

	frame   int   // index of its first frame in the batch
	part    int64 // bytes that go through these frames
	private bool  // it is a write that could not go with the others
}

// pagesOf is how many frames the transfer needs.
func (t *Transfer) pagesOf() int { return int(blocksOf(t.Off%BlockSizeBytes + t.N)) }

// Transfer carries out ts as if by calls of ReadAt and WriteAt made at the same
// time: in no order, each with its own outcome. Direct reads, and direct writes
// over blocks that are written already, go to the device together, reads with
// one call and writes with another. It allocates nothing.
func (i *Inode) Transfer(ts []Transfer) {
	for len(ts) > 0 {
		n := i.transferTogether(ts)
		if n == 0 {
			i.transferAlone(&ts[0])
			n = 1
		}
		ts = ts[n:]
	}
}

func (i *Inode) transferAlone(t *Transfer) {
	if t.Source != nil {
		t.Done, t.Err = i.WriteAt(t.Source, t.Off, t.N, t.Flags)
	} else {
		t.Done, t.Err = i.ReadAt(t.Sink, t.Off, t.N, t.Flags)
	}
}

// transferTogether carries out as many transfers from the beginning of ts as
// can go together, and reports how many: less than two are not worth it.
func (i *Inode) transferTogether(ts []Transfer) int {
	fs := i.fs
	if len(ts) < 2 || i.typ != ModeRegular {
		return 0
	}
	g, err := fs.gate.enter()
	if err != nil {
		return 0
	}
	defer g.leave()
	b := getBatch()
	defer b.put()
	locked := false
	unlock := func() {
		if locked {
			i.ioMu.RUnlock()
			locked = false
		}
	}
	defer unlock()
	n, frames, writes := 0, 0, 0
	for ; n < len(ts); n++ {
		t := &ts[n]
		if t.Source != nil && !locked {
			i.ioMu.RLock()
			locked = true
		}
		if !i.canJoin(t) || frames+t.pagesOf() > directPages {
			break
		}
		t.frame = frames
		frames += t.pagesOf()
		if t.Source != nil {
			writes++
		}
	}
	if n < 2 || fs.frames(b, frames) != nil {
		return 0
	}
	defer fs.releaseFrames(b)
	// There may be fewer frames than wanted.
	for n > 0 && ts[n-1].frame+ts[n-1].pagesOf() > b.n {
		n--
		if ts[n].Source != nil {
			writes--
		}
	}
	if n < 2 {
		return 0
	}
	ts = ts[:n]
	i.takeSources(b, ts)
	if writes > 0 {
		i.writeTogether(b, ts)
	}
	unlock()
	if writes < n {
		i.readTogether(b, ts)
	}
	i.finishTogether(ts, writes)
	return n
}

// canJoin reports whether t may go with others. A write needs ioMu, shared, from
// here until it is done.
func (i *Inode) canJoin(t *Transfer) bool {
	const plain = IODirect | IODSync | IOSync | IONoAtime
	if t.Flags&IODirect == 0 || t.Flags&^plain != 0 || t.Off < 0 || t.N <= 0 ||
		t.N > directPages*BlockSizeBytes || (t.Off|t.N)%i.fs.lbaBytes != 0 {
		return false
	}
	if t.Source == nil {
		return t.Off < i.size.Load()
	}
	return !i.fs.ReadOnly() && t.N <= i.size.Load()-t.Off && i.allWritten(t.Off, t.N)
}

// takeSources fills the frames of the writes among ts.
func (i *Inode) takeSources(b *batch, ts []Transfer) {
	for k := range ts {
		t := &ts[k]
		t.Done, t.Err, t.part, t.private = 0, nil, 0, false
		if t.Source != nil {
			first := int64(t.frame)*BlockSizeBytes + t.Off%BlockSizeBytes
			t.part, t.Err = i.fs.copyIn(t.Source, b, first, first+t.N)
			t.part -= t.part % i.fs.lbaBytes
		}
	}
}

// writeTogether writes the frames of the writes among ts. Needs ioMu shared.
func (i *Inode) writeTogether(b *batch, ts []Transfer) {
	i.cacheMu.enter(overwriting)
	b.resetIO()
	var err error
	for k := range ts {
		t := &ts[k]
		if t.part == 0 || t.Source == nil {
			continue
		}
		start, end := uint64(t.Off)/BlockSizeBytes, blocksOf(t.Off+t.part)
		if i.isCached(start, end) {
			t.private = true // what is cached must change, too
			continue
		}
		for index := start; index < end && err == nil; {
			var m mapping
			if m, err = i.mapBlock(index, end-index); err == nil {
				i.addDirect(b, m, start-uint64(t.frame), index, t.Off, t.part)
				index += m.blocks
			}
		}
	}
	if err == nil && len(b.reqs) > 0 {
		err = i.fs.writeData(b)
	}
	i.cacheMu.leave(overwriting)
	for k := range ts {
		t := &ts[k]
		if t.part == 0 || t.Source == nil {
			continue
		}
		if t.private || err != nil {
			// Alone, each fails for itself.
			var err2 error
			if t.part, err2 = i.writeAgain(b, t); err2 != nil {
				t.Err = err2
			}
		}
		t.Done = t.part
	}
}

// writeAgain writes the frames of one transfer by the way of single writes.
// Needs ioMu shared.
func (i *Inode) writeAgain(b *batch, t *Transfer) (int64, error) {
	one := getBatch()
	defer one.put()
	one.n = copy(one.pages[:], b.pages[t.frame:t.frame+t.pagesOf()])
	done, _, err := i.overwriteFrames(one, t.Off, t.part, false)
	return done, err
}

// readTogether reads what the reads among ts want, and hands it over.
func (i *Inode) readTogether(b *batch, ts []Transfer) {
	fs := i.fs
	b.resetIO()
	var err error
	i.fillMu.RLock()
	size := i.size.Load()
	for k := range ts {
		t := &ts[k]
		if t.Sink == nil || t.Off >= size {
			continue
		}
		t.part = min(t.N, size-t.Off)
		if err = i.planDirectRead(b, t.frame, t.Off, t.part); err != nil {
			break
		}
	}
	if err == nil && len(b.reqs) > 0 {
		err = fs.readData(b)
	}
	i.fillMu.RUnlock()
	for k := range ts {
		t := &ts[k]
		if t.Sink == nil {
			continue
		}
		if err != nil {
			t.Done, t.Err = i.readDirect(t.Sink, t.Off, t.N) // alone, each fails for itself
			continue
		}
		if t.part > 0 {
			first := int64(t.frame)*BlockSizeBytes + t.Off%BlockSizeBytes
			t.Done, t.Err = fs.copyOut(t.Sink, b, first, first+t.part)
		}
	}
}

// finishTogether changes the times, and makes durable what was to be.
func (i *Inode) finishTogether(ts []Transfer, writes int) {
	touch, written := false, false
	for k := range ts {
		t := &ts[k]
		if t.Done > 0 {
			written = written || t.Source != nil
			touch = touch || t.Source == nil && t.Flags&IONoAtime == 0
		}
	}
	if touch {
		i.touchAtime()
	}
	if !written {
		return
	}
	i.modified()
	for k := range ts {
		t := &ts[k]
		if t.Source == nil || t.Done == 0 || t.Flags&(IODSync|IOSync) == 0 {
			continue
		}
		// The first one flushes for all.
		if err := i.syncRange(t.Off, t.Off+t.Done, t.Flags&IOSync == 0, false); err != nil && t.Err == nil {
			t.Err = err
		}
	}
	if err := i.fs.balanceDirty(i); err != nil {
		for k := range ts {
			if t := &ts[k]; t.Source != nil && t.Done > 0 && t.Err == nil {
				t.Err = err
			}
		}
	}
}

var transferPool = sync.Pool{New: func() any { return new(Transfers) }}

// Transfers is room for transfers that is used again and again.
type Transfers struct{ List []Transfer }

// GetTransfers gives an empty list.
func GetTransfers() *Transfers { return transferPool.Get().(*Transfers) }

// Put gives the list back, and what its entries refer to.
func (ts *Transfers) Put() {
	clear(ts.List)
	ts.List = ts.List[:0]
	transferPool.Put(ts)
}
