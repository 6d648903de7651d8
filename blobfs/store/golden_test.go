package store

import (
	"bytes"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"runsc-fs/blobfs/format"
)

var updateGolden = flag.Bool("update-golden", false, "rewrite the golden files: only together with a new format version")

// TestGoldenImage pins the bytes of a small volume with a little of everything:
// superblocks, bitmap, a leaf, and a log with two records. The format is
// frozen; if this test fails, a change would make volumes unreadable.
func TestGoldenImage(t *testing.T) {
	dev := newTestDevice(t, 8<<20, true)
	formatTest(t, dev)
	compareGolden(t, dev, "formatted.hex")

	s := openTest(t, dev, Options{})
	run, err := s.Allocate(3, 0, false)
	if err != nil {
		t.Fatal(err)
	}
	ino := s.NextObject()
	lsn, err := s.Update(func(tx *Tx) error {
		if err := tx.Claim(run); err != nil {
			return err
		}
		if err := tx.Put(format.Key{Object: ino, Kind: format.KindInode}, []byte("an inode")); err != nil {
			return err
		}
		e := format.ExtentItem{Start: run.Start, Blocks: 3, Flags: format.ExtentUnwritten, Birth: tx.Generation()}
		return tx.Put(format.Key{Object: ino, Kind: format.KindExtent, Offset: 7}, e.Append(nil))
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Commit(lsn); err != nil {
		t.Fatal(err)
	}
	if err := s.Checkpoint(); err != nil {
		t.Fatal(err)
	}
	lsn, err = s.Update(func(tx *Tx) error {
		if err := tx.Free(format.Run{Start: run.Start + 1, Blocks: 2}); err != nil {
			return err
		}
		return tx.Delete(format.Key{Object: ino, Kind: format.KindExtent, Offset: 7})
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Commit(lsn); err != nil {
		t.Fatal(err)
	}
	compareGolden(t, dev, "used.hex")
}

// compareGolden compares all blocks that are not zero with a file.
func compareGolden(t *testing.T, dev *testDevice, name string) {
	t.Helper()
	var out bytes.Buffer
	for a := range format.Addr(dev.geometry.SizeBytes() / format.BlockSizeBytes) {
		b := dev.block(a)
		for off := 0; off < len(b); off += 32 {
			if line := b[off : off+32]; !bytes.Equal(line, make([]byte, 32)) {
				fmt.Fprintf(&out, "%d+%04x %s\n", a, off, hex.EncodeToString(line))
			}
		}
	}
	path := filepath.Join("testdata", name)
	if *updateGolden {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, out.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	got, wanted := bytes.Split(out.Bytes(), []byte("\n")), bytes.Split(want, []byte("\n"))
	for i := range max(len(got), len(wanted)) {
		var g, w []byte
		if i < len(got) {
			g = got[i]
		}
		if i < len(wanted) {
			w = wanted[i]
		}
		if !bytes.Equal(g, w) {
			t.Fatalf("%s line %d:\n got %s\nwant %s", name, i+1, g, w)
		}
	}
}
