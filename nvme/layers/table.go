package layers

import (
	"fmt"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// What a table says about a block besides the number of its layer.
const (
	isZeroes     = 0xff // in no layer: zeroes
	isDamaged    = 0xfe // the map of a frozen layer that would tell is damaged
	isDamagedTop = 0xfd // that of the top layer is
)

// table has the layer of each block, four blocks to a word. It lies in memory of
// its own, outside the garbage collector's reckoning; pages in which no block is
// above the base cost nothing.
type table struct {
	mem    []byte
	words  []atomic.Uint32
	blocks int64
}

func newTable(blocks int64) (*table, error) {
	words := (blocks + 3) / 4
	mem, err := unix.Mmap(-1, 0, int(words*4), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("layers: memory for the table of %d blocks: %w", blocks, err)
	}
	return &table{mem: mem, words: unsafe.Slice((*atomic.Uint32)(unsafe.Pointer(&mem[0])), words), blocks: blocks}, nil
}

func (t *table) close() error {
	if t.mem == nil {
		return nil
	}
	mem := t.mem
	t.mem, t.words = nil, nil
	return unix.Munmap(mem)
}

func (t *table) get(block int64) byte {
	return byte(t.words[block>>2].Load() >> (block & 3 * 8))
}

const everyByte = 0x01010101

// run returns the layer of block from and the first block below to that is in
// another, else to.
func (t *table) run(from, to int64) (layer byte, end int64) {
	layer = t.get(from)
	same := uint32(layer) * everyByte
	for end = from + 1; end < to; {
		if end&3 == 0 && end+4 <= to && t.words[end>>2].Load() == same {
			end += 4
		} else if t.get(end) == layer {
			end++
		} else {
			break
		}
	}
	return layer, end
}

// fill sets the layer of the blocks from … to-1. One caller at a time.
func (t *table) fill(from, to int64, layer byte) {
	for from < to {
		word := &t.words[from>>2]
		if from&3 == 0 && from+4 <= to {
			word.Store(uint32(layer) * everyByte)
			from += 4
			continue
		}
		shift := from & 3 * 8
		word.Store(word.Load()&^(0xff<<shift) | uint32(layer)<<shift)
		from++
	}
}
