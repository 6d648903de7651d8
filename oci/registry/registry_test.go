package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

const magic = "formatted as "

// testFormat writes something that testProbe knows.
func testFormat(path string, sizeBytes int64, label string) error {
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = file.WriteString(magic + label)
	return errors.Join(err, file.Close())
}

func testProbe(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	head := make([]byte, len(magic))
	if n, _ := file.ReadAt(head, 0); string(head[:n]) != magic {
		return errors.New("not a blobfs image")
	}
	return nil
}

func open(t *testing.T, change func(*Options)) *Registry {
	t.Helper()
	opts := Options{
		Root:   filepath.Join(t.TempDir(), "root"),
		Format: testFormat,
		Probe:  testProbe,
		Now:    func() time.Time { return time.Date(2026, 7, 1, 12, 0, 0, 0, time.FixedZone("", 7200)) },
	}
	if change != nil {
		change(&opts)
	}
	r, err := Open(opts)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func create(t *testing.T, r *Registry, spec CreateSpec) *Volume {
	t.Helper()
	volume, err := r.Create(spec)
	if err != nil {
		t.Fatal(err)
	}
	return volume
}

// wantError checks class and text, and that a user sees one line.
func wantError(t *testing.T, err, class error, text string) {
	t.Helper()
	if !errors.Is(err, class) || !strings.Contains(err.Error(), text) || strings.Contains(err.Error(), "\n") {
		t.Errorf("error %v, want one line with %q of class %q", err, text, class)
	}
}

// tree returns all paths below root.
func tree(t *testing.T, root string) []string {
	t.Helper()
	var paths []string
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err == nil && path != root {
			paths = append(paths, strings.TrimPrefix(path, root+"/"))
		}
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return paths
}

func mode(t *testing.T, path string) fs.FileMode {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Mode().Perm()
}

func TestImageVolume(t *testing.T) {
	r := open(t, nil)
	created := create(t, r, CreateSpec{Name: "pg", SizeBytes: 1<<30 + 1})
	volume, err := r.Get("pg")
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(volume.Spec(), created.Spec()) {
		t.Fatalf("got %+v, created %+v", volume.Spec(), created.Spec())
	}
	spec := volume.Spec()
	if spec.Kind != KindImage || spec.SizeBytes != 1<<30+4096 || spec.Version != 1 || len(spec.ID) != 32 ||
		!spec.CreatedAt.Equal(time.Date(2026, 7, 1, 10, 0, 0, 0, time.UTC)) {
		t.Errorf("spec %+v", spec)
	}
	info, err := os.Stat(volume.ImagePath())
	if err != nil || info.Size() != spec.SizeBytes {
		t.Fatalf("image: %v, %v", info, err)
	}
	if used, err := volume.UsedBytes(); err != nil || used > 1<<20 {
		t.Errorf("used %d, %v: the image is not sparse", used, err)
	}
	if err := testProbe(volume.ImagePath()); err != nil {
		t.Error(err)
	}
	for path, want := range map[string]fs.FileMode{
		r.volumesPath(): 0o700, filepath.Dir(volume.LockPath()): 0o700, volume.LockPath(): 0o600,
		volume.ImagePath(): 0o600, volume.Mountpoint(): 0o755,
		filepath.Join(filepath.Dir(volume.LockPath()), specFile): 0o600,
	} {
		if got := mode(t, path); got != want {
			t.Errorf("%s has mode %o, want %o", path, got, want)
		}
	}
	if entries, err := os.ReadDir(volume.Mountpoint()); err != nil || len(entries) != 0 {
		t.Errorf("the mountpoint is not an empty directory, which Docker copies into: %v, %v", entries, err)
	}
	if removed, err := r.Remove("pg"); err != nil || removed.KeptImage != "" {
		t.Fatalf("Remove: %+v, %v", removed, err)
	}
	if left := tree(t, r.volumesPath()); len(left) != 0 {
		t.Errorf("left behind: %q", left)
	}
	_, err = r.Get("pg")
	wantError(t, err, ErrNotExist, "volume \"pg\" does not exist")
	_, err = r.Remove("pg")
	wantError(t, err, ErrNotExist, `volume "pg" does not exist`)
}

func TestMemoryVolume(t *testing.T) {
	r := open(t, nil)
	volume := create(t, r, CreateSpec{Name: "m", Kind: KindMemory})
	if volume.ImagePath() != "" || volume.SizeBytes() != DefaultMemorySizeBytes {
		t.Errorf("%+v", volume.Spec())
	}
	if used, err := volume.UsedBytes(); used != 0 || err != nil {
		t.Errorf("used %d, %v", used, err)
	}
	if err := r.MarkPopulated("m"); err != nil {
		t.Fatal(err)
	}
	if volume, _ = r.Get("m"); volume.PopulateFrom() == "" {
		t.Error("a memory volume is empty in each sandbox, and must be populated in each")
	}
}

func TestDefaultsAndEnvironment(t *testing.T) {
	t.Setenv(RootEnv, "/some/../where")
	if r := open(t, func(o *Options) { o.Root = "" }); r.Root() != "/where" {
		t.Errorf("root %q", r.Root())
	}
	t.Setenv(RootEnv, "")
	if r := open(t, func(o *Options) { o.Root = "" }); r.Root() != DefaultRoot {
		t.Errorf("root %q", r.Root())
	}
	r := open(t, nil)
	if volumes, err := r.List(); err != nil || len(volumes) != 0 {
		t.Errorf("list of no registry: %v, %v", volumes, err)
	}
	if volume := create(t, r, CreateSpec{Name: "v"}); volume.SizeBytes() != DefaultImageSizeBytes {
		t.Errorf("default size %d", volume.SizeBytes())
	}
	if _, err := Open(Options{LockTimeout: -1}); err == nil {
		t.Error("negative timeout accepted")
	}
}

func TestCreateRefuses(t *testing.T) {
	r := open(t, nil)
	create(t, r, CreateSpec{Name: "there"})
	before := tree(t, r.Root())
	for _, test := range []struct {
		spec  CreateSpec
		class error
		text  string
	}{
		{CreateSpec{Name: "there"}, ErrExist, `volume "there" exists already`},
		{CreateSpec{Name: ""}, ErrInvalidName, "empty"},
		{CreateSpec{Name: "../x"}, ErrInvalidName, `"../x"`},
		{CreateSpec{Name: "v", SizeBytes: -1}, ErrInvalidSize, "too small"},
		{CreateSpec{Name: "v", SizeBytes: MinSizeBytes - 1}, ErrInvalidSize, "at least 16MiB"},
		{CreateSpec{Name: "v", SizeBytes: MaxSizeBytes + 1}, ErrInvalidSize, "at most 64TiB"},
		{CreateSpec{Name: "v", Kind: "disk"}, ErrInvalidSpec, `kind "disk"`},
		{CreateSpec{Name: "v", Kind: KindMemory, Image: "/x"}, ErrInvalidSpec, "memory volume has no image"},
	} {
		_, err := r.Create(test.spec)
		wantError(t, err, test.class, test.text)
	}
	if after := tree(t, r.Root()); !slices.Equal(before, after) {
		t.Errorf("before %q, after %q", before, after)
	}
}

func TestNames(t *testing.T) {
	for _, name := range []string{"a", "0", "pgdata", "A_b.c-d", strings.Repeat("x", 128)} {
		if err := CheckName(name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, name := range []string{"", ".", "..", ".x", "-x", "_x", "a/b", "a b", "a\n", "ü", "a\x00", strings.Repeat("x", 129)} {
		wantError(t, CheckName(name), ErrInvalidName, "volume name")
	}
}

func TestSizes(t *testing.T) {
	for text, want := range map[string]int64{
		"16M": 16 << 20, "16MiB": 16 << 20, "16mb": 16 << 20, "512 MiB": 512 << 20, "10G": 10 << 30,
		"1.5T": 3 << 39, "0.5g": 1 << 29, "1073741824": 1 << 30, "1073741824b": 1 << 30, "64T": 64 << 40,
		"16777217": 16<<20 + 4096, "20000000": 20000768, "20000k": 20000 << 10,
	} {
		if got, err := ParseSize(text); got != want || err != nil {
			t.Errorf("%q is %d, %v; want %d", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"": "not valid", "G": "not valid", "-1G": "not valid", "1X": "not valid", "1Gi": "not valid", "1 G B": "not valid",
		"1e9": "not valid", "0x10M": "not valid", ".5G": "not valid", "1.G": "not valid", "ten": "not valid", "NaN": "not valid",
		"1,5G": "not valid", "10G\n": "not valid", "9999999999999999999": "not valid",
		"0": "too small", "15.9M": "too small", "65T": "too large", "999999999999P": "too large", "999999999999999999": "too large",
	} {
		_, err := ParseSize(text)
		wantError(t, err, ErrInvalidSize, want)
	}
	if got := FormatSize(10 << 30); got != "10GiB" {
		t.Error(got)
	}
}

func TestFailedFormatLeavesNothing(t *testing.T) {
	outside := t.TempDir()
	for what, format := range map[string]func(string, int64, string) error{
		"error":   func(string, int64, string) error { return errors.New("no space left on device") },
		"shrunk":  func(path string, _ int64, _ string) error { return os.Truncate(path, 4096) },
		"removed": func(path string, _ int64, _ string) error { return os.Remove(path) },
		"none":    nil,
	} {
		r := open(t, func(o *Options) { o.Format = format })
		for _, image := range []string{"", filepath.Join(outside, "image")} {
			if _, err := r.Create(CreateSpec{Name: "v", Image: image}); err == nil {
				t.Errorf("%s: Create succeeded", what)
			}
		}
		if left := append(tree(t, r.volumesPath()), tree(t, outside)...); len(left) != 0 {
			t.Errorf("%s: left behind: %q", what, left)
		}
	}
}

// TestCrash stops Create dead at its longest step, as a power cut would, and wants the next process to
// find nothing of it.
func TestCrash(t *testing.T) {
	r := open(t, nil)
	create(t, r, CreateSpec{Name: "old", SizeBytes: MinSizeBytes})
	// Deferred clean-up does not run in a crash: keep a copy of what is there at that moment.
	atCrash := t.TempDir()
	crashing := open(t, func(o *Options) { o.Root = r.Root() })
	crashing.opts.Format = func(string, int64, string) error {
		if err := os.CopyFS(atCrash, os.DirFS(r.Root())); err != nil {
			t.Error(err)
		}
		return errors.New("power cut")
	}
	if _, err := crashing.Create(CreateSpec{Name: "new", SizeBytes: MinSizeBytes}); err == nil {
		t.Fatal("Create succeeded")
	}
	after := open(t, func(o *Options) { o.Root = atCrash })
	if left, err := filepath.Glob(filepath.Join(after.volumesPath(), tempPrefix+"*")); err != nil || len(left) != 1 {
		t.Fatalf("the copy shows nothing of a volume being made: %q, %v", left, err)
	}
	volumes, err := after.List()
	if err != nil || len(volumes) != 1 || volumes[0].Name() != "old" {
		t.Fatalf("after the crash: %v, %v", volumes, err)
	}
	_, err = after.Get("new")
	wantError(t, err, ErrNotExist, "does not exist")
	create(t, after, CreateSpec{Name: "new"})
	if left, _ := filepath.Glob(filepath.Join(after.volumesPath(), tempPrefix+"*")); len(left) != 0 {
		t.Errorf("left behind: %q", left)
	}
}

func TestDamage(t *testing.T) {
	r := open(t, nil)
	create(t, r, CreateSpec{Name: "good"})
	for name, content := range map[string]string{
		"garbage": "{", "future": `{"version":3,"name":"future","kind":"image"}`, "copied": `{"version":1,"name":"good","kind":"image"}`,
		"kind": `{"version":1,"name":"kind","kind":"tape"}`,
	} {
		volume := create(t, r, CreateSpec{Name: name})
		if err := os.WriteFile(filepath.Join(filepath.Dir(volume.LockPath()), specFile), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := r.Get(name)
		wantError(t, err, ErrDamaged, fmt.Sprintf("volume %q", name))
	}
	if err := os.Mkdir(r.volumePath("hollow"), 0o700); err != nil {
		t.Fatal(err)
	}
	_, err := r.Get("hollow")
	wantError(t, err, ErrDamaged, "'runsc-fs volume rm hollow'")
	volumes, err := r.List()
	if !errors.Is(err, ErrDamaged) || len(volumes) != 1 || volumes[0].Name() != "good" {
		t.Errorf("List: %v, %v", volumes, err)
	}
	for _, name := range []string{"garbage", "future", "copied", "kind", "hollow"} {
		if _, err := r.Remove(name); err != nil {
			t.Errorf("removal of %s: %v", name, err)
		}
	}
	if volumes, err := r.List(); err != nil || len(volumes) != 1 {
		t.Errorf("List: %v, %v", volumes, err)
	}
}

func TestConcurrentCreateAndRemove(t *testing.T) {
	r := open(t, nil)
	var created, removed sync.Map
	var group sync.WaitGroup
	for worker := range 8 {
		group.Go(func() {
			// Each worker has its own handle, as each process has.
			own := open(t, func(o *Options) { o.Root = r.Root() })
			for round := range 10 {
				name := fmt.Sprintf("v%d", (worker+round)%3)
				volume, err := own.Create(CreateSpec{Name: name, SizeBytes: MinSizeBytes})
				switch {
				case err == nil:
					if _, twice := created.LoadOrStore(volume.Spec().ID, name); twice {
						t.Errorf("id %s twice", volume.Spec().ID)
					}
				case !errors.Is(err, ErrExist):
					t.Errorf("Create: %v", err)
				}
				if _, err := own.List(); err != nil {
					t.Errorf("List: %v", err)
				}
				if _, err := own.Remove(name); err == nil {
					removed.Store(fmt.Sprint(worker, round), name)
				} else if !errors.Is(err, ErrNotExist) {
					t.Errorf("Remove: %v", err)
				}
			}
		})
	}
	group.Wait()
	volumes, err := r.List()
	if err != nil {
		t.Fatal(err)
	}
	count := func(m *sync.Map) (n int) {
		m.Range(func(_, _ any) bool { n++; return true })
		return n
	}
	if count(&created)-count(&removed) != len(volumes) {
		t.Errorf("%d created, %d removed, %d left", count(&created), count(&removed), len(volumes))
	}
	if left, _ := filepath.Glob(filepath.Join(r.volumesPath(), tempPrefix+"*")); len(left) != 0 {
		t.Errorf("left behind: %q", left)
	}
}

func TestBusyRegistry(t *testing.T) {
	r := open(t, func(o *Options) { o.LockTimeout = 10 * time.Millisecond })
	unlock, err := r.lock()
	if err != nil {
		t.Fatal(err)
	}
	_, err = r.Create(CreateSpec{Name: "v"})
	wantError(t, err, ErrBusy, "try again")
	unlock()
	create(t, r, CreateSpec{Name: "v"})
}

func TestInfo(t *testing.T) {
	r := open(t, nil)
	volume := create(t, r, CreateSpec{Name: "v"})
	held, err := volume.Acquire("abc")
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	info, err := volume.Info()
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(info)
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]any
	if err := json.Unmarshal(data, &fields); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]any{
		"name": "v", "kind": "image", "sizeBytes": float64(DefaultImageSizeBytes), "image": volume.ImagePath(),
		"inUse": true, "inUseBy": "abc", "mountpoint": volume.Mountpoint(), "createdAt": "2026-07-01T10:00:00Z",
	} {
		if fields[key] != want {
			t.Errorf("%s is %v, want %v", key, fields[key], want)
		}
	}
	if _, there := fields["usedBytes"]; !there {
		t.Errorf("no usedBytes in %s", data)
	}
}
