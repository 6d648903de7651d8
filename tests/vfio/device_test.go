package vfio

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"runsc-fs/tests/lab"
)

// configurations are those of the conformance suite that differ on a device whose shape
// is given: the driver's defaults, and one small queue without the newer features.
const configurations = "(lba0,|mdts1,|^lba512$|^lba4096$)"

// TestDriver runs all tests of the PCI transport on one controller, and what depends on
// a controller's limits on a second one that has narrow ones.
func TestDriver(t *testing.T) {
	lab.Need(t)
	spec := Spec{
		Programs: map[string]string{"pcie.test": program(t, "./nvme/pcie", true)},
		Controllers: []Controller{
			{Namespaces: []Namespace{{}, {}}},
			{MDTS: 1, QueuePairs: 2, Multipath: true, Namespaces: []Namespace{{LBASizeBytes: 4096}}},
		},
		Timeout: 8 * time.Minute,
	}
	for n, tests := range []string{"Device/./" + configurations, "DeviceConformance/(RandomIO|BigTransfers|DeepBatches|Controller)/lba0,"} {
		spec.Script += fmt.Sprintf("vfio_bind %s\n%s=%[1]s pcie.test -test.v '-test.run=%[3]s'\n", spec.Address(n), AddressesEnv, tests)
	}
	out := run(t, spec)
	testsPassed(t, out, 2, "TestDeviceConformance", "TestDeviceConformance/Controller", "TestDeviceConformance/RandomIO")
	testsPassed(t, out, 1, "TestDeviceInterrupts", "TestDeviceIdleUsesNoCPU", "TestDeviceRetire", "TestDeviceIsExclusive")
}

// testsPassed wants the output of test programs with -test.v to name tests that have
// passed a number of times, and none that was left out.
func testsPassed(t *testing.T, output string, times int, names ...string) {
	t.Helper()
	for _, name := range names {
		passed := regexp.MustCompile(`(?m)^\s*--- PASS: ` + regexp.QuoteMeta(name) + ` `)
		if n := len(passed.FindAllString(output, -1)); n != times {
			t.Errorf("%s has passed %d times instead of %d", name, n, times)
		}
	}
	if skipped := regexp.MustCompile(`(?m)^\s*--- SKIP: .*`).FindString(output); skipped != "" {
		t.Errorf("left out in the guest: %s", strings.TrimSpace(skipped))
	}
}
