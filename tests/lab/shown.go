package lab

import (
	"bytes"
	"context"
	"io"
	"strings"
	"sync"
	"time"
)

// shownInterval is how often RunShown says where a long command is.
const shownInterval = 5 * time.Second

// RunShown is Run for a command that may take long: every few seconds logf gets the
// last line that the command has printed.
func RunShown(ctx context.Context, logf Logf, what string, c Cmd) (Result, error) {
	return runShown(ctx, logf, what, c, shownInterval)
}

func runShown(ctx context.Context, logf Logf, what string, c Cmd, interval time.Duration) (Result, error) {
	var shown lastLine
	var out, errOut bytes.Buffer
	c.Stdout, c.Stderr = io.MultiWriter(&out, &shown), io.MultiWriter(&errOut, &shown)
	p, err := Start(ctx, c)
	if err != nil {
		return Result{Code: -1}, err
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if line := shown.take(); line != "" {
				logf("  %s: %s", what, line)
			} else {
				logf("  %s goes on", what)
			}
			continue
		case <-p.Done():
		}
		res, err := p.Wait()
		res.Stdout, res.Stderr = out.String(), errOut.String()
		if exit, ok := err.(*ExitError); ok {
			exit.Result = res
		}
		return res, err
	}
}

// lastLine is a writer that remembers the last line written to it.
type lastLine struct {
	mu   sync.Mutex
	part []byte
	line string
}

// Write implements io.Writer.
func (l *lastLine) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.part = append(l.part, p...)
	for {
		i := bytes.IndexAny(l.part, "\r\n")
		if i < 0 {
			return len(p), nil
		}
		if line := strings.TrimSpace(string(l.part[:i])); line != "" {
			l.line = tail(line, 100)
		}
		l.part = l.part[i+1:]
	}
}

// take gives the last line, once.
func (l *lastLine) take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	line := l.line
	l.line = ""
	return line
}
