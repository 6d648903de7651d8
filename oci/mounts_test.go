package oci

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"runsc-fs/oci/registry"
)

func newRegistry(t *testing.T, names ...string) *registry.Registry {
	t.Helper()
	reg, err := registry.Open(registry.Options{Root: filepath.Join(t.TempDir(), "root")})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if _, err := reg.Create(registry.CreateSpec{Name: name, Kind: registry.KindMemory, SizeBytes: 1 << 30}); err != nil {
			t.Fatal(err)
		}
	}
	return reg
}

func mountpoint(t *testing.T, reg *registry.Registry, name string) string {
	t.Helper()
	volume, err := reg.Get(name)
	if err != nil {
		t.Fatal(err)
	}
	return volume.Mountpoint()
}

func copyOf(t *testing.T, spec *specs.Spec) *specs.Spec {
	t.Helper()
	data, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	duplicate := &specs.Spec{}
	if err := json.Unmarshal(data, duplicate); err != nil {
		t.Fatal(err)
	}
	return duplicate
}

func TestResolveMounts(t *testing.T) {
	reg := newRegistry(t, "pg", "other")
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(mountpoint(t, reg, "other"), link); err != nil {
		t.Fatal(err)
	}
	spec := &specs.Spec{Mounts: []specs.Mount{
		{Type: "proc", Source: "proc", Destination: "/proc"},
		{Type: "blobfs", Source: "pg", Destination: "/data/", Options: []string{"nosuid", "commit=1", "noatime"}},
		{Type: "bind", Source: mountpoint(t, reg, "pg"), Destination: "/var/lib/pg", Options: []string{"rbind", "rprivate", "ro"}},
		{Type: "bind", Source: "/etc/hosts", Destination: "/etc/hosts", Options: []string{"rbind", "strange=option"}},
		{Type: "none", Source: link, Destination: "/var/../other", Options: []string{"bind"}},
		{Type: "bind", Source: reg.Root(), Destination: "/root-of-it", Options: []string{"rbind"}},
		{Type: "tmpfs", Source: "pg", Destination: "/tmp"},
	}}
	original := copyOf(t, spec)
	shared := spec.Mounts
	mounts, err := ResolveMounts(spec, reg)
	if err != nil {
		t.Fatal(err)
	}
	want := []struct {
		index             int
		name, destination string
		options           MountOptions
	}{
		{1, "pg", "/data", MountOptions{NoSUID: true, CommitSeconds: 1, Atime: AtimeNever}},
		{2, "pg", "/var/lib/pg", MountOptions{ReadOnly: true, Atime: AtimeRelative}},
		{4, "other", "/other", MountOptions{Atime: AtimeRelative}},
	}
	if len(mounts) != len(want) {
		t.Fatalf("%d mounts: %+v", len(mounts), mounts)
	}
	for i, w := range want {
		m := mounts[i]
		if m.Index != w.index || m.Volume.Name() != w.name || m.Destination != w.destination || m.Options != w.options {
			t.Errorf("mount %d: %+v, want %+v", i, m, w)
		}
		rewritten := specs.Mount{Type: "blobfs", Source: w.name, Destination: w.destination, Options: w.options.Strings()}
		if got := spec.Mounts[w.index]; !reflect.DeepEqual(got, rewritten) {
			t.Errorf("mount %d became %+v, want %+v", w.index, got, rewritten)
		}
	}
	for _, i := range []int{0, 3, 5, 6} {
		if !reflect.DeepEqual(spec.Mounts[i], original.Mounts[i]) {
			t.Errorf("mount %d became %+v", i, spec.Mounts[i])
		}
	}
	if !reflect.DeepEqual(shared, original.Mounts) {
		t.Error("the caller's array was changed")
	}

	again := copyOf(t, spec)
	mountsAgain, err := ResolveMounts(again, reg)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(again, spec) || !reflect.DeepEqual(mountsAgain, mounts) {
		t.Errorf("the second time: %+v, the first time %+v", again.Mounts, spec.Mounts)
	}
}

func TestResolveNothing(t *testing.T) {
	reg := newRegistry(t)
	for _, spec := range []*specs.Spec{{}, {Mounts: []specs.Mount{{Type: "bind", Source: "/a", Destination: "/b"}, {Type: "bind", Source: "/c", Destination: "/b"}, {}}}} {
		original := copyOf(t, spec)
		mounts, err := ResolveMounts(spec, reg)
		if err != nil || len(mounts) != 0 || !reflect.DeepEqual(spec, original) {
			t.Errorf("%+v: %v, %v", spec, mounts, err)
		}
	}
}

func TestResolveErrors(t *testing.T) {
	reg := newRegistry(t, "v")
	source := mountpoint(t, reg, "v")
	blobfs := func(source, destination string, options ...string) []specs.Mount {
		return []specs.Mount{{Type: "blobfs", Source: source, Destination: destination, Options: options}}
	}
	bind := func(source, destination string, options ...string) []specs.Mount {
		return []specs.Mount{{Type: "bind", Source: source, Destination: destination, Options: append(options, "rbind")}}
	}
	ids := blobfs("v", "/d")
	ids[0].UIDMappings = []specs.LinuxIDMapping{{Size: 1}}
	for _, test := range []struct {
		mounts []specs.Mount
		want   string
	}{
		{[]specs.Mount{{Type: "blobsf", Source: "v", Destination: "/d"}}, `mount /d: type "blobsf" is not known, and the source is volume "v"; write the type "blobfs"`},
		{[]specs.Mount{{Source: "v", Destination: "/d"}}, `mount /d: type "" is not known, and the source is volume "v"; write the type "blobfs"`},
		{blobfs("x", "/d"), `mount /d: volume "x" does not exist; create it with 'runsc-fs volume create x --size 10G'`},
		{blobfs("", "/d"), "mount /d: the source is empty; it must be the name of a volume"},
		{blobfs("/etc", "/d"), `mount /d: volume name "/etc" is not valid`},
		{blobfs("../../etc", "/d"), `mount /d: volume name "../../etc" is not valid`},
		{blobfs("a\nb", "/d"), `mount /d: volume name "a\nb" is not valid`},
		{blobfs("v", ""), `mount "": the destination is empty`},
		{blobfs("v", "d"), "mount d: the destination is not an absolute path"},
		{blobfs("v", "d\n"), `mount "d\n": the destination is not an absolute path`},
		{blobfs("v", "/x/..", "ro"), `mount /x/..: volume "v" on the root directory takes what is written there, and so cannot be read-only; leave out the option "ro", or set root.readonly instead`},
		{blobfs("v", "/d", "ro", "fast"), `mount /d: volume "v": unknown option "fast"`},
		{blobfs("v", "/d", ""), `mount /d: volume "v": unknown option ""`},
		{blobfs("v", "/d", "fast=1"), `mount /d: volume "v": unknown option "fast=1"`},
		{blobfs("v", "/d", "ro=1"), `mount /d: volume "v": option "ro" takes no value`},
		{blobfs("v", "/d", "size"), `mount /d: volume "v": option "size" needs a value: size=...`},
		{blobfs("v", "/d", "size="), `option "size=" needs a value`},
		{blobfs("v", "/d", "size=big"), `option "size=big": size "big" is not valid`},
		{blobfs("v", "/d", "size=2G"), `option "size=2147483648" is more than the volume has, 1GiB`},
		{blobfs("v", "/d", "commit=0"), `option "commit=0": commit "0" is not a number of seconds`},
		{blobfs("v", "/d", "commit=5s"), `commit "5s" is not a number of seconds`},
		{blobfs("v", "/d", "cache=4k"), `cache "4k" is too small`},
		{blobfs("v", "/d", "inodes=0"), `option "inodes=0": "0" is not a number of files from 1 to 1099511627776`},
		{blobfs("v", "/d", "nr_inodes=2000000m"), `"2000000m" is not a number of files`},
		{blobfs("v", "/d", "nr_inodes=k"), `"k" is not a number of files`},
		{bind(source, "/d", "idmap"), `mount /d: volume "v": unknown option "idmap"`},
		{bind(source+"/sub", "/d"), `is a directory in volume "v"; only a whole volume can be mounted`},
		{bind(strings.Replace(source, "/v/", "/w/", 1), "/d"), `volume "w" does not exist`},
		{ids, `ID mappings are not supported on volume "v"`},
		{append(blobfs("v", "/d"), bind("/etc", "/e/../d/")...), `mount /d: volume "v" and another mount have this destination`},
		{append(blobfs("v", "/d"), bind(source, "/d")...), `mount /d: volume "v" and another mount have this destination`},
	} {
		spec := &specs.Spec{Mounts: test.mounts}
		original := copyOf(t, spec)
		mounts, err := ResolveMounts(spec, reg)
		if err == nil {
			t.Errorf("no error, want %q", test.want)
			continue
		}
		if mounts != nil || !errors.Is(err, ErrMount) || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("error %q, want one line with %q", err, test.want)
		}
		if !reflect.DeepEqual(copyOf(t, spec), original) {
			t.Errorf("%q: spec changed to %+v", test.want, spec.Mounts)
		}
	}
	_, err := ResolveMounts(&specs.Spec{Mounts: blobfs("x", "/d")}, reg)
	if !errors.Is(err, registry.ErrNotExist) {
		t.Errorf("class of %v", err)
	}
}

func TestOptions(t *testing.T) {
	relatime := MountOptions{Atime: AtimeRelative}
	for _, test := range []struct {
		options []string
		want    MountOptions
	}{
		{nil, relatime},
		{[]string{"rw", "defaults", "rbind", "bind", "rprivate", "private", "shared", "rshared", "slave", "rslave", "unbindable", "runbindable"}, relatime},
		{[]string{"ro", "noexec", "nosuid", "nodev", "noatime", "sync", "dirsync", "discard"},
			MountOptions{ReadOnly: true, NoExec: true, NoSUID: true, NoDev: true, Atime: AtimeNever, Sync: true, DirSync: true, Discard: true}},
		{[]string{"ro", "noexec", "nosuid", "nodev", "sync", "discard", "noatime", "rw", "exec", "suid", "dev", "async", "nodiscard", "relatime"}, MountOptions{Atime: AtimeRelative, NoDiscard: true}},
		{[]string{"nodiscard", "discard"}, MountOptions{Atime: AtimeRelative, Discard: true}},
		{[]string{"strictatime"}, MountOptions{Atime: AtimeStrict}},
		{[]string{"size=1G", "commit=30", "cache=64MiB"}, MountOptions{Atime: AtimeRelative, SizeBytes: 1 << 30, CommitSeconds: 30, CacheBytes: 64 << 20}},
	} {
		got, err := ParseOptions(test.options)
		if err != nil || got != test.want {
			t.Errorf("%q: %+v, %v; want %+v", test.options, got, err, test.want)
		}
		if again, err := ParseOptions(got.Strings()); err != nil || again != got {
			t.Errorf("%q read back: %+v, %v; want %+v", got.Strings(), again, err, got)
		}
	}
}
