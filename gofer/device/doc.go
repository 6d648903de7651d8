// Package device finds the NVMe controllers of this machine and moves them
// between the kernel's nvme driver and vfio-pci, under which a volume can have
// one for itself.
//
// It reads and writes sysfs, and reads block devices, /proc and /dev. A device
// that the host uses is never taken away from it: not with a mounted file
// system, swap, or a device mapper or RAID device on it, whatever the user
// forces; with a partition table or a file system on it only by force.
//
// The package has no global state and no locks.
package device
