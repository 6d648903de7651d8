package nvme

import (
	"encoding/binary"
	"fmt"
	"math"
	"time"

	"runsc-fs/nvme/spec"
)

// Health is the SMART / Health Information log (Base 2.0, figure 207). Counters
// of more than 64 bits stop at their greatest value.
type Health struct {
	CriticalWarning       uint8 // spec.WarningSpare …
	TemperatureKelvin     int   // composite temperature
	SparePercent          int   // remaining spare capacity
	SpareThresholdPercent int   // below which CriticalWarning says so
	UsedPercent           int   // of the life expectancy; may exceed 100
	UnitsRead             uint64
	UnitsWritten          uint64 // of spec.DataUnitBytes each
	Reads, Writes         uint64 // commands
	BusyTime              time.Duration
	PowerCycles           uint64
	PowerOnTime           time.Duration
	UnsafeShutdowns       uint64
	MediaErrors           uint64
	ErrorEntries          uint64        // ever made in the error log
	WarmTime, HotTime     time.Duration // above the warning, the critical temperature
	SensorsKelvin         [spec.SMARTSensorCount]int
}

// Health reads the SMART log of the whole controller.
func (c *Controller) Health() (Health, error) {
	page, err := c.LogPage(spec.LogSMART, spec.SMARTBytes)
	if err != nil {
		return Health{}, fmt.Errorf("reading the SMART log: %w", err)
	}
	return decodeHealth(page), nil
}

func decodeHealth(page []byte) Health {
	le := binary.LittleEndian
	counter := func(off int) uint64 {
		if le.Uint64(page[off+8:]) != 0 {
			return math.MaxUint64
		}
		return le.Uint64(page[off:])
	}
	span := func(n uint64, unit time.Duration) time.Duration {
		return time.Duration(min(n, uint64(math.MaxInt64/unit))) * unit
	}
	h := Health{
		CriticalWarning:       page[spec.SMARTWarning],
		TemperatureKelvin:     int(le.Uint16(page[spec.SMARTTemperature:])),
		SparePercent:          int(page[spec.SMARTSpare]),
		SpareThresholdPercent: int(page[spec.SMARTSpareThreshold]),
		UsedPercent:           int(page[spec.SMARTUsed]),
		UnitsRead:             counter(spec.SMARTUnitsRead),
		UnitsWritten:          counter(spec.SMARTUnitsWritten),
		Reads:                 counter(spec.SMARTReads),
		Writes:                counter(spec.SMARTWrites),
		BusyTime:              span(counter(spec.SMARTBusyMinutes), time.Minute),
		PowerCycles:           counter(spec.SMARTPowerCycles),
		PowerOnTime:           span(counter(spec.SMARTPowerOnHours), time.Hour),
		UnsafeShutdowns:       counter(spec.SMARTUnsafeShutdowns),
		MediaErrors:           counter(spec.SMARTMediaErrors),
		ErrorEntries:          counter(spec.SMARTErrorEntries),
		WarmTime:              span(uint64(le.Uint32(page[spec.SMARTWarmMinutes:])), time.Minute),
		HotTime:               span(uint64(le.Uint32(page[spec.SMARTHotMinutes:])), time.Minute),
	}
	for i := range h.SensorsKelvin {
		h.SensorsKelvin[i] = int(le.Uint16(page[spec.SMARTSensors+2*i:]))
	}
	return h
}

// celsius is the temperature as people read it.
func celsius(kelvin int) int { return kelvin - 273 }

// Warnings says in words what is wrong, one line each. warnKelvin is the
// controller's ControllerInfo.WarnKelvin, 0 when it has none.
func (h *Health) Warnings(warnKelvin int) []string {
	var w []string
	for _, c := range h.complaints(warnKelvin) {
		w = append(w, c.text)
	}
	return w
}

// complaint is one thing that is wrong with a controller.
type complaint struct {
	bit  uint8 // which: spec.WarningSpare …
	text string
}

func (h *Health) complaints(warnKelvin int) []complaint {
	var list []complaint
	add := func(bit uint8, format string, args ...any) {
		list = append(list, complaint{bit, fmt.Sprintf(format, args...)})
	}
	critical := h.CriticalWarning
	if critical&spec.WarningSpare != 0 || h.SparePercent < h.SpareThresholdPercent {
		add(spec.WarningSpare, "available spare is %d %%, its threshold %d %%: the device is wearing out", h.SparePercent, h.SpareThresholdPercent)
	}
	if critical&spec.WarningTemperature != 0 {
		add(spec.WarningTemperature, "temperature is beyond a threshold: %d °C", celsius(h.TemperatureKelvin))
	} else if warnKelvin != 0 && h.TemperatureKelvin >= warnKelvin {
		add(spec.WarningTemperature, "temperature is %d °C, the controller's limit %d °C", celsius(h.TemperatureKelvin), celsius(warnKelvin))
	}
	if critical&spec.WarningReliability != 0 {
		add(spec.WarningReliability, "reliability is degraded by media or internal errors")
	}
	if critical&spec.WarningReadOnly != 0 {
		add(spec.WarningReadOnly, "all media are read-only")
	}
	if critical&spec.WarningBackup != 0 {
		add(spec.WarningBackup, "the backup of its volatile memory failed")
	}
	return list
}

// ErrorEntry is one entry of the Error Information log (Base 2.0, figure 205).
type ErrorEntry struct {
	Count  uint64 // number of the entry since the device was made, from 1
	SQID   uint16 // FFFFh: of no particular command
	CID    uint16
	Status spec.Status
	Byte   int // where in the command the fault is; -1: not told
	Bit    int
	LBA    uint64
	NSID   uint32
}

// String shows the entry on one line.
func (e ErrorEntry) String() string {
	return fmt.Sprintf("error %d: queue %d, command %#04x, namespace %d, LBA %d: %v", e.Count, e.SQID, e.CID, e.NSID, e.LBA, e.Status)
}

// Errors reads the latest entries of the error log, newest first: at most 64 of
// them.
func (c *Controller) Errors() ([]ErrorEntry, error) {
	n := min(c.info.ErrorLogEntries, PageSizeBytes/spec.ErrorEntryBytes)
	page, err := c.LogPage(spec.LogError, n*spec.ErrorEntryBytes)
	if err != nil {
		return nil, fmt.Errorf("reading the error log: %w", err)
	}
	return decodeErrors(page), nil
}

func decodeErrors(page []byte) []ErrorEntry {
	le := binary.LittleEndian
	var entries []ErrorEntry
	for ; len(page) >= spec.ErrorEntryBytes; page = page[spec.ErrorEntryBytes:] {
		e := ErrorEntry{
			Count:  le.Uint64(page[spec.ErrCount:]),
			SQID:   le.Uint16(page[spec.ErrSQID:]),
			CID:    le.Uint16(page[spec.ErrCID:]),
			Status: spec.Status(le.Uint16(page[spec.ErrStatus:]) >> 1),
			Byte:   -1,
			LBA:    le.Uint64(page[spec.ErrLBA:]),
			NSID:   le.Uint32(page[spec.ErrNSID:]),
		}
		if e.Count == 0 { // not in use
			continue
		}
		if where := le.Uint16(page[spec.ErrWhere:]); where != 0xffff {
			e.Byte, e.Bit = int(where&0xff), int(where>>8&7)
		}
		entries = append(entries, e)
	}
	return entries
}

// Firmware is the Firmware Slot Information log (Base 2.0, figure 209).
type Firmware struct {
	Active    int // slot that runs
	Next      int // slot after the next reset; 0: not told
	Revisions [spec.FirmwareSlotCount]string
}

// Firmware reads the firmware slot log. Slots are counted from 1; Revisions[0] is
// slot 1, and empty slots have no revision.
func (c *Controller) Firmware() (Firmware, error) {
	page, err := c.LogPage(spec.LogFirmwareSlot, spec.FirmwareBytes)
	if err != nil {
		return Firmware{}, fmt.Errorf("reading the firmware slot log: %w", err)
	}
	return decodeFirmware(page), nil
}

func decodeFirmware(page []byte) Firmware {
	afi := page[spec.FirmwareAFI]
	f := Firmware{Active: int(afi & 7), Next: int(afi >> 4 & 7)}
	for i := range f.Revisions {
		f.Revisions[i] = printable(page[spec.FirmwareRevisions+8*i:][:8])
	}
	return f
}

// decodeChangedNamespaces reads the Changed Namespace List log. all reports that
// more changed than the log holds.
func decodeChangedNamespaces(page []byte) (ids []uint32, all bool) {
	for ; len(page) >= 4; page = page[4:] {
		switch id := binary.LittleEndian.Uint32(page); id {
		case 0:
			return ids, false
		case spec.NSIDAll:
			return nil, true
		default:
			ids = append(ids, id)
		}
	}
	return ids, false
}
