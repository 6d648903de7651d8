package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"runsc-fs/gofer/device"
	"runsc-fs/oci/registry"
)

// useHost makes the device commands see a machine with one NVMe controller that has no
// driver and no IOMMU.
func useHost(t *testing.T) {
	t.Helper()
	root := t.TempDir()
	dir := filepath.Join(root, "sys/bus/pci/devices/0000:03:00.0")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "class"), []byte("0x010802\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	host = &device.Host{Root: root}
	t.Cleanup(func() { host = &device.Host{} })
}

func TestDeviceCommands(t *testing.T) {
	useHost(t)
	out, err := call(t, newDeviceGroup(), "ls")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if err != nil || len(lines) != 2 || !strings.HasPrefix(lines[0], "ADDRESS ") || !strings.HasPrefix(lines[1], "0000:03:00.0 ") || !strings.HasSuffix(lines[1], "no IOMMU") {
		t.Errorf("ls prints %q, %v", out, err)
	}
	out, err = call(t, newDeviceGroup(), "ls", "--json")
	var list []device.Info
	if err == nil {
		err = json.Unmarshal([]byte(out), &list)
	}
	if err != nil || len(list) != 1 || list[0].Address != "0000:03:00.0" || list[0].VFIO != device.NoIOMMU {
		t.Errorf("ls --json prints %q, %v", out, err)
	}
	host = &device.Host{Root: t.TempDir()}
	if out, err := call(t, newDeviceGroup(), "ls", "--json"); err != nil || strings.TrimSpace(out) != "[]" {
		t.Errorf("without devices ls --json prints %q, %v", out, err)
	}
}

func TestDeviceCommandErrors(t *testing.T) {
	useHost(t)
	for args, want := range map[string]string{
		"ls x":                 "no arguments are taken",
		"bind":                 "the PCI address of a device is needed",
		"bind nvme0":           `"nvme0" is not the address of a PCI device; it looks like 0000:03:00.0`,
		"bind 03:00.0":         "device 0000:03:00.0 has no IOMMU",
		"bind --force 09:00.0": "device 0000:09:00.0 does not exist; 'runsc-fs device ls' shows",
		"unbind 03:00.0":       "device 0000:03:00.0 is not bound to vfio-pci but to no driver",
	} {
		out, err := call(t, newDeviceGroup(), strings.Fields(args)...)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") || out != "" {
			t.Errorf("device %s: %q, %v; want one line with %q", args, out, err, want)
		}
	}
}

// TestDeviceVolumeInUse: what force cannot do is not proposed.
func TestDeviceVolumeInUse(t *testing.T) {
	root := useRegistry(t)
	reg, err := registry.Open(registry.Options{Root: root, PrepareDevice: func(d registry.Device, _ string, _, _ bool) (registry.Device, int64, error) {
		return d, 64 << 20, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	v, err := reg.Create(registry.CreateSpec{Name: "dev", Device: &registry.Device{Address: "0000:ff:1f.7"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, cmd := range []verb{&fsck{}, &fsck{force: true}} {
		if _, err := call(t, cmd, "dev"); err == nil || !strings.Contains(err.Error(), "device 0000:ff:1f.7: no such PCI device") {
			t.Errorf("without the device: %v", err)
		}
	}
	lock, err := v.Acquire("c0ffee")
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	for _, args := range [][]string{{"dev"}, {"--force", "dev"}} {
		_, err := call(t, &fsck{}, args...)
		if want := `volume "dev" is in use by container c0ffee; stop that first: its device cannot be shared`; err == nil || err.Error() != want {
			t.Errorf("fsck %v: %v", args, err)
		}
	}
	if _, err := call(t, &dump{}, "dev", "superblock"); err == nil || !strings.Contains(err.Error(), "cannot be shared") {
		t.Errorf("dump: %v", err)
	}
	out, err := volume(t, "ls")
	if err != nil || !strings.Contains(out, "device") {
		t.Errorf("ls prints %q, %v", out, err)
	}
	lock.Close()
	out, err = volume(t, "rm", "dev")
	if want := "dev\nthe data on device 0000:ff:1f.7 namespace 1 is still there\n"; err != nil || out != want {
		t.Errorf("rm prints %q, %v", out, err)
	}
}
