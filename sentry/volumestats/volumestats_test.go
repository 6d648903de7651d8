package volumestats

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/metric"
	"gvisor.dev/gvisor/pkg/prometheus"

	"runsc-fs/nvme/trace"
)

// TestCounters counts from several goroutines at once.
func TestCounters(t *testing.T) {
	const goroutines, each = 8, 1000
	v := NewVolume("v", "memory")
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			u := v.User("c")
			for n := range each {
				c := u.Begin(Read)
				c.End(10, false)
				c = u.Begin(Write)
				c.End(20, n == 0)
				c = u.Begin(Sync)
				c.End(0, false)
				b := u.BeginBatch(2)
				b.Count(Read, 1, false)
				b.Count(Write, 2, true)
			}
		})
	}
	wg.Wait()
	r := v.Report()
	if len(r) != 1 || r[0].Volume != "v" || r[0].Kind != "memory" || r[0].Container != "c" {
		t.Fatalf("reports %+v", r)
	}
	const n = goroutines * each
	for op, want := range []CallReport{{"read", 2 * n, 11 * n, 0, nil}, {"write", 2 * n, 22 * n, n + goroutines, nil}, {"sync", n, 0, 0, nil}} {
		have := r[0].Calls[op]
		h, err := have.Latency.Since(nil)
		if err != nil {
			t.Fatal(err)
		}
		have.Latency = nil
		if fmt.Sprint(have) != fmt.Sprint(want) {
			t.Errorf("have %+v, want %+v", have, want)
		}
		least, most := int64(want.Count)/timedEvery-stripeCount, int64(want.Count)/timedEvery+stripeCount
		if op == int(Sync) {
			least, most = n, n
		}
		if timed := h.TotalCount(); timed < least || timed > most {
			t.Errorf("%d of %d calls of %v were timed", timed, want.Count, Op(op))
		}
	}
}

// TestManyContainers has more containers than are counted apart.
func TestManyContainers(t *testing.T) {
	v := NewVolume("v", "memory")
	for n := range 2 * maxUsers {
		c := v.User(fmt.Sprint(n)).Begin(Read)
		c.End(1, false)
	}
	var calls uint64
	r := v.Report()
	for _, r := range r {
		calls += r.Calls[Read].Count
	}
	if len(r) != maxUsers+1 || calls != 2*maxUsers {
		t.Errorf("%d reports of %d calls", len(r), calls)
	}
}

// TestSince takes an earlier histogram off a later one, and refuses what is none.
func TestSince(t *testing.T) {
	h := newHistogram()
	record(h, 5*time.Microsecond)
	record(h, -1)
	earlier := export(h)
	record(h, 7*time.Microsecond)
	record(h, time.Hour)
	later := export(h)
	d, err := later.Since(earlier)
	if err != nil || d.TotalCount() != 2 || !d.ValuesAreEquivalent(d.ValueAtQuantile(50), 7000) || !d.ValuesAreEquivalent(d.Max(), longestNs) {
		t.Errorf("the difference of %v and %v: %v, %v", later, earlier, d, err)
	}
	if d, err := later.Since(later); d != nil || err != nil {
		t.Errorf("the difference of a histogram and itself: %v, %v", d, err)
	}
	if d, err := Histogram(nil).Since(nil); d != nil || err != nil {
		t.Errorf("nothing: %v, %v", d, err)
	}
	for _, bad := range []Histogram{{{-1, 1}}, {{1 << 40, 1}}, {{0, -1}}, {{0, 1<<63 - 1}}} {
		if _, err := bad.Since(nil); err == nil {
			t.Errorf("%v is taken for a histogram", bad)
		}
	}
}

// TestBuckets looks at the bounds of the buckets of metrics.
func TestBuckets(t *testing.T) {
	for _, c := range []struct {
		d    time.Duration
		want int
	}{{-1, 0}, {0, 0}, {1 << 10, 0}, {1<<10 + 1, 1}, {1 << 11, 1}, {1 << 32, 22}, {1<<32 + 1, latencyBuckets - 1}, {time.Hour, latencyBuckets - 1}} {
		if have := bucketOf(c.d); have != c.want {
			t.Errorf("%d ns are in bucket %d, not %d", c.d, have, c.want)
		}
	}
	if have := fmt.Sprintln(bucketBound(0), bucketBound(22), bucketBound(23)); have != "1024 4294967296 +Inf\n" {
		t.Errorf("bounds %s", have)
	}
}

// counted is a file.
type counted struct{ user *User }

func (c counted) VolumeUser() *User { return c.user }

// call makes calls on a file until n have been traced.
func call(file any, op Op, n int) (made int) {
	for traced := 0; traced < n; made++ {
		c := BeginTrace(file, op)
		was := trace.Enter(trace.FS)
		if was != trace.None {
			traced++
		}
		trace.Leave(trace.Enter(trace.Device))
		trace.Leave(was)
		c.End()
		if made > 1000*n*TracedEvery {
			break
		}
	}
	return made
}

// TestTrace follows two traces at once, one of which ends before the other.
func TestTrace(t *testing.T) {
	file := counted{NewVolume("v", "memory").User("c")}
	if c := BeginTrace(file, Read); Tracing() || c.span != nil {
		t.Fatal("a call is traced without a trace")
	}
	first, err := StartTrace()
	if err != nil {
		t.Fatal(err)
	}
	made := call(file, Read, 100)
	if most := 100 * TracedEvery * 3; made > most {
		t.Errorf("100 of %d calls were traced", made)
	}
	second, err := StartTrace()
	if err != nil {
		t.Fatal(err)
	}
	call(file, TracedBatch, 10)
	first.Stop()
	call(file, Sync, 5)
	second.Stop()
	if BeginSampled("no file", Read).span != nil || Tracing() {
		t.Error("calls are traced after the last trace")
	}
	for n, want := range []map[string]int64{{"read": 100, "batch": 10}, {"batch": 10, "sync": 5}} {
		r := []*Trace{first, second}[n].Report()
		if len(r.Calls) != len(want) || r.Every != TracedEvery {
			t.Errorf("trace %d: %+v", n, r)
		}
		for _, c := range r.Calls {
			h, err := c.Total.Times.Since(nil)
			if err != nil || c.Volume != "v" || c.Container != "c" || h.TotalCount() != want[c.Op] {
				t.Errorf("trace %d has %d times of %s: %v", n, h.TotalCount(), c.Op, err)
			}
			var sum int64
			for k, s := range c.Stages {
				sum += s.Nanoseconds
				if s.Name != trace.Stage(k+1).String() {
					t.Errorf("stage %d is %s", k, s.Name)
				}
			}
			if sum != c.Total.Nanoseconds || sum <= 0 {
				t.Errorf("the stages of %s take %d ns of %d", c.Op, sum, c.Total.Nanoseconds)
			}
		}
	}
}

// TestRunTrace ends traces by time and by the end of the sandbox.
func TestRunTrace(t *testing.T) {
	if _, err := RunTrace(0, nil); !errors.Is(err, ErrNoTrace) {
		t.Errorf("a trace from the start that was not made: %v", err)
	}
	for _, seconds := range []float64{-1, math.NaN(), math.Inf(1), MaxTraceSeconds + 1} {
		if _, err := RunTrace(seconds, nil); err == nil {
			t.Errorf("a trace of %v seconds", seconds)
		}
	}
	if r, err := RunTrace(0.01, nil); err != nil || r.Seconds < 0.01 {
		t.Errorf("%+v, %v", r, err)
	}
	done := make(chan struct{})
	close(done)
	if r, err := RunTrace(MaxTraceSeconds, done); err != nil || r.Seconds > MaxTraceSeconds/2 {
		t.Errorf("%+v, %v", r, err)
	}
	var all []*Trace
	for range maxTraces {
		one, err := StartTrace()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, one)
	}
	if _, err := RunTrace(1, nil); !errors.Is(err, ErrTooManyTraces) {
		t.Errorf("one trace more than there may be: %v", err)
	}
	for _, one := range all {
		one.Stop()
		one.Stop()
	}
	if Tracing() {
		t.Error("a trace is left")
	}
}

// TestMetrics looks at the metrics as Prometheus sees them: of a volume with a label, and
// of others.
func TestMetrics(t *testing.T) {
	a, b, later := NewVolume("a", "memory"), NewVolume("b", "image"), NewVolume("a2", "image")
	all := []*Volume{a, b}
	err := RegisterMetrics(all, func() []*Volume { return all })
	if err != nil {
		t.Fatal(err)
	}
	if err := RegisterMetrics(all, nil); err == nil {
		t.Error("the metrics can be registered twice")
	}
	if err := metric.Initialize(); err != nil {
		t.Fatal(err)
	}
	all = append(all, later)
	for n, v := range all {
		for range n + 1 {
			c := v.User("c").Begin(Write)
			c.End(100, true)
			c = v.User("d").Begin(Sync)
			c.End(0, false)
		}
	}
	snapshot, err := metric.GetSnapshot(metric.SnapshotOptions{Filter: func(m *prometheus.Metric) bool { return strings.HasPrefix(m.Name, "blobfs_") }})
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if _, err := prometheus.Write(&out, prometheus.ExportOptions{}, map[*prometheus.Snapshot]prometheus.SnapshotExportOptions{snapshot: {}}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`blobfs_ops{op="write",volume="a"} 1 `, `blobfs_ops{op="sync",volume="b"} 2 `, `blobfs_ops{op="write",volume="(later)"} 3 `,
		`blobfs_bytes{op="write",volume="b"} 200 `, `blobfs_errors{op="write",volume="(later)"} 3 `,
		`blobfs_latency_nanoseconds_count{op="sync",volume="(later)"} 3 `, `blobfs_latency_nanoseconds_count{op="write",volume="a"} 1 `,
		`blobfs_latency_nanoseconds_bucket{bound="+Inf",op="sync",volume="b"} 2 `, `blobfs_latency_nanoseconds_bucket{bound="4294967296",op="sync",volume="b"} 2 `,
	} {
		if !strings.Contains(out.String(), "\n"+want) {
			t.Errorf("%s is missing", want)
		}
	}
	if t.Failed() {
		t.Log(out.String())
	}
}
