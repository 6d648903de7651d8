package blobfs

import (
	"fmt"

	"runsc-fs/blobfs/format"
	"runsc-fs/blobfs/store"
)

// checkInvariants panics if what memory knows of a file contradicts itself or
// the store. It does so only in builds with the tag invariants. Needs wbMu.
func (i *Inode) checkInvariants() {
	if !invariants {
		return
	}
	i.checkPages()
	i.checkExtents()
}

func (i *Inode) checkPages() {
	i.treeMu.Lock()
	defer i.treeMu.Unlock()
	var cached, dirty, reserved int64
	for p := i.pages.next(0); p != nil; p = i.pages.next(p.index + 1) {
		cached++
		if p.has(pageDirty) {
			dirty++
			if q := i.pages.nextDirty(p.index); q != p {
				panic(fmt.Sprintf("blobfs: inode %d: dirty page %d has no mark", i.ino, p.index))
			}
		}
		if p.has(pageReserved) {
			reserved++
		}
		if p.owner.Load() != i || i.pages.get(p.index) != p {
			panic(fmt.Sprintf("blobfs: inode %d: page %d is not where it says", i.ino, p.index))
		}
	}
	if cached != i.cached.Load() || dirty != i.nDirty.Load() || reserved != i.reserved.Load() {
		panic(fmt.Sprintf("blobfs: inode %d: counts %d pages, %d dirty, %d reserved; has %d, %d, %d",
			i.ino, i.cached.Load(), i.nDirty.Load(), i.reserved.Load(), cached, dirty, reserved))
	}
}

// checkExtents compares the cached extents with those in the store. wbMu keeps
// both from changing.
func (i *Inode) checkExtents() {
	i.ext.mu.RLock()
	windows := make([]extWindow, len(i.ext.win))
	for n, w := range i.ext.win {
		windows[n] = extWindow{w.from, w.to, append([]extent(nil), w.ext...)}
	}
	i.ext.mu.RUnlock()
	err := i.fs.store.View(func(r *store.Reader) error {
		for _, w := range windows {
			for block := w.from; block < min(w.to, format.MaxFileBlocks); {
				inMemory := w.at(block)
				onDisk := extent{first: block, blocks: uint32(min(w.to-block, 1<<31))}
				_, err := i.fs.eachExtent(r, i.ino, block, min(w.to, format.MaxFileBlocks), func(p piece) (bool, error) {
					if p.first > block {
						onDisk.blocks = uint32(min(p.first-block, 1<<31))
					} else {
						onDisk = p.extent().cut(block, w.to)
					}
					return false, nil
				})
				if err != nil {
					return err
				}
				n := min(inMemory.blocks, onDisk.blocks)
				inMemory.blocks, onDisk.blocks = n, n
				if inMemory != onDisk {
					panic(fmt.Sprintf("blobfs: inode %d, block %d: memory says %+v, store %+v", i.ino, block, inMemory, onDisk))
				}
				block += uint64(n)
			}
		}
		return nil
	})
	if err != nil {
		i.fs.opts.Logf("blobfs: checking the extents of inode %d: %v", i.ino, err)
	}
}

// at returns what the window knows of a block: the rest of an extent, or a hole
// as an extent without an address.
func (w *extWindow) at(block uint64) extent {
	n := w.search(block)
	if n == len(w.ext) {
		return extent{first: block, blocks: uint32(min(w.to-block, 1<<31))}
	}
	if e := w.ext[n]; e.first > block {
		return extent{first: block, blocks: uint32(min(e.first-block, 1<<31))}
	}
	return w.ext[n].cut(block, w.to)
}
