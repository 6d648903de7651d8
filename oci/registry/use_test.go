package registry

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

func TestExclusiveUse(t *testing.T) {
	r := open(t, nil)
	volume := create(t, r, CreateSpec{Name: "v"})
	if holder, inUse, err := volume.Holder(); holder != "" || inUse || err != nil {
		t.Fatalf("unused: %q, %v, %v", holder, inUse, err)
	}
	held, err := volume.Acquire("first")
	if err != nil {
		t.Fatal(err)
	}
	_, err = volume.Acquire("second")
	wantError(t, err, ErrInUse, `volume "v" is in use by container first`)
	if holder, inUse, err := volume.Holder(); holder != "first" || !inUse || err != nil {
		t.Fatalf("used: %q, %v, %v", holder, inUse, err)
	}
	_, err = r.Remove("v")
	wantError(t, err, ErrInUse, `volume "v" is in use by container first`)
	if _, err := os.Stat(volume.ImagePath()); err != nil {
		t.Fatal(err)
	}
	held.Close()
	// The name of the last holder is still in the file, and means nothing.
	if holder, inUse, err := volume.Holder(); holder != "" || inUse || err != nil {
		t.Fatalf("free again: %q, %v, %v", holder, inUse, err)
	}
	held, err = volume.Acquire("3")
	if err != nil {
		t.Fatal(err)
	}
	if holder, _, _ := volume.Holder(); holder != "3" {
		t.Fatalf("holder %q: a longer name shows through", holder)
	}
	held.Close()
	if _, err := r.Remove("v"); err != nil {
		t.Fatal(err)
	}
	_, err = volume.Acquire("late")
	wantError(t, err, ErrNotExist, "has been removed")
}

// TestProbesDoNotDisturb asks for the holder all the time while others take the volume: whoever takes it
// alone must get it.
func TestProbesDoNotDisturb(t *testing.T) {
	r := open(t, nil)
	volume := create(t, r, CreateSpec{Name: "v"})
	stop := make(chan struct{})
	var group sync.WaitGroup
	for range 2 {
		group.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, _, err := volume.Holder(); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 100 {
		held, err := volume.Acquire("c")
		if err != nil {
			t.Errorf("Acquire: %v", err)
			break
		}
		held.Close()
	}
	close(stop)
	group.Wait()
}

func TestExternalImage(t *testing.T) {
	r := open(t, nil)
	dir := t.TempDir()
	made := filepath.Join(dir, "made.img")
	volume := create(t, r, CreateSpec{Name: "made", Image: made, SizeBytes: 64 << 20})
	if volume.ImagePath() != made || !volume.External() {
		t.Errorf("%+v", volume.Spec())
	}
	if info, err := os.Stat(made); err != nil || info.Size() != 64<<20 || info.Mode().Perm() != 0o600 {
		t.Errorf("image: %v, %v", info, err)
	}
	alias := filepath.Join(dir, "alias.img")
	if err := os.Symlink(made, alias); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{made, alias} {
		_, err := r.Create(CreateSpec{Name: "again", Image: path})
		wantError(t, err, ErrImage, `is the image of volume "made" already`)
	}
	removed, err := r.Remove("made")
	if err != nil || removed.KeptImage != made {
		t.Fatalf("Remove: %+v, %v", removed, err)
	}
	if err := testProbe(made); err != nil {
		t.Fatalf("the image after the removal of its volume: %v", err)
	}
	if again := create(t, r, CreateSpec{Name: "again", Image: made}); again.SizeBytes() != 64<<20 {
		t.Errorf("size %d", again.SizeBytes())
	}

	if _, err := r.Remove("again"); err != nil {
		t.Fatal(err)
	}
	if aliased := create(t, r, CreateSpec{Name: "again", Image: alias}); aliased.ImagePath() != made {
		t.Errorf("through a link the image is %s", aliased.ImagePath())
	}

	foreign := filepath.Join(dir, "foreign")
	content := strings.Repeat("x", MinSizeBytes)
	if err := os.WriteFile(foreign, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	small := filepath.Join(dir, "small")
	if err := os.WriteFile(small, []byte(magic), 0o644); err != nil {
		t.Fatal(err)
	}
	dangling := filepath.Join(dir, "dangling")
	if err := os.Symlink(filepath.Join(dir, "nowhere"), dangling); err != nil {
		t.Fatal(err)
	}
	inside := filepath.Join(r.Root(), "inside")
	into := filepath.Join(dir, "into")
	if err := os.Symlink(create(t, r, CreateSpec{Name: "own"}).ImagePath(), into); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		spec  CreateSpec
		class error
		text  string
	}{
		{CreateSpec{Image: foreign}, ErrImage, "foreign cannot be used: not a blobfs image"},
		{CreateSpec{Image: foreign, SizeBytes: 1 << 30}, ErrInvalidSize, "has 16777216 bytes"},
		{CreateSpec{Image: small}, ErrInvalidSize, "too small"},
		{CreateSpec{Image: dir}, ErrImage, "not a regular file"},
		{CreateSpec{Image: "/dev/null"}, ErrImage, "not a regular file"},
		{CreateSpec{Image: dangling}, ErrImage, "symbolic link to nothing"},
		{CreateSpec{Image: filepath.Join(dir, "no", "image")}, ErrImage, "no such file or directory"},
		{CreateSpec{Image: inside}, ErrImage, "lies in the volume root"},
		{CreateSpec{Image: into}, ErrImage, "lies in the volume root"},
		{CreateSpec{Image: filepath.Join(dir, "huge"), SizeBytes: MaxSizeBytes + 1}, ErrInvalidSize, "too large"},
	} {
		test.spec.Name = "v"
		_, err := r.Create(test.spec)
		wantError(t, err, test.class, test.text)
	}
	if data, err := os.ReadFile(foreign); err != nil || string(data) != content {
		t.Errorf("the foreign file was changed: %v", err)
	}
	if left := tree(t, dir); len(left) != 6 {
		t.Errorf("files: %q", left)
	}
}

func TestFailedRegistrationRemovesNewImage(t *testing.T) {
	r := open(t, nil)
	image := filepath.Join(t.TempDir(), "image")
	r.opts.Format = func(path string, sizeBytes int64, label string) error {
		// Something takes the name in the registry after it was looked at.
		if err := os.MkdirAll(filepath.Join(r.volumePath("v"), "x"), 0o700); err != nil {
			return err
		}
		return testFormat(path, sizeBytes, label)
	}
	if _, err := r.Create(CreateSpec{Name: "v", Image: image}); err == nil {
		t.Fatal("Create succeeded")
	}
	if _, err := os.Lstat(image); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the new image is left: %v", err)
	}
}

func TestLocate(t *testing.T) {
	r := open(t, nil)
	volume := create(t, r, CreateSpec{Name: "v"})
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(volume.Mountpoint(), link); err != nil {
		t.Fatal(err)
	}
	rootLink := filepath.Join(t.TempDir(), "root")
	if err := os.Symlink(r.Root(), rootLink); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(volume.Mountpoint(), "a", "b"), 0o755); err != nil {
		t.Fatal(err)
	}
	for path, wantSub := range map[string]string{
		volume.Mountpoint():                    "",
		volume.Mountpoint() + "/":              "",
		volume.Mountpoint() + "/../mountpoint": "",
		link:                                   "",
		filepath.Join(rootLink, "volumes/v/mountpoint"): "",
		volume.Mountpoint() + "/a/b":                    "a/b",
		link + "/a":                                     "a",
		volume.Mountpoint() + "/absent":                 "absent",
	} {
		got, sub, ok, err := r.Locate(path)
		if err != nil || !ok || got.Name() != "v" || sub != wantSub {
			t.Errorf("%s: %v, %q, %v, %v; want sub %q", path, got, sub, ok, err, wantSub)
		}
	}
	for _, path := range []string{"/", "/etc", "relative", "", r.Root(), r.volumesPath(), filepath.Dir(volume.Mountpoint()), volume.ImagePath(), r.Root() + "-other/volumes/v/mountpoint"} {
		if _, _, ok, err := r.Locate(path); ok || err != nil {
			t.Errorf("%q: %v, %v", path, ok, err)
		}
	}
	_, _, _, err := r.Locate(filepath.Join(r.volumesPath(), "absent", "mountpoint"))
	wantError(t, err, ErrNotExist, `volume "absent" does not exist`)
	// A volume of another registry is no ordinary directory.
	elsewhere := open(t, func(o *Options) { o.Root = filepath.Join(t.TempDir(), "other") })
	for _, path := range []string{volume.Mountpoint(), volume.Mountpoint() + "/a", link} {
		_, _, ok, err := elsewhere.Locate(path)
		wantError(t, err, ErrNotExist, `belongs to volume "v" of another registry, `+r.Root())
		if ok {
			t.Errorf("%s is found in a registry that does not have it", path)
		}
	}
	// Through a root that is a link the registry is the same.
	other := open(t, func(o *Options) { o.Root = rootLink })
	if got, _, ok, err := other.Locate(volume.Mountpoint()); err != nil || !ok || got.Name() != "v" {
		t.Errorf("through the link: %v, %v, %v", got, ok, err)
	}
}

func TestMarkPopulated(t *testing.T) {
	r := open(t, nil)
	volume := create(t, r, CreateSpec{Name: "v"})
	if volume.PopulateFrom() != volume.Mountpoint() {
		t.Fatalf("new volume is populated from %q", volume.PopulateFrom())
	}
	if err := os.WriteFile(filepath.Join(volume.Mountpoint(), "from-image"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	check := func(when string) {
		t.Helper()
		if err := r.MarkPopulated("v"); err != nil {
			t.Fatalf("%s: %v", when, err)
		}
		volume, err := r.Get("v")
		if err != nil || volume.PopulateFrom() != "" {
			t.Fatalf("%s: populated from %q, %v", when, volume.PopulateFrom(), err)
		}
		note, err := os.ReadFile(filepath.Join(volume.Mountpoint(), populatedNoteName))
		if err != nil || !strings.Contains(string(note), "volume v ") {
			t.Errorf("%s: note %q, %v", when, note, err)
		}
		if _, err := os.Stat(filepath.Join(filepath.Dir(volume.LockPath()), copiedInDir, "from-image")); err != nil {
			t.Errorf("%s: what was copied in is not kept: %v", when, err)
		}
		if mode(t, volume.Mountpoint()) != 0o755 {
			t.Errorf("%s: mode %o", when, mode(t, volume.Mountpoint()))
		}
		if strays, err := volume.Strays(); len(strays) != 0 || err != nil {
			t.Errorf("%s: strays %q, %v", when, strays, err)
		}
	}
	check("first")
	check("again")
	populated, err := r.Get("v")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(populated.Mountpoint(), "stray"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if strays, err := populated.Strays(); len(strays) != 1 || strays[0] != "stray" || err != nil {
		t.Errorf("strays %q, %v", strays, err)
	}
	if err := r.MarkPopulated("absent"); !errors.Is(err, ErrNotExist) {
		t.Errorf("absent volume: %v", err)
	}
}

// TestMarkPopulatedAfterCrash takes the marking up again from each state that a crash may leave.
func TestMarkPopulatedAfterCrash(t *testing.T) {
	for state, crash := range map[string]func(v *Volume, aside string) error{
		"note being made": func(_ *Volume, aside string) error { return os.Mkdir(aside, 0o700) },
		"note made": func(_ *Volume, aside string) error {
			return errors.Join(os.Mkdir(aside, 0o755), os.WriteFile(filepath.Join(aside, populatedNoteName), []byte("x"), 0o644))
		},
		"exchanged": func(v *Volume, aside string) error { return v.exchangeMountpoint(aside) },
		"renamed": func(v *Volume, aside string) error {
			return errors.Join(v.exchangeMountpoint(aside), os.Rename(aside, filepath.Join(v.dir, copiedInDir)))
		},
	} {
		t.Run(state, func(t *testing.T) {
			r := open(t, nil)
			volume := create(t, r, CreateSpec{Name: "v"})
			if err := os.WriteFile(filepath.Join(volume.Mountpoint(), "from-image"), nil, 0o644); err != nil {
				t.Fatal(err)
			}
			if err := crash(volume, filepath.Join(volume.dir, tempPrefix+mountpointDir)); err != nil {
				t.Fatal(err)
			}
			if err := r.MarkPopulated("v"); err != nil {
				t.Fatal(err)
			}
			volume, err := r.Get("v")
			if err != nil || volume.PopulateFrom() != "" {
				t.Fatalf("%+v, %v", volume, err)
			}
			if _, err := os.Stat(filepath.Join(volume.dir, copiedInDir, "from-image")); err != nil {
				t.Errorf("what was copied in: %v", err)
			}
			if strays, err := volume.Strays(); len(strays) != 0 || err != nil {
				t.Errorf("strays %q, %v", strays, err)
			}
		})
	}
}
