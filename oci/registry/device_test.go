package registry

import (
	"errors"
	"os"
	"strings"
	"testing"
)

// prepared is a call of Options.PrepareDevice.
type prepared struct {
	device          Device
	label           string
	existing, force bool
}

func withDevices(calls *[]prepared, err *error) func(*Options) {
	return func(o *Options) {
		o.PrepareDevice = func(d Device, label string, existing, force bool) (Device, int64, error) {
			*calls = append(*calls, prepared{d, label, existing, force})
			d.Model, d.Serial = "Flash", "SN1"
			return d, 64 << 20, *err
		}
	}
}

func TestDeviceVolume(t *testing.T) {
	var calls []prepared
	var fault error
	r := open(t, withDevices(&calls, &fault))
	v := create(t, r, CreateSpec{Name: "v", Device: &Device{Address: "0000:03:00.0"}})
	want := Device{Address: "0000:03:00.0", Namespace: 1, Model: "Flash", Serial: "SN1"}
	for _, v := range []*Volume{v, get(t, r, "v")} {
		if v.Kind() != KindDevice || v.Device() != want || v.SizeBytes() != 64<<20 || v.ImagePath() != "" {
			t.Errorf("%+v", v.Spec())
		}
		if info, err := v.Info(); err != nil || info.Device == nil || *info.Device != want || info.UsedBytes != 0 {
			t.Errorf("%+v, %v", info, err)
		}
		if v.PopulateFrom() == "" {
			t.Error("not to be populated")
		}
	}
	if call := (prepared{Device{Address: "0000:03:00.0", Namespace: 1}, "v", false, false}); len(calls) != 1 || calls[0] != call {
		t.Errorf("prepared %+v", calls)
	}

	// Another namespace is another volume, the same one is not.
	create(t, r, CreateSpec{Name: "w", Device: &Device{Address: "0000:03:00.0", Namespace: 2}, Force: true})
	if !calls[1].force {
		t.Error("force is lost")
	}
	_, err := r.Create(CreateSpec{Name: "x", Device: &Device{Address: "0000:03:00.0"}, Force: true})
	wantError(t, err, ErrDevice, `is volume "v" already; 'runsc-fs volume rm v'`)
	if len(calls) != 2 {
		t.Error("the device of a volume was formatted")
	}

	removed, err := r.Remove("v")
	if err != nil || removed.KeptDevice != want {
		t.Errorf("removed: %+v, %v", removed, err)
	}
	create(t, r, CreateSpec{Name: "x", Device: &Device{Address: "0000:03:00.0"}, Existing: true})
	if !calls[2].existing {
		t.Error("existing is lost")
	}

	fault = errors.New("device 0000:04:00.0 holds data")
	_, err = r.Create(CreateSpec{Name: "y", Device: &Device{Address: "0000:04:00.0"}})
	wantError(t, err, ErrDevice, "device 0000:04:00.0 holds data")
	if _, err := r.Get("y"); !errors.Is(err, ErrNotExist) {
		t.Errorf("a volume without its device: %v", err)
	}
}

func get(t *testing.T, r *Registry, name string) *Volume {
	t.Helper()
	v, err := r.Get(name)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestDeviceVolumeErrors(t *testing.T) {
	var calls []prepared
	var fault error
	r := open(t, withDevices(&calls, &fault))
	d := &Device{Address: "0000:03:00.0"}
	for _, test := range []struct {
		spec  CreateSpec
		class error
		text  string
	}{
		{CreateSpec{Kind: KindDevice}, ErrInvalidSpec, "address of its device is missing"},
		{CreateSpec{Kind: KindMemory, Device: d}, ErrInvalidSpec, "has no device"},
		{CreateSpec{Kind: KindImage, Device: d}, ErrInvalidSpec, "has no device"},
		{CreateSpec{Device: &Device{Address: "03:00.0"}}, ErrInvalidSpec, "looks like 0000:03:00.0"},
		{CreateSpec{Device: &Device{Address: "0000:03:00.0/x"}}, ErrInvalidSpec, "looks like 0000:03:00.0"},
		{CreateSpec{Device: d, Image: "/x"}, ErrInvalidSpec, "has no image"},
		{CreateSpec{Device: d, SizeBytes: 64 << 20}, ErrInvalidSize, "leave out the size"},
		{CreateSpec{Device: d, Existing: true, Force: true}, ErrInvalidSpec, "either the file system that exists"},
		{CreateSpec{Force: true}, ErrInvalidSpec, "only a volume on a device"},
		{CreateSpec{Existing: true}, ErrInvalidSpec, "only a volume on a device"},
	} {
		test.spec.Name = "v"
		_, err := r.Create(test.spec)
		wantError(t, err, test.class, test.text)
	}
	if calls != nil {
		t.Errorf("prepared %+v", calls)
	}
	create(t, r, CreateSpec{Name: "v", Device: d})
	path := r.volumePath("v") + "/" + specFile
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(strings.Replace(string(text), `"device": {`, `"devise": {`, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = r.Get("v")
	wantError(t, err, ErrDamaged, "names no device")
}
