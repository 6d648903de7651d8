package blobfs

import (
	"math/rand/v2"
	"testing"
	"time"

	"runsc-fs/blobfs/format"
)

// TestExtentMap compares the cache of extents with one array entry per block.
func TestExtentMap(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 4))
	const blocks = 6000
	var disk [blocks]format.Addr // 0: hole
	var m extMap
	load := func(block uint64) extWindow {
		w := extWindow{from: block, to: endOfBlocks}
		for w.from > 0 && disk[w.from-1] == disk[block] && disk[block] == 0 {
			w.from--
		}
		for b := w.from; b < blocks; b++ {
			e := extent{first: b, addr: disk[b], blocks: 1}
			switch n := len(w.ext); {
			case disk[b] == 0:
				continue
			case n > 0 && w.ext[n-1].follows(e):
				w.ext[n-1].blocks++
			case n == windowExtents:
				w.to = w.ext[n-1].end()
				return w
			default:
				w.ext = append(w.ext, e)
			}
		}
		return w
	}
	for range 20000 {
		if rng.IntN(3) == 0 {
			from := rng.Uint64N(blocks)
			to := min(from+1+rng.Uint64N(20), blocks)
			var with []extent
			for b := from; b < to; {
				n := min(1+rng.Uint64N(4), to-b)
				addr := format.Addr(0)
				if rng.IntN(3) > 0 {
					addr = format.Addr(1 + rng.Uint64N(1<<20))
					if b > 0 && disk[b-1] != 0 && rng.IntN(2) == 0 {
						addr = disk[b-1] + 1
					}
					with = append(with, extent{first: b, addr: addr, blocks: uint32(n)})
				}
				for k := range n {
					if disk[b+k] = addr; addr != 0 {
						disk[b+k] += format.Addr(k)
					}
				}
				b += n
			}
			m.replace(from, to, with...)
			continue
		}
		block := rng.Uint64N(blocks)
		got, ok := m.find(block, 50)
		if !ok {
			if !m.install(m.sequence(), load(block)) {
				t.Fatal("install refused")
			}
			if got, ok = m.find(block, 50); !ok {
				t.Fatalf("block %d is unknown after loading", block)
			}
		}
		for k := range got.blocks {
			want := format.Addr(0)
			if block+k < blocks {
				want = disk[block+k]
			}
			addr := format.Addr(0)
			if got.state != blockHole {
				addr = got.addr + format.Addr(k)
			}
			if addr != want {
				t.Fatalf("block %d+%d is at %v, not %v", block, k, addr, want)
			}
		}
		if len(m.win) > maxWindows+1 {
			t.Fatalf("%d windows", len(m.win))
		}
	}
}

// TestManyExtents reads a file whose extents do not fit in memory at once.
func TestManyExtents(t *testing.T) {
	e := newEnv(t, 256<<20)
	root := e.fs.Root()
	defer root.DecRef()
	f := e.create(root, "f", ModeRegular|0o644)
	defer f.DecRef()
	const extents = 20000
	buf := make([]byte, BlockSizeBytes)
	for n := range int64(extents) {
		stampBlock(buf, 1, uint64(n*2), 1)
		e.write(f, n*2*BlockSizeBytes, buf, 0)
	}
	e.must(f.Fsync(nil, false))
	f.dropAllPages()
	f.ext.reset()
	rng := rand.New(rand.NewPCG(1, 1))
	for range 3000 {
		block := rng.Int64N(extents * 2)
		clear(buf)
		if block%2 == 0 {
			stampBlock(buf, 1, uint64(block), 1)
		}
		e.expect(f, block*BlockSizeBytes, buf[:min(BlockSizeBytes, f.Size()-block*BlockSizeBytes)], IODirect)
	}
	e.must(f.Truncate(0))
	if a := f.Attr(); a.Blocks != 0 {
		t.Errorf("%d blocks are left", a.Blocks)
	}
}
