package soft

import (
	"fmt"
	"strings"
	"sync"

	"runsc-fs/nvme"
)

// Fault is an error that a Faulty medium gives.
type Fault struct {
	Op      nvme.Op // the operations that fail; 0: all
	From    int64   // only those that touch bytes from From …
	Until   int64   // … up to but not including Until; 0: all
	Skip    int     // let this many matching operations pass first
	Count   int     // then fail this many; 0: all
	Partial bool    // a write stores the first half of its data before it fails
	Err     error   // StatusOf translates it into a completion status
}

// String shows the fault on one line.
func (f Fault) String() string {
	names := map[nvme.Op]string{0: "any operation", nvme.OpRead: "read", nvme.OpWrite: "write", nvme.OpFlush: "flush",
		nvme.OpWriteZeroes: "write zeroes", nvme.OpDeallocate: "deallocate"}
	s := names[f.Op]
	if f.Until != 0 {
		s += fmt.Sprintf(" of bytes %d to %d", f.From, f.Until-1)
	}
	if f.Skip != 0 {
		s += fmt.Sprintf(" after %d", f.Skip)
	}
	if f.Count != 0 {
		s += fmt.Sprintf(", %d times", f.Count)
	}
	if f.Partial {
		s += ", half done"
	}
	return fmt.Sprintf("%s: %v", s, f.Err)
}

// Faulty is a medium that fails by a list of faults and otherwise passes
// everything on. All methods may be called concurrently.
type Faulty struct {
	Backing

	mu     sync.Mutex
	faults []Fault
	seen   []int
	hits   int
}

// NewFaulty wraps a medium.
func NewFaulty(inner Backing, faults ...Fault) *Faulty {
	f := &Faulty{Backing: inner}
	f.Set(faults...)
	return f
}

// Set replaces the faults and forgets what was counted.
func (f *Faulty) Set(faults ...Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults, f.seen, f.hits = faults, make([]int, len(faults)), 0
}

// Hits is the number of operations that failed since Set.
func (f *Faulty) Hits() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.hits
}

// String implements Backing; it lists the faults.
func (f *Faulty) String() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var lines []string
	for _, x := range f.faults {
		lines = append(lines, x.String())
	}
	return fmt.Sprintf("faulty %v (%s)", f.Backing, strings.Join(lines, "; "))
}

// hit finds the fault of an operation.
func (f *Faulty) hit(op nvme.Op, off, n int64) *Fault {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range f.faults {
		x := &f.faults[i]
		if (x.Op != 0 && x.Op != op) || (x.Until != 0 && (op == nvme.OpFlush || off >= x.Until || off+n <= x.From)) {
			continue
		}
		f.seen[i]++
		if k := f.seen[i] - x.Skip; k <= 0 || (x.Count != 0 && k > x.Count) {
			continue
		}
		f.hits++
		return x
	}
	return nil
}

func vecBytes(vec [][]byte) (n int64) {
	for _, b := range vec {
		n += int64(len(b))
	}
	return n
}

// ReadV implements Backing.
func (f *Faulty) ReadV(vec [][]byte, off int64) error {
	if x := f.hit(nvme.OpRead, off, vecBytes(vec)); x != nil {
		return x.Err
	}
	return f.Backing.ReadV(vec, off)
}

// WriteV implements Backing.
func (f *Faulty) WriteV(vec [][]byte, off int64, fua bool) error {
	x := f.hit(nvme.OpWrite, off, vecBytes(vec))
	if x == nil {
		return f.Backing.WriteV(vec, off, fua)
	}
	if x.Partial {
		half := vecBytes(vec) / 2
		for _, b := range vec {
			b = b[:min(int64(len(b)), half)]
			if len(b) == 0 {
				break
			}
			if err := f.Backing.WriteV([][]byte{b}, off, false); err != nil {
				break
			}
			off, half = off+int64(len(b)), half-int64(len(b))
		}
	}
	return x.Err
}

// Zero implements Backing.
func (f *Faulty) Zero(off, n int64, fua bool) error {
	if x := f.hit(nvme.OpWriteZeroes, off, n); x != nil {
		return x.Err
	}
	return f.Backing.Zero(off, n, fua)
}

// Deallocate implements Backing.
func (f *Faulty) Deallocate(off, n int64) error {
	if x := f.hit(nvme.OpDeallocate, off, n); x != nil {
		return x.Err
	}
	return f.Backing.Deallocate(off, n)
}

// Flush implements Backing.
func (f *Faulty) Flush() error {
	if x := f.hit(nvme.OpFlush, 0, 0); x != nil {
		return x.Err
	}
	return f.Backing.Flush()
}
