// Package pcie reaches NVMe controllers on the PCI bus through VFIO: an
// nvme.Transport whose registers are BAR 0 of the function and whose DMA goes
// through the IOMMU to the arena and nowhere else.
//
// # Two steps
//
// OpenDevice does what takes privileges: it opens the function, which has to
// be bound to vfio-pci, resets it and puts it into an I/O address space that
// is still empty. Device.Attach does the rest in the process that owns the
// arena: it maps BAR 0, maps the arena for DMA, sets interrupts up and lets
// the function be bus master. Between the two a Device can move to another
// process as two descriptors and a Handle. After Attach a device that came that
// way makes no ioctl any more, so that a sandbox need not allow any: it needs
// mmap (anonymous, fixed), munmap, pread64, pwrite64, read and close.
//
// Two kernel interfaces lead there, and this package takes the better one that
// there is: iommufd with a character device for each function (Linux 6.6), and
// the older containers with IOMMU groups. Without an IOMMU the kernel offers
// groups that protect nothing; they are used only on demand.
//
// # Registers
//
// The kernel maps BAR 0 as a whole or with holes, for instance around the MSI-X
// table. What lies in a hole is reached by pread and pwrite. A function that is
// gone reads as all ones. That happens when it was pulled out, and when the
// kernel wants it back: then the transport lets go of it, puts ordinary memory
// in place of the registers and closes the descriptors.
//
// # Interrupts
//
// Each vector has an eventfd. A vector stays masked, by its bit in the MSI-X
// table, as long as nobody waits for it: a polled completion costs no interrupt.
// Where the kernel does not let the table be mapped there are no interrupts.
//
// # Locks
//
// Transport.closeMu, then vector.mu.
package pcie
