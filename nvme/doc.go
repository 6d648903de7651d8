// Package nvme is a polled driver for NVMe controllers and the memory that they
// reach. It follows the NVM Express Base Specification 2.0 and the NVM Command
// Set Specification 1.0 and uses their names.
//
// A Transport reaches a controller's registers. Open initialises it and gives a
// Controller, whose Namespace method gives a BlockDevice; OpenNamespace does
// both. Data lies in an Arena, the only memory a controller can reach. Package
// soft has a controller in software, package nvmetest the conformance suite of
// transports and devices, package crashdev a disk for power-cut tests.
//
// # How requests run
//
// Do takes a queue pair that nobody uses, or shares one when all are taken. It
// turns its requests into commands, rings the doorbell once, and polls for the
// completions in the caller's thread: it spins for a time that follows the
// measured latency, at most 20 µs, then yields to other goroutines, then sleeps
// up to 1 ms at a time or waits for an interrupt. Who shares a queue finds the
// others' completions, too. The driver has no goroutine of its own, and an open
// controller that is not used costs no processor time.
//
// # Errors
//
// A command that fails without DNR is tried again. A command whose deadline has
// passed is aborted; if that does not bring it back, the controller is reset,
// which takes all commands away from it: those whose time is up fail with
// ErrTimeout, the others are sent again. A controller that sends what no
// controller may send, or that reports a fatal error, is reset as well, and one
// that cannot be reset is cut off from the arena and given up. So Do returns in
// bounded time, and once it has returned the controller does not touch the
// memory of its requests any more.
//
// # Locks
//
// In this order: Controller.resetMu, the mu of the I/O queue pairs by ascending
// number, the mu of the admin queue pair, Arena.mu. Waiting for a command
// releases the mu of its queue pair. The transport is called with them held and
// must not call back.
package nvme
