package nvme

import (
	"fmt"
	"time"
)

// Limits of Options. A command identifier holds a slot number of 10 bits.
const (
	maxQueuePairs    = 1024
	maxQueueDepth    = 1 << slotBits
	maxTransferLimit = 64 << 20
)

// Features are things that some controllers offer and the driver would use.
type Features uint

// Features that can be avoided.
const (
	FeatureSGL            Features = 1 << iota // scatter gather lists
	FeatureDoorbellBuffer                      // doorbells in memory
)

// Options are the parameters of the driver. The zero value is a good choice.
type Options struct {
	// QueuePairs is how many I/O queue pairs are wanted; the controller may
	// grant fewer, and a small arena holds fewer. Callers beyond that number
	// share. Default 32.
	QueuePairs int
	// QueueDepth is the length of a submission queue, 2 to 1024. One less can
	// be outstanding. Default 256.
	QueueDepth int
	// MaxTransferBytes bounds one command below what MDTS allows; a multiple
	// of 4096. Default 2 MiB.
	MaxTransferBytes int
	// CommandTimeout is the time that an I/O command has from the moment it is
	// waited for. Default 30 s.
	CommandTimeout time.Duration
	// AdminTimeout is the same for admin commands. Default 30 s.
	AdminTimeout time.Duration
	// RemovalGrace is how long registers may read as all ones, as those of a function
	// that is being reset do, before the device counts as removed. Default 1 s, the
	// longest that PCI Express gives a function after its reset.
	RemovalGrace time.Duration
	// Retries is how often a command is sent again after a status without DNR
	// or a reset of the controller. Default 3; negative: never.
	Retries int
	// OnlyNamespace is the one namespace that may be opened and named in commands;
	// 0: any. It guards against mistakes above the driver and in it: a controller
	// does not tell callers apart.
	OnlyNamespace uint32
	// Avoid are features of the controller that are not to be used.
	Avoid Features
	// EventInterval is how often the driver looks for asynchronous events of a
	// controller that is not waited for. Default 10 s; negative: never.
	EventInterval time.Duration
	// OnEvent is told of asynchronous events, one at a time, on a goroutine of
	// its own or in PollEvents. It must not call PollEvents or Controller.Close,
	// which wait for it. Default: nobody.
	OnEvent func(Event)
	// Logf takes notices of timeouts, resets, events and the controller's health.
	// Default: nowhere.
	Logf func(format string, args ...any)
}

func (o *Options) setDefaults() error {
	if o.QueuePairs == 0 {
		o.QueuePairs = 32
	}
	if o.QueueDepth == 0 {
		o.QueueDepth = 256
	}
	if o.MaxTransferBytes == 0 {
		o.MaxTransferBytes = 2 << 20
	}
	if o.CommandTimeout == 0 {
		o.CommandTimeout = 30 * time.Second
	}
	if o.AdminTimeout == 0 {
		o.AdminTimeout = 30 * time.Second
	}
	if o.RemovalGrace == 0 {
		o.RemovalGrace = time.Second
	}
	if o.Retries == 0 {
		o.Retries = 3
	}
	if o.EventInterval == 0 {
		o.EventInterval = 10 * time.Second
	}
	o.Retries = min(max(o.Retries, 0), 100)
	if o.Logf == nil {
		o.Logf = func(string, ...any) {}
	}
	switch {
	case o.QueuePairs < 1 || o.QueuePairs > maxQueuePairs:
		return fmt.Errorf("nvme: QueuePairs is %d, not within 1 to %d", o.QueuePairs, maxQueuePairs)
	case o.QueueDepth < 2 || o.QueueDepth > maxQueueDepth:
		return fmt.Errorf("nvme: QueueDepth is %d, not within 2 to %d", o.QueueDepth, maxQueueDepth)
	case o.MaxTransferBytes < PageSizeBytes || o.MaxTransferBytes > maxTransferLimit || o.MaxTransferBytes%PageSizeBytes != 0:
		return fmt.Errorf("nvme: MaxTransferBytes is %d, not a multiple of %d up to %d", o.MaxTransferBytes, PageSizeBytes, maxTransferLimit)
	case o.CommandTimeout < 0 || o.AdminTimeout < 0 || o.RemovalGrace < 0:
		return fmt.Errorf("nvme: negative timeout")
	}
	return nil
}
