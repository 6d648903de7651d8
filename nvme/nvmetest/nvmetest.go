// Package nvmetest is a conformance suite that every nvme.BlockDevice and every
// nvme.Transport passes. The package of an implementation calls Run or
// RunTransport from a test and says how one is opened.
package nvmetest

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"runsc-fs/nvme"
)

// Config says what kind of device a test wants. A zero field leaves the choice
// to the implementation. One that cannot provide something opens what comes
// near: the tests go by the geometry that they find.
type Config struct {
	SizeBytes       int64
	LBASizeBytes    int
	MDTS            int // Identify Controller, MDTS
	MaxQueueEntries int // CAP.MQES + 1
	Namespaces      int // number of namespaces, at least 1
	BoundaryBlocks  int // Identify Namespace, NOIOB
	DoorbellBuffer  bool
	Driver          nvme.Options
}

func (c Config) String() string {
	s := fmt.Sprintf("lba%d,mdts%d,entries%d,pairs%d,depth%d,max%d",
		c.LBASizeBytes, c.MDTS, c.MaxQueueEntries, c.Driver.QueuePairs, c.Driver.QueueDepth, c.Driver.MaxTransferBytes)
	if c.BoundaryBlocks != 0 {
		s += fmt.Sprintf(",boundary%d", c.BoundaryBlocks)
	}
	if c.DoorbellBuffer {
		s += ",dbbuf"
	}
	return s + fmt.Sprintf(",avoid%d", c.Driver.Avoid)
}

// configs are the kinds of devices that the suite goes through.
var configs = []Config{
	{},
	{LBASizeBytes: 4096, DoorbellBuffer: true},
	{LBASizeBytes: 512, MDTS: 1, Driver: nvme.Options{QueuePairs: 1, QueueDepth: 4, Avoid: nvme.FeatureSGL | nvme.FeatureDoorbellBuffer}},
	{LBASizeBytes: 4096, MDTS: 12, BoundaryBlocks: 48, Driver: nvme.Options{QueuePairs: 2, QueueDepth: 64, MaxTransferBytes: 3 << 20}},
	{LBASizeBytes: 512, MaxQueueEntries: 8, Driver: nvme.Options{QueuePairs: 3, QueueDepth: 256, Avoid: nvme.FeatureSGL}},
	{LBASizeBytes: 512, MDTS: 3, BoundaryBlocks: 24, DoorbellBuffer: true, Driver: nvme.Options{QueuePairs: 1, QueueDepth: 2}},
}

// OpenDevice opens a fresh device with the content zero. The test closes it.
type OpenDevice func(t testing.TB, c Config) nvme.BlockDevice

// OpenTransport makes a transport to a fresh controller that is not enabled.
type OpenTransport func(t testing.TB, c Config) nvme.Transport

// Options adapt the suite to an implementation.
type Options struct {
	// Slow devices get fewer rounds of random work.
	Slow bool
	// Configs are further kinds of devices to go through.
	Configs []Config
}

// RunTransport runs the whole suite on the driver over a transport.
func RunTransport(t *testing.T, open OpenTransport, opts Options) {
	Run(t, func(t testing.TB, c Config) nvme.BlockDevice {
		t.Helper()
		dev, err := nvme.OpenNamespace(open(t, c), 1, c.Driver)
		if err != nil {
			t.Fatalf("opening %v: %v", c, err)
		}
		return dev
	}, opts)
	t.Run("Controller", func(t *testing.T) { testController(t, open) })
	t.Run("Logs", func(t *testing.T) { testLogs(t, open) })
	t.Run("Events", func(t *testing.T) { testEvents(t, open) })
	for _, lba := range []int{512, 4096} {
		t.Run(fmt.Sprintf("Extras/lba%d", lba), func(t *testing.T) { testExtras(t, open, lba, opts) })
	}
}

// Run runs the tests that a device of any kind passes.
func Run(t *testing.T, open OpenDevice, opts Options) {
	for _, test := range []struct {
		name string
		run  func(*rig)
	}{
		{"Geometry", testGeometry},
		{"RandomIO", testRandomIO},
		{"BigTransfers", testBigTransfers},
		{"DeepBatches", testDeepBatches},
		{"Concurrency", testConcurrency},
		{"FlushAndFUA", testFlushAndFUA},
		{"ZeroesAndDeallocate", testZeroes},
		{"InvalidRequests", testInvalidRequests},
		{"CloseDuringIO", testCloseDuringIO},
		{"NoAllocations", testNoAllocations},
	} {
		t.Run(test.name, func(t *testing.T) {
			for _, c := range slices.Concat(configs, opts.Configs) {
				if c.SizeBytes = 16 << 20; opts.Slow {
					c.SizeBytes = 8 << 20
				}
				t.Run(c.String(), func(t *testing.T) { test.run(newRig(t, open, c, opts)) })
			}
		})
	}
}

// rig is an open device with memory for transfers and seeded chance.
type rig struct {
	*testing.T
	dev   nvme.BlockDevice
	geo   nvme.Geometry
	lba   int
	slow  bool
	seed  uint64
	rng   *rand.Rand
	arena *nvme.Arena
	pages [][]byte // memory for transfers, single pages
	run   []byte   // the same memory, which is contiguous
}

// transferPages is the memory of a rig.
const transferPages = 2560

func newRig(t *testing.T, open OpenDevice, c Config, opts Options) *rig {
	t.Helper()
	seed := rand.Uint64()
	dev := open(t, c)
	r := &rig{T: t, dev: dev, geo: dev.Geometry(), slow: opts.Slow, seed: seed, rng: rand.New(rand.NewPCG(seed, 3)), arena: dev.Arena()}
	r.lba = int(r.geo.LBASizeBytes)
	run, err := r.arena.Alloc(transferPages)
	if err != nil {
		t.Fatal(err)
	}
	r.run = run
	for i := range transferPages {
		r.pages = append(r.pages, run[i*nvme.PageSizeBytes:][:nvme.PageSizeBytes])
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("seed %d", seed)
		}
		if err := dev.Close(); err != nil {
			t.Errorf("closing: %v", err)
		}
	})
	return r
}

// rounds is how often to do what a quick device does n times.
func (r *rig) rounds(n int) int {
	if r.slow {
		return max(1, n/8)
	}
	return n
}

// do issues requests that must succeed.
func (r *rig) do(reqs ...nvme.Request) {
	r.Helper()
	if err := r.dev.Do(reqs); err != nil {
		r.Fatalf("%v", err)
	}
}

// vec makes pieces of n bytes altogether out of the transfer memory, in one of
// many layouts. No two pieces overlap.
func (r *rig) vec(n int) [][]byte {
	const page = nvme.PageSizeBytes
	if n == 0 {
		return nil
	}
	// Long transfers have only so many small pieces: memory must suffice.
	switch r.rng.IntN(4) {
	case 0: // one piece, anywhere
		slack := (len(r.run) - n) / 4
		off := 4 * r.rng.IntN(slack+1)
		return [][]byte{r.run[off : off+n]}
	case 1: // whole pages in any order, the first from its middle
		first := min(n, 4*(1+r.rng.IntN(page/4)))
		order := r.rng.Perm(transferPages)
		vec := [][]byte{r.pages[order[0]][page-first:][:first]}
		for n -= first; n > 0; n -= len(vec[len(vec)-1]) {
			order = order[1:]
			vec = append(vec, r.pages[order[0]][:min(n, page)])
		}
		return vec
	case 2: // pieces of whole blocks, anywhere in pages
		order := r.rng.Perm(transferPages)
		var vec [][]byte
		for ; n > 0; order = order[1:] {
			size := min(n, page)
			if len(order) > n/page+2 {
				size = min(n, r.lba*(1+r.rng.IntN(page/r.lba)))
			}
			off := 4 * r.rng.IntN((page-size)/4+1)
			vec = append(vec, r.pages[order[0]][off:off+size])
			n -= size
		}
		return vec
	}
	// Pieces of any size and alignment, some of them empty.
	order := r.rng.Perm(transferPages)
	var vec [][]byte
	for ; n > 0; order = order[1:] {
		size := min(n, page)
		if len(order) > n/page+2 && r.rng.IntN(2) == 0 {
			size = min(n, 1+r.rng.IntN(page))
		}
		off := r.rng.IntN(page - size + 1)
		vec = append(vec, r.pages[order[0]][off:off+size])
		if n -= size; r.rng.IntN(8) == 0 {
			vec = append(vec, r.pages[0][:0])
		}
	}
	return vec
}

// fill puts bytes into b that depend on chance and on their place.
func (r *rig) fill(b []byte) {
	for len(b) >= 8 {
		binary.LittleEndian.PutUint64(b, r.rng.Uint64())
		b = b[8:]
	}
	for i := range b {
		b[i] = byte(r.rng.Uint32())
	}
}

// scatter copies data into the pieces of vec, gather out of them.
func scatter(vec [][]byte, data []byte) {
	for _, p := range vec {
		data = data[copy(p, data):]
	}
}

func gather(vec [][]byte) []byte {
	n := 0
	for _, p := range vec {
		n += len(p)
	}
	data := make([]byte, 0, n)
	for _, p := range vec {
		data = append(data, p...)
	}
	return data
}

// extent picks a range of whole blocks of at most most bytes.
func (r *rig) extent(most int) (off int64, n int) {
	blocks := 1 + r.rng.IntN(max(1, most/r.lba))
	first := r.rng.Int64N(r.geo.Blocks - int64(blocks) + 1)
	return first * int64(r.lba), blocks * r.lba
}
