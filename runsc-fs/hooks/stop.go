package hooks

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"time"

	"gvisor.dev/gvisor/pkg/log"
)

// stopTimeout bounds how long the host waits for a sandbox to write its volumes
// back. It is longer than shutdownTimeout, which the sandbox sets itself.
const stopTimeout = shutdownTimeout + 10*time.Second

// StopSandbox ends a sandbox with volumes in an orderly way: kill sends SIGKILL
// to the processes of its container, after which the sandbox writes its
// volumes back and exits. It returns when the sandbox process is gone, or when
// it must be killed: nothing has been started in it, or the time is up.
// Sandboxes without volumes are left alone.
func StopSandbox(pid int, kill func() error) {
	if !hasVolumes(pid) {
		return
	}
	deadline := time.Now().Add(stopTimeout)
	killed := make(chan error, 1)
	go func() { killed <- kill() }()
	for pause := time.Millisecond; time.Now().Before(deadline); pause = min(2*pause, 50*time.Millisecond) {
		if !isAlive(pid) {
			return
		}
		select {
		case err := <-killed:
			// Other errors mean that the sandbox is on its way out.
			if err != nil && strings.Contains(err.Error(), "not started") {
				return
			}
		default:
		}
		time.Sleep(pause)
	}
	log.Warningf("blobfs: sandbox process %d has not closed its volumes in %v and is killed", pid, stopTimeout)
}

// hasVolumes tells whether a sandbox process was given volumes.
func hasVolumes(pid int) bool {
	if pid <= 0 {
		return false
	}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return err == nil && bytes.Contains(text, []byte("\x00--"+volumesFlag+"="))
}

// isAlive tells whether a process runs, which a zombie does not.
func isAlive(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	// The state follows the name, which is in parentheses and may contain any byte.
	_, rest, ok := strings.Cut(string(text[max(bytes.LastIndexByte(text, ')'), 0):]), " ")
	return ok && !strings.HasPrefix(rest, "Z") && !strings.HasPrefix(rest, "X")
}
