package crashrig

import (
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"

	"runsc-fs/blobfs/format"
	"runsc-fs/nvme"
	"runsc-fs/nvme/crashdev"
)

// Sabotage makes a disk treat one command of each program as if the file
// system had not asked for it: a canary, which the rig has to notice.
type Sabotage struct {
	kind    string
	number  int
	armed   atomic.Bool
	log     [2]int64     // first and last byte of the log region
	counted atomic.Int64 // commands of the kind since armed
}

// ParseSabotage reads what is left out: "flush:N" the Nth flush, counted from
// 0, "fua:N" the FUA bit of the Nth record of the log, "log:N" that record
// itself. (Superblocks are written twice: one of them may fail.)
func ParseSabotage(text string) (*Sabotage, error) {
	kind, number, _ := strings.Cut(text, ":")
	n, err := strconv.Atoi(number)
	if err != nil || n < 0 || (kind != "flush" && kind != "fua" && kind != "log") {
		return nil, fmt.Errorf("sabotage %q is not flush:N, fua:N or log:N", text)
	}
	return &Sabotage{kind: kind, number: n}, nil
}

func (s *Sabotage) String() string { return fmt.Sprintf("%s:%d", s.kind, s.number) }

// begin prepares for a new program on a disk.
func (s *Sabotage) begin(disk *crashdev.Disk) {
	s.armed.Store(false)
	s.counted.Store(0)
	start, blocks := format.DefaultLog(uint64(disk.Options().SizeBytes)/format.BlockSizeBytes, 0)
	s.log = [2]int64{start.OffsetBytes(), (start + format.Addr(blocks)).OffsetBytes()}
}

// Counted is how many commands of its kind the last program had.
func (s *Sabotage) Counted() int { return int(s.counted.Load()) }

// spoil is crashdev's Options.Sabotage.
func (s *Sabotage) spoil(_ int, e *crashdev.Event) (keep bool) {
	if !s.armed.Load() {
		return true
	}
	isLog := e.Op == nvme.OpWrite && e.OffsetBytes >= s.log[0] && e.OffsetBytes < s.log[1]
	if (s.kind == "flush" && e.Op != nvme.OpFlush) || (s.kind != "flush" && !isLog) {
		return true
	}
	if s.counted.Add(1) != int64(s.number)+1 {
		return true
	}
	if s.kind == "fua" {
		e.FUA = false
		return true
	}
	return false
}
