package soft

import (
	"encoding/binary"
	"time"

	"runsc-fs/nvme/spec"
)

func (c *Controller) getLogPage(sq *submissionQueue, cmd *spec.SubmissionEntry) spec.Status {
	numd := uint64(cmd.CDW11&0xffff)<<16 | uint64(cmd.CDW10>>16)
	size := (numd + 1) * 4
	offset := uint64(cmd.CDW13)<<32 | uint64(cmd.CDW12)
	id := uint8(cmd.CDW10)
	var page []byte
	switch id {
	case spec.LogError:
		page = c.errorPage()
	case spec.LogSMART:
		page = c.smartPage()
	case spec.LogFirmwareSlot:
		page = make([]byte, spec.FirmwareBytes)
		page[spec.FirmwareAFI] = 1
		copy(page[spec.FirmwareRevisions:], "1.0     ")
	case spec.LogChangedNamespaces:
		page = c.changedPage()
	default:
		return spec.InvalidLogPage | spec.StatusDNR
	}
	if offset > uint64(len(page)) || offset%4 != 0 || size > uint64(c.maxData) {
		return invalidField
	}
	data := make([]byte, size) // what lies behind the page reads as zeroes
	copy(data, page[offset:])
	status := c.reply(sq, cmd, data)
	if status == spec.Success && cmd.CDW10&spec.CDW10RAE == 0 {
		c.acknowledge(id)
	}
	return status
}

// errorPage is the Error Information log (Base 2.0, figure 205), newest first.
func (c *Controller) errorPage() []byte {
	page := make([]byte, (elpe+1)*spec.ErrorEntryBytes)
	le := binary.LittleEndian
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.errorLog {
		e, p := c.errorLog[len(c.errorLog)-1-i], page[i*spec.ErrorEntryBytes:]
		le.PutUint64(p[spec.ErrCount:], e.count)
		le.PutUint16(p[spec.ErrSQID:], e.sqid)
		le.PutUint16(p[spec.ErrCID:], e.cid)
		le.PutUint16(p[spec.ErrStatus:], uint16(e.status)<<1)
		le.PutUint16(p[spec.ErrWhere:], 0xffff)
		le.PutUint64(p[spec.ErrLBA:], e.lba)
		le.PutUint32(p[spec.ErrNSID:], e.nsid)
	}
	return page
}

// smartPage is the SMART / Health Information log (Base 2.0, figure 207).
func (c *Controller) smartPage() []byte {
	page := make([]byte, spec.SMARTBytes)
	le := binary.LittleEndian
	c.mu.Lock()
	n, errors, h := c.gone, c.errorCount, c.health
	c.mu.Unlock()
	for i := range c.sqs[1:] {
		if sq := c.sqs[1+i].Load(); sq != nil {
			sq.cq.mu.Lock()
			n.add(sq.counters)
			sq.cq.mu.Unlock()
		}
	}
	page[spec.SMARTWarning] = h.critical(c.threshold.Load())
	le.PutUint16(page[spec.SMARTTemperature:], uint16(h.TemperatureKelvin))
	page[spec.SMARTSpare], page[spec.SMARTSpareThreshold] = uint8(h.SparePercent), spareThreshold
	le.PutUint64(page[spec.SMARTUnitsRead:], (n.readBytes+spec.DataUnitBytes-1)/spec.DataUnitBytes)
	le.PutUint64(page[spec.SMARTUnitsWritten:], (n.writeBytes+spec.DataUnitBytes-1)/spec.DataUnitBytes)
	le.PutUint64(page[spec.SMARTReads:], n.reads)
	le.PutUint64(page[spec.SMARTWrites:], n.writes)
	le.PutUint64(page[spec.SMARTPowerCycles:], 1+c.cycles.Load())
	le.PutUint64(page[spec.SMARTPowerOnHours:], uint64(time.Since(c.openedAt)/time.Hour))
	le.PutUint64(page[spec.SMARTMediaErrors:], n.mediaErrors)
	le.PutUint64(page[spec.SMARTErrorEntries:], errors)
	le.PutUint16(page[spec.SMARTSensors:], uint16(h.TemperatureKelvin))
	return page
}

// changedPage is the Changed Namespace List log (Base 2.0, 5.16.1.5).
func (c *Controller) changedPage() []byte {
	page := make([]byte, 4*spec.MaxChangedNamespaces)
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.changed) > spec.MaxChangedNamespaces {
		binary.LittleEndian.PutUint32(page, spec.NSIDAll)
		return page
	}
	for i, id := range c.changed {
		binary.LittleEndian.PutUint32(page[4*i:], id)
	}
	return page
}
