package vfio

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"runsc-fs/tests/lab"
)

// shared is what the guests of a test run have in common.
var shared struct {
	mu    sync.Mutex
	dir   string // logs and images; stays when a test failed
	built map[string]string
	count int
}

func TestMain(m *testing.M) {
	code := m.Run()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.dir != "" {
		if code == 0 {
			os.RemoveAll(shared.dir)
		} else {
			fmt.Printf("logs of the failed run are kept in %s\n", shared.dir)
		}
	}
	os.Exit(code)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newDir makes a directory for a guest or a program.
func newDir(t *testing.T) string {
	t.Helper()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.dir == "" {
		dir, err := lab.NewDir("vfio")
		must(t, err)
		shared.dir = dir
	}
	shared.count++
	name := fmt.Sprintf("%02d-%s", shared.count, strings.ReplaceAll(t.Name(), "/", "-"))
	return filepath.Join(shared.dir, name)
}

// program builds a package of this tree as a static program, or its tests when test is set.
func program(t *testing.T, pkg string, test bool) string {
	t.Helper()
	key := fmt.Sprint(pkg, test)
	shared.mu.Lock()
	path, ok := shared.built[key]
	shared.mu.Unlock()
	if ok {
		return path
	}
	path = newDir(t)
	argv := []string{"go", "build", "-o", path, pkg}
	if test {
		argv = []string{"go", "test", "-c", "-o", path, pkg}
	}
	root, err := lab.TreeRoot()
	must(t, err)
	_, err = lab.Run(context.Background(), lab.Cmd{
		Argv: argv, Dir: root, Env: []string{"CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64"}, Timeout: 5 * time.Minute,
	})
	must(t, err)
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.built == nil {
		shared.built = map[string]string{}
	}
	shared.built[key] = path
	return path
}

// boot starts a guest that ends with the test.
func boot(t *testing.T, spec Spec) *Guest {
	t.Helper()
	lab.Need(t)
	spec.Logf = t.Logf
	g, err := Boot(context.Background(), newDir(t), spec)
	must(t, err)
	t.Cleanup(func() {
		g.Close()
		if t.Failed() {
			t.Logf("script:\n%s\nkernel:\n%s", g.result.Output, tail(g.KernelLog(), 3000))
		}
	})
	return g
}

// run boots a guest whose script has to end with the status 0 and returns its output.
func run(t *testing.T, spec Spec) string {
	t.Helper()
	g := boot(t, spec)
	result, err := g.Wait()
	must(t, err)
	if result.Status != 0 {
		t.Fatalf("the guest's script ended with the status %d", result.Status)
	}
	return result.Output
}
