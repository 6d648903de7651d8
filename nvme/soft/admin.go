package soft

import (
	"encoding/binary"
	"time"

	"runsc-fs/nvme"
	"runsc-fs/nvme/spec"
)

// Limits that Identify Controller reports, 0's based as there.
const (
	aerl = 3  // outstanding Asynchronous Event Requests
	acl  = 3  // outstanding Aborts
	elpe = 63 // error log entries
)

// errorEntry is what the Error Information log keeps of a failed command.
type errorEntry struct {
	count  uint64
	sqid   uint16
	cid    uint16
	status spec.Status
	nsid   uint32
	lba    uint64
}

func (c *Controller) logError(sqid, cid uint16, status spec.Status, nsid uint32, lba uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.errorCount++
	c.errorLog = append(c.errorLog, errorEntry{c.errorCount, sqid, cid, status, nsid, lba})
	if len(c.errorLog) > elpe+1 {
		c.errorLog = append(c.errorLog[:0], c.errorLog[1:]...)
	}
}

const invalidField = spec.InvalidField | spec.StatusDNR

// admin carries out an admin command and returns DW0 and status of its
// completion; done is false for one that stays outstanding. The caller holds
// the admin queue's mutex.
func (c *Controller) admin(sq *submissionQueue, cmd *spec.SubmissionEntry) (dw0 uint32, status spec.Status, done bool) {
	if cmd.CDW0&(spec.FUSEMask|spec.PSDTMask) != 0 {
		return 0, invalidField, true
	}
	switch cmd.OPC() {
	case spec.AdminCreateIOCQ:
		status = c.createCQ(cmd)
	case spec.AdminCreateIOSQ:
		status = c.createSQ(cmd)
	case spec.AdminDeleteIOSQ:
		status = c.deleteSQ(uint16(cmd.CDW10))
	case spec.AdminDeleteIOCQ:
		status = c.deleteCQ(uint16(cmd.CDW10))
	case spec.AdminIdentify:
		status = c.identify(sq, cmd)
	case spec.AdminSetFeatures:
		dw0, status = c.setFeature(cmd)
	case spec.AdminGetFeatures:
		dw0, status = c.getFeature(cmd)
	case spec.AdminGetLogPage:
		status = c.getLogPage(sq, cmd)
	case spec.AdminAbort:
		dw0 = c.abort(uint16(cmd.CDW10), uint16(cmd.CDW10>>16))
	case spec.AdminAsyncEventReq:
		c.mu.Lock()
		defer c.mu.Unlock()
		if len(c.aers) > aerl {
			return 0, spec.AERLimitExceeded | spec.StatusDNR, true
		}
		c.aers = append(c.aers, held{sq: sq, cmd: *cmd})
		return 0, 0, false
	default:
		status = spec.InvalidOpcode | spec.StatusDNR
	}
	return dw0, status, true
}

func (c *Controller) createCQ(cmd *spec.SubmissionEntry) spec.Status {
	qid, entries := uint16(cmd.CDW10), int(cmd.CDW10>>16)+1
	switch {
	case qid == 0 || int(qid) > c.ioQueues || c.cqs[qid].Load() != nil:
		return spec.InvalidQueueID | spec.StatusDNR
	case entries < 2 || entries > c.opts.MaxQueueEntries:
		return spec.InvalidQueueSize | spec.StatusDNR
	case cmd.CDW11&spec.CDW11QueuePC == 0 || cmd.PRP1%nvme.PageSizeBytes != 0:
		return invalidField
	case cmd.CDW11>>16 > uint32(c.opts.MaxQueuePairs):
		return spec.InvalidInterruptVector | spec.StatusDNR
	}
	e, ok := mapQueue[spec.CompletionEntry](c, cmd.PRP1, entries)
	if !ok {
		return spec.DataTransferError | spec.StatusDNR
	}
	c.queuesSet = true
	c.cqs[qid].Store(&completionQueue{id: qid, vector: uint16(cmd.CDW11 >> 16), entries: e, phase: 1})
	return spec.Success
}

func (c *Controller) createSQ(cmd *spec.SubmissionEntry) spec.Status {
	qid, entries, cqid := uint16(cmd.CDW10), int(cmd.CDW10>>16)+1, uint16(cmd.CDW11>>16)
	switch {
	case qid == 0 || int(qid) > c.ioQueues || c.sqs[qid].Load() != nil:
		return spec.InvalidQueueID | spec.StatusDNR
	case cqid == 0 || int(cqid) > c.ioQueues || c.cqs[cqid].Load() == nil:
		return spec.CQInvalid | spec.StatusDNR
	case entries < 2 || entries > c.opts.MaxQueueEntries:
		return spec.InvalidQueueSize | spec.StatusDNR
	case cmd.CDW11&spec.CDW11QueuePC == 0 || cmd.PRP1%nvme.PageSizeBytes != 0:
		return invalidField
	case c.cc.Load()>>spec.CCIOSQESShift&0xf != spec.SQESLog2 || c.cc.Load()>>spec.CCIOCQESShift&0xf != spec.CQESLog2:
		return spec.InvalidQueueSize | spec.StatusDNR
	}
	e, ok := mapQueue[spec.SubmissionEntry](c, cmd.PRP1, entries)
	if !ok {
		return spec.DataTransferError | spec.StatusDNR
	}
	cq := c.cqs[cqid].Load()
	sq := &submissionQueue{id: qid, cq: cq, entries: e}
	cq.mu.Lock()
	cq.sqs = append(cq.sqs, sq)
	cq.mu.Unlock()
	c.sqs[qid].Store(sq)
	return spec.Success
}

func (c *Controller) deleteSQ(qid uint16) spec.Status {
	if qid == 0 || int(qid) >= len(c.sqs) {
		return spec.InvalidQueueID | spec.StatusDNR
	}
	sq := c.sqs[qid].Swap(nil)
	if sq == nil {
		return spec.InvalidQueueID | spec.StatusDNR
	}
	sq.cq.mu.Lock()
	sq.deleted = true
	for i, s := range sq.cq.sqs {
		if s == sq {
			sq.cq.sqs = append(sq.cq.sqs[:i:i], sq.cq.sqs[i+1:]...)
			break
		}
	}
	n := sq.counters
	sq.cq.mu.Unlock()
	c.mu.Lock()
	c.gone.add(n)
	c.mu.Unlock()
	return spec.Success
}

func (c *Controller) deleteCQ(qid uint16) spec.Status {
	if qid == 0 || int(qid) >= len(c.cqs) {
		return spec.InvalidQueueID | spec.StatusDNR
	}
	cq := c.cqs[qid].Load()
	if cq == nil {
		return spec.InvalidQueueID | spec.StatusDNR
	}
	cq.mu.Lock()
	used := len(cq.sqs) > 0
	cq.mu.Unlock()
	if used {
		return spec.InvalidQueueDeletion | spec.StatusDNR
	}
	c.cqs[qid].Store(nil)
	return spec.Success
}

// reply copies a structure into the guest memory of the command.
func (c *Controller) reply(sq *submissionQueue, cmd *spec.SubmissionEntry, data []byte) spec.Status {
	vec, status := c.mapPRPs(sq, cmd.PRP1, cmd.PRP2, len(data))
	for _, b := range vec {
		data = data[copy(b, data):]
	}
	return status
}

func (c *Controller) identify(sq *submissionQueue, cmd *spec.SubmissionEntry) spec.Status {
	page := make([]byte, spec.IdentifyBytes)
	switch cmd.CDW10 & 0xff {
	case spec.CNSController:
		c.identifyController(page)
	case spec.CNSNamespace:
		if cmd.NSID == 0 || uint64(cmd.NSID) > uint64(len(c.namespaces)) {
			return spec.InvalidNamespace | spec.StatusDNR
		}
		c.identifyNamespace(page, cmd.NSID)
	case spec.CNSActiveNSIDList:
		if cmd.NSID >= spec.NSIDAll-1 {
			return spec.InvalidNamespace | spec.StatusDNR
		}
		for i, id := 0, uint64(cmd.NSID)+1; id <= uint64(len(c.namespaces)) && i < len(page); i, id = i+4, id+1 {
			binary.LittleEndian.PutUint32(page[i:], uint32(id))
		}
	default:
		return invalidField
	}
	return c.reply(sq, cmd, page)
}

func (c *Controller) identifyController(page []byte) {
	le := binary.LittleEndian
	putText := func(off, n int, s string) { // space padded ASCII
		for i := range n {
			page[off+i] = ' '
			if i < len(s) {
				page[off+i] = s[i]
			}
		}
	}
	putText(spec.IDCtrlSN, spec.IDCtrlSNBytes, c.opts.Serial)
	putText(spec.IDCtrlMN, spec.IDCtrlMNBytes, c.opts.Model)
	putText(spec.IDCtrlFR, spec.IDCtrlFRBytes, "1.0")
	page[spec.IDCtrlMDTS] = uint8(c.opts.MDTS)
	le.PutUint16(page[spec.IDCtrlCNTLID:], 1)
	le.PutUint32(page[spec.IDCtrlVER:], spec.Version20)
	page[spec.IDCtrlCNTRLTYPE] = 1 // I/O controller
	page[spec.IDCtrlACL] = acl
	page[spec.IDCtrlAERL] = aerl
	page[spec.IDCtrlELPE] = elpe
	page[spec.IDCtrlSQES] = spec.SQESLog2<<4 | spec.SQESLog2
	page[spec.IDCtrlCQES] = spec.CQESLog2<<4 | spec.CQESLog2
	le.PutUint32(page[spec.IDCtrlNN:], uint32(len(c.namespaces)))
	le.PutUint16(page[spec.IDCtrlONCS:], spec.ONCSCompare|spec.ONCSDSM|spec.ONCSWriteZeroes)
	if c.vwc {
		page[spec.IDCtrlVWC] = 3<<1 | spec.VWCPresent // Flush takes NSID FFFFFFFFh
	}
	copy(page[spec.IDCtrlSUBNQN:], "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-0000-0000-"+"000000000001")
}

func (c *Controller) identifyNamespace(page []byte, nsid uint32) {
	le := binary.LittleEndian
	ns := c.namespaces[nsid-1]
	le.PutUint64(page[spec.IDNSNSZE:], ns.blocks)
	le.PutUint64(page[spec.IDNSNCAP:], ns.blocks)
	le.PutUint64(page[spec.IDNSNUSE:], ns.blocks)
	if ns.props.DeallocateZeroes {
		page[spec.IDNSDLFEAT] = 1 // deallocated blocks read as zeroes
	}
	if units := ns.props.AtomicWriteBytes >> ns.lbaShift; units > 1 {
		page[spec.IDNSNSFEAT] = spec.NSFEATAtomics
		le.PutUint16(page[spec.IDNSNAWUN:], uint16(units-1))
		le.PutUint16(page[spec.IDNSNAWUPF:], uint16(units-1))
	}
	le.PutUint64(page[spec.IDNSEUI64:], uint64(nsid))
	le.PutUint32(page[spec.IDNSLBAF:], uint32(ns.lbaShift)<<16) // one format, no metadata
}

func (c *Controller) setFeature(cmd *spec.SubmissionEntry) (uint32, spec.Status) {
	if cmd.CDW10>>31 != 0 { // SV: nothing is kept over a reset
		return 0, spec.FeatureNotSaveable | spec.StatusDNR
	}
	v := cmd.CDW11
	switch fid := uint8(cmd.CDW10); fid {
	case spec.FeatureNumberOfQueues:
		nsq, ncq := v&0xffff, v>>16
		if nsq == 0xffff || ncq == 0xffff {
			return 0, invalidField
		}
		if c.queuesSet {
			return 0, spec.CommandSequenceError | spec.StatusDNR
		}
		c.ioQueues = min(c.opts.MaxQueuePairs, int(max(nsq, ncq))+1)
		return c.numberOfQueues(), spec.Success
	case spec.FeatureVolatileWriteCache:
		if !c.vwc {
			return 0, invalidField
		}
		c.wce.Store(v&1 != 0)
		if v&1 == 0 { // what the cache holds must not be left behind
			for _, ns := range c.namespaces {
				if err := ns.backing.Flush(); err != nil {
					return 0, StatusOf(err, true)
				}
			}
		}
	case spec.FeatureArbitration, spec.FeatureTemperature, spec.FeatureErrorRecovery, spec.FeatureIntCoalescing,
		spec.FeatureIntVectorConfig, spec.FeatureWriteAtomicity, spec.FeatureAsyncEventConfig:
		c.features[fid] = v
	case spec.FeaturePowerManagement:
		if v&0x1f != 0 {
			return 0, invalidField // there is one power state
		}
	default:
		return 0, invalidField
	}
	return 0, spec.Success
}

func (c *Controller) numberOfQueues() uint32 {
	n := uint32(c.ioQueues - 1)
	return n<<16 | n
}

func (c *Controller) getFeature(cmd *spec.SubmissionEntry) (uint32, spec.Status) {
	switch fid := uint8(cmd.CDW10); fid {
	case spec.FeatureNumberOfQueues:
		return c.numberOfQueues(), spec.Success
	case spec.FeatureVolatileWriteCache:
		if !c.vwc {
			return 0, invalidField
		}
		if c.wce.Load() {
			return 1, spec.Success
		}
		return 0, spec.Success
	case spec.FeatureArbitration, spec.FeaturePowerManagement, spec.FeatureTemperature, spec.FeatureErrorRecovery,
		spec.FeatureIntCoalescing, spec.FeatureIntVectorConfig, spec.FeatureWriteAtomicity, spec.FeatureAsyncEventConfig:
		return c.features[fid], spec.Success
	}
	return 0, invalidField
}

// abort implements Abort for the commands that are outstanding at all: those
// that the injector holds. Bit 0 of the result says "not aborted".
func (c *Controller) abort(sqid, cid uint16) uint32 {
	c.mu.Lock()
	var found *held
	for i := range c.held {
		if h := c.held[i]; h.sq.id == sqid && h.cmd.CID() == cid && !h.noAbort && sqid != 0 {
			found = &h
			c.held = append(c.held[:i:i], c.held[i+1:]...)
			break
		}
	}
	c.mu.Unlock()
	if found == nil {
		return 1
	}
	found.sq.cq.mu.Lock()
	defer found.sq.cq.mu.Unlock()
	if !found.sq.deleted && !found.sq.cq.fullLocked() {
		c.postLocked(found.sq, cid, spec.AbortRequested, 0)
	}
	return 0
}

func (c *Controller) getLogPage(sq *submissionQueue, cmd *spec.SubmissionEntry) spec.Status {
	numd := uint64(cmd.CDW11&0xffff)<<16 | uint64(cmd.CDW10>>16)
	size := (numd + 1) * 4
	offset := uint64(cmd.CDW13)<<32 | uint64(cmd.CDW12)
	var page []byte
	switch cmd.CDW10 & 0xff {
	case spec.LogError:
		page = c.errorPage()
	case spec.LogSMART:
		page = c.smartPage()
	case spec.LogFirmwareSlot:
		page = make([]byte, 512)
		page[0] = 1
		copy(page[8:], "1.0     ")
	default:
		return spec.InvalidLogPage | spec.StatusDNR
	}
	if offset > uint64(len(page)) || offset%4 != 0 || size > uint64(c.maxData) {
		return invalidField
	}
	data := make([]byte, size) // what lies behind the page reads as zeroes
	copy(data, page[offset:])
	return c.reply(sq, cmd, data)
}

// errorPage is the Error Information log (Base 2.0, figure 205), newest first.
func (c *Controller) errorPage() []byte {
	const entry = 64
	page := make([]byte, (elpe+1)*entry)
	le := binary.LittleEndian
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.errorLog {
		e, p := c.errorLog[len(c.errorLog)-1-i], page[i*entry:]
		le.PutUint64(p, e.count)
		le.PutUint16(p[8:], e.sqid)
		le.PutUint16(p[10:], e.cid)
		le.PutUint16(p[12:], uint16(e.status)<<1)
		le.PutUint16(p[14:], 0xffff) // no parameter location
		le.PutUint64(p[16:], e.lba)
		le.PutUint32(p[24:], e.nsid)
	}
	return page
}

// smartPage is the SMART / Health Information log (Base 2.0, figure 207).
func (c *Controller) smartPage() []byte {
	page := make([]byte, 512)
	le := binary.LittleEndian
	c.mu.Lock()
	n, errors := c.gone, c.errorCount
	c.mu.Unlock()
	for i := range c.sqs[1:] {
		if sq := c.sqs[1+i].Load(); sq != nil {
			sq.cq.mu.Lock()
			n.add(sq.counters)
			sq.cq.mu.Unlock()
		}
	}
	const unitBytes = 512 * 1000
	le.PutUint16(page[1:], 310) // kelvin
	page[3], page[4] = 100, 10  // available spare and its threshold, percent
	le.PutUint64(page[32:], (n.readBytes+unitBytes-1)/unitBytes)
	le.PutUint64(page[48:], (n.writeBytes+unitBytes-1)/unitBytes)
	le.PutUint64(page[64:], n.reads)
	le.PutUint64(page[80:], n.writes)
	le.PutUint64(page[112:], c.cycles.Load())
	le.PutUint64(page[128:], uint64(time.Since(c.openedAt)/time.Hour))
	le.PutUint64(page[160:], n.mediaErrors)
	le.PutUint64(page[176:], errors)
	return page
}
