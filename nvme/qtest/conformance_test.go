package qtest

import (
	"testing"

	"runsc-fs/nvme"
	"runsc-fs/nvme/nvmetest"
)

// TestConformance runs the suite that every transport passes.
func TestConformance(t *testing.T) {
	needQEMU(t)
	nvmetest.RunTransport(t, func(t testing.TB, c nvmetest.Config) nvme.Transport {
		t.Helper()
		opts := Options{MDTS: c.MDTS, QueuePairs: 3 + c.MDTS%3} // fewer than the driver wants
		for range max(1, c.Namespaces) {
			opts.Namespaces = append(opts.Namespaces, Namespace{SizeBytes: c.SizeBytes, LBASizeBytes: c.LBASizeBytes})
		}
		return start(t, opts)
	}, nvmetest.Options{Slow: true})
}
