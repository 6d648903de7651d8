package blobfs

import (
	"runsc-fs/blobfs/format"
	"runsc-fs/nvme"
	"runsc-fs/nvme/trace"
)

// directPages is how many pages one round of direct I/O moves.
const directPages = 64

// DirectAlignBytes is what offset and length of direct I/O must be multiples of.
func (fs *FS) DirectAlignBytes() int64 { return fs.lbaBytes }

// frames takes n frames as buffers of direct I/O; it may get fewer, but at
// least one, unless there is an error. The caller unpins them.
func (fs *FS) frames(b *batch, n int) error {
	defer trace.Leave(trace.Enter(trace.Cache))
	n = min(n, max(fs.cache.limit/8, 1))
	p, err := fs.allocPage()
	for p != nil {
		b.pages[b.n] = p
		if b.n++; b.n == n {
			break
		}
		p = fs.tryAllocPage()
	}
	return err
}

func (fs *FS) releaseFrames(b *batch) {
	for k := b.n - 1; k >= 0; k-- {
		fs.cache.unpin(b.pages[k])
	}
}

// buffer is the memory of the batch's frames from byte first on: up to byte
// last, but no more than lies together.
func (fs *FS) buffer(b *batch, first, last int64) []byte {
	k := first / BlockSizeBytes
	end := (k + 1) * BlockSizeBytes
	for k++; end < last && b.pages[k].off == b.pages[k-1].off+BlockSizeBytes; k++ {
		end += BlockSizeBytes
	}
	start := b.pages[first/BlockSizeBytes].off + first%BlockSizeBytes
	return fs.cache.base[start : start+min(end, last)-first]
}

// copyOut hands bytes [first, last) of the batch's frames to dst.
func (fs *FS) copyOut(dst Sink, b *batch, first, last int64) (done int64, err error) {
	for first+done < last {
		buf := fs.buffer(b, first+done, last)
		m, err := dst.CopyOut(buf)
		done += int64(m)
		if err != nil || m < len(buf) {
			return done, err
		}
	}
	return done, nil
}

// copyIn fills bytes [first, last) of the batch's frames from src.
func (fs *FS) copyIn(src Source, b *batch, first, last int64) (done int64, err error) {
	for first+done < last {
		buf := fs.buffer(b, first+done, last)
		m, err := src.CopyIn(buf)
		done += int64(m)
		if err != nil || m < len(buf) {
			return done, err
		}
	}
	return done, nil
}

// readDirect reads without leaving anything in the cache; what is cached, and
// perhaps newer than on disk, comes from there.
func (i *Inode) readDirect(dst Sink, off, n int64) (done int64, err error) {
	fs := i.fs
	b := getBatch()
	defer b.put()
	for done < n {
		first := off % BlockSizeBytes
		b.reset()
		if err := fs.frames(b, int(min(blocksOf(first+n-done), directPages))); err != nil {
			return done, err
		}
		chunk := min(n-done, int64(b.n)*BlockSizeBytes-first)
		i.fillMu.RLock()
		if size := i.size.Load(); off >= size {
			chunk = 0
		} else {
			chunk = min(chunk, size-off)
			err = i.readFrames(b, off, chunk)
		}
		i.fillMu.RUnlock()
		m := int64(0)
		if err == nil && chunk > 0 {
			m, err = fs.copyOut(dst, b, first, first+chunk)
		}
		fs.releaseFrames(b)
		done += m
		off += m
		if err != nil || m < chunk || chunk == 0 {
			return done, err
		}
	}
	return done, nil
}

// readFrames fills the frames of the batch from the file bytes [off, off+n).
// Frame k stands for block off/BlockSizeBytes+k. Needs fillMu shared.
func (i *Inode) readFrames(b *batch, off, n int64) error {
	if err := i.planDirectRead(b, 0, off, n); err != nil || len(b.reqs) == 0 {
		return err
	}
	return i.fs.readData(b)
}

// planDirectRead fills frames of the batch from the file bytes [off, off+n), or adds
// the reads that do. Frame frame+k stands for block off/BlockSizeBytes+k. Needs
// fillMu shared, until the reads are done.
func (i *Inode) planDirectRead(b *batch, frame int, off, n int64) error {
	fs := i.fs
	start := uint64(off)/BlockSizeBytes - uint64(frame) // the block of frame 0, if there were one
	end := blocksOf(off + n)
	// Only whole logical blocks can be read; what is more than asked for
	// lies in the same frame.
	readEnd := (off + n + fs.lbaBytes - 1) / fs.lbaBytes * fs.lbaBytes
	for index := uint64(off) / BlockSizeBytes; index < end; {
		if i.cached.Load() > 0 {
			if p := i.pinPage(index); p != nil {
				ok := p.has(pageUptodate)
				if ok {
					copy(b.pages[index-start].data(), p.data())
				}
				fs.cache.unpin(p)
				if ok {
					index++
					continue
				}
			}
		}
		m, err := i.mapBlock(index, end-index)
		if err != nil {
			return err
		}
		for k := range m.blocks {
			if k > 0 && i.cached.Load() > 0 && i.pages.get(index) != nil {
				break
			}
			frame := b.pages[index-start]
			if !m.hasData() {
				clear(frame.data())
			} else {
				from := max(off, int64(index)*BlockSizeBytes)
				to := min(readEnd, int64(index+1)*BlockSizeBytes)
				data := fs.cache.frameData(frame)[from%BlockSizeBytes:]
				addr := m.addr + format.Addr(k)
				b.add(nvme.OpRead, addr.OffsetBytes()+from%BlockSizeBytes, data[:to-from])
			}
			index++
		}
	}
	return nil
}

// writeDirect writes around the cache and brings cached pages up to date.
// Blocks that are not written yet must be written whole; parts of such blocks
// go through the cache and from there to the device. Needs ioMu.
func (i *Inode) writeDirect(src Source, off, n int64) (done int64, err error) {
	fs := i.fs
	b := getBatch()
	defer b.put()
	for done < n {
		first := off % BlockSizeBytes
		b.reset()
		if err := fs.frames(b, int(min(blocksOf(first+n-done), directPages))); err != nil {
			return done, err
		}
		chunk := min(n-done, int64(b.n)*BlockSizeBytes-first)
		m, err := fs.copyIn(src, b, first, first+chunk)
		short := m < chunk
		m -= m % fs.lbaBytes
		if m > 0 {
			var err2 error
			if m, err2 = i.writeFrames(b, off, m); err2 != nil {
				err = err2
			}
		}
		fs.releaseFrames(b)
		done += m
		off += m
		if err != nil || short || m == 0 {
			return done, err
		}
	}
	return done, nil
}

// writeFrames writes the frames of the batch to the file bytes [off, off+n).
func (i *Inode) writeFrames(b *batch, off, n int64) (int64, error) {
	start, end := uint64(off)/BlockSizeBytes, blocksOf(off+n)
	i.wbMu.Lock()
	// Cached changes in the range are older: they must not be written over
	// this later, and their reservations end here. What is dirty between the
	// logged size and a new end must be on disk before that end is logged.
	if err := i.writeBackLocked(start, end); err != nil {
		i.wbMu.Unlock()
		return 0, err
	}
	if inPlace, err := i.edgesWritten(off, n); err != nil || !inPlace {
		i.wbMu.Unlock()
		if err != nil {
			return 0, err
		}
		return i.writeThroughCache(b, off, n)
	}
	i.fillMu.Lock()
	done, err := i.writeFramesLocked(b, off, n)
	i.fillMu.Unlock()
	i.wbMu.Unlock()
	return done, err
}

// edgesWritten reports whether the blocks that [off, off+n) covers only partly,
// if any, can be changed in place.
func (i *Inode) edgesWritten(off, n int64) (bool, error) {
	for _, edge := range [2]int64{off, off + n} {
		if edge%BlockSizeBytes == 0 {
			continue
		}
		if m, err := i.mapBlock(uint64(edge)/BlockSizeBytes, 1); err != nil || m.state != blockWritten {
			return false, err
		}
	}
	return true, nil
}

// writeThroughCache is the way of direct writes that need part of a block to
// be filled with zeroes.
func (i *Inode) writeThroughCache(b *batch, off, n int64) (int64, error) {
	first := off % BlockSizeBytes
	done, err := i.writeBuffered(&framesSource{i.fs, b, first, first + n}, off, n)
	if err == nil {
		err = i.writeBackAll()
	}
	return done, err
}

// framesSource is a Source of what is in the frames of a batch.
type framesSource struct {
	fs          *FS
	b           *batch
	first, last int64
}

func (s *framesSource) CopyIn(b []byte) (done int, err error) {
	for done < len(b) && s.first < s.last {
		m := copy(b[done:], s.fs.buffer(s.b, s.first, s.last))
		done += m
		s.first += int64(m)
	}
	return done, nil
}

// writeFramesLocked needs wbMu and fillMu: nobody reads or writes these blocks.
func (i *Inode) writeFramesLocked(b *batch, off, n int64) (done int64, err error) {
	fs := i.fs
	start, end := uint64(off)/BlockSizeBytes, blocksOf(off+n)
	for index := start; index < end; {
		b.resetIO()
		next, err := i.planDirect(b, off, n, index)
		if err == nil {
			err = fs.writeData(b)
		}
		if err == nil {
			// The size is logged with the extents: a crash in between would
			// leave written blocks beyond the end of the file, which would
			// show up when the file is extended.
			written := min(int64(next)*BlockSizeBytes, off+n)
			if b.nRuns > 0 {
				err = i.logRuns(b, written, false)
			}
			if err == nil {
				i.grow(written)
				i.writtenTo(written)
			}
		}
		if err != nil {
			i.releaseRuns(b)
			return done, err
		}
		i.refreshCached(b, start, index, next, off, n)
		done = min(int64(next)*BlockSizeBytes, off+n) - off
		index = next
	}
	return done, nil
}

// writtenTo notes that all data below end is on the device.
func (i *Inode) writtenTo(end int64) {
	i.mu.Lock()
	if end > i.diskSize {
		i.diskSize = end
		i.attrChangedLocked()
	}
	i.mu.Unlock()
}

// planDirect finds or allocates the place of the blocks from index on, as many
// as one transaction can describe, and returns where to go on.
func (i *Inode) planDirect(b *batch, off, n int64, index uint64) (next uint64, err error) {
	fs := i.fs
	start, end := uint64(off)/BlockSizeBytes, blocksOf(off+n)
	for index < end {
		m, err := i.mapToWrite(index, end-index)
		if err != nil {
			return index, err
		}
		if m.state != blockWritten {
			if b.nRuns == maxRuns {
				return index, nil
			}
			r := newRun{first: index, run: format.Run{Start: m.addr, Blocks: m.blocks}, unwritten: true}
			if m.needsBlocks() {
				r.unwritten, r.shared = false, m.state == blockShared
				if r.run, err = fs.store.Allocate(int64(m.blocks), i.allocGoal(index), false); err != nil {
					return index, err
				}
				m.addr, m.blocks = r.run.Start, r.run.Blocks
			}
			b.runs[b.nRuns] = r
			b.nRuns++
		}
		i.addDirect(b, m, start, index, off, n)
		index += m.blocks
	}
	return index, nil
}

// addDirect adds writes of the frames of the batch to the blocks of m, which
// begin at file block index. Frame k stands for block start+k.
func (i *Inode) addDirect(b *batch, m mapping, start, index uint64, off, n int64) {
	for k := range m.blocks {
		from := max(off, int64(index)*BlockSizeBytes)
		to := min(off+n, int64(index+1)*BlockSizeBytes)
		data := i.fs.cache.frameData(b.pages[index-start])[from%BlockSizeBytes:]
		b.add(nvme.OpWrite, (m.addr+format.Addr(k)).OffsetBytes()+from%BlockSizeBytes, data[:to-from])
		index++
	}
}

// refreshCached copies what was written to cached pages of the blocks [index, next).
func (i *Inode) refreshCached(b *batch, start, index, next uint64, off, n int64) {
	if i.cached.Load() == 0 {
		return
	}
	for ; index < next; index++ {
		p := i.pinPage(index)
		if p == nil {
			continue
		}
		from := max(off, int64(index)*BlockSizeBytes)
		to := min(off+n, int64(index+1)*BlockSizeBytes)
		lo, hi := from-int64(index)*BlockSizeBytes, to-int64(index)*BlockSizeBytes
		copy(p.data()[lo:hi], b.pages[index-start].data()[lo:hi])
		i.fs.cache.unpin(p)
	}
}
