package e2e

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"runsc-fs/tests/lab"
)

// TestObserveVolume watches a container that reads, writes and syncs: in volume top, and
// in the metrics.
func TestObserveVolume(t *testing.T) {
	volume := newVolume(t, "--memory", "--size=256M")
	c := start(t, bundle(fioJob("--rw=randrw --ioengine=psync --size=16m --fsync=4 --time_based --runtime=600 --status-interval=1 --output-format=terse"), lab.VolumeMount(volume, "/data")))
	must(t, lab.WaitFor(testContext(t, time.Minute), "fio to lay out its file and run", 40*time.Second, func() (bool, error) {
		return strings.Count(c.Output(), "\n") >= 1, nil
	}))

	t.Run("top", func(t *testing.T) {
		res, err := command(t, "volume", "top", "--once", "--json")
		must(t, err)
		var rows []struct {
			Volume, Container string
			Calls             map[string]struct {
				PerSecond, BytesPerSecond, P50Us, P99Us float64
				Errors, Timed                           int
			}
		}
		if err := json.Unmarshal([]byte(res.Stdout), &rows); err != nil {
			t.Fatalf("%v in %s", err, res.Stdout)
		}
		found := false
		for _, row := range rows {
			if row.Volume != volume {
				continue
			}
			found = true
			if row.Container != c.ID {
				t.Errorf("volume %s is used by %s, not by %s", volume, row.Container, c.ID)
			}
			for _, op := range []string{"read", "write", "sync"} {
				if n := row.Calls[op]; n.PerSecond <= 0 || n.Timed <= 0 || n.P50Us <= 0 || n.P99Us < n.P50Us || n.Errors != 0 || (n.BytesPerSecond > 0) != (op != "sync") {
					t.Errorf("%s: %+v", op, n)
				}
			}
		}
		if !found {
			t.Errorf("volume %s is missing in %s", volume, res.Stdout)
		}
		res, err = command(t, "volume", "top", "--once")
		must(t, err)
		if !strings.Contains(res.Stdout, volume) || !strings.HasPrefix(strings.TrimSpace(res.Stdout), "VOLUME") || strings.Contains(res.Stdout, "\x1b") {
			t.Errorf("volume top --once prints:\n%s", res.Stdout)
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
