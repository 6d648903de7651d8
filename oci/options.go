package oci

import (
	"fmt"
	"strconv"
	"strings"

	"runsc-fs/oci/registry"
)

// Atime says when reading a file updates its access time.
type Atime string

const (
	AtimeRelative Atime = "relatime" // if it is older than the modification or a day; the default
	AtimeNever    Atime = "noatime"
	AtimeStrict   Atime = "strictatime"
)

// MountOptions are the options of one blobfs mount. The zero value with Atime set to AtimeRelative is
// what no options at all mean.
type MountOptions struct {
	ReadOnly bool
	NoExec   bool
	NoSUID   bool
	NoDev    bool
	Atime    Atime
	Sync     bool // every write is durable when it returns
	DirSync  bool // every change of a directory is durable when it returns
	Discard  bool // freed space is given back to the device
	// NoDiscard says that Discard was turned off: the volume's own setting does not count.
	NoDiscard bool

	SizeBytes     int64 // limit on the space in use; 0 means the whole volume
	Inodes        int64 // limit on the number of files; 0 means as many as there is space for
	CommitSeconds int   // time between commits in the background; 0 means the file system's default
	CacheBytes    int64 // bound on the page cache; 0 means the file system's default
}

// maxCommitSeconds bounds what a crash may cost who does not call fsync.
const maxCommitSeconds = 3600

// maxInodes is more than any volume has.
const maxInodes = 1 << 40

// minCacheBytes is a page cache that can still hold the pages of one large request.
const minCacheBytes = 1 << 20

// setter changes options by one option that has no value.
type setter func(*MountOptions)

// ignored options speak of bind mounts and their propagation, which have no meaning for a file system
// that only the sandbox sees. Docker puts them on every mount of a volume.
func ignored(*MountOptions) {}

var flagOptions = map[string]setter{
	"defaults":    ignored,
	"rw":          func(o *MountOptions) { o.ReadOnly = false },
	"ro":          func(o *MountOptions) { o.ReadOnly = true },
	"exec":        func(o *MountOptions) { o.NoExec = false },
	"noexec":      func(o *MountOptions) { o.NoExec = true },
	"suid":        func(o *MountOptions) { o.NoSUID = false },
	"nosuid":      func(o *MountOptions) { o.NoSUID = true },
	"dev":         func(o *MountOptions) { o.NoDev = false },
	"nodev":       func(o *MountOptions) { o.NoDev = true },
	"atime":       func(o *MountOptions) { o.Atime = AtimeRelative },
	"relatime":    func(o *MountOptions) { o.Atime = AtimeRelative },
	"noatime":     func(o *MountOptions) { o.Atime = AtimeNever },
	"strictatime": func(o *MountOptions) { o.Atime = AtimeStrict },
	"async":       func(o *MountOptions) { o.Sync = false },
	"sync":        func(o *MountOptions) { o.Sync = true },
	"dirsync":     func(o *MountOptions) { o.DirSync = true },
	"lazytime":    ignored, // times that reading changes wait for a commit as it is
	"nolazytime":  ignored,
	"discard":     func(o *MountOptions) { o.Discard, o.NoDiscard = true, false },
	"nodiscard":   func(o *MountOptions) { o.Discard, o.NoDiscard = false, true },

	"bind": ignored, "rbind": ignored,
	"private": ignored, "rprivate": ignored, "shared": ignored, "rshared": ignored,
	"slave": ignored, "rslave": ignored, "unbindable": ignored, "runbindable": ignored,
}

var valueOptions = map[string]func(o *MountOptions, value string) error{
	"size": func(o *MountOptions, value string) (err error) {
		o.SizeBytes, err = registry.ParseSize(value)
		return err
	},
	"inodes":    parseInodes,
	"nr_inodes": parseInodes,
	"cache": func(o *MountOptions, value string) (err error) {
		o.CacheBytes, err = registry.ParseBytes(value)
		if err == nil && o.CacheBytes < minCacheBytes {
			err = fmt.Errorf("cache %q is too small; it has at least %s", value, registry.FormatSize(minCacheBytes))
		}
		return err
	},
	"commit": func(o *MountOptions, value string) (err error) {
		o.CommitSeconds, err = strconv.Atoi(value)
		if err != nil || o.CommitSeconds < 1 || o.CommitSeconds > maxCommitSeconds {
			return fmt.Errorf("commit %q is not a number of seconds from 1 to %d", value, maxCommitSeconds)
		}
		return nil
	},
}

// parseInodes reads a number of files, with the units of tmpfs(5).
func parseInodes(o *MountOptions, value string) (err error) {
	digits, unit := value, int64(1)
	if n := len(value) - 1; n > 0 {
		switch value[n] {
		case 'k', 'K':
			digits, unit = value[:n], 1<<10
		case 'm', 'M':
			digits, unit = value[:n], 1<<20
		}
	}
	o.Inodes, err = strconv.ParseInt(digits, 10, 64)
	if err != nil || o.Inodes < 1 || o.Inodes > maxInodes/unit {
		return fmt.Errorf("%q is not a number of files from 1 to %d", value, int64(maxInodes))
	}
	o.Inodes *= unit
	return nil
}

// ParseOptions reads the options of a blobfs mount. Later ones override earlier ones, as in mount(8).
// The error names the option and is one line; the caller adds the mount.
func ParseOptions(options []string) (MountOptions, error) {
	parsed := MountOptions{Atime: AtimeRelative}
	for _, option := range options {
		name, value, hasValue := strings.Cut(option, "=")
		if set := valueOptions[name]; set != nil {
			if !hasValue || value == "" {
				return MountOptions{}, fmt.Errorf("option %q needs a value: %s=...", option, name)
			}
			if err := set(&parsed, value); err != nil {
				return MountOptions{}, fmt.Errorf("option %q: %w", option, err)
			}
			continue
		}
		set := flagOptions[name]
		switch {
		case set == nil:
			return MountOptions{}, fmt.Errorf("unknown option %q; correct it or leave it out", option)
		case hasValue:
			return MountOptions{}, fmt.Errorf("option %q takes no value", name)
		}
		set(&parsed)
	}
	return parsed, nil
}

// Strings returns the options in the one form that ParseOptions reads back as the same.
func (o MountOptions) Strings() []string {
	options := []string{"rw"}
	if o.ReadOnly {
		options[0] = "ro"
	}
	for _, flag := range []struct {
		set  bool
		name string
	}{
		{o.NoSUID, "nosuid"}, {o.NoDev, "nodev"}, {o.NoExec, "noexec"},
		{o.Sync, "sync"}, {o.DirSync, "dirsync"}, {o.Discard, "discard"}, {o.NoDiscard, "nodiscard"},
	} {
		if flag.set {
			options = append(options, flag.name)
		}
	}
	if o.Atime != "" {
		options = append(options, string(o.Atime))
	}
	for _, number := range []struct {
		value int64
		name  string
	}{
		{o.SizeBytes, "size"}, {o.Inodes, "nr_inodes"}, {int64(o.CommitSeconds), "commit"}, {o.CacheBytes, "cache"},
	} {
		if number.value != 0 {
			options = append(options, fmt.Sprintf("%s=%d", number.name, number.value))
		}
	}
	return options
}
