package soft

import (
	"errors"
	"fmt"

	"runsc-fs/nvme"
)

// memoryArenaBytes is the size of the arena that NewMemory makes.
const memoryArenaBytes = 256 << 20

// Open puts a controller in front of a backing and the driver on the
// controller, and returns the namespace ready for use. Closing it shuts the
// controller down and closes the backing, which is closed on failure, too. The
// arena stays the caller's.
func Open(backing Backing, arena *nvme.Arena, opts Options) (nvme.BlockDevice, error) {
	c, err := New(arena, []Backing{backing}, opts)
	if err != nil {
		return nil, errors.Join(err, backing.Close())
	}
	ns, err := nvme.OpenNamespace(c, 1, opts.Driver)
	if err != nil {
		return nil, fmt.Errorf("opening %v: %w", backing, err)
	}
	return ns, nil
}

// memoryDevice is a namespace with an arena of its own.
type memoryDevice struct {
	nvme.BlockDevice
	arena *nvme.Arena
}

func (d *memoryDevice) Close() error {
	return errors.Join(d.BlockDevice.Close(), d.arena.Close())
}

// NewMemory opens a namespace of zeroes in memory with an arena of its own of
// 256 MiB, of which only touched pages cost anything. Closing it unmaps the
// arena: no slice of it may be used afterwards.
func NewMemory(sizeBytes int64) (nvme.BlockDevice, error) {
	arena, err := nvme.NewArena(nvme.ArenaOptions{SizeBytes: memoryArenaBytes})
	if err != nil {
		return nil, err
	}
	backing, err := NewMemoryBacking(sizeBytes)
	if err != nil {
		return nil, errors.Join(err, arena.Close())
	}
	dev, err := Open(backing, arena, Options{})
	if err != nil {
		return nil, errors.Join(err, arena.Close())
	}
	return &memoryDevice{dev, arena}, nil
}
