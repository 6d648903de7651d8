package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/runsc/container"

	"runsc-fs/oci/registry"
	"runsc-fs/runsc-fs/hooks"
	"runsc-fs/sentry/volumestats"
)

// answerPatience bounds the wait for an answer that a sandbox has at hand.
const answerPatience = 5 * time.Second

// volumeTop shows what running containers do with volumes.
type volumeTop struct {
	interval time.Duration
	once     bool
	json     bool
}

func (*volumeTop) name() string { return "top" }
func (*volumeTop) synopsis() string {
	return "show what running containers do with volumes, and how long it takes"
}
func (*volumeTop) arguments() string { return "[--interval 1s] [--once] [--json]" }

func (v *volumeTop) setFlags(f *flag.FlagSet) {
	f.DurationVar(&v.interval, "interval", time.Second, "time between two readings, 100ms to 1h")
	f.BoolVar(&v.once, "once", false, "one table, over one interval")
	f.BoolVar(&v.json, "json", false, "a list in JSON, on one line for each interval")
}

func (v *volumeTop) run(ctx context.Context, out io.Writer, args []string) error {
	if len(args) != 0 {
		return usagef("no arguments are taken")
	}
	if v.interval < 100*time.Millisecond || v.interval > time.Hour {
		return usagef("--interval %v is not between 100ms and 1h", v.interval)
	}
	rootDir := configOf(ctx).RootDir
	clear := v.clearing(out)
	before, err := readAll(rootDir)
	if err != nil {
		return err
	}
	for {
		time.Sleep(v.interval)
		after, err := readAll(rootDir)
		if err != nil {
			return err
		}
		rows, err := activity(before, after)
		if err != nil {
			return err
		}
		if v.json {
			err = json.NewEncoder(out).Encode(rows)
		} else {
			fmt.Fprint(out, clear)
			err = printTop(out, rows)
		}
		if err != nil || v.once {
			return err
		}
		before = after
	}
}

// clearing is what is written before each table: on a terminal each replaces the one
// before it.
func (v *volumeTop) clearing(out io.Writer) string {
	if f, ok := out.(*os.File); ok && !v.once {
		if _, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS); err == nil {
			return "\x1b[H\x1b[2J"
		}
	}
	if v.once {
		return ""
	}
	return "\n"
}

// volumeUser is one container on one volume.
type volumeUser struct{ sandbox, container, volume string }

// reading is what all sandboxes said at one time.
type reading struct {
	at  time.Time
	all map[volumeUser]volumestats.Report
}

// readAll asks all sandboxes below rootDir that run and have volumes.
func readAll(rootDir string) (*reading, error) {
	r := &reading{all: map[volumeUser]volumestats.Report{}}
	ids, err := container.List(rootDir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("containers below %s: %w", rootDir, err)
	}
	asked := map[string]bool{}
	for _, id := range ids {
		c, err := container.Load(rootDir, id, container.LoadOpts{Exact: true})
		if err != nil || !c.IsSandboxRunning() {
			continue // it has gone
		}
		volumes := volumesOf(c)
		if len(volumes) == 0 {
			continue
		}
		if !asked[c.Sandbox.ID] {
			asked[c.Sandbox.ID] = true
			var report hooks.VolumeStatsReport
			if err := askSandbox(c, hooks.VolumeStatsRead, &struct{}{}, &report, answerPatience); err != nil {
				log.Warningf("%v", err)
				if errors.Is(err, errNoCall) || c.IsSandboxRunning() {
					fmt.Fprintf(os.Stderr, "runsc-fs: %v\n", err)
				}
				continue
			}
			for _, u := range report.Volumes {
				u.Volume, u.Container = printable(u.Volume), printable(u.Container)
				r.all[volumeUser{c.Sandbox.ID, u.Container, u.Volume}] = u
			}
		}
		for _, name := range volumes { // also those that it has done nothing with
			key := volumeUser{c.Sandbox.ID, c.ID, name}
			if _, ok := r.all[key]; !ok {
				r.all[key] = volumestats.Report{Volume: name, Container: c.ID}
			}
		}
	}
	r.at = time.Now()
	return r, nil
}

// topRow is what one container did with one volume in one interval.
type topRow struct {
	Volume    string            `json:"volume"`
	Container string            `json:"container"`
	Sandbox   string            `json:"sandbox"`
	Seconds   float64           `json:"seconds"`
	Calls     map[string]topOps `json:"calls"`
}

// topOps are the calls of one kind. Of reads and writes only some are timed.
type topOps struct {
	PerSecond      float64 `json:"perSecond"`
	BytesPerSecond float64 `json:"bytesPerSecond"`
	Errors         uint64  `json:"errors"`
	Timed          int64   `json:"timed"`
	P50Us          float64 `json:"p50Us"`
	P99Us          float64 `json:"p99Us"`
}

// activity is the difference of two readings.
func activity(before, after *reading) ([]topRow, error) {
	seconds := after.at.Sub(before.at).Seconds()
	rows := []topRow{}
	for key, now := range after.all {
		row := topRow{Volume: key.volume, Container: key.container, Sandbox: key.sandbox, Seconds: seconds, Calls: map[string]topOps{}}
		was := before.all[key]
		for k := range now.Calls {
			c := &now.Calls[k]
			var old volumestats.CallReport
			if k < len(was.Calls) && was.Calls[k].Count <= c.Count { // otherwise it is another sandbox by now
				old = was.Calls[k]
			}
			ops := topOps{
				PerSecond:      float64(c.Count-old.Count) / seconds,
				BytesPerSecond: float64(c.Bytes-min(old.Bytes, c.Bytes)) / seconds,
				Errors:         c.Errors - min(old.Errors, c.Errors),
			}
			h, err := c.Latency.Since(old.Latency)
			if err != nil {
				return nil, fmt.Errorf("container %q: %w", key.container, err)
			}
			if h != nil {
				ops.Timed, ops.P50Us, ops.P99Us = h.TotalCount(), float64(h.ValueAtQuantile(50))/1e3, float64(h.ValueAtQuantile(99))/1e3
			}
			row.Calls[c.Op] = ops
		}
		rows = append(rows, row)
	}
	slices.SortFunc(rows, func(a, b topRow) int {
		return strings.Compare(a.Volume+"\x00"+a.Container, b.Volume+"\x00"+b.Container)
	})
	return rows, nil
}

// shortID is as much of the name of a container as a table has room for.
func shortID(id string) string {
	const most = 16
	if len(id) == 64 { // Docker's
		return id[:12]
	}
	return id[:min(len(id), most)]
}

func printTop(out io.Writer, rows []topRow) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(table, "VOLUME\tCONTAINER\t")
	for _, op := range []string{"READ", "WRITE", "SYNC"} {
		fmt.Fprintf(table, "%s/s\t", op)
		if op != "SYNC" {
			fmt.Fprint(table, "B/s\t")
		}
		fmt.Fprint(table, "p50\tp99\t")
	}
	fmt.Fprintln(table, "ERRORS\t")
	for _, row := range rows {
		fmt.Fprintf(table, "%s\t%s\t", row.Volume, shortID(row.Container))
		var failures uint64
		for op := range volumestats.Ops {
			c := row.Calls[op.String()]
			fmt.Fprintf(table, "%.0f\t", c.PerSecond)
			if op != volumestats.Sync {
				fmt.Fprintf(table, "%s\t", registry.FormatSize(int64(c.BytesPerSecond)))
			}
			if c.Timed == 0 {
				fmt.Fprint(table, "-\t-\t")
			} else {
				fmt.Fprintf(table, "%s\t%s\t", microseconds(c.P50Us), microseconds(c.P99Us))
			}
			failures += c.Errors
		}
		fmt.Fprintf(table, "%d\t\n", failures)
	}
	return table.Flush()
}

// microseconds writes a time with three digits or all before the point.
func microseconds(us float64) string {
	switch {
	case us >= 1e6:
		return fmt.Sprintf("%.2fs", us/1e6)
	case us >= 1e4:
		return fmt.Sprintf("%.1fms", us/1e3)
	case us >= 100:
		return fmt.Sprintf("%.0fus", us)
	case us >= 10:
		return fmt.Sprintf("%.1fus", us)
	}
	return fmt.Sprintf("%.2fus", us)
}
