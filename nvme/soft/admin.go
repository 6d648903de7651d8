package soft

import (
	"encoding/binary"

	"runsc-fs/nvme"
	"runsc-fs/nvme/spec"
)

// Limits that Identify Controller reports, 0's based as there.
const (
	aerl = 3  // outstanding Asynchronous Event Requests
	acl  = 3  // outstanding Aborts
	elpe = 63 // error log entries

	warnKelvin, critKelvin = 343, 353 // WCTEMP, CCTEMP
	spareThreshold         = 10       // percent

	mssrl, mcl, msrc = 1024, 4096, 127 // limits of Copy; msrc is 0's based
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
	case spec.AdminDoorbellConfig:
		status = c.configureDoorbells(cmd)
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
	case cmd.CDW11&spec.CDW11QueuePC == 0:
		return invalidField
	case cmd.PRP1%nvme.PageSizeBytes != 0:
		return spec.PRPOffsetInvalid | spec.StatusDNR
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
	case cmd.CDW11&spec.CDW11QueuePC == 0:
		return invalidField
	case cmd.PRP1%nvme.PageSizeBytes != 0:
		return spec.PRPOffsetInvalid | spec.StatusDNR
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
		if !c.namespaces[cmd.NSID-1].detached.Load() { // else all zero
			c.identifyNamespace(page, cmd.NSID)
		}
	case spec.CNSActiveNSIDList:
		if cmd.NSID >= spec.NSIDAll-1 {
			return spec.InvalidNamespace | spec.StatusDNR
		}
		for i, id := 0, uint64(cmd.NSID)+1; id <= uint64(len(c.namespaces)) && i < len(page); id++ {
			if !c.namespaces[id-1].detached.Load() {
				binary.LittleEndian.PutUint32(page[i:], uint32(id))
				i += 4
			}
		}
	case spec.CNSCommandSetCtrl:
		if cmd.CDW11>>24 != 0 { // CSI: only the NVM command set
			return invalidField
		}
		page[spec.IDNVMVSL] = uint8(c.opts.MDTS)
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
	le.PutUint32(page[spec.IDCtrlOAES:], spec.EventNamespace)
	page[spec.IDCtrlCNTRLTYPE] = 1 // I/O controller
	if c.opts.DoorbellBuffer {
		le.PutUint16(page[spec.IDCtrlOACS:], spec.OACSDoorbellConfig)
	}
	page[spec.IDCtrlACL] = acl
	page[spec.IDCtrlAERL] = aerl
	page[spec.IDCtrlLPA] = 1 << 2 // Get Log Page knows offsets
	page[spec.IDCtrlELPE] = elpe
	le.PutUint16(page[spec.IDCtrlWCTEMP:], warnKelvin)
	le.PutUint16(page[spec.IDCtrlCCTEMP:], critKelvin)
	page[spec.IDCtrlSQES] = spec.SQESLog2<<4 | spec.SQESLog2
	page[spec.IDCtrlCQES] = spec.CQESLog2<<4 | spec.CQESLog2
	le.PutUint32(page[spec.IDCtrlNN:], uint32(len(c.namespaces)))
	le.PutUint16(page[spec.IDCtrlONCS:], spec.ONCSCompare|spec.ONCSDSM|spec.ONCSWriteZeroes|spec.ONCSVerify|spec.ONCSCopy)
	le.PutUint16(page[spec.IDCtrlOCFS:], 1) // ranges of format 0
	le.PutUint32(page[spec.IDCtrlSGLS:], spec.SGLSAnywhere)
	if c.vwc {
		page[spec.IDCtrlVWC] = 3<<1 | spec.VWCPresent // Flush takes NSID FFFFFFFFh
	}
	copy(page[spec.IDCtrlSUBNQN:], "nqn.2014-08.org.nvmexpress:uuid:00000000-0000-0000-0000-"+"000000000001")
}

func (c *Controller) identifyNamespace(page []byte, nsid uint32) {
	le := binary.LittleEndian
	ns := c.namespaces[nsid-1]
	le.PutUint64(page[spec.IDNSNSZE:], ns.blocks.Load())
	le.PutUint64(page[spec.IDNSNCAP:], ns.blocks.Load())
	le.PutUint64(page[spec.IDNSNUSE:], ns.blocks.Load())
	if ns.props.DeallocateZeroes {
		page[spec.IDNSDLFEAT] = 1 // deallocated blocks read as zeroes
	}
	if units := ns.props.AtomicWriteBytes >> ns.lbaShift; units > 1 {
		page[spec.IDNSNSFEAT] = spec.NSFEATAtomics
		le.PutUint16(page[spec.IDNSNAWUN:], uint16(units-1))
		le.PutUint16(page[spec.IDNSNAWUPF:], uint16(units-1))
	}
	le.PutUint16(page[spec.IDNSNOIOB:], c.opts.BoundaryBlocks)
	le.PutUint16(page[spec.IDNSMSSRL:], mssrl)
	le.PutUint32(page[spec.IDNSMCL:], mcl)
	page[spec.IDNSMSRC] = msrc
	le.PutUint64(page[spec.IDNSEUI64:], uint64(nsid))
	le.PutUint32(page[spec.IDNSLBAF:], uint32(ns.lbaShift)<<16) // one format, no metadata
}

func (c *Controller) setFeature(cmd *spec.SubmissionEntry) (uint32, spec.Status) {
	if cmd.CDW10>>31 != 0 { // SV: nothing is kept over a reset
		return 0, spec.FeatureNotSaveable | spec.StatusDNR
	}
	if status := c.featureScope(cmd, true); status != spec.Success {
		return 0, status
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
	case spec.FeatureTemperature:
		if v>>16 != 0 {
			return 0, invalidField // only the upper limit of the composite temperature
		}
		c.threshold.Store(v)
		c.judgeHealth()
	case spec.FeatureAsyncEventConfig:
		c.eventMask.Store(v)
		c.judgeHealth()
	case spec.FeatureArbitration, spec.FeatureErrorRecovery, spec.FeatureIntCoalescing,
		spec.FeatureIntVectorConfig, spec.FeatureWriteAtomicity:
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

// featureScope checks the namespace of a command for a feature that each
// namespace has (Base 2.0, 3.2.3.6). They all share one value here.
func (c *Controller) featureScope(cmd *spec.SubmissionEntry, set bool) spec.Status {
	switch {
	case uint8(cmd.CDW10) != spec.FeatureErrorRecovery:
	case set && cmd.NSID == spec.NSIDAll:
	case cmd.NSID == 0 || uint64(cmd.NSID) > uint64(len(c.namespaces)):
		return spec.InvalidNamespace | spec.StatusDNR
	}
	return spec.Success
}

func (c *Controller) getFeature(cmd *spec.SubmissionEntry) (uint32, spec.Status) {
	if status := c.featureScope(cmd, false); status != spec.Success {
		return 0, status
	}
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
	case spec.FeatureTemperature:
		return c.threshold.Load(), spec.Success
	case spec.FeatureAsyncEventConfig:
		return c.eventMask.Load(), spec.Success
	case spec.FeatureArbitration, spec.FeaturePowerManagement, spec.FeatureErrorRecovery,
		spec.FeatureIntCoalescing, spec.FeatureIntVectorConfig, spec.FeatureWriteAtomicity:
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
