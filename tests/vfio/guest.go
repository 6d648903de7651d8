package vfio

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"runsc-fs/tests/lab"
)

// ErrGuestDied: the guest ended, by a panic or a fault of QEMU, before its script did.
var ErrGuestDied = errors.New("the guest ended before its script")

// Result is what a script that ran to its end left behind.
type Result struct {
	Output string // of the script: standard output and error, as they came
	Status int    // exit status of the script
}

// Guest is a running guest.
type Guest struct {
	spec   Spec
	dir    string
	marker string // begins the line that tells the script's exit status
	ctx    context.Context
	cancel context.CancelFunc
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	log    *os.File // script.log: the script's output as it comes, for whoever looks on
	qmp    *monitor
	said   strings.Builder // by QEMU itself; to be read when done is closed
	done   chan struct{}   // closed when QEMU has ended and result and err are final
	result Result
	err    error

	mu     sync.Mutex
	output strings.Builder
	ended  bool          // the marker was seen
	news   chan struct{} // closed and replaced when there is output
}

// Boot starts a guest. Its images and logs lie in dir, which is created.
func Boot(ctx context.Context, dir string, spec Spec) (*Guest, error) {
	if err := spec.setDefaults(); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	g := &Guest{spec: spec, dir: dir, marker: "guest-script-ended-" + rand.Text(), done: make(chan struct{}), news: make(chan struct{})}
	args, err := g.prepare(ctx)
	if err != nil {
		return nil, fmt.Errorf("cannot prepare the guest: %w", err)
	}
	g.ctx, g.cancel = context.WithTimeout(ctx, g.spec.Timeout)
	if err := g.launch(args); err != nil {
		g.cancel()
		return nil, fmt.Errorf("cannot start the guest: %w", err)
	}
	return g, nil
}

// prepare makes the files that the guest boots from and gives QEMU's arguments.
func (g *Guest) prepare(ctx context.Context) ([]string, error) {
	s := &g.spec
	if err := lab.EnsureTools(ctx, s.Logf, lab.ToolQEMU, lab.ToolMke2fs); err != nil {
		return nil, err
	}
	var err error
	if s.Kernel == nil {
		if s.Kernel, err = StockKernel(ctx, s.Logf); err != nil {
			return nil, err
		}
	}
	busybox, err := lab.UnpackPackages(ctx, s.Logf, "busybox", busyboxPackage)
	if err != nil {
		return nil, err
	}
	modules, err := s.Kernel.load(append(baseModules[:len(baseModules):len(baseModules)], s.Modules...))
	if err != nil {
		return nil, err
	}
	initramfs := filepath.Join(g.dir, "initramfs")
	if err := writeInitramfs(initramfs, filepath.Join(busybox, "bin", "busybox"), modules); err != nil {
		return nil, err
	}
	programs, err := s.makeProgramDisk(ctx, g.dir, g.marker)
	if err != nil {
		return nil, err
	}
	args := append(s.machine(g.dir, initramfs), disk(0, programs)...)
	if s.Base {
		base, err := baseDisk(ctx, s.Logf)
		if err != nil {
			return nil, err
		}
		args = append(args, disk(1, base)...)
	}
	for n := range s.Controllers {
		more, err := s.controller(g.dir, n)
		if err != nil {
			return nil, err
		}
		args = append(args, more...)
	}
	return args, nil
}

// launch starts QEMU with the monitor's socket as descriptor 3.
func (g *Guest) launch(args []string) error {
	qmp, theirs, err := newMonitor()
	if err != nil {
		return err
	}
	defer theirs.Close()
	cmd := exec.CommandContext(g.ctx, lab.ToolQEMU.Program, args...)
	cmd.ExtraFiles = []*os.File{theirs}
	cmd.Stderr = &g.said
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return errors.Join(err, qmp.close())
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return errors.Join(err, qmp.close())
	}
	if g.log, err = os.Create(filepath.Join(g.dir, "script.log")); err != nil {
		return errors.Join(err, qmp.close())
	}
	if err := cmd.Start(); err != nil {
		return errors.Join(err, qmp.close(), g.log.Close())
	}
	g.cmd, g.stdin, g.qmp = cmd, stdin, qmp
	go g.watch(stdout)
	return nil
}

// watch collects what the script prints until it or the guest ends, and then ends QEMU.
func (g *Guest) watch(stdout io.Reader) {
	defer close(g.done)
	defer g.cancel()
	defer g.qmp.close()
	status, found := g.collect(io.TeeReader(stdout, g.log))
	g.log.Close()
	if found {
		g.cmd.Process.Kill() // its disks are of no use to anyone now
	}
	io.Copy(io.Discard, stdout)
	err := g.cmd.Wait()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ended = true
	close(g.news)
	g.result = Result{Output: g.output.String(), Status: status}
	if found {
		return
	}
	g.err = ErrGuestDied
	if g.ctx.Err() != nil {
		g.err = fmt.Errorf("the guest did not end within %v: %w", g.spec.Timeout, g.ctx.Err())
	} else if err != nil {
		g.err = fmt.Errorf("%w: %s: %w", ErrGuestDied, lab.ToolQEMU.Program, err)
	}
	g.err = fmt.Errorf("%w\nQEMU: %s\nscript: %s\nkernel: %s", g.err, strings.TrimSpace(g.said.String()),
		tail(g.result.Output, 2000), tail(g.KernelLog(), 2000))
}

// collect reads the script's output up to the marker and gives the exit status.
func (g *Guest) collect(stdout io.Reader) (status int, found bool) {
	r := bufio.NewReader(stdout)
	for {
		line, err := r.ReadString('\n')
		if rest, ok := strings.CutPrefix(line, g.marker+" "); ok && err == nil {
			if status, err := strconv.Atoi(strings.TrimSpace(rest)); err == nil {
				g.trimNewline()
				return status, true
			}
		}
		g.mu.Lock()
		g.output.WriteString(line)
		close(g.news)
		g.news = make(chan struct{})
		g.mu.Unlock()
		if err != nil {
			return -1, false
		}
	}
}

// trimNewline takes back the newline that precedes the marker.
func (g *Guest) trimNewline() {
	g.mu.Lock()
	defer g.mu.Unlock()
	text := strings.TrimSuffix(g.output.String(), "\n")
	g.output.Reset()
	g.output.WriteString(text)
}

// Wait returns when the script has ended. An exit status other than 0 is no error; a
// guest that ended without its script is.
func (g *Guest) Wait() (Result, error) {
	<-g.done
	return g.result, g.err
}

// WaitOutput returns when the script has printed text, and gives an error when it ends without.
func (g *Guest) WaitOutput(text string) error {
	for {
		g.mu.Lock()
		seen, ended, news := strings.Contains(g.output.String(), text), g.ended, g.news
		g.mu.Unlock()
		if seen {
			return nil
		}
		if ended {
			result, err := g.Wait()
			return errors.Join(fmt.Errorf("the script ended without printing %q:\n%s", text, tail(result.Output, 2000)), err)
		}
		<-news // closed at the latest when the deadline has ended QEMU
	}
}

// Send gives a line to the script's standard input.
func (g *Guest) Send(line string) error {
	_, err := io.WriteString(g.stdin, line+"\n")
	return err
}

// Monitor runs a command of QEMU's monitor protocol, such as device_del. It returns
// the JSON that the command returned.
func (g *Guest) Monitor(command string, arguments map[string]any) ([]byte, error) {
	return g.qmp.run(command, arguments)
}

// KernelLog is what the guest's kernel has written on its console.
func (g *Guest) KernelLog() string {
	b, err := os.ReadFile(filepath.Join(g.dir, "kernel.log"))
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// Close ends the guest at once, as a power cut would, and waits for QEMU.
func (g *Guest) Close() {
	g.cancel()
	<-g.done
}

// Run boots a guest and waits for its script, which has to end with the status 0.
func Run(ctx context.Context, dir string, spec Spec) (string, error) {
	g, err := Boot(ctx, dir, spec)
	if err != nil {
		return "", err
	}
	result, err := g.Wait()
	if err == nil && result.Status != 0 {
		err = fmt.Errorf("the guest's script ended with the status %d", result.Status)
	}
	return result.Output, err
}

// tail returns the last n bytes of s, marked when something was cut.
func tail(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return "…" + s[len(s)-n:]
}
