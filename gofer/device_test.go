package gofer

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"runsc-fs/blobfs"
	"runsc-fs/blobfs/format"
	"runsc-fs/blobfs/fsck"
	"runsc-fs/nvme"
	"runsc-fs/nvme/pcie"
	"runsc-fs/nvme/soft"
)

// testDevice is an NVMe device with two namespaces whose content outlives the transports
// to it. One process at a time can have it.
type testDevice struct {
	serial     string
	namespaces [2]lastingBacking
	open       bool
}

type lastingBacking struct{ soft.Backing }

func (lastingBacking) Close() error { return nil }

// borrowed gives the device back when it is closed.
type borrowed struct {
	*soft.Controller
	d *testDevice
}

func (b borrowed) Close() error {
	b.d.open = false
	return b.Controller.Close()
}

var testSpec = DeviceSpec{Address: "0000:03:00.0", Namespace: 1}

const testDeviceBytes = 32 << 20

// useDevice makes the device at the address of testSpec a controller in software.
func useDevice(t *testing.T) *testDevice {
	t.Helper()
	d := &testDevice{serial: "SN1"}
	for i := range d.namespaces {
		b, err := soft.NewMemoryBacking(testDeviceBytes)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { b.Close() })
		d.namespaces[i] = lastingBacking{b}
	}
	before := openTransport
	t.Cleanup(func() { openTransport = before })
	openTransport = func(addr pcie.Address, arena *nvme.Arena) (nvme.Transport, error) {
		switch {
		case string(addr) != testSpec.Address:
			return before(addr, arena)
		case d.open:
			return nil, pcie.ErrInUse
		}
		c, err := soft.New(arena, []soft.Backing{d.namespaces[0], d.namespaces[1]}, soft.Options{Serial: d.serial, LBASizeBytes: 512})
		if err != nil {
			return nil, err
		}
		d.open = true
		return borrowed{c, d}, nil
	}
	return d
}

// wantDeviceError checks class and text of a one-line error that names the device.
func wantDeviceError(t *testing.T, err, class error, text string) {
	t.Helper()
	if !errors.Is(err, class) || !strings.Contains(err.Error(), text) || !strings.Contains(err.Error(), "device 0000:03:00.0 namespace") || strings.Contains(err.Error(), "\n") {
		t.Errorf("error %v, want one line that is %v and has %q", err, class, text)
	}
}

func TestFormatDevice(t *testing.T) {
	d := useDevice(t)
	info, err := FormatDevice(testSpec, "v", false)
	if err != nil {
		t.Fatal(err)
	}
	if info.Serial != "SN1" || info.Model == "" || info.SizeBytes != testDeviceBytes {
		t.Errorf("%+v", info)
	}
	if again, err := ProbeDevice(testSpec); err != nil || again != info {
		t.Errorf("probe: %+v, %v", again, err)
	}
	_, err = FormatDevice(testSpec, "v", false)
	wantDeviceError(t, err, ErrDevice, "holds a blobfs; --force destroys it")
	if _, err := FormatDevice(testSpec, "v", true); err != nil {
		t.Error(err)
	}

	// The other namespace is untouched.
	other := testSpec
	other.Namespace = 2
	_, err = ProbeDevice(other)
	wantDeviceError(t, err, format.ErrNotBlobfs, "holds no blobfs")
	inspect := func(spec DeviceSpec, do func(dev nvme.BlockDevice)) {
		t.Helper()
		if err := InspectDevice(spec, func(dev nvme.BlockDevice) error { do(dev); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	write := func(off int64, text string) {
		inspect(other, func(dev nvme.BlockDevice) {
			page, err := dev.Arena().Alloc(1)
			if err != nil {
				t.Fatal(err)
			}
			clear(page)
			copy(page[off%4096:], text)
			if err := dev.Do([]nvme.Request{{Op: nvme.OpWrite, OffsetBytes: off &^ 4095, Vec: [][]byte{page}}}); err != nil {
				t.Error(err)
			}
		})
	}
	write(900<<10, "x")
	_, err = FormatDevice(other, "v", false)
	wantDeviceError(t, err, ErrDevice, "holds data of an unknown kind; --force destroys it")
	write(0, "XFSB")
	_, err = FormatDevice(other, "v", false)
	wantDeviceError(t, err, ErrDevice, "holds an XFS file system; --force destroys it")
	inspect(testSpec, func(dev nvme.BlockDevice) {
		if report, err := fsck.Check(dev, fsck.Options{}); err != nil || !report.Clean {
			t.Errorf("the first namespace: %+v, %v", report, err)
		}
	})

	other.Namespace = 3
	_, err = FormatDevice(other, "v", true)
	wantDeviceError(t, err, ErrDevice, "does not exist; 'runsc-fs device ls --json'")
	if d.open {
		t.Error("a function left the device open")
	}
}

func TestDeviceVolume(t *testing.T) {
	d := useDevice(t)
	info, err := FormatDevice(testSpec, "v", false)
	if err != nil {
		t.Fatal(err)
	}
	spec := VolumeSpec{Name: "v", Kind: KindDevice, Device: testSpec, SizeBytes: info.SizeBytes}
	spec.Device.Serial = info.Serial
	v, err := OpenVolume(spec)
	if err != nil {
		t.Fatal(err)
	}
	from := t.TempDir()
	if err := os.WriteFile(filepath.Join(from, "hello"), []byte("hello"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := Populate(v, from); err != nil {
		t.Fatal(err)
	}
	o, err := v.openOffline()
	if err != nil {
		t.Fatal(err)
	}
	fs, err := blobfs.Mount(o.device, blobfs.MountOptions{})
	if err != nil {
		t.Fatal(err)
	}
	names := ""
	root := fs.Root()
	if err := root.ReadDir(0, func(e blobfs.Dirent) bool { names += e.Name + " "; return true }); err != nil || !strings.Contains(names, "hello ") {
		t.Errorf("the volume has %q, %v", names, err)
	}
	root.DecRef()
	_, err = ProbeDevice(testSpec) // as another process would
	if !errors.Is(err, ErrInUse) {
		t.Errorf("a device that is open: %v", err)
	}
	if err := errors.Join(fs.Close(), o.close()); err != nil {
		t.Error(err)
	}
	v.Close()

	wrong := spec
	wrong.SizeBytes += 4096
	_, err = OpenVolume(wrong)
	wantDeviceError(t, err, ErrDevice, "it was changed from outside")
	d.serial = "SN2"
	_, err = OpenVolume(spec)
	wantDeviceError(t, err, ErrDevice, `is another one, with serial number "SN2" instead of "SN1"`)
	if d.open {
		t.Error("a refused device is open")
	}
	// This machine has no device there: what a sandbox is to get is opened for real.
	if _, _, err := v.HandOver(); !errors.Is(err, pcie.ErrNoDevice) || !strings.Contains(err.Error(), `volume "v"`) {
		t.Errorf("handing over a device that is not there: %v", err)
	}
}

func TestDeviceReader(t *testing.T) {
	useDevice(t)
	if err := InspectDevice(testSpec, func(dev nvme.BlockDevice) error {
		r := &deviceReader{&offline{arena: dev.Arena(), device: dev}}
		want := make([]byte, testDeviceBytes)
		for i := range want {
			want[i] = byte(i >> 9 * 7)
		}
		mem, err := dev.Arena().Alloc(256)
		if err != nil {
			return err
		}
		for off := 0; off < len(want); off += len(mem) {
			copy(mem, want[off:])
			if err := dev.Do([]nvme.Request{{Op: nvme.OpWrite, OffsetBytes: int64(off), Vec: [][]byte{mem}}}); err != nil {
				return err
			}
		}
		for _, at := range []struct{ off, n int }{{0, 1}, {4095, 2}, {65535, 70000}, {123457, 1 << 20}, {testDeviceBytes - 1, 1}} {
			got := make([]byte, at.n)
			if n, err := r.ReadAt(got, int64(at.off)); n != at.n || err != nil || !bytes.Equal(got, want[at.off:][:at.n]) {
				t.Errorf("%d bytes at %d: %d, %v", at.n, at.off, n, err)
			}
		}
		if n, err := r.ReadAt(make([]byte, 10), testDeviceBytes-4); n != 4 || err != io.EOF {
			t.Errorf("over the end: %d, %v", n, err)
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
}
