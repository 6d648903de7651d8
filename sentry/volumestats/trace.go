package volumestats

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"runsc-fs/nvme/trace"
)

// TracedBatch is, in traces only, a batch of reads and writes that came together, by AIO
// or io_uring, and are carried out together.
const TracedBatch = Ops

// TracedEvery is one in how many calls a trace looks at, by chance.
const TracedEvery = 64

// maxTraces bounds the traces at one time.
const maxTraces = 8

// ErrTooManyTraces is the error of one more.
var ErrTooManyTraces = fmt.Errorf("%d traces are under way already; wait for one to end", maxTraces)

// tracing has the traces under way; nil: none. Changes are made under mu, to a copy.
var tracing struct {
	mu   sync.Mutex
	list atomic.Pointer[[]*Trace]
}

// Tracing says whether a trace is under way.
func Tracing() bool { return tracing.list.Load() != nil }

// Sampled says, while a trace is under way, whether to look at a call.
func Sampled() bool { return rand.Uint32()%TracedEvery == 0 }

// Trace collects where the time of calls goes.
type Trace struct {
	began time.Time

	mu sync.Mutex
	by map[tracedKey]*tracedTimes
}

// tracedKey is what calls are told apart by.
type tracedKey struct {
	user *User
	op   Op
}

// tracedTimes are the times of calls of one kind: in all, and in each stage.
type tracedTimes struct {
	total  stageTimes
	stages [trace.Stages]stageTimes
}

type stageTimes struct {
	sum time.Duration
	h   *hdrhistogram.Histogram // nil: none yet
}

func (s *stageTimes) add(d time.Duration) {
	if s.h == nil {
		s.h = newHistogram()
	}
	s.sum += d
	record(s.h, d)
}

// StartTrace begins to look at calls.
func StartTrace() (*Trace, error) {
	t := &Trace{began: time.Now(), by: map[tracedKey]*tracedTimes{}}
	tracing.mu.Lock()
	defer tracing.mu.Unlock()
	var list []*Trace
	if old := tracing.list.Load(); old != nil {
		list = slices.Clone(*old)
	}
	if len(list) >= maxTraces {
		return nil, ErrTooManyTraces
	}
	list = append(list, t)
	tracing.list.Store(&list)
	return t, nil
}

// Stop ends the trace.
func (t *Trace) Stop() {
	tracing.mu.Lock()
	defer tracing.mu.Unlock()
	old := tracing.list.Load()
	if old == nil {
		return
	}
	list := slices.DeleteFunc(slices.Clone(*old), func(other *Trace) bool { return other == t })
	if len(list) == 0 {
		tracing.list.Store(nil)
		return
	}
	tracing.list.Store(&list)
}

// Counted is a file whose calls are counted.
type Counted interface {
	// VolumeUser has the counters.
	VolumeUser() *User
}

// Traced is a call that is being traced. The zero value is one that is not.
type Traced struct {
	span *trace.Span
	user *User
	op   Op
}

// BeginTrace begins to trace a call on a file if a trace is under way, chance chooses
// the call and file is Counted. The goroutine that calls it carries the call out
// and calls End.
func BeginTrace(file any, op Op) Traced {
	if !Tracing() || !Sampled() {
		return Traced{}
	}
	return BeginSampled(file, op)
}

// BeginSampled is BeginTrace for a call that chance has chosen.
func BeginSampled(file any, op Op) Traced {
	c, ok := file.(Counted)
	if !ok {
		return Traced{}
	}
	span := trace.Begin(trace.VFS)
	if span == nil {
		return Traced{}
	}
	return Traced{span, c.VolumeUser(), op}
}

// End ends the call.
func (c *Traced) End() {
	if c.span == nil {
		return
	}
	times := c.span.End()
	c.span = nil
	list := tracing.list.Load()
	if list == nil {
		return
	}
	for _, t := range *list {
		t.add(tracedKey{c.user, c.op}, &times)
	}
}

func (t *Trace) add(key tracedKey, times *[trace.Stages]time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	by := t.by[key]
	if by == nil {
		by = &tracedTimes{}
		t.by[key] = by
	}
	var total time.Duration
	for s := trace.VFS; s < trace.Stages; s++ {
		if d := times[s]; d > 0 {
			total += d
			by.stages[s].add(d)
		}
	}
	by.total.add(total)
}

// TraceReport is what a trace has found, on the way from a sandbox to a command.
type TraceReport struct {
	Seconds float64 // since it began
	Every   int     // one in how many calls it looked at
	Calls   []TracedCalls
}

// TracedCalls are the calls of one kind, of one container on one volume.
type TracedCalls struct {
	Volume, Container, Op string
	Total                 TracedTimes
	Stages                []TracedStage // from the top down, all of them
}

// TracedStage is one stage of calls.
type TracedStage struct {
	Name string
	TracedTimes
}

// TracedTimes are times of the same thing.
type TracedTimes struct {
	Nanoseconds int64 // together
	Times       Histogram
}

func (s *stageTimes) export() TracedTimes {
	if s.h == nil {
		return TracedTimes{}
	}
	return TracedTimes{int64(s.sum), export(s.h)}
}

// Report returns what the trace has found so far.
func (t *Trace) Report() TraceReport {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := TraceReport{Seconds: time.Since(t.began).Seconds(), Every: TracedEvery}
	for key, times := range t.by {
		c := TracedCalls{Volume: key.user.volume.name, Container: key.user.container, Op: "batch", Total: times.total.export()}
		if key.op < Ops {
			c.Op = key.op.String()
		}
		for s := trace.VFS; s < trace.Stages; s++ {
			c.Stages = append(c.Stages, TracedStage{s.String(), times.stages[s].export()})
		}
		r.Calls = append(r.Calls, c)
	}
	slices.SortFunc(r.Calls, func(a, b TracedCalls) int {
		return strings.Compare(a.Volume+"\x00"+a.Container+"\x00"+a.Op, b.Volume+"\x00"+b.Container+"\x00"+b.Op)
	})
	return r
}

// MaxTraceSeconds bounds a trace that Run makes.
const MaxTraceSeconds = 3600

// always is the trace that goes on from the start of the sandbox; nil: there is none.
var always *Trace

// TraceAlways begins a trace that ends with the sandbox. It is called once, before
// there are containers.
func TraceAlways() (err error) {
	always, err = StartTrace()
	return err
}

// ErrNoTrace is the error of a report of a trace that does not exist.
var ErrNoTrace = errors.New("it was started without --blobfs-trace, so there is no trace from its start; leave --seconds out for one that begins now")

// RunTrace traces for that long, or until done is closed, and reports. With seconds 0 it
// reports the trace of TraceAlways so far.
func RunTrace(seconds float64, done <-chan struct{}) (TraceReport, error) {
	if seconds == 0 {
		if always == nil {
			return TraceReport{}, ErrNoTrace
		}
		return always.Report(), nil
	}
	if !(seconds > 0 && seconds <= MaxTraceSeconds) {
		return TraceReport{}, fmt.Errorf("a trace of %v seconds", seconds)
	}
	t, err := StartTrace()
	if err != nil {
		return TraceReport{}, err
	}
	defer t.Stop()
	timer := time.NewTimer(time.Duration(seconds * float64(time.Second)))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-done:
	}
	return t.Report(), nil
}
