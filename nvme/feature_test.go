package nvme_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"runsc-fs/nvme"
	"runsc-fs/nvme/nvmetest"
	"runsc-fs/nvme/soft"
	"runsc-fs/nvme/spec"
)

// spoof is a transport to a controller that says other things about itself, and
// that counts doorbells.
type spoof struct {
	*soft.Controller
	patch func(cns uint32, page []byte)

	mu      sync.Mutex
	asq     uint64
	asqSize uint32
	tail    uint32
	cqBells atomic.Int64
}

func newSpoof(t *testing.T, sizeBytes int64, opts soft.Options, patch func(cns uint32, page []byte)) *spoof {
	t.Helper()
	arena, err := nvme.NewArena(nvme.ArenaOptions{SizeBytes: 16 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { arena.Close() })
	var backings []soft.Backing
	for range 2 {
		b, err := soft.NewMemoryBacking(sizeBytes)
		if err != nil {
			t.Fatal(err)
		}
		backings = append(backings, b)
	}
	c, err := soft.New(arena, backings, opts)
	if err != nil {
		t.Fatal(err)
	}
	return &spoof{Controller: c, patch: patch}
}

func (s *spoof) Write64(reg uint32, v uint64) {
	if reg == spec.RegASQ {
		s.asq, s.tail = v, 0
	}
	s.Controller.Write64(reg, v)
}

func (s *spoof) Write32(reg, v uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if reg == spec.RegAQA {
		s.asqSize = v&0xfff + 1
	}
	if reg > spec.RegDoorbells+4 && (reg-spec.RegDoorbells)/4%2 == 1 {
		s.cqBells.Add(1)
	}
	s.Controller.Write32(reg, v)
	if reg != spec.RegDoorbells || s.patch == nil {
		return
	}
	at := func(addr uint64) unsafe.Pointer { return unsafe.Pointer(&s.Arena().Bytes()[addr-s.DMABase()]) }
	for ; s.tail != v; s.tail = (s.tail + 1) % s.asqSize {
		e := *(*spec.SubmissionEntry)(at(s.asq + uint64(s.tail)*spec.SQEBytes))
		if e.OPC() == spec.AdminIdentify {
			s.patch(e.CDW10&0xff, (*[spec.IdentifyBytes]byte)(at(e.PRP1))[:])
		}
	}
}

// recorder is an Injector that remembers I/O commands and lets them pass.
type recorder struct {
	mu   sync.Mutex
	cmds []soft.CommandInfo
}

func (r *recorder) String() string { return "recorder" }

func (r *recorder) Inject(c soft.CommandInfo) soft.Action {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.QueueID != 0 {
		r.cmds = append(r.cmds, c)
	}
	return soft.Action{}
}

func (r *recorder) take() []soft.CommandInfo {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := r.cmds
	r.cmds = nil
	return c
}

func openSpoof(t *testing.T, s *spoof, opts nvme.Options) (*nvme.Namespace, []byte, *recorder) {
	t.Helper()
	ns, err := nvme.OpenNamespace(s, 1, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	mem, err := s.Arena().Alloc(512)
	if err != nil {
		t.Fatal(err)
	}
	r := &recorder{}
	s.SetInjector(r)
	return ns, mem, r
}

// TestBoundaries: no command crosses an optimal boundary, but a write that the
// controller promises to do atomically stays whole.
func TestBoundaries(t *testing.T) {
	s := newSpoof(t, 8<<20, soft.Options{BoundaryBlocks: 96}, nil) // 48 KiB
	ns, mem, r := openSpoof(t, s, nvme.Options{})
	g := ns.Geometry()
	if g.BoundaryBytes != 48<<10 || g.AtomicWriteBytes != 4096 {
		t.Fatalf("%+v", g)
	}
	for _, op := range []nvme.Op{nvme.OpWrite, nvme.OpRead} {
		if err := ns.Do([]nvme.Request{{Op: op, OffsetBytes: 40 << 10, Vec: [][]byte{mem[:120<<10]}}}); err != nil {
			t.Fatal(err)
		}
		cmds := r.take()
		if len(cmds) != 4 { // 8 + 48 + 48 + 16 KiB
			t.Errorf("%d commands", len(cmds))
		}
		for _, c := range cmds {
			if c.SLBA/96 != (c.SLBA+c.Blocks-1)/96 {
				t.Errorf("%d blocks at %d cross a boundary of 96", c.Blocks, c.SLBA)
			}
		}
	}
	if err := ns.Do([]nvme.Request{{Op: nvme.OpWrite, OffsetBytes: 46 << 10, Vec: [][]byte{mem[:4096]}}}); err != nil {
		t.Fatal(err)
	}
	if cmds := r.take(); len(cmds) != 1 {
		t.Errorf("an atomic write became %d commands", len(cmds))
	}
}

// TestLists: scattered memory takes one command with an SGL, and more without.
func TestLists(t *testing.T) {
	for _, c := range []struct {
		name   string
		sgls   uint32
		avoid  nvme.Features
		piece  int
		offset int
		want   int
	}{
		{"anywhere", spec.SGLSAnywhere, 0, 512, 1, 1},
		{"avoided", spec.SGLSAnywhere, nvme.FeatureSGL, 512, 4, 64},
		{"none", 0, 0, 512, 4, 64},
		{"dwords", spec.SGLSDword, 0, 512, 4, 1},
		{"dwords, unaligned", spec.SGLSDword, 0, 512, 1, 8}, // bounced by pages
		{"split blocks", spec.SGLSAnywhere, 0, 256, 3, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSpoof(t, 1<<20, soft.Options{}, func(cns uint32, page []byte) {
				if cns == spec.CNSController {
					binary.LittleEndian.PutUint32(page[spec.IDCtrlSGLS:], c.sgls)
				}
			})
			ns, mem, r := openSpoof(t, s, nvme.Options{Avoid: c.avoid})
			var vec [][]byte
			for i := range 64 * 512 / c.piece {
				vec = append(vec, mem[i*4096+c.offset:][:c.piece])
				for j := range vec[i] {
					vec[i][j] = byte(i*7 + j)
				}
			}
			if err := ns.Do([]nvme.Request{{Op: nvme.OpWrite, OffsetBytes: 4096, Vec: vec}}); err != nil {
				t.Fatal(err)
			}
			if n := len(r.take()); n != c.want {
				t.Errorf("%d commands, want %d", n, c.want)
			}
			for _, p := range vec {
				clear(p)
			}
			if err := ns.Do([]nvme.Request{{Op: nvme.OpRead, OffsetBytes: 4096, Vec: vec}}); err != nil {
				t.Fatal(err)
			}
			for i, p := range vec {
				for j, v := range p {
					if v != byte(i*7+j) {
						t.Fatalf("piece %d differs at byte %d", i, j)
					}
				}
			}
		})
	}
}

// TestLongLists has more pieces than one SGL segment takes.
func TestLongLists(t *testing.T) {
	s := newSpoof(t, 4<<20, soft.Options{}, nil)
	ns, mem, r := openSpoof(t, s, nvme.Options{})
	const piece = 12 // no block ends at the end of a piece but every third one
	var vec [][]byte
	for i := range 2 * 512 * 512 / piece / 16 * 3 { // whole blocks
		vec = append(vec, mem[i*piece*2:][:piece])
	}
	total := len(vec) * piece / 512 * 512
	vec = vec[:(total+piece-1)/piece]
	vec[len(vec)-1] = vec[len(vec)-1][:total-(len(vec)-1)*piece]
	for i, p := range vec {
		for j := range p {
			p[j] = byte(i + j)
		}
	}
	if err := ns.Do([]nvme.Request{{Op: nvme.OpWrite, Vec: vec}}); err != nil {
		t.Fatal(err)
	}
	if n, most := len(r.take()), total/(256*piece/512*512)+1; n > most {
		t.Errorf("%d commands for %d bytes, more than %d", n, total, most)
	}
	for i := range vec {
		clear(vec[i])
	}
	if err := ns.Do([]nvme.Request{{Op: nvme.OpRead, Vec: vec}}); err != nil {
		t.Fatal(err)
	}
	for i, p := range vec {
		for j, v := range p {
			if v != byte(i+j) {
				t.Fatalf("piece %d of %d differs at byte %d", i, len(vec), j)
			}
		}
	}
}

// TestCommandLimits: limits beside MDTS are kept.
func TestCommandLimits(t *testing.T) {
	s := newSpoof(t, 32<<20, soft.Options{}, func(cns uint32, page []byte) {
		if cns == spec.CNSCommandSetCtrl {
			page[spec.IDNVMVSL], page[spec.IDNVMWZSL], page[spec.IDNVMDMRL] = 2, 3, 5
			binary.LittleEndian.PutUint32(page[spec.IDNVMDMRSL:], 100)
			binary.LittleEndian.PutUint64(page[spec.IDNVMDMSL:], 350)
		}
	})
	ns, _, r := openSpoof(t, s, nvme.Options{})
	if err := ns.Do([]nvme.Request{{Op: nvme.OpWriteZeroes, LengthBytes: 1 << 20}}); err != nil {
		t.Fatal(err)
	}
	for _, c := range r.take() {
		if c.Blocks > 64 {
			t.Errorf("Write Zeroes of %d blocks", c.Blocks)
		}
	}
	if err := ns.Verify(0, 1<<20); err != nil {
		t.Fatal(err)
	}
	for _, c := range r.take() {
		if c.Blocks > 32 {
			t.Errorf("Verify of %d blocks", c.Blocks)
		}
	}
	if err := ns.Do([]nvme.Request{{Op: nvme.OpDeallocate, LengthBytes: 1000 * 512}, {Op: nvme.OpDeallocate, OffsetBytes: 1 << 20, LengthBytes: 512}}); err != nil {
		t.Fatal(err)
	}
	if n := len(r.take()); n != 3 { // 350, 350, 300 + 1 blocks in ranges of at most 100
		t.Errorf("%d deallocate commands", n)
	}
}

// TestDoorbellBuffer: with doorbells in memory the registers are written less.
func TestDoorbellBuffer(t *testing.T) {
	var bells [2]int64
	for i, on := range []bool{false, true} {
		s := newSpoof(t, 1<<20, soft.Options{DoorbellBuffer: on}, nil)
		ns, mem, _ := openSpoof(t, s, nvme.Options{QueuePairs: 2, QueueDepth: 8})
		before := s.cqBells.Load()
		reqs := make([]nvme.Request, 64)
		for range 20 {
			for j := range reqs {
				reqs[j] = nvme.Request{Op: nvme.OpRead, OffsetBytes: int64(j) * 4096, Vec: [][]byte{mem[j*4096:][:4096]}}
			}
			if err := ns.Do(reqs); err != nil {
				t.Fatal(err)
			}
		}
		bells[i] = s.cqBells.Load() - before
	}
	t.Logf("completion queue doorbells: %d with registers, %d with memory", bells[0], bells[1])
	if bells[1] > bells[0]/2 {
		t.Errorf("completion queue doorbells: %d with registers, %d with memory", bells[0], bells[1])
	}
}

// lines collects log lines.
type lines struct {
	mu  sync.Mutex
	all []string
}

func (l *lines) logf(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, fmt.Sprintf(format, args...))
}

func (l *lines) has(what string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(strings.Join(l.all, "\n"), what)
}

func TestHealthWarnings(t *testing.T) {
	s := newSpoof(t, 1<<20, soft.Options{}, nil)
	s.SetHealth(soft.Health{TemperatureKelvin: 310, SparePercent: 5})
	var log lines
	var events nvmetest.EventLog
	ns, _, _ := openSpoof(t, s, nvme.Options{Logf: log.logf, OnEvent: events.Add, EventInterval: -1})
	c := ns.Controller()
	if !log.has("spare is 5 %, its threshold 10 %") {
		t.Errorf("log of a controller that was worn out when opened: %q", log.all)
	}
	events.Wait(t, c, spec.EventTypeHealth, spec.HealthSpare)
	for i, h := range []soft.Health{
		{TemperatureKelvin: 350, SparePercent: 90},
		{TemperatureKelvin: 300, SparePercent: 3},
		{TemperatureKelvin: 300, SparePercent: 100, Critical: spec.WarningReadOnly},
		{TemperatureKelvin: 351, SparePercent: 100},
	} {
		s.SetHealth(h)
		info := []uint8{spec.HealthTemperature, spec.HealthSpare, spec.HealthReliability, spec.HealthTemperature}[i]
		e := events.Wait(t, c, spec.EventTypeHealth, info)
		if e.Health == nil || e.Health.TemperatureKelvin != h.TemperatureKelvin || e.Health.SparePercent != h.SparePercent {
			t.Errorf("%+v became %+v", h, e.Health)
		}
	}
	for _, want := range []string{"beyond a threshold: 77 °C", "threshold 10 %", "all media are read-only", "temperature beyond a threshold; 78 °C"} {
		if !log.has(want) {
			t.Errorf("log has no %q: %q", want, log.all)
		}
	}
}

// TestEventsComeByThemselves: without anybody polling.
func TestEventsComeByThemselves(t *testing.T) {
	s := newSpoof(t, 1<<20, soft.Options{}, nil)
	got := make(chan nvme.Event, 8)
	ns, _, _ := openSpoof(t, s, nvme.Options{EventInterval: 5 * time.Millisecond, OnEvent: func(e nvme.Event) { got <- e }})
	for range 6 { // more than there are requests for events
		s.SetHealth(soft.Health{TemperatureKelvin: 400, SparePercent: 100})
		select {
		case e := <-got:
			if e.Type != spec.EventTypeHealth {
				t.Errorf("%v", e)
			}
		case <-time.After(20 * time.Second):
			t.Fatal("no event")
		}
	}
	if err := ns.Close(); err != nil {
		t.Error(err)
	}
	s.SetHealth(soft.Health{TemperatureKelvin: 401, SparePercent: 100}) // nobody is there any more
}

// TestEventsAreFoundInPassing: an admin command comes across an event.
func TestEventsAreFoundInPassing(t *testing.T) {
	s := newSpoof(t, 1<<20, soft.Options{}, nil)
	got := make(chan nvme.Event, 8)
	ns, _, _ := openSpoof(t, s, nvme.Options{EventInterval: -1, OnEvent: func(e nvme.Event) { got <- e }})
	s.SetHealth(soft.Health{TemperatureKelvin: 400, SparePercent: 100})
	if _, err := ns.Controller().Health(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-got:
	case <-time.After(20 * time.Second):
		t.Fatal("no event")
	}
}

// TestEventsSurviveAReset: requests for events are sent again.
func TestEventsSurviveAReset(t *testing.T) {
	s := newSpoof(t, 1<<20, soft.Options{}, nil)
	var events nvmetest.EventLog
	ns, mem, _ := openSpoof(t, s, nvme.Options{EventInterval: -1, OnEvent: events.Add})
	for range 3 {
		s.SetInjector(soft.NewRules(soft.Rule{Opcode: spec.CmdRead, Count: 1, Action: soft.Action{Fatal: true}}))
		if err := ns.Do([]nvme.Request{{Op: nvme.OpRead, Vec: [][]byte{mem[:4096]}}}); err != nil {
			t.Fatal(err)
		}
		s.SetHealth(soft.Health{TemperatureKelvin: 400, SparePercent: 100})
		events.Wait(t, ns.Controller(), spec.EventTypeHealth, spec.HealthTemperature)
		s.SetHealth(soft.Health{TemperatureKelvin: 300, SparePercent: 100})
	}
}

// TestEventFlood: a controller that never stops raising events, of kinds nobody
// knows, is put up with, and closing ends it.
func TestEventFlood(t *testing.T) {
	s := newSpoof(t, 1<<20, soft.Options{}, nil)
	var count atomic.Int64
	ns, mem, _ := openSpoof(t, s, nvme.Options{EventInterval: time.Millisecond, OnEvent: func(nvme.Event) { count.Add(1) }})
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Add(1)
	go func() {
		defer wg.Done()
		for i := uint32(0); ; i++ {
			select {
			case <-stop:
				return
			default:
				s.RaiseEvent(i * 2654435761)
				time.Sleep(20 * time.Microsecond)
			}
		}
	}()
	for i := 0; i < 500 || count.Load() < 8; i++ {
		if err := ns.Do([]nvme.Request{{Op: nvme.OpRead, Vec: [][]byte{mem[:4096]}}}); err != nil {
			t.Fatal(err)
		}
		if i%50 == 0 {
			if _, err := ns.Controller().Health(); err != nil {
				t.Fatal(err)
			}
		}
		if i > 500 {
			time.Sleep(time.Millisecond)
		}
	}
	if err := ns.Close(); err != nil {
		t.Error(err)
	}
	close(stop)
	wg.Wait()
}

// TestNamespaceChanges: a namespace that goes away, or whose place another one
// takes, refuses its users; others do not notice.
func TestNamespaceChanges(t *testing.T) {
	var replaced, formatted atomic.Bool
	s := newSpoof(t, 1<<20, soft.Options{}, func(cns uint32, page []byte) {
		if cns != spec.CNSNamespace {
			return
		}
		if replaced.Load() {
			page[spec.IDNSNGUID] ^= 1
		}
		if formatted.Load() {
			page[spec.IDNSLBAF+2] = 12
		}
	})
	var events nvmetest.EventLog
	one, mem, _ := openSpoof(t, s, nvme.Options{EventInterval: -1, OnEvent: events.Add})
	c := one.Controller()
	read := []nvme.Request{{Op: nvme.OpRead, Vec: [][]byte{mem[:4096]}}}
	change := func(what string, do func(), want error) {
		t.Helper()
		two, err := c.Namespace(2)
		if err != nil {
			t.Fatal(err)
		}
		defer two.Close()
		do()
		e := events.Wait(t, c, spec.EventTypeNotice, spec.NoticeNamespace)
		if len(e.Namespaces) != 1 || e.Namespaces[0] != 2 {
			t.Errorf("%s: %+v", what, e)
		}
		if err := two.Do(read); !errors.Is(err, want) || (err == nil) != (want == nil) {
			t.Errorf("%s: %v", what, err)
		}
		if err := one.Do(read); err != nil {
			t.Errorf("%s: the other namespace: %v", what, err)
		}
	}
	attach := func() {
		if err := s.Attach(2); err != nil {
			t.Fatal(err)
		}
	}
	change("nothing", attach, nil)
	change("replaced", func() { replaced.Store(true); attach() }, nvme.ErrNamespaceChanged)
	replaced.Store(false)
	change("formatted", func() { formatted.Store(true); attach() }, nvme.ErrNamespaceChanged)
	formatted.Store(false)
	change("detached", func() {
		if err := s.Detach(2); err != nil {
			t.Fatal(err)
		}
	}, nvme.ErrNoNamespace)
	if _, err := c.Namespace(2); !errors.Is(err, nvme.ErrNoNamespace) {
		t.Errorf("opening a detached namespace: %v", err)
	}
	if ids, err := c.ActiveNamespaces(); err != nil || len(ids) != 1 || ids[0] != 1 {
		t.Errorf("active namespaces: %v, %v", ids, err)
	}
}

// TestErrorLog: the log tells of a failed command.
func TestErrorLog(t *testing.T) {
	s := newSpoof(t, 1<<20, soft.Options{}, nil)
	ns, mem, _ := openSpoof(t, s, nvme.Options{})
	s.SetInjector(soft.NewRules(soft.Rule{Opcode: spec.CmdRead, Action: soft.Action{Status: spec.UnrecoveredReadError | spec.StatusDNR}}))
	if err := ns.Do([]nvme.Request{{Op: nvme.OpRead, OffsetBytes: 7 * 512, Vec: [][]byte{mem[:512]}}}); !errors.Is(err, nvme.ErrMedia) {
		t.Fatal(err)
	}
	entries, err := ns.Controller().Errors()
	if err != nil || len(entries) != 1 {
		t.Fatalf("%v, %v", entries, err)
	}
	e := entries[0]
	if e.Count != 1 || e.LBA != 7 || e.NSID != 1 || e.Status.Code() != spec.UnrecoveredReadError || e.Byte != -1 || e.SQID == 0 {
		t.Errorf("%+v", e)
	}
	if text := e.String(); !strings.Contains(text, "LBA 7: unrecovered read error") {
		t.Errorf("%q", text)
	}
	h, err := ns.Controller().Health()
	if err != nil || h.ErrorEntries != 1 {
		t.Errorf("%+v, %v", h, err)
	}
}

// TestCompareIsNotTriedAgain: a difference is a result.
func TestCompareIsNotTriedAgain(t *testing.T) {
	s := newSpoof(t, 1<<20, soft.Options{}, nil)
	ns, mem, _ := openSpoof(t, s, nvme.Options{})
	r := soft.NewRules(soft.Rule{Opcode: spec.CmdCompare, Action: soft.Action{Status: spec.CompareFailure}})
	s.SetInjector(r)
	if err := ns.Compare(0, [][]byte{bytes.Repeat(mem[:1], 0), mem[:512]}); !errors.Is(err, nvme.ErrMiscompare) || r.Hits() != 1 {
		t.Errorf("%d commands: %v", r.Hits(), err)
	}
}

// TestOnlyNamespace: a driver that is confined to one namespace opens no other one.
func TestOnlyNamespace(t *testing.T) {
	arena, err := nvme.NewArena(nvme.ArenaOptions{SizeBytes: 16 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer arena.Close()
	var backings []soft.Backing
	for range 3 {
		b, err := soft.NewMemoryBacking(1 << 20)
		if err != nil {
			t.Fatal(err)
		}
		backings = append(backings, b)
	}
	tr, err := soft.New(arena, backings, soft.Options{})
	if err != nil {
		t.Fatal(err)
	}
	c, err := nvme.Open(tr, nvme.Options{OnlyNamespace: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, id := range []uint32{1, 3, 7} {
		if _, err := c.Namespace(id); !errors.Is(err, nvme.ErrNotAllowed) {
			t.Errorf("namespace %d: %v", id, err)
		}
	}
	if _, err := c.Admin(spec.SubmissionEntry{CDW0: spec.AdminGetFeatures, NSID: 3, CDW10: 7}, nil); !errors.Is(err, nvme.ErrNotAllowed) {
		t.Errorf("admin command for namespace 3: %v", err)
	}
	ns, err := c.Namespace(2)
	if err != nil {
		t.Fatal(err)
	}
	page, err := arena.Alloc(1)
	if err != nil {
		t.Fatal(err)
	}
	if err := ns.Do([]nvme.Request{{Op: nvme.OpWrite, Vec: [][]byte{page}}, {Op: nvme.OpFlush}}); err != nil {
		t.Error(err)
	}
}
