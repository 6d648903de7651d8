// Package nvme is a polled driver for NVMe controllers.
package nvme

// Arena is the memory that a controller may reach by DMA.
type Arena struct{}
