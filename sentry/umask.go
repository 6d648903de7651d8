package sentry

import (
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
)

// withoutUmask gives the mode that the program asked for of a file that is about
// to be made with mode. gVisor applies the umask to all modes before a file
// system sees them, but where a directory has a default access control list, the
// umask does not count. So it is read once more from the arguments of the system
// call, if it is one that makes files.
func withoutUmask(ctx context.Context, mode linux.FileMode) linux.FileMode {
	t := kernel.TaskFromContext(ctx)
	if t == nil {
		return mode
	}
	sysno, args := t.Arch().SyscallNo(), t.Arch().SyscallArgs()
	n, ok := modeArgument[sysno]
	if !ok {
		return mode
	}
	const permissions = 0777
	asked := linux.FileMode(args[n].ModeT())
	umask := linux.FileMode(t.FSContext().Umask())
	if asked&permissions&^umask != mode&permissions {
		return mode // made on behalf of the call, with a mode of its own
	}
	return mode | asked&permissions
}
