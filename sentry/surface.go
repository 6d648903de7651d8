package sentry

import (
	"context"

	"gvisor.dev/gvisor/pkg/sentry/vfs"
)

var _ vfs.FilesystemType

// Config sets up the sandbox's share of blobfs.
type Config struct {
	// ArenaBytes is the size of the memory that devices reach by DMA and that
	// holds the page cache of all volumes. 0 means DefaultArenaBytes.
	ArenaBytes int64
	// HugePages asks for huge pages where the host has any.
	HugePages bool
	// Logf receives one line per event worth knowing. nil means gVisor's log.
	Logf func(format string, args ...any)
}

// DefaultArenaBytes is Config.ArenaBytes when it is 0.
const DefaultArenaBytes = 256 << 20

// Setup prepares the process for blobfs volumes.
func Setup(cfg Config) error { return nil }

// AddVolume gives a volume to the sandbox.
func AddVolume(spec VolumeSpec) error { return spec.validate() }

// Register makes the file system type known to vfsObj.
func Register(vfsObj *vfs.VirtualFilesystem) error { return nil }

// Shutdown flushes and closes every volume.
func Shutdown(ctx context.Context) error { return nil }
