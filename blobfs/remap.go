package blobfs

import (
	"bytes"
	"errors"
	"fmt"

	"runsc-fs/blobfs/format"
)

// CloneRange makes [dstOff, dstOff+n) of i the same as [srcOff, srcOff+n) of
// src, a file of the same volume, without copying: they share blocks until one
// is written. n 0 means up to the end of src. The offsets, and n unless that is
// the end of src and not within i, are multiples of BlockSizeBytes. It may grow
// i. Two ranges of one file must not overlap. After an error a part from the
// beginning on may be done. Errors: ErrInvalid, ErrIsDir, ErrFileTooBig,
// ErrReadOnly, ErrNoSpace, ErrCorrupt, ErrIO.
func (i *Inode) CloneRange(src *Inode, srcOff, dstOff, n int64) error {
	g, err := i.fs.gate.enter()
	if err != nil {
		return err
	}
	defer g.leave()
	_, err = i.remap(src, srcOff, dstOff, n, remapClone)
	return err
}

// maxDedupeBytes bounds what one DedupeRange compares, with both files locked.
const maxDedupeBytes = 16 << 20

// DedupeRange makes [dstOff, dstOff+n) of i share the blocks of [srcOff,
// srcOff+n) of src if their contents are the same, and else gives ErrDiffers.
// It returns how many bytes it has dealt with: less than n if that is much, or
// if n ends within a block that does not end both files. Both ranges must lie
// within their files. Errors: as CloneRange.
func (i *Inode) DedupeRange(src *Inode, srcOff, dstOff, n int64) (int64, error) {
	g, err := i.fs.gate.enter()
	if err != nil {
		return 0, err
	}
	defer g.leave()
	return i.remap(src, srcOff, dstOff, n, remapDedupe)
}

// remapMode says what two ranges are made one for.
type remapMode int

const (
	remapClone  remapMode = iota
	remapCopy             // like a clone, but may do less than asked for
	remapDedupe           // only if they are equal
)

// remap makes i share blocks with src and returns for how many bytes it did.
func (i *Inode) remap(src *Inode, srcOff, dstOff, n int64, mode remapMode) (int64, error) {
	if err := i.checkPair(src, srcOff, dstOff, n); err != nil {
		return 0, err
	}
	pair := pairOf(src, i)
	pair.lockIO()
	defer pair.unlockIO()
	n, err := i.remapBytes(src, srcOff, dstOff, n, mode)
	if err != nil || n == 0 {
		return 0, err
	}
	r := remapRange{src: src, dst: i, pair: pair, srcOff: srcOff, dstOff: dstOff, bytes: n}
	if mode == remapDedupe {
		r.bytes = min(n, maxDedupeBytes)
		err = r.dedupe()
	} else {
		err = r.clone()
	}
	if err != nil {
		return 0, err
	}
	return r.bytes, nil
}

// checkPair says whether data can go from src to i at all.
func (i *Inode) checkPair(src *Inode, srcOff, dstOff, n int64) error {
	if err := src.checkIO(srcOff, n); err != nil {
		return err
	}
	if err := i.checkIO(dstOff, n); err != nil {
		return err
	}
	switch {
	case src.fs != i.fs:
		return fmt.Errorf("%w: files of two volumes", ErrInvalid)
	case i.fs.ReadOnly():
		return ErrReadOnly
	case srcOff > 1<<62 || dstOff > 1<<62 || n > 1<<62: // so that sums are sums
		return fmt.Errorf("%w: offsets %d and %d, length %d", ErrInvalid, srcOff, dstOff, n)
	}
	return nil
}

// remapBytes returns how many bytes of the two ranges can be made one, by the
// rules of ioctl_ficlonerange(2) and ioctl_fideduperange(2). Needs ioMu of both.
func (i *Inode) remapBytes(src *Inode, srcOff, dstOff, n int64, mode remapMode) (int64, error) {
	srcSize, dstSize := src.size.Load(), i.size.Load()
	if n == 0 {
		if mode != remapClone || srcOff == srcSize {
			return 0, nil
		}
		n = max(srcSize-srcOff, 0)
	}
	const inBlock = BlockSizeBytes - 1
	switch {
	case (srcOff|dstOff)&inBlock != 0:
		return 0, fmt.Errorf("%w: offsets %d and %d are not multiples of %d", ErrInvalid, srcOff, dstOff, BlockSizeBytes)
	case srcOff >= srcSize:
		return 0, fmt.Errorf("%w: offset %d in a file of %d bytes", ErrInvalid, srcOff, srcSize)
	case mode == remapDedupe && (srcOff+n > srcSize || dstOff+n > dstSize):
		return 0, fmt.Errorf("%w: beyond the end of a file", ErrInvalid)
	case dstOff >= MaxFileSizeBytes:
		return 0, ErrFileTooBig
	}
	count := min(n, srcSize-srcOff, MaxFileSizeBytes-dstOff)
	// Part of a block can be shared only if both files end in it.
	if srcOff+count < srcSize || mode == remapDedupe && dstOff+count < dstSize {
		count &^= inBlock
	}
	if src == i && dstOff < srcOff+count && srcOff < dstOff+count {
		return 0, fmt.Errorf("%w: ranges of one file overlap", ErrInvalid)
	}
	if count != n && mode == remapClone {
		return 0, fmt.Errorf("%w: %d bytes at %d end within a block, or beyond the file of %d bytes", ErrInvalid, n, srcOff, srcSize)
	}
	if count&inBlock != 0 && dstOff+count < dstSize {
		if mode == remapClone {
			return 0, fmt.Errorf("%w: %d bytes end within a block, and within the file of %d bytes", ErrInvalid, n, dstSize)
		}
		count &^= inBlock
	}
	return count, nil
}

// inodePair is two inodes, or one, in the order in which locks of one class are
// taken.
type inodePair [2]*Inode

func pairOf(a, b *Inode) inodePair {
	switch {
	case a == b:
		return inodePair{a, nil}
	case a.ino > b.ino:
		return inodePair{b, a}
	}
	return inodePair{a, b}
}

func (p inodePair) each(fn func(i *Inode)) {
	fn(p[0])
	if p[1] != nil {
		fn(p[1])
	}
}

func (p inodePair) lockIO()     { p.each(func(i *Inode) { i.ioMu.Lock() }) }
func (p inodePair) unlockIO()   { p.each(func(i *Inode) { i.ioMu.Unlock() }) }
func (p inodePair) lockWB()     { p.each(func(i *Inode) { i.wbMu.Lock() }) }
func (p inodePair) unlockWB()   { p.each(func(i *Inode) { i.wbMu.Unlock() }) }
func (p inodePair) lockFill()   { p.each(func(i *Inode) { i.fillMu.Lock() }) }
func (p inodePair) unlockFill() { p.each(func(i *Inode) { i.fillMu.Unlock() }) }

// remapRange is a range of dst that is to share the blocks of one of src. ioMu
// of both is held, so that neither changes its size, and nobody writes to them
// but through mappings.
type remapRange struct {
	src, dst       *Inode
	pair           inodePair
	srcOff, dstOff int64
	bytes          int64
	detached       []*page // pages of dst that may be mapped still; pinned
}

func (r *remapRange) srcBlocks() (first, end uint64) {
	return uint64(r.srcOff) / BlockSizeBytes, blocksOf(r.srcOff + r.bytes)
}

func (r *remapRange) dstBlocks() (first, end uint64) {
	return uint64(r.dstOff) / BlockSizeBytes, blocksOf(r.dstOff + r.bytes)
}

// clone makes dst show what src has, whatever it has there now.
func (r *remapRange) clone() error {
	if err := r.dst.extendTo(r.dstOff, false); err != nil {
		return err
	}
	err := r.cloneLocked()
	// Mappings of what has left dst go now, and see the new blocks when they
	// come back: the invalidator must not be called with locks that Fault takes.
	if len(r.detached) > 0 {
		r.dst.callInvalidator(r.dstOff, r.bytes)
	}
	for _, p := range r.detached {
		r.dst.fs.cache.unpin(p)
	}
	return err
}

func (r *remapRange) cloneLocked() error {
	r.pair.lockWB()
	defer r.pair.unlockWB()
	srcFirst, srcEnd := r.srcBlocks()
	if err := r.src.writeBackLocked(srcFirst, srcEnd); err != nil {
		return err
	}
	// What lies in front of the range must be on disk before a size beyond it
	// is logged; what lies in it goes away.
	dstFirst, _ := r.dstBlocks()
	if err := r.dst.writeBackLocked(dstFirst, dstFirst); err != nil {
		return err
	}
	r.pair.lockFill()
	defer r.pair.unlockFill()
	// Pages that are mapped for writing are still dirty. What is stored there
	// from now on is src's alone, in blocks that it will need.
	if err := r.src.reserveDirty(srcFirst, srcEnd); err != nil {
		return err
	}
	err := r.share(true)
	r.src.checkInvariants()
	if r.src != r.dst {
		r.dst.checkInvariants()
	}
	return err
}

// dedupeAttempts is how often dedupe tries to find both ranges at rest.
const dedupeAttempts = 10

// dedupe shares the blocks of the ranges if they are equal.
func (r *remapRange) dedupe() error {
	b, err := newComparison(r.dst.fs)
	if err != nil {
		return err
	}
	defer b.put()
	for range dedupeAttempts {
		r.pair.each((*Inode).revoke)
		if quiet, err := r.dedupeLocked(b); quiet || err != nil {
			return err
		}
	}
	// Somebody keeps storing through a mapping.
	return ErrDiffers
}

// dedupeLocked reports false if one of the ranges may change at any time.
func (r *remapRange) dedupeLocked(b *comparison) (quiet bool, err error) {
	r.pair.lockWB()
	defer r.pair.unlockWB()
	srcFirst, srcEnd := r.srcBlocks()
	dstFirst, dstEnd := r.dstBlocks()
	if err := r.src.writeBackLocked(srcFirst, srcEnd); err != nil {
		return false, err
	}
	if err := r.dst.writeBackLocked(dstFirst, dstEnd); err != nil {
		return false, err
	}
	r.pair.lockFill()
	defer r.pair.unlockFill()
	if r.src.isDirty(srcFirst, srcEnd) || r.dst.isDirty(dstFirst, dstEnd) {
		return false, nil
	}
	if err := b.compare(r); err != nil {
		return true, err
	}
	err = r.share(false)
	r.dst.checkInvariants()
	return true, err
}

// share makes dst an owner of the blocks of src, in as many transactions as it
// takes. changes says that this changes dst, whose cached pages then go. Needs
// wbMu and fillMu of both; the source is written back.
func (r *remapRange) share(changes bool) error {
	src, dst := r.src, r.dst
	fs := dst.fs
	if err := fs.store.EnableFeatures(format.IncompatReflink); err != nil {
		return volumeError(err)
	}
	from, end := r.srcBlocks()
	first, _ := r.dstBlocks()
	shift := first - from // modulo 2^64
	limit := freeBatch
	var list []extent
	for from < end {
		var next uint64
		size := int64(0)
		err := fs.update(func(tx *txn) (err error) {
			tx.touch(dst)
			next, list, err = tx.share(src, dst, from, end, shift, limit, list[:0])
			size = min(int64(next+shift)*BlockSizeBytes, r.dstOff+r.bytes)
			dst.writtenTo(size)
			return err
		})
		switch {
		case errors.Is(err, ErrNoSpace) && limit > freeBatchTight:
			limit = freeBatchTight
			continue
		case err != nil:
			return err
		}
		for _, e := range list {
			src.ext.replace(e.first, e.end(), e)
		}
		for n := range list {
			list[n].first += shift
		}
		dst.ext.replace(from+shift, next+shift, list...)
		dst.grow(size)
		if changes {
			dst.modified()
			dst.dropPages(from+shift, next+shift, true)
			r.detached = dst.detachPages(from+shift, next+shift, r.detached)
		}
		from = next
	}
	return nil
}

// share makes dst an owner of what src has in the blocks [from, to), which are
// on disk, as far as limit allows. shift is the distance of the two places.
// It returns where to go on in src, and the extents there that are shared now.
func (tx *txn) share(src, dst *Inode, from, to, shift uint64, limit int, list []extent) (next uint64, shared []extent, err error) {
	if to, err = tx.affordableExtents(src, from, to, limit); err != nil {
		return from, list, err
	}
	if next, err = tx.unmapFree(dst, from+shift, to+shift, limit); err != nil {
		return from, list, err
	}
	next -= shift
	_, err = tx.fs.eachExtent(&tx.Reader, src.ino, from, next, func(p piece) (bool, error) {
		if !p.item.Unwritten() {
			p = p.cut(from, next)
			list = append(list, p.extent())
		}
		return true, nil
	})
	if err != nil {
		return from, list, err
	}
	for n := range list {
		e := &list[n]
		if !e.shared {
			e.shared = true
			if err := tx.setFlags(src, e.first, e.end(), func(item *format.ExtentItem) { item.Flags |= format.ExtentShared }); err != nil {
				return from, list, err
			}
		}
		item := format.ExtentItem{Start: e.addr, Blocks: e.blocks, Flags: format.ExtentShared, Birth: tx.Generation()}
		if err := tx.addOwner(item.Run()); err != nil {
			return from, list, err
		}
		tx.addBlocks(dst, int64(e.blocks))
		if err := tx.mapPiece(dst.ino, piece{first: e.first + shift, item: item}); err != nil {
			return from, list, err
		}
	}
	return next, list, nil
}

// affordableExtents returns up to where the blocks [from, to) may get an owner
// at no more than limit.
func (tx *txn) affordableExtents(i *Inode, from, to uint64, limit int) (uint64, error) {
	cost := 0
	_, err := tx.fs.eachExtent(&tx.Reader, i.ino, from, to, func(p piece) (bool, error) {
		if cost >= limit {
			to = p.first
			return false, nil
		}
		cost += 2 * extentCost
		if p.item.Unwritten() {
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
	return to, err
}

// reserveDirty reserves a block for each dirty page in a range, whose blocks are
// about to be shared.
func (i *Inode) reserveDirty(first, end uint64) error {
	for {
		i.treeMu.Lock()
		p := i.pages.nextDirty(first)
		if p == nil || p.index >= end {
			i.treeMu.Unlock()
			return nil
		}
		first = p.index + 1
		p.refs.Add(1)
		i.treeMu.Unlock()
		var err error
		if !p.has(pageReserved) {
			err = i.reserveBlock(first-1, p)
		}
		i.fs.cache.unpin(p)
		if err != nil {
			return err
		}
	}
}

// isDirty reports whether a page in a range is dirty or may become so at any time.
func (i *Inode) isDirty(first, end uint64) bool {
	i.treeMu.Lock()
	defer i.treeMu.Unlock()
	p := i.pages.nextDirty(first)
	return p != nil && p.index < end
}

// detachPages takes the pages that may be mapped out of a range of the file and
// appends them, pinned, to list: their frames must not be used for anything else
// until the mappings are gone.
func (i *Inode) detachPages(first, end uint64, list []*page) []*page {
	unreserve := int64(0)
	i.treeMu.Lock()
	for p := i.pages.next(first); p != nil && p.index < end; p = i.pages.next(first) {
		first = p.index + 1
		p.refs.Add(1)
		unreserve += i.removePageLocked(p)
		list = append(list, p)
	}
	i.treeMu.Unlock()
	if unreserve > 0 {
		i.fs.store.Unreserve(unreserve)
	}
	return list
}

// comparison is the memory for comparing two files.
type comparison struct {
	fs       *FS
	src, dst *batch // all frames belong to src
	frames   int    // of each
}

func newComparison(fs *FS) (*comparison, error) {
	c := &comparison{fs: fs, src: getBatch(), dst: getBatch()}
	if err := fs.frames(c.src, batchPages); err != nil {
		c.put()
		return nil, err
	}
	if c.frames = c.src.n / 2; c.frames == 0 {
		c.put()
		return nil, fmt.Errorf("%w: nothing to compare files with", ErrNoMemory)
	}
	copy(c.dst.pages[:c.frames], c.src.pages[c.frames:])
	return c, nil
}

func (c *comparison) put() {
	c.fs.releaseFrames(c.src)
	clear(c.dst.pages[:c.frames])
	c.src.put()
	c.dst.put()
}

// compare gives ErrDiffers if the ranges are not equal. Needs fillMu of both.
func (c *comparison) compare(r *remapRange) error {
	for done := int64(0); done < r.bytes; {
		n := min(int64(c.frames)*BlockSizeBytes, r.bytes-done)
		c.src.resetIO()
		if err := r.src.readFrames(c.src, r.srcOff+done, n); err != nil {
			return err
		}
		c.dst.resetIO()
		if err := r.dst.readFrames(c.dst, r.dstOff+done, n); err != nil {
			return err
		}
		for k := range blocksOf(n) {
			m := min(n-int64(k)*BlockSizeBytes, BlockSizeBytes)
			if !bytes.Equal(c.src.pages[k].data()[:m], c.dst.pages[k].data()[:m]) {
				return ErrDiffers
			}
		}
		done += n
	}
	return nil
}
