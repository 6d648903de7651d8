package soft

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"runsc-fs/nvme/spec"
)

// Backing is the medium behind one namespace. The controller checks ranges
// before it calls: offsets and lengths are multiples of the logical block size
// and lie within SizeBytes. All methods may be called concurrently, from as
// many queues as there are; what overlapping concurrent calls leave behind is
// open, as it is for overlapping NVMe commands.
//
// An error becomes the status that StatusOf finds for it.
type Backing interface {
	Properties() Properties
	// ReadV fills the pieces of vec in order from offset off.
	ReadV(vec [][]byte, off int64) error
	// WriteV stores the pieces of vec in order at offset off. With fua it
	// returns when the data is durable.
	WriteV(vec [][]byte, off int64, fua bool) error
	// Zero makes n bytes at off read as zeroes.
	Zero(off, n int64, fua bool) error
	// Deallocate tells that the content of n bytes at off is not needed.
	Deallocate(off, n int64) error
	// Flush makes all completed writes durable.
	Flush() error
	// Close releases the medium, without flushing.
	Close() error
	// String names the medium in messages.
	String() string
}

// Grower is a Backing that can become larger while it is open. Grow takes in
// what the medium has got by now, at least sizeBytes of it; Properties has the
// new size afterwards.
type Grower interface {
	Backing
	Grow(sizeBytes int64) error
}

// Puncher is a Backing of a medium that may have holes. Punch makes n bytes at off
// one, which reads as zeroes and takes no space. It reports false, having done
// nothing, if this medium has none.
type Puncher interface {
	Backing
	Punch(off, n int64) (done bool, err error)
}

// Properties describe a Backing. But for the size of a Grower, they do not
// change while it is open.
type Properties struct {
	SizeBytes          int64
	ReadOnly           bool
	VolatileWriteCache bool // writes need Flush or FUA to be durable
	DeallocateZeroes   bool // deallocated blocks read as zeroes
	AtomicWriteBytes   int  // what power loss never tears; 0: one logical block
}

// Error is an error of a Backing that asks for a certain completion status.
type Error struct {
	Status spec.Status
	Err    error // may be nil
}

func (e *Error) Error() string {
	if e.Err == nil {
		return e.Status.String()
	}
	return fmt.Sprintf("%v: %v", e.Status, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

var (
	errReadOnly  = &Error{Status: spec.NamespaceWriteProtected | spec.StatusDNR}
	errShortFile = errors.New("soft: the image file ends before the namespace does")
)

// StatusOf translates an error of a Backing into a completion status; write
// tells which of the two media errors an unknown error becomes.
func StatusOf(err error, write bool) spec.Status {
	var e *Error
	switch {
	case err == nil:
		return spec.Success
	case errors.As(err, &e):
		return e.Status
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return spec.CapacityExceeded | spec.StatusDNR
	case errors.Is(err, unix.EROFS), errors.Is(err, unix.EPERM):
		return spec.NamespaceWriteProtected | spec.StatusDNR
	case write:
		return spec.WriteFault | spec.StatusDNR
	}
	return spec.UnrecoveredReadError | spec.StatusDNR
}
