package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"runsc-fs/tests/lab"
)

// TestInstall adds the product to a running Docker that has a configuration of its
// own, uses it, and takes it out again without a trace.
func TestInstall(t *testing.T) {
	plainRuntime(t)
	ctx := testContext(t, 5*time.Minute)
	binary, err := lab.Binary()
	must(t, err)
	dir := filepath.Join(shared.dir, uniqueName(t, "install"))
	d, err := lab.StartDockerd(ctx, lab.DockerdSpec{
		Dir:    dir,
		Config: map[string]any{"labels": []string{"kept=yes"}, "max-concurrent-uploads": 3},
		Logf:   progress,
	})
	must(t, err)
	t.Cleanup(d.Stop)
	must(t, d.Import(ctx, shared.rootfs, image))
	config := func() string {
		b, err := os.ReadFile(d.ConfigFile())
		must(t, err)
		return string(b)
	}
	product := func(args ...string) string {
		t.Helper()
		// Not by the flag: Docker's environment does not have the variable.
		res, err := d.Cell.Run(ctx, lab.Cmd{
			Argv: append([]string{binary}, args...), Env: []string{"RUNSC_FS_VOLUME_ROOT=" + filepath.Join(dir, "volumes")},
		})
		must(t, err)
		return res.Stdout
	}
	docker := func(args ...string) string {
		t.Helper()
		out, err := d.Docker(ctx, args...)
		must(t, err)
		return out
	}
	where := []string{"--config=" + d.ConfigFile(), "--docker-socket=" + d.Socket()}
	before := config()

	for range 2 { // the second time changes nothing
		product(append([]string{"install"}, where...)...)
		got := config()
		for _, want := range []string{`"kept=yes"`, `"max-concurrent-uploads": 3`, `"blobfs"`, binary} {
			if !strings.Contains(got, want) {
				t.Fatalf("after install the configuration lacks %s:\n%s", want, got)
			}
		}
		if strings.Count(got, binary) != 1 {
			t.Fatalf("install twice gives\n%s", got)
		}
	}
	if got := docker("info", "--format={{range $name, $r := .Runtimes}}{{$name}} {{end}}"); !strings.Contains(got, "blobfs") {
		t.Fatalf("the running Docker has only the runtimes %s", got)
	}
	docker("volume", "create", "--driver=blobfs", "--opt=size=64M", "data")
	docker("run", "--rm", "--runtime=blobfs", "--volume=data:/data", image, "sh", "-c", "echo installed > /data/file")
	if got := docker("run", "--rm", "--runtime=blobfs", "--volume=data:/data", image, "cat", "/data/file"); got != "installed" {
		t.Errorf("the volume has %q", got)
	}
	// Volumes of the command and of Docker are the same ones.
	if got := product("volume", "ls"); !strings.Contains(got, "data") {
		t.Errorf("volume ls lacks Docker's volume:\n%s", got)
	}

	for range 2 {
		product(append([]string{"uninstall"}, where...)...)
		if got := config(); got != before {
			t.Fatalf("after uninstall the configuration is\n%s\nand was\n%s", got, before)
		}
	}
	if got := docker("info", "--format={{range $name, $r := .Runtimes}}{{$name}} {{end}}"); strings.Contains(got, "blobfs") {
		t.Errorf("after uninstall Docker still has the runtimes %s", got)
	}
	if _, err := os.Stat(filepath.Join(d.Cell.RunDir(), "docker", "plugins", "blobfs.sock")); err == nil {
		t.Error("after uninstall the plugin's socket is still there")
	}
	if got := product("volume", "ls"); !strings.Contains(got, "data") {
		t.Errorf("uninstall removed the volume:\n%s", got)
	}
}
