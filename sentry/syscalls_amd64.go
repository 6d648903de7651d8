package sentry

import (
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/sentry/syscalls/linux"
)

var syscallTable = linux.AMD64

// modeArgument says which argument of a system call is the mode of a new file.
var modeArgument = map[uintptr]int{
	unix.SYS_OPEN:    2,
	unix.SYS_CREAT:   1,
	unix.SYS_OPENAT:  3,
	unix.SYS_MKDIR:   1,
	unix.SYS_MKDIRAT: 2,
	unix.SYS_MKNOD:   1,
	unix.SYS_MKNODAT: 2,
}
