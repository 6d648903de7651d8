// Package service keeps the volume plugin running: as a systemd unit where systemd runs, else as a
// process in the background with a pid file, which lasts until the machine restarts.
//
// Docker asks the plugin when it starts, so the unit is ready only when the socket takes calls. And Docker's
// client waits a long time for a socket that nobody serves, so the unit and Stop remove what a killed plugin left.
//
// The package takes no locks; the plugin itself makes sure that there is one of it.
package service

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Options says what to run and where to leave traces of it.
type Options struct {
	// Command is the program with its arguments that serves the plugin in the foreground until it gets
	// SIGTERM. The program is an absolute path. Start needs it.
	Command []string
	// Socket is the path that the command serves. Required.
	Socket string

	// Unit is the name of the systemd unit. Empty means runsc-fs-plugin.service.
	Unit string
	// UnitDir is where units are. Empty means /etc/systemd/system.
	UnitDir string

	// PidFile is for the process in the background. Empty means /run/runsc-fs/plugin.pid.
	PidFile string
	// LogFile is for the process in the background; it is appended to. Empty means /var/log/runsc-fs-plugin.log.
	LogFile string

	// Background runs the plugin in the background even where systemd runs.
	Background bool
	// Timeout bounds the wait for the plugin to serve or to end. 0 means 15 s.
	Timeout time.Duration

	// systemctl runs the command of that name; tests replace it.
	systemctl func(ctx context.Context, args ...string) error
	// systemdRuns tells whether systemd is the init of this machine; tests replace it.
	systemdRuns func() bool
}

func (o *Options) setDefaults() error {
	for _, field := range []struct {
		value    *string
		fallback string
	}{
		{&o.Unit, "runsc-fs-plugin.service"}, {&o.UnitDir, "/etc/systemd/system"},
		{&o.PidFile, "/run/runsc-fs/plugin.pid"}, {&o.LogFile, "/var/log/runsc-fs-plugin.log"},
	} {
		if *field.value == "" {
			*field.value = field.fallback
		}
	}
	if o.Timeout == 0 {
		o.Timeout = 15 * time.Second
	}
	if o.systemctl == nil {
		o.systemctl = systemctl
	}
	if o.systemdRuns == nil {
		o.systemdRuns = func() bool { return isDir("/run/systemd/system") }
	}
	switch {
	case o.Timeout < 0:
		return fmt.Errorf("volume plugin: negative timeout %v", o.Timeout)
	case !filepath.IsAbs(o.Socket):
		return fmt.Errorf("volume plugin: socket %q is not an absolute path", o.Socket)
	}
	return nil
}

// Result says how the plugin is kept running.
type Result struct {
	Unit    string // path of the systemd unit, if it is one
	Pid     int    // process in the background, if it is one
	LogFile string // of the process in the background
}

// Start starts the plugin, or starts it anew with the command given if it runs already, and returns when
// it takes calls.
func Start(ctx context.Context, opts Options) (Result, error) {
	if err := opts.setDefaults(); err != nil {
		return Result{}, err
	}
	if len(opts.Command) == 0 || !filepath.IsAbs(opts.Command[0]) {
		return Result{}, fmt.Errorf("volume plugin: the command %q does not begin with an absolute path", opts.Command)
	}
	if opts.systemdRuns() && !opts.Background {
		return startUnit(ctx, opts)
	}
	return startBackground(ctx, opts)
}

// Stop ends the plugin, however it was started by Start, and removes what Start made, except for the log. It
// reports whether there was anything.
func Stop(ctx context.Context, opts Options) (bool, error) {
	if err := opts.setDefaults(); err != nil {
		return false, err
	}
	hadUnit, err := stopUnit(ctx, opts)
	if err != nil {
		return hadUnit, err
	}
	hadProcess, err := stopBackground(ctx, opts)
	if err != nil {
		return hadUnit || hadProcess, err
	}
	if !hadUnit && !hadProcess {
		return false, nil
	}
	return true, removeDeadSocket(opts.Socket)
}

// serving tells whether somebody takes calls on the socket.
func serving(socket string) bool {
	conn, err := net.DialTimeout("unix", socket, time.Second)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

// removeDeadSocket removes the socket if nobody serves it.
func removeDeadSocket(socket string) error {
	info, err := os.Lstat(socket)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if info.Mode().Type() != fs.ModeSocket || serving(socket) {
		return nil
	}
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// waitFor polls until done or the deadline of ctx has passed; it reports which.
func waitFor(ctx context.Context, done func() bool) bool {
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		if done() {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(pause):
		}
	}
}

func isDir(path string) bool {
	info, err := os.Lstat(path)
	return err == nil && info.IsDir()
}

func systemctl(ctx context.Context, args ...string) error {
	output, err := exec.CommandContext(ctx, "systemctl", args...).CombinedOutput()
	if err != nil {
		text, _, _ := strings.Cut(strings.TrimSpace(string(output)), "\n")
		return fmt.Errorf("systemctl %s: %w: %s", strings.Join(args, " "), err, text)
	}
	return nil
}

// NotifyReady tells systemd that the plugin takes calls, if it was started as a unit; the command calls it once
// its socket is there.
func NotifyReady() error {
	address := os.Getenv("NOTIFY_SOCKET")
	if address == "" {
		return nil
	}
	// A leading "@" is an abstract address, which package net reads the same way.
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: address, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("tell systemd that the plugin is ready: %w", err)
	}
	_, err = conn.Write([]byte("READY=1"))
	return errors.Join(err, conn.Close())
}
