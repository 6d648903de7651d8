package hooks

import (
	"encoding/json"
	"errors"
	"flag"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"runsc-fs/nvme/pcie"
	"runsc-fs/oci/registry"
	"runsc-fs/sentry"
)

// useRegistry gives the package a registry with memory volumes of these names.
func useRegistry(t *testing.T, names ...string) *registry.Registry {
	t.Helper()
	SetVolumeRoot(filepath.Join(t.TempDir(), "root"))
	t.Cleanup(func() { SetVolumeRoot("") })
	reg, err := OpenRegistry()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if _, err := reg.Create(registry.CreateSpec{Name: name, Kind: registry.KindMemory, SizeBytes: 32 << 20}); err != nil {
			t.Fatal(err)
		}
	}
	return reg
}

func mountpoint(t *testing.T, reg *registry.Registry, name string) string {
	t.Helper()
	v, err := reg.Get(name)
	if err != nil {
		t.Fatal(err)
	}
	return v.Mountpoint()
}

func TestOpenSpecRewritesVolumeMounts(t *testing.T) {
	reg := useRegistry(t, "pg")
	bundle := t.TempDir()
	config := `{"ociVersion":"1.0.0","unknown":{"kept":"<&>"},"mounts":[
		{"destination":"/proc","type":"proc","source":"proc","unknown":1},
		{"destination":"/data","type":"bind","source":"` + mountpoint(t, reg, "pg") + `","options":["rbind","rprivate","ro"]},
		{"destination":"/more","type":"blobfs","source":"pg","options":["noatime"]},
		{"destination":"/b","type":"bind","source":"relative","options":["rbind"]}]}`
	if err := os.WriteFile(filepath.Join(bundle, "config.json"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := OpenSpec(bundle)
	if err != nil || f == nil {
		t.Fatalf("OpenSpec: %v, %v; want a rewritten specification", f, err)
	}
	defer f.Close()
	text, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	var have, want any
	if err := json.Unmarshal(text, &have); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	if err := json.Unmarshal([]byte(`{"ociVersion":"1.0.0","unknown":{"kept":"<&>"},"mounts":[
		{"destination":"/proc","type":"proc","source":"proc","unknown":1},
		{"destination":"/data","type":"blobfs","source":"pg","options":["ro","relatime"]},
		{"destination":"/more","type":"blobfs","source":"pg","options":["rw","noatime"]},
		{"destination":"/b","type":"bind","source":"relative","options":["rbind"]}]}`), &want); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(have, want) {
		t.Errorf("have %v\nwant %v", have, want)
	}
}

func TestOpenSpecLeavesOthersAlone(t *testing.T) {
	reg := useRegistry(t, "pg")
	for name, config := range map[string]string{
		"no volumes":     `{"mounts":[{"destination":"/b","type":"bind","source":"/etc","options":["rbind"]}]}`,
		"no mounts":      `{"ociVersion":"1.0.0"}`,
		"not JSON":       `{`,
		"unknown volume": `{"mounts":[{"destination":"/b","type":"blobfs","source":"other"}]}`,
		"sub-path":       `{"mounts":[{"destination":"/b","type":"bind","source":"` + mountpoint(t, reg, "pg") + `/sub"}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			bundle := t.TempDir()
			if err := os.WriteFile(filepath.Join(bundle, "config.json"), []byte(config), 0o600); err != nil {
				t.Fatal(err)
			}
			if f, err := OpenSpec(bundle); f != nil || err != nil {
				t.Errorf("OpenSpec: %v, %v; want nothing", f, err)
			}
		})
	}
	if _, err := OpenSpec(t.TempDir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a bundle without config.json: %v", err)
	}
}

func specOf(mounts ...specs.Mount) *specs.Spec { return &specs.Spec{Mounts: mounts} }

func volumeMount(name string, options ...string) specs.Mount {
	return specs.Mount{Type: FilesystemName, Source: name, Destination: "/" + name, Options: options}
}

func TestOpenVolumesLocks(t *testing.T) {
	useRegistry(t, "a", "b")
	if err := OpenVolumes("/run/runsc", specOf(volumeMount("a")), "c1", "c1"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ForgetVolumes("c1") })

	// Another container gets neither of its volumes, and b stays free.
	err := OpenVolumes("/run/runsc", specOf(volumeMount("b"), volumeMount("a")), "c2", "c2")
	if want := `volume "a" is in use by container c1; stop that first`; err == nil || err.Error() != want {
		t.Errorf("error %v, want %s", err, want)
	}
	if err := OpenVolumes("/run/runsc", specOf(volumeMount("b")), "c3", "c3"); err != nil {
		t.Errorf("the volume of a container that was refused: %v", err)
	}
	ForgetVolumes("c3")

	// A container of the same sandbox shares it and brings no files.
	if err := CheckVolumes(specOf(volumeMount("a")), "c1"); err != nil {
		t.Errorf("CheckVolumes in the same sandbox: %v", err)
	}
	if err := CheckVolumes(specOf(volumeMount("a")), "other"); err == nil {
		t.Error("CheckVolumes in another sandbox: no error")
	}
	if err := OpenVolumes("/run/runsc", specOf(volumeMount("a"), volumeMount("b")), "sub", "c1"); err != nil {
		t.Fatal(err)
	}
	var args []VolumeArg
	payload := []*os.File{os.Stdin}
	SendVolumes("sub", &args, &payload)
	if len(args) != 2 || len(payload) != 1+2 {
		t.Errorf("%d volumes and %d files, want 2 and 3: the image and lock of b", len(args), len(payload))
	}
	for _, a := range args {
		if shared := a.Name == "a"; a.HasLock == shared || a.HasImage == shared {
			t.Errorf("volume %+v; the sandbox has a already and b not", a)
		}
	}
	ForgetVolumes("sub")

	ForgetVolumes("c1")
	if err := OpenVolumes("/run/runsc", specOf(volumeMount("a")), "c4", "c4"); err != nil {
		t.Errorf("after the first container is gone: %v", err)
	}
	ForgetVolumes("c4")
}

func TestOpenVolumesErrors(t *testing.T) {
	useRegistry(t, "a")
	for _, test := range []struct {
		mount specs.Mount
		want  string
	}{
		{volumeMount("x"), `mount /x: volume "x" does not exist; create it with 'runsc-fs volume create x --size 10G'`},
		{volumeMount("a", "frob"), `mount /a: volume "a": unknown option "frob"; correct it or leave it out`},
		{volumeMount("a", "nr_inodes=many"), `mount /a: volume "a": option "nr_inodes=many": "many" is not a number of files from 1 to 1099511627776`},
	} {
		if err := OpenVolumes("/run/runsc", specOf(test.mount), "c", "c"); err == nil || err.Error() != test.want {
			t.Errorf("error %v\nwant  %s", err, test.want)
		}
		if list := openedFor("c"); list != nil {
			t.Errorf("%v is open after an error", list)
		}
	}
	if err := OpenVolumes("/run/runsc", specOf(specs.Mount{Type: "tmpfs", Destination: "/t"}), "c", "c"); err != nil || openedFor("c") != nil {
		t.Errorf("a container without volumes: %v", err)
	}
}

func TestMountOptions(t *testing.T) {
	o, err := mountOptions("v", []string{"ro", "nosuid", "nodev", "noexec", "noatime", "commit=7"})
	if err != nil {
		t.Fatal(err)
	}
	if !o.ReadOnly || !o.Flags.NoSUID || !o.Flags.NoDev || !o.Flags.NoExec || !o.Flags.NoATime {
		t.Errorf("flags are lost: %+v", o)
	}
	if have, want := o.GetFilesystemOptions.Data, "volume=v,commit=7"; have != want {
		t.Errorf("data %q, want %q", have, want)
	}
	o, err = mountOptions("v", []string{"strictatime"})
	if err != nil {
		t.Fatal(err)
	}
	if o.ReadOnly || o.Flags.NoATime || !strings.Contains(o.GetFilesystemOptions.Data, "strictatime") {
		t.Errorf("options %+v", o)
	}
}

// donor collects what a sandbox process would inherit.
type donor struct {
	flag  string
	files []*os.File
}

func (d *donor) DonateAndClose(flag string, files ...*os.File) { d.flag, d.files = flag, files }

// TestBootFlags follows volumes from the command line that the host makes
// through the sandbox's second execution of itself.
func TestMemoryConfig(t *testing.T) {
	const MiB = 1 << 20
	for _, c := range []struct {
		total        uint64
		arena, nodes int64
		names        int
	}{
		{0, sentry.DefaultArenaBytes, 0, 0},
		{1, 16 * MiB, 4 * MiB, 4096},
		{128 * MiB, 32 * MiB, 4 * MiB, 8192},
		{512 * MiB, 64 * MiB, 16 * MiB, 32768},
		{4096 * MiB, 512 * MiB, 64 * MiB, sentry.DefaultDentryCacheEntries},
		{1 << 62, 4096 * MiB, 64 * MiB, sentry.DefaultDentryCacheEntries},
	} {
		got := memoryConfig(c.total)
		if got.ArenaBytes != c.arena || got.NodeCacheBytes != c.nodes || got.DentryCacheEntries != c.names {
			t.Errorf("with %d bytes: arena %d, nodes %d, names %d", c.total, got.ArenaBytes, got.NodeCacheBytes, got.DentryCacheEntries)
		}
	}
}

func TestCheckSavable(t *testing.T) {
	spec := &specs.Spec{Mounts: []specs.Mount{{Type: "tmpfs", Source: "tmpfs", Destination: "/tmp"}}}
	if err := CheckSavable("c", spec); err != nil {
		t.Errorf("without volumes: %v", err)
	}
	spec.Mounts = append(spec.Mounts, specs.Mount{Type: FilesystemName, Source: "v", Destination: "/data"})
	if err := CheckSavable("c", spec); err == nil || !strings.Contains(err.Error(), `"v"`) {
		t.Errorf("with a volume: %v", err)
	}
}

func TestBootFlags(t *testing.T) {
	useRegistry(t, "a")
	if err := OpenVolumes("/run/runsc", specOf(volumeMount("a")), "c", "c"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ForgetVolumes("c") })
	var d donor
	cmd := exec.Command("runsc", "boot")
	if err := DonateVolumes("c", specOf(), &d, cmd); err != nil {
		t.Fatal(err)
	}
	if d.flag != volumeFDsFlag || len(d.files) != 2 || len(cmd.Args) != 3 {
		t.Fatalf("donated %q %v with arguments %q", d.flag, d.files, cmd.Args)
	}
	args := []string{cmd.Args[2], "--" + volumeFDsFlag + "=7", "--" + volumeFDsFlag + "=9"}
	for range 2 {
		boot.volumes, boot.fds = volumeArgs{}, nil
		f := flag.NewFlagSet("boot", flag.ContinueOnError)
		SetBootFlags(f)
		if err := f.Parse(args); err != nil {
			t.Fatal(err)
		}
		if !enabled() || len(boot.volumes.list) != 1 || boot.volumes.list[0] != openedFor("c")[0].arg {
			t.Errorf("the sandbox sees %+v", boot.volumes)
		}
		if !reflect.DeepEqual(boot.fds, intList{7, 9}) {
			t.Errorf("the sandbox sees descriptors %v", boot.fds)
		}
		args = nil
		f.Visit(func(f *flag.Flag) { args = append(args, "--"+f.Name+"="+f.Value.String()) })
	}
	boot.volumes, boot.fds = volumeArgs{}, nil
	if enabled() {
		t.Error("a sandbox without the flag is ready for volumes")
	}
}

func TestSandboxWithoutVolumesIsUntouched(t *testing.T) {
	useRegistry(t)
	pod := specOf()
	pod.Annotations = map[string]string{"io.kubernetes.cri.container-type": "sandbox"}
	for name, spec := range map[string]*specs.Spec{"container": specOf(), "pod on a host without volumes": pod} {
		var d donor
		cmd := exec.Command("runsc", "boot")
		if err := DonateVolumes("c", spec, &d, cmd); err != nil || d.files != nil || len(cmd.Args) != 2 {
			t.Errorf("%s: %v, %v, %q", name, err, d, cmd.Args)
		}
	}
	if n := SeccompRules().Size(); n != 0 {
		t.Errorf("%d system calls more are allowed", n)
	}
	if err := Setup(1 << 30); err != nil {
		t.Error(err)
	}
	if err := RegisterFilesystem(nil); err != nil {
		t.Error(err)
	}
	Shutdown()
	err := ReceiveVolumes([]VolumeArg{{Name: "v", HasLock: true}}, &[]*os.File{os.Stdin})
	if err == nil || !strings.Contains(err.Error(), "not made for blobfs volumes") {
		t.Errorf("volumes for a sandbox without: %v", err)
	}

	useRegistry(t, "a")
	cmd := exec.Command("runsc", "boot")
	if err := DonateVolumes("c", pod, &donor{}, cmd); err != nil || len(cmd.Args) != 3 || cmd.Args[2] != "--blobfs-volumes=[]" {
		t.Errorf("a pod on a host with volumes: %v, %q", err, cmd.Args)
	}
}

func TestStopSandbox(t *testing.T) {
	start := func(args ...string) *exec.Cmd {
		t.Helper()
		cmd := exec.Command("sh", append([]string{"-c", "sleep 60 & wait"}, args...)...)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			cmd.Process.Kill()
			cmd.Wait()
		})
		return cmd
	}
	plain := start()
	StopSandbox(plain.Process.Pid, func() error { t.Error("a sandbox without volumes is stopped by us"); return nil })
	if !isAlive(plain.Process.Pid) {
		t.Error("the process without volumes is gone")
	}

	withVolumes := start("--blobfs-volumes=[]")
	StopSandbox(withVolumes.Process.Pid, func() error { return withVolumes.Process.Kill() })
	if isAlive(withVolumes.Process.Pid) { // a zombie by now
		t.Error("the process is alive")
	}

	created := start("--blobfs-volumes=[]")
	begin := time.Now()
	StopSandbox(created.Process.Pid, func() error { return errors.New(`container "c" not started`) })
	if !isAlive(created.Process.Pid) || time.Since(begin) > stopTimeout/2 {
		t.Error("a sandbox that runs nothing is waited for")
	}
	StopSandbox(0, nil)
	StopSandbox(-1, nil)
}

// TestDeviceArgs: a device travels with two files and comes before the sandbox runs, or
// not at all.
func TestDeviceArgs(t *testing.T) {
	a := VolumeArg{Name: "v", Kind: "device", Device: &pcie.Handle{Address: "0000:03:00.0", API: pcie.APIGroup}, Namespace: 2, HasLock: true}
	if n := a.files(); n != 3 {
		t.Errorf("%d files, want the device's two and the lock", n)
	}
	before := volumeArgs{list: []VolumeArg{a}, set: true}
	var after volumeArgs
	if err := after.Set(before.String()); err != nil || !reflect.DeepEqual(before, after) {
		t.Errorf("%+v became %+v, %v", before, after, err)
	}
	boot.volumes = before
	t.Cleanup(func() { boot.volumes = volumeArgs{} })
	payload := []*os.File{os.Stdin, os.Stdin, os.Stdin}
	err := ReceiveVolumes([]VolumeArg{a}, &payload)
	if err == nil || !strings.Contains(err.Error(), "only the first container of a sandbox") || len(payload) != 3 {
		t.Errorf("a device for a running sandbox: %v", err)
	}
}

func TestAwaitFailed(t *testing.T) {
	begin := func() *exec.Cmd {
		cmd := exec.Command("sleep", "1")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Wait() })
		return cmd
	}
	plain := begin()
	AwaitFailed(specOf(), plain.Process.Pid)
	if !isAlive(plain.Process.Pid) {
		t.Error("a sandbox without volumes is waited for")
	}
	failed := begin()
	AwaitFailed(specOf(volumeMount("a")), failed.Process.Pid)
	if isAlive(failed.Process.Pid) { // a zombie by now
		t.Error("the sandbox of a failed start runs on")
	}
	AwaitFailed(specOf(volumeMount("a")), 0)
}

// TestReadOnlyVolumes opens images for reading only where nobody can want more.
func TestReadOnlyVolumes(t *testing.T) {
	reg := useRegistry(t)
	if _, err := reg.Create(registry.CreateSpec{Name: "a", SizeBytes: 32 << 20}); err != nil {
		t.Fatal(err)
	}
	ro := specOf(volumeMount("a", "ro"))
	pod := specOf(volumeMount("a", "ro"))
	pod.Annotations = map[string]string{"io.kubernetes.cri.container-type": "sandbox"}
	both := specOf(volumeMount("a", "ro"), volumeMount("a"))
	both.Mounts[1].Destination = "/again"
	for _, test := range []struct {
		name string
		spec *specs.Spec
		want bool
	}{
		{"a new volume takes over its first files", ro, false},
		{"all mounts are read-only", ro, true},
		{"a further container may join", pod, false},
		{"one mount is writable", both, false},
	} {
		if err := OpenVolumes("/run/runsc", test.spec, "c", "c"); err != nil {
			t.Fatalf("%s: %v", test.name, err)
		}
		v := openedFor("c")[0]
		if v.arg.ReadOnly != test.want {
			t.Errorf("%s: read-only is %v", test.name, v.arg.ReadOnly)
		}
		if flags, err := unix.FcntlInt(v.files[0].Fd(), unix.F_GETFL, 0); err != nil || (flags&unix.O_ACCMODE == unix.O_RDONLY) != test.want {
			t.Errorf("%s: the image is open with flags %#x (%v)", test.name, flags, err)
		}
		ForgetVolumes("c")
	}
	if v, err := reg.Get("a"); err != nil || v.PopulateFrom() != "" {
		t.Errorf("the volume has not taken over its first files: %v", err)
	}
}
