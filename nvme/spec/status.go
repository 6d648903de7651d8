package spec

import "fmt"

// Status is the status field of a completion without the phase bit (Base 2.0,
// 3.3.3.2.1).
//
//	 14  13  12 11 10   8 7       0
//	|DNR| M | CRD | SCT  |   SC    |
type Status uint16

// Status flags.
const (
	StatusDNR  Status = 1 << 14
	StatusMore Status = 1 << 13
)

// Status code types, already in place in the field.
const (
	SCTGeneric Status = 0 << 8
	SCTCommand Status = 1 << 8
	SCTMedia   Status = 2 << 8
	SCTPath    Status = 3 << 8
	SCTVendor  Status = 7 << 8
)

// Status codes: type and code (Base 2.0, figures 95 to 99; NVM 1.0, figures 9 to 11).
const (
	Success                  = SCTGeneric | 0x00
	InvalidOpcode            = SCTGeneric | 0x01
	InvalidField             = SCTGeneric | 0x02
	CIDConflict              = SCTGeneric | 0x03
	DataTransferError        = SCTGeneric | 0x04
	AbortedPowerLoss         = SCTGeneric | 0x05
	InternalError            = SCTGeneric | 0x06
	AbortRequested           = SCTGeneric | 0x07
	AbortedSQDeletion        = SCTGeneric | 0x08
	InvalidNamespace         = SCTGeneric | 0x0b
	CommandSequenceError     = SCTGeneric | 0x0c
	InvalidSGLSegment        = SCTGeneric | 0x0d
	InvalidSGLCount          = SCTGeneric | 0x0e
	InvalidSGLLength         = SCTGeneric | 0x0f
	InvalidSGLType           = SCTGeneric | 0x11
	PRPOffsetInvalid         = SCTGeneric | 0x13
	AtomicWriteUnitExceeded  = SCTGeneric | 0x14
	NamespaceWriteProtected  = SCTGeneric | 0x20
	CommandInterrupted       = SCTGeneric | 0x21
	TransientTransport       = SCTGeneric | 0x22
	LBAOutOfRange            = SCTGeneric | 0x80
	CapacityExceeded         = SCTGeneric | 0x81
	NamespaceNotReady        = SCTGeneric | 0x82
	ReservationConflict      = SCTGeneric | 0x83
	CQInvalid                = SCTCommand | 0x00
	InvalidQueueID           = SCTCommand | 0x01
	InvalidQueueSize         = SCTCommand | 0x02
	AbortLimitExceeded       = SCTCommand | 0x03
	AERLimitExceeded         = SCTCommand | 0x05
	InvalidInterruptVector   = SCTCommand | 0x08
	InvalidLogPage           = SCTCommand | 0x09
	InvalidQueueDeletion     = SCTCommand | 0x0c
	FeatureNotSaveable       = SCTCommand | 0x0d
	FeatureNotChangeable     = SCTCommand | 0x0e
	ConflictingAttributes    = SCTCommand | 0x80
	WriteToReadOnlyRange     = SCTCommand | 0x82
	CopySizeLimitExceeded    = SCTCommand | 0x83
	WriteFault               = SCTMedia | 0x80
	UnrecoveredReadError     = SCTMedia | 0x81
	GuardCheckError          = SCTMedia | 0x82
	CompareFailure           = SCTMedia | 0x85
	AccessDenied             = SCTMedia | 0x86
	DeallocatedOrUnwritten   = SCTMedia | 0x87
	statusCodeMask           = Status(0x7ff)
	statusTypeShift, typeBit = 8, 7
)

var statusText = map[Status]string{
	Success:                 "success",
	InvalidOpcode:           "invalid command opcode",
	InvalidField:            "invalid field in command",
	CIDConflict:             "command id conflict",
	DataTransferError:       "data transfer error",
	AbortedPowerLoss:        "aborted: power loss",
	InternalError:           "internal error",
	AbortRequested:          "abort requested",
	AbortedSQDeletion:       "aborted: submission queue deleted",
	InvalidNamespace:        "invalid namespace or format",
	CommandSequenceError:    "command sequence error",
	InvalidSGLSegment:       "invalid SGL segment descriptor",
	InvalidSGLCount:         "invalid number of SGL descriptors",
	InvalidSGLLength:        "data SGL length invalid",
	InvalidSGLType:          "SGL descriptor type invalid",
	PRPOffsetInvalid:        "PRP offset invalid",
	AtomicWriteUnitExceeded: "atomic write unit exceeded",
	NamespaceWriteProtected: "namespace is write protected",
	CommandInterrupted:      "command interrupted",
	TransientTransport:      "transient transport error",
	LBAOutOfRange:           "LBA out of range",
	CapacityExceeded:        "capacity exceeded",
	NamespaceNotReady:       "namespace not ready",
	ReservationConflict:     "reservation conflict",
	CQInvalid:               "completion queue invalid",
	InvalidQueueID:          "invalid queue identifier",
	InvalidQueueSize:        "invalid queue size",
	AbortLimitExceeded:      "abort command limit exceeded",
	AERLimitExceeded:        "asynchronous event request limit exceeded",
	InvalidInterruptVector:  "invalid interrupt vector",
	InvalidLogPage:          "invalid log page",
	InvalidQueueDeletion:    "invalid queue deletion",
	FeatureNotSaveable:      "feature not saveable",
	FeatureNotChangeable:    "feature not changeable",
	ConflictingAttributes:   "conflicting attributes",
	WriteToReadOnlyRange:    "write to a read-only range",
	CopySizeLimitExceeded:   "command size limit exceeded",
	WriteFault:              "write fault",
	UnrecoveredReadError:    "unrecovered read error",
	GuardCheckError:         "end-to-end guard check error",
	CompareFailure:          "compare failure",
	AccessDenied:            "access denied",
	DeallocatedOrUnwritten:  "deallocated or unwritten block",
}

// Code is type and code alone, comparable with the constants above.
func (s Status) Code() Status { return s & statusCodeMask }

// SCT is the status code type.
func (s Status) SCT() uint8 { return uint8(s >> statusTypeShift & typeBit) }

// SC is the status code within its type.
func (s Status) SC() uint8 { return uint8(s) }

// DNR tells that the command would fail again if it were retried.
func (s Status) DNR() bool { return s&StatusDNR != 0 }

// String names the status, with type and code in hexadecimal.
func (s Status) String() string {
	text, ok := statusText[s.Code()]
	if !ok {
		text = "unknown status"
		switch s.SCT() {
		case 2:
			text = "media or data integrity error"
		case 3:
			text = "path related error"
		case 7:
			text = "vendor specific status"
		}
	}
	return fmt.Sprintf("%s (SCT %x, SC %02x)", text, s.SCT(), s.SC())
}
