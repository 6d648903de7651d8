package lab

import (
	"os"
	"testing"
)

// GuardEnv is the environment variable that lets the end-to-end tests run.
const GuardEnv = "RUNSC_FS_E2E"

// Need leaves a test out unless end-to-end tests were asked for. When they were,
// what is missing on the machine is a failure, never a reason to leave out more.
func Need(t testing.TB) {
	t.Helper()
	if os.Getenv(GuardEnv) == "" {
		t.Skipf("left out: end-to-end tests install packages and start dockerd; run them with make e2e or %s=1", GuardEnv)
	}
	if os.Geteuid() != 0 {
		t.Fatal("end-to-end tests must run as root: namespaces, dockerd and debootstrap need it")
	}
}
