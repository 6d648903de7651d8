package sentry

import (
	"strings"

	"gvisor.dev/gvisor/pkg/sentry/vfs"
)

// ProcMounts gives the source and the options of a mount as /proc/mounts shows
// them: proc_pid_mounts(5). A hook in VFS asks for it; what VFS itself shows
// for other file systems has no source, and options with gaps.
func (fs *filesystem) ProcMounts(opts vfs.MountOptions) (source, options string) {
	options = mountFlags(opts, fs.volume.spec.ReadOnly, fs.strictAtime)
	if fs.options != "" {
		options += "," + fs.options
	}
	return fs.volume.spec.Name, options
}

// ProcMountInfo gives the source, the options of a mount and those of the
// file system as /proc/pid/mountinfo shows them: proc_pid_mountinfo(5).
func (fs *filesystem) ProcMountInfo(opts vfs.MountOptions) (source, mount, super string) {
	super = "rw"
	if fs.volume.spec.ReadOnly {
		super = "ro"
	}
	if fs.options != "" {
		super += "," + fs.options
	}
	return fs.volume.spec.Name, mountFlags(opts, false, fs.strictAtime), super
}

// mountFlags shows the flags of a mount in Linux's order.
func mountFlags(opts vfs.MountOptions, readOnly, strictAtime bool) string {
	words := []string{"rw"}
	if opts.ReadOnly || readOnly {
		words[0] = "ro"
	}
	for _, flag := range []struct {
		set  bool
		name string
	}{
		{opts.Flags.NoSUID, "nosuid"},
		{opts.Flags.NoDev, "nodev"},
		{opts.Flags.NoExec, "noexec"},
		{opts.Flags.NoATime, "noatime"},
		{!opts.Flags.NoATime && !strictAtime, "relatime"},
	} {
		if flag.set {
			words = append(words, flag.name)
		}
	}
	return strings.Join(words, ",")
}
