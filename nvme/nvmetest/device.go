package nvmetest

import (
	"bytes"
	"errors"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"runsc-fs/nvme"
)

func testGeometry(r *rig) {
	g := r.geo
	switch {
	case g.LBASizeBytes != 512 && g.LBASizeBytes != 4096:
		r.Errorf("logical blocks of %d bytes", g.LBASizeBytes)
	case g.Blocks <= 0 || g.SizeBytes() != g.Blocks*g.LBASizeBytes:
		r.Errorf("%d blocks, %d bytes", g.Blocks, g.SizeBytes())
	case g.MaxTransferBytes < nvme.PageSizeBytes || g.MaxTransferBytes%int(g.LBASizeBytes) != 0:
		r.Errorf("MaxTransferBytes is %d", g.MaxTransferBytes)
	case g.AtomicWriteBytes < int(g.LBASizeBytes):
		r.Errorf("AtomicWriteBytes is %d", g.AtomicWriteBytes)
	}
	r.do() // no requests are fine
	r.do(nvme.Request{Op: nvme.OpRead}, nvme.Request{Op: nvme.OpWrite, OffsetBytes: g.SizeBytes()})
}

// testRandomIO compares random requests with a model in memory.
func testRandomIO(r *rig) {
	model := make([]byte, r.geo.SizeBytes())
	for range r.rounds(250) {
		off, n := r.extent(200 << 10)
		vec := r.vec(n)
		if r.rng.IntN(2) == 0 {
			data := make([]byte, n)
			r.fill(data)
			scatter(vec, data)
			r.do(nvme.Request{Op: nvme.OpWrite, OffsetBytes: off, Vec: vec, FUA: r.rng.IntN(8) == 0})
			copy(model[off:], data)
			if !bytes.Equal(gather(vec), data) {
				r.Fatalf("write of %d bytes at %d changed its source", n, off)
			}
			continue
		}
		for _, p := range vec {
			clear(p)
		}
		r.do(nvme.Request{Op: nvme.OpRead, OffsetBytes: off, Vec: vec})
		if got := gather(vec); !bytes.Equal(got, model[off:off+int64(n)]) {
			r.Fatalf("read of %d bytes at %d in %d pieces differs from byte %d on", n, off, len(vec), firstDifference(got, model[off:]))
		}
	}
	r.compareAll(model)
}

func firstDifference(a, b []byte) int {
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return -1
}

// compareAll reads the whole device.
func (r *rig) compareAll(model []byte) {
	r.Helper()
	for off := 0; off < len(model); {
		n := min(len(model)-off, len(r.run))
		r.do(nvme.Request{Op: nvme.OpRead, OffsetBytes: int64(off), Vec: [][]byte{r.run[:n]}})
		if !bytes.Equal(r.run[:n], model[off:off+n]) {
			r.Fatalf("content differs at byte %d", off+firstDifference(r.run[:n], model[off:]))
		}
		off += n
	}
}

// testBigTransfers uses transfers far longer than one command and PRP lists of
// several pages.
func testBigTransfers(r *rig) {
	for i := range r.rounds(4) {
		n := (7 << 20) - r.lba*r.rng.IntN(1000)
		off := int64(i+1) * int64(r.lba)
		vec := r.vec(n)
		data := make([]byte, n)
		r.fill(data)
		scatter(vec, data)
		r.do(nvme.Request{Op: nvme.OpWrite, OffsetBytes: off, Vec: vec})
		vec = r.vec(n)
		r.do(nvme.Request{Op: nvme.OpRead, OffsetBytes: off, Vec: vec})
		if got := gather(vec); !bytes.Equal(got, data) {
			r.Fatalf("%d bytes at %d in %d pieces differ from byte %d on", n, off, len(vec), firstDifference(got, data))
		}
	}
}

// testDeepBatches issues far more requests in one call than a queue holds.
func testDeepBatches(r *rig) {
	counts := []int{1, 2, 3, 31, 32, 33, 255, 256, 257, 2000}
	if r.slow {
		counts = []int{3, 33, 300}
	}
	for _, count := range counts {
		writes := make([]nvme.Request, count)
		reads := make([]nvme.Request, count)
		where := r.rng.Perm(2000)[:count]
		for i, at := range where {
			b := r.run[i*r.lba:][:r.lba]
			r.fill(b)
			writes[i] = nvme.Request{Op: nvme.OpWrite, OffsetBytes: int64(at * r.lba), Vec: [][]byte{b}}
			reads[i] = nvme.Request{Op: nvme.OpRead, OffsetBytes: int64(at * r.lba), Vec: [][]byte{b}}
		}
		want := bytes.Clone(r.run[:count*r.lba])
		r.do(writes...)
		clear(r.run[:count*r.lba])
		r.do(reads...)
		if !bytes.Equal(r.run[:count*r.lba], want) {
			r.Fatalf("batch of %d: data differs", count)
		}
	}
}

// testConcurrency has more callers than queues, each with blocks of its own.
func testConcurrency(r *rig) {
	const callers, blocks = 12, 64
	rounds := r.rounds(60)
	var wg sync.WaitGroup
	for g := range callers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			rng := rand.New(rand.NewPCG(r.seed, uint64(g)))
			mem := r.run[g*blocks*nvme.PageSizeBytes:]
			reqs := make([]nvme.Request, blocks)
			for round := range rounds {
				count := 1 + rng.IntN(blocks)
				for _, op := range []nvme.Op{nvme.OpWrite, nvme.OpRead} {
					for i := range count {
						b := mem[i*r.lba:][:r.lba]
						if op == nvme.OpWrite {
							for j := range b {
								b[j] = byte(g + round + i + j)
							}
						} else {
							clear(b)
						}
						reqs[i] = nvme.Request{Op: op, OffsetBytes: int64((i*callers + g) * r.lba), Vec: [][]byte{b}}
					}
					if err := r.dev.Do(reqs[:count]); err != nil {
						r.Errorf("caller %d: %v", g, err)
						return
					}
				}
				for i := range count {
					for j, v := range mem[i*r.lba:][:r.lba] {
						if v != byte(g+round+i+j) {
							r.Errorf("caller %d round %d: block %d has foreign data at byte %d", g, round, i, j)
							return
						}
					}
				}
			}
		}()
	}
	wg.Wait()
}

func testFlushAndFUA(r *rig) {
	b := r.run[:r.lba]
	r.fill(b)
	r.do(nvme.Request{Op: nvme.OpWrite, Vec: [][]byte{b}}, nvme.Request{Op: nvme.OpFlush})
	r.do(nvme.Request{Op: nvme.OpFlush}, nvme.Request{Op: nvme.OpFlush})
	r.do(nvme.Request{Op: nvme.OpWrite, FUA: true, OffsetBytes: r.geo.SizeBytes() - int64(r.lba), Vec: [][]byte{b}})
	got := r.run[nvme.PageSizeBytes:][:r.lba]
	r.do(nvme.Request{Op: nvme.OpRead, OffsetBytes: r.geo.SizeBytes() - int64(r.lba), Vec: [][]byte{got}})
	if !bytes.Equal(got, b) {
		r.Error("FUA write of the last block differs")
	}
}

// testZeroes covers Write Zeroes, with more blocks than one command takes, and
// deallocation of many ranges.
func testZeroes(r *rig) {
	if !r.geo.WriteZeroes || !r.geo.Deallocate {
		err := r.dev.Do([]nvme.Request{{Op: nvme.OpWriteZeroes, LengthBytes: int64(r.lba)}})
		if !r.geo.WriteZeroes && !errors.Is(err, nvme.ErrUnsupported) {
			r.Errorf("Write Zeroes without support: %v", err)
		}
		err = r.dev.Do([]nvme.Request{{Op: nvme.OpDeallocate, LengthBytes: int64(r.lba)}})
		if !r.geo.Deallocate && !errors.Is(err, nvme.ErrUnsupported) {
			r.Errorf("deallocate without support: %v", err)
		}
		return
	}
	size := r.geo.SizeBytes()
	model := make([]byte, size)
	r.fill(model)
	for off := 0; off < len(model); off += len(r.run) {
		n := min(len(model)-off, len(r.run))
		copy(r.run, model[off:off+n])
		r.do(nvme.Request{Op: nvme.OpWrite, OffsetBytes: int64(off), Vec: [][]byte{r.run[:n]}})
	}
	for range r.rounds(20) {
		off, n := r.extent(1 << 20)
		r.do(nvme.Request{Op: nvme.OpWriteZeroes, OffsetBytes: off, LengthBytes: int64(n), FUA: r.rng.IntN(4) == 0})
		clear(model[off : off+int64(n)])
	}
	r.compareAll(model)

	// What is deallocated may read as anything until it is written again;
	// everything else has to stay.
	gone := make([]bool, r.geo.Blocks)
	reqs := make([]nvme.Request, 400)
	for i := range reqs {
		off, n := r.extent(8 << 10)
		reqs[i] = nvme.Request{Op: nvme.OpDeallocate, OffsetBytes: off, LengthBytes: int64(n)}
		for b := off / int64(r.lba); b < (off+int64(n))/int64(r.lba); b++ {
			gone[b] = true
		}
	}
	reqs[100].LengthBytes = 0
	r.do(reqs...)
	for b := range gone {
		if b%64 == 0 {
			n := min(64, len(gone)-b) * r.lba
			r.do(nvme.Request{Op: nvme.OpRead, OffsetBytes: int64(b * r.lba), Vec: [][]byte{r.run[:n]}})
		}
		off := b * r.lba
		if got := r.run[b%64*r.lba:][:r.lba]; !gone[b] && !bytes.Equal(got, model[off:off+r.lba]) {
			r.Fatalf("block %d changed, but was not deallocated", b)
		}
	}
	r.do(nvme.Request{Op: nvme.OpWriteZeroes, LengthBytes: size})
	clear(model)
	r.compareAll(model)
}

// testInvalidRequests wants errors for the bad and results for the good ones
// of the same call.
func testInvalidRequests(r *rig) {
	size, lba := r.geo.SizeBytes(), int64(r.lba)
	block := r.run[:r.lba]
	foreign := make([]byte, r.lba)
	bad := []nvme.Request{
		{Op: nvme.OpRead, OffsetBytes: size, Vec: [][]byte{block}},
		{Op: nvme.OpRead, OffsetBytes: -lba, Vec: [][]byte{block}},
		{Op: nvme.OpRead, OffsetBytes: math.MaxInt64 - (lba - 1), Vec: [][]byte{block}},
		{Op: nvme.OpWrite, OffsetBytes: size - lba, Vec: [][]byte{r.run[:2*r.lba]}},
		{Op: nvme.OpWrite, OffsetBytes: 4, Vec: [][]byte{block}},
		{Op: nvme.OpRead, Vec: [][]byte{block[:r.lba-4]}},
		{Op: nvme.OpRead, Vec: [][]byte{foreign}},
		{Op: nvme.OpWrite, Vec: [][]byte{block[:4], foreign[:r.lba-4]}},
		{Op: nvme.OpWriteZeroes, OffsetBytes: size, LengthBytes: lba},
		{Op: nvme.OpWriteZeroes, LengthBytes: -lba},
		{Op: nvme.OpDeallocate, OffsetBytes: lba, LengthBytes: size},
		{Op: nvme.OpDeallocate, OffsetBytes: 1, LengthBytes: lba},
		{Op: 0, Vec: [][]byte{block}},
		{Op: 99},
	}
	var all []nvme.Request
	for i := range bad {
		good := r.run[(i+2)*nvme.PageSizeBytes:][:r.lba]
		good[0] = 1
		all = append(all, bad[i], nvme.Request{Op: nvme.OpRead, OffsetBytes: int64(i) * lba, Vec: [][]byte{good}})
	}
	if err := r.dev.Do(all); err == nil {
		r.Error("no error at all")
	}
	for i := range all {
		if i%2 == 0 {
			if err := all[i].Err; !errors.Is(err, nvme.ErrInvalidRequest) && !errors.Is(err, nvme.ErrUnsupported) {
				r.Errorf("bad request %d: %v", i/2, err)
			}
		} else if all[i].Err != nil || r.run[(i/2+2)*nvme.PageSizeBytes] != 0 {
			r.Errorf("good request after bad request %d: %v", i/2, all[i].Err)
		}
	}
}

// testCloseDuringIO closes the device under its users: each request is carried
// out or refused, and nobody is left behind.
func testCloseDuringIO(r *rig) {
	var wg sync.WaitGroup
	var done atomic.Int64
	started := make(chan struct{})
	for g := range 6 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			b := r.run[g*nvme.PageSizeBytes:][:r.lba]
			for {
				err := r.dev.Do([]nvme.Request{{Op: nvme.OpWrite, OffsetBytes: int64(g * r.lba), Vec: [][]byte{b}}, {Op: nvme.OpFlush}})
				if err != nil {
					if !errors.Is(err, nvme.ErrClosed) {
						r.Errorf("caller %d: %v", g, err)
					}
					return
				}
				if done.Add(1) == 50 {
					close(started)
				}
			}
		}()
	}
	<-started
	if err := r.dev.Close(); err != nil {
		r.Errorf("closing under load: %v", err)
	}
	wg.Wait()
	if err := r.dev.Do([]nvme.Request{{Op: nvme.OpFlush}}); !errors.Is(err, nvme.ErrClosed) {
		r.Errorf("after closing: %v", err)
	}
}

// testNoAllocations holds Do to its promise.
func testNoAllocations(r *rig) {
	for _, count := range []int{1, 32} {
		reqs := make([]nvme.Request, count)
		for i := range reqs {
			reqs[i] = nvme.Request{Op: nvme.OpWrite, OffsetBytes: int64(i * nvme.PageSizeBytes), Vec: [][]byte{r.pages[i], r.pages[100-i]}}
			if i%2 == 1 {
				reqs[i].Op = nvme.OpRead
			}
		}
		n := testing.AllocsPerRun(r.rounds(50), func() { r.do(reqs...) })
		if n != 0 {
			r.Errorf("Do of %d requests allocates %v times", count, n)
		}
	}
}
