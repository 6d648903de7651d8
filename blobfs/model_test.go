package blobfs_test

import (
	"bytes"
	"flag"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

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
		name string
		opts blobfs.MountOptions
		host bool
	}{
		{"roomy", blobfs.MountOptions{CacheBytes: 32 << 20, CommitInterval: -1}, true},
		{"tight", blobfs.MountOptions{CacheBytes: 256 << 10, MaxIdleInodes: 16, CommitInterval: -1, StrictAtime: true}, false},
		{"commits", blobfs.MountOptions{CacheBytes: 1 << 20, NodeCacheBytes: 1 << 20, MaxIdleInodes: 64, CommitInterval: time.Millisecond, NoAtime: true}, true},
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
			v.opts.Logf = t.Logf
			r, err := blobfstest.NewRunner(dev, blobfstest.Options{
				Seed: seed, Trace: &trace, HostDir: hostDir(t, v.host), Mount: v.opts,
			})
			if err != nil {
				t.Fatal(err)
			}
			defer r.CloseHost()
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
			if v.host && r.Mirrored() < *modelSteps {
				t.Errorf("%d operations were compared with the host's", r.Mirrored())
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

// hostDir makes an empty directory on a tmpfs of the machine.
func hostDir(t *testing.T, wanted bool) string {
	if !wanted {
		return ""
	}
	const shm, tmpfsMagic = "/dev/shm", 0x01021994
	var st unix.Statfs_t
	if err := unix.Statfs(shm, &st); err != nil || st.Type != tmpfsMagic {
		t.Fatalf("%s is not a tmpfs: %v", shm, err)
	}
	dir, err := os.MkdirTemp(shm, "blobfs-model-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}
