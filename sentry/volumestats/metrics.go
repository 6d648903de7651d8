package volumestats

import (
	"fmt"
	"math/bits"
	"strconv"
	"time"

	"gvisor.dev/gvisor/pkg/metric"
	pb "gvisor.dev/gvisor/pkg/metric/metric_go_proto"
)

// LaterVolumes is the value of the label "volume" for volumes that came to the sandbox
// after its start: the labels of gVisor's metrics are fixed by then. It is the
// name of no volume.
const LaterVolumes = "(later)"

// Latencies are counted in buckets, of which each is twice as wide as the one below it.
// gVisor's own histograms cannot leave a sandbox: JSON, in which they would
// travel, has no infinity for their last bound. So these are counters that are named
// as Prometheus names the parts of a histogram. Their label "le" is called "bound":
// gVisor's exporter loses the others beside it. docs/observing.md has the query.
const (
	firstBound     = 10 // logarithm of nanoseconds
	lastBound      = 32
	latencyBuckets = lastBound - firstBound + 2
)

// bucketOf is the first bucket whose bound is not below d.
func bucketOf(d time.Duration) int {
	return min(max(bits.Len64(uint64(max(d, 1)-1))-firstBound, 0), latencyBuckets-1)
}

// bucketBound is the label of a bucket: the longest time that counts in it.
func bucketBound(k int) string {
	if k == latencyBuckets-1 {
		return "+Inf"
	}
	return strconv.Itoa(1 << (firstBound + k))
}

// timedUpTo counts the timed calls up to the bound of a bucket.
func (u *User) timedUpTo(op Op, bucket int) (n uint64) {
	l := &u.latency[op]
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, count := range l.buckets[:bucket+1] {
		n += count
	}
	return n
}

func (u *User) timed(op Op) uint64 { return u.timedUpTo(op, latencyBuckets-1) }

func (u *User) timedNs(op Op) uint64 {
	l := &u.latency[op]
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sumNs
}

// labels are the values of a label. gVisor tells them apart by their addresses.
type labels[T any] struct {
	values  []*metric.FieldValue
	meaning map[*metric.FieldValue]T
}

func (l *labels[T]) add(text string, means T) {
	if l.meaning == nil {
		l.meaning = map[*metric.FieldValue]T{}
	}
	value := &metric.FieldValue{Value: text}
	l.values = append(l.values, value)
	l.meaning[value] = means
}

// RegisterMetrics makes metrics of the counters. It must be called before gVisor's
// metrics are initialised. named are the volumes that have labels of their own; all
// returns every volume of the sandbox whenever it is called.
func RegisterMetrics(named []*Volume, all func() []*Volume) error {
	var volumes labels[*Volume]
	isNamed := map[*Volume]bool{}
	volumes.add(LaterVolumes, nil)
	for _, v := range named {
		volumes.add(v.name, v)
		isNamed[v] = true
	}
	// sum adds up a counter of the volumes that a label stands for.
	sum := func(label *metric.FieldValue, counter func(*User) uint64) (n uint64) {
		of := []*Volume{volumes.meaning[label]}
		if of[0] == nil {
			of = of[:0]
			for _, v := range all() {
				if !isNamed[v] {
					of = append(of, v)
				}
			}
		}
		for _, v := range of {
			for _, u := range *v.users.Load() {
				n += counter(u)
			}
		}
		return n
	}

	var ops labels[Op]
	for op := range Ops {
		ops.add(op.String(), op)
	}
	var bounds labels[int]
	for k := range latencyBuckets {
		bounds.add(bucketBound(k), k)
	}
	fields := []metric.Field{metric.NewField("volume", volumes.values...), metric.NewField("op", ops.values...)}
	register := func(name, about string, unit pb.MetricMetadata_Units, fields []metric.Field, value func(...*metric.FieldValue) uint64) error {
		err := metric.RegisterCustomUint64Metric(name, metric.Uint64Metadata{Cumulative: true, Unit: unit, Description: about, Fields: fields}, value)
		if err != nil {
			return fmt.Errorf("metric %s: %w", name, err)
		}
		return nil
	}
	for _, m := range []struct {
		name, about string
		unit        pb.MetricMetadata_Units
		counter     func(*User, Op) uint64
	}{
		{"/blobfs/ops", "Calls on files of blobfs volumes.", pb.MetricMetadata_UNITS_NONE, (*User).ops},
		{"/blobfs/bytes", "Bytes that calls on files of blobfs volumes moved.", pb.MetricMetadata_UNITS_NONE, (*User).bytes},
		{"/blobfs/errors", "Calls on files of blobfs volumes that failed.", pb.MetricMetadata_UNITS_NONE, (*User).errors},
		{"/blobfs/latency_nanoseconds_count", "Calls on files of blobfs volumes that were timed: every sync, one in sixteen reads and writes.", pb.MetricMetadata_UNITS_NONE, (*User).timed},
		{"/blobfs/latency_nanoseconds_sum", "How long the timed calls took together.", pb.MetricMetadata_UNITS_NANOSECONDS, (*User).timedNs},
	} {
		err := register(m.name, m.about, m.unit, fields, func(labels ...*metric.FieldValue) uint64 {
			return sum(labels[0], func(u *User) uint64 { return m.counter(u, ops.meaning[labels[1]]) })
		})
		if err != nil {
			return err
		}
	}
	return register("/blobfs/latency_nanoseconds_bucket", "Timed calls that took no longer than the label bound says, in nanoseconds.", pb.MetricMetadata_UNITS_NONE,
		append(fields, metric.NewField("bound", bounds.values...)), func(labels ...*metric.FieldValue) uint64 {
			return sum(labels[0], func(u *User) uint64 {
				return u.timedUpTo(ops.meaning[labels[1]], bounds.meaning[labels[2]])
			})
		})
}
