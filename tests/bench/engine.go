package main

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"runsc-fs/tests/lab"
)

// engineResult is a Go benchmark of the file system without a sandbox.
type engineResult struct {
	name   string
	goalNs float64
	ns     sample
	allocs sample
}

// engineBenchmarks are those that have goals: nanoseconds an operation.
var engineBenchmarks = []struct {
	benchmark, name string
	goalNs          float64
}{
	{"CachedRead4K", "4 KiB cached read", 300},
	{"DirectRead4K", "4 KiB direct read, memory", 1000},
	{"DurableAppend4K", "4 KiB append and fdatasync, memory", 3000},
}

var benchmarkLine = regexp.MustCompile(`^Benchmark(\w+?)(?:-\d+)?\s+\d+\s+([0-9.]+) ns/op(?:.*?\s([0-9.]+) allocs/op)?`)

// parseBenchmarks adds the lines of go test -bench to the results.
func parseBenchmarks(out string, into []engineResult) {
	for line := range strings.Lines(out) {
		m := benchmarkLine.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		for i := range into {
			if engineBenchmarks[i].benchmark != m[1] {
				continue
			}
			ns, _ := strconv.ParseFloat(m[2], 64) // the pattern lets only numbers through
			into[i].ns.Values = append(into[i].ns.Values, ns)
			if m[3] != "" {
				allocs, _ := strconv.ParseFloat(m[3], 64)
				into[i].allocs.Values = append(into[i].allocs.Values, allocs)
			}
		}
	}
}

// engine runs the Go benchmarks of the file system.
func engine(ctx context.Context, b *bench) ([]engineResult, error) {
	var names []string
	results := make([]engineResult, len(engineBenchmarks))
	for i, e := range engineBenchmarks {
		names = append(names, e.benchmark)
		results[i] = engineResult{name: e.name, goalNs: e.goalNs}
	}
	b.logf("Go benchmarks of the file system")
	res, err := lab.Run(ctx, lab.Cmd{
		Argv: []string{"go", "test", "-run=^$", "-bench=^Benchmark(" + strings.Join(names, "|") + ")$", "-benchmem", "-count=" + strconv.Itoa(b.scale.rounds), "./blobfs"},
		Dir:  b.root, Env: []string{"CGO_ENABLED=0"}, Timeout: 10 * time.Minute,
	})
	if err != nil {
		return nil, err
	}
	parseBenchmarks(res.Stdout, results)
	for _, r := range results {
		if !r.ns.ok() {
			return nil, fmt.Errorf("go test printed no figure for %s: %q", r.name, res.Stdout)
		}
	}
	return results, nil
}

func engineTable(results []engineResult) string {
	rows := [][]string{{"operation", "goal", "measured", "allocations", ""}}
	for _, r := range results {
		verdict := "missed"
		if r.ns.median() <= r.goalNs {
			verdict = "met"
		}
		rows = append(rows, []string{r.name, fmt.Sprintf("≤ %.0f ns", r.goalNs), fmt.Sprintf("%.0f ns ± %.0f %%", r.ns.median(), r.ns.spread()*50), figure(r.allocs.median()), verdict})
	}
	return markdown(rows)
}
