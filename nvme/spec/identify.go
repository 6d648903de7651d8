package spec

// IdentifyBytes is the size of every Identify data structure.
const IdentifyBytes = 4096

// Offsets in the Identify Controller data structure (Base 2.0, figure 275).
// Lengths in bytes stand behind the names.
//
//	  0  VID 2, SSVID 2, SN 20, MN 40, FR 8, RAB 1, IEEE 3, CMIC 1, MDTS 1
//	 78  CNTLID 2, VER 4 … OAES 4, CTRATT 4 … CNTRLTYPE 1
//	256  OACS 2, ACL 1, AERL 1, FRMW 1, LPA 1, ELPE 1, NPSS 1, AVSCC 1, APSTA 1, WCTEMP 2, CCTEMP 2 …
//	512  SQES 1, CQES 1, MAXCMD 2, NN 4, ONCS 2, FUSES 2, FNA 1, VWC 1, AWUN 2, AWUPF 2 … OCFS 2, SGLS 4
//	768  SUBNQN 256
const (
	IDCtrlVID       = 0
	IDCtrlSSVID     = 2
	IDCtrlSN        = 4
	IDCtrlSNBytes   = 20
	IDCtrlMN        = 24
	IDCtrlMNBytes   = 40
	IDCtrlFR        = 64
	IDCtrlFRBytes   = 8
	IDCtrlMDTS      = 77
	IDCtrlCNTLID    = 78
	IDCtrlVER       = 80
	IDCtrlRTD3E     = 88 // microseconds that a shutdown may take
	IDCtrlOAES      = 92
	IDCtrlCNTRLTYPE = 111
	IDCtrlOACS      = 256
	IDCtrlACL       = 258
	IDCtrlAERL      = 259
	IDCtrlFRMW      = 260
	IDCtrlLPA       = 261
	IDCtrlELPE      = 262
	IDCtrlWCTEMP    = 266 // kelvin; 0: not reported
	IDCtrlCCTEMP    = 268
	IDCtrlSQES      = 512
	IDCtrlCQES      = 513
	IDCtrlNN        = 516
	IDCtrlONCS      = 520
	IDCtrlFNA       = 524
	IDCtrlVWC       = 525
	IDCtrlAWUN      = 526
	IDCtrlAWUPF     = 528
	IDCtrlOCFS      = 534 // formats of the ranges of Copy
	IDCtrlSGLS      = 536
	IDCtrlSUBNQN    = 768
)

// Bits of OACS, the optional admin commands.
const OACSDoorbellConfig = 1 << 8

// Bits of OAES, the optional asynchronous events, and of the feature that
// enables events (Base 2.0, figure 326), where the lowest five bits are the
// critical warnings of the SMART log.
const (
	EventWarnings  = 0x1f
	EventNamespace = 1 << 8
	EventFirmware  = 1 << 9
)

// Values of bits 1:0 of SGLS.
const (
	SGLSMask     = 3
	SGLSAnywhere = 1 // supported, no alignment needed
	SGLSDword    = 2 // supported, addresses and lengths in dwords
)

// Bits of ONCS, the optional I/O commands.
const (
	ONCSCompare     = 1 << 0
	ONCSDSM         = 1 << 2
	ONCSWriteZeroes = 1 << 3
	ONCSVerify      = 1 << 7
	ONCSCopy        = 1 << 8
)

// VWCPresent is bit 0 of VWC: there is a volatile write cache.
const VWCPresent = 1 << 0

// Offsets in the Identify Namespace data structure (NVM 1.0, figure 97).
//
//	  0  NSZE 8, NCAP 8, NUSE 8, NSFEAT 1, NLBAF 1, FLBAS 1, MC 1, DPC 1, DPS 1 …
//	 33  DLFEAT 1, NAWUN 2, NAWUPF 2, NACWU 2, NABSN 2, NABO 2, NABSPF 2, NOIOB 2 …
//	 74  MSSRL 2, MCL 4, MSRC 1 …
//	104  NGUID 16, EUI64 8, LBAF0 4, LBAF1 4 …
const (
	IDNSNSZE   = 0
	IDNSNCAP   = 8
	IDNSNUSE   = 16
	IDNSNSFEAT = 24
	IDNSNLBAF  = 25
	IDNSFLBAS  = 26
	IDNSDPS    = 29
	IDNSDLFEAT = 33
	IDNSNAWUN  = 34
	IDNSNAWUPF = 36
	IDNSNABSPF = 44
	IDNSNOIOB  = 46
	IDNSMSSRL  = 74 // limits of Copy: blocks of one range,
	IDNSMCL    = 76 // blocks of a command,
	IDNSMSRC   = 80 // ranges, 0's based
	IDNSNGUID  = 104
	IDNSEUI64  = 120
	IDNSLBAF   = 128 // NLBAF+1 entries of 4 bytes: MS 15:0, LBADS 23:16, RP 25:24
)

// Offsets in the Identify Controller data structure of the NVM Command Set
// (NVM 1.0, figure 102). Each field is a limit; 0: none.
const (
	IDNVMVSL   = 0 // Verify: a power of two times 4 KiB, as MDTS
	IDNVMWZSL  = 1 // Write Zeroes: the same
	IDNVMDMRL  = 3 // Dataset Management: ranges
	IDNVMDMRSL = 4 // blocks of one range, 4 bytes
	IDNVMDMSL  = 8 // blocks of a command, 8 bytes
)

// NSFEATAtomics is bit 1 of NSFEAT: NAWUN, NAWUPF and NACWU hold for the namespace.
const NSFEATAtomics = 1 << 1

// FormatIndex is the index of the LBA format in use, from the two parts that
// FLBAS has for it.
func FormatIndex(flbas uint8) int { return int(flbas&0xf | flbas>>1&0x30) }
