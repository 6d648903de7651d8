// Package lab prepares a machine for the end-to-end tests and the demo: it
// installs missing Debian packages, builds root file systems with debootstrap
// and keeps them in a cache outside the tree, starts a private dockerd, writes
// OCI bundles and runs them.
//
// Everything that a lab starts lives in a Cell, a set of mount, network and PID
// namespaces of its own: nothing of the host's Docker, network or /run is
// touched, and when the cell's first process ends the kernel ends all others,
// even if the test was killed. Every wait has a deadline.
//
// The package is used by tests (see Need) and by commands alike, so its
// functions take a context and return errors. All exported methods may be
// called concurrently unless they say otherwise.
//
// Lock order: the file lock of the cache (see RootFS and EnsureTools) before any
// mutex. Cell.mu and Dockerd.mu are leaves.
package lab

// Logf reports progress, one line a call, without a newline at the end.
type Logf func(format string, args ...any)

func discard(string, ...any) {}
