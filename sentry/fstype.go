package sentry

import (
	goContext "context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/ktime"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/state"

	"runsc-fs/blobfs"
	"runsc-fs/nvme"
)

// Register makes blobfs a file system type of vfsObj. Applications see it in
// /proc/filesystems, but only the sandbox itself can mount it.
func Register(vfsObj *vfs.VirtualFilesystem) error {
	return vfsObj.RegisterFilesystemType(FilesystemName, &FilesystemType{}, &vfs.RegisterFilesystemTypeOptions{
		AllowUserList: true,
	})
}

// FilesystemType implements vfs.FilesystemType. Its state is that of the
// process, so that it can be saved, and a sandbox without mounted volumes with
// it.
type FilesystemType struct{}

// Name implements vfs.FilesystemType.Name.
func (*FilesystemType) Name() string { return FilesystemName }

// Release implements vfs.FilesystemType.Release.
func (*FilesystemType) Release(context.Context) {}

// GetFilesystem implements vfs.FilesystemType.GetFilesystem. source is the name
// of a volume of the sandbox, unless the option volume=NAME says it. All
// mounts of a volume share one file system; the options of the first one
// count. The error, of an internal mount, is one line that names the volume.
func (t *FilesystemType) GetFilesystem(ctx context.Context, vfsObj *vfs.VirtualFilesystem, creds *auth.Credentials, source string, opts vfs.GetFilesystemOptions) (*vfs.Filesystem, *vfs.Dentry, error) {
	mopts, err := parseMountOptions(opts.Data)
	if err != nil {
		return nil, nil, err
	}
	if mopts.volume != "" {
		source = mopts.volume
	}
	if clock := ktime.RealtimeClockFromContext(ctx); clock != nil {
		// Applications compare file times with their own clock.
		mopts.now = func() int64 { return clock.Now().Nanoseconds() }
	}
	v, err := volumes.find(source)
	if err != nil {
		return nil, nil, err
	}
	fs, err := v.mount(vfsObj, t, mopts)
	switch {
	case errors.Is(err, blobfs.ErrCorrupt):
		err = fmt.Errorf("%w; 'runsc-fs fsck %s' shows more", err, v.spec.Name)
	case errors.Is(err, nvme.ErrNoSpace):
		err = fmt.Errorf("there is no space left on the host's file system that holds its image (%w); free some there, or mount the volume with the option 'ro'", err)
	case errors.Is(err, blobfs.ErrIO):
		err = fmt.Errorf("%w; look into the host's kernel log for errors of the disk that holds its image", err)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("volume %q: %w", v.spec.Name, err)
	}
	fs.root.IncRef()
	return &fs.vfsfs, &fs.root.vfsd, nil
}

// mount returns the file system of the volume with a reference, opening the
// volume if nothing has it mounted.
func (v *volume) mount(vfsObj *vfs.VirtualFilesystem, t *FilesystemType, opts *mountOptions) (*filesystem, error) {
	deadline := time.NewTimer(unmountTimeout)
	defer deadline.Stop()
	for {
		v.mu.Lock()
		if v.closed {
			v.mu.Unlock()
			return nil, ErrShutDown
		}
		if v.fs == nil {
			break
		}
		fs := v.fs
		if fs.vfsfs.TryIncRef() {
			v.mu.Unlock()
			return fs, nil
		}
		// The last mount has just gone and is about to be closed.
		v.mu.Unlock()
		select {
		case <-fs.gone:
		case <-deadline.C:
			return nil, fmt.Errorf("still being unmounted after %v", unmountTimeout)
		}
	}
	defer v.mu.Unlock()
	blob, err := v.openLocked(opts)
	if err != nil {
		return nil, err
	}
	devMinor, err := vfsObj.GetAnonBlockDevMinor()
	if err != nil {
		blob.Close()
		v.device.Close()
		v.device = nil
		return nil, err
	}
	fs := &filesystem{
		volume:      v,
		blob:        blob,
		file:        &arenaFile{arena: v.arena, pages: blob.Pages()},
		devMinor:    devMinor,
		directAlign: blob.DirectAlignBytes(),
		options:     opts.show(),
		strictAtime: opts.strictAtime,
		sync:        opts.sync,
		dirSync:     opts.sync || opts.dirSync,
		inodes:      make(map[uint64]*inode),
		syncErrors:  blob.ErrCursor(),
		gone:        make(chan struct{}),
	}
	fs.cache.limit = int64(v.config.DentryCacheEntries)
	fs.root = fs.newDentry(fs.getInode(blob.Root()), nil, "")
	fs.vfsfs.Init(vfsObj, t, fs)
	v.fs = fs
	return fs, nil
}

// mountOptions are the options of a mount that are blobfs's own.
type mountOptions struct {
	volume         string
	commitInterval time.Duration // 0: the default
	strictAtime    bool
	discard        bool
	sync           bool         // all changes are durable when their calls return
	dirSync        bool         // changes of names are
	limitBytes     int64        // 0: what the volume has
	maxInodes      int64        // 0: as many as there is space for
	cacheBytes     int64        // 0: the default
	now            func() int64 // nil: the host's clock
}

// maxCommitSeconds bounds the option commit=SECONDS.
const maxCommitSeconds = 3600

func parseMountOptions(data string) (*mountOptions, error) {
	opts := &mountOptions{}
	for key, value := range vfs.GenericParseMountOptions(data) {
		switch key {
		case "volume":
			opts.volume = value
		case "commit":
			n, err := strconv.Atoi(value)
			if err != nil || n < 1 || n > maxCommitSeconds {
				return nil, fmt.Errorf("mount option commit=%s: not between 1 and %d seconds", value, maxCommitSeconds)
			}
			opts.commitInterval = time.Duration(n) * time.Second
		case "discard":
			opts.discard = true
		case "sync":
			opts.sync = true
		case "dirsync":
			opts.dirSync = true
		case "size", "nr_inodes", "cache":
			n, err := strconv.ParseInt(value, 10, 64)
			if err != nil || n < 1 {
				return nil, fmt.Errorf("mount option %s=%s: not a positive number", key, value)
			}
			switch key {
			case "size":
				opts.limitBytes = n
			case "nr_inodes":
				opts.maxInodes = n
			case "cache":
				opts.cacheBytes = n
			}
		case "strictatime":
			opts.strictAtime = true
		case "relatime":
			opts.strictAtime = false
		default:
			return nil, fmt.Errorf("mount option %q is not known", key)
		}
	}
	return opts, nil
}

// show returns blobfs's own options as they appear in /proc/mounts.
func (o *mountOptions) show() string {
	var shown []string
	if o.commitInterval != 0 {
		shown = append(shown, fmt.Sprintf("commit=%d", o.commitInterval/time.Second))
	}
	if o.discard {
		shown = append(shown, "discard")
	}
	for _, limit := range []struct {
		name  string
		value int64
	}{{"size", o.limitBytes}, {"nr_inodes", o.maxInodes}, {"cache", o.cacheBytes}} {
		if limit.value != 0 {
			shown = append(shown, fmt.Sprintf("%s=%d", limit.name, limit.value))
		}
	}
	if o.strictAtime {
		shown = append(shown, "strictatime")
	}
	return strings.Join(shown, ",")
}

// errSaveUnsupported is what a checkpoint of a sandbox with a mounted volume
// fails with.
func errSaveUnsupported(volume string) error {
	return fmt.Errorf("volume %s: containers with a mounted blobfs volume cannot be saved or restored", volume)
}

// The methods below make FilesystemType a savable type without content.

// StateTypeName implements state.Type.
func (*FilesystemType) StateTypeName() string { return "runsc-fs/sentry.FilesystemType" }

// StateFields implements state.Type.
func (*FilesystemType) StateFields() []string { return nil }

// StateSave implements state.SaverLoader.
func (*FilesystemType) StateSave(state.Sink) {}

// StateLoad implements state.SaverLoader.
func (*FilesystemType) StateLoad(goContext.Context, state.Source) {}

func init() { state.Register((*FilesystemType)(nil)) }
