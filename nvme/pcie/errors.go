package pcie

import "errors"

// Errors of opening a device. Their texts say what to do.
var (
	// ErrNoDevice: there is no such PCI device.
	ErrNoDevice = errors.New("no such PCI device")
	// ErrNotBound: the device is not bound to vfio-pci.
	ErrNotBound = errors.New("not bound to vfio-pci")
	// ErrInUse: another process has the device.
	ErrInUse = errors.New("device is in use")
	// ErrNoIOMMU: the machine or its kernel has no IOMMU for the device.
	ErrNoIOMMU = errors.New("no IOMMU")
	// ErrNotViable: other devices of the IOMMU group have drivers of the host.
	ErrNotViable = errors.New("IOMMU group is not viable")
	// ErrUnsupported: the device or the kernel lacks what is needed.
	ErrUnsupported = errors.New("not supported")
)
