package fsck

import (
	"bytes"
	"errors"
	"testing"

	"runsc-fs/blobfs/format"
)

// content is all of a device's blocks that are not zero.
func content(d *memDevice) map[uint64]blockData {
	m := map[uint64]blockData{}
	for at, b := range d.data {
		if b != nil && *b != (blockData{}) {
			m[at] = *b
		}
	}
	return m
}

func sameContent(a, b *memDevice) bool {
	x, y := content(a), content(b)
	if len(x) != len(y) {
		return false
	}
	for at, block := range x {
		if y[at] != block {
			return false
		}
	}
	return true
}

func foreignSlot(slot int) func(im *image) {
	return func(im *image) {
		sb := im.sb
		sb.UUID[0] ^= 1
		sb.Generation--
		sb.Encode(im.dev.block(format.SuperblockAddr(slot)), slot)
	}
}

var repairableSlots = []struct {
	name   string
	damage func(im *image)
	blocks int
}{
	{"other copy", flipSlot(2), 1},
	{"first copy", flipSlot(0), 1},
	{"one of the older pair", flipSlot(3), 1},
	{"older pair", both(flipSlot(1), flipSlot(3)), 2},
	{"all but one", both(flipSlot(1), flipSlot(2), flipSlot(3)), 3},
	{"all but the last of the valid pair", both(flipSlot(0), flipSlot(1), flipSlot(3)), 3},
	{"foreign", foreignSlot(1), 1},
	{"interrupted pair", func(im *image) {
		sb := im.sb
		sb.Generation--
		sb.Encode(im.dev.block(format.SuperblockAddr(2)), 2)
	}, 1},
	// The newest pair is {1, 3}, and the older one is half broken.
	{"older first pair", func(im *image) {
		sb := im.sb
		sb.Generation++
		sb.Encode(im.dev.block(format.SuperblockAddr(1)), 1)
		sb.Encode(im.dev.block(format.SuperblockAddr(3)), 3)
		flipSlot(0)(im)
	}, 1},
}

func planRepair(t *testing.T, d *memDevice) *Repair {
	t.Helper()
	r, err := PlanRepair(d, check(t, d, Options{}))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func readUndo(t *testing.T, r *Repair) *Repair {
	t.Helper()
	back, err := ReadUndo(bytes.NewReader(r.EncodeUndo()))
	if err != nil {
		t.Fatal(err)
	}
	return back
}

// TestRepair repairs, finds nothing a second time, and undoes byte for byte.
func TestRepair(t *testing.T) {
	for _, tc := range repairableSlots {
		t.Run(tc.name, func(t *testing.T) {
			im := sample().build(3)
			tc.damage(im)
			broken := im.dev.clone()
			r := planRepair(t, im.dev)
			if len(r.Blocks()) != tc.blocks {
				t.Errorf("blocks %v are written, want %d", r.Blocks(), tc.blocks)
			}
			if !sameContent(broken, im.dev) {
				t.Error("the plan has written")
			}
			if err := r.Apply(im.dev); err != nil {
				t.Fatal(err)
			}
			after := check(t, im.dev, Options{})
			wantClean(t, after)
			if len(after.Findings) != 0 || !planRepair(t, im.dev).Empty() {
				t.Errorf("a second run finds %v", after.Findings)
			}
			if err := readUndo(t, r).Undo(im.dev); err != nil {
				t.Fatal(err)
			}
			if !sameContent(broken, im.dev) {
				t.Error("the undo has not restored the volume")
			}
		})
	}
}

// TestRepairBreaksOff tears each write of a repair at each sector: the volume
// stays what it was, the repair can be made again, and undone.
func TestRepairBreaksOff(t *testing.T) {
	for _, tc := range repairableSlots {
		im := sample().build(3)
		tc.damage(im)
		broken := im.dev.clone()
		r := planRepair(t, im.dev)
		for i := range r.changes {
			for at := 0; at <= format.BlockSizeBytes; at += sectorBytes {
				torn := broken.clone()
				for j := range i {
					copy(torn.block(r.changes[j].addr), r.changes[j].after)
				}
				copy(torn.block(r.changes[i].addr), r.changes[i].after[:at])
				again := torn.clone()
				wantSameVolume(t, broken, torn)
				if err := readUndo(t, r).Undo(torn); err != nil || !sameContent(broken, torn) {
					t.Fatalf("%s: write %d torn at %d: undo: %v", tc.name, i, at, err)
				}
				if err := planRepair(t, again).Apply(again); err != nil {
					t.Fatal(err)
				}
				if after := check(t, again, Options{}); len(after.Findings) != 0 {
					t.Fatalf("%s: write %d torn at %d: repaired again, it has %v", tc.name, i, at, after.Findings)
				}
			}
		}
	}
}

func wantSameVolume(t *testing.T, a, b *memDevice) {
	t.Helper()
	x, y := check(t, a, Options{}), check(t, b, Options{})
	if x.UUID != y.UUID || x.Generation != y.Generation || y.Errors > 0 {
		t.Fatalf("generation %d became %d, findings %v", x.Generation, y.Generation, y.Findings)
	}
}

// TestRepairRefuses has volumes on which it is not certain what is right.
func TestRepairRefuses(t *testing.T) {
	for _, group := range [][]damage{treeDamage, logDamage, inodeDamage, directoryDamage, spaceDamage} {
		for _, d := range group {
			im := sample()
			if d.before != nil {
				d.before(im)
			}
			im.build(3)
			if d.after != nil {
				d.after(im)
			}
			flipSlot(2)(im)
			report := check(t, im.dev, Options{})
			if report.Clean && report.Complete {
				continue
			}
			if r, err := PlanRepair(im.dev, report); !errors.Is(err, ErrRepair) {
				t.Errorf("%s: the plan is %v, %v", d.name, r, err)
			}
		}
	}
}

// TestUndoRefuses has undo files and volumes that do not belong together.
func TestUndoRefuses(t *testing.T) {
	im := sample().build(3)
	flipSlot(2)(im)
	r := planRepair(t, im.dev)
	if err := r.Apply(im.dev); err != nil {
		t.Fatal(err)
	}
	im.sb.Generation++
	im.sb.Encode(im.dev.block(format.SuperblockAddr(2)), 2)
	used := im.dev.clone()
	if err := r.Undo(im.dev); !errors.Is(err, ErrUndo) || !sameContent(used, im.dev) {
		t.Errorf("undo on a volume that was used: %v", err)
	}
	if err := r.Undo(newMemDevice(im.dev.blocks + 1)); !errors.Is(err, ErrUndo) {
		t.Errorf("undo on a larger volume: %v", err)
	}
	file := r.EncodeUndo()
	for n := range file {
		if n%97 != 0 && n > 64 {
			continue
		}
		if _, err := ReadUndo(bytes.NewReader(file[:n])); !errors.Is(err, ErrUndo) {
			t.Fatalf("%d bytes of an undo file: %v", n, err)
		}
		bad := bytes.Clone(file)
		bad[n] ^= 4
		if _, err := ReadUndo(bytes.NewReader(bad)); !errors.Is(err, ErrUndo) {
			t.Fatalf("an undo file with byte %d changed: %v", n, err)
		}
	}
	if _, err := ReadUndo(bytes.NewReader(append(file, 0))); !errors.Is(err, ErrUndo) {
		t.Errorf("an undo file with a byte more: %v", err)
	}
}
