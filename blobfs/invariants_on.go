//go:build invariants

package blobfs

// invariants turns on checks that cost too much for ordinary use.
const invariants = true
