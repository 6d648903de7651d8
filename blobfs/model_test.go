package blobfs_test

import (
	"bytes"
	"flag"
	"testing"
	"time"

	"runsc-fs/blobfs"
	"runsc-fs/blobfs/blobfstest"
	"runsc-fs/nvme/soft"
)

var (
	modelSeed  = flag.Uint64("model.seed", 0, "seed of the model test; 0: from the clock")
	modelSteps = flag.Int("model.steps", 1500, "operations between two remounts of the model test")
)

func TestModel(t *testing.T) {
	seed := *modelSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	variants := []struct {
		name  string
		cache int64
		idle  int
	}{
		{"roomy", 32 << 20, 0},
		{"tight", 256 << 10, 16},
	}
	for k, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			seed := seed + uint64(k)
			t.Logf("-model.seed %d", seed-uint64(k))
			dev, err := soft.NewMemory(256 << 20)
			if err != nil {
				t.Fatal(err)
			}
			defer dev.Close()
			if err := blobfs.Mkfs(dev, blobfs.MkfsOptions{}); err != nil {
				t.Fatal(err)
			}
			var trace bytes.Buffer
			r, err := blobfstest.NewRunner(dev, blobfstest.Options{
				Seed: seed, Trace: &trace,
				Mount: blobfs.MountOptions{CacheBytes: v.cache, MaxIdleInodes: v.idle, CommitInterval: -1, Logf: t.Logf},
			})
			if err != nil {
				t.Fatal(err)
			}
			fail := func(err error) {
				t.Helper()
				if err != nil {
					lines := bytes.Split(trace.Bytes(), []byte("\n"))
					for _, l := range lines[max(len(lines)-40, 0):] {
						t.Logf("%s", l)
					}
					t.Fatal(err)
				}
			}
			empty := blobfs.SpaceOf(r.FS())
			for range 3 {
				fail(r.Run(*modelSteps))
				fail(r.CheckAll())
				fail(r.Remount())
				fail(r.Close())
				fail(blobfs.CheckVolume(dev))
				fail(r.Mount())
			}
			fail(r.RemoveAll())
			fail(r.Remount())
			if got := blobfs.SpaceOf(r.FS()); got != empty {
				t.Errorf("%d blocks hold no metadata in the empty volume, %d after all is removed", empty, got)
			}
			fail(blobfs.Verify(r.FS()))
			fail(r.Close())
		})
	}
}
