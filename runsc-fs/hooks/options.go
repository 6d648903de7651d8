package hooks

import (
	"fmt"
	"strings"

	"gvisor.dev/gvisor/pkg/sentry/vfs"

	"runsc-fs/oci"
)

// mountOptions translates the options of a volume mount into those of the
// sentry and the data that blobfs parses. Host and sandbox use the same
// function, so that the host refuses what the sandbox would.
func mountOptions(volume string, options []string) (*vfs.MountOptions, error) {
	o, err := oci.ParseOptions(options)
	if err != nil {
		return nil, fmt.Errorf("volume %q: %w", volume, err)
	}
	for _, missing := range []struct {
		set  bool
		name string
	}{
		{o.Sync, "sync"}, {o.DirSync, "dirsync"}, {o.SizeBytes != 0, "size"}, {o.CacheBytes != 0, "cache"},
	} {
		if missing.set {
			return nil, fmt.Errorf("volume %q: mount option %q is not supported", volume, missing.name)
		}
	}
	data := []string{"volume=" + volume}
	if o.Atime == oci.AtimeStrict {
		data = append(data, "strictatime")
	}
	if o.Discard {
		data = append(data, "discard")
	}
	if o.CommitSeconds != 0 {
		data = append(data, fmt.Sprintf("commit=%d", o.CommitSeconds))
	}
	opts := &vfs.MountOptions{
		ReadOnly: o.ReadOnly,
		GetFilesystemOptions: vfs.GetFilesystemOptions{
			InternalMount: true,
			Data:          strings.Join(data, ","),
		},
	}
	opts.Flags.NoExec = o.NoExec
	opts.Flags.NoSUID = o.NoSUID
	opts.Flags.NoDev = o.NoDev
	opts.Flags.NoATime = o.Atime == oci.AtimeNever
	return opts, nil
}
