package spec

import (
	"fmt"
	"unsafe"
)

// SubmissionEntry is one command in a submission queue (Base 2.0, 3.3.3.1).
//
//	byte  31        24 23        16 15        8 7         0
//	  0  |          CID            |PSDT|  |FUSE|   OPC    |  CDW0
//	  4  |                        NSID                     |  CDW1
//	  8  |                        CDW2                     |
//	 12  |                        CDW3                     |
//	 16  |                        MPTR (64 bits)           |
//	 24  |                        PRP1 (64 bits)           |  DPTR
//	 32  |                        PRP2 (64 bits)           |
//	 40  |                        CDW10                    |
//	      ...
//	 60  |                        CDW15                    |
type SubmissionEntry struct {
	CDW0  uint32
	NSID  uint32
	CDW2  uint32
	CDW3  uint32
	MPTR  uint64
	PRP1  uint64
	PRP2  uint64
	CDW10 uint32
	CDW11 uint32
	CDW12 uint32
	CDW13 uint32
	CDW14 uint32
	CDW15 uint32
}

// Fields of CDW0.
const (
	FUSEMask = 3 << 8  // fused operation; 0: none
	PSDTMask = 3 << 14 // PRP or SGL; 0: PRPs
	PSDTSGL  = 1 << 14 // the data pointer is an SGL descriptor
	CIDShift = 16
)

// OPC is the opcode of the command.
func (e *SubmissionEntry) OPC() uint8 { return uint8(e.CDW0) }

// CID is the command identifier.
func (e *SubmissionEntry) CID() uint16 { return uint16(e.CDW0 >> CIDShift) }

// SetCID replaces the command identifier.
func (e *SubmissionEntry) SetCID(cid uint16) {
	e.CDW0 = e.CDW0&(1<<CIDShift-1) | uint32(cid)<<CIDShift
}

// SLBA is the starting LBA of an I/O command (CDW10 and CDW11).
func (e *SubmissionEntry) SLBA() uint64 { return uint64(e.CDW11)<<32 | uint64(e.CDW10) }

// SetSLBA sets the starting LBA of an I/O command.
func (e *SubmissionEntry) SetSLBA(lba uint64) { e.CDW10, e.CDW11 = uint32(lba), uint32(lba>>32) }

// Blocks is the number of logical blocks of an I/O command: NLB made 1's based.
func (e *SubmissionEntry) Blocks() uint64 { return uint64(e.CDW12&0xffff) + 1 }

// CompletionEntry is one entry of a completion queue (Base 2.0, 3.3.3.2).
//
//	byte  31                      16 15                      0
//	  0  |                 command specific                   |  DW0
//	  4  |                 command specific                   |  DW1
//	  8  |          SQID            |          SQHD           |  DW2
//	 12  |      status field    | P |          CID            |  DW3
//
// The controller writes DW3 last; whoever polls reads it first, atomically.
type CompletionEntry struct {
	DW0 uint32
	DW1 uint32
	DW2 uint32
	DW3 uint32
}

// Sizes of queue entries, as CC and Identify Controller give them (log2) and in bytes.
const (
	SQESLog2 = 6
	CQESLog2 = 4
	SQEBytes = 1 << SQESLog2
	CQEBytes = 1 << CQESLog2
)

// MakeDW3 builds the last dword of a completion. phase is 0 or 1.
func MakeDW3(cid uint16, s Status, phase uint32) uint32 {
	return uint32(s)<<17 | phase<<16 | uint32(cid)
}

// DSMRange is one range of a Dataset Management command (NVM 1.0, figure 39).
//
//	byte 0   |  context attributes  |
//	     4   |  length in LBAs      |
//	     8   |  starting LBA (64)   |
type DSMRange struct {
	CATTR  uint32
	Blocks uint32
	SLBA   uint64
}

// MaxDSMRanges is the greatest number of ranges of one command.
const MaxDSMRanges = 256

// CopyRange is one source range of a Copy command, descriptor format 0 (NVM 1.0,
// figure 31).
//
//	byte 0   |  reserved (64)                          |
//	     8   |  starting LBA (64)                      |
//	    16   |  NLB, 0's based (16)  |  reserved (48)  |
//	    24   |  protection information (64)            |
type CopyRange struct {
	_    uint64
	SLBA uint64
	NLB  uint16
	_    [6]byte
	_    uint64
}

// SGLDescriptor is an entry of a scatter gather list (Base 2.0, 4.1.2). A command
// has the first one in the place of PRP1 and PRP2; a list that is longer lies
// in segments, which (Last) Segment descriptors lead to.
//
//	byte 0   |  address (64)            |
//	     8   |  length (32)             |
//	    12   |  reserved (24)           |
//	    15   |  type 7:4 | subtype 3:0  |
type SGLDescriptor struct {
	Address uint64
	Bytes   uint32
	_       [3]byte
	ID      uint8
}

// SGL descriptor types, in place, all of subtype 0: the address is one of memory.
const (
	SGLDataBlock   = 0x0 << 4
	SGLBitBucket   = 0x1 << 4
	SGLSegment     = 0x2 << 4
	SGLLastSegment = 0x3 << 4

	SGLDescriptorBytes = 16
)

// SetSGL makes a descriptor the data pointer of the command.
func (e *SubmissionEntry) SetSGL(d SGLDescriptor) {
	e.CDW0 |= PSDTSGL
	e.PRP1, e.PRP2 = d.Address, uint64(d.ID)<<56|uint64(d.Bytes)
}

// SGL is the data pointer of the command as a descriptor.
func (e *SubmissionEntry) SGL() SGLDescriptor {
	return SGLDescriptor{Address: e.PRP1, Bytes: uint32(e.PRP2), ID: uint8(e.PRP2 >> 56)}
}

// The compiler refuses an index other than 0 here: sizes and offsets are as drawn.
var (
	_ = [1]struct{}{}[unsafe.Sizeof(SubmissionEntry{})-SQEBytes]
	_ = [1]struct{}{}[unsafe.Offsetof(SubmissionEntry{}.MPTR)-16]
	_ = [1]struct{}{}[unsafe.Offsetof(SubmissionEntry{}.PRP1)-24]
	_ = [1]struct{}{}[unsafe.Offsetof(SubmissionEntry{}.PRP2)-32]
	_ = [1]struct{}{}[unsafe.Offsetof(SubmissionEntry{}.CDW10)-40]
	_ = [1]struct{}{}[unsafe.Offsetof(SubmissionEntry{}.CDW15)-60]
	_ = [1]struct{}{}[unsafe.Sizeof(CompletionEntry{})-CQEBytes]
	_ = [1]struct{}{}[unsafe.Offsetof(CompletionEntry{}.DW3)-12]
	_ = [1]struct{}{}[unsafe.Sizeof(DSMRange{})-16]
	_ = [1]struct{}{}[unsafe.Offsetof(DSMRange{}.SLBA)-8]
	_ = [1]struct{}{}[unsafe.Sizeof(CopyRange{})-32]
	_ = [1]struct{}{}[unsafe.Offsetof(CopyRange{}.SLBA)-8]
	_ = [1]struct{}{}[unsafe.Offsetof(CopyRange{}.NLB)-16]
	_ = [1]struct{}{}[unsafe.Sizeof(SGLDescriptor{})-SGLDescriptorBytes]
	_ = [1]struct{}{}[unsafe.Offsetof(SGLDescriptor{}.ID)-15]
)

// Admin command opcodes (Base 2.0, figure 138).
const (
	AdminDeleteIOSQ     = 0x00
	AdminCreateIOSQ     = 0x01
	AdminGetLogPage     = 0x02
	AdminDeleteIOCQ     = 0x04
	AdminCreateIOCQ     = 0x05
	AdminIdentify       = 0x06
	AdminAbort          = 0x08
	AdminSetFeatures    = 0x09
	AdminGetFeatures    = 0x0a
	AdminAsyncEventReq  = 0x0c
	AdminDoorbellConfig = 0x7c // Doorbell Buffer Config
)

// I/O command opcodes (NVM 1.0, figure 16).
const (
	CmdFlush       = 0x00
	CmdWrite       = 0x01
	CmdRead        = 0x02
	CmdCompare     = 0x05
	CmdWriteZeroes = 0x08
	CmdDSM         = 0x09
	CmdVerify      = 0x0c
	CmdCopy        = 0x19
)

// Fields of commands.
const (
	CDW12FUA     = 1 << 30 // Read, Write, Write Zeroes, Copy
	CDW12DEAC    = 1 << 25 // Write Zeroes: the blocks may be deallocated
	CDW11DSMAD   = 1 << 2  // Dataset Management: deallocate
	MaxNLB       = 1 << 16 // logical blocks of one command, 1's based
	NSIDAll      = 0xffffffff
	CDW11QueuePC = 1 << 0  // Create I/O queue: physically contiguous
	CDW11CQIEN   = 1 << 1  // Create I/O Completion Queue: interrupts enabled
	CDW10RAE     = 1 << 15 // Get Log Page: retain the asynchronous event
)

// Identify CNS values (Base 2.0, figure 273).
const (
	CNSNamespace      = 0x00
	CNSController     = 0x01
	CNSActiveNSIDList = 0x02
	CNSCommandSetCtrl = 0x06 // Identify Controller of an I/O command set, CSI in CDW11 31:24
)

// Feature identifiers (Base 2.0, figure 317).
const (
	FeatureArbitration        = 0x01
	FeaturePowerManagement    = 0x02
	FeatureTemperature        = 0x04
	FeatureErrorRecovery      = 0x05
	FeatureVolatileWriteCache = 0x06
	FeatureNumberOfQueues     = 0x07
	FeatureIntCoalescing      = 0x08
	FeatureIntVectorConfig    = 0x09
	FeatureWriteAtomicity     = 0x0a
	FeatureAsyncEventConfig   = 0x0b
)

// Log page identifiers (Base 2.0, figure 202).
const (
	LogError             = 0x01
	LogSMART             = 0x02
	LogFirmwareSlot      = 0x03
	LogChangedNamespaces = 0x04
)

var adminNames = map[uint8]string{
	AdminDeleteIOSQ: "Delete I/O Submission Queue", AdminCreateIOSQ: "Create I/O Submission Queue",
	AdminGetLogPage: "Get Log Page", AdminDeleteIOCQ: "Delete I/O Completion Queue",
	AdminCreateIOCQ: "Create I/O Completion Queue", AdminIdentify: "Identify", AdminAbort: "Abort",
	AdminSetFeatures: "Set Features", AdminGetFeatures: "Get Features",
	AdminAsyncEventReq: "Asynchronous Event Request", AdminDoorbellConfig: "Doorbell Buffer Config",
}

var ioNames = map[uint8]string{
	CmdFlush: "Flush", CmdWrite: "Write", CmdRead: "Read", CmdCompare: "Compare",
	CmdWriteZeroes: "Write Zeroes", CmdDSM: "Dataset Management", CmdVerify: "Verify", CmdCopy: "Copy",
}

// AdminCommandName is the name of an admin command.
func AdminCommandName(opc uint8) string { return commandName(adminNames, opc) }

// IOCommandName is the name of a command of the NVM Command Set.
func IOCommandName(opc uint8) string { return commandName(ioNames, opc) }

func commandName(names map[uint8]string, opc uint8) string {
	if name, ok := names[opc]; ok {
		return name
	}
	return fmt.Sprintf("command %02xh", opc)
}
