package main

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// target is a goal: job under contender must be atLeast times as good as base, which
// may be another job, under another contender.
type target struct {
	job, contender         string
	baseJob, baseContender string // baseJob "" is the same job
	atLeast                float64
}

// targets are the goals of the project that this bench can measure.
func targets() []target {
	var out []target
	add := func(jobs []string, contender, base string, atLeast float64) {
		for _, j := range jobs {
			out = append(out, target{job: j, contender: contender, baseContender: base, atLeast: atLeast})
		}
	}
	direct := []string{"psync randread direct", "psync randwrite direct"}
	add(direct, blobfsMemory, runscTmpfs, 0.95)
	add(direct, blobfsMemory, runscDirectfs, 2.5)
	add([]string{"psync randread buffered", "psync randwrite buffered"}, blobfsMemory, runscTmpfs, 1)
	add([]string{"libaio randread qd1", "libaio randread qd32"}, blobfsMemory, runscTmpfs, 8)
	batch := "libaio randread qd32, batches of 16"
	add([]string{batch}, blobfsMemory, runscTmpfs, 8)
	add([]string{batch}, blobfsMemory, runcTmpfs, 1)
	out = append(out,
		target{job: "io_uring randread qd32", contender: blobfsMemory, baseJob: "libaio randread qd32", baseContender: blobfsMemory, atLeast: 1},
		target{job: "io_uring randread qd32", contender: blobfsMemory, baseJob: batch, baseContender: runcTmpfs, atLeast: 1},
		target{job: "io_uring randread qd32, SQPOLL", contender: blobfsMemory, baseJob: "psync randread direct", baseContender: runcTmpfs, atLeast: 1},
	)
	add([]string{"1 MiB sequential read", "1 MiB sequential write"}, blobfsMemory, runscTmpfs, 0.95)
	add([]string{"psync randread direct"}, blobfsImage, runscDirectfs, 2)
	add([]string{"psync randwrite direct"}, blobfsImage, runscDirectfs, 5)
	add([]string{"randwrite, fsync after each"}, blobfsImage, runscDirectfs, 1.5)
	add([]string{"randwrite, fsync after each", "SQLite, $COMMITS durable commits", "pgbench TPC-B, 1 clients"}, blobfsImage, runcExt4, 1)
	add([]string{"pgbench TPC-B, 8 clients"}, blobfsImage, runscDirectfs, 1.3)
	add([]string{"pgbench TPC-B, 8 clients"}, blobfsImage, runscTmpfs, 0.95)
	add([]string{"ls -l of $N files"}, blobfsImage, runscTmpfs, 1/1.05)
	out = append(out, target{job: "ls -l of $N files, cold", contender: blobfsImage, baseJob: "ls -l of $N files", baseContender: blobfsImage, atLeast: 0.5})
	add([]string{"create $N files", "unlink $N files", "rename $N files"}, blobfsImage, runscTmpfs, 1/1.2)
	add([]string{"create $N files"}, blobfsImage, runscDirectfs, 40)
	add([]string{"start to first instruction"}, blobfsImage, runscDirectfs, 1/1.1)
	return out
}

// forGoals limits the jobs that goals are about to the contenders that these goals
// compare. Jobs without a goal stay as they are.
func forGoals(jobs []job) []job {
	only := map[string]map[string]bool{}
	note := func(job, contender string) {
		if only[job] == nil {
			only[job] = map[string]bool{}
		}
		only[job][contender] = true
	}
	for _, t := range targets() {
		note(t.job, t.contender)
		note(t.base(), t.baseContender)
	}
	out := slices.Clone(jobs)
	for i := range out {
		out[i].only = only[out[i].name]
	}
	return out
}

// base is the job that the target compares with.
func (t target) base() string {
	if t.baseJob != "" {
		return t.baseJob
	}
	return t.job
}

// name says what a target is about.
func (t target) name() string {
	base := t.baseContender
	if t.baseJob != "" {
		base += ", " + t.baseJob
	}
	return fmt.Sprintf("%s, %s against %s", t.job, t.contender, base)
}

// measured gives the target's ratio; NaN when one of its figures is missing.
func (t target) measured(jobs []job, res results) float64 {
	for _, j := range jobs {
		if j.name == t.job {
			return ratio(j.dir, res.at(t.job, t.contender), res.at(t.base(), t.baseContender))
		}
	}
	return math.NaN()
}

// targetTable shows the goals of which both figures were measured.
func targetTable(jobs []job, res results, subst *strings.Replacer) string {
	rows := [][]string{{"work", "goal", "measured", ""}}
	for _, t := range targets() {
		v := t.measured(jobs, res)
		if math.IsNaN(v) {
			continue
		}
		verdict := "missed"
		if v >= t.atLeast {
			verdict = "met"
		}
		rows = append(rows, []string{subst.Replace(t.name()), fmt.Sprintf("≥ %.2f ×", t.atLeast), fmt.Sprintf("%.2f ×", v), verdict})
	}
	return markdown(rows)
}
