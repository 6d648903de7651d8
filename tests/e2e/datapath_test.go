package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"runsc-fs/tests/lab"
)

// fileIO are the calls by which a process can have the host move file data.
var fileIO = []string{
	"read", "write", "pread64", "pwrite64", "readv", "writev", "preadv", "pwritev", "preadv2", "pwritev2",
	"sendfile", "splice", "copy_file_range", "io_submit", "io_uring_enter", "io_uring_setup",
}

// TestNoHostFileIO watches the sandbox from the host while fio reads and writes a
// memory volume, and expects no system call that moves file data.
func TestNoHostFileIO(t *testing.T) {
	r := plainRuntime(t)
	must(t, lab.EnsureTools(testContext(t, 5*time.Minute), progress, lab.ToolStrace))
	m := storage(t, "/data", "--size=512M", "--memory")
	c := start(t, bundle(fioJob("--rw=randrw --direct=1 --ioengine=psync --size=128m --time_based --runtime=600 --status-interval=1 --output-format=terse"), m))
	must(t, lab.WaitFor(testContext(t, time.Minute), "fio to lay out its file and run", 40*time.Second, func() (bool, error) {
		return strings.Count(c.Output(), "\n") >= 2, nil
	}))
	pid, err := lab.SandboxPID(c.ID)
	must(t, err)

	before := fioIOs(t, c)
	summary := straceFor(t, r, pid, 6*time.Second, "-c")
	trace := straceFor(t, r, pid, 3*time.Second, "-y", "-e", "trace="+strings.Join(fileIO, ","))
	must(t, lab.WaitFor(testContext(t, time.Minute), "fio's next report", 20*time.Second, func() (bool, error) {
		return fioIOs(t, c) > before, nil
	}))
	ios := fioIOs(t, c) - before
	t.Logf("%d I/Os; system calls of the sandbox meanwhile:\n%s", ios, summary)
	if ios < 1000 {
		t.Fatalf("fio did only %d I/Os under strace: too few to show anything", ios)
	}
	counts := straceCounts(summary)
	if len(counts) == 0 {
		t.Fatal("strace counted no system call at all: it did not see the sandbox")
	}
	for _, call := range fileIO {
		// The sandbox wakes threads through eventfd and passes fio's reports on, a few
		// calls a second; data would take one call per I/O.
		if n := counts[call]; n > ios/100 {
			t.Errorf("%d calls of %s during %d I/Os: the data path must not use it", n, call, ios)
		}
	}
	onFiles := regexp.MustCompile(`\((\d+)<(/[^>]*|memfd:[^>]*)>`)
	for line := range strings.Lines(trace) {
		if target := onFiles.FindStringSubmatch(line); target != nil && !harmless(target[2]) {
			t.Errorf("file I/O on the host: %s", strings.TrimSpace(line))
			break
		}
	}
}

// harmless are places that the sandbox may touch while data flows.
func harmless(path string) bool {
	return strings.HasPrefix(path, "/dev/") || strings.HasPrefix(path, "/proc/") || strings.HasSuffix(path, "/output") || strings.Contains(path, "/logs/")
}

// fioIOs is the number of reads and writes that fio reported last.
func fioIOs(t *testing.T, c *lab.Container) int {
	t.Helper()
	var last string
	for line := range strings.Lines(c.Output()) {
		if strings.HasSuffix(line, "\n") && strings.HasPrefix(line, "3;") {
			last = line
		}
	}
	f := strings.Split(last, ";")
	if len(f) < 60 {
		return 0
	}
	// Terse format 3: total KiB read is field 6, written is field 47, of 4 KiB each.
	read, err := strconv.Atoi(f[5])
	must(t, err)
	written, err := strconv.Atoi(f[46])
	must(t, err)
	return (read + written) / 4
}

// straceFor traces all threads of a process for a while and returns what strace wrote.
func straceFor(t *testing.T, r *lab.Runtime, pid int, d time.Duration, args ...string) string {
	t.Helper()
	out := filepath.Join(r.Dir, fmt.Sprintf("strace-%d", time.Now().UnixNano()))
	argv := append([]string{"strace", "-f", "-q", "-o", out}, args...)
	p, err := lab.Start(testContext(t, time.Minute), lab.Cmd{Argv: append(argv, "-p", strconv.Itoa(pid)), Timeout: time.Minute})
	must(t, err)
	select {
	case <-p.Done():
		_, err := p.Wait()
		t.Fatalf("strace ended by itself: %v", err)
	case <-time.After(d):
	}
	must(t, p.Signal(syscall.SIGINT))
	p.Wait()
	b, err := os.ReadFile(out)
	must(t, err)
	return string(b)
}

// straceCounts reads the table of strace -c: calls by name.
func straceCounts(summary string) map[string]int {
	counts := map[string]int{}
	for line := range strings.Lines(summary) {
		f := strings.Fields(line)
		if len(f) < 5 {
			continue
		}
		if n, err := strconv.Atoi(f[3]); err == nil && f[len(f)-1] != "total" {
			counts[f[len(f)-1]] = n
		}
	}
	return counts
}
