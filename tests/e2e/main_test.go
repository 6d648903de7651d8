package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"runsc-fs/tests/lab"
)

// shared is what all tests use, made on first use.
var shared struct {
	mu      sync.Mutex
	dir     string
	rootfs  string
	dockerd *lab.Dockerd
	plain   *lab.Runtime
	plugin  *lab.Process
	count   int
}

func TestMain(m *testing.M) {
	code := m.Run()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.plugin != nil {
		shared.plugin.Kill()
	}
	if shared.dockerd != nil {
		if code != 0 {
			fmt.Printf("end of dockerd's log:\n%s\n", shared.dockerd.LogTail(3000))
		}
		shared.dockerd.Stop()
	}
	if shared.plain != nil {
		shared.plain.Stop()
	}
	if shared.dir != "" {
		if code == 0 {
			os.RemoveAll(shared.dir)
		} else {
			os.RemoveAll(filepath.Join(shared.dir, "docker", "data"))
			fmt.Printf("logs of the failed run are kept in %s\n", shared.dir)
		}
	}
	os.Exit(code)
}

// progress shows the slow steps of preparing the machine as they happen.
func progress(format string, args ...any) {
	fmt.Printf("# "+format+"\n", args...)
}

// testContext ends when the test's own deadline or a generous limit has passed.
func testContext(t *testing.T, limit time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	t.Cleanup(cancel)
	return ctx
}

// prepareLocked makes the directory and the root file system.
func prepareLocked(t *testing.T, ctx context.Context) {
	t.Helper()
	if shared.dir == "" {
		dir, err := lab.NewDir("e2e")
		must(t, err)
		shared.dir = dir
	}
	if shared.rootfs == "" {
		rootfs, err := lab.RootFS(ctx, progress, lab.BaseRootFS)
		must(t, err)
		shared.rootfs = rootfs
	}
}

// volumeRoot is where the registry of the tests' volumes lies.
func volumeRoot() string { return filepath.Join(shared.dir, "volumes") }

// plainRuntime returns the runtime for containers without Docker.
func plainRuntime(t *testing.T) *lab.Runtime {
	t.Helper()
	lab.Need(t)
	ctx := testContext(t, 20*time.Minute)
	shared.mu.Lock()
	defer shared.mu.Unlock()
	prepareLocked(t, ctx)
	if shared.plain == nil {
		binary, err := lab.Binary()
		must(t, err)
		r, err := lab.NewRuntime(ctx, progress, binary, filepath.Join(shared.dir, "plain"))
		must(t, err)
		r.Env = []string{"RUNSC_FS_VOLUME_ROOT=" + volumeRoot()}
		shared.plain = r
	}
	return shared.plain
}

// must stops the test on an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// bundle is a container over the shared root file system that runs a shell script.
func bundle(script string, mounts ...specs.Mount) lab.BundleSpec {
	return lab.BundleSpec{RootFS: shared.rootfs, Args: []string{"sh", "-c", script}, Mounts: mounts}
}

// run runs a container in the foreground and returns its standard output; the
// container must exit with 0.
func run(t *testing.T, b lab.BundleSpec) string {
	t.Helper()
	r := plainRuntime(t)
	res, err := r.Run(testContext(t, 5*time.Minute), b, 4*time.Minute)
	if err != nil {
		t.Fatalf("container failed: %v\nstdout: %s", err, res.Stdout)
	}
	return res.Stdout
}

// start runs a container in the background until the test ends.
func start(t *testing.T, b lab.BundleSpec) *lab.Container {
	t.Helper()
	r := plainRuntime(t)
	c, err := r.Start(testContext(t, 2*time.Minute), b)
	must(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("output of container %s:\n%s", c.ID, c.Output())
		}
		if err := c.Delete(context.Background()); err != nil {
			t.Errorf("cannot delete the container: %v", err)
		}
	})
	return c
}

// execIn runs a shell script in a running container and returns its output.
func execIn(t *testing.T, c *lab.Container, script string) string {
	t.Helper()
	res, err := c.Exec(testContext(t, 2*time.Minute), "sh", "-c", script)
	must(t, err)
	return strings.TrimSpace(res.Stdout)
}

// bindStorage says that data goes to host directories instead of volumes.
func bindStorage() bool { return os.Getenv("RUNSC_FS_E2E_STORAGE") == "bind" }

// uniqueName gives a name that no other test uses.
func uniqueName(t *testing.T, prefix string) string {
	t.Helper()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	shared.count++
	return fmt.Sprintf("%s%d", prefix, shared.count)
}
