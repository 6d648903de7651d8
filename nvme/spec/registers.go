// Package spec holds the layouts and numbers of the NVM Express Base
// Specification 2.0 and the NVM Command Set Specification 1.0 under the names
// they have there. The driver and the controller models share it, and nothing
// else.
//
// All multi-byte fields are little-endian, as the processors are that this
// project supports, so the structures are used in shared memory as they stand.
package spec

import "time"

// Controller registers (Base 2.0, 3.1.3).
//
//	offset
//	       63        48 47        32 31        16 15         0
//	0x00  |                       CAP                         |
//	0x08  |         INTMS           |           VS            |
//	0x10  |           CC            |          INTMC          |
//	0x18  |          CSTS           |        (reserved)       |
//	0x20  |          AQA            |          NSSR           |
//	0x28  |                       ASQ                         |
//	0x30  |                       ACQ                         |
//	      ~                                                   ~
//	0x1000 + (2y)   * (4 << CAP.DSTRD)   SQyTDBL  tail of submission queue y
//	0x1000 + (2y+1) * (4 << CAP.DSTRD)   CQyHDBL  head of completion queue y
const (
	RegCAP   = 0x00 // Controller Capabilities, 64 bits
	RegVS    = 0x08 // Version
	RegINTMS = 0x0c // Interrupt Mask Set
	RegINTMC = 0x10 // Interrupt Mask Clear
	RegCC    = 0x14 // Controller Configuration
	RegCSTS  = 0x1c // Controller Status
	RegNSSR  = 0x20 // NVM Subsystem Reset
	RegAQA   = 0x24 // Admin Queue Attributes
	RegASQ   = 0x28 // Admin Submission Queue Base Address, 64 bits
	RegACQ   = 0x30 // Admin Completion Queue Base Address, 64 bits

	RegDoorbells = 0x1000 // first doorbell
)

// SQTailDoorbell is the offset of SQyTDBL for queue y.
func SQTailDoorbell(y uint16, dstrd uint) uint32 { return RegDoorbells + 2*uint32(y)*(4<<dstrd) }

// CQHeadDoorbell is the offset of CQyHDBL for queue y.
func CQHeadDoorbell(y uint16, dstrd uint) uint32 { return RegDoorbells + (2*uint32(y)+1)*(4<<dstrd) }

// Version 2.0.0 as VS and Identify Controller VER report it.
const Version20 = 2<<16 | 0<<8 | 0

// CAP is the value of the Controller Capabilities register (3.1.3.1).
//
//	 63   60 59    57 56   55   52 51   48 47  46 45 44   37 36  35   32 31   24 23 19 18 17 16 15     0
//	|  ...  |  CRMS  |CMBS| MPSMAX| MPSMIN|  ...  |   CSS  |NSSR| DSTRD |   TO  |  0  | AMS |CQR|  MQES  |
type CAP uint64

// MQES is the greatest number of entries of an I/O queue, 0's based.
func (c CAP) MQES() uint16 { return uint16(c) }

// TO is the longest time that CSTS.RDY may take to follow CC.EN.
func (c CAP) TO() time.Duration { return time.Duration(c>>24&0xff) * 500 * time.Millisecond }

// DSTRD is the doorbell stride: doorbells lie 4 << DSTRD bytes apart.
func (c CAP) DSTRD() uint { return uint(c >> 32 & 0xf) }

// CSSNVM tells whether the NVM Command Set is supported (bit 37).
func (c CAP) CSSNVM() bool { return c>>37&1 != 0 }

// MPSMIN is the smallest memory page size, as a power of two times 4 KiB.
func (c CAP) MPSMIN() uint { return uint(c >> 48 & 0xf) }

// MPSMAX is the greatest memory page size, as a power of two times 4 KiB.
func (c CAP) MPSMAX() uint { return uint(c >> 52 & 0xf) }

// MakeCAP builds the register of a controller model with contiguous queues
// only (CQR) and 4 KiB pages. to is in units of 500 ms.
func MakeCAP(mqes uint16, to uint8, dstrd uint) CAP {
	return CAP(mqes) | 1<<16 | CAP(to)<<24 | CAP(dstrd&0xf)<<32 | 1<<37
}

// Controller Configuration, CC (3.1.3.5).
//
//	 31   25  24  23    20 19    16 15 14 13  11 10    7 6    4 3   1  0
//	|  ...  |CRIME| IOCQES| IOSQES | SHN | AMS  |  MPS  |  CSS |  0  |EN |
const (
	CCEN          = 1 << 0
	CCCSSShift    = 4 // 0: NVM Command Set
	CCMPSShift    = 7 // memory page size, a power of two times 4 KiB
	CCAMSShift    = 11
	CCSHNMask     = 3 << 14
	CCSHNNormal   = 1 << 14
	CCSHNAbrupt   = 2 << 14
	CCIOSQESShift = 16 // log2 of the submission queue entry size
	CCIOCQESShift = 20 // log2 of the completion queue entry size
)

// Controller Status, CSTS (3.1.3.6).
//
//	 31     7  6   5    4   3  2   1   0
//	|  ...  |ST | PP |NSSRO|SHST|CFS|RDY|
const (
	CSTSRDY          = 1 << 0
	CSTSCFS          = 1 << 1
	CSTSSHSTMask     = 3 << 2
	CSTSSHSTOccuring = 1 << 2
	CSTSSHSTComplete = 2 << 2
)

// Gone is what a 32-bit register read gives when the device is not there any
// more: PCI answers reads of nobody with all bits set.
const Gone = 0xffffffff

// Admin Queue Attributes, AQA (3.1.3.9): ACQS in 27:16, ASQS in 11:0, 0's based.
func AQA(sqEntries, cqEntries int) uint32 {
	return uint32(cqEntries-1)<<16 | uint32(sqEntries-1)
}
