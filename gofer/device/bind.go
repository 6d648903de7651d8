package device

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"runsc-fs/nvme/pcie"
)

// Bind takes a controller from the kernel's driver and gives it to vfio-pci. With force
// it does so even if there is a partition table or a file system on it, but never if that
// is in use. If it fails the controller is where it was.
func (h *Host) Bind(addr pcie.Address, force bool) error {
	i, err := h.Get(addr)
	if err != nil {
		return err
	}
	switch {
	case i.Driver == driverVFIO:
		return failf(ErrAlready, addr, "is bound to vfio-pci already")
	case i.VFIO == NoIOMMU, i.VFIO == NotTrusted:
		return failf(ErrUnusable, addr, "has no IOMMU, without which it could overwrite any memory; turn it on in the firmware and with intel_iommu=on (or amd_iommu=on) on the kernel's command line")
	case i.Neighbours != nil:
		return failf(ErrUnusable, addr, "shares its IOMMU group with %s; VFIO gives it out only when they have no driver of the host", i.VFIO[len(SharedWith):])
	case i.Driver != "" && i.Driver != driverNVMe:
		return failf(ErrUnusable, addr, "is bound to %s, which is not this program's to take it from; unbind it there first", i.Driver)
	}
	if err := h.checkUnused(&i); err != nil {
		return err
	}
	if !force {
		if err := h.checkEmpty(&i); err != nil {
			return err
		}
	}
	if err := h.needVFIO(addr); err != nil {
		return err
	}
	if err := i.remember(h); err != nil {
		return failf(ErrUnusable, addr, "cannot be bound: %v", err)
	}
	if err := h.rebind(addr, i.Driver, driverVFIO, driverVFIO); err != nil {
		back := h.rebind(addr, "", "", i.Driver)
		os.Remove(h.path(memoryPath, string(addr)))
		return errors.Join(failf(ErrUnusable, addr, "cannot be bound to vfio-pci: %v", err), back)
	}
	return nil
}

// needVFIO loads vfio-pci if it is not there.
func (h *Host) needVFIO(addr pcie.Address) error {
	if _, err := os.Stat(h.path(driversPath, driverVFIO)); err == nil {
		return nil
	}
	err := h.loadModule(driverVFIO)
	if err == nil {
		_, err = os.Stat(h.path(driversPath, driverVFIO))
	}
	if err != nil {
		return failf(ErrUnusable, addr, "cannot be bound: the kernel has no driver vfio-pci (%v); load the module first", err)
	}
	return nil
}

// Unbind gives a controller back to the kernel's driver.
func (h *Host) Unbind(addr pcie.Address) error {
	i, err := h.Get(addr)
	if err != nil {
		return err
	}
	if i.Driver != driverVFIO {
		driver := i.Driver
		if driver == "" {
			driver = "no driver"
		}
		return failf(ErrAlready, addr, "is not bound to vfio-pci but to %s", driver)
	}
	if err := h.checkReleased(&i); err != nil {
		return err
	}
	if err := h.rebind(addr, driverVFIO, "", driverNVMe); err != nil {
		return failf(ErrUnusable, addr, "cannot be given back to the nvme driver: %v", err)
	}
	if err := os.Remove(h.path(memoryPath, string(addr))); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// checkReleased refuses a controller that a process has open: the kernel would wait
// for it to let go. Who opens the group of an open device is refused.
func (h *Host) checkReleased(i *Info) error {
	f, err := os.OpenFile(h.path("dev/vfio", i.IOMMUGroup), os.O_RDWR|unix.O_CLOEXEC, 0)
	if err == nil {
		return f.Close()
	}
	if busy(err) {
		return failf(ErrInUse, i.Address, "is in use by a container or another program; stop that first ('runsc-fs volume ls' shows who has a volume)")
	}
	return nil // no such file: nobody can have it open by the group
}

// rebind moves a device from one driver to another one. override makes the kernel
// take that driver whatever devices it knows; "" lets drivers find the device by their
// own tables. It fails unless the device has the driver to in the end.
func (h *Host) rebind(addr pcie.Address, from, override, to string) error {
	dev := []string{devicesPath, string(addr)}
	if override == "" {
		override = "\n" // what takes it away
	}
	if err := h.set(override, append(dev, "driver_override")...); err != nil {
		return fmt.Errorf("driver_override: %w", err)
	}
	if from != "" {
		if err := h.set(string(addr), append(dev, "driver/unbind")...); err != nil {
			return fmt.Errorf("unbinding it from %s: %w", from, err)
		}
	}
	if to == "" {
		return nil
	}
	if err := h.set(string(addr), probePath); err != nil {
		return fmt.Errorf("drivers_probe: %w", err)
	}
	if now := h.linkBase(append(dev, "driver")...); now != to {
		if now == "" {
			now = "no driver"
		}
		return fmt.Errorf("it went to %s instead of %s; the kernel's log says why", now, to)
	}
	return nil
}
