package sentry

import (
	"slices"
	"strings"

	"runsc-fs/sentry/volumestats"
)

// RegisterMetrics makes what containers do with volumes metrics of gVisor. It is called
// once, after Setup and AddVolume and before gVisor's metrics are initialised.
func RegisterMetrics() error { return volumes.registerMetrics() }

func (r *registry) registerMetrics() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return volumestats.RegisterMetrics(r.allStatsLocked(), func() []*volumestats.Volume {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.allStatsLocked()
	})
}

// allStatsLocked returns the counters of all volumes, by name. It needs r.mu.
func (r *registry) allStatsLocked() []*volumestats.Volume {
	names := make([]string, 0, len(r.byName))
	for name := range r.byName {
		names = append(names, name)
	}
	slices.SortFunc(names, strings.Compare)
	all := make([]*volumestats.Volume, len(names))
	for k, name := range names {
		all[k] = r.byName[name].stats
	}
	return all
}

// VolumeStats reports what each container has done with each volume.
func VolumeStats() []volumestats.Report { return volumes.report() }

func (r *registry) report() (reports []volumestats.Report) {
	r.mu.Lock()
	all := r.allStatsLocked()
	r.mu.Unlock()
	for _, v := range all {
		reports = append(reports, v.Report()...)
	}
	return reports
}
