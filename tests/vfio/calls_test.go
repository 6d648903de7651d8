//go:build full

package vfio

import (
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// minWatchedIOs is what fio has to have done, for the silence to mean something.
const minWatchedIOs = 200

// checkCalls reads what watch_calls printed: while fio worked, the sandbox has made no
// system call on anything that could hold a file's data.
func checkCalls(t *testing.T, output string) {
	t.Helper()
	threads, descriptors := map[string]bool{}, map[string]string{}
	entry := regexp.MustCompile(`^\{ common_pid: +(\d+)(?:, fd: +(\d+))? *\} hitcount: +(\d+)`)
	var call string
	total := 0
	for line := range strings.Lines(output) {
		fields := strings.Fields(line)
		switch {
		case strings.HasPrefix(line, "@@ threads "):
			for _, id := range fields[2:] {
				threads[id] = true
			}
		case strings.HasPrefix(line, "@@ descriptor ") && len(fields) > 3:
			descriptors[fields[2]] = strings.Join(fields[3:], " ")
		case strings.HasPrefix(line, "@@ call "):
			call = fields[2]
		}
		m := entry.FindStringSubmatch(line)
		if m == nil || !threads[m[1]] {
			continue
		}
		n, err := strconv.Atoi(m[3])
		must(t, err)
		total += n
		if target := descriptors[m[2]]; !carriesNoData(call, target) {
			t.Errorf("%d calls of %s by the sandbox on descriptor %s (%s)", n, call, m[2], target)
		}
	}
	if len(threads) == 0 || total == 0 {
		t.Errorf("saw %d threads of the sandbox, and %d calls: even a sandbox that moves no data passes output on", len(threads), total)
	}
	_, reports, _ := strings.Cut(output, "@@ fio while watched:\n")
	reports, _, _ = strings.Cut(reports, "@@ end\n")
	ios := fioWrites(t, reports)
	if t.Logf("%d writes of 4 KiB; %d calls of the sandbox, on eventfds and its output", ios, total); ios < minWatchedIOs {
		t.Errorf("fio wrote only %d times while the sandbox was watched", ios)
	}
}

// carriesNoData says that a descriptor's target wakes threads, or is the output of
// the container or the runtime's log, or that a program is read from the image, which is
// read-only and below /root.
func carriesNoData(call, target string) bool {
	return target == "anon_inode:[eventfd]" || strings.HasPrefix(target, "pipe:") || strings.HasPrefix(target, "socket:") ||
		target == "/tmp/output-load" || strings.HasPrefix(target, "/tmp/log/") || call == "pread64" && strings.HasPrefix(target, "/root/")
}

// fioWrites is the number of writes of 4 KiB between the first and the last report of fio.
func fioWrites(t *testing.T, reports string) int {
	t.Helper()
	var written []int
	for line := range strings.Lines(reports) {
		// Terse format 3: KiB written are the field 47.
		if f := strings.Split(line, ";"); f[0] == "3" && len(f) > 60 {
			kib, err := strconv.Atoi(f[46])
			must(t, err)
			written = append(written, kib)
		}
	}
	if len(written) < 2 {
		return 0
	}
	return (written[len(written)-1] - written[0]) / 4
}
