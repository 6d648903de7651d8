package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// defaultTimeout bounds commands that name no limit of their own.
const defaultTimeout = 2 * time.Minute

// Cmd describes one command.
type Cmd struct {
	Argv    []string      // program and arguments; looked up in PATH
	Dir     string        // working directory; default: the caller's
	Env     []string      // added to the caller's environment
	Stdin   io.Reader     // default: empty
	Stdout  io.Writer     // default: collected in the Result
	Stderr  io.Writer     // default: collected in the Result
	Timeout time.Duration // default: two minutes
	Cell    *Cell         // namespaces to run in; default: the caller's
}

// Result is what a command that ran to its end left behind.
type Result struct {
	Stdout, Stderr string
	Code           int // exit status; -1 when it died of a signal
}

// ExitError says that a command ran and failed. The Result is complete.
type ExitError struct {
	Argv []string
	Result
}

// Error gives the command, its status and the end of what it printed.
func (e *ExitError) Error() string {
	said := strings.TrimSpace(e.Stderr)
	if said == "" {
		said = strings.TrimSpace(e.Stdout)
	}
	return fmt.Sprintf("%s: exit status %d: %s", strings.Join(e.Argv, " "), e.Code, tail(said, 2000))
}

// Run runs a command to its end. A status other than 0 is an *ExitError. When
// the deadline passes, the command's whole process group is killed.
func Run(ctx context.Context, c Cmd) (Result, error) {
	p, err := Start(ctx, c)
	if err != nil {
		return Result{Code: -1}, err
	}
	return p.Wait()
}

// Process is a running command.
type Process struct {
	cmd            *exec.Cmd
	argv           []string
	cancel         context.CancelFunc
	ctx            context.Context
	timeout        time.Duration
	stdout, stderr bytes.Buffer
	done           chan struct{} // closed when result and err are final
	result         Result
	err            error
}

// Start begins a command and returns while it runs.
func Start(ctx context.Context, c Cmd) (*Process, error) {
	if c.Timeout == 0 {
		c.Timeout = defaultTimeout
	}
	argv := c.Argv
	if c.Cell != nil {
		argv = c.Cell.enter(argv, c.Dir)
	}
	p := &Process{argv: c.Argv, timeout: c.Timeout, done: make(chan struct{})}
	p.ctx, p.cancel = context.WithTimeout(ctx, c.Timeout)
	cmd := exec.CommandContext(p.ctx, argv[0], argv[1:]...)
	cmd.Dir, cmd.Stdin, cmd.Stdout, cmd.Stderr = c.Dir, c.Stdin, c.Stdout, c.Stderr
	if cmd.Stdout == nil {
		cmd.Stdout = &p.stdout
	}
	if cmd.Stderr == nil {
		cmd.Stderr = &p.stderr
	}
	cmd.Env = append(os.Environ(), c.Env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	// A daemon that inherited the pipes must not hold Wait for ever.
	cmd.WaitDelay = 5 * time.Second
	p.cmd = cmd
	if err := cmd.Start(); err != nil {
		p.cancel()
		return nil, fmt.Errorf("cannot start %s: %w", strings.Join(c.Argv, " "), err)
	}
	go p.reap()
	return p, nil
}

func (p *Process) reap() {
	defer close(p.done)
	defer p.cancel()
	err := p.cmd.Wait()
	p.result = Result{Stdout: p.stdout.String(), Stderr: p.stderr.String(), Code: p.cmd.ProcessState.ExitCode()}
	var exit *exec.ExitError
	switch {
	case p.ctx.Err() != nil:
		p.err = fmt.Errorf("%s: killed after %v: %w; it said: %s%s", strings.Join(p.argv, " "), p.timeout, p.ctx.Err(),
			tail(p.result.Stdout, 1000), tail(p.result.Stderr, 1000))
	case errors.As(err, &exit):
		p.err = &ExitError{Argv: p.argv, Result: p.result}
	case errors.Is(err, exec.ErrWaitDelay):
		// The command itself ended well; only a descendant kept its pipes.
	case err != nil:
		p.err = fmt.Errorf("%s: %w", strings.Join(p.argv, " "), err)
	}
}

// Wait returns when the command has ended; the deadline given at Start bounds it.
func (p *Process) Wait() (Result, error) {
	<-p.done
	return p.result, p.err
}

// Done is closed when the command has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// PID is the process id on the host.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Kill ends the command and its process group and waits for it.
func (p *Process) Kill() {
	syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	<-p.done
}

// Signal sends a signal to the command's process group, which has the command
// itself also when it runs in a cell.
func (p *Process) Signal(sig syscall.Signal) error { return syscall.Kill(-p.cmd.Process.Pid, sig) }

// tail returns the last n bytes of s, marked when something was cut.
func tail(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return "…" + s[len(s)-n:]
}
