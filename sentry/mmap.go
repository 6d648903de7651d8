package sentry

import (
	"errors"
	"io"
	"math"

	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/safemem"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
	"gvisor.dev/gvisor/pkg/sentry/vfs"

	"runsc-fs/blobfs"
	"runsc-fs/nvme"
)

// faultAroundBytes bounds how far a fault maps beyond what is needed, as Linux's
// fault-around does. The volume adds only pages that are in memory, and to a
// write fault only those that are, or will probably be, dirty anyway.
const faultAroundBytes = 64 << 10

// ConfigureMMap implements vfs.FileDescriptionImpl.ConfigureMMap.
func (fd *regularFD) ConfigureMMap(ctx context.Context, opts *memmap.MMapOpts) error {
	if err := fd.mayMap(opts); err != nil {
		return err
	}
	opts.SentryOwnedContent = true
	// Linux counts the mapping as the access; what is read through it is not seen.
	if !fd.keepsAtime() {
		fd.inode.blob.TouchAtime()
	}
	return vfs.GenericConfigureMMap(&fd.vfsfd, fd.inode, opts)
}

// AddMapping implements memmap.Mappable.AddMapping.
func (i *inode) AddMapping(ctx context.Context, ms memmap.MappingSpace, ar hostarch.AddrRange, offset uint64, writable bool) error {
	i.mapsMu.Lock()
	defer i.mapsMu.Unlock()
	if i.mappings == nil {
		i.mappings = &memmap.MappingSet{}
		i.blob.SetInvalidator(i.invalidate)
	}
	i.mappings.AddMapping(ms, ar, offset, writable)
	return nil
}

// RemoveMapping implements memmap.Mappable.RemoveMapping.
func (i *inode) RemoveMapping(ctx context.Context, ms memmap.MappingSpace, ar hostarch.AddrRange, offset uint64, writable bool) {
	i.mapsMu.Lock()
	defer i.mapsMu.Unlock()
	i.mappings.RemoveMapping(ms, ar, offset, writable)
}

// CopyMapping implements memmap.Mappable.CopyMapping.
func (i *inode) CopyMapping(ctx context.Context, ms memmap.MappingSpace, srcAR, dstAR hostarch.AddrRange, offset uint64, writable bool) error {
	return i.AddMapping(ctx, ms, dstAR, offset, writable)
}

// Translate implements memmap.Mappable.Translate. Its caller holds activeMu of
// an address space, so that nothing here may wait for an invalidation.
func (i *inode) Translate(ctx context.Context, required, optional memmap.MappableRange, at hostarch.AccessType) ([]memmap.Translation, error) {
	if err := i.fs.usable(); err != nil {
		return nil, &memmap.BusError{Err: err}
	}
	immutable := i.has(immutableFlag)
	if immutable && at.Write {
		return nil, &memmap.BusError{Err: linuxerr.EPERM}
	}
	size := uint64(i.size())
	end := (size + hostarch.PageSize - 1) &^ (hostarch.PageSize - 1)
	var beyond error
	if required.End > end {
		beyond = &memmap.BusError{Err: io.EOF}
		required.End = end
		if required.Start >= end {
			return nil, beyond
		}
	}
	limit := max(required.End, min(optional.End, end, required.Start+faultAroundBytes))
	var ts []memmap.Translation
	for off := required.Start; off < required.End; {
		run, err := i.blob.Fault(int64(off), int64(limit-off), at.Write)
		if err != nil {
			return ts, faultError(err)
		}
		source := memmap.MappableRange{Start: off, End: uint64(run.FileOffset + run.Length)}
		ts = append(ts, memmap.Translation{
			Source: source,
			File:   i.fs.file,
			Offset: uint64(run.ArenaOffset) + off - uint64(run.FileOffset),
			Perms:  hostarch.AccessType{Read: true, Write: run.Writable && !immutable, Execute: true},
		})
		off = source.End
	}
	return ts, beyond
}

// faultError turns an error of a page fault into one that makes it SIGBUS.
func faultError(err error) error {
	if errors.Is(err, blobfs.ErrBeyondEOF) {
		return &memmap.BusError{Err: io.EOF}
	}
	return &memmap.BusError{Err: errno(err)}
}

// InvalidateUnsavable implements memmap.Mappable.InvalidateUnsavable.
func (i *inode) InvalidateUnsavable(context.Context) error {
	return errSaveUnsupported(i.fs.volume.spec.Name)
}

// lastPage is where the last page of the longest file would begin.
const lastPage = math.MaxInt64 &^ (hostarch.PageSize - 1)

// invalidate takes pages out of all address spaces before they leave the file
// or are written back. The volume calls it without locks that Translate takes.
func (i *inode) invalidate(off, length int64) {
	start := uint64(off) &^ (hostarch.PageSize - 1)
	end := uint64(lastPage)
	if length < math.MaxInt64-off-hostarch.PageSize {
		end = (uint64(off+length) + hostarch.PageSize - 1) &^ (hostarch.PageSize - 1)
	}
	i.invalidateRange(memmap.MappableRange{Start: start, End: end}, memmap.InvalidateOpts{})
}

// invalidateBeyond takes what lies behind a new end of the file out of all
// address spaces, private copies included.
func (i *inode) invalidateBeyond(size uint64) {
	start := (size + hostarch.PageSize - 1) &^ (hostarch.PageSize - 1)
	end := uint64(lastPage)
	i.invalidateRange(memmap.MappableRange{Start: start, End: end}, memmap.InvalidateOpts{InvalidatePrivate: true})
}

func (i *inode) invalidateRange(mr memmap.MappableRange, opts memmap.InvalidateOpts) {
	if mr.Start >= mr.End {
		return
	}
	i.mapsMu.Lock()
	defer i.mapsMu.Unlock()
	if i.mappings != nil {
		i.mappings.Invalidate(mr, opts)
	}
}

// arenaFile is the page cache of one volume as memory that can be mapped. It
// implements memmap.File over the arena.
type arenaFile struct {
	memmap.DefaultMemoryType
	memmap.NoBufferedIOFallback

	arena *nvme.Arena
	pages *blobfs.PageCache
}

// IncRef implements memmap.File.IncRef. Cached pages are accounted to the
// sandbox, not to a memory cgroup.
func (f *arenaFile) IncRef(fr memmap.FileRange, memCgID uint32) {
	f.pages.IncRef(int64(fr.Start), int64(fr.Length()))
}

// DecRef implements memmap.File.DecRef.
func (f *arenaFile) DecRef(fr memmap.FileRange) {
	f.pages.DecRef(int64(fr.Start), int64(fr.Length()))
}

// MapInternal implements memmap.File.MapInternal.
func (f *arenaFile) MapInternal(fr memmap.FileRange, at hostarch.AccessType) (safemem.BlockSeq, error) {
	return safemem.BlockSeqOf(safemem.BlockFromSafeSlice(f.arena.Bytes()[fr.Start:fr.End])), nil
}

// DataFD implements memmap.File.DataFD.
func (f *arenaFile) DataFD(memmap.FileRange) (int, error) { return f.arena.FD(), nil }

// FD implements memmap.File.FD.
func (f *arenaFile) FD() int { return f.arena.FD() }
