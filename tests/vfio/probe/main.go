// Command probe does the least that shows a device to be usable through VFIO: it
// opens the device's group, gives it an address space, and reads PCI identifiers and
// the registers CAP and VS of an NVMe controller (Base 2.0, 3.1.3) from its BAR 0. It shares no code
// with the driver, so it tells faults of the machine from the driver's. With a second
// argument it then keeps the device open until it is killed.
package main

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Requests of linux/vfio.h: _IO(';', 100+n).
const (
	vfioGetAPIVersion    = 0x3b64
	vfioCheckExtension   = 0x3b65
	vfioSetIOMMU         = 0x3b66
	vfioGroupGetStatus   = 0x3b67
	vfioGroupSetCtr      = 0x3b68
	vfioGroupGetDevice   = 0x3b6a
	vfioDeviceGetInfo    = 0x3b6b
	vfioDeviceGetRegion  = 0x3b6c
	vfioTypeOneV2        = 3
	vfioGroupViable      = 1
	regionConfig, regBAR = 7, 0
)

// groupStatus is struct vfio_group_status.
type groupStatus struct{ argsz, flags uint32 }

// deviceInfo is struct vfio_device_info.
type deviceInfo struct{ argsz, flags, regions, irqs, capOffset, pad uint32 }

// regionInfo is struct vfio_region_info.
type regionInfo struct {
	argsz, flags, index, capOffset uint32
	sizeBytes, offsetBytes         uint64
}

func main() {
	if len(os.Args) != 2 && (len(os.Args) != 3 || os.Args[2] != "hold") {
		fmt.Fprintln(os.Stderr, "usage: probe 0000:00:03.0 [hold]")
		os.Exit(2)
	}
	if err := probe(os.Args[1], len(os.Args) == 3); err != nil {
		fmt.Fprintf(os.Stderr, "probe %s: %v\n", os.Args[1], err)
		os.Exit(1)
	}
}

// control is an ioctl whose result counts.
func control(what string, fd int, request uintptr, arg uintptr) (int, error) {
	r, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, arg)
	if errno != 0 {
		return -1, fmt.Errorf("%s: %w", what, errno)
	}
	return int(r), nil
}

func probe(address string, hold bool) error {
	link, err := os.Readlink("/sys/bus/pci/devices/" + address + "/iommu_group")
	if err != nil {
		return fmt.Errorf("no IOMMU group: %w", err)
	}
	container, err := unix.Open("/dev/vfio/vfio", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("/dev/vfio/vfio: %w", err)
	}
	defer unix.Close(container)
	version, err := control("VFIO_GET_API_VERSION", container, vfioGetAPIVersion, 0)
	if err != nil {
		return err
	}
	extension, err := control("VFIO_CHECK_EXTENSION", container, vfioCheckExtension, vfioTypeOneV2)
	if err != nil {
		return err
	}
	if version != 0 || extension != 1 {
		return fmt.Errorf("VFIO API version %d, type 1 v2 IOMMU %d", version, extension)
	}
	group, err := unix.Open("/dev/vfio/"+filepath.Base(link), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("group %s: %w", filepath.Base(link), err)
	}
	defer unix.Close(group)
	device, err := openDevice(container, group, address)
	if err != nil {
		return err
	}
	defer unix.Close(device)
	if err := readDevice(device, address); err != nil || !hold {
		return err
	}
	for {
		time.Sleep(time.Hour)
	}
}

// openDevice gives the group the container's address space and opens the device.
func openDevice(container, group int, address string) (int, error) {
	status := groupStatus{argsz: uint32(unsafe.Sizeof(groupStatus{}))}
	if _, err := control("VFIO_GROUP_GET_STATUS", group, vfioGroupGetStatus, uintptr(unsafe.Pointer(&status))); err != nil {
		return -1, err
	}
	if status.flags&vfioGroupViable == 0 {
		return -1, fmt.Errorf("the group is not viable: another of its devices has a driver")
	}
	fd := int32(container)
	if _, err := control("VFIO_GROUP_SET_CONTAINER", group, vfioGroupSetCtr, uintptr(unsafe.Pointer(&fd))); err != nil {
		return -1, err
	}
	if _, err := control("VFIO_SET_IOMMU", container, vfioSetIOMMU, vfioTypeOneV2); err != nil {
		return -1, err
	}
	name, err := unix.BytePtrFromString(address)
	if err != nil {
		return -1, err
	}
	return control("VFIO_GROUP_GET_DEVICE_FD", group, vfioGroupGetDevice, uintptr(unsafe.Pointer(name)))
}

func region(device int, index uint32) (regionInfo, error) {
	info := regionInfo{argsz: uint32(unsafe.Sizeof(regionInfo{})), index: index}
	_, err := control("VFIO_DEVICE_GET_REGION_INFO", device, vfioDeviceGetRegion, uintptr(unsafe.Pointer(&info)))
	return info, err
}

// readDevice prints what the device says of itself, one line.
func readDevice(device int, address string) error {
	info := deviceInfo{argsz: uint32(unsafe.Sizeof(deviceInfo{}))}
	if _, err := control("VFIO_DEVICE_GET_INFO", device, vfioDeviceGetInfo, uintptr(unsafe.Pointer(&info))); err != nil {
		return err
	}
	config, err := region(device, regionConfig)
	if err != nil {
		return err
	}
	header := make([]byte, 16)
	if _, err := unix.Pread(device, header, int64(config.offsetBytes)); err != nil {
		return fmt.Errorf("configuration space: %w", err)
	}
	class := header[9:12] // programming interface, subclass, class
	// Memory space on, so that the registers answer.
	command := binary.LittleEndian.AppendUint16(nil, binary.LittleEndian.Uint16(header[4:])|1<<1)
	if _, err := unix.Pwrite(device, command, int64(config.offsetBytes)+4); err != nil {
		return fmt.Errorf("command register: %w", err)
	}
	bar, err := region(device, regBAR)
	if err != nil {
		return err
	}
	registers, err := unix.Mmap(device, int64(bar.offsetBytes), 4096, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("mapping BAR 0: %w", err)
	}
	defer unix.Munmap(registers)
	low := *(*uint32)(unsafe.Pointer(&registers[0]))
	version := *(*uint32)(unsafe.Pointer(&registers[8]))
	var classText strings.Builder
	for i := range class {
		fmt.Fprintf(&classText, "%02x", class[len(class)-1-i])
	}
	fmt.Printf("device=%s vendor=%04x class=%s regions=%d interrupts=%d bar0=%d mqes=%d version=%d.%d\n",
		address, binary.LittleEndian.Uint16(header), classText.String(), info.regions, info.irqs, bar.sizeBytes,
		low&0xffff, version>>16, version>>8&0xff)
	return nil
}
