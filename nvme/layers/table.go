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
// above the base cost nothing. It has address space for all that the
// volume may grow to, so that it never moves.
type table struct {
	mem   []byte
	words []atomic.Uint32
	size  atomic.Int64 // blocks in use
}

// newTable makes a table of blocks that may grow to capacity, or not at all if the
// host does not give that much address space.
func newTable(blocks, capacity int64) (*table, error) {
	words := (max(blocks, capacity) + 3) / 4
	mem, err := mapTable(words)
	if err != nil {
		words = (blocks + 3) / 4
		mem, err = mapTable(words)
	}
	if err != nil {
		return nil, fmt.Errorf("layers: memory for the table of %d blocks: %w", blocks, err)
	}
	t := &table{mem: mem, words: unsafe.Slice((*atomic.Uint32)(unsafe.Pointer(&mem[0])), words)}
	t.size.Store(blocks)
	return t, nil
}

func mapTable(words int64) ([]byte, error) {
	return unix.Mmap(-1, 0, int(words*4), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
}

func (t *table) blocks() int64 { return t.size.Load() }

// grow makes the table larger: the new blocks are the base's. It reports false if
// there is no room.
func (t *table) grow(blocks int64) bool {
	if blocks > int64(len(t.words))*4 {
		return false
	}
	t.size.Store(max(blocks, t.blocks()))
	return true
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
