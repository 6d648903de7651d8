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

func BenchmarkRandomRead(b *testing.B) {
	dev, err := NewMemory(1 << 26)
	if err != nil {
		b.Fatal(err)
	}
	defer dev.Close()
	chunk, _ := dev.Arena().Alloc(256) // touch all pages first: the host would fault them in
	for off := int64(0); off < 1<<26; off += int64(len(chunk)) {
		if err := dev.Do([]nvme.Request{{Op: nvme.OpWrite, OffsetBytes: off, Vec: [][]byte{chunk}}}); err != nil {
			b.Fatal(err)
		}
	}
	for _, depth := range []int{1, 32} {
		b.Run(map[int]string{1: "depth1", 32: "depth32"}[depth], func(b *testing.B) {
			buf, _ := dev.Arena().Alloc(depth)
			defer dev.Arena().Free(buf)
			reqs := make([]nvme.Request, depth)
			for i := range reqs {
				reqs[i] = nvme.Request{Op: nvme.OpRead, Vec: [][]byte{buf[i*4096:][:4096]}}
			}
			b.ReportAllocs()
			x := uint64(1)
			for i := 0; i < b.N; i += depth {
				for j := range reqs {
					x = x*6364136223846793005 + 1442695040888963407
					reqs[j].OffsetBytes = int64(x>>33) % (1 << 14) * 4096
				}
				if err := dev.Do(reqs); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
