package blobfs

import (
	"math"

	"runsc-fs/blobfs/format"
	"runsc-fs/blobfs/store"
)

// Extent is a part of a file that has, or will have, blocks.
type Extent struct {
	Offset, Length int64 // bytes of the file, whole blocks
	Address        int64 // bytes of the volume; 0 if Delayed
	Unwritten      bool  // reads as zeroes
	Shared         bool  // other files may have the same blocks
	Delayed        bool  // in memory only: the place is chosen at write-back
}

// adjoins reports whether f continues e in every respect.
func (e *Extent) adjoins(f *Extent) bool {
	return e.Offset+e.Length == f.Offset && e.Unwritten == f.Unwritten && e.Shared == f.Shared && e.Delayed == f.Delayed &&
		(e.Delayed || e.Address+e.Length == f.Address)
}

// Extents lists up to limit extents in the bytes [off, end) of a file, beyond
// its end included, and reports whether the file has more behind those.
// Errors: ErrInvalid, ErrIsDir, ErrCorrupt, ErrIO.
func (i *Inode) Extents(off, end int64, limit int) (list []Extent, more bool, err error) {
	g, err := i.fs.gate.enter()
	if err != nil {
		return nil, false, err
	}
	defer g.leave()
	if err := i.checkIO(off, 0); err != nil {
		return nil, false, err
	}
	i.wbMu.Lock() // dirty marks and extents do not change places meanwhile
	defer i.wbMu.Unlock()
	first := uint64(off) / BlockSizeBytes
	// One more than asked for: what is to be joined with the last one has been
	// seen then, and whether there are more.
	full := func(e Extent) bool {
		if n := len(list); n > 0 && list[n-1].adjoins(&e) {
			list[n-1].Length += e.Length
			return false
		}
		list = append(list, e)
		return len(list) > limit || e.Offset >= end
	}
	if err := i.eachMapped(first, full); err != nil {
		return nil, false, err
	}
	for n := range list {
		if n == limit || list[n].Offset >= end {
			list, more = list[:n], true
			break
		}
	}
	if n := len(list); n > 0 {
		// An extent that goes on behind the range is shown as far as asked for.
		last := &list[n-1]
		if wanted := int64(blocksOf(min(end, math.MaxInt64-BlockSizeBytes)))*BlockSizeBytes - last.Offset; wanted < last.Length {
			last.Length, more = wanted, true
		}
	}
	return list, more, nil
}

// eachMapped calls fn for the extents from block next on, and for the dirty pages
// in the holes between them, until fn returns true. Needs wbMu.
func (i *Inode) eachMapped(next uint64, fn func(e Extent) (stop bool)) error {
	const batch = 256
	var pieces [batch]piece
	for {
		n := 0
		err := i.fs.store.View(func(r *store.Reader) error {
			n = 0
			_, err := i.fs.eachExtent(r, i.ino, next, format.MaxFileBlocks, func(p piece) (bool, error) {
				pieces[n] = p.cut(next, p.end())
				n++
				return n < batch, nil
			})
			return err
		})
		if err != nil {
			return err
		}
		for k := range pieces[:n] {
			p := &pieces[k]
			if i.eachDelayed(next, p.first, fn) || fn(Extent{
				Offset: int64(p.first) * BlockSizeBytes, Length: int64(p.item.Blocks) * BlockSizeBytes, Address: p.item.Start.OffsetBytes(),
				Unwritten: p.item.Unwritten(), Shared: p.item.Shared(),
			}) {
				return nil
			}
			next = p.end()
		}
		if n < batch {
			i.eachDelayed(next, format.MaxFileBlocks, fn)
			return nil
		}
	}
}

// eachDelayed calls fn for the dirty pages in a hole.
func (i *Inode) eachDelayed(from, to uint64, fn func(e Extent) (stop bool)) (stopped bool) {
	for from < to {
		i.treeMu.Lock()
		p := i.pages.nextDirty(from)
		if p == nil || p.index >= to {
			i.treeMu.Unlock()
			return false
		}
		from = p.index + 1
		i.treeMu.Unlock()
		if fn(Extent{Offset: int64(from-1) * BlockSizeBytes, Length: BlockSizeBytes, Delayed: true}) {
			return true
		}
	}
	return false
}

// Discard tells the device of the blocks freed since the last time, if the option
// Discard is set. It makes durable what freed them first. ErrIO.
func (fs *FS) Discard() error {
	g, err := fs.gate.enter()
	if err != nil {
		return err
	}
	defer g.leave()
	if fs.ReadOnly() || !fs.opts.Discard {
		return nil
	}
	if err := fs.store.Commit(fs.store.LastLSN()); err != nil {
		return volumeError(err)
	}
	return fs.discard()
}

// discard is Discard for what is freed durably already.
func (fs *FS) discard() error {
	if !fs.opts.Discard {
		return nil
	}
	_, err := fs.store.Discard() // logged, and no harm to the volume
	return volumeError(err)
}

// Trim tells the device which of the volume's bytes [off, off+n) are free, but no
// free run of less than minBytes, and returns how many bytes it told.
// Errors: ErrNotSupported by devices that do not want to know, ErrReadOnly, ErrIO.
func (fs *FS) Trim(off, n, minBytes uint64) (trimmed uint64, err error) {
	g, err := fs.gate.enter()
	if err != nil {
		return 0, err
	}
	defer g.leave()
	switch {
	case fs.ReadOnly():
		return 0, ErrReadOnly
	case !fs.dev.Geometry().Deallocate:
		return 0, ErrNotSupported
	}
	// What was freed and is not durably so yet is not free to the store.
	if err := fs.store.Commit(fs.store.LastLSN()); err != nil {
		return 0, volumeError(err)
	}
	end := off + n
	if end < off {
		end = math.MaxUint64
	}
	first := off/BlockSizeBytes + min(off%BlockSizeBytes, 1)
	blocks, err := fs.store.Trim(first, end/BlockSizeBytes, (minBytes+BlockSizeBytes-1)/BlockSizeBytes)
	return blocks * BlockSizeBytes, volumeError(err)
}
