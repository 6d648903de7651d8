package service

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

const unitTemplate = `[Unit]
Description=blobfs volumes for Docker
Before=docker.service

[Service]
Type=notify
ExecStart=%s
# Docker's client waits for a socket that nobody serves.
ExecStopPost=-/bin/rm -f %s
Restart=on-failure
RestartSec=1

[Install]
WantedBy=multi-user.target
`

// unitText returns the content of the unit file.
func unitText(opts Options) string {
	words := make([]string, len(opts.Command))
	for i, word := range opts.Command {
		words[i] = unitQuote(word)
	}
	return fmt.Sprintf(unitTemplate, strings.Join(words, " "), unitQuote(opts.Socket))
}

// unitQuote makes systemd read word as one word without variables and specifiers in it (systemd.service(5),
// "Command lines"; systemd.syntax(7), "Quoting").
func unitQuote(word string) string {
	var quoted strings.Builder
	quoted.WriteByte('"')
	for _, b := range []byte(word) {
		switch {
		case b == '"' || b == '\\':
			quoted.WriteByte('\\')
			quoted.WriteByte(b)
		case b == '%' || b == '$':
			quoted.WriteByte(b)
			quoted.WriteByte(b)
		case b < ' ' || b == 0x7f:
			fmt.Fprintf(&quoted, `\x%02x`, b)
		default:
			quoted.WriteByte(b)
		}
	}
	quoted.WriteByte('"')
	return quoted.String()
}

func startUnit(ctx context.Context, opts Options) (Result, error) {
	// One that runs in the background, from before, would keep the socket.
	if _, err := stopBackground(ctx, opts); err != nil {
		return Result{}, err
	}
	path := filepath.Join(opts.UnitDir, opts.Unit)
	if err := os.WriteFile(path, []byte(unitText(opts)), 0o644); err != nil {
		return Result{}, fmt.Errorf("volume plugin: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, opts.Timeout)
	defer cancel()
	for _, args := range [][]string{{"daemon-reload"}, {"enable", opts.Unit}, {"restart", opts.Unit}} {
		if err := opts.systemctl(ctx, args...); err != nil {
			return Result{}, fmt.Errorf("volume plugin: %w; see 'journalctl -u %s'", err, opts.Unit)
		}
	}
	return Result{Unit: path}, nil
}

func stopUnit(ctx context.Context, opts Options) (bool, error) {
	path := filepath.Join(opts.UnitDir, opts.Unit)
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, opts.Timeout)
	defer cancel()
	runs := opts.systemdRuns()
	if runs {
		if err := opts.systemctl(ctx, "disable", "--now", opts.Unit); err != nil {
			return true, fmt.Errorf("volume plugin: %w", err)
		}
	}
	if err := os.Remove(path); err != nil {
		return true, fmt.Errorf("volume plugin: %w", err)
	}
	if runs {
		if err := opts.systemctl(ctx, "daemon-reload"); err != nil {
			return true, fmt.Errorf("volume plugin: %w", err)
		}
	}
	return true, nil
}
