// Package qtest drives the NVMe controller of QEMU, for tests: a controller
// that nobody here wrote, without a guest, a kernel or privileges.
//
// QEMU runs a machine whose processor is stopped. Its qtest protocol gives
// access to I/O ports and physical memory, and so to the registers of the
// controller; the memory of the machine is a memfd that both processes map, and
// an nvme.Arena lies in it, so that the controller's DMA goes straight there:
//
//	driver ── registers ──► socket ──► QEMU: PCI, NVMe
//	   │                                 │
//	   └──► Arena = part of a memfd ◄────┘ DMA
//
// A register access costs a round trip of some ten microseconds: this is for
// correctness, not for speed.
//
// Machine.mu guards the socket and is the innermost lock.
package qtest
