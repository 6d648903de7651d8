package blobfs

import "fmt"

const (
	// copyChunkBytes is how much is copied between looks at the number of dirty
	// pages.
	copyChunkBytes = 1 << 20
	// maxCopyBytes is how much is copied, not shared, by one call: its caller may
	// be interrupted in between.
	maxCopyBytes = 16 << 20
)

// CopyRange makes [dstOff, dstOff+n) of i the same as [srcOff, srcOff+n) of src,
// a file of the same volume: it shares blocks where whole blocks go to whole
// blocks, and copies otherwise. It returns how many bytes that were: less than n
// at the end of src, or when the rest wants to be dealt with otherwise or is
// much, or when something stops it. Two ranges of one file must not overlap.
// Errors: as CloneRange; an error after the first byte is reported with the count.
func (i *Inode) CopyRange(src *Inode, srcOff, dstOff, n int64) (int64, error) {
	g, err := i.fs.gate.enter()
	if err != nil {
		return 0, err
	}
	defer g.leave()
	if err := i.checkPair(src, srcOff, dstOff, n); err != nil {
		return 0, err
	}
	n = min(n, max(src.size.Load()-srcOff, 0))
	switch {
	case n == 0:
		return 0, nil
	case src == i && dstOff < srcOff+n && srcOff < dstOff+n:
		return 0, fmt.Errorf("%w: ranges of one file overlap", ErrInvalid)
	}
	if (srcOff|dstOff)%BlockSizeBytes == 0 {
		done, err := i.remap(src, srcOff, dstOff, n, remapCopy)
		if done > 0 || err != nil {
			return done, err
		}
	}
	n = min(n, maxCopyBytes)
	from := &fileSource{src, srcOff}
	for done := int64(0); ; {
		chunk := min(n-done, copyChunkBytes)
		_, m, err := i.write(from, dstOff+done, chunk, 0, false)
		done += m
		if err != nil || m < chunk || done == n {
			return done, err
		}
	}
}

// fileSource is a Source of what is in a file.
type fileSource struct {
	inode *Inode
	off   int64
}

// CopyIn implements Source.
func (s *fileSource) CopyIn(b []byte) (int, error) {
	done, err := s.inode.ReadAt(&bytesSink{b}, s.off, int64(len(b)), 0)
	s.off += done
	return int(done), err
}

// bytesSink is a Sink into memory.
type bytesSink struct{ b []byte }

// CopyOut implements Sink.
func (s *bytesSink) CopyOut(b []byte) (int, error) {
	n := copy(s.b, b)
	s.b = s.b[n:]
	return n, nil
}
