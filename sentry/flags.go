package sentry

import (
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
	"gvisor.dev/gvisor/pkg/sentry/vfs"

	"runsc-fs/blobfs"
)

// Inode flags, see ioctl_iflags(2), forbid what permissions allow: nobody changes
// an immutable file, and one that is append-only does nothing but grow. Each
// operation asks in the place where Linux does.
const (
	immutableFlag = blobfs.FlagImmutable
	appendFlag    = blobfs.FlagAppend

	// inheritedFlags pass from a directory to what is made in it, as on ext4.
	inheritedFlags = blobfs.FlagNoDump | blobfs.FlagNoAtime
)

func (i *inode) has(flags uint32) bool { return i.flags.Load()&flags != 0 }

// mutable fails with EPERM for files that have one of the flags.
func (i *inode) mutable(flags uint32) error {
	if i.has(flags) {
		return linuxerr.EPERM
	}
	return nil
}

// maySetStat checks flags for a change of attributes. To touch a file, both
// times becoming now, is also a way to append to it.
func (i *inode) maySetStat(stat *linux.Statx) error {
	const times = linux.STATX_ATIME | linux.STATX_MTIME
	touch := stat.Mask&times == times && stat.Atime.Nsec == linux.UTIME_NOW && stat.Mtime.Nsec == linux.UTIME_NOW
	switch {
	case stat.Mask == 0:
		return nil
	case stat.Mask&^(times|linux.STATX_CTIME) == 0 && touch:
		return i.mutable(immutableFlag)
	}
	return i.mutable(immutableFlag | appendFlag)
}

// mayOpen checks flags for an open of an existing file.
func (i *inode) mayOpen(opts *vfs.OpenOptions) error {
	if !i.has(appendFlag) {
		return nil // checkPermissions knows of immutable files
	}
	writes := opts.Flags&linux.O_ACCMODE != linux.O_RDONLY
	if writes && opts.Flags&linux.O_APPEND == 0 || opts.Flags&linux.O_TRUNC != 0 {
		return linuxerr.EPERM
	}
	return nil
}

// mayHoldProjectOf says whether file other may get a name in directory i: what
// is in a directory that hands down its project is of that project.
func (i *inode) mayHoldProjectOf(other *inode) bool {
	return !i.has(blobfs.FlagProjectInherit) || i.blob.Attr().ProjectID == other.blob.Attr().ProjectID
}

// mayMap checks flags for a mapping.
func (fd *regularFD) mayMap(opts *memmap.MMapOpts) error {
	if !opts.Private && fd.vfsfd.IsWritable() && fd.inode.has(appendFlag) {
		return linuxerr.EACCES
	}
	return nil
}

// Attributes of fsxattr that stand for flags of the volume.
var fsxFlags = [...]struct{ fsx, flag uint32 }{
	{0x008, blobfs.FlagImmutable},
	{0x010, blobfs.FlagAppend},
	{0x040, blobfs.FlagNoAtime},
	{0x080, blobfs.FlagNoDump},
	{0x200, blobfs.FlagProjectInherit},
}

// fsxOf gives the fsx_xflags for flags.
func fsxOf(flags uint32) uint32 {
	var fsx uint32
	for _, f := range fsxFlags {
		if flags&f.flag != 0 {
			fsx |= f.fsx
		}
	}
	return fsx
}

// flagsOf gives the flags for fsx_xflags.
func flagsOf(fsx uint32) (flags uint32, err error) {
	for _, f := range fsxFlags {
		if fsx&f.fsx != 0 {
			flags |= f.flag
			fsx &^= f.fsx
		}
	}
	if fsx != 0 {
		return 0, linuxerr.EOPNOTSUPP
	}
	return flags, nil
}

// setFlags changes the flags of the file, and the project id unless project is nil.
func (fd *fileDescription) setFlags(creds *auth.Credentials, flags uint32, project *uint32) error {
	mnt := fd.vfsfd.Mount()
	if err := mnt.CheckBeginWrite(); err != nil {
		return err
	}
	defer mnt.EndWrite()
	i := fd.inode
	if !vfs.CanActAsOwner(creds, i.kuid()) {
		return linuxerr.EPERM
	}
	if flags&^uint32(blobfs.FlagsStored) != 0 {
		return linuxerr.EOPNOTSUPP
	}
	if !i.isDir() {
		flags &^= blobfs.FlagProjectInherit
	}
	if err := i.fs.usable(); err != nil {
		return err
	}
	if err := i.storeFlags(creds, flags, project); err != nil {
		return err
	}
	if flags&immutableFlag != 0 && i.isRegular() {
		// Whoever has mapped it for writing must come and ask.
		i.invalidateRange(memmap.MappableRange{Start: 0, End: lastPage}, memmap.InvalidateOpts{})
	}
	return nil
}

func (i *inode) storeFlags(creds *auth.Credentials, flags uint32, project *uint32) error {
	i.attrMu.Lock()
	defer i.attrMu.Unlock()
	old := i.flags.Load()
	if (old^flags)&(immutableFlag|appendFlag) != 0 && !creds.HasRootCapability(linux.CAP_LINUX_IMMUTABLE) {
		return linuxerr.EPERM
	}
	attr := blobfs.Attr{Flags: flags}
	mask := blobfs.AttrFlags
	if project != nil {
		attr.ProjectID = *project
		mask |= blobfs.AttrProjectID
	}
	if err := i.blob.SetAttr(mask, &attr); err != nil {
		return errno(err)
	}
	i.flags.Store(flags)
	return nil
}
