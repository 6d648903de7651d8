//go:build amd64 || arm64

package trace

// goroutine identifies the running goroutine among those that are alive. It is the
// address of the runtime's record of it, which nobody follows.
func goroutine() uintptr
