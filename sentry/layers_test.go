package sentry

import (
	"os"
	"path/filepath"
	"testing"

	"gvisor.dev/gvisor/pkg/abi/linux"

	"runsc-fs/nvme/layers"
)

// TestClonesInOneSandbox mounts a volume and a clone of it beside each other.
func TestClonesInOneSandbox(t *testing.T) {
	e := newEnv(t)
	const size = 64 << 20
	base := testImage(t, size)
	add := func(name string, paths []string, isNew bool) {
		t.Helper()
		spec := VolumeSpec{Name: name, Kind: KindImage, New: isNew}
		for _, p := range paths[:len(paths)-1] {
			spec.Parents = append(spec.Parents, openImage(t, p, os.O_RDONLY))
		}
		spec.File = openImage(t, paths[len(paths)-1], os.O_RDWR)
		if err := AddVolume(spec); err != nil {
			t.Fatal(err)
		}
	}
	mount := func(name string) {
		t.Helper()
		e.mkdir(name)
		if err := e.mount(name, name, false, ""); err != nil {
			t.Fatal(err)
		}
	}
	add("base", []string{base}, true)
	mount("base")
	e.create("base/f", "old")
	wantErrno(t, "umount", e.umount("base"), nil)

	layer := func() []string {
		t.Helper()
		path := filepath.Join(t.TempDir(), "layer")
		f, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		below := openImage(t, base, os.O_RDONLY)
		defer below.Close()
		if err := layers.Create(f, []*os.File{below}, size); err != nil {
			t.Fatal(err)
		}
		return []string{base, path}
	}
	var ids []linux.Statfs
	for _, name := range []string{"one", "two"} {
		add(name, layer(), false)
		mount(name)
		if got := e.content(name + "/f"); got != "old" {
			t.Errorf("clone %s reads %q", name, got)
		}
		e.create(name+"/own", name)
		st, err := e.vfs.StatFSAt(e.ctx, e.ctx.creds, e.pop(name))
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, st)
	}
	if ids[0].FSID == ids[1].FSID {
		t.Errorf("both clones have f_fsid %v", ids[0].FSID)
	}
	for _, name := range []string{"one", "two"} {
		if got := e.content(name + "/own"); got != name {
			t.Errorf("clone %s reads %q", name, got)
		}
		wantErrno(t, "umount", e.umount(name), nil)
	}
	if err := AddVolume(VolumeSpec{Name: "m", Kind: KindMemory, SizeBytes: size, Parents: []*os.File{openImage(t, base, os.O_RDONLY)}}); err == nil {
		t.Error("a memory volume with layers is accepted")
	}
}
