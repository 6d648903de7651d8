package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"runsc-fs/tests/lab"
)

// job is one piece of work whose result is one figure.
type job struct {
	name string
	unit string
	dir  better
	// quick has the job in quick runs.
	quick bool
	// needs prepares the contender's directory, once for all jobs whose needsName is
	// the same; drop, if there is one, removes that after the last of them.
	needs     func(context.Context, *box) error
	needsName string
	run       func(context.Context, *box) (float64, error)
	// skip gives the reason why a contender cannot do the job, if there is one.
	skip func(contender) string
	// only has the contenders that do the job; nil is all of them.
	only map[string]bool
}

// wants reports whether the contender is one of those that do the job.
func (j job) wants(contender string) bool { return j.only == nil || j.only[contender] }

// scale is how large the work is.
type scale struct {
	fioSize, fioTime string
	files            int // of the jobs with many files
	commits          int // of SQLite
	pgScale          int
	pgSeconds        int
	idleSeconds      int
	rounds           int
	rootFS           lab.RootFSSpec
	small            bool // a small source tree
}

var (
	full  = scale{fioSize: "256m", fioTime: "3s", files: 100_000, commits: 1000, pgScale: 10, pgSeconds: 15, idleSeconds: 5, rounds: 3, rootFS: rootFS}
	quick = scale{fioSize: "128m", fioTime: "1s", files: 5_000, commits: 200, pgScale: 2, pgSeconds: 3, idleSeconds: 2, rounds: 2, rootFS: rootFS}
	// smoke is for tests, which have a root file system already.
	smoke = scale{fioSize: "4m", fioTime: "100ms", files: 200, commits: 10, pgScale: 1, pgSeconds: 1, idleSeconds: 1, rounds: 1, rootFS: lab.BaseRootFS, small: true}
)

// allJobs is every job, in the order of the tables.
func allJobs() []job {
	jobs := fioJobs()
	jobs = append(jobs, fileJobs()...)
	jobs = append(jobs, appJobs()...)
	return append(jobs, sandboxJobs()...)
}

// clock runs a shell script and prints how many seconds it took, by the clock of the
// container. The script's own output is dropped.
const clock = `clock() { perl -MTime::HiRes=time -e '
	open STDOUT_, ">&", STDOUT; open STDOUT, ">", "/dev/null"; $t = time; $r = system("sh", "-ec", $ARGV[0]); $t = time - $t;
	printf STDOUT_ "%.6f\n", $t; exit($r ? 1 : 0)' "$1"; }
`

// timed makes a job of a shell script; the figure is the seconds of its part between
// before and after.
func timed(name string, quick bool, before, script, after string) job {
	return job{name: name, unit: "s", dir: lower, quick: quick, run: func(ctx context.Context, x *box) (float64, error) {
		subst := strings.NewReplacer("$N", strconv.Itoa(x.b.scale.files), "$COMMITS", strconv.Itoa(x.b.scale.commits))
		out, err := x.sh(ctx, subst.Replace(clock+before+"\nclock '"+script+"'\n"+after))
		if err != nil {
			return 0, err
		}
		return lastNumber(out)
	}}
}

// lastNumber is the number that the last line of the output is.
func lastNumber(out string) (float64, error) {
	lines := strings.Split(strings.TrimSpace(out), "\n")
	v, err := strconv.ParseFloat(lines[len(lines)-1], 64)
	if err != nil {
		return 0, fmt.Errorf("no figure in %q", out)
	}
	return v, nil
}
