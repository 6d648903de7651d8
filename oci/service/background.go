package service

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// process is one process, told from a later one with the same number by the time at which it started.
type process struct {
	pid     int
	started string // field 22 of /proc/PID/stat
}

// startTime returns when the process started; ok is false if it is gone.
func startTime(pid int) (started string, ok bool) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", false
	}
	// The name in parentheses may contain anything; the state is field 3.
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	if len(fields) < 20 {
		return "", false
	}
	// A process whose first thread is a zombie is gone when its other threads are: until then they keep
	// its sockets open.
	if threads := fields[17]; fields[0] == "Z" && (threads == "0" || threads == "1") {
		return "", false
	}
	return fields[19], true
}

func (p process) lives() bool {
	started, ok := startTime(p.pid)
	return ok && started == p.started
}

// readPidFile returns the process that the file names, ok false if there is none that lives.
func readPidFile(path string) (p process, ok bool, err error) {
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return process{}, false, nil
	}
	if err != nil {
		return process{}, false, fmt.Errorf("volume plugin: %w", err)
	}
	if n, _ := fmt.Sscanf(string(data), "%d %s", &p.pid, &p.started); n != 2 || p.pid <= 1 {
		return process{}, false, fmt.Errorf("volume plugin: %s does not name a process; remove it", path)
	}
	return p, p.lives(), nil
}

func startBackground(ctx context.Context, opts Options) (Result, error) {
	if _, err := stopBackground(ctx, opts); err != nil {
		return Result{}, err
	}
	if serving(opts.Socket) {
		return Result{}, fmt.Errorf("volume plugin: another program serves %s; stop it first", opts.Socket)
	}
	for _, path := range []string{opts.PidFile, opts.LogFile} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return Result{}, fmt.Errorf("volume plugin: %w", err)
		}
	}
	log, err := os.OpenFile(opts.LogFile, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return Result{}, fmt.Errorf("volume plugin: %w", err)
	}
	defer log.Close()
	logStart, err := log.Seek(0, io.SeekEnd)
	if err != nil {
		return Result{}, fmt.Errorf("volume plugin: %w", err)
	}

	command := exec.Command(opts.Command[0], opts.Command[1:]...)
	command.Dir = "/"
	command.Stdout, command.Stderr = log, log
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // it outlives the terminal
	if err := command.Start(); err != nil {
		return Result{}, fmt.Errorf("volume plugin: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- command.Wait() }()
	p := process{pid: command.Process.Pid}
	p.started, _ = startTime(p.pid)
	if err := os.WriteFile(opts.PidFile, fmt.Appendf(nil, "%d %s\n", p.pid, p.started), 0o644); err != nil {
		command.Process.Kill()
		return Result{}, fmt.Errorf("volume plugin: %w", err)
	}

	ctx, cancel := context.WithTimeout(ctx, opts.Timeout)
	defer cancel()
	var exit error
	hasEnded := false
	up := waitFor(ctx, func() bool {
		select {
		case exit = <-ended:
			hasEnded = true
		default:
		}
		return hasEnded || serving(opts.Socket)
	})
	if up && !hasEnded {
		return Result{Pid: p.pid, LogFile: opts.LogFile}, nil
	}
	os.Remove(opts.PidFile)
	if hasEnded {
		return Result{}, fmt.Errorf("volume plugin: it ended at once: %s", reasonOf(exit, opts.LogFile, logStart))
	}
	command.Process.Kill()
	return Result{}, fmt.Errorf("volume plugin: it does not serve %s after %v; see %s", opts.Socket, opts.Timeout, opts.LogFile)
}

// reasonOf is the last line that the process wrote, or else how it ended.
func reasonOf(exit error, logFile string, from int64) string {
	if file, err := os.Open(logFile); err == nil {
		defer file.Close()
		data, _ := io.ReadAll(io.NewSectionReader(file, from, 1<<20))
		lines := strings.Split(strings.TrimSpace(string(data)), "\n")
		if last := lines[len(lines)-1]; last != "" {
			return last
		}
	}
	if exit == nil {
		return "without an error"
	}
	return exit.Error()
}

func stopBackground(ctx context.Context, opts Options) (bool, error) {
	p, lives, err := readPidFile(opts.PidFile)
	if err != nil {
		return false, err
	}
	if lives {
		if err := p.end(ctx, opts); err != nil {
			return true, err
		}
	}
	err = os.Remove(opts.PidFile)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return true, fmt.Errorf("volume plugin: %w", err)
	}
	return true, nil
}

// end asks the process to end, and kills it if it does not.
func (p process) end(ctx context.Context, opts Options) error {
	for _, signal := range []unix.Signal{unix.SIGTERM, unix.SIGKILL} {
		if err := unix.Kill(p.pid, signal); err != nil && err != unix.ESRCH {
			return fmt.Errorf("volume plugin: end process %d: %w", p.pid, err)
		}
		waiting, cancel := context.WithTimeout(ctx, opts.Timeout)
		gone := waitFor(waiting, func() bool { return !p.lives() })
		cancel()
		if gone {
			return nil
		}
	}
	return fmt.Errorf("volume plugin: process %d does not end", p.pid)
}
