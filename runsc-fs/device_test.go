package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"runsc-fs/gofer/device"
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
