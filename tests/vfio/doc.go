// Package vfio boots a small Linux guest in QEMU that has NVMe controllers behind an
// emulated IOMMU, and runs programs in it: what the driver, the commands for devices
// and containers do with a real PCI device under vfio-pci is tested there.
//
// A guest needs no KVM and takes a few seconds to boot. It has a Debian kernel, busybox, the
// programs that a Spec names in /disk/bin, and when asked for the root file system
// of the end-to-end tests in /base, both read-only. Its root is a tmpfs. The script of the
// Spec runs as root; its output and exit status come back over a serial line.
//
// Nothing on the host is touched but the directory given to Boot and the cache of
// package lab. A guest ends with Close, with its deadline, or with this process.
//
// All methods of Guest may be called concurrently. Guest.mu is the only lock.
package vfio
