package sentry

import (
	"strings"
	"sync"
	"testing"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
)

// addressSpace is a memmap.MappingSpace that notes what is invalidated, as a
// MemoryManager would drop its translations.
type addressSpace struct {
	mu          sync.Mutex
	invalidated []hostarch.AddrRange
	private     bool
}

// Invalidate implements memmap.MappingSpace.
func (a *addressSpace) Invalidate(ar hostarch.AddrRange, opts memmap.InvalidateOpts) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.invalidated = append(a.invalidated, ar)
	a.private = a.private || opts.InvalidatePrivate
}

func (a *addressSpace) covers(addr hostarch.Addr) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, ar := range a.invalidated {
		if ar.Contains(addr) {
			return true
		}
	}
	return false
}

// mapping maps the first pages of a file at address base.
type mapping struct {
	e     *env
	space addressSpace
	m     memmap.Mappable
	ar    hostarch.AddrRange
}

const mapBase = hostarch.Addr(0x10000000)

func (e *env) mmap(fd *vfs.FileDescription, pages int) *mapping {
	e.t.Helper()
	opts := memmap.MMapOpts{Length: uint64(pages) * hostarch.PageSize}
	if err := fd.ConfigureMMap(e.ctx, &opts); err != nil {
		e.t.Fatal(err)
	}
	m := &mapping{e: e, m: opts.Mappable, ar: hostarch.AddrRange{Start: mapBase, End: mapBase + hostarch.Addr(opts.Length)}}
	if err := m.m.AddMapping(e.ctx, &m.space, m.ar, 0, true); err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() {
		m.m.RemoveMapping(e.ctx, &m.space, m.ar, 0, true)
		opts.MappingIdentity.DecRef(e.ctx)
	})
	return m
}

// fault translates one page and returns its memory; the caller drops the
// reference by calling done.
func (m *mapping) fault(page int, at hostarch.AccessType) (mem []byte, done func(), err error) {
	m.e.t.Helper()
	required := memmap.MappableRange{Start: uint64(page) * hostarch.PageSize, End: uint64(page+1) * hostarch.PageSize}
	optional := memmap.MappableRange{Start: 0, End: uint64(m.ar.Length())}
	ts, err := m.m.Translate(m.e.ctx, required, optional, at)
	if checkErr := memmap.CheckTranslateResult(required, optional, at, ts, err); checkErr != nil {
		m.e.t.Error(checkErr)
	}
	if err != nil {
		return nil, nil, err
	}
	fr := ts[0].FileRange()
	fr.Start += required.Start - ts[0].Source.Start
	fr.End = fr.Start + hostarch.PageSize
	ts[0].File.IncRef(fr, 0)
	blocks, err := ts[0].File.MapInternal(fr, at)
	if err != nil {
		return nil, nil, err
	}
	return blocks.Head().ToSlice(), func() { ts[0].File.DecRef(fr) }, nil
}

func TestMappingsShareThePageCache(t *testing.T) {
	e := newEnv(t)
	fd := e.mustOpen("f", linux.O_CREAT|linux.O_RDWR)
	e.write(fd, strings.Repeat("a", 3*hostarch.PageSize+100))
	m := e.mmap(fd, 8)
	mem, done, err := m.fault(1, hostarch.ReadWrite)
	if err != nil {
		t.Fatal(err)
	}
	if mem[0] != 'a' {
		t.Errorf("the mapping reads %q", mem[0])
	}
	mem[7] = 'M'
	if got := e.pread(fd, hostarch.PageSize, 8); got != "aaaaaaaM" {
		t.Errorf("a read after a store gives %q", got)
	}
	if _, err := e.pwrite(fd, hostarch.PageSize+1, "W", 0); err != nil {
		t.Fatal(err)
	}
	if mem[1] != 'W' {
		t.Errorf("a load after a write gives %q", mem[1])
	}
	done()
	// The last page is shared beyond the end of the file, where it is zero.
	mem, done, err = m.fault(3, hostarch.Read)
	if err != nil {
		t.Fatal(err)
	}
	if mem[99] != 'a' || mem[100] != 0 {
		t.Errorf("around the end of the file: %q, %q", mem[99], mem[100])
	}
	done()
	// Behind it there is nothing.
	if _, _, err := m.fault(4, hostarch.Read); err == nil {
		t.Error("a page beyond the end of the file was mapped")
	} else if _, ok := err.(*memmap.BusError); !ok {
		t.Errorf("beyond the end: %v, not SIGBUS", err)
	}
}

func TestTruncationTakesMappedPages(t *testing.T) {
	e := newEnv(t)
	fd := e.mustOpen("f", linux.O_CREAT|linux.O_RDWR)
	e.write(fd, strings.Repeat("t", 4*hostarch.PageSize))
	m := e.mmap(fd, 4)
	_, done, err := m.fault(2, hostarch.ReadWrite)
	if err != nil {
		t.Fatal(err)
	}
	done()
	if err := e.setStat(e.ctx, "f", linux.Statx{Mask: linux.STATX_SIZE, Size: hostarch.PageSize}); err != nil {
		t.Fatal(err)
	}
	if !m.space.covers(mapBase+2*hostarch.PageSize) || !m.space.private {
		t.Errorf("truncation invalidated %v, private copies %v", m.space.invalidated, m.space.private)
	}
	if m.space.covers(mapBase) && len(m.space.invalidated) == 1 && m.space.private {
		t.Error("truncation invalidated private copies of pages that stay")
	}
	if _, _, err := m.fault(2, hostarch.Read); err == nil {
		t.Error("a truncated page was mapped again")
	}
	// The file grows again: the page is there, and zero.
	if err := e.setStat(e.ctx, "f", linux.Statx{Mask: linux.STATX_SIZE, Size: 4 * hostarch.PageSize}); err != nil {
		t.Fatal(err)
	}
	mem, done, err := m.fault(2, hostarch.Read)
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	if mem[0] != 0 {
		t.Errorf("the page came back with %q", mem[0])
	}
}

// TestStoresBeyondTheEnd checks that what a mapping leaves behind the end of a
// file, in its last page, never becomes part of the file.
func TestStoresBeyondTheEnd(t *testing.T) {
	e := newEnv(t)
	for _, grow := range []struct {
		what string
		fn   func(fd *vfs.FileDescription) error
	}{
		{"truncate", func(*vfs.FileDescription) error {
			return e.setStat(e.ctx, "f", linux.Statx{Mask: linux.STATX_SIZE, Size: 3000})
		}},
		{"write", func(fd *vfs.FileDescription) error {
			_, err := e.pwrite(fd, 2999, "e", 0)
			return err
		}},
	} {
		fd := e.mustOpen("f", linux.O_CREAT|linux.O_RDWR|linux.O_TRUNC)
		if _, err := e.pwrite(fd, 0, strings.Repeat("b", 1000), 0); err != nil {
			t.Fatal(err)
		}
		m := e.mmap(fd, 1)
		mem, done, err := m.fault(0, hostarch.ReadWrite)
		if err != nil {
			t.Fatal(err)
		}
		mem[2000] = 'S'
		done()
		if err := grow.fn(fd); err != nil {
			t.Fatal(err)
		}
		if got := e.pread(fd, 2000, 1); got != "\x00" {
			t.Errorf("%s: a store beyond the end became %q", grow.what, got)
		}
	}
}

// TestStoresAreWrittenBack stores through a mapping, syncs, and looks at the
// file after the volume was closed and opened again.
func TestStoresAreWrittenBack(t *testing.T) {
	e := newEnv(t)
	fd, err := e.open(e.ctx, "f", linux.O_CREAT|linux.O_RDWR, 0644)
	if err != nil {
		t.Fatal(err)
	}
	e.write(fd, strings.Repeat("b", 2*hostarch.PageSize))
	if err := fd.Sync(e.ctx); err != nil {
		t.Fatal(err)
	}
	opts := memmap.MMapOpts{Length: 2 * hostarch.PageSize}
	if err := fd.ConfigureMMap(e.ctx, &opts); err != nil {
		t.Fatal(err)
	}
	m := &mapping{e: e, m: opts.Mappable, ar: hostarch.AddrRange{Start: mapBase, End: mapBase + 2*hostarch.PageSize}}
	if err := m.m.AddMapping(e.ctx, &m.space, m.ar, 0, true); err != nil {
		t.Fatal(err)
	}
	mem, done, err := m.fault(1, hostarch.ReadWrite)
	if err != nil {
		t.Fatal(err)
	}
	copy(mem, "stored")
	done()
	if err := opts.MappingIdentity.Msync(e.ctx, memmap.MappableRange{Start: 0, End: 2 * hostarch.PageSize}); err != nil {
		t.Fatal(err)
	}
	m.m.RemoveMapping(e.ctx, &m.space, m.ar, 0, true)
	opts.MappingIdentity.DecRef(e.ctx)
	fd.DecRef(e.ctx)
	e.unmount()

	e = mountEnv(t)
	if got := e.content("f"); got[hostarch.PageSize:hostarch.PageSize+6] != "stored" || got[0] != 'b' {
		t.Errorf("after remounting: %q ... %q", got[:1], got[hostarch.PageSize:hostarch.PageSize+6])
	}
}
