package soft

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"runsc-fs/nvme"
)

const (
	benchBytes   = 64 << 20
	benchSamples = 100_000 // calls of Do whose duration is measured, for each thread
)

// BenchmarkRandomRead reads 4 KiB at random places of a namespace in memory,
// through driver and controller. Depth is the number of requests in a call of
// Do. Throughput and processor time come from a run without clocks in it, the
// percentiles from a second one that measures each call: at depth 32 they are
// those of 32 reads together. driver-ns/IO is the processor time that is left when
// no data is moved: driver and controller; BenchmarkCopy is what moving takes.
func BenchmarkRandomRead(b *testing.B) {
	dev, err := NewMemory(benchBytes)
	if err != nil {
		b.Fatal(err)
	}
	defer dev.Close()
	chunk, err := dev.Arena().Alloc(256)
	if err != nil {
		b.Fatal(err)
	}
	for off := int64(0); off < benchBytes; off += int64(len(chunk)) { // touch all: the host would fault them in
		if err := dev.Do([]nvme.Request{{Op: nvme.OpWrite, OffsetBytes: off, Vec: [][]byte{chunk}}}); err != nil {
			b.Fatal(err)
		}
	}
	backing, err := NewMemoryBacking(benchBytes)
	if err != nil {
		b.Fatal(err)
	}
	idle, err := Open(motionless{backing}, dev.Arena(), Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer idle.Close()
	for _, depth := range []int{1, 32} {
		for _, threads := range []int{1, 2} {
			b.Run(fmt.Sprintf("depth%d/threads%d", depth, threads), func(b *testing.B) { benchRead(b, dev, idle, depth, threads) })
		}
	}
}

// motionless is a medium that moves no data.
type motionless struct{ Backing }

func (motionless) ReadV([][]byte, int64) error { return nil }

// BenchmarkCopy copies 4 KiB from random places of as much memory as
// BenchmarkRandomRead reads: nothing that moves data can be faster.
func BenchmarkCopy(b *testing.B) {
	backing, err := NewMemoryBacking(benchBytes)
	if err != nil {
		b.Fatal(err)
	}
	defer backing.Close()
	chunk := make([]byte, 1<<20)
	for off := int64(0); off < benchBytes; off += int64(len(chunk)) {
		if err := backing.WriteV([][]byte{chunk}, off, false); err != nil {
			b.Fatal(err)
		}
	}
	vec, seed := [][]byte{nil}, uint64(1)
	cpu := processorTime()
	for i := 0; b.Loop(); i++ {
		vec[0] = chunk[i%32*4096:][:4096]
		if err := backing.ReadV(vec, nextPage(&seed)); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(processorTime()-cpu)/float64(b.N), "cpu-ns/IO")
}

func benchRead(b *testing.B, dev, idle nvme.BlockDevice, depth, threads int) {
	readers := makeReaders(b, dev, depth, threads)
	defer readers.free()
	calls := (b.N + depth*threads - 1) / (depth * threads)
	b.ReportAllocs()
	b.ResetTimer()
	cpu, began := processorTime(), time.Now()
	readers.run(b, calls)
	elapsed, used := time.Since(began), processorTime()-cpu
	b.StopTimer()
	n := float64(calls * depth * threads)
	b.ReportMetric(n/elapsed.Seconds(), "IOPS")
	b.ReportMetric(float64(used)/n, "cpu-ns/IO")

	others := makeReaders(b, idle, depth, threads)
	defer others.free()
	cpu = processorTime()
	others.run(b, calls)
	b.ReportMetric(float64(processorTime()-cpu)/n, "driver-ns/IO")

	var wg sync.WaitGroup
	samples := make([][]int32, threads)
	for i, r := range readers {
		samples[i] = make([]int32, min(calls, benchSamples))
		wg.Go(func() { r.run(b, len(samples[i]), samples[i]) })
	}
	wg.Wait()
	all := slices.Concat(samples...)
	slices.Sort(all)
	for _, p := range []struct {
		unit  string
		share float64
	}{{"p50-ns", 0.5}, {"p99-ns", 0.99}, {"p99.9-ns", 0.999}} {
		b.ReportMetric(float64(all[int(p.share*float64(len(all)))]), p.unit)
	}
}

// reader is one thread of the benchmark.
type reader struct {
	dev  nvme.BlockDevice
	mem  []byte
	reqs []nvme.Request
	seed uint64
}

// readers are the threads of the benchmark, the first of which is its own.
type readers []*reader

func makeReaders(b *testing.B, dev nvme.BlockDevice, depth, threads int) readers {
	rs := make(readers, threads)
	for i := range rs {
		rs[i] = newReader(b, dev, depth, uint64(i+1))
		rs[i].run(b, 1000/depth+1, nil) // warm up
	}
	return rs
}

func (rs readers) run(b *testing.B, calls int) {
	var wg sync.WaitGroup
	for _, r := range rs[1:] {
		wg.Go(func() { r.run(b, calls, nil) })
	}
	rs[0].run(b, calls, nil)
	wg.Wait()
}

func (rs readers) free() {
	for _, r := range rs {
		r.dev.Arena().Free(r.mem)
	}
}

func newReader(b *testing.B, dev nvme.BlockDevice, depth int, seed uint64) *reader {
	mem, err := dev.Arena().Alloc(depth)
	if err != nil {
		b.Fatal(err)
	}
	r := &reader{dev: dev, mem: mem, reqs: make([]nvme.Request, depth), seed: seed}
	for i := range r.reqs {
		r.reqs[i] = nvme.Request{Op: nvme.OpRead, Vec: [][]byte{mem[i*4096:][:4096]}}
	}
	return r
}

// run calls Do so many times, and fills durations, in nanoseconds, if there are
// any.
func (r *reader) run(b *testing.B, calls int, durations []int32) {
	last := time.Now()
	for i := range calls {
		for j := range r.reqs {
			r.reqs[j].OffsetBytes = nextPage(&r.seed)
		}
		if err := r.dev.Do(r.reqs); err != nil {
			b.Error(err)
			return
		}
		if durations != nil {
			now := time.Now()
			durations[i] = int32(min(now.Sub(last), time.Second))
			last = now
		}
	}
}

// nextPage is the offset of a page by chance.
func nextPage(seed *uint64) int64 {
	*seed = *seed*6364136223846793005 + 1442695040888963407
	return int64(*seed>>33) % (benchBytes / 4096) * 4096
}

// processorTime is what the process has used, user and system.
func processorTime() time.Duration {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
