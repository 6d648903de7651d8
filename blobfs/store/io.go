package store

import (
	"fmt"

	"runsc-fs/blobfs/format"
	"runsc-fs/nvme"
)

// readPages is the number of pages for reading metadata: as many threads read
// at once, others wait for one of them.
const readPages = 8

// stagingPages is the number of blocks that a checkpoint writes at once.
const stagingPages = 64

// pageIO is a page and what a request for it needs, kept to save allocations.
type pageIO struct {
	vec [1][]byte
	req [1]nvme.Request
}

// readBlock reads one metadata block into dst.
func (s *Store) readBlock(addr format.Addr, dst []byte) error {
	if s.released.Load() {
		return ErrClosed
	}
	p := <-s.pages
	defer func() { s.pages <- p }()
	p.req[0] = nvme.Request{Op: nvme.OpRead, OffsetBytes: addr.OffsetBytes(), Vec: p.vec[:]}
	if err := s.dev.Do(p.req[:]); err != nil {
		return fmt.Errorf("reading block %v: %w", addr, err)
	}
	copy(dst, p.vec[0])
	return nil
}

// readStaged reads consecutive blocks into dst through the staging pages,
// which nobody else uses while a store is opened.
func (s *Store) readStaged(addr format.Addr, dst []byte) error {
	for len(dst) > 0 {
		part := s.staging[:min(len(dst), len(s.staging))]
		req := [1]nvme.Request{{Op: nvme.OpRead, OffsetBytes: addr.OffsetBytes(), Vec: [][]byte{part}}}
		if err := s.dev.Do(req[:]); err != nil {
			return fmt.Errorf("reading block %v: %w", addr, err)
		}
		copy(dst, part)
		dst = dst[len(part):]
		addr += format.Addr(len(part) / format.BlockSizeBytes)
	}
	return nil
}

// flush makes completed writes durable.
func (s *Store) flush() error {
	if !s.volatileCache {
		return nil
	}
	s.stats.flushes.Add(1)
	req := [1]nvme.Request{{Op: nvme.OpFlush}}
	return s.dev.Do(req[:])
}

// blockWriter gathers blocks in the staging pages and writes them, adjacent
// ones with one request. checkpointMu is held.
type blockWriter struct {
	s    *Store
	n    int
	addr [stagingPages]format.Addr
	reqs []nvme.Request
}

// next returns the page for the block at addr, after writing the gathered ones
// if there is no other page.
func (w *blockWriter) next(addr format.Addr) ([]byte, error) {
	if w.n == stagingPages {
		if err := w.write(false); err != nil {
			return nil, err
		}
	}
	w.addr[w.n] = addr
	page := w.s.staging[w.n*format.BlockSizeBytes : (w.n+1)*format.BlockSizeBytes]
	w.n++
	return page, nil
}

// write writes what is gathered, durably if fua is set.
func (w *blockWriter) write(fua bool) error {
	w.reqs = w.reqs[:0]
	for i := 0; i < w.n; {
		j := i + 1
		for j < w.n && w.addr[j] == w.addr[i]+format.Addr(j-i) {
			j++
		}
		w.reqs = append(w.reqs, nvme.Request{
			Op: nvme.OpWrite, FUA: fua && w.s.volatileCache, OffsetBytes: w.addr[i].OffsetBytes(),
			Vec: [][]byte{w.s.staging[i*format.BlockSizeBytes : j*format.BlockSizeBytes]},
		})
		i = j
	}
	w.n = 0
	if len(w.reqs) == 0 {
		return nil
	}
	return w.s.dev.Do(w.reqs)
}

// checkDataRun says whether a run may hold file data.
func (s *Store) checkDataRun(run format.Run) error {
	if err := format.CheckRun(run, s.VolumeBlocks()); err != nil {
		return fmt.Errorf("%w: %w", ErrBadRange, err)
	}
	first, i := format.GroupOf(run.Start)
	last, j := format.GroupOf(run.End() - 1)
	// The slots of a group are two adjacent blocks, so a run that avoids
	// them lies wholly on one side in each group.
	for g := first; g <= last; g++ {
		lo, hi := 0, format.GroupBlocks-1
		if g == first {
			lo = i
		}
		if g == last {
			hi = j
		}
		_, slot := format.GroupOf(format.BitmapAddr(g, 0))
		if lo <= slot+1 && hi >= slot {
			return fmt.Errorf("%w: %v covers a bitmap", ErrBadRange, run)
		}
	}
	if s.sb.IsFixed(run.Start) {
		return fmt.Errorf("%w: %v covers a fixed structure", ErrBadRange, run)
	}
	return nil
}

// checkData validates data requests: whole logical blocks, within the data area.
func (s *Store) checkData(reqs []nvme.Request, write bool) error {
	for i := range reqs {
		r := &reqs[i]
		size := r.LengthBytes
		switch r.Op {
		case nvme.OpRead, nvme.OpWrite:
			size = 0
			for _, v := range r.Vec {
				size += int64(len(v))
			}
		}
		isWrite := r.Op == nvme.OpWrite || r.Op == nvme.OpWriteZeroes || r.Op == nvme.OpDeallocate
		if isWrite != write || !isWrite && r.Op != nvme.OpRead {
			return fmt.Errorf("%w: operation %d", ErrBadRange, r.Op)
		}
		if size <= 0 || r.OffsetBytes < 0 || r.OffsetBytes > int64(format.MaxBlocks)<<format.BlockShift || size > 1<<40 {
			return fmt.Errorf("%w: %d bytes at %d", ErrBadRange, size, r.OffsetBytes)
		}
		first := r.OffsetBytes >> format.BlockShift
		last := (r.OffsetBytes + size - 1) >> format.BlockShift
		if err := s.checkDataRun(format.Run{Start: format.Addr(first), Blocks: uint64(last - first + 1)}); err != nil {
			return err
		}
	}
	return nil
}

// ReadData carries out reads of file data. Offsets are byte offsets in the
// volume: format.Addr.OffsetBytes of a block of the caller's own extents.
func (s *Store) ReadData(reqs []nvme.Request) error {
	if s.closed.Load() {
		return ErrClosed
	}
	if err := s.checkData(reqs, false); err != nil {
		return err
	}
	return s.dev.Do(reqs)
}

// WriteData carries out writes of file data (also write zeroes and
// deallocate) to blocks that the caller has allocated. A later Commit makes
// them durable, unless all have FUA set and are so when they complete. An error
// concerns only these blocks and does not fail the store.
func (s *Store) WriteData(reqs []nvme.Request) error {
	if err := s.writable(); err != nil {
		return err
	}
	if err := s.checkData(reqs, true); err != nil {
		return err
	}
	err := s.dev.Do(reqs)
	for i := range reqs {
		if !reqs[i].FUA || err != nil {
			s.dataWrites.Add(1) // also after an error: part may have been written
			break
		}
	}
	return err
}
