package spec

// IdentifyBytes is the size of every Identify data structure.
const IdentifyBytes = 4096

// Offsets in the Identify Controller data structure (Base 2.0, figure 275).
// Lengths in bytes stand behind the names.
//
//	  0  VID 2, SSVID 2, SN 20, MN 40, FR 8, RAB 1, IEEE 3, CMIC 1, MDTS 1
//	 78  CNTLID 2, VER 4 … OAES 4, CTRATT 4 … CNTRLTYPE 1
//	256  OACS 2, ACL 1, AERL 1, FRMW 1, LPA 1, ELPE 1 …
//	512  SQES 1, CQES 1, MAXCMD 2, NN 4, ONCS 2, FUSES 2, FNA 1, VWC 1, AWUN 2, AWUPF 2 …
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
	IDCtrlCNTRLTYPE = 111
	IDCtrlOACS      = 256
	IDCtrlACL       = 258
	IDCtrlAERL      = 259
	IDCtrlFRMW      = 260
	IDCtrlLPA       = 261
	IDCtrlELPE      = 262
	IDCtrlSQES      = 512
	IDCtrlCQES      = 513
	IDCtrlNN        = 516
	IDCtrlONCS      = 520
	IDCtrlFNA       = 524
	IDCtrlVWC       = 525
	IDCtrlAWUN      = 526
	IDCtrlAWUPF     = 528
	IDCtrlSUBNQN    = 768
)

// Bits of ONCS, the optional I/O commands.
const (
	ONCSCompare     = 1 << 0
	ONCSDSM         = 1 << 2
	ONCSWriteZeroes = 1 << 3
)

// VWCPresent is bit 0 of VWC: there is a volatile write cache.
const VWCPresent = 1 << 0

// Offsets in the Identify Namespace data structure (NVM 1.0, figure 97).
//
//	  0  NSZE 8, NCAP 8, NUSE 8, NSFEAT 1, NLBAF 1, FLBAS 1, MC 1, DPC 1, DPS 1 …
//	 33  DLFEAT 1, NAWUN 2, NAWUPF 2, NACWU 2, NABSN 2, NABO 2, NABSPF 2, NOIOB 2 …
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
	IDNSNGUID  = 104
	IDNSEUI64  = 120
	IDNSLBAF   = 128 // NLBAF+1 entries of 4 bytes: MS 15:0, LBADS 23:16, RP 25:24
)

// NSFEATAtomics is bit 1 of NSFEAT: NAWUN, NAWUPF and NACWU hold for the namespace.
const NSFEATAtomics = 1 << 1

// FormatIndex is the index of the LBA format in use, from the two parts that
// FLBAS has for it.
func FormatIndex(flbas uint8) int { return int(flbas&0xf | flbas>>1&0x30) }
