package lab

import (
	"bytes"
	"context"
	"fmt"
	"hash/fnv"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// cellInit is the first process of a cell: it lays out the private mounts, says
// so by creating the file ready, and then only reaps orphans.
const cellInit = `set -e
mount --make-rprivate /
mount -t proc proc /proc
mount --bind "$1/run" /run
mount --bind "$1/log" /var/log
mkdir -p /run/lock /run/docker/plugins
ip link set lo up
: > "$1/ready"
while :; do sleep 3600 & wait; done
`

// Cell is a set of mount, network and PID namespaces with a private, empty /run and /var/log.
// Processes in it die with its first process, which dies with this program.
type Cell struct {
	dir    string // holds run and log, the cell's /run and /var/log
	tag    string // differs from that of other cells on the machine
	cgroup string // name below each cgroup v1 hierarchy for everything started here
	pid    int    // first process, as the host numbers it

	exited chan struct{} // closed when the first process was reaped
	output bytes.Buffer  // what the first process said; read after exited

	mu      sync.Mutex
	stopped bool
}

// NewCell starts a cell whose private files live in dir, which is created. Its
// path should be short: sockets below it must fit in 108 bytes.
func NewCell(ctx context.Context, dir string) (*Cell, error) {
	for _, private := range []string{"run", "log"} {
		if err := os.MkdirAll(filepath.Join(dir, private), 0o755); err != nil {
			return nil, err
		}
	}
	// Several labs may run at once, and container ids and cgroups are the machine's.
	hash := fnv.New32a()
	hash.Write([]byte(dir))
	tag := strconv.FormatUint(uint64(hash.Sum32()), 16)
	c := &Cell{dir: dir, tag: tag, exited: make(chan struct{}), cgroup: "runsc-fs-lab-" + tag}
	ready := filepath.Join(dir, "ready")
	os.Remove(ready)
	started := make(chan error, 1)
	go c.run(started)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("cannot make namespaces for the lab: %w", err)
	}
	err := WaitFor(ctx, "the lab's namespaces", 20*time.Second, func() (bool, error) {
		select {
		case <-c.exited:
			return false, fmt.Errorf("first process ended: %s", strings.TrimSpace(c.output.String()))
		default:
		}
		_, err := os.Stat(ready)
		return err == nil, nil
	})
	if err != nil {
		c.Stop()
		return nil, err
	}
	return c, nil
}

// run starts the first process and reaps it. It keeps its thread to itself: the
// kernel sends the parent-death signal when the thread that forked ends.
func (c *Cell) run(started chan<- error) {
	runtime.LockOSThread()
	cmd := exec.Command("sh", "-c", cellInit, "cell", c.dir)
	cmd.Stdout, cmd.Stderr = &c.output, &c.output
	cmd.WaitDelay = time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWPID | unix.CLONE_NEWIPC,
		Pdeathsig:  syscall.SIGKILL,
		Setpgid:    true,
	}
	err := cmd.Start()
	if err == nil {
		c.pid = cmd.Process.Pid
	}
	started <- err
	if err == nil {
		cmd.Wait()
	}
	close(c.exited)
}

// enter wraps a command so that it runs in the cell's namespaces.
func (c *Cell) enter(argv []string, dir string) []string {
	if dir == "" {
		dir = "/"
	}
	return append([]string{"nsenter", "--target", strconv.Itoa(c.pid), "--mount", "--net", "--pid", "--ipc", "--wd=" + dir, "--"}, argv...)
}

// RunDir is where the cell's /run is visible on the host.
func (c *Cell) RunDir() string { return filepath.Join(c.dir, "run") }

// Cgroup is the path, below each cgroup v1 hierarchy, that everything started in
// the cell should use; Stop removes it.
func (c *Cell) Cgroup() string { return "/" + c.cgroup }

// Run runs a command in the cell.
func (c *Cell) Run(ctx context.Context, cmd Cmd) (Result, error) {
	cmd.Cell = c
	return Run(ctx, cmd)
}

// Dial connects from inside the cell's network. The address must be numeric.
func (c *Cell) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", c.pid))
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	type outcome struct {
		conn net.Conn
		err  error
	}
	result := make(chan outcome, 1)
	go func() {
		// Never unlocked: the thread, now in another network, ends with this goroutine.
		runtime.LockOSThread()
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			result <- outcome{err: fmt.Errorf("cannot enter the lab's network: %w", err)}
			return
		}
		var d net.Dialer
		conn, err := d.DialContext(ctx, network, address)
		result <- outcome{conn, err}
	}()
	r := <-result
	return r.conn, r.err
}

// Stop ends every process of the cell and removes its cgroups. The directory stays
// for its logs. Calling it again does nothing.
func (c *Cell) Stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return
	}
	c.stopped = true
	syscall.Kill(c.pid, syscall.SIGKILL)
	<-c.exited
	c.removeCgroupsLocked()
}

// removeCgroupsLocked removes the cell's empty cgroups, deepest first. A group
// that will not go is left: it costs nothing and holds no process of ours.
func (c *Cell) removeCgroupsLocked() {
	hierarchies, _ := filepath.Glob("/sys/fs/cgroup/*/" + c.cgroup)
	for _, top := range append(hierarchies, "/sys/fs/cgroup/"+c.cgroup) {
		var dirs []string
		filepath.WalkDir(top, func(path string, d os.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, path)
			}
			return nil
		})
		for i := len(dirs) - 1; i >= 0; i-- {
			os.Remove(dirs[i])
		}
	}
}
