package sentry

import (
	"slices"
	"strings"

	"gvisor.dev/gvisor/pkg/sentry/vfs"
)

// ProcMounts gives the source and the options of a mount as /proc/mounts shows
// them: proc_pid_mounts(5). A hook in VFS asks for it; what VFS itself shows
// for other file systems has no source, and options with gaps.
func (fs *filesystem) ProcMounts(opts vfs.MountOptions) (source, options string) {
	words := mountFlags(opts, fs.volume.spec.ReadOnly, fs.strictAtime)
	options = strings.Join(slices.Insert(words, 1, fs.syncFlags()...), ",")
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
	super = strings.Join(append([]string{super}, fs.syncFlags()...), ",")
	if fs.options != "" {
		super += "," + fs.options
	}
	return fs.volume.spec.Name, strings.Join(mountFlags(opts, false, fs.strictAtime), ","), super
}

// syncFlags are the options of the file system that Linux shows before all others.
func (fs *filesystem) syncFlags() []string {
	var words []string
	if fs.sync {
		words = append(words, "sync")
	}
	if fs.dirSync && !fs.sync {
		words = append(words, "dirsync")
	}
	return words
}

// mountFlags shows the flags of a mount in Linux's order.
func mountFlags(opts vfs.MountOptions, readOnly, strictAtime bool) []string {
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
	return words
}
