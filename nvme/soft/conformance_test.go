package soft

import (
	"os"
	"path/filepath"
	"testing"

	"runsc-fs/nvme"
	"runsc-fs/nvme/nvmetest"
)

func newArena(t testing.TB) *nvme.Arena {
	t.Helper()
	a, err := nvme.NewArena(nvme.ArenaOptions{SizeBytes: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close() })
	return a
}

// newImage makes an image file of zeroes.
func newImage(t testing.TB, sizeBytes int64) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "image"))
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Truncate(sizeBytes); err != nil {
		t.Fatal(err)
	}
	return f
}

func newFile(t testing.TB, sizeBytes int64) Backing {
	t.Helper()
	b, err := NewFileBacking(newImage(t, sizeBytes), false)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func newMem(t testing.TB, sizeBytes int64) Backing {
	t.Helper()
	b, err := NewMemoryBacking(sizeBytes)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// opener makes soft controllers over one kind of backing.
func opener(backing func(testing.TB, int64) Backing) nvmetest.OpenTransport {
	return func(t testing.TB, c nvmetest.Config) nvme.Transport {
		t.Helper()
		var backings []Backing
		for range max(1, c.Namespaces) {
			backings = append(backings, backing(t, c.SizeBytes))
		}
		ctrl, err := New(newArena(t), backings, Options{
			LBASizeBytes: c.LBASizeBytes, MDTS: c.MDTS, MaxQueueEntries: c.MaxQueueEntries, DoorbellStride: uint(c.MDTS % 3),
			BoundaryBlocks: uint16(c.BoundaryBlocks), DoorbellBuffer: c.DoorbellBuffer,
		})
		if err != nil {
			t.Fatal(err)
		}
		return ctrl
	}
}

// long has commands whose PRP lists fill several pages.
var long = nvmetest.Options{Configs: []nvmetest.Config{
	{LBASizeBytes: 4096, MDTS: 12, Driver: nvme.Options{QueuePairs: 2, QueueDepth: 64, MaxTransferBytes: 8 << 20}},
}}

func TestConformanceMemory(t *testing.T) { nvmetest.RunTransport(t, opener(newMem), long) }

func TestConformanceFile(t *testing.T) { nvmetest.RunTransport(t, opener(newFile), long) }
