package registry

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// testCreateLayer makes a file that says what lies below it. Reading a stack of
// them shows whether all its files are there and in order.
func testCreateLayer(path string, parents []string, sizeBytes int64) error {
	for _, parent := range parents {
		if _, err := os.Stat(parent); err != nil {
			return err
		}
	}
	return os.WriteFile(path, []byte("layer above "+filepath.Base(parents[len(parents)-1])), 0o600)
}

// testFlatten makes an image of the text of all layers.
func testFlatten(path, top string, parents []string) error {
	var text []string
	for _, file := range append(slices.Clone(parents), top) {
		b, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		text = append(text, strings.Trim(string(b), "\x00"))
	}
	return os.WriteFile(path, []byte(magic+strings.Join(text, "|")), 0o600)
}

func withLayers(o *Options) {
	o.CreateLayer, o.Flatten = testCreateLayer, testFlatten
	o.GrowImage = func(path string, sizeBytes int64) error { return os.Truncate(path, sizeBytes) }
	o.GrowVolume = func(*Volume) error { return nil }
	o.AskUser = func(User, string, int64) error { return nil }
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// checkRegistry wants every volume and snapshot to have all its files, each made
// for the one below it, and no file that nobody has. It returns what there is.
func checkRegistry(r *Registry) (state []string, err error) {
	volumes, err := r.List()
	if err != nil {
		return nil, err
	}
	had := map[string]bool{}
	chain := func(what string, layers []string) error {
		for i, layer := range layers {
			had[layer] = true
			b, err := os.ReadFile(r.layerPath(layer))
			if err != nil {
				return fmt.Errorf("%s: %w", what, err)
			}
			if want := "layer above "; i > 0 && string(b) != want+layers[i-1] {
				return fmt.Errorf("%s: layer %d lies on another", what, i)
			}
			if i == 0 && !strings.HasPrefix(string(b), magic) {
				return fmt.Errorf("%s: its base is no image", what)
			}
		}
		return nil
	}
	for _, v := range volumes {
		if v.Kind() == KindMemory {
			continue
		}
		if _, err := os.Stat(v.ImagePath()); err != nil {
			return nil, err
		}
		if err := chain(v.Name(), v.spec.Layers); err != nil {
			return nil, err
		}
		line := fmt.Sprintf("%s of %d", v.Name(), len(v.spec.Layers))
		if v.SizeBytes() != MinSizeBytes {
			line += fmt.Sprintf(", %d bytes", v.SizeBytes())
		}
		for _, s := range v.spec.Snapshots {
			if err := chain(v.Name()+"@"+s.Tag, s.Layers); err != nil {
				return nil, err
			}
			line += fmt.Sprintf(" @%s of %d", s.Tag, len(s.Layers))
		}
		if len(v.spec.Layers) > 0 {
			if _, err := os.Lstat(filepath.Join(v.dir, imageFile)); err == nil {
				return nil, fmt.Errorf("%s: its first image is still there", v.Name())
			}
		}
		state = append(state, line)
	}
	files, err := os.ReadDir(r.layersPath())
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	for _, f := range files {
		if !had[f.Name()] {
			return nil, fmt.Errorf("nobody has layers/%s", f.Name())
		}
	}
	return state, nil
}

func wantState(t *testing.T, r *Registry, want ...string) {
	t.Helper()
	if got, err := checkRegistry(r); err != nil || !slices.Equal(got, want) {
		t.Errorf("there is %q, %v; want %q", got, err, want)
	}
}

func TestSnapshotLife(t *testing.T) {
	r := open(t, withLayers)
	create(t, r, CreateSpec{Name: "pg", SizeBytes: MinSizeBytes})
	must(t, r.MarkPopulated("pg"))
	before := get(t, r, "pg").Spec()
	v, err := r.TakeSnapshot("pg", "a")
	must(t, err)
	if again := get(t, r, "pg"); !reflect.DeepEqual(again.Spec(), v.Spec()) {
		t.Errorf("returned %+v, stored %+v", v.Spec(), again.Spec())
	}
	if v.Spec().ID != before.ID || v.SizeBytes() != before.SizeBytes || !v.Spec().Populated {
		t.Errorf("the volume has become %+v", v.Spec())
	}
	wantState(t, r, "pg of 2 @a of 1")
	_, err = r.TakeSnapshot("pg", "b")
	must(t, err)
	clone := create(t, r, CreateSpec{Name: "trial", Clone: "pg@a"})
	wantState(t, r, "pg of 3 @a of 1 @b of 2", "trial of 2")
	if s := clone.Spec(); s.SizeBytes != MinSizeBytes || s.Origin.Snapshot != "pg@a" || s.ID == before.ID || !s.Populated {
		t.Errorf("the clone is %+v", s)
	}
	if note, err := os.ReadFile(filepath.Join(clone.Mountpoint(), populatedNoteName)); err != nil || !strings.Contains(string(note), "volume trial ") {
		t.Errorf("the mountpoint of a clone of a used volume says %q, %v", note, err)
	}
	if clone.PopulateFrom() != "" {
		t.Error("a clone of a used volume would be populated")
	}

	// What others need stays.
	wantError(t, r.RemoveSnapshot("pg", "a"), ErrDepends, `snapshot "pg@a" is the base of volume "trial"`)
	_, err = r.Remove("pg")
	wantError(t, err, ErrDepends, "'runsc-fs volume rm pg@a pg@b'")
	_, err = r.TakeSnapshot("trial", "c")
	must(t, err)
	_, err = r.Rollback("trial", "c")
	must(t, err)
	wantState(t, r, "pg of 3 @a of 1 @b of 2", "trial of 3 @c of 2")

	// A rollback keeps later snapshots.
	_, err = r.Rollback("pg", "a")
	must(t, err)
	wantState(t, r, "pg of 2 @a of 1 @b of 2", "trial of 3 @c of 2")
	must(t, r.RemoveSnapshot("pg", "b"))
	wantState(t, r, "pg of 2 @a of 1", "trial of 3 @c of 2")

	// A flat volume needs nothing below.
	must(t, r.RemoveSnapshot("trial", "c"))
	_, err = r.Flatten("trial")
	must(t, err)
	wantState(t, r, "pg of 2 @a of 1", "trial of 1")
	if b, _ := os.ReadFile(get(t, r, "trial").ImagePath()); !strings.HasPrefix(string(b), magic+magic+"pg|layer above") {
		t.Errorf("the flat image holds %q", b)
	}
	_, err = r.Flatten("trial")
	wantError(t, err, ErrInvalidSpec, "one file already")
	must(t, r.RemoveSnapshot("pg", "a"))
	wantState(t, r, "pg of 2", "trial of 1")
	for _, name := range []string{"pg", "trial"} {
		_, err := r.Remove(name)
		must(t, err)
	}
	if left := tree(t, r.layersPath()); len(left) != 0 {
		t.Errorf("left behind: %q", left)
	}
}

func TestSnapshotErrors(t *testing.T) {
	r := open(t, withLayers)
	outside := filepath.Join(t.TempDir(), "image")
	create(t, r, CreateSpec{Name: "mem", Kind: KindMemory})
	create(t, r, CreateSpec{Name: "out", Image: outside, SizeBytes: MinSizeBytes})
	v := create(t, r, CreateSpec{Name: "v", SizeBytes: MinSizeBytes})
	_, err := r.TakeSnapshot("v", "fresh")
	must(t, err)
	must(t, r.MarkPopulated("v"))
	create(t, r, CreateSpec{Name: "used", SizeBytes: MinSizeBytes})
	held, err := get(t, r, "used").Acquire("c1")
	must(t, err)
	defer held.Close()
	before := tree(t, r.Root())
	snapshot := func(name, tag string) error { _, err := r.TakeSnapshot(name, tag); return err }
	clone := func(spec CreateSpec) error { _, err := r.Create(spec); return err }
	rollback := func(name, tag string) error { _, err := r.Rollback(name, tag); return err }
	for _, c := range []struct {
		err, class error
		text       string
	}{
		{snapshot("mem", "a"), ErrInvalidSpec, `volume "mem" is in memory`},
		{snapshot("out", "a"), ErrInvalidSpec, "has its image outside the registry, at " + outside},
		{snapshot("none", "a"), ErrNotExist, `volume "none" does not exist`},
		{snapshot("v", "fresh"), ErrExist, `snapshot "v@fresh" exists already`},
		{snapshot("v", "a/b"), ErrInvalidName, "tag"},
		{snapshot("v", ""), ErrInvalidName, "tag"},
		{snapshot("used", "a"), ErrInUse, `volume "used" is in use by container c1; stop that first`},
		{rollback("v", "none"), ErrNotExist, `volume "v" has: fresh`},
		{rollback("used", "none"), ErrInUse, "stop that first"},
		{rollback("v", "fresh"), ErrInvalidSpec, "before the volume was used"},
		{r.RemoveSnapshot("v", "none"), ErrNotExist, `"v@none"`},
		{clone(CreateSpec{Name: "n", Clone: "v@none"}), ErrNotExist, `"v@none"`},
		{clone(CreateSpec{Name: "n", Clone: "v"}), ErrInvalidName, "VOLUME@TAG"},
		{clone(CreateSpec{Name: "v", Clone: "v@fresh"}), ErrExist, `volume "v" exists already`},
		{clone(CreateSpec{Name: "n", Clone: "v@fresh", SizeBytes: 2 * MinSizeBytes}), ErrInvalidSize, "leave out the size"},
		{clone(CreateSpec{Name: "n", Clone: "v@fresh", Kind: KindMemory}), ErrInvalidSpec, "in the registry"},
		{clone(CreateSpec{Name: "v@x"}), ErrInvalidName, "names a snapshot"},
	} {
		wantError(t, c.err, c.class, c.text)
	}
	if after := tree(t, r.Root()); !slices.Equal(before, after) {
		t.Errorf("before %q\nafter %q", before, after)
	}

	// A layer that cannot be made leaves the volume as it was.
	failing := open(t, func(o *Options) {
		o.Root = r.Root()
		o.CreateLayer = func(string, []string, int64) error { return errors.New("no space left on device") }
	})
	for what, do := range map[string]func() error{
		"snapshot": func() error { _, err := failing.TakeSnapshot("v", "b"); return err },
		"rollback": func() error { _, err := failing.Rollback("v", "b"); return err },
		"clone":    func() error { _, err := failing.Create(CreateSpec{Name: "n", Clone: "v@fresh"}); return err },
	} {
		if err := do(); err == nil || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), "volume") {
			t.Errorf("%s: %v", what, err)
		}
		if after := tree(t, r.Root()); !slices.Equal(before, after) {
			t.Errorf("%s: before %q\nafter %q", what, before, after)
		}
	}

	// The deepest volume.
	for i := len(get(t, r, "v").spec.Layers); i < MaxLayers; i++ {
		must(t, snapshot("v", fmt.Sprint("s", i)))
	}
	wantError(t, snapshot("v", "more"), ErrInvalidSpec, "'runsc-fs volume flatten v'")
	_, err = r.Flatten("v")
	must(t, err)
	must(t, snapshot("v", "more"))
	if v.Spec().ID != get(t, r, "v").Spec().ID {
		t.Error("flattening gave the volume another identity")
	}
}

// TestForeignLayersStay: what no volume seems to have is not removed because of
// that, as somebody may have moved a volume away by hand.
func TestForeignLayersStay(t *testing.T) {
	r := open(t, withLayers)
	create(t, r, CreateSpec{Name: "v", SizeBytes: MinSizeBytes})
	_, err := r.TakeSnapshot("v", "a")
	must(t, err)
	away := filepath.Join(t.TempDir(), "v")
	must(t, os.Rename(r.volumePath("v"), away))
	create(t, r, CreateSpec{Name: "w", SizeBytes: MinSizeBytes})
	_, err = r.TakeSnapshot("w", "a")
	must(t, err)
	must(t, os.Rename(away, r.volumePath("v")))
	wantState(t, r, "v of 2 @a of 1", "w of 2 @a of 1")

	// As long as a volume cannot be read, nothing is removed that it may have.
	create(t, r, CreateSpec{Name: "clone", Clone: "v@a"})
	path := filepath.Join(r.volumePath("clone"), specFile)
	text, err := os.ReadFile(path)
	must(t, err)
	must(t, os.WriteFile(path, []byte("{"), 0o600))
	wantError(t, r.RemoveSnapshot("v", "a"), ErrDamaged, `volume "clone"`)
	_, err = r.Rollback("v", "a")
	must(t, err)
	must(t, os.WriteFile(path, text, 0o600))
	create(t, r, CreateSpec{Name: "x", SizeBytes: MinSizeBytes}) // settles
	wantState(t, r, "clone of 2", "v of 2 @a of 1", "w of 2 @a of 1", "x of 0")
}

func TestDamagedLayers(t *testing.T) {
	r := open(t, withLayers)
	create(t, r, CreateSpec{Name: "v", SizeBytes: MinSizeBytes})
	_, err := r.TakeSnapshot("v", "a")
	must(t, err)
	path := filepath.Join(r.volumePath("v"), specFile)
	good, err := os.ReadFile(path)
	must(t, err)
	for what, change := range map[string]func(s *Spec){
		"version 1":    func(s *Spec) { s.Version = 1 },
		"no layers":    func(s *Spec) { s.Layers = nil },
		"escape":       func(s *Spec) { s.Layers[0] = "../../../etc/passwd" },
		"empty chain":  func(s *Spec) { s.Snapshots[0].Layers = nil },
		"same tag":     func(s *Spec) { s.Snapshots = append(s.Snapshots, s.Snapshots[0]) },
		"tag":          func(s *Spec) { s.Snapshots[0].Tag = "a b" },
		"memory":       func(s *Spec) { s.Kind = KindMemory },
		"outside":      func(s *Spec) { s.Image = "/x" },
		"endless":      func(s *Spec) { s.Layers = slices.Repeat(s.Layers, 40) },
		"escape below": func(s *Spec) { s.Snapshots[0].Layers = []string{"."} },
	} {
		var spec Spec
		must(t, json.Unmarshal(good, &spec))
		change(&spec)
		text, err := json.Marshal(&spec)
		must(t, err)
		must(t, os.WriteFile(path, text, 0o600))
		_, err = r.Get("v")
		wantError(t, err, ErrDamaged, `volume "v"`)
		if err == nil {
			t.Error(what)
		}
	}
}

func TestSnapshotInfo(t *testing.T) {
	r := open(t, withLayers)
	create(t, r, CreateSpec{Name: "v", SizeBytes: MinSizeBytes})
	for _, tag := range []string{"a", "b"} {
		_, err := r.TakeSnapshot("v", tag)
		must(t, err)
	}
	create(t, r, CreateSpec{Name: "c", Clone: "v@a"})
	grow := func(layer string, kib int) {
		t.Helper()
		f, err := os.OpenFile(r.layerPath(layer), os.O_WRONLY|os.O_APPEND, 0)
		must(t, err)
		_, err = f.Write(make([]byte, kib<<10))
		must(t, errors.Join(err, f.Sync(), f.Close()))
	}
	v := get(t, r, "v")
	for i, kib := range []int{100, 200, 400} {
		grow(v.spec.Layers[i], kib)
	}
	info, err := v.Info()
	must(t, err)
	near := func(what string, got int64, kib int64) {
		t.Helper()
		if got < kib<<10 || got > (kib+16)<<10 {
			t.Errorf("%s has %d bytes, want %d KiB", what, got, kib)
		}
	}
	near("the volume", info.UsedBytes, 400)
	near("snapshot a", info.Snapshots[0].UsedBytes, 100)
	near("snapshot b", info.Snapshots[1].UsedBytes, 200)
	if len(info.Layers) != 3 || info.Layers[0].Snapshot != "a" || info.Layers[1].Snapshot != "b" || info.Layers[2].Path != v.ImagePath() {
		t.Errorf("layers: %+v", info.Layers)
	}
	if !slices.Equal(info.Snapshots[0].Clones, []string{"c"}) || len(info.Snapshots[1].Clones) != 0 {
		t.Errorf("clones: %+v", info.Snapshots)
	}
	text, err := json.Marshal(info)
	must(t, err)
	var fields struct {
		Layers    []struct{ Path string }
		Snapshots []struct{ Tag string }
	}
	if err := json.Unmarshal(text, &fields); err != nil || fields.Layers[0].Path == "" || fields.Snapshots[1].Tag != "b" {
		t.Errorf("inspect prints %s, %v", text, err)
	}
	clone, err := get(t, r, "c").Info()
	must(t, err)
	near("the clone", clone.UsedBytes, 0)
	// Without the snapshot its layer belongs to the volume.
	must(t, r.RemoveSnapshot("v", "b"))
	if info, err = get(t, r, "v").Info(); err != nil {
		t.Fatal(err)
	}
	near("the volume without snapshot b", info.UsedBytes, 600)
}
