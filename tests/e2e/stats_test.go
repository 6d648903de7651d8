package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"runsc-fs/tests/lab"
)

// TestStatsOfVolume has docker stats count what a container with a volume uses: its
// page cache counts as memory, within the limit, and its work as processor time.
func TestStatsOfVolume(t *testing.T) {
	v := dockerVolume(t, "size=1G")
	const limit = 512 << 20
	name := dockerStart(t, fmt.Sprintf("--memory=%d", limit), "--volume="+v+":/data", image, "sleep", "600")
	memory := func() int64 {
		t.Helper()
		var used, most int64
		out := dockerOK(t, "stats", "--no-stream", "--format={{.MemUsage}}", name)
		a, b, _ := strings.Cut(out, " / ")
		used, most = parseSize(t, a), parseSize(t, b)
		if most != limit {
			t.Errorf("docker stats gives a limit of %s", b)
		}
		if used <= 0 || used > limit {
			t.Errorf("docker stats gives a memory of %s with a limit of %s", a, b)
		}
		return used
	}
	before := memory()
	const written = 48 << 20
	dockerOK(t, "exec", name, "dd", "if=/dev/urandom", "of=/data/file", "bs=1M", fmt.Sprintf("count=%d", written>>20))
	if after := memory(); after < before+written/2 {
		t.Errorf("the memory went from %d to %d bytes when %d were written into the cache", before, after, written)
	}
	dockerOK(t, "exec", "--detach", name, "sh", "-c", "while :; do dd if=/data/file of=/dev/null bs=64k 2>/dev/null; done")
	must(t, lab.WaitFor(testContext(t, time.Minute), "processor time in docker stats", 40*time.Second, func() (bool, error) {
		out := dockerOK(t, "stats", "--no-stream", "--format={{.CPUPerc}}", name)
		var percent float64
		if _, err := fmt.Sscanf(out, "%f%%", &percent); err != nil {
			return false, fmt.Errorf("docker stats says %q", out)
		}
		if most := 100 * float64(processors(t)+1); percent > most {
			return false, fmt.Errorf("docker stats says %s on %d processors", out, processors(t))
		}
		return percent >= 5, nil
	}))
}

// parseSize reads a size as docker stats prints it.
func parseSize(t *testing.T, text string) int64 {
	t.Helper()
	var n float64
	var unit string
	if _, err := fmt.Sscanf(strings.TrimSpace(text), "%f%s", &n, &unit); err != nil {
		t.Fatalf("docker stats says %q", text)
	}
	factor, ok := map[string]float64{"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}[unit]
	if !ok {
		t.Fatalf("docker stats says %q", text)
	}
	return int64(n * factor)
}

// processors is how many the host has.
func processors(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile("/proc/cpuinfo")
	must(t, err)
	return strings.Count(string(text), "processor\t")
}
