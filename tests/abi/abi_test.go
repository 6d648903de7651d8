package main

import (
	"bufio"
	"context"
	_ "embed"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"runsc-fs/tests/lab"
)

// only runs some of the checks: go test ./tests/abi -checks '^rename/'.
var only = flag.String("checks", "", "regular expression: run only the checks whose names match")

//go:embed known-gaps.txt
var knownGaps string

// gap is a line of known-gaps.txt.
type gap struct{ where, name, reason string }

func gaps(t *testing.T) []gap {
	t.Helper()
	var list []gap
	for n, line := range strings.Split(knownGaps, "\n") {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		where, rest, _ := strings.Cut(line, " ")
		name, reason, _ := strings.Cut(strings.TrimSpace(rest), " ")
		g := gap{where, name, strings.TrimSpace(reason)}
		if (where != "sandbox" && where != "native") || g.reason == "" {
			t.Fatalf("known-gaps.txt:%d: want \"sandbox NAME REASON\" or \"native NAME REASON\": %s", n+1, line)
		}
		list = append(list, g)
	}
	return list
}

// TestNames keeps names unique and known-gaps.txt up to date.
func TestNames(t *testing.T) {
	names := map[string]bool{}
	for _, g := range groups() {
		for _, c := range g.checks {
			if names[c.name] {
				t.Errorf("two checks have the name %s", c.name)
			}
			if !regexp.MustCompile(`^[a-z0-9-]+(/[a-z0-9-]+)+$`).MatchString(c.name) {
				t.Errorf("%q is no good name", c.name)
			}
			names[c.name] = true
		}
	}
	seen := map[gap]bool{}
	for _, g := range gaps(t) {
		if !names[g.name] {
			t.Errorf("known-gaps.txt names %s, which is no check", g.name)
		}
		key := gap{where: g.where, name: g.name}
		if seen[key] {
			t.Errorf("known-gaps.txt names %s %s twice", g.where, g.name)
		}
		seen[key] = true
	}
}

// build makes the static program in dir.
func build(t *testing.T, ctx context.Context, dir string) {
	t.Helper()
	mustDo(t, os.MkdirAll(dir, 0o755))
	cmd := exec.CommandContext(ctx, "go", "build", "-ldflags=-s -w", "-o", filepath.Join(dir, "abi"), ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
}

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 9*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func mustDo(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newLab gives a directory for a lab that stays only if the test fails.
func newLab(t *testing.T, prefix string) string {
	t.Helper()
	dir, err := lab.NewDir(prefix)
	mustDo(t, err)
	mustDo(t, os.Chmod(dir, 0o755)) // the checks' users pass through it
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("what is left of the failed run is in %s", dir)
		} else {
			os.RemoveAll(dir)
		}
	})
	return dir
}

// native runs the checks on ext4, and those of shared blocks on XFS if the kernel
// has it: a check that fails there is wrong itself, or these file systems do not
// do what the manual says.
const native = `set -e
cd "$1"
mkdir data ro restricted small other
truncate -s 3G data.img
truncate -s 40M small.img
mkfs.ext4 -q -F -N 300000 data.img
mkfs.ext4 -q -F small.img
mount -o loop data.img data
mount --bind data ro
mount -o remount,bind,ro ro
mount --bind data restricted
mount -o remount,bind,noexec,nosuid,nodev,noatime restricted
mount -o loop small.img small
mount -t tmpfs tmpfs other
shares=
if grep -qw xfs /proc/filesystems || modprobe -q xfs 2>/dev/null; then
	mkdir shares
	truncate -s 400M shares.img
	mkfs.xfs -q -m reflink=1 shares.img
	mount -o loop shares.img shares
	shares=$1/shares
fi
exec "$1/bin/abi" -dir "$1/data" -ro "$1/ro" -restricted "$1/restricted" -small "$1/small" -other "$1/other" -shares "$shares" -slow 2s -run "$2"
`

// TestNative runs the checks on the host's ext4 and XFS, on loop devices in mount
// namespaces of its own.
func TestNative(t *testing.T) {
	lab.Need(t)
	ctx := testContext(t)
	dir := newLab(t, "abi-native")
	build(t, ctx, filepath.Join(dir, "bin"))
	mustDo(t, lab.EnsureTools(ctx, t.Logf, lab.ToolMkfsXFS))
	cell, err := lab.NewCell(ctx, filepath.Join(dir, "cell"))
	mustDo(t, err)
	t.Cleanup(cell.Stop)
	res, err := cell.Run(ctx, lab.Cmd{Argv: []string{"sh", "-c", native, "native", dir, *only}, Timeout: 4 * time.Minute})
	judge(t, "native", res, err)
}

// TestSandbox runs the checks in a sandbox on an image volume.
func TestSandbox(t *testing.T) {
	lab.Need(t)
	ctx := testContext(t)
	dir := newLab(t, "abi-sandbox")
	binary, err := lab.Binary()
	mustDo(t, err)
	root := filepath.Join(dir, "root")
	build(t, ctx, root)
	for _, mountPoint := range []string{"proc", "dev", "tmp", "run", "data", "ro", "restricted", "small"} {
		mustDo(t, os.Mkdir(filepath.Join(root, mountPoint), 0o755))
	}
	r, err := lab.NewRuntime(ctx, t.Logf, binary, filepath.Join(dir, "runtime"), "--allow-suid")
	mustDo(t, err)
	t.Cleanup(r.Stop)
	r.Env = []string{"RUNSC_FS_VOLUME_ROOT=" + filepath.Join(dir, "volumes")}
	for name, size := range map[string]string{"data": "2G", "small": "40M"} {
		_, err := r.Command(ctx, "volume", "create", "--size="+size, name)
		mustDo(t, err)
	}
	spec := lab.BundleSpec{
		RootFS: root,
		Args:   []string{"/abi", "-dir", "/data", "-ro", "/ro", "-restricted", "/restricted", "-small", "/small", "-other", "/tmp", "-shares", "/data", "-slow", "2s", "-run", *only},
		Mounts: []specs.Mount{
			lab.VolumeMount("data", "/data"),
			lab.VolumeMount("data", "/ro", "ro"),
			lab.VolumeMount("data", "/restricted", "noexec", "nosuid", "nodev", "noatime"),
			lab.VolumeMount("small", "/small"),
		},
	}.OCI()
	spec.Root.Readonly = false // so that mount points are busy, not on a read-only file system
	// Root as on a machine of its own.
	more := []string{"CAP_SYS_ADMIN", "CAP_DAC_READ_SEARCH", "CAP_LINUX_IMMUTABLE", "CAP_LEASE", "CAP_SYS_RESOURCE"}
	caps := spec.Process.Capabilities
	all := append(caps.Effective[:len(caps.Effective):len(caps.Effective)], more...)
	caps.Bounding, caps.Effective, caps.Permitted = all, all, all
	id, bundle, err := r.Bundle(spec)
	mustDo(t, err)
	cmd := r.Cmd("run", "--bundle="+bundle, id)
	cmd.Timeout = 5 * time.Minute
	res, err := lab.Run(ctx, cmd)
	judge(t, "sandbox", res, err)
	for _, name := range []string{"data", "small"} {
		fsck(t, ctx, r, name)
	}
}

// fsck wants a volume to be free of defects after all that.
func fsck(t *testing.T, ctx context.Context, r *lab.Runtime, volume string) {
	t.Helper()
	res, err := r.Command(ctx, "volume", "inspect", volume)
	mustDo(t, err)
	var info []struct {
		Image string `json:"image"`
	}
	mustDo(t, json.Unmarshal([]byte(res.Stdout), &info))
	if len(info) != 1 || info[0].Image == "" {
		t.Fatalf("volume inspect says %s", res.Stdout)
	}
	if res, err := r.Command(ctx, "fsck", info[0].Image); err != nil {
		t.Errorf("fsck: %v\n%s", err, res.Stdout)
	}
}

// judge compares the outcome of a run with known-gaps.txt.
func judge(t *testing.T, where string, res lab.Result, err error) {
	t.Helper()
	expected := map[string]bool{}
	for _, g := range gaps(t) {
		if g.where == where {
			expected[g.name] = true
		}
	}
	line := regexp.MustCompile(`^(ok|not ok) ([^ :]+)(.*)$`)
	passed, failed, complete := 0, 0, false
	for s := bufio.NewScanner(strings.NewReader(res.Stdout)); s.Scan(); {
		if strings.HasPrefix(s.Text(), "# ") {
			complete = true
		}
		m := line.FindStringSubmatch(s.Text())
		switch {
		case m == nil:
		case m[1] == "ok" && expected[m[2]]:
			t.Errorf("%s passes: take it out of known-gaps.txt", m[2])
		case m[1] == "ok":
			passed++
		case expected[m[2]]:
			failed++
		default:
			t.Errorf("%s%s", m[2], m[3])
		}
	}
	if !complete {
		t.Fatalf("the checks have not run to their end: %v\nstderr: %s\nstdout ends with: %s", err, res.Stderr, res.Stdout[max(0, len(res.Stdout)-1000):])
	}
	t.Log(fmt.Sprintf("%s: %d checks passed, %d failed as known", where, passed, failed))
}
