package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// Runtime runs OCI containers without Docker, in a cell.
type Runtime struct {
	Cell   *Cell
	Binary string
	Dir    string   // bundles, runtime state and logs
	Flags  []string // global flags, before the command
	Env    []string

	mu   sync.Mutex
	nets int
}

// containers counts the containers of this process. Their ids are like no others on
// the machine, since SandboxPID looks at all processes.
var containers atomic.Int64

// NewRuntime makes a cell for binary in dir. Flags are given before each command.
func NewRuntime(ctx context.Context, logf Logf, binary, dir string, flags ...string) (*Runtime, error) {
	if err := EnsureTools(ctx, logf, ToolNsenter, ToolIP); err != nil {
		return nil, err
	}
	cell, err := NewCell(ctx, dir)
	if err != nil {
		return nil, err
	}
	logs := filepath.Join(dir, "logs")
	if err := os.MkdirAll(logs, 0o755); err != nil {
		cell.Stop()
		return nil, err
	}
	flags = append([]string{"--root=/run/runsc", "--debug-log=" + logs + "/"}, flags...)
	return &Runtime{Cell: cell, Binary: binary, Dir: dir, Flags: flags}, nil
}

// Cmd is a runtime command, to be changed or started by the caller.
func (r *Runtime) Cmd(args ...string) Cmd {
	argv := append([]string{r.Binary}, r.Flags...)
	return Cmd{Argv: append(argv, args...), Env: r.Env, Cell: r.Cell}
}

// Command runs a runtime command to its end.
func (r *Runtime) Command(ctx context.Context, args ...string) (Result, error) {
	return Run(ctx, r.Cmd(args...))
}

// Bundle writes the bundle and gives its directory and a container id of its own.
func (r *Runtime) Bundle(spec *specs.Spec) (id, dir string, err error) {
	id = fmt.Sprintf("c%d-%d", containers.Add(1), os.Getpid())
	if spec.Linux != nil && spec.Linux.CgroupsPath == "" {
		spec.Linux.CgroupsPath = r.Cell.Cgroup() + "/" + id
	}
	dir = filepath.Join(r.Dir, "bundles", id)
	return id, dir, WriteSpec(dir, spec)
}

// Run runs a container in the foreground to its end.
func (r *Runtime) Run(ctx context.Context, b BundleSpec, timeout time.Duration) (Result, error) {
	id, dir, err := r.Bundle(b.OCI())
	if err != nil {
		return Result{Code: -1}, err
	}
	cmd := r.Cmd("run", "--bundle="+dir, id)
	cmd.Timeout = timeout
	res, err := Run(ctx, cmd)
	if err != nil {
		// A run that was killed leaves its container behind.
		r.Command(context.WithoutCancel(ctx), "delete", "--force", id)
	}
	return res, err
}

// Container is a container that runs in the background.
type Container struct {
	ID     string
	Bundle string
	r      *Runtime
}

// Start runs a container in the background. Its output goes to the file that
// Output reads.
func (r *Runtime) Start(ctx context.Context, b BundleSpec) (*Container, error) {
	return r.StartSpec(ctx, b.OCI())
}

// StartSpec is Start for a complete specification.
func (r *Runtime) StartSpec(ctx context.Context, spec *specs.Spec) (*Container, error) {
	id, dir, err := r.Bundle(spec)
	if err != nil {
		return nil, err
	}
	out, err := os.Create(filepath.Join(dir, "output"))
	if err != nil {
		return nil, err
	}
	defer out.Close()
	cmd := r.Cmd("run", "--detach", "--bundle="+dir, id)
	cmd.Stdout, cmd.Stderr = out, out
	c := &Container{ID: id, Bundle: dir, r: r}
	if _, err := Run(ctx, cmd); err != nil {
		r.Command(context.WithoutCancel(ctx), "delete", "--force", id)
		return nil, fmt.Errorf("%w: %s", err, tail(strings.TrimSpace(c.Output()), 2000))
	}
	return c, nil
}

// Output is what the container wrote so far.
func (c *Container) Output() string {
	b, _ := os.ReadFile(filepath.Join(c.Bundle, "output"))
	return string(b)
}

// Exec runs a command in the container and returns what it printed.
func (c *Container) Exec(ctx context.Context, args ...string) (Result, error) {
	return c.r.Command(ctx, append([]string{"exec", c.ID}, args...)...)
}

// ExecCmd is the command that Exec runs, to be changed or started by the caller.
func (c *Container) ExecCmd(args ...string) Cmd {
	return c.r.Cmd(append([]string{"exec", c.ID}, args...)...)
}

// State is what the runtime's state command says.
func (c *Container) State(ctx context.Context) (specs.State, error) {
	var state specs.State
	res, err := c.r.Command(ctx, "state", c.ID)
	if err != nil {
		return state, err
	}
	return state, json.Unmarshal([]byte(res.Stdout), &state)
}

// Signal sends a signal to the container's first process through the runtime.
func (c *Container) Signal(ctx context.Context, signal string) error {
	_, err := c.r.Command(ctx, "kill", c.ID, signal)
	return err
}

// WaitStopped waits until the container's first process has ended.
func (c *Container) WaitStopped(ctx context.Context, timeout time.Duration) error {
	return WaitFor(ctx, "container "+c.ID+" to stop", timeout, func() (bool, error) {
		state, err := c.State(ctx)
		return err == nil && state.Status == specs.StateStopped, err
	})
}

// KillSandbox ends the sandbox with SIGKILL, as a crash would.
func (c *Container) KillSandbox(ctx context.Context) error { return KillSandbox(ctx, c.ID) }

// Delete removes the container, ending it first if it runs.
func (c *Container) Delete(ctx context.Context) error {
	_, err := c.r.Command(ctx, "delete", "--force", c.ID)
	return err
}

// Network makes a network namespace for one container, joined by a veth pair to
// the cell's own network. It returns the namespace's path in the cell and the
// address that the container will have; Cell.Dial reaches it. The sandbox takes the
// address away from the namespace, so each start needs a new one.
func (r *Runtime) Network(ctx context.Context) (netns, address string, err error) {
	r.mu.Lock()
	r.nets++
	n := r.nets
	r.mu.Unlock()
	name := "n" + strconv.Itoa(n)
	script := `set -e
ip netns add $1
ip link add v$1 type veth peer name eth0 netns $1
ip addr add 10.77.$2.1/24 dev v$1
ip link set v$1 up
ip -n $1 link set lo up
ip -n $1 addr add 10.77.$2.2/24 dev eth0
ip -n $1 link set eth0 up
ip -n $1 route add default via 10.77.$2.1
`
	_, err = r.Cell.Run(ctx, Cmd{Argv: []string{"sh", "-c", script, "sh", name, strconv.Itoa(n)}})
	return "/run/netns/" + name, fmt.Sprintf("10.77.%d.2", n), err
}

// Stop ends all containers and the cell.
func (r *Runtime) Stop() { r.Cell.Stop() }

// SandboxPID finds the sandbox process of a container, by the host's numbering.
// The id may be a Docker container's full id.
func SandboxPID(id string) (int, error) {
	procs, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return 0, err
	}
	for _, p := range procs {
		b, err := os.ReadFile(p)
		if err != nil {
			continue // it ended meanwhile
		}
		args := strings.Split(strings.TrimRight(string(b), "\x00"), "\x00")
		if len(args) < 3 || args[0] != "runsc-sandbox" || args[len(args)-1] != id {
			continue
		}
		return strconv.Atoi(strings.Split(p, "/")[2])
	}
	return 0, fmt.Errorf("no sandbox process of container %s", id)
}

// KillSandbox ends a container's sandbox with SIGKILL, as a crash would, and waits
// until the process is gone.
func KillSandbox(ctx context.Context, id string) error {
	pid, err := SandboxPID(id)
	if err != nil {
		return err
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		return err
	}
	return WaitFor(ctx, "the sandbox to die", 20*time.Second, func() (bool, error) {
		again, err := SandboxPID(id)
		return err != nil || again != pid, nil
	})
}
