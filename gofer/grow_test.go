package gofer

import (
	"os"
	"testing"

	"runsc-fs/blobfs"
	"runsc-fs/nvme"
)

// TestGrow follows a volume through each state that growing it may be interrupted
// in: it can be opened in all of them, and growing it again completes it.
func TestGrow(t *testing.T) {
	path := newImage(t, testSizeBytes)
	spec := imageSpec(path)
	blocks := func() (n int64) {
		t.Helper()
		if err := Inspect(Image{Path: path}, false, func(dev nvme.BlockDevice) error {
			fs, err := blobfs.Mount(dev, blobfs.MountOptions{ReadOnly: true})
			if err != nil {
				return err
			}
			n = fs.StatFS().TotalBlocks
			return fs.Close()
		}); err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := blocks()
	if err := GrowImage(path, 2*testSizeBytes); err != nil {
		t.Fatal(err)
	}
	v, err := OpenVolume(spec) // the description is still the old one
	if err != nil {
		t.Fatal(err)
	}
	v.Close()
	spec.SizeBytes = 2 * testSizeBytes
	if v, err = OpenVolume(spec); err != nil { // the file system is not larger yet
		t.Fatal(err)
	}
	v.Close()
	if now := blocks(); now != before {
		t.Fatalf("opening it changed %d blocks to %d", before, now)
	}
	for range 2 {
		if err := GrowVolume(spec); err != nil {
			t.Fatal(err)
		}
		if now := blocks(); now != 2*before {
			t.Fatalf("%d blocks are %d now, not twice as many", before, now)
		}
	}
	if err := GrowImage(path, testSizeBytes); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Size() != 2*testSizeBytes {
		t.Errorf("the image shrank: %d bytes, %v", info.Size(), err)
	}
}
