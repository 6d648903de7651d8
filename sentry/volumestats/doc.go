// Package volumestats counts what containers do with volumes and how long that takes.
//
// Counters are always on. They are kept for each pair of volume and container
// (User), striped so that threads do not meet on one cache line. Of reads and writes
// every sixteenth is timed, of syncs each.
//
// The same counters are metrics of gVisor, for export-metrics and the metric server
// (RegisterMetrics), and reports for 'volume top' (Volume.Report).
//
// A trace (StartTrace) has one in 64 calls carry a span of package nvme/trace, whose stages
// it puts into histograms. While none is under way, a call costs one load for it.
//
// Lock order: Volume.mu, latency.mu, tracing.mu and Trace.mu are leaves, none is held while
// another is taken.
package volumestats
