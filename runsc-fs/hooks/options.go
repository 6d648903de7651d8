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
	data := []string{"volume=" + volume}
	if o.Atime == oci.AtimeStrict {
		data = append(data, "strictatime")
	}
	if o.Discard {
		data = append(data, "discard")
	}
	if o.Sync {
		data = append(data, "sync")
	}
	if o.DirSync {
		data = append(data, "dirsync")
	}
	for _, number := range []struct {
		name  string
		value int64
	}{
		{"commit", int64(o.CommitSeconds)}, {"size", o.SizeBytes}, {"nr_inodes", o.Inodes}, {"cache", o.CacheBytes},
	} {
		if number.value != 0 {
			data = append(data, fmt.Sprintf("%s=%d", number.name, number.value))
		}
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
