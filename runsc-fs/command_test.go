package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"runsc-fs/oci/registry"
	"runsc-fs/runsc-fs/hooks"
)

// mainEnv makes the test program run main.
const mainEnv = "RUNSC_FS_TEST_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(mainEnv) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// TestWithoutHooks runs a program that was built on the plain go.mod, as tests
// are.
func TestWithoutHooks(t *testing.T) {
	cmd := exec.Command("/proc/self/exe", "run", "container")
	cmd.Env = append(os.Environ(), mainEnv+"=1")
	out, err := cmd.CombinedOutput()
	exit, failed := err.(*exec.ExitError)
	if !failed || exit.ExitCode() != 1 {
		t.Errorf("the program ends with %v, want exit status 1", err)
	}
	if !strings.Contains(string(out), "built without the hooks") || !strings.Contains(string(out), "make build") {
		t.Errorf("the program says %q", out)
	}
}

// call runs a verb as the command line does.
func call(t *testing.T, v verb, args ...string) (string, error) {
	t.Helper()
	f := flag.NewFlagSet(v.name(), flag.ContinueOnError)
	f.SetOutput(io.Discard)
	v.setFlags(f)
	if err := f.Parse(args); err != nil {
		return "", err
	}
	operands, err := f.Args(), error(nil)
	if _, isGroup := v.(*group); !isGroup {
		operands, err = getOperands(f)
	}
	if err != nil {
		return "", err
	}
	var out bytes.Buffer
	err = v.run(context.Background(), &out, operands)
	return out.String(), err
}

func useRegistry(t *testing.T) string {
	t.Helper()
	root := filepath.Join(t.TempDir(), "root")
	hooks.SetVolumeRoot(root)
	t.Cleanup(func() { hooks.SetVolumeRoot("") })
	return root
}

func volume(t *testing.T, args ...string) (string, error) {
	t.Helper()
	return call(t, newVolumeGroup(), args...)
}

func TestVolumeCommands(t *testing.T) {
	root := useRegistry(t)
	outside := filepath.Join(t.TempDir(), "outside.img")
	for _, args := range [][]string{
		{"create", "one", "--size", "32M"},
		{"create", "--size=64MiB", "two"},
		{"create", "mem", "--memory", "--size", "16M"},
		{"create", "out", "--image", outside, "--size", "16M"},
	} {
		out, err := volume(t, args...)
		if name := []string{"one", "two", "mem", "out"}; err != nil || !slices.Contains(name, strings.TrimSpace(out)) {
			t.Errorf("volume %v: %q, %v", args, out, err)
		}
	}
	out, err := volume(t, "ls")
	if err != nil {
		t.Fatal(err)
	}
	var rows [][]string
	for line := range strings.Lines(out) {
		rows = append(rows, strings.Fields(line))
	}
	if len(rows) != 5 || !reflect.DeepEqual(rows[0], []string{"NAME", "KIND", "SIZE", "USED", "IN", "USE", "BY"}) ||
		!reflect.DeepEqual(rows[1], []string{"mem", "memory", "16MiB", "0B", "-"}) || rows[4][0] != "two" || rows[4][2] != "64MiB" {
		t.Errorf("ls prints\n%s", out)
	}
	if out, err := volume(t, "ls", "-q"); err != nil || out != "mem\none\nout\ntwo\n" {
		t.Errorf("ls -q prints %q, %v", out, err)
	}
	out, err = volume(t, "inspect", "one", "out")
	var infos []registry.Info
	if err == nil {
		err = json.Unmarshal([]byte(out), &infos)
	}
	if err != nil || len(infos) != 2 || infos[0].Image != filepath.Join(root, "volumes/one/image") || infos[1].Image != outside || infos[1].SizeBytes != 16<<20 {
		t.Errorf("inspect prints %s, %v", out, err)
	}
	if out, err := call(t, &fsck{}, "one"); err != nil || !strings.HasSuffix(out, "clean\n") {
		t.Errorf("fsck of a new volume prints %q, %v", out, err)
	}
	if out, err := call(t, &dump{}, "one", "superblock"); err != nil || !strings.Contains(out, "slot 0") {
		t.Errorf("dump prints %q, %v", out, err)
	}
	out, err = volume(t, "rm", "one", "out")
	if want := fmt.Sprintf("one\nout\nthe image %s is still there\n", outside); err != nil || out != want {
		t.Errorf("rm prints %q, %v; want %q", out, err, want)
	}
	if out, err := volume(t, "ls", "--quiet"); err != nil || out != "mem\ntwo\n" {
		t.Errorf("what is left: %q, %v", out, err)
	}
}

func TestCommandErrors(t *testing.T) {
	useRegistry(t)
	if _, err := volume(t, "create", "mem", "--memory"); err != nil {
		t.Fatal(err)
	}
	used := filepath.Join(t.TempDir(), "used")
	if _, err := volume(t, "create", "used", "--size", "16M", "--image", used); err != nil {
		t.Fatal(err)
	}
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, bytes.Repeat([]byte("text\n"), 8<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		verb verb
		args string
		want string
	}{
		{newVolumeGroup(), "frob", `volume has no command "frob"`},
		{newVolumeGroup(), "create", "volume create: one name is needed, not 0; usage: runsc-fs volume create NAME"},
		{newVolumeGroup(), "create a b", "one name is needed, not 2"},
		{newVolumeGroup(), "create a --size", "flag needs an argument: -size"},
		{newVolumeGroup(), "create a --size 10X", `size "10X" is not valid; write a number and a unit, such as 512M, 10G or 1.5T`},
		{newVolumeGroup(), "create a --size 1", "too small"},
		{newVolumeGroup(), "create a --size=", `size "" is not valid; write a number`},
		{newVolumeGroup(), "create a --image=", "the path of --image is empty; leave out the flag"},
		{newVolumeGroup(), "create a --image /dev/nosuch", "image /dev/nosuch does not exist, and none can be made in /dev; name a file on a disk"},
		{&mkfs{}, "/dev/nosuch --size 16M", "image /dev/nosuch does not exist, and none can be made in /dev; name a file on a disk"},
		{&mkfs{}, text + ".new --size=", `size "" is not valid`},
		{&mkfs{}, "/nosuch/image --size 16M", "make its directory first"},
		{&fsck{}, "/nosuch/image", "is missing; correct the path"},
		{&fsck{}, "/dev/null", "is a character device, not a regular file; name an image file"},
		{&install{}, "--runtime=", `runtime name "" is not valid; use`},
		{&install{}, "--runtime=a/b", `runtime name "a/b" is not valid; use`},
		{&install{}, "--runtime=runc", "is Docker's own; choose another"},
		{&install{}, "--socket=", `socket "" is not valid; give an absolute path`},
		{&install{}, "--socket=blobfs.sock", "is not valid; give an absolute path"},
		{&install{}, "--socket=/run/docker/plugins/", "is not valid; give an absolute path"},
		{&install{}, "--socket=/run/docker/plugins/.sock", "is not valid; give an absolute path"},
		{&install{}, "--socket=/run/" + strings.Repeat("x", 100) + ".sock", "the longest possible has 107"},
		{&install{}, "--config=", "--config is empty; leave it out"},
		{&uninstall{}, "--runtime=a/b", `runtime name "a/b" is not valid; use`},
		{newVolumeGroup(), "create a --frob", "volume create: flag provided but not defined: -frob; usage: "},
		{newVolumeGroup(), "create mem", `volume "mem" exists already`},
		{newVolumeGroup(), "create ../a", "is not valid"},
		{newVolumeGroup(), "create a --memory --image /x", "a memory volume has no image"},
		{newVolumeGroup(), "create a --image " + text, "holds no blobfs"},
		{newVolumeGroup(), "create a --image /etc/hostname", "is too small to hold a blobfs"},
		{newVolumeGroup(), "create a --device nvme0", `"nvme0" is not the address of a PCI device`},
		{newVolumeGroup(), "create a --device 0000:ff:1f.7", "device 0000:ff:1f.7: no such PCI device; 'runsc-fs device ls' shows"},
		{newVolumeGroup(), "create a --device 0000:ff:1f.7 --namespace 0", "counted from 1"},
		{newVolumeGroup(), "create a --device 0000:ff:1f.7 --size 1G", "takes all of its namespace"},
		{newVolumeGroup(), "create a --force", "only a volume on a device"},
		{&mkfs{}, "0000:ff:1f.7", "device 0000:ff:1f.7: no such PCI device"},
		{&mkfs{}, "0000:ff:1f.7 --size 1G", "leave out --size"},
		{&fsck{}, "0000:ff:1f.7", "device 0000:ff:1f.7: no such PCI device"},
		{newVolumeGroup(), "rm nosuch", `volume "nosuch" does not exist`},
		{newVolumeGroup(), "rm", "a name is needed"},
		{newVolumeGroup(), "inspect nosuch", `volume "nosuch" does not exist`},
		{newVolumeGroup(), "ls x", "no arguments are taken"},
		{&mkfs{}, "", "one path is needed"},
		{&mkfs{}, text, "holds data; 'runsc-fs mkfs --force " + text + "' destroys it"},
		{&mkfs{}, "--force " + used, "image " + used + ` belongs to volume "used"; 'runsc-fs volume rm used' gives the volume up first`},
		{&install{}, "extra", `install: "extra" is no flag for the runtime`},
		{&mkfs{}, text + " --size 16M", "bytes, not 16777216; leave out --size to keep its size"},
		{&mkfs{}, text + ".new", "does not exist; give its --size to make it"},
		{&mkfs{}, "/dev/null", "is not a regular file"},
		{&fsck{}, "", "one volume or path is needed"},
		{&fsck{}, "nosuch", `volume "nosuch" does not exist`},
		{&fsck{}, "mem", `volume "mem" is in memory and has no image`},
		{&fsck{}, text, "image " + text + " holds no blobfs; name an image file"},
		{&fsck{}, "/etc/hostname", "is too small to hold a blobfs"},
		{&dump{}, "mem", "a volume or path and what to show are needed"},
		{&plugin{}, "x", "no arguments are taken"},
		{&uninstall{}, "x", "no arguments are taken"},
	} {
		out, err := call(t, test.verb, strings.Fields(test.args)...)
		if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s %s: error %v, want one line with %q", test.verb.name(), test.args, err, test.want)
		}
		if out != "" {
			t.Errorf("%s %s: prints %q besides the error", test.verb.name(), test.args, out)
		}
	}
	if _, err := os.Stat(text + ".new"); err == nil {
		t.Error("a failed mkfs leaves a file")
	}
}

func TestMkfs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "image")
	if _, err := call(t, &mkfs{}, path, "--size", "16M", "--label", "music"); err != nil {
		t.Fatal(err)
	}
	if out, err := call(t, &fsck{}, path); err != nil || !strings.Contains(out, `"music"`) {
		t.Errorf("fsck prints %q, %v", out, err)
	}
	if _, err := call(t, &mkfs{}, path); err == nil {
		t.Error("a file system is destroyed without --force")
	}
	if _, err := call(t, &mkfs{}, "--force", path); err != nil {
		t.Error(err)
	}
}

func TestOperands(t *testing.T) {
	for _, test := range []struct {
		args, want string
		flag       bool
	}{
		{"a b", "a b", false},
		{"a -x b", "a b", true},
		{"-x a b", "a b", true},
		{"a b -x", "a b", true},
		{"-- -x a", "-x a", false},
		{"-x -- -y", "-y", true},
		{"-", "-", false},
		{"", "", false},
	} {
		f := flag.NewFlagSet("test", flag.ContinueOnError)
		x := f.Bool("x", false, "")
		if err := f.Parse(strings.Fields(test.args)); err != nil {
			t.Fatal(err)
		}
		have, err := getOperands(f)
		if err != nil || strings.Join(have, " ") != test.want || *x != test.flag {
			t.Errorf("%q: operands %q, flag %v, %v; want %q, %v", test.args, have, *x, err, test.want, test.flag)
		}
	}
}

func TestExitStatus(t *testing.T) {
	useRegistry(t)
	for _, test := range []struct {
		verb verb
		args []string
		want int
	}{
		{newVolumeGroup(), []string{"rm", "nosuch"}, statusFailed},
		{newVolumeGroup(), []string{"create"}, statusUsage},
		{newVolumeGroup(), []string{"create", "x", "--frob"}, statusUsage},
		{newVolumeGroup(), []string{"frob"}, statusUsage},
		{&mkfs{}, nil, statusUsage},
		{&fsck{}, []string{"nosuch"}, fsckOperational},
		{&fsck{}, nil, fsckUsage},
	} {
		if _, err := call(t, test.verb, test.args...); err == nil || exitStatus(err) != test.want {
			t.Errorf("%s %q ends with %v and status %d, want %d", test.verb.name(), test.args, err, exitStatus(err), test.want)
		}
	}
}

// TestCommandNames keeps runsc's commands complete and ours apart.
func TestCommandNames(t *testing.T) {
	all, topics := commands()
	names := map[string]int{}
	for c := range all {
		names[c.Name()]++
		if c.Synopsis() == "" || c.Usage() == "" {
			t.Errorf("%s is not documented", c.Name())
		}
	}
	for _, c := range topics {
		names[c.Name()]++
	}
	for _, name := range []string{"create", "run", "boot", "gofer", "exec", "volume", "mkfs", "fsck", "plugin", "install", "uninstall", "platforms"} {
		if names[name] != 1 {
			t.Errorf("%d commands are called %s", names[name], name)
		}
	}
}
