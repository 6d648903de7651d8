package soft

import (
	"testing"

	"runsc-fs/nvme"
	"runsc-fs/nvme/spec"
)

// TestDoorbellThatWasMissed: the event indexes claim that the controller will
// look by itself, but it does not. The driver writes the register before long.
func TestDoorbellThatWasMissed(t *testing.T) {
	arena := newArena(t)
	ctrl, err := New(arena, []Backing{newMem(t, 1<<20)}, Options{DoorbellBuffer: true})
	if err != nil {
		t.Fatal(err)
	}
	ns, err := nvme.OpenNamespace(ctrl, 1, nvme.Options{QueuePairs: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	page, err := arena.Alloc(1)
	if err != nil {
		t.Fatal(err)
	}
	s := ctrl.shadow.Load()
	if s == nil {
		t.Fatal("the driver does not use doorbells in memory")
	}
	for range 5 {
		for i := range s.events {
			s.events[i] = 200 // far ahead of what is sent
		}
		if err := ns.Do([]nvme.Request{{Op: nvme.OpRead, Vec: [][]byte{page}}}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestDoorbellConfigIsChecked by the controller.
func TestDoorbellConfigIsChecked(t *testing.T) {
	h := newRawHost(t)
	cmd := spec.SubmissionEntry{CDW0: spec.AdminDoorbellConfig, PRP1: dmaBase + rawData, PRP2: dmaBase + rawData + 0x1000}
	if got := h.admin(cmd); got != spec.InvalidOpcode {
		t.Errorf("not offered: %v", got)
	}
	h.c.opts.DoorbellBuffer = true
	for i, c := range []struct {
		prp1, prp2 uint64
		want       spec.Status
	}{
		{dmaBase + rawData + 8, dmaBase + rawData, spec.InvalidField},
		{dmaBase + rawData, dmaBase - 0x1000, spec.InvalidField},
		{^uint64(0) &^ 0xfff, dmaBase + rawData, spec.InvalidField},
		{dmaBase + rawData, dmaBase + rawData + 0x1000, spec.Success},
	} {
		cmd.PRP1, cmd.PRP2 = c.prp1, c.prp2
		cmd.SetCID(uint16(i + 1))
		if got := h.admin(cmd); got != c.want {
			t.Errorf("buffers at %#x and %#x: %v", c.prp1, c.prp2, got)
		}
	}
}
