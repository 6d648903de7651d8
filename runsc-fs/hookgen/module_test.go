package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// On a fresh machine the module cache is empty: hookgen is the first that
// needs gVisor's source. The real cache serves as the proxy here, so that the
// test needs no network.
func TestFindModuleWithEmptyCache(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	full, err := findModule(root)
	if err != nil {
		t.Fatal(err)
	}
	text, err := exec.Command("go", "env", "GOMODCACHE").Output()
	if err != nil {
		t.Fatal(err)
	}
	cache := t.TempDir()
	t.Setenv("GOMODCACHE", cache)
	t.Setenv("GOPROXY", "file://"+filepath.Join(strings.TrimSpace(string(text)), "cache/download"))
	t.Setenv("GONOSUMDB", "*")
	t.Setenv("GOFLAGS", "-modcacherw") // so that the temporary directory can be removed

	m, err := findModule(root)
	if err != nil {
		t.Fatal(err)
	}
	if m.Version != full.Version || !strings.HasPrefix(m.Dir, cache) {
		t.Errorf("found %s in %s, want %s below %s", m.Version, m.Dir, full.Version, cache)
	}
	if _, err := os.Stat(filepath.Join(m.Dir, "runsc/boot/vfs.go")); err != nil {
		t.Error(err)
	}

	t.Setenv("GOMODCACHE", t.TempDir())
	t.Setenv("GOPROXY", "off")
	if _, err := findModule(root); err == nil || !strings.Contains(err.Error(), gvisorModule) {
		t.Errorf("with neither cache nor network: error %v, want one that names %s", err, gvisorModule)
	}
}
