package nvme_test

import (
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"
	"unsafe"

	"runsc-fs/nvme"
	"runsc-fs/nvme/soft"
	"runsc-fs/nvme/spec"
)

// hostile is a transport to a controller that lies: whatever the driver rings,
// a correct controller answers first, and then completions and identify pages
// are spoiled. It learns from the commands where they are.
type hostile struct {
	nvme.Transport
	arena *nvme.Arena

	mu       sync.Mutex
	rng      *rand.Rand
	identify float64 // share of identify pages to spoil
	complete float64 // share of I/O doorbells after which a queue is spoiled
	admin    float64 // the same for the admin queue
	register float64 // share of register reads that give nonsense
	asq      uint64
	tail     uint32
	asqSize  uint32
	cqs      map[uint32][]spec.CompletionEntry // by queue
}

func newHostile(t *testing.T, seed uint64) *hostile {
	t.Helper()
	arena, err := nvme.NewArena(nvme.ArenaOptions{SizeBytes: 16 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { arena.Close() })
	backing, err := soft.NewMemoryBacking(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	c, err := soft.New(arena, []soft.Backing{backing}, soft.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return &hostile{Transport: c, arena: arena, rng: rand.New(rand.NewPCG(seed, 5)), cqs: map[uint32][]spec.CompletionEntry{}}
}

func (h *hostile) at(addr uint64) unsafe.Pointer {
	return unsafe.Pointer(&h.arena.Bytes()[addr-h.DMABase()])
}

func (h *hostile) queue(addr uint64, entries uint32) []spec.CompletionEntry {
	return unsafe.Slice((*spec.CompletionEntry)(h.at(addr)), entries)
}

func (h *hostile) Read32(reg uint32) uint32 {
	v := h.Transport.Read32(reg)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.rng.Float64() < h.register {
		return []uint32{0, spec.Gone, h.rng.Uint32(), v ^ 1<<h.rng.IntN(32)}[h.rng.IntN(4)]
	}
	return v
}

func (h *hostile) Read64(reg uint32) uint64 {
	return uint64(h.Read32(reg)) | uint64(h.Read32(reg+4))<<32
}

func (h *hostile) Write64(reg uint32, v uint64) {
	h.mu.Lock()
	switch reg {
	case spec.RegASQ:
		h.asq, h.tail = v, 0
	case spec.RegACQ:
		h.cqs[0] = h.queue(v, h.asqSize)
	}
	h.mu.Unlock()
	h.Transport.Write64(reg, v)
}

func (h *hostile) Write32(reg, v uint32) {
	if reg == spec.RegAQA {
		h.mu.Lock()
		h.asqSize = v&0xfff + 1
		h.mu.Unlock()
	}
	h.Transport.Write32(reg, v)
	if reg < spec.RegDoorbells {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	bell := (reg - spec.RegDoorbells) / 4
	share := h.complete
	if bell == 0 {
		share = h.admin
		for ; h.tail != v; h.tail = (h.tail + 1) % h.asqSize {
			e := *(*spec.SubmissionEntry)(h.at(h.asq + uint64(h.tail)*spec.SQEBytes))
			switch e.OPC() {
			case spec.AdminCreateIOCQ:
				h.cqs[e.CDW10&0xffff] = h.queue(e.PRP1, e.CDW10>>16+1)
			case spec.AdminIdentify:
				if h.rng.Float64() < h.identify {
					h.spoilPage((*[4096]byte)(h.at(e.PRP1)))
				}
			}
		}
	}
	if cq := h.cqs[bell/2]; bell%2 == 0 && cq != nil && h.rng.Float64() < share {
		h.spoilQueue(cq)
	}
}

func (h *hostile) spoilPage(p *[4096]byte) {
	places := []int{spec.IDCtrlMDTS, spec.IDCtrlNN, spec.IDCtrlONCS, spec.IDCtrlVWC, spec.IDCtrlAWUPF, spec.IDCtrlRTD3E, spec.IDCtrlACL,
		spec.IDNSNSZE, spec.IDNSNSZE + 7, spec.IDNSFLBAS, spec.IDNSNLBAF, spec.IDNSNSFEAT, spec.IDNSNAWUPF, spec.IDNSDPS,
		spec.IDNSLBAF, spec.IDNSLBAF + 2, spec.IDNSLBAF + 2, spec.IDNSNABSPF}
	switch h.rng.IntN(8) {
	case 0:
		for i := range p {
			p[i] = byte(h.rng.Uint32())
		}
	case 1:
		for i := range p {
			p[i] = 0xff
		}
	case 2:
		clear(p[:])
	default:
		for range 1 + h.rng.IntN(4) {
			at := places[h.rng.IntN(len(places))] + h.rng.IntN(2)
			p[at] = byte(h.rng.Uint32()) >> h.rng.IntN(8)
		}
	}
}

func (h *hostile) spoilQueue(cq []spec.CompletionEntry) {
	for range 1 + h.rng.IntN(3) {
		e := &cq[h.rng.IntN(len(cq))]
		if h.rng.IntN(2) == 0 {
			e = &cq[h.rng.IntN(min(len(cq), 8))]
		}
		switch h.rng.IntN(7) {
		case 0:
			e.DW3 ^= 1 << 16 // phase
		case 1:
			e.DW3 = h.rng.Uint32()
		case 2:
			e.DW3 ^= 1 << h.rng.IntN(16) // CID
		case 3:
			e.DW2 = h.rng.Uint32()
		case 4:
			e.DW2 ^= 1 << h.rng.IntN(32)
		case 5:
			e.DW3 ^= 1 << (17 + h.rng.IntN(15)) // status
		case 6:
			*e = cq[h.rng.IntN(len(cq))]
		}
	}
}

var hostileOptions = nvme.Options{
	QueuePairs: 2, QueueDepth: 8, CommandTimeout: 4 * time.Millisecond, AdminTimeout: 10 * time.Millisecond, Retries: 2,
}

// TestHostileCompletions: spoiled completions may fail requests and cost
// resets, but Do returns, without a panic, and the device is either usable
// afterwards or says that it is not.
func TestHostileCompletions(t *testing.T) {
	start := rand.Uint64()
	for round := range uint64(60) {
		seed := start + round
		h := newHostile(t, seed)
		dev, err := nvme.OpenNamespace(h, 1, hostileOptions)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		h.mu.Lock()
		h.complete = []float64{0.02, 0.1, 0.5}[round%3]
		if round%4 == 0 {
			h.admin = 0.3
		}
		h.mu.Unlock()
		var wg sync.WaitGroup
		for g := range 3 {
			mem, err := h.arena.Alloc(16)
			if err != nil {
				t.Fatal(err)
			}
			wg.Add(1)
			go func() {
				defer wg.Done()
				reqs := make([]nvme.Request, 16)
				for i := range 20 {
					for j := range reqs {
						reqs[j] = nvme.Request{Op: nvme.OpRead + nvme.Op(j%2), OffsetBytes: int64(g*16+j) * 4096, Vec: [][]byte{mem[j*4096:][:4096]}}
					}
					err := dev.Do(reqs[:1+(i*7+g)%16])
					if err != nil && !errors.Is(err, nvme.ErrIO) {
						t.Errorf("seed %d: %v", seed, err)
					}
				}
			}()
		}
		wg.Wait()
		h.mu.Lock()
		h.complete, h.admin = 0, 0
		h.mu.Unlock()
		page, err := h.arena.Alloc(1)
		if err != nil {
			t.Fatal(err)
		}
		for try := range 3 {
			// What was spoiled before may still come to light, once.
			err = dev.Do([]nvme.Request{{Op: nvme.OpWrite, Vec: [][]byte{page}}})
			if err == nil || errors.Is(err, nvme.ErrControllerFatal) {
				break
			}
			if try == 2 {
				t.Errorf("seed %d: an honest controller still fails: %v", seed, err)
			}
		}
		dev.Close()
	}
}

// TestHostileIdentify: whatever a controller says about itself, it is refused
// or gives a geometry that can be worked with.
func TestHostileIdentify(t *testing.T) {
	start := rand.Uint64()
	opened := 0
	for round := range uint64(400) {
		seed := start + round
		h := newHostile(t, seed)
		h.identify = 0.7
		if round%4 == 3 {
			h.register = 0.02
		}
		before := h.arena.FreePages()
		c, err := nvme.Open(h, hostileOptions)
		if err != nil {
			if n := h.arena.FreePages(); n != before {
				t.Fatalf("seed %d: %d pages leaked after %v", seed, before-n, err)
			}
			h.Close()
			continue
		}
		h.mu.Lock()
		h.register = 0
		h.mu.Unlock()
		ids, err := c.ActiveNamespaces()
		for i, id := range ids {
			if err == nil && (id == 0 || id > c.Info().Namespaces || (i > 0 && ids[i-1] >= id)) {
				t.Errorf("seed %d: namespaces %v", seed, ids)
			}
		}
		if ns, err := c.Namespace(1); err == nil {
			opened++
			g := ns.Geometry()
			if g.LBASizeBytes < 512 || g.LBASizeBytes > 4096 || g.Blocks <= 0 || g.SizeBytes() <= 0 || g.SizeBytes()/g.LBASizeBytes != g.Blocks ||
				g.MaxTransferBytes < nvme.PageSizeBytes || g.AtomicWriteBytes < int(g.LBASizeBytes) {
				t.Errorf("seed %d: geometry %+v", seed, g)
			}
			page, err := h.arena.Alloc(1)
			if err != nil {
				t.Fatal(err)
			}
			for _, off := range []int64{0, g.SizeBytes() - g.LBASizeBytes} {
				ns.Do([]nvme.Request{{Op: nvme.OpRead, OffsetBytes: off, Vec: [][]byte{page[:g.LBASizeBytes]}}, {Op: nvme.OpFlush}})
			}
		}
		c.Close()
	}
	if opened == 0 {
		t.Error("no controller got as far as a namespace: the test is too hostile")
	}
}
