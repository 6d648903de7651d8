package fsck

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"runsc-fs/blobfs/format"
)

// ErrUndo says that an undo file is none, or does not fit the volume.
var ErrUndo = errors.New("fsck: cannot be undone")

// An undo file has what a repair overwrites, and what it writes instead, so
// that an undo can tell whether the volume was used since. Little endian:
//
//	 0  magic [8]      8  CRC32C of what follows u32    12  changes u32
//	16  blocks of the device u64
//	24  for each change: address u64, block before [4096], block after [4096]
const (
	undoMagic       = "BFUNDO1\n"
	undoHeaderBytes = 24
	undoChangeBytes = 8 + 2*format.BlockSizeBytes
	// maxUndoChanges bounds what is read: a repair writes slots of superblocks only.
	maxUndoChanges = format.SuperblockSlots
)

var undoCRC = crc32.MakeTable(crc32.Castagnoli)

// EncodeUndo returns the content of the repair's undo file.
func (r *Repair) EncodeUndo() []byte {
	le := binary.LittleEndian
	b := append([]byte(undoMagic), 0, 0, 0, 0)
	b = le.AppendUint32(b, uint32(len(r.changes)))
	b = le.AppendUint64(b, r.deviceBlocks)
	for _, c := range r.changes {
		b = le.AppendUint64(b, uint64(c.addr))
		b = append(b, c.before...)
		b = append(b, c.after...)
	}
	le.PutUint32(b[8:], crc32.Checksum(b[12:], undoCRC))
	return b
}

// ReadUndo reads an undo file. The error wraps ErrUndo if it is none.
func ReadUndo(from io.Reader) (*Repair, error) {
	const most = undoHeaderBytes + maxUndoChanges*undoChangeBytes
	b, err := io.ReadAll(io.LimitReader(from, most+1))
	if err != nil {
		return nil, err
	}
	le := binary.LittleEndian
	if len(b) < undoHeaderBytes || string(b[:8]) != undoMagic {
		return nil, fmt.Errorf("%w: this is no undo file", ErrUndo)
	}
	count := le.Uint32(b[12:])
	if count > maxUndoChanges || len(b) != undoHeaderBytes+int(count)*undoChangeBytes || le.Uint32(b[8:]) != crc32.Checksum(b[12:], undoCRC) {
		return nil, fmt.Errorf("%w: the undo file is damaged or incomplete", ErrUndo)
	}
	r := &Repair{deviceBlocks: le.Uint64(b[16:])}
	for b = b[undoHeaderBytes:]; len(b) > 0; b = b[undoChangeBytes:] {
		const n = format.BlockSizeBytes
		c := blockChange{format.Addr(le.Uint64(b)), b[8 : 8+n], b[8+n : 8+2*n]}
		if uint64(c.addr) >= r.deviceBlocks {
			return nil, fmt.Errorf("%w: the undo file names block %d of a volume of %d blocks", ErrUndo, uint64(c.addr), r.deviceBlocks)
		}
		r.changes = append(r.changes, c)
	}
	return r, nil
}
