package blobfstest

import (
	"bytes"
	"fmt"

	"runsc-fs/blobfs"
)

// pickPair returns two files, now and then the same twice.
func (r *Runner) pickPair() (src, dst *Node) {
	src, dst = r.pickFile(), r.pickFile()
	if r.rng.IntN(8) == 0 {
		dst = src
	}
	return src, dst
}

// blocksSpan is span in whole blocks.
func (r *Runner) blocksSpan() (off, n int64) {
	off, n = r.span(r.opts.MaxFileBytes)
	const mask = blobfs.BlockSizeBytes - 1
	return off &^ mask, max(n&^mask, blobfs.BlockSizeBytes)
}

// overlaps reports whether two ranges of n bytes do.
func overlaps(a, b, n int64) bool { return a < b+n && b < a+n }

func (r *Runner) opClone() error {
	src, dst := r.pickPair()
	if src == nil {
		return nil
	}
	size := int64(len(src.Data))
	srcOff, n := r.blocksSpan()
	dstOff, _ := r.blocksSpan()
	switch r.rng.IntN(4) {
	case 0: // the whole file, to its end
		srcOff, dstOff, n = 0, 0, 0
	case 1: // what lies in the file
		srcOff = min(srcOff, size&^(blobfs.BlockSizeBytes-1))
		n = min(n, size-srcOff)
	}
	r.describe("clone %d bytes at %d of %d to %d of %d, same %v", n, srcOff, size, dstOff, len(dst.Data), src == dst)
	s, err := r.real(src)
	if err != nil {
		return err
	}
	d, err := r.real(dst)
	if err != nil {
		return err
	}
	count := n
	if n == 0 {
		count = size - srcOff
	}
	var want error
	switch {
	case n == 0 && srcOff == size:
	case srcOff >= size, srcOff+count > size,
		count%blobfs.BlockSizeBytes != 0 && (srcOff+count < size || dstOff+count < int64(len(dst.Data))),
		src == dst && overlaps(srcOff, dstOff, count):
		want = blobfs.ErrInvalid
	}
	got := d.CloneRange(s, srcOff, dstOff, n)
	if err := same(got, want); err != nil || got != nil || count == 0 {
		return err
	}
	data := bytes.Clone(src.Data[srcOff : srcOff+count])
	dst.write(dstOff, data)
	return r.mirror(nil, func(h *host) error { return h.write(dst, dstOff, data) })
}

// opDedupe often makes the ranges equal first.
func (r *Runner) opDedupe() error {
	src, dst := r.pickPair()
	if src == nil {
		return nil
	}
	srcOff, n := r.blocksSpan()
	dstOff, _ := r.blocksSpan()
	if srcOff+n > int64(len(src.Data)) || dstOff+n > int64(len(dst.Data)) || src == dst && overlaps(srcOff, dstOff, n) {
		return nil
	}
	s, err := r.real(src)
	if err != nil {
		return err
	}
	d, err := r.real(dst)
	if err != nil {
		return err
	}
	if r.rng.IntN(2) == 0 {
		data := bytes.Clone(src.Data[srcOff : srcOff+n])
		if got, err := d.WriteAt(&source{data}, dstOff, n, 0); err != nil || got != n {
			return fmt.Errorf("wrote %d: %w", got, err)
		}
		dst.write(dstOff, data)
		if err := r.mirror(nil, func(h *host) error { return h.write(dst, dstOff, data) }); err != nil {
			return err
		}
	}
	r.describe("dedupe %d bytes at %d and %d, same %v", n, srcOff, dstOff, src == dst)
	got, err := d.DedupeRange(s, srcOff, dstOff, n)
	if bytes.Equal(src.Data[srcOff:srcOff+n], dst.Data[dstOff:dstOff+n]) {
		if err != nil || got != n {
			return fmt.Errorf("%d bytes of equal ranges: %w", got, err)
		}
		return nil
	}
	return same(err, blobfs.ErrDiffers)
}

func (r *Runner) opCopy() error {
	src, dst := r.pickPair()
	if src == nil {
		return nil
	}
	srcOff, n := r.span(r.opts.MaxFileBytes)
	dstOff, _ := r.span(r.opts.MaxFileBytes)
	size := int64(len(src.Data))
	count := min(n, max(size-srcOff, 0))
	r.describe("copy %d bytes at %d of %d to %d of %d, same %v", n, srcOff, size, dstOff, len(dst.Data), src == dst)
	s, err := r.real(src)
	if err != nil {
		return err
	}
	d, err := r.real(dst)
	if err != nil {
		return err
	}
	if src == dst && overlaps(srcOff, dstOff, count) && count > 0 {
		_, err := d.CopyRange(s, srcOff, dstOff, n)
		return same(err, blobfs.ErrInvalid)
	}
	for done := int64(0); ; {
		got, err := d.CopyRange(s, srcOff+done, dstOff+done, n-done)
		if err != nil || got < 0 || done+got > count || got == 0 && done < count {
			return fmt.Errorf("copied %d bytes, %d before: %w", got, done, err)
		}
		if got == 0 {
			return nil
		}
		data := bytes.Clone(src.Data[srcOff+done : srcOff+done+got])
		dst.write(dstOff+done, data)
		if err := r.mirror(nil, func(h *host) error { return h.write(dst, dstOff+done, data) }); err != nil {
			return err
		}
		if done += got; done == count {
			return nil
		}
	}
}
