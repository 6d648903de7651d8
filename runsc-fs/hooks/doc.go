// Package hooks is what runsc calls to make blobfs volumes work. The calls are
// inserted into a copy of gVisor by hookgen; its table names each of them.
//
// The package has two halves that never run in one process. host.go and spec.go
// run in the runsc command: they find the volumes in a container's
// specification, open and lock them, and give the open files to the sandbox
// process, on its command line or, for a further container of a running
// sandbox, over its control socket. boot.go runs in the sandbox: it takes the
// files and hands the volumes to package sentry.
//
// A sandbox without volumes is untouched: every function returns at once and
// changes nothing.
//
// Lock order: none of the package's mutexes is held while another is taken.
package hooks

import "sync/atomic"

// FilesystemName is the type of volume mounts in an OCI specification.
const FilesystemName = "blobfs"

var installed atomic.Bool

// MarkInstalled is called by the copy of gVisor that has the hooks.
func MarkInstalled() { installed.Store(true) }

// Installed tells whether this binary was linked with the hooks. Without them
// runsc would start containers and leave out their volumes.
func Installed() bool { return installed.Load() }
