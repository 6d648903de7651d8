package e2e

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"runsc-fs/tests/lab"
)

// image is the Docker image of the shared root file system.
const image = "lab"

// docker returns the private dockerd with the runtime, the volume plugin and the
// image in place.
func docker(t *testing.T) *lab.Dockerd {
	t.Helper()
	lab.Need(t)
	ctx := testContext(t, 20*time.Minute)
	shared.mu.Lock()
	defer shared.mu.Unlock()
	prepareLocked(t, ctx)
	if shared.dockerd != nil {
		return shared.dockerd
	}
	binary, err := lab.Binary()
	must(t, err)
	dir := filepath.Join(shared.dir, "docker")
	logs := filepath.Join(dir, "runsc")
	must(t, os.MkdirAll(logs, 0o755))
	env := []string{"RUNSC_FS_VOLUME_ROOT=" + dockerVolumeRoot()}
	d, err := lab.StartDockerd(ctx, lab.DockerdSpec{
		Dir:      dir,
		Runtimes: map[string]lab.DockerRuntime{"blobfs": {Path: binary, Args: []string{"--debug-log=" + logs + "/"}}},
		Env:      env,
		Logf:     progress,
	})
	must(t, err)
	shared.dockerd = d
	if !bindStorage() {
		startPluginLocked(t, ctx)
	}
	progress("importing the Docker image")
	must(t, d.Import(ctx, shared.rootfs, image, "ENV PGDATA=/var/lib/postgresql/data"))
	return d
}

// dockerVolumeRoot is where the registry of Docker's volumes lies.
func dockerVolumeRoot() string { return filepath.Join(shared.dir, "docker", "volumes") }

// startPluginLocked starts the volume plugin in dockerd's cell, at the place where
// Docker looks for it.
func startPluginLocked(t *testing.T, ctx context.Context) {
	t.Helper()
	binary, err := lab.Binary()
	must(t, err)
	out, err := os.OpenFile(filepath.Join(shared.dir, "docker", "plugin.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	must(t, err)
	defer out.Close()
	plugin, err := lab.Start(context.Background(), lab.Cmd{
		Argv: []string{binary, "plugin"}, Env: []string{"RUNSC_FS_VOLUME_ROOT=" + dockerVolumeRoot()},
		Cell: shared.dockerd.Cell, Stdout: out, Stderr: out, Timeout: 6 * time.Hour,
	})
	must(t, err)
	shared.plugin = plugin
	socket := filepath.Join(shared.dockerd.Cell.RunDir(), "docker", "plugins", "blobfs.sock")
	must(t, lab.WaitFor(ctx, "the volume plugin's socket", 20*time.Second, func() (bool, error) {
		select {
		case <-plugin.Done():
			_, err := plugin.Wait()
			log, _ := os.ReadFile(out.Name())
			t.Fatalf("the volume plugin ended: %v: %s", err, log)
		default:
		}
		_, err := os.Stat(socket)
		return err == nil, nil
	}))
}

// dockerOK runs the docker client, which must succeed, and returns its output.
func dockerOK(t *testing.T, args ...string) string {
	t.Helper()
	d := docker(t)
	out, err := d.Docker(testContext(t, 5*time.Minute), args...)
	must(t, err)
	return out
}

// dockerFails runs the docker client, which must fail, and returns what it said.
func dockerFails(t *testing.T, args ...string) string {
	t.Helper()
	d := docker(t)
	out, err := d.Docker(testContext(t, 5*time.Minute), args...)
	if err == nil {
		t.Fatalf("docker %s succeeded: %s", strings.Join(args, " "), out)
	}
	return err.Error()
}

// dockerStart runs a container in the background, with the name of its own that it
// returns, and removes it when the test ends.
func dockerStart(t *testing.T, args ...string) string {
	t.Helper()
	docker(t)
	name := uniqueName(t, "d")
	t.Cleanup(func() {
		if t.Failed() {
			logs, err := shared.dockerd.Docker(context.Background(), "logs", "--tail=50", name)
			t.Logf("end of the log of container %s (%v):\n%s", name, err, logs)
		}
		dockerOK(t, "rm", "--force", name)
	})
	dockerOK(t, append([]string{"run", "--detach", "--name=" + name, "--runtime=blobfs"}, args...)...)
	return name
}

// dockerRun runs a shell script in a container that is removed afterwards, and
// returns its output.
func dockerRun(t *testing.T, script string, args ...string) string {
	t.Helper()
	args = append([]string{"run", "--rm", "--runtime=blobfs"}, args...)
	return strings.TrimSpace(dockerOK(t, append(args, image, "sh", "-c", script)...))
}

// dockerID gives the full id of a container.
func dockerID(t *testing.T, name string) string {
	t.Helper()
	return dockerOK(t, "inspect", "--format={{.Id}}", name)
}

// checkDockerVolume has fsck look at a volume, by the path of its image if it has one.
func checkDockerVolume(t *testing.T, name string) {
	t.Helper()
	path := filepath.Join(dockerVolumeRoot(), "volumes", name, "image")
	if _, err := os.Stat(path); err == nil {
		checkImage(t, path)
		return
	}
	if res, err := command(t, "--volume-root="+dockerVolumeRoot(), "fsck", name); err != nil {
		t.Errorf("fsck of %s: %v\n%s", name, err, res.Stdout)
	}
}

// dockerVolume makes a Docker volume that, when the test ends, must be free of
// defects and is removed; it returns what to give to -v before the colon.
func dockerVolume(t *testing.T, opts ...string) string {
	t.Helper()
	docker(t)
	name := uniqueName(t, "dv")
	if bindStorage() {
		dockerOK(t, "volume", "create", name)
	} else {
		args := []string{"volume", "create", "--driver=blobfs"}
		for _, o := range opts {
			args = append(args, "--opt="+o)
		}
		dockerOK(t, append(args, name)...)
	}
	t.Cleanup(func() {
		if !bindStorage() {
			checkDockerVolume(t, name)
		}
		dockerOK(t, "volume", "rm", name)
	})
	return name
}
