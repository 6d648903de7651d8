package sentry

import "gvisor.dev/gvisor/pkg/sentry/syscalls/linux"

var syscallTable = linux.AMD64
