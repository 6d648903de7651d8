package nvme

import (
	"errors"
	"fmt"

	"runsc-fs/nvme/spec"
)

// Classes of errors for errors.Is. Every failed command is ErrIO; the others
// narrow it down.
var (
	ErrIO       = errors.New("nvme: I/O error")
	ErrMedia    = errors.New("nvme: media error")
	ErrNoSpace  = errors.New("nvme: no space left on the device")
	ErrReadOnly = errors.New("nvme: the device is write protected")
	// ErrMiscompare: Compare found a difference.
	ErrMiscompare = errors.New("nvme: data differs")
)

// Conditions of the controller. All but ErrClosed are ErrIO, too.
var (
	// ErrTimeout: a command did not complete in time and was given up. Whether
	// it was carried out is unknown, but it will not be any more.
	ErrTimeout error = ioError("nvme: command timed out")
	// ErrControllerFatal: the controller failed and could not be reset.
	ErrControllerFatal error = ioError("nvme: controller failed")
	// ErrStateLost: somebody else has reset the controller, for instance its PCI
	// function. It has forgotten its queues and what it was doing. Callers see this
	// when it cannot be brought back, when it happens again and again, and from then
	// on when the volatile write cache was lost with its power: what was written and
	// not flushed may be gone.
	ErrStateLost error = ioError("nvme: the controller was reset by others")
	// ErrRemoved: the device is gone.
	ErrRemoved error = ioError("nvme: device was removed")
	// ErrProtocol: the controller did what no controller may do.
	ErrProtocol error = ioError("nvme: controller broke the protocol")
	// ErrNamespaceChanged: the namespace was removed, formatted or replaced
	// while it was open. It has to be opened anew.
	ErrNamespaceChanged error = ioError("nvme: the namespace is not what was opened")
	// ErrClosed: the device was closed.
	ErrClosed = errors.New("nvme: device is closed")
)

// Errors of single requests and of opening, before anything reaches the device.
var (
	// ErrInvalidRequest: misaligned, out of range, or memory outside the arena.
	ErrInvalidRequest = errors.New("nvme: invalid request")
	// ErrUnsupported: the controller or namespace lacks what was asked for.
	ErrUnsupported = errors.New("nvme: not supported by the device")
	// ErrNotAllowed: Options.OnlyNamespace excludes what was asked for.
	ErrNotAllowed = errors.New("nvme: not allowed here")
	// ErrNoNamespace: there is no active namespace of that number.
	ErrNoNamespace = errors.New("nvme: no such namespace")
)

// ioError is a sentinel that belongs to the class ErrIO.
type ioError string

func (e ioError) Error() string        { return string(e) }
func (e ioError) Is(target error) bool { return target == ErrIO }

// StatusError is the unsuccessful status of a completed command (Base 2.0,
// 3.3.3.2.1).
type StatusError struct {
	SCT, SC uint8  // status code type and status code
	DNR     bool   // do not retry: it would fail again
	Opcode  uint8  // of the command
	Admin   bool   // the command went to the admin queue
	NSID    uint32 // namespace of the command
	SLBA    uint64 // first logical block, where the command has one; of Copy: of its target
}

func newStatusError(cmd *spec.SubmissionEntry, s spec.Status, admin bool) *StatusError {
	e := &StatusError{SCT: s.SCT(), SC: s.SC(), DNR: s.DNR(), Opcode: cmd.OPC(), Admin: admin, NSID: cmd.NSID}
	if !admin && e.Opcode != spec.CmdFlush && e.Opcode != spec.CmdDSM {
		e.SLBA = cmd.SLBA()
	}
	return e
}

// Status is the status without the DNR bit.
func (e *StatusError) Status() spec.Status { return spec.Status(e.SCT)<<8 | spec.Status(e.SC) }

func (e *StatusError) Error() string {
	name := spec.IOCommandName(e.Opcode)
	if e.Admin {
		name = spec.AdminCommandName(e.Opcode)
	}
	return fmt.Sprintf("nvme: %s, namespace %d, LBA %d: %v", name, e.NSID, e.SLBA, e.Status())
}

// Is sorts the status into the classes of this package.
func (e *StatusError) Is(target error) bool {
	switch target {
	case ErrIO:
		return true
	case ErrMedia:
		return e.SCT == 2 && e.Status() != spec.CompareFailure
	case ErrMiscompare:
		return e.Status() == spec.CompareFailure
	case ErrNoSpace:
		return e.Status() == spec.CapacityExceeded
	case ErrReadOnly:
		return e.Status() == spec.NamespaceWriteProtected || e.Status() == spec.WriteToReadOnlyRange
	}
	return false
}
