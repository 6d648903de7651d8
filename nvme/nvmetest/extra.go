package nvmetest

import (
	"bytes"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"runsc-fs/nvme"
	"runsc-fs/nvme/spec"
)

// testExtras covers Compare, Verify and Copy where the controller offers them,
// and their refusal where it does not.
func testExtras(t *testing.T, open OpenTransport, lba int, opts Options) {
	var ns *nvme.Namespace
	r := newRig(t, func(t testing.TB, c Config) nvme.BlockDevice {
		var err error
		if ns, err = nvme.OpenNamespace(open(t, c), 1, c.Driver); err != nil {
			t.Fatal(err)
		}
		return ns
	}, Config{SizeBytes: 16 << 20, LBASizeBytes: lba}, opts)
	model := make([]byte, 8<<20) // the second half of the device is the target of copies
	r.fill(model)
	copy(r.run, model)
	r.do(nvme.Request{Op: nvme.OpWrite, Vec: [][]byte{r.run[:len(model)]}})
	t.Run("Compare", func(t *testing.T) { r.with(t).testCompare(ns, model) })
	t.Run("Verify", func(t *testing.T) { r.with(t).testVerify(ns) })
	t.Run("Copy", func(t *testing.T) { r.with(t).testCopy(ns, model) })
}

// with is the rig for a test within the test.
func (r *rig) with(t *testing.T) *rig {
	sub := *r
	sub.T = t
	return &sub
}

func (r *rig) testCompare(ns *nvme.Namespace, model []byte) {
	if !r.geo.Compare {
		if err := ns.Compare(0, [][]byte{r.run[:r.lba]}); !errors.Is(err, nvme.ErrUnsupported) {
			r.Errorf("Compare without support: %v", err)
		}
		return
	}
	for range r.rounds(40) {
		off, n := r.extent(200 << 10)
		off = min(off, int64(len(model)-n))
		vec := r.vec(n)
		scatter(vec, model[off:])
		if err := ns.Compare(off, vec); err != nil {
			r.Fatalf("equal data, %d bytes at %d in %d pieces: %v", n, off, len(vec), err)
		}
		piece := vec[r.rng.IntN(len(vec))]
		if len(piece) == 0 {
			continue
		}
		piece[r.rng.IntN(len(piece))] ^= 0x10
		err := ns.Compare(off, vec)
		if !errors.Is(err, nvme.ErrMiscompare) || !errors.Is(err, nvme.ErrIO) || errors.Is(err, nvme.ErrMedia) {
			r.Fatalf("one byte differs, %d bytes at %d in %d pieces: %v", n, off, len(vec), err)
		}
	}
	if err := ns.Compare(r.geo.SizeBytes(), [][]byte{r.run[:r.lba]}); !errors.Is(err, nvme.ErrInvalidRequest) {
		r.Errorf("Compare beyond the end: %v", err)
	}
}

func (r *rig) testVerify(ns *nvme.Namespace) {
	if !r.geo.Verify {
		if err := ns.Verify(0, int64(r.lba)); !errors.Is(err, nvme.ErrUnsupported) {
			r.Errorf("Verify without support: %v", err)
		}
		return
	}
	if err := ns.Verify(0, r.geo.SizeBytes()); err != nil {
		r.Errorf("verifying everything: %v", err)
	}
	if err := ns.Verify(r.geo.SizeBytes()-int64(r.lba), int64(r.lba)); err != nil {
		r.Errorf("verifying the last block: %v", err)
	}
	if err := ns.Verify(int64(r.lba), r.geo.SizeBytes()); !errors.Is(err, nvme.ErrInvalidRequest) {
		r.Errorf("Verify beyond the end: %v", err)
	}
}

func (r *rig) testCopy(ns *nvme.Namespace, model []byte) {
	if !r.geo.Copy {
		if err := ns.Copy(0, []nvme.Range{{OffsetBytes: 1 << 20, LengthBytes: int64(r.lba)}}); !errors.Is(err, nvme.ErrUnsupported) {
			r.Errorf("Copy without support: %v", err)
		}
		return
	}
	half := int64(len(model))
	for _, count := range []int{0, 1, 3, 300} {
		var src []nvme.Range
		var want []byte
		for range count {
			blocks := 1 + r.rng.Int64N(max(1, half/int64(count)/int64(r.lba)))
			at := r.rng.Int64N(half/int64(r.lba)-blocks+1) * int64(r.lba)
			src = append(src, nvme.Range{OffsetBytes: at, LengthBytes: blocks * int64(r.lba)}, nvme.Range{})
			want = append(want, model[at:at+blocks*int64(r.lba)]...)
		}
		given := append([]nvme.Range(nil), src...)
		if err := ns.Copy(half, src); err != nil {
			r.Fatalf("copy of %d ranges, %d bytes: %v", count, len(want), err)
		}
		for i := range src {
			if src[i] != given[i] {
				r.Fatalf("the caller's range %d became %v", i, src[i])
			}
		}
		for done := 0; done < len(want); {
			n := min(len(want)-done, 1<<20)
			r.do(nvme.Request{Op: nvme.OpRead, OffsetBytes: half + int64(done), Vec: [][]byte{r.run[:n]}})
			if i := firstDifference(r.run[:n], want[done:]); i >= 0 {
				r.Fatalf("copy of %d ranges, %d bytes, differs from byte %d on", count, len(want), done+i)
			}
			done += n
		}
	}
	for name, c := range map[string]struct {
		to  int64
		src nvme.Range
	}{
		"overlap":    {int64(r.lba), nvme.Range{LengthBytes: 2 * int64(r.lba)}},
		"misaligned": {0, nvme.Range{OffsetBytes: half + 4, LengthBytes: int64(r.lba)}},
		"source":     {0, nvme.Range{OffsetBytes: r.geo.SizeBytes(), LengthBytes: int64(r.lba)}},
		"target":     {r.geo.SizeBytes(), nvme.Range{LengthBytes: int64(r.lba)}},
	} {
		if err := ns.Copy(c.to, []nvme.Range{c.src}); !errors.Is(err, nvme.ErrInvalidRequest) {
			r.Errorf("%s: %v", name, err)
		}
	}
}

// testLogs reads all logs that every controller has.
func testLogs(t *testing.T, open OpenTransport) {
	tr := open(t, Config{SizeBytes: 1 << 20})
	c, err := nvme.Open(tr, nvme.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	h, err := c.Health()
	if err != nil {
		t.Fatal(err)
	}
	if h.TemperatureKelvin < 200 || h.TemperatureKelvin > 400 || h.SparePercent < h.SpareThresholdPercent || h.CriticalWarning != 0 {
		t.Errorf("health: %+v", h)
	}
	if w := h.Warnings(c.Info().WarnKelvin); len(w) != 0 {
		t.Errorf("a healthy controller warns: %q", w)
	}
	f, err := c.Firmware()
	if err != nil {
		t.Fatal(err)
	}
	if f.Active < 1 || f.Active > spec.FirmwareSlotCount || f.Revisions[f.Active-1] == "" {
		t.Errorf("firmware: %+v", f)
	}
	if _, err := c.Errors(); err != nil {
		t.Errorf("error log: %v", err)
	}
	if _, err := c.Admin(spec.SubmissionEntry{CDW0: spec.AdminDeleteIOSQ, CDW10: 1}, nil); !errors.Is(err, nvme.ErrInvalidRequest) {
		t.Errorf("deleting the driver's queue: %v", err)
	}
	page := make([]byte, spec.IdentifyBytes)
	if _, err := c.Admin(spec.SubmissionEntry{CDW0: spec.AdminIdentify, CDW10: spec.CNSController}, page); err != nil {
		t.Error(err)
	}
	if got := strings.TrimSpace(string(page[spec.IDCtrlSN:][:spec.IDCtrlSNBytes])); got != c.Info().Serial {
		t.Errorf("serial number %q by hand, %q by the driver", got, c.Info().Serial)
	}
}

// EventLog collects events.
type EventLog struct {
	mu  sync.Mutex
	all []nvme.Event
}

// Add is an Options.OnEvent.
func (l *EventLog) Add(e nvme.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, e)
}

// take returns the first event that has not been taken of a type and info, and
// forgets those before; ok is false when there is none.
func (l *EventLog) take(typ, info uint8) (e nvme.Event, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, e := range l.all {
		if e.Type == typ && e.Info == info {
			l.all = l.all[i+1:]
			return e, true
		}
	}
	return nvme.Event{}, false
}

// Wait polls the controller until an event of a type and info arrives.
func (l *EventLog) Wait(t testing.TB, c *nvme.Controller, typ, info uint8) nvme.Event {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		c.PollEvents()
		if e, ok := l.take(typ, info); ok {
			return e
		}
	}
	t.Fatalf("no event of type %d, info %d", typ, info)
	return nvme.Event{}
}

// testEvents provokes the events that every controller has, often enough that
// requests for them have to be sent again.
func testEvents(t *testing.T, open OpenTransport) {
	var log EventLog
	tr := open(t, Config{SizeBytes: 1 << 20, Namespaces: 2})
	c, err := nvme.Open(tr, nvme.Options{OnEvent: log.Add, EventInterval: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	h, err := c.Health()
	if err != nil {
		t.Fatal(err)
	}
	for round := range 6 {
		if err := c.SetTemperatureThreshold(h.TemperatureKelvin - round); err != nil {
			t.Fatal(err)
		}
		e := log.Wait(t, c, spec.EventTypeHealth, spec.HealthTemperature)
		if e.LogPage != spec.LogSMART || e.Health == nil || e.Health.CriticalWarning&spec.WarningTemperature == 0 {
			t.Fatalf("round %d: %v: %+v", round, e, e.Health)
		}
		if w := e.Health.Warnings(c.Info().WarnKelvin); len(w) != 1 || !strings.Contains(w[0], "temperature") {
			t.Fatalf("round %d: warnings %q", round, w)
		}
		if err := c.SetTemperatureThreshold(400); err != nil {
			t.Fatal(err)
		}
	}
	tr.Write32(spec.SQTailDoorbell(uint16(c.QueuePairs()+1), 0)+1<<11, 0) // far behind the last one
	if e := log.Wait(t, c, spec.EventTypeError, 0); e.LogPage != spec.LogError {
		t.Errorf("%+v", e)
	}
	// The controller works on.
	ns, err := c.Namespace(1)
	if err != nil {
		t.Fatal(err)
	}
	page, err := tr.Arena().Alloc(1)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Arena().Free(page)
	clear(page)
	if err := ns.Do([]nvme.Request{{Op: nvme.OpWrite, Vec: [][]byte{page}}, {Op: nvme.OpFlush}}); err != nil {
		t.Error(err)
	}
	if !bytes.Equal(page, make([]byte, len(page))) {
		t.Error("the page of a write changed")
	}
}
