package soft

import (
	"bytes"
	"testing"

	"runsc-fs/nvme"
)

func TestMemoryRoundTrip(t *testing.T) {
	dev, err := NewMemory(16 << 20)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", dev.Geometry())
	w, _ := dev.Arena().Alloc(600)
	r, _ := dev.Arena().Alloc(600)
	for i := range w {
		w[i] = byte(i * 7 >> 3)
	}
	reqs := []nvme.Request{{Op: nvme.OpWrite, OffsetBytes: 512, Vec: [][]byte{w}, FUA: true}}
	if err := dev.Do(reqs); err != nil {
		t.Fatal(err)
	}
	if err := dev.Do([]nvme.Request{{Op: nvme.OpFlush}, {Op: nvme.OpRead, OffsetBytes: 512, Vec: [][]byte{r[:1000], r[1000:]}}}); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(w, r) {
		t.Error("data differs")
	}
	if err := dev.Close(); err != nil {
		t.Fatal(err)
	}
}
