package volumestats

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Report has the counters of one container on one volume, on the way from a sandbox to
// a command. All count from the beginning of the sandbox.
type Report struct {
	Volume    string
	Kind      string
	Container string
	Calls     []CallReport // by Op
}

// CallReport has the counters of one kind of call.
type CallReport struct {
	Op     string
	Count  uint64
	Bytes  uint64
	Errors uint64
	// Latency has the nanoseconds that those calls took that were timed.
	Latency Histogram
}

// Report returns the counters of all containers.
func (v *Volume) Report() []Report {
	var all []Report
	for _, u := range *v.users.Load() {
		r := Report{Volume: v.name, Kind: v.kind, Container: u.container}
		for op := range Ops {
			r.Calls = append(r.Calls, CallReport{
				Op: op.String(), Count: u.ops(op), Bytes: u.bytes(op), Errors: u.errors(op), Latency: u.latency[op].export(),
			})
		}
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b Report) int { return strings.Compare(a.Container, b.Container) })
	return all
}

func (l *latency) export() Histogram {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.h == nil {
		return nil
	}
	return export(l.h)
}

// Histogram is a histogram on its way from a sandbox: pairs of a bucket of HdrHistogram
// and how many values are in it, in the order of the buckets. A command checks it, for
// a sandbox is not to be trusted.
type Histogram [][2]int64

func export(h *hdrhistogram.Histogram) (list Histogram) {
	for k, n := range h.Export().Counts {
		if n != 0 {
			list = append(list, [2]int64{int64(k), n})
		}
	}
	return list
}

// Since returns the histogram of what has come to a histogram since an earlier one; nil
// if that is nothing.
func (h Histogram) Since(earlier Histogram) (*hdrhistogram.Histogram, error) {
	s := newHistogram().Export()
	sum := func(list Histogram, sign int64) error {
		for _, pair := range list {
			k, n := pair[0], pair[1]
			if k < 0 || k >= int64(len(s.Counts)) || n < 0 || n > maxCount {
				return fmt.Errorf("the sandbox sent a histogram with %d values in bucket %d", n, k)
			}
			s.Counts[k] += sign * n
		}
		return nil
	}
	if err := errors.Join(sum(h, 1), sum(earlier, -1)); err != nil {
		return nil, err
	}
	total := int64(0)
	for k := range s.Counts {
		s.Counts[k] = max(s.Counts[k], 0)
		total += s.Counts[k]
	}
	if total == 0 {
		return nil, nil
	}
	return hdrhistogram.Import(s), nil
}

// maxCount keeps sums of counts within their type.
const maxCount = 1 << 48
