package sentry

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/log"

	"runsc-fs/blobfs"
	"runsc-fs/nvme"
	"runsc-fs/sentry/volumestats"
)

// Config sets up the sandbox's share of blobfs.
type Config struct {
	// ArenaBytes is the size of the memory that devices reach by DMA and that
	// holds the page caches of all volumes. It is taken as it is needed. 0 means
	// DefaultArenaBytes.
	ArenaBytes int64
	// HugePages asks for huge pages where the host has any.
	HugePages bool
	// DentryCacheEntries bounds the names kept in memory for each volume. 0
	// means DefaultDentryCacheEntries.
	DentryCacheEntries int
	// NodeCacheBytes bounds the memory for metadata blocks of each volume. 0
	// leaves it to blobfs.
	NodeCacheBytes int64
	// Logf receives one line per event worth knowing. nil means gVisor's log.
	Logf func(format string, args ...any)
}

// Defaults of Config.
const (
	DefaultArenaBytes         = 256 << 20
	DefaultDentryCacheEntries = 128 << 10
)

// minArenaBytes leaves room for queues, buffers and a small cache.
const minArenaBytes = 8 << 20

func (c *Config) setDefaults() error {
	if c.ArenaBytes == 0 {
		c.ArenaBytes = DefaultArenaBytes
	}
	if c.DentryCacheEntries == 0 {
		c.DentryCacheEntries = DefaultDentryCacheEntries
	}
	if c.Logf == nil {
		c.Logf = log.Infof
	}
	switch {
	case c.ArenaBytes < minArenaBytes:
		return fmt.Errorf("sentry: ArenaBytes is %d, less than %d", c.ArenaBytes, minArenaBytes)
	case c.DentryCacheEntries < 0:
		return fmt.Errorf("sentry: DentryCacheEntries is %d", c.DentryCacheEntries)
	}
	return nil
}

// volumes is the registry of the sandbox.
var volumes = &registry{}

// registry holds what a sandbox knows about its volumes.
type registry struct {
	mu     sync.Mutex
	config Config
	arena  *nvme.Arena // nil before Setup
	closed bool
	byName map[string]*volume
}

// volume is one volume of the sandbox, mounted or not.
type volume struct {
	spec   VolumeSpec          // immutable
	config Config              // immutable
	arena  *nvme.Arena         // immutable
	medium medium              // immutable
	stats  *volumestats.Volume // immutable

	// mu serialises mounting, unmounting and shutting down.
	mu        sync.Mutex
	formatted bool        // a file system has been made
	fs        *filesystem // nil while not mounted
	device    nvme.BlockDevice
	sizeBytes int64 // what an image volume has, 0 if nobody said
	closed    bool
}

// Setup prepares the process for blobfs volumes. It is called once, in the
// sandbox process before its system call filter is installed: it makes system
// calls that the filter forbids.
func Setup(cfg Config) error { return volumes.setup(cfg) }

func (r *registry) setup(cfg Config) error {
	if err := cfg.setDefaults(); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.arena != nil {
		return errors.New("sentry: Setup has been called already")
	}
	arena, err := nvme.NewArena(nvme.ArenaOptions{SizeBytes: cfg.ArenaBytes, HugePages: cfg.HugePages})
	if err != nil {
		return fmt.Errorf("sentry: %w", err)
	}
	replaceSyscalls()
	r.config, r.arena, r.byName = cfg, arena, make(map[string]*volume)
	return nil
}

// AddVolume gives a volume to the sandbox and takes over spec.File, unless it
// fails. A volume that the sandbox has already is left as it is: all its
// containers share it. It may be called at any time after Setup, also under
// the filter of the sandbox, where it needs for an image:
//
//	fstat, fcntl(F_GETFL), lseek, and for layers pread64 and an anonymous mmap
//
// and for memory:
//
//	memfd_create(MFD_CLOEXEC|MFD_ALLOW_SEALING), ftruncate,
//	fcntl(F_ADD_SEALS), all three only without spec.File,
//	fcntl(F_GET_SEALS), mmap(MAP_SHARED|MAP_NORESERVE)
//
// A volume on a device is added before there is a filter: it makes ioctls.
//
// A mounted volume needs pread64, preadv, pwrite64, pwritev, fdatasync,
// fallocate, madvise, futex and clock_gettime.
func AddVolume(spec VolumeSpec) error { return volumes.add(spec) }

func (r *registry) add(spec VolumeSpec) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.arena == nil:
		return ErrNotSetUp
	case r.closed:
		return ErrShutDown
	}
	if v, ok := r.byName[spec.Name]; ok {
		if !v.sameAs(&spec) {
			return fmt.Errorf("%w: %s", ErrConflict, spec.Name)
		}
		closeFiles(append(spec.Parents, spec.File, spec.Space, spec.Lock)...)
		return nil
	}
	if err := spec.validate(); err != nil {
		return err
	}
	v := &volume{spec: spec, config: r.config, arena: r.arena, stats: volumestats.NewVolume(spec.Name, string(spec.Kind))}
	if spec.Kind == KindImage {
		v.sizeBytes = spec.SizeBytes
	}
	var err error
	if v.medium, err = v.newMedium(); err != nil {
		return fmt.Errorf("volume %s: %w", spec.Name, err)
	}
	r.byName[spec.Name] = v
	return nil
}

// closeFiles closes those of files that are not nil.
func closeFiles(files ...*os.File) {
	for _, f := range files {
		if f != nil {
			f.Close()
		}
	}
}

// sameAs says whether spec describes the volume again, for another container.
func (v *volume) sameAs(spec *VolumeSpec) bool {
	if v.spec.Kind != spec.Kind {
		return false
	}
	return spec.Kind != KindMemory || v.spec.SizeBytes == spec.SizeBytes // a device comes once only
}

func (r *registry) find(name string) (*volume, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.arena == nil:
		return nil, ErrNotSetUp
	case r.closed:
		return nil, ErrShutDown
	}
	v, ok := r.byName[name]
	if !ok {
		return nil, fmt.Errorf("%w: %q", ErrUnknownVolume, name)
	}
	return v, nil
}

// timeGrain is the granularity of file times: that of Linux at its usual 250 Hz.
const timeGrain = 4 * time.Millisecond

// openLocked starts a controller on the volume and mounts its file system,
// making one first if it has none.
//
// Preconditions: v.mu is held; v is not mounted.
func (v *volume) openLocked(opts *mountOptions) (*blobfs.FS, error) {
	device, err := v.medium.open(nvme.Options{Logf: v.logf})
	if err != nil {
		return nil, err
	}
	if (v.spec.New || v.spec.Kind == KindMemory && v.spec.File == nil) && !v.formatted {
		mkfs := blobfs.MkfsOptions{Now: opts.now}
		if root := v.spec.PopulateRoot; root != nil {
			mkfs.RootUID, mkfs.RootGID, mkfs.RootMode = root.UID, root.GID, root.Mode
		}
		if err := blobfs.Mkfs(device, mkfs); err != nil {
			device.Close()
			return nil, fmt.Errorf("making a file system: %w", err)
		}
		v.formatted = true
	}
	blob, err := blobfs.Mount(device, blobfs.MountOptions{
		ReadOnly:       v.spec.ReadOnly,
		GrowToBytes:    v.sizeBytes,
		Discard:        opts.discard,
		NodeCacheBytes: v.config.NodeCacheBytes,
		LimitBytes:     opts.limitBytes,
		MaxInodes:      opts.maxInodes,
		CacheBytes:     opts.cacheBytes,
		CommitInterval: opts.commitInterval,
		StrictAtime:    opts.strictAtime,
		Now:            opts.now,
		TimeGrain:      timeGrain,
		Logf:           v.logf,
	})
	if err != nil {
		device.Close()
		return nil, err
	}
	v.device = device
	return blob, nil
}

// serial is the controller's serial number: what fits of the name.
func (v *volume) serial() string {
	const serialBytes = 20
	return v.spec.Name[:min(len(v.spec.Name), serialBytes)]
}

func (v *volume) logf(format string, args ...any) {
	v.config.Logf("volume %s: "+format, append([]any{v.spec.Name}, args...)...)
}

// closeLocked writes the mounted file system back and stops its controller.
//
// Preconditions: v.mu is held; v is mounted.
func (v *volume) closeLocked() error {
	err := v.fs.blob.Close()
	if devErr := v.device.Close(); err == nil {
		err = devErr
	}
	v.fs, v.device = nil, nil
	return err
}

// closeMounted is called when the last mount of fs is gone.
func (v *volume) closeMounted(fs *filesystem) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.fs == fs {
		if err := v.closeLocked(); err != nil {
			v.logf("unmounting: %v", err)
		}
	}
	close(fs.gone)
}

// shutdown closes the volume for good, mounted or not.
func (v *volume) shutdown() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.closed {
		return nil
	}
	v.closed = true
	var err error
	if v.fs != nil {
		v.fs.blobGone.Store(true)
		err = v.closeLocked()
	}
	if mediumErr := v.medium.close(); err == nil {
		err = mediumErr
	}
	closeFiles(v.spec.Lock)
	if err != nil {
		return fmt.Errorf("volume %s: %w", v.spec.Name, err)
	}
	return nil
}

// Shutdown flushes and closes all volumes, mounted or not, at the orderly end
// of a sandbox. What still uses them gets EIO. It returns when all are closed
// or ctx is done; what is not written back by then is lost as in a crash.
func Shutdown(ctx context.Context) error { return volumes.shutdown(ctx) }

func (r *registry) shutdown(ctx context.Context) error {
	r.mu.Lock()
	r.closed = true
	closing := make([]*volume, 0, len(r.byName))
	for _, v := range r.byName {
		closing = append(closing, v)
	}
	r.mu.Unlock()
	results := make(chan error, len(closing))
	for _, v := range closing {
		go func() { results <- v.shutdown() }()
	}
	var errs []error
	for range closing {
		select {
		case err := <-results:
			errs = append(errs, err)
		case <-ctx.Done():
			return errors.Join(append(errs, fmt.Errorf("sentry: shutting down: %w", ctx.Err()))...)
		}
	}
	return errors.Join(errs...)
}

// unmountTimeout bounds how long a mount waits for an unmount of the same
// volume that is under way.
const unmountTimeout = 2 * time.Minute
