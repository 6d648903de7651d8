package hooks

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"sync"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/seccomp"
	"gvisor.dev/gvisor/pkg/sentry/vfs"

	"runsc-fs/sentry"
	"runsc-fs/sentry/aio"
	"runsc-fs/sentry/volumestats"
)

// Names of the flags of the sandbox process.
const (
	volumesFlag   = "blobfs-volumes"
	volumeFDsFlag = "blobfs-volume-fds"
	traceFlag     = "blobfs-trace-volumes"
)

// boot is the state of the sandbox process.
var boot struct {
	// volumes and fds are set by the flags and not changed afterwards.
	volumes volumeArgs
	fds     intList
	trace   bool

	// shutdown makes the first call of Shutdown do the work and others wait.
	shutdown sync.Once
	// ending is closed when Shutdown begins.
	ending chan struct{}
}

func init() { boot.ending = make(chan struct{}) }

// SetBootFlags adds the flags of the sandbox process.
func SetBootFlags(f *flag.FlagSet) {
	f.Var(&boot.volumes, volumesFlag, "JSON list of the blobfs volumes donated to the sandbox")
	f.BoolVar(&boot.trace, traceFlag, false, "trace calls on volumes from the start")
	f.Var(&boot.fds, volumeFDsFlag, "descriptors of the donated volumes, in the order of the list")
}

// enabled tells whether the sandbox has volumes or may get some.
func enabled() bool { return boot.volumes.set }

// Setup takes the donated volumes. It runs once, before the system call filter
// is installed; totalMemory is the memory limit of the sandbox in bytes, 0 if
// unknown.
func Setup(totalMemory uint64) error {
	if !enabled() {
		return nil
	}
	if err := sentry.Setup(memoryConfig(totalMemory)); err != nil {
		return fmt.Errorf("blobfs: %w", err)
	}
	files := make([]*os.File, len(boot.fds))
	for i, fd := range boot.fds {
		unix.CloseOnExec(fd)
		files[i] = os.NewFile(uintptr(fd), fmt.Sprintf("blobfs volume file %d", i))
	}
	if err := addVolumes(boot.volumes.list, files); err != nil {
		return err
	}
	registerMetrics()
	if boot.trace {
		if err := volumestats.TraceAlways(); err != nil {
			return fmt.Errorf("blobfs: %w", err)
		}
	}
	return nil
}

// memoryConfig sizes what the sandbox keeps in memory for volumes, so that a
// sandbox with little memory is not killed for what it only keeps for speed.
// Names and inodes take about 1 KiB each, and garbage collection doubles that
// and the node cache.
func memoryConfig(totalMemory uint64) sentry.Config {
	cfg := sentry.Config{ArenaBytes: arenaBytes(totalMemory), Logf: log.Infof}
	if totalMemory != 0 {
		cfg.DentryCacheEntries = int(min(max(totalMemory>>14, 4<<10), sentry.DefaultDentryCacheEntries))
		cfg.NodeCacheBytes = int64(min(max(totalMemory>>5, 4<<20), 64<<20))
	}
	return cfg
}

// arenaBytes sizes the memory that holds the page cache and all device
// buffers: an eighth of what the sandbox may use, or a quarter if that is
// little, within bounds. The memory is taken as it is needed.
func arenaBytes(totalMemory uint64) int64 {
	const (
		least  = 16 << 20
		enough = 64 << 20
		most   = 4 << 30
	)
	if totalMemory == 0 {
		return sentry.DefaultArenaBytes
	}
	share := max(totalMemory/8, min(totalMemory/4, enough))
	return int64(min(max(share, least), most)) &^ (1<<21 - 1)
}

// addVolumes gives volumes and their files to package sentry. It owns files.
func addVolumes(args []VolumeArg, files []*os.File) error {
	var errs []error
	for i := range args {
		a := &args[i]
		if a.files() > len(files) {
			errs = append(errs, fmt.Errorf("volume %q came without its files", a.Name))
			break
		}
		own := files[:a.files()]
		files = files[a.files():]
		if err := addVolume(a, own); err != nil {
			errs = append(errs, err)
		}
	}
	for _, f := range files {
		f.Close()
	}
	return errors.Join(errs...)
}

func addVolume(a *VolumeArg, files []*os.File) error {
	spec := sentry.VolumeSpec{
		Name:        a.Name,
		Kind:        sentry.Kind(a.Kind),
		SizeBytes:   a.SizeBytes,
		ReadOnly:    a.ReadOnly,
		ContainerID: a.Container,
	}
	next := files
	if a.HasImage {
		spec.File, next = next[0], next[1:]
	}
	if a.Parents > 0 {
		spec.Parents, next = next[:a.Parents], next[a.Parents:]
	}
	if a.Device != nil {
		spec.Device, spec.Namespace = *a.Device, a.Namespace
		spec.File, spec.Space, next = next[0], next[1], next[2:]
	}
	if a.HasLock {
		spec.Lock = next[0]
	}
	if err := sentry.AddVolume(spec); err != nil {
		for _, f := range files {
			f.Close()
		}
		return withName(a.Name, err)
	}
	return nil
}

// ReceiveVolumes takes the volumes of a further container out of the file
// payload of its start request, where they are the last files.
func ReceiveVolumes(args []VolumeArg, payload *[]*os.File) error {
	if len(args) == 0 {
		return nil
	}
	if !enabled() {
		return fmt.Errorf("volume %q: this sandbox was not made for blobfs volumes", args[0].Name)
	}
	n := 0
	for i := range args {
		if args[i].Device != nil {
			return errLateDevice(args[i].Name)
		}
		n += args[i].files()
	}
	if n > len(*payload) {
		return fmt.Errorf("volume %q came without its files", args[0].Name)
	}
	// The files of a request are closed with it.
	sent := (*payload)[len(*payload)-n:]
	*payload = (*payload)[:len(*payload)-n]
	files := make([]*os.File, 0, n)
	for _, f := range sent {
		fd, err := unix.Dup(int(f.Fd()))
		if err != nil {
			for _, f := range files {
				f.Close()
			}
			return fmt.Errorf("volume files: %w", err)
		}
		files = append(files, os.NewFile(uintptr(fd), f.Name()))
	}
	return addVolumes(args, files)
}

// RegisterFilesystem makes blobfs a file system type of the sandbox.
func RegisterFilesystem(vfsObj *vfs.VirtualFilesystem) error {
	if !enabled() {
		return nil
	}
	return sentry.Register(vfsObj)
}

// SeccompRules returns what the sandbox may call beyond the stock filter.
func SeccompRules() seccomp.SyscallRules {
	rules := seccomp.NewSyscallRules()
	if !enabled() {
		return rules
	}
	// A volume on a device needs nothing at all: its registers are memory, and what
	// takes ioctls is done before there is a filter. See docs/devices.md.
	//
	// The stock filter has everything else that a volume needs: pread64,
	// pwrite64 and their vector forms, fsync, fallocate and shared mappings.
	//
	// Flush of an image: fsync would also write the image's own times to the
	// host's journal on every commit. The call takes a descriptor only, and
	// reaches nothing that fsync does not.
	rules.Add(unix.SYS_FDATASYNC, seccomp.MatchAll{})
	// A memory volume of a container that joins the sandbox is mapped after the
	// filter is in place. The mapping differs from one that is allowed anyway by
	// a flag that reserves no swap for it, and it cannot be executable: that
	// the stock filter denies for all mappings.
	rules.Add(unix.SYS_MMAP, seccomp.PerArg{
		seccomp.AnyValue{},
		seccomp.AnyValue{},
		seccomp.EqualTo(unix.PROT_READ | unix.PROT_WRITE),
		seccomp.EqualTo(unix.MAP_SHARED | unix.MAP_NORESERVE),
	})
	// Before that the sandbox makes sure that nobody can shorten the memory,
	// which would kill it.
	rules.Add(unix.SYS_FCNTL, seccomp.PerArg{
		seccomp.NonNegativeFD{},
		seccomp.EqualTo(unix.F_GET_SEALS),
	})
	return rules
}

// The files of /proc/sys/fs about asynchronous I/O.
var (
	AIOMaxNr = &aio.MaxNr
	AIONr    = &aio.Nr
)

// MountOptions translates a volume mount of a container's specification.
func MountOptions(m *specs.Mount) (string, *vfs.MountOptions, error) {
	if !enabled() {
		return "", nil, fmt.Errorf("volume %q was not given to this sandbox", m.Source)
	}
	opts, err := mountOptions(m.Source, m.Options)
	return FilesystemName, opts, err
}

// shutdownTimeout bounds the write-back at the end of a sandbox. What is left
// then is lost as in a power cut: nothing that was synced.
const shutdownTimeout = 100 * time.Second

// Shutdown writes all volumes back and closes them, which frees their locks.
func Shutdown() {
	if !enabled() {
		return
	}
	boot.shutdown.Do(func() {
		close(boot.ending)
		ctx, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
		defer cancel()
		if err := sentry.Shutdown(ctx); err != nil {
			log.Warningf("blobfs: closing the volumes: %v", err)
		}
	})
}
