package nvme

import (
	"time"
)

// Transport gives access to one controller: its registers (Base 2.0, 3.1.3) and
// the memory that it reaches by DMA. Everything else is above it and the same
// for all controllers.
//
// All methods may be called concurrently. A register access of a device that
// is gone reads as all ones, as PCI has it, and is ignored when it writes.
// Writes reach the controller after the memory stores that precede them.
type Transport interface {
	Read32(reg uint32) uint32
	Read64(reg uint32) uint64
	Write32(reg uint32, v uint32)
	Write64(reg uint32, v uint64)

	// Arena is the only memory that the controller can reach.
	Arena() *Arena
	// DMABase is the device address of the arena's first byte.
	DMABase() uint64
	// StopDMA cuts the controller off the arena for good, whatever state it
	// is in (PCI: bus master off). When it returns no more access happens. The
	// driver calls it when a controller does not obey CC.EN = 0.
	StopDMA()
	// Close releases the device. The driver has shut the controller down.
	Close() error
}

// InterruptWaiter is a Transport that can wait for interrupts. Without it, or
// without vectors, the driver sleeps and polls.
type InterruptWaiter interface {
	// Vectors is how many interrupt vectors there are. Number 0 belongs to the
	// admin queue; I/O queues share what there is.
	Vectors() int
	// WaitInterrupt returns true when an interrupt of the vector has come since
	// the last call, and false when timeout has passed. Being early is harmless.
	WaitInterrupt(vector uint16, timeout time.Duration) bool
}
