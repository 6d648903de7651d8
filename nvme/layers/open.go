package layers

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"time"

	"runsc-fs/nvme/soft"
)

// IsLayer tells whether a file is a layer file rather than a plain image,
// whether or not it can be used.
func IsLayer(f io.ReaderAt) bool {
	var head [len(magic)]byte
	n, _ := f.ReadAt(head[:], 0)
	return n == len(head) && head == magic
}

// SizeBytes returns the capacity that an image or the top of a stack offers: the
// length of a plain image, that of the data of a layer file.
func SizeBytes(f *os.File) (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, fmt.Errorf("layers: %w", err)
	}
	h, err := readHeader(f)
	if errors.Is(err, ErrNotLayer) {
		return info.Size(), nil
	}
	if err != nil {
		return 0, err
	}
	return info.Size() - h.dataOffset, nil
}

func readHeader(f *os.File) (*header, error) {
	b := make([]byte, sectorBytes)
	n, err := f.ReadAt(b, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("layers: %w", err)
	}
	h, err := decodeHeader(b[:n])
	if err != nil {
		return nil, fmt.Errorf("layer %s: %w", f.Name(), err)
	}
	return h, nil
}

// identityOf describes an open file, which must be a layer if h is given.
func identityOf(f *os.File, h *header) (identity, error) {
	info, err := f.Stat()
	if err != nil {
		return identity{}, fmt.Errorf("layers: %w", err)
	}
	head := make([]byte, headBytes)
	n, err := f.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return identity{}, fmt.Errorf("layers: %w", err)
	}
	id := identity{sizeBytes: info.Size(), mtimeNs: info.ModTime().UnixNano(), headCRC: crc32.Checksum(head[:n], castagnoli)}
	if h != nil {
		id.id = h.id
	}
	return id, nil
}

// Create makes the empty file f, open for writing, a layer of sizeBytes above
// the stack in parents, base first, which nobody may write to any more. What was
// written to it before is made durable. f is durable when Create returns. The
// files stay the caller's.
func Create(f *os.File, parents []*os.File, sizeBytes int64) error {
	switch {
	case len(parents) == 0:
		return errors.New("layers: a layer needs a parent")
	case len(parents) >= MaxDepth:
		return failf(ErrTooDeep, "there are %d layers below it already, and %d is the most", len(parents), MaxDepth-1)
	case sizeBytes <= 0 || sizeBytes%BlockBytes != 0 || sizeBytes>>blockShift > maxBlocks:
		return fmt.Errorf("layers: a size of %d bytes is not possible", sizeBytes)
	}
	headers, err := checkChain(parents)
	if err != nil {
		return err
	}
	parent := parents[len(parents)-1]
	if err := parent.Sync(); err != nil {
		return fmt.Errorf("layers: %w", err)
	}
	id, err := identityOf(parent, headers[len(parents)-1])
	if err != nil {
		return err
	}
	h := newHeader(id, sizeBytes)
	if _, err := f.WriteAt(h.encode(), 0); err != nil {
		return fmt.Errorf("layers: %w", err)
	}
	if err := f.Truncate(h.dataOffset + sizeBytes); err != nil {
		return fmt.Errorf("layers: %w", err)
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("layers: %w", err)
	}
	return nil
}

// checkChain reads the headers of files that lie on each other, base first, and
// makes sure that each lies on what it was made for. The header of the base is
// nil.
func checkChain(files []*os.File) ([]*header, error) {
	if len(files) > MaxDepth {
		return nil, failf(ErrTooDeep, "there are %d layers, and %d is the most", len(files), MaxDepth)
	}
	headers := make([]*header, len(files))
	for i, f := range files {
		h, err := readHeader(f)
		switch {
		case i == 0 && errors.Is(err, ErrNotLayer):
			continue
		case err != nil:
			return nil, err
		case i == 0:
			return nil, failf(ErrParent, "%s is a layer, and what lies below it was not given", f.Name())
		}
		headers[i] = h
		if err := checkParent(h, f, files[i-1], headers[i-1]); err != nil {
			return nil, err
		}
	}
	return headers, nil
}

// checkParent refuses a parent that is not what it was when h was made.
func checkParent(h *header, f, parent *os.File, parentHeader *header) error {
	have, err := identityOf(parent, parentHeader)
	if err != nil {
		return err
	}
	want := h.parent
	switch {
	case have == want:
		return nil
	case have.id != want.id:
		return failf(ErrParent, "%s lies on another file than %s", f.Name(), parent.Name())
	}
	mtimeNs := have.mtimeNs
	if have.mtimeNs = want.mtimeNs; have != want {
		return failf(ErrParent, "%s was changed or replaced after %s was made on it; put the original back", parent.Name(), f.Name())
	}
	return failf(ErrParent, "%s was changed at %s, after %s was made on it; put the original back, or if it is a faithful copy, 'touch -d @%d.%09d %s'",
		parent.Name(), time.Unix(0, mtimeNs).UTC().Format(time.RFC3339), f.Name(), want.mtimeNs/1e9, want.mtimeNs%1e9, parent.Name())
}

// Grow makes the volume of sizeBytes whose last file is f, open for writing: a plain
// image or the top of a stack, which may be in use. A file that is long enough
// stays as it is. It is durable when Grow returns.
func Grow(f *os.File, sizeBytes int64) error {
	h, err := readHeader(f)
	switch {
	case errors.Is(err, ErrNotLayer):
	case err != nil:
		return err
	case sizeBytes>>blockShift > h.capacityBlocks:
		return failf(ErrTooLarge, "%s has room for %d bytes, not for %d", f.Name(), h.capacityBlocks<<blockShift, sizeBytes)
	default:
		sizeBytes += h.dataOffset
	}
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("layers: %w", err)
	}
	if info.Size() < sizeBytes {
		if err := f.Truncate(sizeBytes); err != nil {
			return fmt.Errorf("layers: %w", err)
		}
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("layers: %w", err)
	}
	return nil
}

// Open serves a stack of files, base first. With one file it is a plain image.
// All but the last need only be open for reading and are never written; with
// readOnly, nor is the last. It takes the files over, unless it fails.
//
// System calls: those of soft.NewFileBacking, and while opening and closing an
// anonymous mmap, and munmap.
func Open(files []*os.File, readOnly bool) (soft.Backing, error) {
	if len(files) == 0 {
		return nil, errors.New("layers: no files")
	}
	headers, err := checkChain(files)
	if err != nil {
		return nil, err
	}
	list := make([]layer, len(files))
	for i, f := range files {
		last := i == len(files)-1
		backing, err := soft.NewFileBacking(f, readOnly || !last)
		if err != nil {
			return nil, err
		}
		list[i] = layer{backing: backing, header: headers[i]}
	}
	if len(list) == 1 {
		return list[0].backing, nil
	}
	s, err := newStack(list, readOnly)
	if err != nil {
		return nil, err
	}
	s.name = fmt.Sprintf("image %s above %d layers", files[len(files)-1].Name(), len(files)-1)
	return s, nil
}

// newStack makes the medium from at least two layers with backing and header.
func newStack(list []layer, readOnly bool) (*stack, error) {
	top := len(list) - 1
	for i := range list {
		l := &list[i]
		size := l.backing.Properties().SizeBytes
		if l.header != nil {
			l.dataOffset = l.header.dataOffset
		}
		l.blocks = (size - l.dataOffset) >> blockShift
		if i > 0 && (l.blocks < 1 || l.blocks > l.header.capacityBlocks) {
			return nil, failf(ErrDamaged, "%v has %d bytes, which is not what its header says", l.backing, size)
		}
	}
	capacity := list[top].blocks
	if !readOnly {
		capacity = list[top].header.capacityBlocks
	}
	t, err := newTable(list[top].blocks, capacity)
	if err != nil {
		return nil, err
	}
	sectors := sectorsFor(capacity)
	s := &stack{
		layers: list,
		top:    byte(top),
		medium: list[top].backing,
		table:  t,
		name:   fmt.Sprintf("%v above %d layers", list[top].backing, top),
		props: soft.Properties{
			ReadOnly:           readOnly,
			VolatileWriteCache: true,
			DeallocateZeroes:   true,
		},
		dirty:    newSectorSet(sectors),
		reserved: newSectorSet(sectors/(mapOffset/sectorBytes) + 1),
		buf:      make([]byte, BlockBytes),
	}
	for i := range list {
		if err := s.merge(i); err != nil {
			return nil, errors.Join(err, t.close())
		}
	}
	return s, nil
}

// mapChunkBytes is how much of a map is read at a time.
const mapChunkBytes = 1 << 20

// merge brings what layer i has into the table, above what lies below it.
func (s *stack) merge(i int) error {
	l := &s.layers[i]
	if i == 0 {
		s.below = l.blocks
		return nil
	}
	// What lies behind its end was not there in its time. Behind the end of all
	// below it nothing is, and what the table says there is the base: see run.
	if end := min(s.below, s.table.blocks()); l.blocks < end {
		s.table.fill(l.blocks, end, isZeroes)
	}
	s.below = max(s.below, l.blocks)
	blocks := min(l.blocks, s.table.blocks())
	sectors := sectorsFor(blocks)
	buf := make([]byte, min(mapChunkBytes, alignUp(sectors*sectorBytes, mapOffset)))
	for number := int64(0); number < sectors; {
		chunk := buf[:min(int64(len(buf)), (sectors-number)*sectorBytes)]
		if err := l.backing.ReadV([][]byte{chunk}, mapOffset+number*sectorBytes); err != nil {
			return fmt.Errorf("layers: reading the map of %v: %w", l.backing, err)
		}
		for ; len(chunk) > 0; chunk, number = chunk[sectorBytes:], number+1 {
			s.mergeSector(i, chunk[:sectorBytes], number, blocks)
		}
	}
	return nil
}

func (s *stack) mergeSector(i int, sector []byte, number, blocks int64) {
	empty, ok := checkSector(sector, &s.layers[i].header.id, number)
	first := number * bitsPerSector
	switch {
	case empty:
		return
	case !ok && byte(i) == s.top:
		s.table.fill(first, min(first+bitsPerSector, blocks), isDamagedTop)
	case !ok:
		s.table.fill(first, min(first+bitsPerSector, blocks), isDamaged)
	default:
		eachRun(sector, func(from, to int64) {
			s.table.fill(min(first+from, blocks), min(first+to, blocks), byte(i))
		})
	}
	if byte(i) == s.top {
		page := number / (mapOffset / sectorBytes)
		s.reserved.add(page, page)
	}
}

// Check reports what is damaged in the maps of an open medium of this package:
// the number of blocks that cannot be told apart from their parent's.
func Check(b soft.Backing) (damagedBlocks int64) {
	s, ok := b.(*stack)
	if !ok {
		return 0
	}
	for at := int64(0); at < s.table.blocks(); {
		number, end := s.table.run(at, s.table.blocks())
		if number == isDamaged || number == isDamagedTop {
			damagedBlocks += end - at
		}
		at = end
	}
	return damagedBlocks
}
