package soft

import (
	"bytes"
	"encoding/binary"

	"runsc-fs/nvme/spec"
)

// io carries out a command of the NVM Command Set. The caller holds sq.cq.mu.
func (c *Controller) io(sq *submissionQueue, cmd *spec.SubmissionEntry) spec.Status {
	if cmd.CDW0&spec.FUSEMask != 0 || cmd.CDW0&spec.PSDTMask == spec.PSDTMask {
		return spec.InvalidField | spec.StatusDNR
	}
	opc := cmd.OPC()
	if opc == spec.CmdFlush && cmd.NSID == spec.NSIDAll {
		for _, ns := range c.namespaces {
			if err := ns.backing.Flush(); err != nil {
				return StatusOf(err, true)
			}
		}
		return spec.Success
	}
	if cmd.NSID == 0 || uint64(cmd.NSID) > uint64(len(c.namespaces)) {
		return spec.InvalidNamespace | spec.StatusDNR
	}
	ns := c.namespaces[cmd.NSID-1]
	if ns.detached.Load() {
		return spec.InvalidField | spec.StatusDNR
	}
	switch opc {
	case spec.CmdRead, spec.CmdWrite, spec.CmdCompare:
		return c.transfer(sq, ns, cmd)
	case spec.CmdFlush:
		return StatusOf(ns.backing.Flush(), true)
	case spec.CmdWriteZeroes:
		off, n, status := ns.extent(cmd.SLBA(), cmd.Blocks())
		if status != spec.Success {
			return status
		}
		if ns.props.ReadOnly {
			return spec.NamespaceWriteProtected | spec.StatusDNR
		}
		return StatusOf(ns.backing.Zero(off, n, c.durable(cmd)), true)
	case spec.CmdDSM:
		return c.datasetManagement(sq, ns, cmd)
	case spec.CmdVerify:
		return c.verify(ns, cmd)
	case spec.CmdCopy:
		return c.copy(sq, ns, cmd)
	}
	return spec.InvalidOpcode | spec.StatusDNR
}

// durable tells whether a write must be on the medium when it completes.
func (c *Controller) durable(cmd *spec.SubmissionEntry) bool {
	return cmd.CDW12&spec.CDW12FUA != 0 || !c.wce.Load()
}

// extent is a range of logical blocks in bytes, if it lies in the namespace.
func (ns *namespace) extent(slba, blocks uint64) (off, n int64, status spec.Status) {
	if size := ns.blocks.Load(); slba >= size || blocks > size-slba {
		return 0, 0, spec.LBAOutOfRange | spec.StatusDNR
	}
	return int64(slba << ns.lbaShift), int64(blocks << ns.lbaShift), spec.Success
}

func (c *Controller) transfer(sq *submissionQueue, ns *namespace, cmd *spec.SubmissionEntry) spec.Status {
	if cmd.Blocks()<<ns.lbaShift > uint64(c.maxData) {
		return spec.InvalidField | spec.StatusDNR
	}
	off, n, status := ns.extent(cmd.SLBA(), cmd.Blocks())
	if status != spec.Success {
		return status
	}
	vec, status := c.mapData(sq, cmd, int(n))
	if status != spec.Success {
		return status
	}
	switch cmd.OPC() {
	case spec.CmdRead:
		if err := ns.backing.ReadV(vec, off); err != nil {
			return StatusOf(err, false)
		}
		sq.counters.reads++
		sq.counters.readBytes += uint64(n)
	case spec.CmdWrite:
		if ns.props.ReadOnly {
			return spec.NamespaceWriteProtected | spec.StatusDNR
		}
		if err := ns.backing.WriteV(vec, off, c.durable(cmd)); err != nil {
			return StatusOf(err, true)
		}
		sq.counters.writes++
		sq.counters.writeBytes += uint64(n)
	case spec.CmdCompare:
		stored := make([]byte, n)
		if err := ns.backing.ReadV([][]byte{stored}, off); err != nil {
			return StatusOf(err, false)
		}
		for _, b := range vec {
			if !bytes.Equal(b, stored[:len(b)]) {
				return spec.CompareFailure | spec.StatusDNR
			}
			stored = stored[len(b):]
		}
	}
	return spec.Success
}

// datasetManagement carries out the deallocate attribute; other attributes are
// hints without effect here.
func (c *Controller) datasetManagement(sq *submissionQueue, ns *namespace, cmd *spec.SubmissionEntry) spec.Status {
	const rangeBytes = 16
	count := int(cmd.CDW10&0xff) + 1
	vec, status := c.mapData(sq, cmd, count*rangeBytes)
	if status != spec.Success {
		return status
	}
	// Copied once, so that what is checked is what is used.
	var ranges [spec.MaxDSMRanges * rangeBytes]byte
	n := 0
	for _, b := range vec {
		n += copy(ranges[n:], b)
	}
	if ns.props.ReadOnly {
		return spec.NamespaceWriteProtected | spec.StatusDNR
	}
	for _, act := range []bool{false, true} { // check all before touching any
		for i := range count {
			r := ranges[i*rangeBytes:]
			blocks, slba := uint64(binary.LittleEndian.Uint32(r[4:])), binary.LittleEndian.Uint64(r[8:])
			off, n, status := ns.extent(slba, blocks)
			if status != spec.Success {
				return status
			}
			if act && cmd.CDW11&spec.CDW11DSMAD != 0 && n > 0 {
				if err := ns.backing.Deallocate(off, n); err != nil {
					return StatusOf(err, true)
				}
			}
		}
	}
	return spec.Success
}
