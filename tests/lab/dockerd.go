package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// DockerdSpec describes a private dockerd.
type DockerdSpec struct {
	Dir      string                   // data, logs and sockets; created
	Runtimes map[string]DockerRuntime // OCI runtimes besides runc
	Config   map[string]any           // more members for daemon.json
	Env      []string                 // added to the daemon's environment; runtimes inherit it
	Logf     Logf
}

// DockerRuntime is one entry of runtimes in daemon.json.
type DockerRuntime struct {
	Path string   `json:"path"`
	Args []string `json:"runtimeArgs,omitempty"`
}

// Dockerd is a running private dockerd in a cell of its own.
type Dockerd struct {
	Cell *Cell

	dir    string
	socket string
	client string   // docker client program that this daemon answers
	env    []string // for the client
	logf   Logf

	daemonEnv []string

	mu     sync.Mutex
	daemon *Process
	log    *os.File
}

// StartDockerd starts a private dockerd and waits until it answers.
func StartDockerd(ctx context.Context, spec DockerdSpec) (*Dockerd, error) {
	if spec.Logf == nil {
		spec.Logf = discard
	}
	if err := EnsureTools(ctx, spec.Logf, ToolDockerd, ToolNsenter, ToolIP, ToolIptables); err != nil {
		return nil, err
	}
	cell, err := NewCell(ctx, spec.Dir)
	if err != nil {
		return nil, err
	}
	d := &Dockerd{
		Cell: cell, dir: spec.Dir, logf: spec.Logf, daemonEnv: spec.Env,
		socket: filepath.Join(spec.Dir, "docker.sock"),
		env:    []string{"DOCKER_CONFIG=" + filepath.Join(spec.Dir, "client"), "DOCKER_CONTEXT=", "DOCKER_API_VERSION="},
	}
	if err := d.writeConfig(spec); err != nil {
		cell.Stop()
		return nil, err
	}
	if err := d.Start(ctx); err != nil {
		d.Stop()
		return nil, err
	}
	return d, nil
}

// ConfigFile is the daemon's configuration.
func (d *Dockerd) ConfigFile() string { return filepath.Join(d.dir, "daemon.json") }

// LogFile is where the daemon writes its log.
func (d *Dockerd) LogFile() string { return filepath.Join(d.dir, "dockerd.log") }

// Socket is the path of the daemon's API socket.
func (d *Dockerd) Socket() string { return d.socket }

func (d *Dockerd) writeConfig(spec DockerdSpec) error {
	config := map[string]any{
		"data-root":     filepath.Join(d.dir, "data"),
		"exec-root":     "/run/docker",
		"pidfile":       "/run/docker.pid",
		"hosts":         []string{"unix://" + d.socket},
		"cgroup-parent": d.Cell.Cgroup(),
	}
	if spec.Runtimes != nil {
		config["runtimes"] = spec.Runtimes
	}
	maps.Copy(config, spec.Config)
	b, err := json.MarshalIndent(config, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(d.ConfigFile(), b, 0o644)
}

// Start starts the daemon again after StopDaemon, with the same data.
func (d *Dockerd) Start(ctx context.Context) error {
	log, err := os.OpenFile(d.LogFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	os.Remove(filepath.Join(d.Cell.RunDir(), "docker.pid"))
	// The daemon outlives the caller's context: Stop ends it.
	daemon, err := Start(context.WithoutCancel(ctx), Cmd{
		Argv: []string{"dockerd", "--config-file", d.ConfigFile()}, Env: d.daemonEnv,
		Cell: d.Cell, Stdout: log, Stderr: log, Timeout: 6 * time.Hour,
	})
	if err != nil {
		log.Close()
		return err
	}
	d.mu.Lock()
	d.daemon, d.log = daemon, log
	d.mu.Unlock()
	return WaitFor(ctx, "dockerd", 60*time.Second, func() (bool, error) {
		select {
		case <-daemon.Done():
			return false, fmt.Errorf("dockerd ended: %s", d.LogTail(2000))
		default:
		}
		if _, err := os.Stat(d.socket); err != nil {
			return false, nil
		}
		return d.pickClient(ctx), nil
	})
}

// pickClient finds a docker client whose API versions overlap with the daemon's:
// machines often have a much newer client than Debian's daemon.
func (d *Dockerd) pickClient(ctx context.Context) bool {
	candidates := []string{"docker", "/usr/bin/docker", "/usr/local/bin/docker"}
	for _, c := range candidates {
		path, err := exec.LookPath(c)
		if err != nil {
			continue
		}
		_, err = Run(ctx, Cmd{Argv: []string{path, "-H", "unix://" + d.socket, "info"}, Env: d.env, Timeout: 20 * time.Second})
		if err == nil {
			d.client = path
			return true
		}
	}
	return false
}

// Docker runs the docker client against this daemon and returns what it printed
// on standard output, without the last newline.
func (d *Dockerd) Docker(ctx context.Context, args ...string) (string, error) {
	r, err := Run(ctx, d.Cmd(args...))
	return strings.TrimSuffix(r.Stdout, "\n"), err
}

// Cmd is the docker client's command with the given arguments, to be changed or
// started by the caller.
func (d *Dockerd) Cmd(args ...string) Cmd {
	return Cmd{Argv: append([]string{d.client, "-H", "unix://" + d.socket}, args...), Env: d.env, Timeout: 5 * time.Minute}
}

// Import makes an image of a root file system. changes are Dockerfile
// instructions such as "USER postgres".
func (d *Dockerd) Import(ctx context.Context, rootfs, name string, changes ...string) error {
	pr, pw, err := os.Pipe()
	if err != nil {
		return err
	}
	tar, err := Start(ctx, Cmd{Argv: []string{"tar", "-C", rootfs, "--one-file-system", "-c", "."}, Stdout: pw, Timeout: 5 * time.Minute})
	pw.Close()
	if err != nil {
		pr.Close()
		return err
	}
	args := []string{"import"}
	for _, c := range changes {
		args = append(args, "--change", c)
	}
	cmd := d.Cmd(append(args, "-", name)...)
	cmd.Stdin = pr
	_, err = Run(ctx, cmd)
	pr.Close() // so that tar ends too if the client gave up
	if _, tarErr := tar.Wait(); err == nil {
		err = tarErr
	}
	return err
}

// Dial connects from the daemon's network, where published ports listen.
func (d *Dockerd) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	return d.Cell.Dial(ctx, network, address)
}

// LogTail returns the last n bytes of the daemon's log.
func (d *Dockerd) LogTail(n int) string {
	b, _ := os.ReadFile(d.LogFile())
	return tail(string(bytes.TrimSpace(b)), n)
}

// StopDaemon asks the daemon to end, as a service manager does, and waits.
// Containers end with it.
func (d *Dockerd) StopDaemon(ctx context.Context) error {
	d.mu.Lock()
	daemon, log := d.daemon, d.log
	d.daemon, d.log = nil, nil
	d.mu.Unlock()
	if daemon == nil {
		return nil
	}
	defer log.Close()
	// The pid file has the number inside the cell.
	pid, err := os.ReadFile(filepath.Join(d.Cell.RunDir(), "docker.pid"))
	if err == nil {
		_, err = d.Cell.Run(ctx, Cmd{Argv: []string{"kill", "-TERM", strings.TrimSpace(string(pid))}})
	}
	if err == nil {
		err = WaitFor(ctx, "dockerd to end", 40*time.Second, func() (bool, error) {
			select {
			case <-daemon.Done():
				return true, nil
			default:
				return false, nil
			}
		})
	}
	if err != nil {
		daemon.Kill()
		return fmt.Errorf("dockerd did not end by itself: %w", err)
	}
	return nil
}

// Stop ends the daemon and everything that it started.
func (d *Dockerd) Stop() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := d.StopDaemon(ctx); err != nil {
		d.logf("%v", err)
	}
	d.Cell.Stop()
}
