package hooks

import (
	"gvisor.dev/gvisor/pkg/log"

	"runsc-fs/sentry"
	"runsc-fs/sentry/volumestats"
)

// Calls to a sandbox about its volumes, over its control socket. One that was made by
// an older program, or without volumes, has none of them.
const (
	VolumeStatsRead  = "VolumeStats.Read"
	VolumeStatsTrace = "VolumeStats.Trace"
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

// VolumeStatsTraceArgs are the arguments of VolumeStatsTrace.
type VolumeStatsTraceArgs struct {
	// Seconds is how long to trace, up to volumestats.MaxTraceSeconds. 0: report the
	// trace that began with the sandbox.
	Seconds float64
}

// Trace traces calls for some time, or until the sandbox ends, and reports.
func (*VolumeStats) Trace(args *VolumeStatsTraceArgs, out *volumestats.TraceReport) (err error) {
	*out, err = volumestats.RunTrace(args.Seconds, boot.ending)
	return err
}

// traceVolumes is set while flags are parsed, before any other function is called.
var traceVolumes bool

// SetTrace has sandboxes that this command starts trace calls on volumes from the
// beginning.
func SetTrace(on bool) { traceVolumes = on }

// Trace returns what SetTrace has set.
func Trace() bool { return traceVolumes }

// registerMetrics makes metrics of what is done with volumes. A sandbox runs without
// them, too.
func registerMetrics() {
	if err := sentry.RegisterMetrics(); err != nil {
		log.Warningf("blobfs: no metrics of volumes: %v", err)
	}
}
