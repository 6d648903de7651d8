package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"runsc-fs/runsc-fs/hooks"
	"runsc-fs/sentry/volumestats"
)

// volumeTrace shows where the time of a container's calls on volumes goes.
type volumeTrace struct {
	seconds float64
	plot    optional
	json    bool
}

func (*volumeTrace) name() string { return "trace" }
func (*volumeTrace) synopsis() string {
	return "show where the time of a container's reads, writes and syncs goes"
}
func (*volumeTrace) arguments() string { return "CONTAINER [--seconds N] [--plot FILE] [--json]" }

func (v *volumeTrace) setFlags(f *flag.FlagSet) {
	f.Float64Var(&v.seconds, "seconds", 10, "how long to trace, at most 3600; 0: what was traced since the start with --blobfs-trace")
	f.Var(&v.plot, "plot", "also draw the mean times of the stages, into this file in SVG")
	f.BoolVar(&v.json, "json", false, "print the result in JSON")
}

func (v *volumeTrace) run(ctx context.Context, out io.Writer, args []string) error {
	if len(args) != 1 {
		return usagef("a container is needed, not %d arguments", len(args))
	}
	if math.IsNaN(v.seconds) || v.seconds < 0 || v.seconds > volumestats.MaxTraceSeconds {
		return usagef("--seconds %v is not between 0 and %d", v.seconds, volumestats.MaxTraceSeconds)
	}
	if v.plot.given && filepath.Ext(v.plot.text) != ".svg" {
		return usagef("--plot %q does not end in .svg, the one format there is", v.plot.text)
	}
	c, err := loadContainer(configOf(ctx).RootDir, args[0])
	if err != nil {
		return err
	}
	var report volumestats.TraceReport
	patience := time.Duration(v.seconds*float64(time.Second)) + answerPatience
	if err := askSandbox(c, hooks.VolumeStatsTrace, &hooks.VolumeStatsTraceArgs{Seconds: v.seconds}, &report, patience); err != nil {
		return err
	}
	result, err := newTraceResult(&report, c.ID)
	if err != nil {
		return fmt.Errorf("container %q: %w", c.ID, err)
	}
	if len(result.Calls) == 0 {
		return fmt.Errorf("container %q did nothing with its volumes in %.1f s that a trace, which looks at one call in %d, has seen; trace longer with --seconds",
			c.ID, result.Seconds, result.Every)
	}
	if v.plot.given {
		if err := plotTrace(v.plot.text, result); err != nil {
			return fmt.Errorf("--plot: %w", err)
		}
	}
	if v.json {
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		return encoder.Encode(result)
	}
	return printTrace(out, result)
}

// traceResult is what a trace has found about one container.
type traceResult struct {
	Container string       `json:"container"`
	Seconds   float64      `json:"seconds"`
	Every     int          `json:"every"` // one in how many calls was looked at
	Calls     []traceCalls `json:"calls"`
}

// traceCalls are the calls of one kind on one volume.
type traceCalls struct {
	Volume string       `json:"volume"`
	Op     string       `json:"op"`
	Total  traceTimes   `json:"total"`
	Stages []traceStage `json:"stages"`
}

// traceStage is one stage of the way from the system call to the device.
type traceStage struct {
	Name string `json:"name"`
	traceTimes
}

// traceTimes are times, of the calls that have the stage.
type traceTimes struct {
	Count  int64   `json:"count"`
	Share  float64 `json:"share"` // of the time of all calls of the kind
	MeanUs float64 `json:"meanUs"`
	P50Us  float64 `json:"p50Us"`
	P99Us  float64 `json:"p99Us"`
	P999Us float64 `json:"p999Us"`
}

// newTimes looks at times of which the whole has taken totalNs.
func newTimes(t *volumestats.TracedTimes, totalNs int64) (traceTimes, error) {
	h, err := t.Times.Since(nil)
	if h == nil || err != nil {
		return traceTimes{}, err
	}
	us := func(quantile float64) float64 { return float64(h.ValueAtQuantile(quantile)) / 1e3 }
	return traceTimes{
		Count: h.TotalCount(), Share: float64(t.Nanoseconds) / float64(max(totalNs, 1)), MeanUs: float64(t.Nanoseconds) / float64(h.TotalCount()) / 1e3,
		P50Us: us(50), P99Us: us(99), P999Us: us(99.9),
	}, nil
}

// newTraceResult takes from a report what is about one container.
func newTraceResult(r *volumestats.TraceReport, container string) (*traceResult, error) {
	result := &traceResult{Container: container, Seconds: r.Seconds, Every: r.Every, Calls: []traceCalls{}}
	for k := range r.Calls {
		c := &r.Calls[k]
		if c.Container != container {
			continue
		}
		calls := traceCalls{Volume: printable(c.Volume), Op: printable(c.Op)}
		var err error
		if calls.Total, err = newTimes(&c.Total, c.Total.Nanoseconds); err != nil {
			return nil, err
		}
		for n := range c.Stages {
			s := &c.Stages[n]
			times, err := newTimes(&s.TracedTimes, c.Total.Nanoseconds)
			if err != nil {
				return nil, err
			}
			calls.Stages = append(calls.Stages, traceStage{printable(s.Name), times})
		}
		result.Calls = append(result.Calls, calls)
	}
	return result, nil
}

func printTrace(out io.Writer, r *traceResult) error {
	fmt.Fprintf(out, "container %s, %.1f s, one call in %d\n", r.Container, r.Seconds, r.Every)
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	row := func(name string, t *traceTimes) {
		fmt.Fprintf(table, "%s\t%d\t%.1f%%\t", name, t.Count, 100*t.Share)
		if t.Count == 0 {
			fmt.Fprint(table, "-\t-\t-\t-\t\n")
			return
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t\n", microseconds(t.MeanUs), microseconds(t.P50Us), microseconds(t.P99Us), microseconds(t.P999Us))
	}
	for k := range r.Calls {
		c := &r.Calls[k]
		fmt.Fprintf(table, "\n%s %s\tCOUNT\tSHARE\tMEAN\tp50\tp99\tp99.9\t\n", c.Volume, strings.ToUpper(c.Op))
		for n := range c.Stages {
			row(c.Stages[n].Name, &c.Stages[n].traceTimes)
		}
		row("total", &c.Total)
	}
	return table.Flush()
}
