package nvme

import (
	"errors"
	"fmt"
	"math/bits"
	"os"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// PageSizeBytes is the allocation unit of an Arena and the memory page size
// (CC.MPS = 0) that the driver sets in the controller.
const PageSizeBytes = 4096

// punchPages is the length from which Free gives a run back to the host. For
// shorter runs the system call costs more than keeping the memory warm.
const punchPages = 64

// maxArenaBytes bounds what NewArena accepts, well inside the address space.
const maxArenaBytes = 1 << 44

// ErrArenaFull is returned when no free run of the wanted length is left.
var ErrArenaFull = errors.New("nvme: DMA arena is full")

// ArenaOptions are the parameters of NewArena.
type ArenaOptions struct {
	// SizeBytes is the size of the mapping, rounded up to whole pages. The
	// memory is sparse: only touched pages cost anything.
	SizeBytes int64
	// HugePages asks for transparent huge pages. Where the host grants none
	// the option has no effect. Pages of hugetlbfs are never used: a 4 KiB
	// piece of them could not be mapped into an application.
	HugePages bool
	// KeepFreed has Free keep all memory, instead of giving long runs back to
	// the host: for arenas that are emptied and filled thousands of times.
	KeepFreed bool
}

// Arena is the memory that a controller may reach by DMA: a memfd, or a range
// of a file of memory, mapped shared and contiguous. A byte's device address is
// the base address that the transport chose plus the byte's offset in the arena.
//
// All methods except Close may be called concurrently. Memory is handed out in
// pages of PageSizeBytes; its content is undefined, and may be what an earlier
// owner left there.
type Arena struct {
	fd         int
	fileOffset int64
	mem        []byte
	base       uintptr
	keepFreed  bool

	pinned atomic.Bool // no page may be exchanged for another one

	mu sync.Mutex
	// Free pages as a bitmap (bit set: free) with summary levels above it: a
	// bit of levels[i+1] is set when the word of levels[i] has any bit set.
	// Single pages are taken from the low end and runs from the high end, so
	// that the two do not fragment each other.
	levels    [][]uint64
	pages     int
	freePages int
	// noRunFrom remembers that no free run of this length existed since the
	// last Free, so that repeated failures stay cheap. 0: nothing known.
	noRunFrom int
}

// NewArena creates the memory of an arena. It makes the system calls
// memfd_create, ftruncate, mmap and madvise; afterwards only Free of a long
// run makes one (fallocate), and Close.
func NewArena(opts ArenaOptions) (*Arena, error) {
	if opts.SizeBytes < PageSizeBytes || opts.SizeBytes > maxArenaBytes {
		return nil, fmt.Errorf("nvme: arena size of %d bytes is not between %d and %d", opts.SizeBytes, PageSizeBytes, int64(maxArenaBytes))
	}
	size := (opts.SizeBytes + PageSizeBytes - 1) &^ (PageSizeBytes - 1)
	fd, err := unix.MemfdCreate("nvme-arena", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("nvme: creating the memory of the arena: %w", err)
	}
	if err := unix.Ftruncate(fd, size); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("nvme: sizing the arena to %d bytes: %w", size, err)
	}
	a, err := mapArena(fd, 0, size)
	if err != nil {
		return nil, err
	}
	a.keepFreed = opts.KeepFreed
	if opts.HugePages {
		_ = unix.Madvise(a.mem, unix.MADV_HUGEPAGE) // a wish, not a need
	}
	return a, nil
}

// NewArenaFromFile makes an arena of a range of memory that others share: a
// memfd or a file of a memory file system, whose range [offset, offset+size) has
// to exist already and is the arena's alone. It serves controllers that reach
// a whole machine's memory by its file. The arena keeps a duplicate of the
// descriptor and its content until Close. A file that is cut short afterwards
// kills the process with SIGBUS.
func NewArenaFromFile(f *os.File, offsetBytes, sizeBytes int64) (*Arena, error) {
	if sizeBytes < PageSizeBytes || sizeBytes > maxArenaBytes || offsetBytes < 0 || (offsetBytes|sizeBytes)%PageSizeBytes != 0 {
		return nil, fmt.Errorf("nvme: an arena of %d bytes at %d of %s is not made of whole pages", sizeBytes, offsetBytes, f.Name())
	}
	info, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("nvme: %w", err)
	}
	if info.Size() < sizeBytes || info.Size()-sizeBytes < offsetBytes {
		return nil, fmt.Errorf("nvme: %s ends at %d, before an arena of %d bytes at %d", f.Name(), info.Size(), sizeBytes, offsetBytes)
	}
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("nvme: %w", err)
	}
	return mapArena(fd, offsetBytes, sizeBytes)
}

// mapArena maps the range of fd, which becomes the arena's, also on failure.
func mapArena(fd int, offset, size int64) (*Arena, error) {
	mem, err := unix.Mmap(fd, offset, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("nvme: mapping the arena of %d bytes: %w", size, err)
	}
	a := &Arena{
		fd:         fd,
		fileOffset: offset,
		mem:        mem,
		base:       uintptr(unsafe.Pointer(unsafe.SliceData(mem))),
		pages:      int(size / PageSizeBytes),
		freePages:  int(size / PageSizeBytes),
	}
	for n := a.pages; ; {
		words := (n + 63) / 64
		level := make([]uint64, words)
		for i := range level {
			level[i] = ^uint64(0)
		}
		if rest := n % 64; rest != 0 {
			level[words-1] = 1<<rest - 1
		}
		a.levels = append(a.levels, level)
		if words == 1 {
			break
		}
		n = words
	}
	return a, nil
}

// FD is the memfd behind the arena. It stays the arena's.
func (a *Arena) FD() int { return a.fd }

// FileOffset is where the arena begins in FD: 0 for NewArena.
func (a *Arena) FileOffset() int64 { return a.fileOffset }

// SizeBytes is the size of the mapping.
func (a *Arena) SizeBytes() int64 { return int64(len(a.mem)) }

// Bytes is the whole mapping, whoever owns its pages.
func (a *Arena) Bytes() []byte { return a.mem }

// FreePages is the number of pages not handed out at this moment.
func (a *Arena) FreePages() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.freePages
}

// Pin makes all pages stay the ones that they are, for devices that reach them by
// physical addresses: Free gives none back to the host any more, which would
// leave the device with the old page and everybody else with a new one.
func (a *Arena) Pin() { a.pinned.Store(true) }

// Offset tells where b begins, as an offset in the mapping, and in FD from
// FileOffset. It reports false unless all of b lies in the arena.
func (a *Arena) Offset(b []byte) (off int64, ok bool) {
	p := uintptr(unsafe.Pointer(unsafe.SliceData(b))) - a.base
	if p >= uintptr(len(a.mem)) || uintptr(len(b)) > uintptr(len(a.mem))-p {
		return 0, false
	}
	return int64(p), true
}

// Alloc hands out a contiguous run of pages, aligned to PageSizeBytes, with
// undefined content. It returns ErrArenaFull when there is no such run.
func (a *Arena) Alloc(pages int) ([]byte, error) {
	if pages <= 0 {
		return nil, fmt.Errorf("nvme: allocation of %d pages", pages)
	}
	a.mu.Lock()
	var first int
	if pages == 1 {
		first = a.firstFreeLocked()
	} else {
		first = a.findRunLocked(pages)
	}
	if first < 0 {
		a.mu.Unlock()
		return nil, ErrArenaFull
	}
	a.markLocked(first, pages, false)
	a.mu.Unlock()
	start, end := first*PageSizeBytes, (first+pages)*PageSizeBytes
	return a.mem[start:end:end], nil
}

// Free takes pages back: a slice that Alloc returned, or a part of one that
// begins and ends at a page boundary. The memory of long runs returns to the
// host, unless Pin was called. Freeing what is not allocated is a bug of the caller and panics.
func (a *Arena) Free(b []byte) {
	if len(b) == 0 {
		return
	}
	off, ok := a.Offset(b)
	if !ok || off%PageSizeBytes != 0 || len(b)%PageSizeBytes != 0 {
		panic(fmt.Sprintf("nvme: Free of %d bytes at offset %d (inside the arena: %v), which are no pages of it", len(b), off, ok))
	}
	first, pages := int(off/PageSizeBytes), len(b)/PageSizeBytes
	if pages >= punchPages && !a.keepFreed && !a.pinned.Load() {
		// Failure keeps the memory resident, nothing else.
		_ = unix.Fallocate(a.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, a.fileOffset+off, int64(len(b)))
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for p := first; p < first+pages; p++ {
		if a.isFreeLocked(p) {
			panic(fmt.Sprintf("nvme: page %d of the arena freed twice", p))
		}
	}
	a.markLocked(first, pages, true)
	a.noRunFrom = 0
}

// Close unmaps the arena. No slice of it may be in use, and no controller may
// be enabled that knows its addresses.
func (a *Arena) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.mem == nil {
		return nil
	}
	err := unix.Munmap(a.mem)
	if err2 := unix.Close(a.fd); err == nil {
		err = err2
	}
	a.mem, a.base, a.fd, a.freePages = nil, 0, -1, 0
	for _, level := range a.levels {
		clear(level)
	}
	return err
}

func (a *Arena) isFreeLocked(page int) bool {
	return a.levels[0][page/64]&(1<<(page%64)) != 0
}

// firstFreeLocked returns the lowest free page, or -1.
func (a *Arena) firstFreeLocked() int {
	i := 0
	for l := len(a.levels) - 1; l >= 0; l-- {
		w := a.levels[l][i]
		if w == 0 {
			return -1 // only possible at the top
		}
		i = i*64 + bits.TrailingZeros64(w)
	}
	return i
}

// findRunLocked returns the first page of the highest free run of n pages, or -1.
func (a *Arena) findRunLocked(n int) int {
	if n > a.freePages || (a.noRunFrom != 0 && n >= a.noRunFrom) {
		return -1
	}
	words := a.levels[0]
	run := 0 // free pages seen so far, directly above the current position
	for i := len(words) - 1; i >= 0; i-- {
		w := words[i]
		switch w {
		case 0:
			run = 0
			continue
		case ^uint64(0):
			if run += 64; run >= n {
				return i*64 + run - n
			}
			continue
		}
		for bit := 64; bit > 0; {
			rest := w << (64 - bit) // bit-1 is the top bit of rest
			if ones := bits.LeadingZeros64(^rest); ones > 0 {
				ones = min(ones, bit)
				bit -= ones
				if run += ones; run >= n {
					return i*64 + bit + run - n
				}
				continue
			}
			run = 0
			bit -= min(bits.LeadingZeros64(rest), bit)
		}
	}
	a.noRunFrom = n
	return -1
}

// markLocked sets the state of a run and brings the summaries up to date.
func (a *Arena) markLocked(first, n int, free bool) {
	if free {
		a.freePages += n
	} else {
		a.freePages -= n
	}
	words := a.levels[0]
	for page, end := first, first+n; page < end; {
		i, bit := page/64, page%64
		count := min(64-bit, end-page)
		mask := (^uint64(0) >> (64 - count)) << bit
		old := words[i]
		if free {
			words[i] = old | mask
		} else {
			words[i] = old &^ mask
		}
		if (old == 0) != (words[i] == 0) {
			a.summariseLocked(i, free)
		}
		page += count
	}
}

// summariseLocked records in the upper levels that word i of the bitmap became
// non-empty or empty.
func (a *Arena) summariseLocked(i int, nonEmpty bool) {
	for _, level := range a.levels[1:] {
		w := &level[i/64]
		old := *w
		if nonEmpty {
			*w |= 1 << (i % 64)
		} else {
			*w &^= 1 << (i % 64)
		}
		if (old == 0) == (*w == 0) {
			return
		}
		i /= 64
	}
}
