package main

import (
	"context"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"runsc-fs/tests/lab"
)

func TestSample(t *testing.T) {
	odd, even := sample{Values: []float64{3, 1, 2}}, sample{Values: []float64{4, 1, 2, 3}}
	if odd.median() != 2 || even.median() != 2.5 {
		t.Errorf("medians are %v and %v, want 2 and 2.5", odd.median(), even.median())
	}
	if odd.spread() != 1 {
		t.Errorf("spread is %v, want 1", odd.spread())
	}
	if r := ratio(higher, odd, sample{Values: []float64{1}}); r != 2 {
		t.Errorf("ratio of more is %v, want 2", r)
	}
	if r := ratio(lower, odd, sample{Values: []float64{1}}); r != 0.5 {
		t.Errorf("ratio of less is %v, want 0.5", r)
	}
	if r := ratio(higher, odd, sample{Reason: "no"}); !math.IsNaN(r) {
		t.Errorf("ratio to nothing is %v, want NaN", r)
	}
}

func TestParseFio(t *testing.T) {
	iops, bandwidth, err := parseFio("fio: a warning\n" + `{"jobs":[{"error":0,
		"read":{"iops":10.5,"bw_bytes":43008,"total_ios":21},"write":{"iops":1.5,"bw_bytes":6144,"total_ios":3}}]}`)
	if err != nil || iops != 12 || bandwidth != 49152 {
		t.Errorf("got %v, %v, %v", iops, bandwidth, err)
	}
	for _, bad := range []string{
		"fio: engine not loadable",
		`{"jobs":[]}`,
		`{"jobs":[{"error":5,"read":{"iops":1,"total_ios":1}}]}`,
		`{"jobs":[{"error":0}]}`,
	} {
		if _, _, err := parseFio(bad); err == nil {
			t.Errorf("%q was taken for a result", bad)
		}
	}
}

func TestParseBenchmarks(t *testing.T) {
	into := make([]engineResult, len(engineBenchmarks))
	parseBenchmarks("goos: linux\n"+
		"BenchmarkCachedRead4K-2   \t 5000000\t       210.5 ns/op\t19000 MB/s\t       0 B/op\t       0 allocs/op\n"+
		"BenchmarkDurableAppend4K-2\t 5000000\t       4000 ns/op\t1 B/op\t 2 allocs/op\n"+
		"BenchmarkOther-2\t 1\t 1 ns/op\n", into)
	if into[0].ns.median() != 210.5 || into[0].allocs.median() != 0 {
		t.Errorf("cached read is %+v", into[0])
	}
	if into[1].ns.ok() {
		t.Errorf("direct read was not in the output, but is %+v", into[1])
	}
	if into[2].ns.median() != 4000 || into[2].allocs.median() != 2 {
		t.Errorf("durable append is %+v", into[2])
	}
}

// Goals name jobs and contenders: a name that was changed in one place only would
// quietly take a goal out of the report.
func TestTargetsExist(t *testing.T) {
	jobs := map[string]bool{}
	for _, j := range allJobs() {
		if jobs[j.name] {
			t.Errorf("two jobs are called %q", j.name)
		}
		jobs[j.name] = true
	}
	known := map[string]bool{}
	for _, c := range contenders(&bench{}) {
		known[c.name] = true
	}
	for _, g := range targets() {
		if !jobs[g.job] || g.baseJob != "" && !jobs[g.baseJob] {
			t.Errorf("no such job in the goal %s", g.name())
		}
		if !known[g.contender] || !known[g.baseContender] {
			t.Errorf("no such contender in the goal %s", g.name())
		}
	}
}

// A quick run leaves out figures, but none of a goal, and what it leaves out is
// neither a failure nor in need of a reason for each.
func TestQuickRunKeepsGoals(t *testing.T) {
	jobs := map[string]job{}
	for _, j := range forGoals(allJobs()) {
		jobs[j.name] = j
	}
	for _, g := range targets() {
		if !jobs[g.job].wants(g.contender) || !jobs[g.base()].wants(g.baseContender) {
			t.Errorf("a quick run leaves out a figure of the goal %s", g.name())
		}
	}
	if !jobs["memory of an idle sandbox"].wants(runscGofer) {
		t.Error("a quick run leaves out a contender of a job without goals")
	}
	j := jobs["psync randread buffered"]
	if j.wants(runcExt4) {
		t.Errorf("a quick run measures %s under %s, which no goal is about", j.name, runcExt4)
	}
	res := results{j.name: {blobfsImage: {Reason: "not part of this run"}, blobfsMemory: {Values: []float64{1}}, runscTmpfs: {Values: []float64{1}}}}
	if failed := res.failures([]job{j}); len(failed) > 0 {
		t.Errorf("what was left out counts as failed: %v", failed)
	}
	if text := report(machine{}, quick, []job{j}, contenders(&bench{}), nil, res, nil); strings.Contains(text, "Not measured") {
		t.Errorf("the report lists what was left out:\n%s", text)
	}
}

// The magic number of ext4 is that of ext2 and ext3, too.
func TestFileSystemName(t *testing.T) {
	got, err := fileSystem(t.Context(), "/proc")
	if err != nil || got != "proc" {
		t.Errorf("the file system of /proc is %q, %v", got, err)
	}
}

func TestReport(t *testing.T) {
	jobs := []job{
		{name: "psync randread direct", unit: "IOPS", dir: higher},
		{name: "create $N files", unit: "s", dir: lower},
	}
	cs := contenders(&bench{})
	res := results{
		"psync randread direct": {blobfsMemory: {Values: []float64{200_000, 300_000}}, runscTmpfs: {Values: []float64{260_000}}},
		"create $N files":       {blobfsImage: {Values: []float64{2}}, runscDirectfs: {Reason: "it broke"}, runscTmpfs: {Values: []float64{1}}},
	}
	text := report(machine{Processor: "CPU"}, full, jobs, cs, nil, res, []string{"fio.svg"})
	for _, want := range []string{
		"| psync randread direct, blobfs-memory against runsc-tmpfs | ≥ 0.95 × | 0.96 × | met |",
		"| create 100,000 files, blobfs-image against runsc-tmpfs | ≥ 0.83 × | 0.50 × | missed |",
		"250 k ± 20 %",
		"- create 100,000 files, runsc-directfs: it broke",
		"![fio](fio.svg)",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the report lacks %q:\n%s", want, text)
		}
	}
	if strings.Contains(text, "against runsc-directfs") {
		t.Error("a goal without figures is in the report")
	}
}

func TestPlot(t *testing.T) {
	dir := t.TempDir()
	jobs := fioJobs()
	res := results{jobs[0].name: {blobfsMemory: {Values: []float64{3}}, plotBase: {Values: []float64{1}}}}
	files, err := drawAll(dir, full, contenders(&bench{}), res)
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != 1 || files[0] != "fio.svg" {
		t.Fatalf("drew %v, want fio.svg alone", files)
	}
	text, err := os.ReadFile(filepath.Join(dir, "fio.svg"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"<svg", jobs[0].name, blobfsMemory} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the plot lacks %q", want)
		}
	}
}

// TestSmoke runs jobs of every kind with tiny sizes, so that the bench works when it
// is wanted. Its figures mean nothing and are not looked at.
func TestSmoke(t *testing.T) {
	lab.Need(t)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	out := t.TempDir()
	o := options{
		jobs:       "^(psync randread direct|libaio randread qd32|randwrite, fsync after each|create .*|ls -l of .*|untar .*|SQLite, .*|start to .*)$",
		contenders: blobfsMemory + "|" + blobfsImage + "|" + runcTmpfs,
		out:        out,
	}
	if err := runScale(ctx, o, smoke, t.Logf); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(out, "results.json"))
	if err != nil {
		t.Fatal(err)
	}
	var got struct{ Results results }
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Results) < 8 {
		t.Errorf("only %d jobs ran", len(got.Results))
	}
	for job, by := range got.Results {
		for contender, s := range by {
			if len(s.Values) == 0 && !strings.Contains(job, "cold") {
				t.Errorf("%s on %s: %s", job, contender, s.Reason)
			}
		}
	}
}
