package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// results is what a run measured: results[job][contender].
type results map[string]map[string]*sample

// at gives a sample, an empty one when there is none.
func (r results) at(job, contender string) sample {
	if s := r[job][contender]; s != nil {
		return *s
	}
	return sample{Reason: "not part of this run"}
}

// measure runs all rounds. A job that fails is reported and the others go on; only
// the end of ctx ends the run.
func (b *bench) measure(ctx context.Context, jobs []job, cs []contender) (results, error) {
	res := results{}
	for _, j := range jobs {
		res[j.name] = map[string]*sample{}
		for _, c := range cs {
			res[j.name][c.name] = &sample{}
		}
	}
	var boxes []*box
	defer func() {
		for _, x := range boxes {
			if err := x.close(context.WithoutCancel(ctx)); err != nil {
				b.logf("cannot remove the container of %s: %v", x.name, err)
			}
		}
	}()
	for _, c := range cs {
		x, err := b.open(ctx, c)
		if err != nil {
			return nil, err
		}
		boxes = append(boxes, x)
	}
	begin := time.Now()
	prepared := map[string]error{} // by contender and needsName
	for round := range b.scale.rounds {
		for i, j := range jobs {
			b.logf("[%s] round %d of %d, job %d of %d: %s", time.Since(begin).Round(time.Second), round+1, b.scale.rounds, i+1, len(jobs), j.name)
			for k := range boxes {
				x := boxes[(k+round)%len(boxes)]
				s := res[j.name][x.name]
				if !j.wants(x.name) {
					*s = sample{Reason: "not part of this run"}
				}
				if s.Reason != "" {
					continue // it is not to, it cannot, or has failed in an earlier round
				}
				v, err := x.do(ctx, j, prepared)
				if ctx.Err() != nil {
					return nil, ctx.Err()
				}
				if err != nil {
					*s = sample{Reason: oneLine(err)}
					b.logf("  %-15s %s", x.name, s.Reason)
					continue
				}
				s.Values = append(s.Values, v)
				b.logf("  %-15s %s %s", x.name, figure(v), j.unit)
			}
		}
	}
	return res, nil
}

// errSkipped says that a contender cannot do a job by its nature.
var errSkipped = errors.New("skipped")

// do runs one job once, after what it needs.
func (x *box) do(ctx context.Context, j job, prepared map[string]error) (float64, error) {
	if j.skip != nil {
		if why := j.skip(x.contender); why != "" {
			return 0, fmt.Errorf("%w: %s", errSkipped, why)
		}
	}
	if j.needs != nil {
		key := x.name + " " + j.needsName
		err, done := prepared[key]
		if !done {
			if err = j.needs(ctx, x); err != nil {
				err = fmt.Errorf("cannot prepare it: %w", err)
			}
			prepared[key] = err
		}
		if err != nil {
			return 0, err
		}
	}
	return j.run(ctx, x)
}

// oneLine is an error fit for a table.
func oneLine(err error) string {
	s := strings.Join(strings.Fields(err.Error()), " ")
	s = strings.TrimPrefix(s, errSkipped.Error()+": ")
	const most = 300
	if len(s) > most {
		s = "…" + strings.ToValidUTF8(s[len(s)-most:], "")
	}
	return s
}

// failures lists the jobs that the product's own contenders failed.
func (r results) failures(jobs []job) []string {
	var out []string
	for _, j := range jobs {
		for _, c := range []string{blobfsMemory, blobfsImage} {
			s := r[j.name][c]
			if s == nil || s.ok() || j.skip != nil || !j.wants(c) {
				continue
			}
			out = append(out, fmt.Sprintf("%s on %s: %s", j.name, c, s.Reason))
		}
	}
	return out
}
