package sentry

import (
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/sentry/syscalls/linux"
)

var syscallTable = linux.ARM64

// modeArgument says which argument of a system call is the mode of a new file.
var modeArgument = map[uintptr]int{
	unix.SYS_OPENAT:  3,
	unix.SYS_MKDIRAT: 2,
	unix.SYS_MKNODAT: 2,
}
