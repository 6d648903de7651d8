package qtest

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"runsc-fs/nvme"
	"runsc-fs/nvme/nvmetest"
	"runsc-fs/nvme/soft"
	"runsc-fs/nvme/spec"
)

var seed = flag.Uint64("seed", 0, "repeat the differential test with this seed")

// TestDifferential sends the same random commands to the software controller and
// to QEMU's.
func TestDifferential(t *testing.T) {
	needQEMU(t)
	if *seed == 0 {
		*seed = rand.Uint64()
	}
	for _, lba := range []int{512, 4096} {
		plan := nvmetest.Plan{
			Seed: *seed, Steps: 1000, LBASizeBytes: lba, Blocks: uint64(4 << 20 / lba), Namespaces: 2, MDTS: 5,
			// In a list of three segments QEMU takes the second for the last one.
			SGLSegments: 2,
			QueuePairs:  4, QueueEntries: 2048, CopyRanges: 128, CopyBlocks: 1024, Allowed: allowed,
		}
		t.Run(fmt.Sprintf("lba%d", lba), func(t *testing.T) {
			nvmetest.Differential(t, plan, softPeer(t, plan), qemuPeer(t, plan))
		})
	}
}

func softPeer(t *testing.T, plan nvmetest.Plan) nvmetest.Peer {
	t.Helper()
	arena, err := nvme.NewArena(nvme.ArenaOptions{SizeBytes: 4 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { arena.Close() })
	var backings []soft.Backing
	for range plan.Namespaces {
		image, err := os.Create(filepath.Join(t.TempDir(), "image"))
		if err != nil {
			t.Fatal(err)
		}
		if err := image.Truncate(int64(plan.Blocks) * int64(plan.LBASizeBytes)); err != nil {
			t.Fatal(err)
		}
		b, err := soft.NewFileBacking(image, false)
		if err != nil {
			t.Fatal(err)
		}
		backings = append(backings, b)
	}
	c, err := soft.New(arena, backings, soft.Options{
		LBASizeBytes: plan.LBASizeBytes, MDTS: plan.MDTS, MaxQueuePairs: plan.QueuePairs, MaxQueueEntries: plan.QueueEntries,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return peer(t, "soft", c)
}

func qemuPeer(t *testing.T, plan nvmetest.Plan) nvmetest.Peer {
	t.Helper()
	opts := Options{ArenaBytes: 4 << 20, MDTS: plan.MDTS, QueuePairs: plan.QueuePairs, Device: fmt.Sprintf("vsl=%d", plan.MDTS)}
	for range plan.Namespaces {
		opts.Namespaces = append(opts.Namespaces, Namespace{
			SizeBytes: int64(plan.Blocks) * int64(plan.LBASizeBytes), LBASizeBytes: plan.LBASizeBytes,
			Device: fmt.Sprintf("mssrl=%d,mcl=4096,msrc=%d", plan.CopyBlocks, plan.CopyRanges-1),
		})
	}
	return peer(t, "QEMU", start(t, opts))
}

func peer(t *testing.T, name string, tr nvme.Transport) nvmetest.Peer {
	t.Helper()
	h, err := nvmetest.NewHost(tr)
	if err != nil {
		t.Fatal(err)
	}
	return nvmetest.Peer{Name: name, Host: h}
}

// sglStatus tells whether a status says that something is wrong with an SGL.
func sglStatus(s spec.Status) bool {
	switch s.Code() {
	case spec.InvalidSGLSegment, spec.InvalidSGLCount, spec.InvalidSGLLength, spec.InvalidSGLType:
		return s.DNR()
	}
	return false
}

// allowed lists where the controllers may differ; docs/nvme.md has the same list.
func allowed(admin bool, cmd *spec.SubmissionEntry, soft, qemu spec.Status) string {
	code := func(want spec.Status) bool { return soft.Code() == want && qemu.Code() == spec.Success }
	opc := cmd.OPC()
	switch {
	case admin && opc == spec.AdminDeleteIOCQ && soft.Code() == spec.InvalidQueueID && qemu.Code() == spec.CQInvalid:
		return "QEMU has the wrong status for deleting a completion queue that does not exist"
	case admin && opc == spec.AdminGetLogPage && soft.Code() == spec.InvalidLogPage && qemu.Code() == spec.InvalidField:
		return "QEMU has a general status for log pages that do not exist"
	case admin && opc == spec.AdminGetLogPage && cmd.CDW12 != 0 && qemu.Code() == spec.InvalidField:
		return "QEMU's error log is shorter, and it refuses an offset at the very end of a log"
	case !admin && opc == spec.CmdCopy && cmd.CDW12>>8&0xf == 1 && soft.Code() == spec.InvalidField && qemu == spec.SCTCommand|0x0a|spec.StatusDNR:
		return "QEMU knows source ranges of format 1, though not for this namespace"
	case !admin && cmd.CDW0&spec.PSDTMask != 0 && sglStatus(soft) && sglStatus(qemu):
		return "which status an SGL with several mistakes gets"
	case !admin && cmd.NSID == spec.NSIDAll && soft.Code() == spec.InvalidNamespace && qemu.Code() == spec.InvalidField:
		return "QEMU takes the broadcast namespace for a valid but inactive one"
	case !admin && opc == spec.CmdCopy && soft.Code() != spec.Success && qemu.Code() == spec.InternalError:
		return "QEMU reports whatever is wrong with a Copy as an internal error"
	case soft.Code() == qemu.Code() && (qemu.Code() == spec.CompareFailure || qemu.Code() == spec.InvalidQueueDeletion || cmd.CDW0&spec.FUSEMask != 0):
		return "QEMU leaves DNR clear for miscompares, fused commands and the deletion of queues in use"
	case admin:
	case opc == spec.CmdDSM && code(spec.LBAOutOfRange):
		return "QEMU ignores ranges of DSM beyond the end"
	case code(spec.InvalidSGLLength), soft.Code() == spec.InvalidSGLLength && qemu.Code() == spec.CompareFailure:
		return "QEMU ignores the surplus of an SGL's last data block"
	}
	return ""
}
