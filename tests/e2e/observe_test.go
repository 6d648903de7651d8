package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"runsc-fs/tests/lab"
)

// TestObserveVolume watches a container that reads, writes and syncs: in volume top, in
// the metrics, and in traces.
func TestObserveVolume(t *testing.T) {
	volume := newVolume(t, "--memory", "--size=256M")
	// Beside fio, which reads and writes what is there, dd has blocks allocated.
	c := startTraced(t, bundle("while :; do dd if=/dev/zero of=/data/new bs=4k count=4k oflag=dsync 2>/dev/null && rm /data/new || exit; done & "+fioJob("--rw=randrw --ioengine=psync --size=16m --fsync=4 --time_based --runtime=600 --status-interval=1 --output-format=terse"), lab.VolumeMount(volume, "/data")))
	must(t, lab.WaitFor(testContext(t, time.Minute), "fio to lay out its file and run", 40*time.Second, func() (bool, error) {
		return strings.Count(c.Output(), "\n") >= 1, nil
	}))

	t.Run("top", func(t *testing.T) {
		must(t, lab.WaitFor(testContext(t, 2*time.Minute), "all kinds of calls in an interval", time.Minute, func() (bool, error) {
			res, err := command(t, "volume", "top", "--once", "--json")
			if err != nil {
				return false, err
			}
			return checkTop(t, volume, c.ID, res.Stdout), nil
		}))
		res, err := command(t, "volume", "top", "--once")
		must(t, err)
		if !strings.Contains(res.Stdout, volume) || !strings.HasPrefix(strings.TrimSpace(res.Stdout), "VOLUME") || strings.Contains(res.Stdout, "\x1b") {
			t.Errorf("volume top --once prints:\n%s", res.Stdout)
		}
	})

	t.Run("trace", func(t *testing.T) {
		plot := filepath.Join(t.TempDir(), "plot.svg")
		must(t, lab.WaitFor(testContext(t, 2*time.Minute), "all stages in a trace", time.Minute, func() (bool, error) {
			res, err := command(t, "volume", "trace", c.ID, "--seconds=1", "--json", "--plot="+plot)
			if err != nil {
				return false, err
			}
			return checkTrace(t, volume, res.Stdout), nil
		}))
		text, err := os.ReadFile(plot)
		must(t, err)
		for _, stage := range stages {
			if !strings.Contains(string(text), ">"+stage+"</text>") {
				t.Errorf("the plot lacks stage %s", stage)
			}
		}
		res, err := command(t, "volume", "trace", c.ID, "--seconds=0", "--json")
		must(t, err)
		if !checkTrace(t, volume, res.Stdout) {
			t.Errorf("the trace since the start lacks stages: %s", res.Stdout)
		}
		res, err = command(t, "volume", "trace", "--seconds=0", c.ID)
		must(t, err)
		for _, want := range append([]string{volume + " READ", volume + " WRITE", volume + " SYNC", "SHARE", "p99.9"}, stages...) {
			if !strings.Contains(res.Stdout, want) {
				t.Errorf("the table lacks %q:\n%s", want, res.Stdout)
			}
		}
	})

	t.Run("metrics", func(t *testing.T) {
		res, err := command(t, "export-metrics", "--sandbox-metrics-filter=^blobfs_", c.ID)
		must(t, err)
		for _, op := range []string{"read", "write", "sync"} {
			for _, name := range []string{"ops", "bytes", "latency_nanoseconds_count"} {
				m := regexp.MustCompile(fmt.Sprintf(`(?m)^runsc_blobfs_%s\{([^}]*)\} (\d+)`, name)).FindAllStringSubmatch(res.Stdout, -1)
				value := 0
				for _, one := range m {
					if strings.Contains(one[1], `op="`+op+`"`) && strings.Contains(one[1], `volume="`+volume+`"`) {
						value, err = strconv.Atoi(one[2])
						must(t, err)
					}
				}
				if (value > 0) != (name != "bytes" || op != "sync") {
					t.Errorf("metric %s of %s is %d in:\n%s", name, op, value, res.Stdout)
				}
			}
		}
	})
}

// checkTop checks the line of a container on a volume, and says whether each kind of call
// occurred and was timed.
func checkTop(t *testing.T, volume, container, text string) bool {
	t.Helper()
	var rows []struct {
		Volume, Container string
		Calls             map[string]struct {
			PerSecond, BytesPerSecond, P50Us, P99Us float64
			Errors, Timed                           int
		}
	}
	if err := json.Unmarshal([]byte(text), &rows); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	for _, row := range rows {
		if row.Volume != volume {
			continue
		}
		if row.Container != container {
			t.Errorf("volume %s is used by %s, not by %s", volume, row.Container, container)
		}
		all := true
		for _, op := range []string{"read", "write", "sync"} {
			n := row.Calls[op]
			if n.P99Us < n.P50Us || n.Errors != 0 || (n.BytesPerSecond > 0) != (op != "sync" && n.PerSecond > 0) {
				t.Errorf("%s: %+v", op, n)
			}
			all = all && n.PerSecond > 0 && n.Timed > 0 && n.P50Us > 0
		}
		return all
	}
	t.Errorf("volume %s is missing in %s", volume, text)
	return false
}

// stages are those of a call on a volume, from the top down.
var stages = []string{"vfs", "fs", "cache", "alloc", "log", "queue", "device", "copy"}

// checkTrace checks that the stages of each kind of call add up, and says whether the trace has
// all kinds and all stages.
func checkTrace(t *testing.T, volume, text string) bool {
	t.Helper()
	type times struct {
		Count                               int
		Share, MeanUs, P50Us, P99Us, P999Us float64
	}
	var result struct {
		Every int
		Calls []struct {
			Volume, Op string
			Total      times
			Stages     []struct {
				Name string
				times
			}
		}
	}
	if err := json.Unmarshal([]byte(text), &result); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	seen := map[string]bool{}
	for _, c := range result.Calls {
		if c.Volume != volume {
			t.Errorf("calls on volume %q", c.Volume)
		}
		seen[c.Op] = true
		share, mean := 0.0, 0.0
		for k, s := range c.Stages {
			if k >= len(stages) || s.Name != stages[k] {
				t.Fatalf("stage %d is %s", k, s.Name)
			}
			if s.Count > c.Total.Count || s.P50Us > s.P99Us || s.P99Us > s.P999Us {
				t.Errorf("%s: stage %+v of %+v", c.Op, s, c.Total)
			}
			share += s.Share
			mean += s.MeanUs * float64(s.Count) / float64(c.Total.Count)
			if s.Count > 0 {
				seen[s.Name] = true
			}
		}
		if math.Abs(share-1) > 0.01 || math.Abs(mean/c.Total.MeanUs-1) > 0.01 {
			t.Errorf("%s: the stages have %.1f %% of the time, %.2f us in the mean of %.2f", c.Op, 100*share, mean, c.Total.MeanUs)
		}
	}
	for _, want := range append([]string{"read", "write", "sync"}, stages...) {
		if !seen[want] {
			return false
		}
	}
	return true
}

// startTraced is start for a container that is traced from its beginning.
func startTraced(t *testing.T, b lab.BundleSpec) *lab.Container {
	t.Helper()
	r := plainRuntime(t)
	r.Flags = append(r.Flags, "--blobfs-trace")
	defer func() { r.Flags = r.Flags[:len(r.Flags)-1] }()
	return start(t, b)
}

// TestObserveBadInput has one line and a status for each mistake.
func TestObserveBadInput(t *testing.T) {
	c := start(t, bundle("sleep 600"))
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"trace"}, "a container is needed, not 0 arguments"},
		{[]string{"trace", "nosuch"}, `container "nosuch" does not exist under /run/runsc; 'runsc-fs list' shows those that do`},
		{[]string{"trace", c.ID}, fmt.Sprintf("container %q has no blobfs volumes", c.ID)},
		{[]string{"trace", c.ID, "--seconds=-1"}, "--seconds -1 is not between 0 and 3600"},
		{[]string{"trace", c.ID, "--plot=x.doc"}, `--plot "x.doc" does not end in .svg`},
		{[]string{"top", "x"}, "no arguments are taken"},
		{[]string{"top", "--interval=1ms"}, "--interval 1ms is not between 100ms and 1h"},
	} {
		res, err := command(t, append([]string{"volume"}, test.args...)...)
		if text := strings.TrimSpace(res.Stderr); err == nil || !strings.Contains(text, test.want) || strings.Contains(text, "\n") {
			t.Errorf("volume %s: %v: %s\nwant one line with: %s", strings.Join(test.args, " "), err, text, test.want)
		}
	}

	volume := newVolume(t, "--memory", "--size=64M")
	idle := start(t, bundle("sleep 600", lab.VolumeMount(volume, "/data")))
	for seconds, want := range map[string]string{"0": "without --blobfs-trace", "0.1": "did nothing with its volumes"} {
		if res, err := command(t, "volume", "trace", idle.ID, "--seconds="+seconds); err == nil || !strings.Contains(res.Stderr, want) {
			t.Errorf("--seconds %s with an idle container: %v: %s", seconds, err, res.Stderr)
		}
	}
	res, err := command(t, "volume", "top", "--once", "--interval=100ms")
	must(t, err)
	if !strings.Contains(res.Stdout, volume) || strings.Contains(res.Stdout, c.ID) {
		t.Errorf("volume top shows not just containers with volumes, also idle ones:\n%s", res.Stdout)
	}
	must(t, idle.Signal(context.Background(), "KILL"))
	must(t, idle.WaitStopped(testContext(t, time.Minute), 40*time.Second))
	if res, err := command(t, "volume", "trace", idle.ID); err == nil || !strings.Contains(res.Stderr, "is not running") {
		t.Errorf("a container that has ended: %v: %s", err, res.Stderr)
	}
}
