package fsck

import (
	"errors"
	"fmt"

	"runsc-fs/blobfs/format"
	"runsc-fs/nvme"
)

// readAhead is how many blocks are read with one request where many lie side
// by side.
const readAhead = 32

// blockReader reads blocks through a buffer in the device's arena.
type blockReader struct {
	dev    nvme.BlockDevice
	buf    []byte
	blocks uint64 // of the device
	req    [1]nvme.Request
	vec    [1][]byte
}

func newBlockReader(dev nvme.BlockDevice) (*blockReader, error) {
	g := dev.Geometry()
	if g.LBASizeBytes <= 0 || format.BlockSizeBytes%g.LBASizeBytes != 0 {
		return nil, fmt.Errorf("fsck: logical blocks of %d bytes are not supported", g.LBASizeBytes)
	}
	buf, err := dev.Arena().Alloc(readAhead)
	if errors.Is(err, nvme.ErrArenaFull) {
		buf, err = dev.Arena().Alloc(1)
	}
	if err != nil {
		return nil, fmt.Errorf("fsck: no memory for reading: %w", err)
	}
	return &blockReader{dev: dev, buf: buf, blocks: uint64(g.SizeBytes()) / format.BlockSizeBytes}, nil
}

func (r *blockReader) close() { r.dev.Arena().Free(r.buf) }

// read fills dst, a number of whole blocks, from addr on.
func (r *blockReader) read(addr format.Addr, dst []byte) error {
	first := addr.Block()
	if n := uint64(len(dst) / format.BlockSizeBytes); n > r.blocks || first > r.blocks-n {
		return fmt.Errorf("block %d lies behind the end of the device", first)
	}
	for len(dst) > 0 {
		n := min(len(dst), len(r.buf))
		r.vec[0] = r.buf[:n]
		r.req[0] = nvme.Request{Op: nvme.OpRead, OffsetBytes: int64(first) << format.BlockShift, Vec: r.vec[:]}
		if err := r.dev.Do(r.req[:]); err != nil {
			return fmt.Errorf("reading block %d: %w", first, err)
		}
		copy(dst, r.buf[:n])
		dst = dst[n:]
		first += uint64(n) / format.BlockSizeBytes
	}
	return nil
}
