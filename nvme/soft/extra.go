package soft

import (
	"encoding/binary"

	"runsc-fs/nvme/spec"
)

// chunkBytes is how much Verify and Copy handle at a time.
const chunkBytes = 128 << 10

// verify reads a range and gives the data to nobody.
func (c *Controller) verify(ns *namespace, cmd *spec.SubmissionEntry) spec.Status {
	if cmd.Blocks()<<ns.lbaShift > uint64(c.maxData) {
		return spec.InvalidField | spec.StatusDNR
	}
	off, n, status := ns.extent(cmd.SLBA(), cmd.Blocks())
	if status != spec.Success {
		return status
	}
	chunk := make([]byte, min(n, chunkBytes))
	for ; n > 0; n -= int64(len(chunk)) {
		chunk = chunk[:min(n, int64(len(chunk)))]
		if err := ns.backing.ReadV([][]byte{chunk}, off); err != nil {
			return StatusOf(err, false)
		}
		off += int64(len(chunk))
	}
	return spec.Success
}

// copyRange is a source range of Copy in bytes.
type copyRange struct{ off, n int64 }

// copy carries out Copy with source ranges of format 0. All ranges are checked
// before any is copied.
func (c *Controller) copy(sq *submissionQueue, ns *namespace, cmd *spec.SubmissionEntry) spec.Status {
	const rangeBytes = 32
	count := int(cmd.CDW12&0xff) + 1
	if cmd.CDW12>>8&0xf != 0 {
		return spec.InvalidField | spec.StatusDNR
	}
	if count > msrc+1 {
		return spec.CopySizeLimitExceeded | spec.StatusDNR
	}
	vec, status := c.mapData(sq, cmd, count*rangeBytes)
	if status != spec.Success {
		return status
	}
	// Copied once, so that what is checked is what is used.
	var list [(msrc + 1) * rangeBytes]byte
	n := 0
	for _, b := range vec {
		n += copy(list[n:], b)
	}
	if ns.props.ReadOnly {
		return spec.NamespaceWriteProtected | spec.StatusDNR
	}
	var ranges [msrc + 1]copyRange
	total := uint64(0)
	for i := range count {
		e := list[i*rangeBytes:]
		blocks := uint64(binary.LittleEndian.Uint16(e[16:])) + 1
		if blocks > mssrl {
			return spec.CopySizeLimitExceeded | spec.StatusDNR
		}
		r := &ranges[i]
		if r.off, r.n, status = ns.extent(binary.LittleEndian.Uint64(e[8:]), blocks); status != spec.Success {
			return status
		}
		total += blocks
	}
	if total > mcl {
		return spec.CopySizeLimitExceeded | spec.StatusDNR
	}
	to, _, status := ns.extent(cmd.SLBA(), total)
	if status != spec.Success {
		return status
	}
	return c.copyRanges(sq, ns, to, ranges[:count], c.durable(cmd))
}

func (c *Controller) copyRanges(sq *submissionQueue, ns *namespace, to int64, ranges []copyRange, fua bool) spec.Status {
	buf := make([]byte, chunkBytes)
	for _, r := range ranges {
		for done := int64(0); done < r.n; {
			chunk := [][]byte{buf[:min(r.n-done, chunkBytes)]}
			if err := ns.backing.ReadV(chunk, r.off+done); err != nil {
				return StatusOf(err, false)
			}
			if err := ns.backing.WriteV(chunk, to, fua); err != nil {
				return StatusOf(err, true)
			}
			done += int64(len(chunk[0]))
			to += int64(len(chunk[0]))
		}
	}
	sq.counters.writes++
	return spec.Success
}
