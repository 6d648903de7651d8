package blobfstest

import (
	"slices"

	"runsc-fs/blobfs"
)

// opShift takes blocks out of a file, or puts some in.
func (r *Runner) opShift() error {
	n := r.pickFile()
	if n == nil {
		return nil
	}
	off, count := r.blocksSpan()
	size := int64(len(n.Data))
	if r.rng.IntN(2) == 0 { // more often within the file
		off = min(off, size/2&^(blobfs.BlockSizeBytes-1))
		count = min(count, 4*blobfs.BlockSizeBytes)
	}
	collapse := r.rng.IntN(2) == 0
	if !collapse && size+count > r.opts.MaxFileBytes {
		return nil
	}
	r.describe("shift, collapse %v, %d bytes at %d of %d", collapse, count, off, size)
	real, err := r.real(n)
	if err != nil {
		return err
	}
	var want, got error
	if collapse {
		if count == 0 || off+count >= size {
			want = blobfs.ErrInvalid
		} else {
			n.Data = slices.Delete(n.Data, int(off), int(off+count))
		}
		got = real.Collapse(off, count)
	} else {
		if count == 0 || off >= size {
			want = blobfs.ErrInvalid
		} else {
			n.Data = slices.Insert(n.Data, int(off), make([]byte, count)...)
		}
		got = real.Insert(off, count)
	}
	if err := same(got, want); err != nil || got != nil {
		return err
	}
	// Not every file system of the host can do it.
	return r.mirror(nil, func(h *host) error {
		if err := h.truncate(n, int64(len(n.Data))); err != nil {
			return err
		}
		return h.write(n, 0, n.Data)
	})
}
