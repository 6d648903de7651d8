package hooks

import (
	"gvisor.dev/gvisor/pkg/log"

	"runsc-fs/sentry"
	"runsc-fs/sentry/volumestats"
)

// Calls to a sandbox about its volumes, over its control socket. One that was made by
// an older program, or without volumes, has none of them.
const (
	VolumeStatsRead = "VolumeStats.Read"
)

// VolumeStats has the calls that a sandbox with volumes answers. gVisor's control server
// finds them by their names.
type VolumeStats struct{}

// VolumeStatsServer returns what answers the calls; nil in a sandbox without volumes.
func VolumeStatsServer() any {
	if !enabled() {
		return nil
	}
	return &VolumeStats{}
}

// VolumeStatsReport is the answer to VolumeStatsRead.
type VolumeStatsReport struct {
	Volumes []volumestats.Report
}

// Read reports what was done with each volume since the sandbox has started.
func (*VolumeStats) Read(_ *struct{}, out *VolumeStatsReport) error {
	out.Volumes = sentry.VolumeStats()
	return nil
}

// registerMetrics makes metrics of what is done with volumes. A sandbox runs without
// them, too.
func registerMetrics() {
	if err := sentry.RegisterMetrics(); err != nil {
		log.Warningf("blobfs: no metrics of volumes: %v", err)
	}
}
