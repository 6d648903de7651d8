package nvme_test

import (
	"encoding/binary"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"runsc-fs/nvme"
	"runsc-fs/nvme/soft"
	"runsc-fs/nvme/spec"
)

// script is fuzz input, read piece by piece; behind its end there are zeroes.
type script struct {
	mu   sync.Mutex // events are dealt with on a goroutine of their own
	data []byte
}

func (s *script) byte() byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.data) == 0 {
		return 0
	}
	b := s.data[0]
	s.data = s.data[1:]
	return b
}

func (s *script) over() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.data) == 0
}

func (s *script) uint16() uint16 { return uint16(s.byte()) | uint16(s.byte())<<8 }
func (s *script) uint32() uint32 { return uint32(s.uint16()) | uint32(s.uint16())<<16 }

// liar is a transport to a controller that does what a script says: an honest
// one answers first, then the script spoils its completions, replies and
// registers.
type liar struct {
	*soft.Controller
	mu       sync.Mutex // of what follows; taken before the controller's
	script   *script
	asq      uint64
	asqSize  uint32
	tail     uint32
	cqs      map[uint32][]spec.CompletionEntry
	replies  func(e *spec.SubmissionEntry, page []byte) // spoils the reply to an admin command
	complete atomic.Bool                                // spoil completions
	csts     atomic.Bool                                // spoil CSTS
}

func newLiar(f testing.TB, s *script) *liar {
	arena, err := nvme.NewArena(nvme.ArenaOptions{SizeBytes: 2 << 20})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { arena.Close() })
	backing, err := soft.NewMemoryBacking(1 << 20)
	if err != nil {
		f.Fatal(err)
	}
	c, err := soft.New(arena, []soft.Backing{backing}, soft.Options{DoorbellBuffer: len(s.data)%2 == 1})
	if err != nil {
		f.Fatal(err)
	}
	return &liar{Controller: c, script: s, cqs: map[uint32][]spec.CompletionEntry{}}
}

func (l *liar) at(addr uint64) unsafe.Pointer {
	return unsafe.Pointer(&l.Arena().Bytes()[addr-l.DMABase()])
}

func (l *liar) Read32(reg uint32) uint32 {
	v := l.Controller.Read32(reg)
	switch {
	case reg == spec.RegCAP:
		v &^= 0xff000000 // CAP.TO = 0: shorter waits
	case reg == spec.RegCSTS && l.csts.Load():
		v ^= uint32(l.script.byte())
	}
	return v
}

func (l *liar) Read64(reg uint32) uint64 { return uint64(l.Read32(reg)) | uint64(l.Read32(reg+4))<<32 }

func (l *liar) Write64(reg uint32, v uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch reg {
	case spec.RegASQ:
		l.asq, l.tail = v, 0
	case spec.RegACQ:
		l.cqs[0] = unsafe.Slice((*spec.CompletionEntry)(l.at(v)), l.asqSize)
	}
	l.Controller.Write64(reg, v)
}

func (l *liar) Write32(reg, v uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if reg == spec.RegAQA {
		l.asqSize = v&0xfff + 1
	}
	bell := (reg - spec.RegDoorbells) / 4
	if l.complete.Load() && reg >= spec.RegDoorbells && l.script.byte()&3 == 3 {
		return // it does not notice
	}
	l.Controller.Write32(reg, v)
	if reg < spec.RegDoorbells || bell%2 != 0 {
		return
	}
	if bell == 0 {
		for ; l.tail != v; l.tail = (l.tail + 1) % l.asqSize {
			e := *(*spec.SubmissionEntry)(l.at(l.asq + uint64(l.tail)*spec.SQEBytes))
			switch e.OPC() {
			case spec.AdminCreateIOCQ:
				l.cqs[e.CDW10&0xffff] = unsafe.Slice((*spec.CompletionEntry)(l.at(e.PRP1)), e.CDW10>>16+1)
			case spec.AdminIdentify, spec.AdminGetLogPage:
				if l.replies != nil {
					l.replies(&e, (*[4096]byte)(l.at(e.PRP1))[:])
				}
			}
		}
	}
	if l.complete.Load() {
		l.spoilQueue(l.cqs[bell/2])
	}
}

// spoilQueue changes up to three completions as the script says.
func (l *liar) spoilQueue(cq []spec.CompletionEntry) {
	for range l.script.byte() & 3 {
		if len(cq) == 0 || l.script.over() {
			return
		}
		e := &cq[int(l.script.byte())%len(cq)]
		switch l.script.byte() % 6 {
		case 0:
			e.DW3 ^= 1 << 16
		case 1:
			e.DW3 = l.script.uint32()
		case 2:
			e.DW3 ^= uint32(l.script.uint16())
		case 3:
			e.DW2 = l.script.uint32()
		case 4:
			e.DW3 ^= uint32(l.script.uint16()) << 16
		case 5:
			*e = cq[int(l.script.byte())%len(cq)]
		}
	}
}

var liarOptions = nvme.Options{
	QueuePairs: 1, QueueDepth: 8, CommandTimeout: time.Millisecond, AdminTimeout: 4 * time.Millisecond, Retries: 1, EventInterval: -1,
}

// bounded fails the test when what it watches does not end.
func bounded(t testing.TB) (done func()) {
	timer := time.AfterFunc(30*time.Second, func() { panic("it does not end") })
	return func() { timer.Stop() }
}

// FuzzCompletions: whatever a controller puts into its completion queues and its
// status register, Do returns, with results or with an error of the device.
func FuzzCompletions(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{0, 1, 0, 0, 0, 1, 1, 2, 1, 0, 0, 1, 0, 0})
	f.Add([]byte{3, 3, 3, 3, 3, 3, 3, 3, 3})
	f.Add([]byte{0, 2, 0, 5, 7, 1, 5, 0, 0, 1, 2, 4, 0xff, 0xff, 0, 3, 0, 3, 1, 2, 3, 4})
	f.Add([]byte("\x00\x03\x01\x01\x00\x00\x01\x80\x02\x02\x08\x00\x03\x03\xff\xff\x00\x00 and so on, and so on"))
	f.Fuzz(func(t *testing.T, data []byte) {
		defer bounded(t)()
		s := &script{data: data}
		l := newLiar(t, s)
		dev, err := nvme.OpenNamespace(l, 1, liarOptions)
		if err != nil {
			t.Fatal(err)
		}
		mem, err := l.Arena().Alloc(8)
		if err != nil {
			t.Fatal(err)
		}
		l.csts.Store(s.byte()&7 == 7)
		l.complete.Store(true)
		reqs := make([]nvme.Request, 12)
		for round := 0; round < 6 && !s.over(); round++ {
			for i := range reqs {
				b := mem[i%8*4096:][:4096]
				reqs[i] = nvme.Request{Op: nvme.OpRead + nvme.Op(i%3), OffsetBytes: int64(i) * 4096, Vec: [][]byte{b[1:1025], b[2048 : 2048+3072-1024]}}
				if i%2 == 0 {
					reqs[i].Vec = [][]byte{b}
				}
			}
			reqs[11] = nvme.Request{Op: nvme.OpDeallocate, LengthBytes: 4096}
			for i := range reqs {
				if vec := reqs[i].Vec; len(vec) == 2 {
					reqs[i].Vec = [][]byte{vec[0], vec[1][:1024]}
				}
			}
			if err := dev.Do(reqs); err != nil && !errors.Is(err, nvme.ErrIO) {
				t.Errorf("%v", err)
			}
			dev.Controller().PollEvents()
		}
		l.complete.Store(false)
		l.csts.Store(false)
		dev.Close() // as it can
	})
}

// FuzzIdentify: whatever a controller says about itself and its namespaces, it
// is refused or can be worked with.
func FuzzIdentify(f *testing.F) {
	entry := func(page byte, off uint16, value ...byte) []byte {
		return append([]byte{page, byte(off), byte(off >> 8), byte(len(value))}, value...)
	}
	f.Add([]byte{})
	f.Add(entry(1, spec.IDCtrlMDTS, 1))
	f.Add(entry(1, spec.IDCtrlSGLS, 2))
	f.Add(entry(0, spec.IDNSFLBAS, 15))
	f.Add(entry(0, spec.IDNSNSZE, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f))
	f.Add(entry(0, spec.IDNSNOIOB, 9, 0))
	f.Add(entry(0, spec.IDNSMSSRL, 1, 0, 1, 0, 0, 0, 0))
	f.Add(entry(2, 0, 1, 0, 0, 0, 1, 0, 0, 0))
	f.Add(entry(3, spec.IDNVMVSL, 1, 1, 1, 1, 1, 0, 0, 0, 1))
	f.Add(append(entry(0, spec.IDNSLBAF+2, 12), entry(1, spec.IDCtrlACL, 255, 255)...))
	f.Fuzz(func(t *testing.T, data []byte) {
		defer bounded(t)()
		s := &script{data: data}
		l := newLiar(t, s)
		// Each entry: which page, offset, length, bytes.
		l.replies = func(e *spec.SubmissionEntry, page []byte) {
			if e.OPC() != spec.AdminIdentify {
				return
			}
			which := byte(e.CDW10 & 3)
			if e.CDW10&0xff == spec.CNSCommandSetCtrl {
				which = 3
			}
			for rest := (&script{data: data}); !rest.over(); {
				p, off, n := rest.byte()&3, int(rest.uint16())%len(page), int(rest.byte())%64
				for i := range n {
					if v := rest.byte(); p == which {
						page[(off+i)%len(page)] = v
					}
				}
			}
		}
		before := l.Arena().FreePages()
		c, err := nvme.Open(l, liarOptions)
		if err != nil {
			if n := l.Arena().FreePages(); n != before {
				t.Errorf("%d pages leaked", before-n)
			}
			l.Close()
			return
		}
		defer c.Close()
		if ids, err := c.ActiveNamespaces(); err == nil {
			for i, id := range ids {
				if id == 0 || id > c.Info().Namespaces || (i > 0 && ids[i-1] >= id) {
					t.Errorf("namespaces %v", ids)
				}
			}
		}
		ns, err := c.Namespace(1)
		if err != nil {
			return
		}
		g := ns.Geometry()
		if g.LBASizeBytes < 512 || g.LBASizeBytes > 4096 || g.Blocks <= 0 || g.SizeBytes()/g.LBASizeBytes != g.Blocks || g.BoundaryBytes < 0 ||
			g.MaxTransferBytes < nvme.PageSizeBytes || g.AtomicWriteBytes < int(g.LBASizeBytes) {
			t.Errorf("geometry %+v", g)
		}
		mem, err := l.Arena().Alloc(16)
		if err != nil {
			t.Fatal(err)
		}
		whole := min(int64(len(mem)), g.SizeBytes()) &^ (g.LBASizeBytes - 1)
		for _, off := range []int64{0, g.SizeBytes() - whole} {
			for op := nvme.OpRead; op <= nvme.OpDeallocate; op++ {
				ns.Do([]nvme.Request{{Op: op, OffsetBytes: off, LengthBytes: whole, Vec: [][]byte{mem[:whole]}}})
			}
			odd := [][]byte{mem[1:3], mem[4096:][:g.LBASizeBytes-2]}
			ns.Do([]nvme.Request{{Op: nvme.OpWrite, OffsetBytes: off, Vec: odd}, {Op: nvme.OpRead, OffsetBytes: off, Vec: odd}})
			ns.Compare(off, odd)
			ns.Verify(off, whole)
			ns.Copy(off, []nvme.Range{{OffsetBytes: whole, LengthBytes: whole}})
		}
	})
}

// FuzzLogs: whatever stands in log pages and events, they are decoded to
// something that can be printed.
func FuzzLogs(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{1, 0, 1, 0, 2, 1, 2, 0, 0xff, 0xff, 0xff})
	f.Add([]byte{2, 0, 4, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0xff, 0xff, 0xff, 0xff})
	f.Add([]byte{0, 0, 1, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 5, 6, 7, 8, 0x40, 0x80, 0xff, 0xff})
	f.Add([]byte{7, 1, 0x7f, 0, 0, 1, 0xff, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		defer bounded(t)()
		s := &script{data: data}
		l := newLiar(t, s)
		opts := liarOptions
		opts.OnEvent = func(e nvme.Event) { _ = e.String() }
		ns, err := nvme.OpenNamespace(l, 1, opts)
		if err != nil {
			t.Fatal(err)
		}
		defer ns.Close()
		c := ns.Controller()
		l.replies = func(e *spec.SubmissionEntry, page []byte) {
			if e.OPC() == spec.AdminGetLogPage {
				n := min(int(e.CDW10>>16+1)*4, len(page))
				s.mu.Lock()
				copy(page[:n], s.data)
				s.mu.Unlock()
			}
		}
		for range 4 {
			l.RaiseEvent(s.uint32())
			l.RaiseEvent(spec.MakeEvent(s.byte(), s.byte(), s.byte()%5))
			c.PollEvents()
			if h, err := c.Health(); err == nil {
				h.Warnings(int(s.byte()))
			}
			if errs, err := c.Errors(); err == nil {
				for _, e := range errs {
					_ = e.String()
				}
			}
			if fw, err := c.Firmware(); err == nil && (fw.Active > 7 || fw.Next > 7) {
				t.Errorf("%+v", fw)
			}
		}
		// Whatever it was, the namespace is as it was or refuses.
		page, err := l.Arena().Alloc(1)
		if err != nil {
			t.Fatal(err)
		}
		binary.LittleEndian.PutUint64(page, 1)
		if err := ns.Do([]nvme.Request{{Op: nvme.OpWrite, Vec: [][]byte{page}}}); err != nil {
			t.Errorf("%v", err)
		}
	})
}
