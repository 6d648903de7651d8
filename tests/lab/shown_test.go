package lab

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestRunShown has a command that takes longer than one interval: its progress is
// told, and its output and status are complete all the same.
func TestRunShown(t *testing.T) {
	var told []string
	logf := func(format string, args ...any) { told = append(told, fmt.Sprintf(format, args...)) }
	res, err := runShown(context.Background(), logf, "work", Cmd{
		Argv: []string{"sh", "-c", "echo one; echo two; echo fault >&2; sleep 2; echo three; exit 7"},
	}, 100*time.Millisecond)
	if err == nil || res.Code != 7 || res.Stdout != "one\ntwo\nthree\n" || res.Stderr != "fault\n" || !strings.Contains(err.Error(), "fault") {
		t.Errorf("result %+v, error %v", res, err)
	}
	if len(told) == 0 || !strings.HasPrefix(told[0], "  work: ") {
		t.Errorf("told %q", told)
	}
}
