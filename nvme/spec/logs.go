package spec

// Offsets in the Error Information log: entries of ErrorEntryBytes, newest
// first (Base 2.0, figure 205).
//
//	 0  error count 8, SQID 2, CID 2, status with phase 2, parameter location 2
//	16  LBA 8, NSID 4, vendor log page 1, transport 1 …
const (
	ErrorEntryBytes = 64

	ErrCount  = 0
	ErrSQID   = 8
	ErrCID    = 10
	ErrStatus = 12 // status field in bits 15:1
	ErrWhere  = 14 // byte 7:0 and bit 10:8 of the command; FFFFh: none
	ErrLBA    = 16
	ErrNSID   = 24
)

// Offsets in the SMART / Health Information log (Base 2.0, figure 207). The
// counters have 16 bytes each.
//
//	  0  critical warning 1, composite temperature 2, spare 1, spare threshold 1, used 1 …
//	 32  data units read, data units written, host reads, host writes
//	 96  busy minutes, power cycles, power on hours, unsafe shutdowns
//	160  media errors, error log entries
//	192  warning temperature minutes 4, critical temperature minutes 4, sensors 8 * 2
const (
	SMARTBytes = 512

	SMARTWarning         = 0
	SMARTTemperature     = 1 // kelvin
	SMARTSpare           = 3 // percent
	SMARTSpareThreshold  = 4
	SMARTUsed            = 5 // percent, may exceed 100
	SMARTUnitsRead       = 32
	SMARTUnitsWritten    = 48
	SMARTReads           = 64
	SMARTWrites          = 80
	SMARTBusyMinutes     = 96
	SMARTPowerCycles     = 112
	SMARTPowerOnHours    = 128
	SMARTUnsafeShutdowns = 144
	SMARTMediaErrors     = 160
	SMARTErrorEntries    = 176
	SMARTWarmMinutes     = 192
	SMARTHotMinutes      = 196
	SMARTSensors         = 200
	SMARTSensorCount     = 8

	DataUnitBytes = 512 * 1000
)

// Bits of the critical warning field.
const (
	WarningSpare       = 1 << 0 // available spare below its threshold
	WarningTemperature = 1 << 1 // a temperature beyond a threshold
	WarningReliability = 1 << 2 // degraded by media or internal errors
	WarningReadOnly    = 1 << 3 // all media are read-only
	WarningBackup      = 1 << 4 // volatile memory backup failed
)

// Offsets in the Firmware Slot Information log (Base 2.0, figure 209).
const (
	FirmwareBytes     = 512
	FirmwareAFI       = 0 // active slot 2:0, slot after the next reset 6:4
	FirmwareRevisions = 8 // 8 bytes for each slot
	FirmwareSlotCount = 7
)

// MaxChangedNamespaces is the length of the Changed Namespace List log. A list
// that begins with FFFFFFFFh had more.
const MaxChangedNamespaces = 1024

// Asynchronous events (Base 2.0, figures 145 to 150): DW0 of the completion.
//
//	 31  24 23        16 15      8 7    3 2    0
//	|      | log page   | info    |      | type |
const (
	EventTypeError  = 0
	EventTypeHealth = 1
	EventTypeNotice = 2

	HealthReliability = 0
	HealthTemperature = 1
	HealthSpare       = 2

	NoticeNamespace = 0 // attribute of a namespace changed
	NoticeFirmware  = 1 // firmware activation starts
)

// MakeEvent builds DW0 of the completion of an Asynchronous Event Request.
func MakeEvent(typ, info, logPage uint8) uint32 {
	return uint32(typ&7) | uint32(info)<<8 | uint32(logPage)<<16
}
