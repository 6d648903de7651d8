package dockercfg

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Reload is what became of the running daemon.
type Reload string

const (
	// ReloadNotNeeded: nothing was changed, and the daemon knows that.
	ReloadNotNeeded Reload = "not needed"
	// ReloadNotRunning: no daemon runs; it reads the file when it starts.
	ReloadNotRunning Reload = "the daemon is not running"
	// ReloadAsked: the daemon was told to read the file; whether it did cannot be seen.
	ReloadAsked Reload = "the daemon was told to read its configuration"
	// ReloadDone: the daemon was told, and its API shows the change.
	ReloadDone Reload = "the daemon has read its configuration"
)

// ErrReload says that the daemon runs and did not take the configuration over. The file is as asked for.
var ErrReload = errors.New("the Docker daemon has not read its configuration")

// reloadTimeout bounds the wait for the daemon's API to show the change.
const reloadTimeout = 10 * time.Second

// reload makes the daemon read its file if it has not. want is the runtime that it shall have, nil for none.
func reload(ctx context.Context, opts Options, changed bool, want *runtimeEntry) (Reload, error) {
	ctx, cancel := context.WithTimeout(ctx, reloadTimeout)
	defer cancel()
	pid, err := daemonPid(opts.PidFile)
	if err != nil {
		return "", err
	}
	if pid == 0 {
		return ReloadNotRunning, nil
	}
	if shows, err := daemonShows(ctx, opts, want); !changed && (err != nil || shows) {
		return ReloadNotNeeded, nil
	}
	if err := unix.Kill(pid, unix.SIGHUP); err != nil {
		return "", fmt.Errorf("%w: process %d: %v; restart it", ErrReload, pid, err)
	}
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, 500*time.Millisecond) {
		shows, err := daemonShows(ctx, opts, want)
		switch {
		case err == nil && shows:
			return ReloadDone, nil
		case errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED):
			return ReloadAsked, nil // it listens elsewhere
		}
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("%w: process %d does not show the change after %v; see its log, or restart it", ErrReload, pid, reloadTimeout)
		case <-time.After(pause):
		}
	}
}

// daemonPid returns the process of the daemon, 0 if none runs.
func daemonPid(pidFile string) (int, error) {
	data, err := os.ReadFile(pidFile)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("%w: %v", ErrReload, err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil || pid <= 1 {
		return 0, fmt.Errorf("%w: %s does not contain a process number", ErrReload, pidFile)
	}
	// The file may be left from a daemon that was killed, and its number belong to anybody.
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil || !strings.HasPrefix(string(name), "dockerd") {
		return 0, nil
	}
	return pid, nil
}

// daemonShows asks the daemon whether it has the runtime want, or for nil whether it has none of the name.
func daemonShows(ctx context.Context, opts Options, want *runtimeEntry) (bool, error) {
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", opts.APISocket)
	}}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://docker/info", nil)
	if err != nil {
		return false, err
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return false, err
	}
	defer response.Body.Close()
	var info struct {
		Runtimes map[string]runtimeEntry
	}
	if err := json.NewDecoder(response.Body).Decode(&info); err != nil {
		return false, err
	}
	have, there := info.Runtimes[opts.Runtime]
	if want == nil {
		return !there || !sameProgram(have.Path, opts.RuntimePath), nil
	}
	return there && have.Path == want.Path && slices.Equal(have.Args, want.Args), nil
}
