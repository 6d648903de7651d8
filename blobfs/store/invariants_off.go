//go:build !invariants

package store

// invariants turns on checks that are too costly for production.
const invariants = false
