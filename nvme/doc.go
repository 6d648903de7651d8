// Package nvme is a polled driver for NVMe controllers and the memory that they
// reach. It follows the NVM Express Base Specification 2.0 and the NVM Command
// Set Specification 1.0 and uses their names.
//
// A Transport reaches a controller's registers. Open initialises it and gives a
// Controller, whose Namespace method gives a BlockDevice; OpenNamespace does
// both. Data lies in an Arena, the only memory a controller can reach. Package
// soft has a controller in software, package pcie a transport to real ones,
// package nvmetest the conformance suite of transports and devices, package
// qtest a transport to the controller of QEMU for tests, package crashdev a disk
// for power-cut tests.
//
// A BlockDevice does what a store needs. Namespace has Compare, Verify and Copy
// besides, Controller the health, error and firmware logs, where the controller
// offers them.
//
// # How requests run
//
// Do takes a queue pair that nobody uses, or shares one when all are taken. It
// turns its requests into commands, rings the doorbell once, and polls for the
// completions in the caller's thread: it spins for a time that follows the
// measured latency, at most 20 µs, then yields to other goroutines, then waits
// for an interrupt or, without one, sleeps up to 1 ms at a time. Who shares a queue finds the
// others' completions, too.
//
// # Events
//
// Requests for asynchronous events are kept outstanding. Who waits for an admin
// command comes across them, and a timer looks every Options.EventInterval: the
// only thing that the driver does by itself. An event is decoded, its log page
// read and the result given to Options.Logf and Options.OnEvent. A namespace
// that went away, was formatted or was replaced under its users is closed.
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
// In this order: eventQueue.mu, Controller.resetMu, the mu of the I/O queue pairs
// by ascending number, the mu of the admin queue pair, Arena.mu. Nothing else is
// taken under Controller.namespacesMu. Waiting for a command releases the mu of
// its queue pair. The transport is called with them held and must not call back;
// Options.OnEvent is called with eventQueue.mu held alone.
package nvme
