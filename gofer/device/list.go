package device

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"runsc-fs/nvme/pcie"
)

// classNVMe is the PCI class of NVMe controllers.
const classNVMe = "0x010802"

// Info is what is known about an NVMe controller.
type Info struct {
	Address    pcie.Address `json:"address"`
	Model      string       `json:"model,omitempty"`  // as the kernel's driver read it; remembered by Bind
	Serial     string       `json:"serial,omitempty"` // the same
	Namespaces []Namespace  `json:"namespaces,omitempty"`
	Driver     string       `json:"driver,omitempty"`     // "": none
	IOMMUGroup string       `json:"iommuGroup,omitempty"` // "": no IOMMU
	// Neighbours are other devices of the IOMMU group that drivers of the host have:
	// as long as that is so VFIO does not give the device out.
	Neighbours []string `json:"neighbours,omitempty"`
	// VFIO says in a few words what separates the device from being a volume.
	VFIO string `json:"vfio"`
}

// Values of Info.VFIO. With neighbours it is readyWith and their list.
const (
	Bound      = "bound"              // to vfio-pci: volumes can use it
	Ready      = "ready"              // can be bound
	NoIOMMU    = "no IOMMU"           // the machine has none, or it is off
	NotTrusted = "group has no IOMMU" // a group of VFIO's no-IOMMU mode
	SharedWith = "shares its IOMMU group with "
)

// Namespace is one namespace of a controller, as the kernel's driver shows it.
type Namespace struct {
	ID        uint32 `json:"id"`
	Block     string `json:"block,omitempty"` // name of the block device
	SizeBytes int64  `json:"sizeBytes"`
	LBABytes  int64  `json:"lbaBytes"`
}

// SizeBytes is the size of all namespaces.
func (i *Info) SizeBytes() int64 {
	var n int64
	for _, ns := range i.Namespaces {
		n += ns.SizeBytes
	}
	return n
}

// List returns all NVMe controllers on the PCI bus in the order of their addresses.
func (h *Host) List() []Info {
	var list []Info
	for _, name := range h.names(devicesPath) {
		if addr, err := pcie.ParseAddress(name); err == nil && h.attribute(devicesPath, name, "class") == classNVMe {
			list = append(list, h.info(addr))
		}
	}
	slices.SortFunc(list, func(a, b Info) int { return strings.Compare(string(a.Address), string(b.Address)) })
	return list
}

// Get returns what is known about one controller.
func (h *Host) Get(addr pcie.Address) (Info, error) {
	class := h.attribute(devicesPath, string(addr), "class")
	switch class {
	case classNVMe:
		return h.info(addr), nil
	case "":
		return Info{}, failf(ErrNoDevice, addr, "does not exist; 'runsc-fs device ls' shows those of this machine")
	}
	return Info{}, failf(ErrNoDevice, addr, "is no NVMe controller (class %s)", class)
}

func (h *Host) info(addr pcie.Address) Info {
	dir := filepath.Join(devicesPath, string(addr))
	i := Info{Address: addr, Driver: h.linkBase(dir, "driver"), IOMMUGroup: h.linkBase(dir, "iommu_group")}
	if i.Driver == driverVFIO {
		i.recall(h)
	} else {
		for _, c := range h.names(dir, "nvme") {
			i.Model = h.attribute(dir, "nvme", c, "model")
			i.Serial = h.attribute(dir, "nvme", c, "serial")
		}
		i.Namespaces = h.namespaces(addr)
	}
	for _, other := range h.names(dir, "iommu_group/devices") {
		driver := h.linkBase(devicesPath, other, "driver")
		// Bridges have drivers that VFIO trusts.
		if other != string(addr) && driver != "" && driver != driverVFIO && driver != "pcieport" && driver != "pci-stub" {
			i.Neighbours = append(i.Neighbours, other+" ("+driver+")")
		}
	}
	switch {
	case i.IOMMUGroup == "":
		i.VFIO = NoIOMMU
	case h.attribute(dir, "iommu_group/name") == "vfio-noiommu":
		i.VFIO = NotTrusted
	case i.Neighbours != nil:
		i.VFIO = SharedWith + strings.Join(i.Neighbours, ", ")
	case i.Driver == driverVFIO:
		i.VFIO = Bound
	default:
		i.VFIO = Ready
	}
	return i
}

// namespaces finds the block devices of a controller. With multipath they belong to
// a subsystem, which has links to its controllers.
func (h *Host) namespaces(addr pcie.Address) []Namespace {
	self, err := filepath.EvalSymlinks(h.path(devicesPath, string(addr)))
	if err != nil {
		return nil
	}
	below := func(path string) bool {
		real, err := filepath.EvalSymlinks(path)
		return err == nil && strings.HasPrefix(real, self+"/")
	}
	var list []Namespace
	for _, block := range h.names(blockPath) {
		owner := h.path(blockPath, block, "device")
		ours := below(owner)
		for _, c := range h.names(blockPath, block, "device") {
			ours = ours || strings.HasPrefix(c, "nvme") && below(filepath.Join(owner, c))
		}
		if !ours || h.attribute(blockPath, block, "hidden") == "1" {
			continue
		}
		number := func(elem ...string) int64 {
			n, _ := strconv.ParseInt(h.attribute(append([]string{blockPath, block}, elem...)...), 10, 64)
			return n
		}
		const sectorBytes = 512 // of sysfs, whatever the block size
		list = append(list, Namespace{
			ID: uint32(number("nsid")), Block: block, SizeBytes: number("size") * sectorBytes, LBABytes: number("queue/logical_block_size"),
		})
	}
	slices.SortFunc(list, func(a, b Namespace) int { return int(a.ID) - int(b.ID) })
	return list
}

// memoryPath is where Bind remembers what only the kernel's driver shows. It ends
// with the next boot, and so does the binding.
const memoryPath = "run/runsc-fs/devices"

// remember keeps model, serial number and namespaces for recall.
func (i Info) remember(h *Host) error {
	for n := range i.Namespaces {
		i.Namespaces[n].Block = ""
	}
	text, err := json.Marshal(i)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(h.path(memoryPath), 0o755); err != nil {
		return err
	}
	return os.WriteFile(h.path(memoryPath, string(i.Address)), text, 0o644)
}

func (i *Info) recall(h *Host) {
	text, err := os.ReadFile(h.path(memoryPath, string(i.Address)))
	var then Info
	if err == nil && json.Unmarshal(text, &then) == nil {
		i.Model, i.Serial, i.Namespaces = then.Model, then.Serial, then.Namespaces
	}
}
