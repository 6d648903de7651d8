package pcie

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// API is the kernel interface through which a device is reached.
type API string

// The interfaces. An empty API is the best one that the kernel has for the
// device, APINoIOMMU excepted.
const (
	APIIOMMUFD API = "iommufd"  // iommufd and the device's own file
	APIGroup   API = "group"    // container and IOMMU group
	APINoIOMMU API = "no-iommu" // group without translation
)

// Options are the parameters of OpenDevice. The zero value is a good choice.
type Options struct {
	// API demands one interface. APINoIOMMU lets the device reach all memory of
	// the machine: one wrong address, or one hostile process that holds the
	// device, and the machine belongs to it.
	API API
	// Root is put before the paths of /sys and /dev. Default "/".
	Root string
	// Logf takes warnings. Default: nowhere.
	Logf func(format string, args ...any)

	kernel kernel // default: this machine's
}

func (o *Options) setDefaults() error {
	if o.Root == "" {
		o.Root = "/"
	}
	if o.Logf == nil {
		o.Logf = func(string, ...any) {}
	}
	if o.kernel == nil {
		o.kernel = host{}
	}
	switch o.API {
	case "", APIIOMMUFD, APIGroup, APINoIOMMU:
		return nil
	}
	return fmt.Errorf("pcie: %w: interface %q; there are %s, %s and %s", ErrUnsupported, o.API, APIIOMMUFD, APIGroup, APINoIOMMU)
}

// Handle describes an open device to the process that its files go to.
type Handle struct {
	Address Address `json:"address"`
	API     API     `json:"api"`
	IOAS    uint32  `json:"ioas,omitempty"` // I/O address space, of APIIOMMUFD
}

// Device is an open device whose I/O address space is empty. It is not for
// concurrent use.
type Device struct {
	handle  Handle
	kernel  kernel
	logf    func(format string, args ...any)
	device  *os.File
	space   *os.File // container or iommufd, until the arena is mapped
	foreign bool     // opened by another process: no ioctl once it is set up
}

// OpenDevice opens the function at addr, resets it and prepares its I/O address
// space. Whoever has it open excludes everybody else. Errors are one line and
// say what to do.
func OpenDevice(addr Address, opts Options) (*Device, error) {
	if err := opts.setDefaults(); err != nil {
		return nil, err
	}
	d := &Device{handle: Handle{Address: addr, API: opts.API}, kernel: opts.kernel, logf: opts.Logf}
	err := d.open(&opts)
	if err == nil {
		err = d.reset()
	}
	if err != nil {
		d.Close()
		return nil, fmt.Errorf("device %s: %w", addr, err)
	}
	return d, nil
}

// AdoptDevice takes over the files of a device that another process opened.
func AdoptDevice(h Handle, device, space *os.File, logf func(format string, args ...any)) *Device {
	if logf == nil {
		logf = func(string, ...any) {}
	}
	return &Device{handle: h, kernel: host{}, logf: logf, device: device, space: space, foreign: true}
}

// Handle is what AdoptDevice needs besides the files.
func (d *Device) Handle() Handle { return d.handle }

// Files are the files for AdoptDevice. They stay the device's.
func (d *Device) Files() (device, space *os.File) { return d.device, d.space }

// Close gives the device up. The kernel resets it when no process has it any more.
func (d *Device) Close() error {
	var errs []error
	for _, f := range []*os.File{d.device, d.space} {
		if f == nil {
			continue
		}
		if err := f.Close(); !errors.Is(err, os.ErrClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// open finds the device in sysfs and opens it through the wanted interface.
func (d *Device) open(opts *Options) error {
	dir := filepath.Join(opts.Root, "sys/bus/pci/devices", string(d.handle.Address))
	if _, err := os.Stat(dir); err != nil {
		return fmt.Errorf("%w; 'runsc-fs device ls' shows those of this machine", ErrNoDevice)
	}
	driver, err := os.Readlink(filepath.Join(dir, "driver"))
	if filepath.Base(driver) != "vfio-pci" {
		if err != nil {
			driver = "no driver"
		}
		return fmt.Errorf("%w but to %s; bind it with 'runsc-fs device bind %s'", ErrNotBound, filepath.Base(driver), d.handle.Address)
	}
	if opts.API == "" || opts.API == APIIOMMUFD {
		node, err := d.findNode(opts.Root, dir)
		if err == nil {
			d.handle.API = APIIOMMUFD
			return d.openIOMMUFD(filepath.Join(opts.Root, "dev/iommu"), node)
		}
		if opts.API != "" {
			return err
		}
	}
	group, err := os.Readlink(filepath.Join(dir, "iommu_group"))
	if err != nil {
		return fmt.Errorf("%w for it; turn it on in the firmware and with intel_iommu=on (or amd_iommu=on) on the kernel's command line", ErrNoIOMMU)
	}
	name := filepath.Base(group)
	kind, _ := os.ReadFile(filepath.Join(dir, "iommu_group/name"))
	without := strings.TrimSpace(string(kind)) == "vfio-noiommu"
	if without {
		name = "noiommu-" + name
	}
	switch {
	case without && opts.API != APINoIOMMU:
		return fmt.Errorf("%w for it, and its data could overwrite any memory; turn the IOMMU on in the firmware and with intel_iommu=on", ErrNoIOMMU)
	case !without && opts.API == APINoIOMMU:
		return fmt.Errorf("%w: it has an IOMMU, which is not to be given up", ErrUnsupported)
	case without:
		d.logf("pcie: device %s has NO IOMMU: it can read and write all memory of this machine", d.handle.Address)
		d.handle.API = APINoIOMMU
	default:
		d.handle.API = APIGroup
	}
	return d.openGroup(opts.Root, name, dir)
}

// findNode is the device's own file, if the kernel has such files and iommufd.
func (d *Device) findNode(root, dir string) (string, error) {
	entries, _ := os.ReadDir(filepath.Join(dir, "vfio-dev"))
	for _, e := range entries {
		node := filepath.Join(root, "dev/vfio/devices", e.Name())
		if _, err := os.Stat(node); err != nil {
			continue
		}
		if _, err := os.Stat(filepath.Join(root, "dev/iommu")); err != nil {
			continue
		}
		return node, nil
	}
	return "", fmt.Errorf("%w: this kernel has no iommufd with device files (CONFIG_IOMMUFD, CONFIG_VFIO_DEVICE_CDEV)", ErrUnsupported)
}

// openFile opens one of VFIO's files.
func (d *Device) openFile(path string) (*os.File, error) {
	f, err := d.kernel.open(path)
	switch {
	case err == nil:
		return f, nil
	case errors.Is(err, unix.EBUSY):
		return nil, fmt.Errorf("%w by another process (%s)", ErrInUse, path)
	case errors.Is(err, unix.ENOENT):
		return nil, fmt.Errorf("%w: there is no %s; 'modprobe vfio-pci' may help", ErrUnsupported, path)
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return nil, fmt.Errorf("%s: %w; run this as root", path, err)
	}
	return nil, fmt.Errorf("%s: %w", path, err)
}

func (d *Device) openIOMMUFD(iommu, node string) (err error) {
	if d.device, err = d.openFile(node); err != nil {
		return err
	}
	if d.space, err = d.openFile(iommu); err != nil {
		return err
	}
	bind := &bindIOMMUFD{argsz: uint32(unsafe.Sizeof(bindIOMMUFD{})), iommufd: int32(d.space.Fd())}
	if _, err := d.kernel.ioctl(d.device, vfioBindIOMMUFD, unsafe.Pointer(bind)); err != nil {
		if errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("%w by another process (VFIO_DEVICE_BIND_IOMMUFD: %w)", ErrInUse, err)
		}
		return failed("VFIO_DEVICE_BIND_IOMMUFD", err)
	}
	alloc := &ioasAlloc{size: uint32(unsafe.Sizeof(ioasAlloc{}))}
	if _, err := d.kernel.ioctl(d.space, iommufdIOASAlloc, unsafe.Pointer(alloc)); err != nil {
		return failed("IOMMU_IOAS_ALLOC", err)
	}
	attach := &attachIOMMUFD{argsz: uint32(unsafe.Sizeof(attachIOMMUFD{})), ptID: alloc.outID}
	if _, err := d.kernel.ioctl(d.device, vfioAttachIOMMUFD, unsafe.Pointer(attach)); err != nil {
		return failed("VFIO_DEVICE_ATTACH_IOMMUFD_PT", err)
	}
	d.handle.IOAS = alloc.outID
	return nil
}

func (d *Device) openGroup(root, group, dir string) (err error) {
	if d.space, err = d.openFile(filepath.Join(root, "dev/vfio/vfio")); err != nil {
		return err
	}
	if v, err := d.kernel.ioctlInt(d.space, vfioGetAPIVersion, 0); err != nil || v != vfioAPIVersion {
		return fmt.Errorf("%w: VFIO of version %d (%v)", ErrUnsupported, v, err)
	}
	// The open device keeps its group.
	g, err := d.openFile(filepath.Join(root, "dev/vfio", group))
	if err != nil {
		return err
	}
	defer g.Close()
	status := &groupStatus{argsz: uint32(unsafe.Sizeof(groupStatus{}))}
	if _, err := d.kernel.ioctl(g, vfioGroupGetStatus, unsafe.Pointer(status)); err != nil {
		return failed("VFIO_GROUP_GET_STATUS", err)
	}
	if status.flags&groupViable == 0 {
		return fmt.Errorf("%w: beside it group %s has %s; unbind their drivers or bind them to vfio-pci", ErrNotViable, group, neighbours(dir, d.handle.Address))
	}
	fd := new(int32)
	*fd = int32(d.space.Fd())
	if _, err := d.kernel.ioctl(g, vfioGroupSetCtr, unsafe.Pointer(fd)); err != nil {
		return failed("VFIO_GROUP_SET_CONTAINER", err)
	}
	model := uintptr(vfioType1v2)
	if d.handle.API == APINoIOMMU {
		model = vfioNoIOMMU
	}
	if ok, err := d.kernel.ioctlInt(d.space, vfioCheckExtension, model); err != nil || ok == 0 {
		return fmt.Errorf("%w: this kernel's VFIO lacks the wanted IOMMU model; 'modprobe vfio_iommu_type1' may help", ErrUnsupported)
	}
	if _, err := d.kernel.ioctlInt(d.space, vfioSetIOMMU, model); err != nil {
		if errors.Is(err, unix.EPERM) {
			return fmt.Errorf("VFIO_SET_IOMMU: %w; without interrupt remapping the module vfio_iommu_type1 needs allow_unsafe_interrupts=1", err)
		}
		return failed("VFIO_SET_IOMMU", err)
	}
	name := append([]byte(d.handle.Address), 0)
	n, err := d.kernel.ioctl(g, vfioGroupGetDevice, unsafe.Pointer(&name[0]))
	if err != nil {
		return failed("VFIO_GROUP_GET_DEVICE_FD", err)
	}
	unix.CloseOnExec(n)
	d.device = os.NewFile(uintptr(n), "VFIO device "+string(d.handle.Address))
	return nil
}

// neighbours lists the devices of the IOMMU group that have other drivers.
func neighbours(dir string, self Address) string {
	entries, _ := os.ReadDir(filepath.Join(dir, "iommu_group/devices"))
	var list []string
	for _, e := range entries {
		driver, err := os.Readlink(filepath.Join(dir, "iommu_group/devices", e.Name(), "driver"))
		if base := filepath.Base(driver); err == nil && base != "vfio-pci" && e.Name() != string(self) {
			list = append(list, e.Name()+" ("+base+")")
		}
	}
	if list == nil {
		return "devices with other drivers"
	}
	return strings.Join(list, ", ")
}

// reset brings the function to the state after power-on, if it can be reset.
func (d *Device) reset() error {
	info := &deviceInfo{argsz: uint32(unsafe.Sizeof(deviceInfo{}))}
	if _, err := d.kernel.ioctl(d.device, vfioDeviceGetInfo, unsafe.Pointer(info)); err != nil {
		return failed("VFIO_DEVICE_GET_INFO", err)
	}
	if info.flags&deviceFlagPCI == 0 || info.regions <= regionConfig {
		return fmt.Errorf("%w: it is no PCI device to VFIO", ErrUnsupported)
	}
	if info.flags&deviceFlagReset == 0 {
		return nil
	}
	if _, err := d.kernel.ioctl(d.device, vfioDeviceReset, nil); err != nil {
		return failed("VFIO_DEVICE_RESET", err)
	}
	return nil
}
