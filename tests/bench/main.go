package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"runsc-fs/tests/lab"
)

// options are the command line.
type options struct {
	quick      bool
	jobs       string // regular expression; "" is all
	contenders string // regular expression; "" is all
	rounds     int    // 0 is that of the scale
	out        string // directory of the results
}

func main() {
	var o options
	flag.BoolVar(&o.quick, "quick", false, "less work, fewer jobs, each under the contenders that its goals compare: under five minutes")
	flag.StringVar(&o.jobs, "jobs", "", "run the jobs that match this regular expression")
	flag.StringVar(&o.contenders, "contenders", "", "run the contenders whose whole name matches this regular expression")
	flag.IntVar(&o.rounds, "rounds", 0, "rounds; 0 means three, two with -quick")
	flag.StringVar(&o.out, "out", "bench", "directory for RESULTS.md, results.json and the plots")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx, o)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	if os.Geteuid() != 0 {
		return errors.New("it needs root, for containers and mounts; try: sudo make bench")
	}
	s := full
	if o.quick {
		s = quick
	}
	if o.rounds > 0 {
		s.rounds = o.rounds
	}
	logf := func(format string, args ...any) { fmt.Printf(format+"\n", args...) }
	return runScale(ctx, o, s, logf)
}

// runScale does a whole run and writes the results.
func runScale(ctx context.Context, o options, s scale, logf lab.Logf) (err error) {
	jobFilter, err := regexp.Compile(o.jobs)
	if err != nil {
		return fmt.Errorf("-jobs: %w", err)
	}
	contenderFilter, err := regexp.Compile("^(?:" + o.contenders + ")$")
	if err != nil {
		return fmt.Errorf("-contenders: %w", err)
	}
	jobs := slices.DeleteFunc(allJobs(), func(j job) bool { return o.quick && !j.quick || !jobFilter.MatchString(j.name) })
	if o.quick {
		jobs = forGoals(jobs)
	}
	if len(jobs) == 0 {
		return fmt.Errorf("no job matches %q; the jobs are %s", o.jobs, names(allJobs()))
	}
	b, err := newBench(logf, s)
	if err != nil {
		return err
	}
	cs := slices.DeleteFunc(contenders(b), func(c contender) bool {
		return o.quick && !c.quick || o.contenders != "" && !contenderFilter.MatchString(c.name)
	})
	if len(cs) == 0 {
		return fmt.Errorf("no contender matches %q", o.contenders)
	}
	defer func() { err = errors.Join(err, b.close()) }()
	if err := b.prepare(ctx, cs); err != nil {
		return err
	}
	m, err := b.describe(ctx, cs, time.Now().Format(time.DateOnly))
	if err != nil {
		return err
	}
	var alone []engineResult
	if o.jobs == "" {
		if alone, err = engine(ctx, b); err != nil {
			return err
		}
	}
	res, err := b.measure(ctx, jobs, cs)
	if err != nil {
		return err
	}
	if err := write(o.out, m, s, jobs, cs, alone, res); err != nil {
		return err
	}
	logf("\n%s\nwritten: %s", targetTable(jobs, res, s.replacer()), filepath.Join(o.out, "RESULTS.md"))
	if failed := res.failures(jobs); len(failed) > 0 {
		return fmt.Errorf("blobfs failed jobs:\n%s", strings.Join(failed, "\n"))
	}
	return nil
}

func names(jobs []job) string {
	var all []string
	for _, j := range jobs {
		all = append(all, j.name)
	}
	return strings.Join(all, "; ")
}

// write puts the report, the plots and the raw figures into a directory.
func write(dir string, m machine, s scale, jobs []job, cs []contender, alone []engineResult, res results) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	plots, err := drawAll(dir, s, cs, res)
	if err != nil {
		return err
	}
	raw, err := json.MarshalIndent(struct {
		Machine machine
		Results results
	}{m, res}, "", "\t")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "results.json"), append(raw, '\n'), 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "RESULTS.md"), []byte(report(m, s, jobs, cs, alone, res, plots)), 0o644)
}
