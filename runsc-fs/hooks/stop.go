package hooks

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
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

// failedTimeout bounds how long a failed start waits for the sandbox, which ends
// by itself then.
const failedTimeout = 5 * time.Second

// AwaitFailed waits until the sandbox of a container with volumes is gone, whose
// start has failed: not only dead, but taken note of by its parent, if that is
// another process. For containerd that is the shim, which takes a container
// that has not ended for one that it must keep.
func AwaitFailed(spec *specs.Spec, pid int) {
	if pid <= 0 || !slices.ContainsFunc(spec.Mounts, func(m specs.Mount) bool { return IsVolumeMount(&m) }) {
		return
	}
	deadline := time.Now().Add(failedTimeout)
	for pause := time.Millisecond; time.Now().Before(deadline); pause = min(2*pause, 50*time.Millisecond) {
		state, parent := processState(pid)
		ended := state == 'Z' || state == 'X'
		if state == 0 || ended && parent == os.Getpid() {
			return
		}
		time.Sleep(pause)
	}
	log.Warningf("blobfs: sandbox process %d is still there %v after its start has failed", pid, failedTimeout)
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
	state, _ := processState(pid)
	return state != 0 && state != 'Z' && state != 'X'
}

// processState gives the letter for the state of a process, as in proc(5), and
// its parent; 0 if there is no such process.
func processState(pid int) (state byte, parent int) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0
	}
	// The state follows the name, which is in parentheses and may contain any byte.
	rest := text[bytes.LastIndexByte(text, ')')+1:]
	if _, err := fmt.Sscanf(string(rest), " %c %d", &state, &parent); err != nil {
		return 0, 0
	}
	return state, parent
}
