package store

import (
	"errors"
	"fmt"
)

// Errors of transactions and allocation.
var (
	// ErrNotFound is returned by Tx.Delete for a key that does not exist.
	ErrNotFound = errors.New("store: no such item")
	// ErrNoSpace says that the volume is full.
	ErrNoSpace = errors.New("store: no space left on volume")
	// ErrTooBig says that a value or a transaction exceeds its limit.
	ErrTooBig = errors.New("store: value or transaction too big")
	// ErrBadKey is returned for changes to the store's own items.
	ErrBadKey = errors.New("store: item belongs to the store")
	// ErrBadRun says that blocks were claimed or freed that were not in the
	// state for it: a bug of the caller or a corrupt volume.
	ErrBadRun = errors.New("store: blocks are not in the expected state")
	// ErrBadRange says that a data request touches what is not file data.
	ErrBadRange = errors.New("store: request outside the data area")
)

// Errors of the whole store.
var (
	// ErrReadOnly says that the store was opened read-only or has become so.
	ErrReadOnly = errors.New("store: volume is read-only")
	// ErrClosed is returned after Close.
	ErrClosed = errors.New("store: closed")
	// ErrBusy says that a transaction found no room in the log again and again.
	ErrBusy = errors.New("store: log stays full")
)

// FailedError is what every change returns after an error that leaves the
// store unable to say what is on the device. Reading goes on. It is an
// ErrReadOnly and wraps the first cause.
type FailedError struct {
	Doing string // what was being done
	Cause error
}

func (e *FailedError) Error() string {
	return fmt.Sprintf("store: volume became read-only: %s: %v", e.Doing, e.Cause)
}

// Is makes errors.Is(err, ErrReadOnly) true.
func (e *FailedError) Is(target error) bool { return target == ErrReadOnly }

// Unwrap returns the cause.
func (e *FailedError) Unwrap() error { return e.Cause }
