// Package sentry is where the two worlds meet: it makes blobfs a file system
// of gVisor's sentry.
package sentry
