package device

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"runsc-fs/blobfs"
	"runsc-fs/nvme"
	"runsc-fs/nvme/pcie"
	"runsc-fs/nvme/soft"
)

const (
	first  pcie.Address = "0000:03:00.0"
	second pcie.Address = "0000:04:00.0"
)

// tree is a machine in a directory: its sysfs, /proc and /dev, and a kernel that does
// what writing to sysfs makes it do.
type tree struct {
	*testing.T
	Host
	writes   []string // files that were written, with their texts
	noVFIO   bool     // vfio-pci takes no device
	override map[string]string
}

// newTree makes a machine with two NVMe controllers, one of them with two namespaces,
// and a network card.
func newTree(t *testing.T) *tree {
	tr := &tree{T: t, Host: Host{Root: t.TempDir()}, override: map[string]string{}}
	tr.Host.write = tr.kernel
	tr.Host.module = func(string) error { return errors.New("no such module") }
	for _, d := range []string{"nvme", "vfio-pci", "e1000e"} {
		tr.dir("sys/bus/pci/drivers", d)
	}
	tr.dir("sys/bus/pci/devices")
	tr.dir("sys/class/block")
	tr.dir("sys/block")
	tr.dir("dev/vfio")
	tr.file("36 35 8:1 / / rw - ext4 /dev/sda1 rw\n", "proc/self/mountinfo")
	tr.file("Filename Type Size Used Priority\n", "proc/swaps")
	tr.controller(first, "10", "nvme0", "nvme0n1", "nvme0n2")
	tr.controller(second, "11", "nvme1", "nvme1n1")
	tr.pci("0000:05:00.0", "0x020000", "12", "e1000e")
	return tr
}

func (tr *tree) dir(elem ...string) {
	tr.Helper()
	if err := os.MkdirAll(tr.path(elem...), 0o755); err != nil {
		tr.Fatal(err)
	}
}

func (tr *tree) file(text string, elem ...string) {
	tr.Helper()
	tr.dir(filepath.Dir(filepath.Join(elem...)))
	if err := os.WriteFile(tr.path(elem...), []byte(text), 0o644); err != nil {
		tr.Fatal(err)
	}
}

func (tr *tree) link(target, name string) {
	tr.Helper()
	tr.dir(filepath.Dir(name))
	if err := os.Symlink(tr.path(target), tr.path(name)); err != nil {
		tr.Fatal(err)
	}
}

// pci makes a function; a group of "" is none.
func (tr *tree) pci(addr pcie.Address, class, group, driver string) string {
	real := "sys/devices/pci0000:00/" + string(addr)
	tr.file(class+"\n", real, "class")
	tr.file("", real, "driver_override")
	tr.link(real, "sys/bus/pci/devices/"+string(addr))
	if group != "" {
		tr.dir("sys/kernel/iommu_groups", group, "devices")
		tr.link("sys/kernel/iommu_groups/"+group, real+"/iommu_group")
		tr.link(real, "sys/kernel/iommu_groups/"+group+"/devices/"+string(addr))
		tr.file("", "dev/vfio", group)
	}
	if driver != "" {
		tr.link("sys/bus/pci/drivers/"+driver, real+"/driver")
	}
	return real
}

const namespaceBytes = 8 << 20

// controller makes an NVMe controller with empty namespaces.
func (tr *tree) controller(addr pcie.Address, group, name string, blocks ...string) {
	real := tr.pci(addr, classNVMe, group, "nvme")
	tr.file("Flash of "+name+"   \n", real, "nvme", name, "model")
	tr.file("SN"+name+"\n", real, "nvme", name, "serial")
	for i, b := range blocks {
		dir := real + "/nvme/" + name + "/" + b
		tr.file(fmt.Sprint(namespaceBytes/512), dir, "size")
		tr.file("4096\n", dir, "queue/logical_block_size")
		tr.file(fmt.Sprint(i+1), dir, "nsid")
		tr.file(fmt.Sprintf("259:%d\n", i), dir, "dev")
		tr.dir(dir, "holders")
		tr.link(real+"/nvme/"+name, dir+"/device")
		tr.link(dir, "sys/block/"+b)
		tr.link(dir, "sys/class/block/"+b)
		tr.file("", "dev", b)
		if err := os.Truncate(tr.path("dev", b), namespaceBytes); err != nil {
			tr.Fatal(err)
		}
	}
}

// partition adds a partition of the first namespace.
func (tr *tree) partition() (dir string) {
	dir = "sys/devices/pci0000:00/" + string(first) + "/nvme/nvme0/nvme0n1/nvme0n1p1"
	tr.file("1\n", dir, "partition")
	tr.file("259:5\n", dir, "dev")
	tr.dir(dir, "holders")
	tr.link(dir, "sys/class/block/nvme0n1p1")
	return dir
}

// kernel does what sysfs does.
func (tr *tree) kernel(path, text string) error {
	rel, err := filepath.Rel(tr.Root, path)
	if err != nil {
		return err
	}
	tr.writes = append(tr.writes, rel+"="+text)
	addr := filepath.Base(filepath.Dir(rel))
	switch {
	case strings.HasSuffix(rel, "/driver_override"):
		tr.override[addr] = strings.TrimSpace(text)
	case strings.HasSuffix(rel, "/driver/unbind"):
		return os.Remove(tr.path(devicesPath, text, "driver"))
	case rel == probePath:
		driver := tr.override[text]
		if driver == "" {
			driver = "nvme"
		}
		if driver == driverVFIO && tr.noVFIO {
			return nil
		}
		if _, err := os.Lstat(tr.path(devicesPath, text, "driver")); err == nil {
			return nil
		}
		return os.Symlink(tr.path(driversPath, driver), tr.path(devicesPath, text, "driver"))
	default:
		return os.ErrNotExist
	}
	return nil
}

// wantError checks class and text of a one-line error about the device, and that
// nothing was changed.
func (tr *tree) wantError(err, class error, text string) {
	tr.Helper()
	if !errors.Is(err, class) || !strings.Contains(err.Error(), text) || !strings.Contains(err.Error(), "device 0000:") || strings.Contains(err.Error(), "\n") {
		tr.Errorf("error %q, want one line that is %q and has %q", err, class, text)
	}
	if tr.writes != nil {
		tr.Errorf("written: %q", tr.writes)
	}
}

func TestList(t *testing.T) {
	tr := newTree(t)
	tr.pci("0000:06:00.0", classNVMe, "", "")
	list := tr.List()
	if len(list) != 3 {
		t.Fatalf("%d devices: %+v", len(list), list)
	}
	want := Info{
		Address: first, Model: "Flash of nvme0", Serial: "SNnvme0", Driver: "nvme", IOMMUGroup: "10", VFIO: Ready,
		Namespaces: []Namespace{{1, "nvme0n1", namespaceBytes, 4096}, {2, "nvme0n2", namespaceBytes, 4096}},
	}
	if fmt.Sprint(list[0]) != fmt.Sprint(want) || list[0].SizeBytes() != 2*namespaceBytes {
		t.Errorf("first device:\n%+v, want\n%+v", list[0], want)
	}
	if list[2].VFIO != NoIOMMU || list[2].Driver != "" {
		t.Errorf("a device without IOMMU and driver: %+v", list[2])
	}
}

// TestMultipath has the namespace below a subsystem, as kernels with native multipath do.
func TestMultipath(t *testing.T) {
	tr := newTree(t)
	sub := "sys/devices/virtual/nvme-subsystem/nvme-subsys1"
	tr.file("100", sub, "nvme1n9/size")
	tr.file("9", sub, "nvme1n9/nsid")
	tr.link("sys/devices/pci0000:00/"+string(second)+"/nvme/nvme1", sub+"/nvme1")
	tr.link(sub, sub+"/nvme1n9/device")
	tr.link(sub+"/nvme1n9", "sys/block/nvme1n9")
	// The path to it, which is not for use.
	tr.file("1", "sys/devices/pci0000:00/"+string(second)+"/nvme/nvme1/nvme1c1n9/hidden")
	tr.link("sys/devices/pci0000:00/"+string(second)+"/nvme/nvme1", "sys/devices/pci0000:00/"+string(second)+"/nvme/nvme1/nvme1c1n9/device")
	tr.link("sys/devices/pci0000:00/"+string(second)+"/nvme/nvme1/nvme1c1n9", "sys/block/nvme1c1n9")
	i, err := tr.Get(second)
	if err != nil {
		t.Fatal(err)
	}
	var ids []uint32
	for _, ns := range i.Namespaces {
		ids = append(ids, ns.ID)
	}
	if !slices.Equal(ids, []uint32{1, 9}) {
		t.Errorf("namespaces %v", i.Namespaces)
	}
}

func TestBindAndUnbind(t *testing.T) {
	tr := newTree(t)
	if err := tr.Bind(first, false); err != nil {
		t.Fatal(err)
	}
	i, err := tr.Get(first)
	if err != nil || i.Driver != driverVFIO || i.VFIO != Bound {
		t.Fatalf("after bind: %+v, %v", i, err)
	}
	if i.Model != "Flash of nvme0" || i.Serial != "SNnvme0" || i.SizeBytes() != 2*namespaceBytes || i.Namespaces[0].Block != "" {
		t.Errorf("forgotten by bind: %+v", i)
	}
	if other, _ := tr.Get(second); other.Driver != "nvme" {
		t.Errorf("the other device went, too: %+v", other)
	}
	tr.writes = nil
	tr.wantError(tr.Bind(first, true), ErrAlready, "already")
	if err := tr.Unbind(first); err != nil {
		t.Fatal(err)
	}
	if i, _ = tr.Get(first); i.Driver != "nvme" || tr.override[string(first)] != "" {
		t.Errorf("after unbind: %+v, override %q", i, tr.override[string(first)])
	}
	if left := tr.names(memoryPath); left != nil {
		t.Errorf("remembered for ever: %q", left)
	}
	tr.writes = nil
	tr.wantError(tr.Unbind(first), ErrAlready, "but to nvme")
}

func TestBindRefuses(t *testing.T) {
	dm := func(tr *tree, part string) {
		tr.dir(part, "holders/dm-0")
		tr.file("253:0\n", "sys/class/block/dm-0/dev")
		tr.dir("sys/class/block/dm-0/holders")
	}
	for _, test := range []struct {
		name  string
		spoil func(tr *tree)
		class error
		text  string
	}{
		{"mounted", func(tr *tree) {
			tr.file("40 36 259:1 / /srv/my\\040data rw - ext4 /dev/nvme0n2 rw\n", "proc/self/mountinfo")
		}, ErrInUse, "/dev/nvme0n2 is mounted on /srv/my data"},
		{"partition mounted by the first process", func(tr *tree) {
			tr.partition()
			tr.file("40 36 259:5 / /var rw shared:1 - ext4 /dev/nvme0n1p1 rw\n", "proc/1/mountinfo")
		}, ErrInUse, "/dev/nvme0n1p1 is mounted on /var"},
		{"btrfs", func(tr *tree) {
			tr.file("40 36 0:44 / /pool rw - btrfs /dev/nvme0n1 rw\n", "proc/self/mountinfo")
		}, ErrInUse, "mounted on /pool"},
		{"swap", func(tr *tree) { tr.file("Filename\n/dev/nvme0n1 partition 8 0 -2\n", "proc/swaps") }, ErrInUse, "is swap"},
		{"device mapper", func(tr *tree) { dm(tr, tr.partition()) }, ErrInUse, "/dev/nvme0n1p1 is part of /dev/dm-0"},
		{"mounted device mapper", func(tr *tree) {
			dm(tr, tr.partition())
			tr.file("40 36 253:0 / /home rw - xfs /dev/mapper/vg-home rw\n", "proc/self/mountinfo")
		}, ErrInUse, "/dev/nvme0n1p1 is part of /dev/dm-0 is mounted on /home"},
		{"shared group", func(tr *tree) {
			tr.link("sys/devices/pci0000:00/0000:05:00.0", "sys/kernel/iommu_groups/10/devices/0000:05:00.0")
		}, ErrUnusable, "0000:05:00.0 (e1000e)"},
		{"no IOMMU", func(tr *tree) { os.Remove(tr.path(devicesPath, string(first), "iommu_group")) }, ErrUnusable, "intel_iommu=on"},
		{"other driver", func(tr *tree) {
			os.Remove(tr.path(devicesPath, string(first), "driver"))
			tr.link("sys/bus/pci/drivers/uio_pci_generic", devicesPath+"/"+string(first)+"/driver")
		}, ErrUnusable, "bound to uio_pci_generic"},
		{"no module", func(tr *tree) { os.Remove(tr.path(driversPath, driverVFIO)) }, ErrUnusable, "load the module"},
		{"no node", func(tr *tree) { os.Remove(tr.path("dev/nvme0n1")) }, ErrUnusable, "cannot be looked at"},
	} {
		t.Run(test.name, func(t *testing.T) {
			tr := newTree(t)
			test.spoil(tr)
			tr.wantError(tr.Bind(first, true), test.class, test.text) // force does not help
			if i, _ := tr.Get(first); i.Driver == driverVFIO {
				t.Error("bound nevertheless")
			}
			if left := tr.names(memoryPath); left != nil {
				t.Errorf("remembered: %q", left)
			}
		})
	}
	tr := newTree(t)
	tr.wantError(tr.Bind("0000:09:00.0", true), ErrNoDevice, "device ls")
	tr.wantError(tr.Bind("0000:05:00.0", true), ErrNoDevice, "no NVMe controller")
	tr.wantError(tr.Unbind("0000:05:00.0"), ErrNoDevice, "no NVMe controller")
}

func TestBindWantsForce(t *testing.T) {
	tr := newTree(t)
	f, err := os.OpenFile(tr.path("dev/nvme0n2"), os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("\x53\xef"), 1024+56); err != nil {
		t.Fatal(err)
	}
	f.Close()
	tr.wantError(tr.Bind(first, false), ErrNotEmpty, "an ext2, ext3 or ext4 file system on /dev/nvme0n2; 'runsc-fs device bind --force 0000:03:00.0'")
	if err := tr.Bind(first, true); err != nil {
		t.Error(err)
	}
}

// TestFailedBindGoesBack: the device has its old driver when vfio-pci does not take it.
func TestFailedBindGoesBack(t *testing.T) {
	tr := newTree(t)
	tr.noVFIO = true
	err := tr.Bind(first, false)
	if !errors.Is(err, ErrUnusable) || !strings.Contains(err.Error(), "went to no driver instead of vfio-pci") {
		t.Errorf("error %v", err)
	}
	if i, _ := tr.Get(first); i.Driver != "nvme" || tr.override[string(first)] != "" || len(i.Namespaces) != 2 {
		t.Errorf("after the failure: %+v, override %q", i, tr.override[string(first)])
	}
}

// TestSignatures has each mark found at its place, and nothing on an empty disk.
func TestSignatures(t *testing.T) {
	const size = 4 << 20
	sign := func(what string, edit func(disk []byte)) {
		t.Helper()
		disk := make([]byte, size)
		edit(disk)
		got, err := Signature(bytes.NewReader(disk), size)
		if err != nil || got != what {
			t.Errorf("%q, %v; want %q", got, err, what)
		}
	}
	sign("", func([]byte) {})
	for _, m := range magics {
		sign(m.what, func(disk []byte) { copy(disk[m.offset:], m.mark) })
	}
	sign("a member of a ZFS pool", func(disk []byte) { binary.LittleEndian.PutUint64(disk[128<<10+4096:], 0x00bab10c) })
	sign("a member of a RAID", func(disk []byte) { copy(disk[size-64<<10:], "\xfc\x4e\x2b\xa9") })
	sign("a member of a RAID", func(disk []byte) { copy(disk[size-8<<10:], "\xfc\x4e\x2b\xa9") })
	sign("", func(disk []byte) { disk[510], disk[511] = 0x55, 0xaa })
	sign("an MBR partition table", func(disk []byte) { disk[510], disk[511], disk[450] = 0x55, 0xaa, 0x83 })
	if got, err := Signature(bytes.NewReader(make([]byte, 512)), 512); got != "" || err != nil {
		t.Errorf("a disk of one sector: %q, %v", got, err)
	}
	if _, err := Signature(broken{}, size); err == nil {
		t.Error("a disk that cannot be read is empty")
	}

	dev, err := soft.NewMemory(16 << 20)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	if err := blobfs.Mkfs(dev, blobfs.MkfsOptions{}); err != nil {
		t.Fatal(err)
	}
	got, err := Signature(reader{dev}, 16<<20)
	if got != SignatureBlobfs || err != nil {
		t.Errorf("blobfs: %q, %v", got, err)
	}
}

type broken struct{}

func (broken) ReadAt([]byte, int64) (int, error) { return 0, errors.New("medium error") }

// reader reads a namespace.
type reader struct{ nvme.BlockDevice }

func (r reader) ReadAt(b []byte, off int64) (int, error) {
	const chunk = 64 << 10
	mem, err := r.Arena().Alloc(chunk / nvme.PageSizeBytes)
	if err != nil {
		return 0, err
	}
	defer r.Arena().Free(mem)
	for n := 0; n < len(b); n += chunk {
		first := (off + int64(n)) &^ 511
		if err := r.Do([]nvme.Request{{Op: nvme.OpRead, OffsetBytes: first, Vec: [][]byte{mem}}}); err != nil {
			return n, err
		}
		copy(b[n:], mem[off+int64(n)-first:])
	}
	return len(b), nil
}
