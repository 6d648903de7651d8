package sentry

import "gvisor.dev/gvisor/pkg/sentry/syscalls/linux"

var syscallTable = linux.ARM64
