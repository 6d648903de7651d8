package fsck

import (
	"os"
	"regexp"
	"testing"

	"runsc-fs/blobfs"
	"runsc-fs/blobfs/format"
)

// TestCodesAreDocumented compares the codes with docs/fsck.md.
func TestCodesAreDocumented(t *testing.T) {
	source, err := os.ReadFile("codes.go")
	if err != nil {
		t.Fatal(err)
	}
	doc, err := os.ReadFile("../../docs/fsck.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]bool{}
	for _, row := range regexp.MustCompile(`(?m)^\| ([a-z, -]+) \|`).FindAllSubmatch(doc, -1) {
		for _, code := range regexp.MustCompile(`[a-z-]+`).FindAllString(string(row[1]), -1) {
			documented[code] = true
		}
	}
	codes := regexp.MustCompile(`Code = "([a-z-]+)"`).FindAllSubmatch(source, -1)
	if len(codes) < 60 {
		t.Fatalf("only %d codes found", len(codes))
	}
	for _, code := range codes {
		if !documented[string(code[1])] {
			t.Errorf("code %s is not in docs/fsck.md", code[1])
		}
	}
}

// TestHugeVolume checks an empty volume of 64 TiB, in several windows.
func TestHugeVolume(t *testing.T) {
	dev := newMemDevice(64 << 40 / format.BlockSizeBytes)
	if err := blobfs.Mkfs(dev, blobfs.MkfsOptions{}); err != nil {
		t.Fatal(err)
	}
	r := check(t, dev, Options{})
	wantClean(t, r)
	if r.Counters.UsedBlocks+r.Counters.FreeBlocks != r.VolumeBlocks {
		t.Errorf("counted %+v", r.Counters)
	}
}
