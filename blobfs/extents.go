package blobfs

import (
	"runsc-fs/blobfs/format"
	"runsc-fs/blobfs/store"
)

// piece is a part of an extent item: file blocks from first on.
type piece struct {
	first uint64
	item  format.ExtentItem
}

func (p *piece) end() uint64 { return p.first + uint64(p.item.Blocks) }

func (p *piece) extent() extent {
	return extent{first: p.first, addr: p.item.Start, blocks: p.item.Blocks, unwritten: p.item.Unwritten(), shared: p.item.Shared()}
}

// cut returns the part of p in [from, to), which must overlap it.
func (p *piece) cut(from, to uint64) piece {
	from, to = max(from, p.first), min(to, p.end())
	c := *p
	c.item.Start += format.Addr(from - p.first)
	c.item.Blocks = uint32(to - from)
	c.first = from
	return c
}

func extentKey(ino, first uint64) format.Key {
	return format.Key{Object: ino, Kind: format.KindExtent, Offset: first}
}

func (fs *FS) decodeExtent(k format.Key, v []byte) (piece, error) {
	item, err := format.DecodeExtentItem(k, v, fs.store.VolumeBlocks())
	p := piece{first: k.Offset, item: item}
	switch {
	case err != nil:
		return p, corruptf("inode %d: %v", k.Object, err)
	case item.Blocks > format.MaxExtentBlocks || k.Offset >= format.MaxFileBlocks || p.end() > format.MaxFileBlocks:
		return p, corruptf("inode %d: extent of %d blocks at block %d", k.Object, item.Blocks, k.Offset)
	}
	return p, nil
}

// eachExtent calls fn for the extents that overlap [from, to), in order and
// whole, until fn returns false. before is set for the extent, if any, in front
// of the first of them: it helps those who want to know where the hole begins.
func (fs *FS) eachExtent(r *store.Reader, ino, from, to uint64, fn func(p piece) (bool, error)) (before *piece, err error) {
	var last uint64
	var buf [format.ExtentItemBytes]byte
	k, v, ok, err := r.SeekLast(extentKey(ino, 0), extentKey(ino, from), buf[:0])
	if err != nil {
		return nil, err
	}
	if ok {
		p, err := fs.decodeExtent(k, v)
		if err != nil {
			return nil, err
		}
		last = p.end()
		if p.end() > from {
			if more, err := fn(p); err != nil || !more {
				return nil, err
			}
		} else {
			before = &p
		}
	}
	if from+1 >= to {
		return before, nil
	}
	err = r.Scan(extentKey(ino, from+1), extentKey(ino, to-1), func(k format.Key, v []byte) (bool, error) {
		p, err := fs.decodeExtent(k, v)
		if err != nil {
			return false, err
		}
		if p.first < last {
			return false, corruptf("inode %d: extents overlap at block %d", ino, p.first)
		}
		last = p.end()
		return fn(p)
	})
	return before, err
}

// mapBlock looks up the run that begins at a file block, at most limit blocks
// long. It takes a lock of the store only if the extents are not cached.
func (i *Inode) mapBlock(block, limit uint64) (mapping, error) {
	if m, ok := i.ext.find(block, limit); ok {
		return m, nil
	}
	for range 1 << 16 {
		seq := i.ext.sequence()
		w, err := i.loadWindow(block)
		if err != nil {
			return mapping{}, err
		}
		if i.ext.install(seq, w) {
			if m, ok := i.ext.find(block, limit); ok {
				return m, nil
			}
		}
	}
	return mapping{}, ErrIO
}

// loadWindow reads the extents around block from the store.
func (i *Inode) loadWindow(block uint64) (extWindow, error) {
	w := extWindow{from: block, to: endOfBlocks}
	err := i.fs.store.View(func(r *store.Reader) error {
		w.ext = make([]extent, 0, 4)
		before, err := i.fs.eachExtent(r, i.ino, block, format.MaxFileBlocks, func(p piece) (bool, error) {
			e := p.extent()
			if n := len(w.ext); n > 0 && w.ext[n-1].follows(e) {
				w.ext[n-1].blocks += e.blocks
			} else {
				w.ext = append(w.ext, e)
			}
			if len(w.ext) < windowExtents {
				return true, nil
			}
			w.to = p.end()
			return false, nil
		})
		if err != nil {
			return err
		}
		if before != nil {
			w.from = before.end()
		} else {
			w.from = 0
		}
		if len(w.ext) > 0 && w.ext[0].first <= block {
			w.from = w.ext[0].first
		}
		return nil
	})
	return w, err
}

// unmap takes the file blocks [from, to) out of the mapping, at most limit
// extents of it, and calls fn for what it took. It returns the block up to
// which the range is a hole now. The caller has touched i, and sees to the
// blocks and to the cache of extents.
func (tx *txn) unmap(i *Inode, from, to uint64, limit int, fn func(p piece) error) (next uint64, err error) {
	next = to
	var list []piece
	_, err = tx.fs.eachExtent(&tx.Reader, i.ino, from, to, func(p piece) (bool, error) {
		if len(list) == limit {
			next = p.first
			return false, nil
		}
		list = append(list, p)
		return true, nil
	})
	if err != nil {
		return from, err
	}
	for n := range list {
		p := &list[n]
		if p.first < from {
			left := p.cut(p.first, from)
			err = tx.putExtent(i.ino, &left)
		} else {
			err = tx.Delete(extentKey(i.ino, p.first))
		}
		if err != nil {
			return from, err
		}
		if p.end() > to {
			right := p.cut(to, p.end())
			if err := tx.putExtent(i.ino, &right); err != nil {
				return from, err
			}
		}
	}
	// Only now, because fn may map blocks again and look at the neighbours.
	for n := range list {
		if err := fn(list[n].cut(from, to)); err != nil {
			return from, err
		}
	}
	return next, nil
}

// unmapFree is unmap for blocks that go back to the volume, unless they have
// other owners. limit bounds the costs.
func (tx *txn) unmapFree(i *Inode, from, to uint64, limit int) (next uint64, err error) {
	if tx.fs.sharing() {
		cost := 0
		_, err := tx.fs.eachExtent(&tx.Reader, i.ino, from, to, func(p piece) (bool, error) {
			if cost >= limit {
				to = max(p.first, from)
				return false, nil
			}
			cost += extentCost
			if !p.item.Shared() {
				return true, nil
			}
			p = p.cut(from, to)
			blocks, owners, err := tx.fs.affordable(&tx.Reader, p.item.Run(), limit-cost)
			cost += owners
			if blocks < uint64(p.item.Blocks) {
				to = p.first + blocks
				return false, err
			}
			return true, err
		})
		if err != nil {
			return from, err
		}
	}
	return tx.unmap(i, from, to, limit, func(p piece) error { return tx.free(i, p) })
}

func (tx *txn) putExtent(ino uint64, p *piece) error {
	return tx.Put(extentKey(ino, p.first), p.item.Append(tx.item[:0]))
}

// mapPiece adds a piece to the mapping, where there is a hole, and joins it
// with its neighbours.
func (tx *txn) mapPiece(ino uint64, p piece) error {
	if p.first > 0 {
		k, v, ok, err := tx.SeekLast(extentKey(ino, 0), extentKey(ino, p.first-1), tx.value[:0])
		if err != nil {
			return err
		}
		if ok {
			left, err := tx.fs.decodeExtent(k, v)
			if err != nil {
				return err
			}
			if left.end() > p.first {
				return corruptf("inode %d: block %d is mapped twice", ino, p.first)
			}
			if joins(&left, &p) {
				left.item.Blocks += p.item.Blocks
				p = left
			}
		}
	}
	v, ok, err := tx.Get(extentKey(ino, p.end()), tx.value[:0])
	if err != nil {
		return err
	}
	if ok {
		right, err := tx.fs.decodeExtent(extentKey(ino, p.end()), v)
		if err != nil {
			return err
		}
		if joins(&p, &right) {
			if err := tx.Delete(extentKey(ino, right.first)); err != nil {
				return err
			}
			p.item.Blocks += right.item.Blocks
		}
	}
	return tx.putExtent(ino, &p)
}

func joins(a, b *piece) bool {
	return a.end() == b.first && a.item.Run().End() == b.item.Start &&
		a.item.Flags == b.item.Flags && a.item.Birth == b.item.Birth &&
		uint64(a.item.Blocks)+uint64(b.item.Blocks) <= format.MaxExtentBlocks
}

// claim makes a provisional run the mapping of the hole at file block first.
func (tx *txn) claim(i *Inode, first uint64, run format.Run, unwritten bool) error {
	if err := tx.Claim(run); err != nil {
		return err
	}
	item := format.ExtentItem{Start: run.Start, Blocks: uint32(run.Blocks), Birth: tx.Generation()}
	if unwritten {
		item.Flags |= format.ExtentUnwritten
	}
	tx.addBlocks(i, int64(run.Blocks))
	return tx.mapPiece(i.ino, piece{first: first, item: item})
}

// markWritten turns the unwritten extents in [from, to) into written ones.
func (tx *txn) markWritten(i *Inode, from, to uint64) error {
	return tx.setFlags(i, from, to, func(item *format.ExtentItem) { item.Flags &^= format.ExtentUnwritten })
}

// markOwned turns the shared extents in [from, to), whose blocks have no other
// owner any more, into ordinary ones.
func (tx *txn) markOwned(i *Inode, from, to uint64) error {
	return tx.setFlags(i, from, to, func(item *format.ExtentItem) { item.Flags &^= format.ExtentShared })
}

// setFlags changes the extents in [from, to).
func (tx *txn) setFlags(i *Inode, from, to uint64, set func(item *format.ExtentItem)) error {
	for from < to {
		next, err := tx.unmap(i, from, to, 4, func(p piece) error {
			set(&p.item)
			return tx.mapPiece(i.ino, p)
		})
		if err != nil {
			return err
		}
		from = next
	}
	return nil
}

// free gives the blocks of a piece back, unless they have other owners.
func (tx *txn) free(i *Inode, p piece) error {
	tx.addBlocks(i, -int64(p.item.Blocks))
	if p.item.Shared() {
		return tx.dropOwner(p.item.Run())
	}
	if err := tx.checkSoleOwner(p.item.Run()); err != nil {
		return err
	}
	return tx.Free(p.item.Run())
}

// addBlocks counts allocated blocks. The inode has been touched.
func (tx *txn) addBlocks(i *Inode, n int64) {
	tx.touch(i)
	i.mu.Lock()
	i.blocks = uint64(max(int64(i.blocks)+n, 0))
	i.mu.Unlock()
}
