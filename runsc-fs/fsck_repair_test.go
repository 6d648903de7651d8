package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"runsc-fs/blobfs/format"
	"runsc-fs/gofer"
)

// TestFsckRepair breaks a superblock, repairs it, and takes the repair back.
func TestFsckRepair(t *testing.T) {
	useRegistry(t)
	if _, err := volume(t, "create", "vol", "--size", "32M"); err != nil {
		t.Fatal(err)
	}
	reg, err := findTarget("vol", false)
	if err != nil {
		t.Fatal(err)
	}
	image := reg.image.Path
	undo := image + undoSuffix
	run := func(status int, text string, args ...string) string {
		t.Helper()
		out, err := call(t, &fsck{}, args...)
		got, message := 0, ""
		if err != nil {
			got, message = exitStatus(err), err.Error()
		}
		if got != status || !strings.Contains(out+message, text) || strings.Contains(message, "\n") {
			t.Errorf("fsck %q: status %d, not %d, or no %q: %s %s", args, got, status, text, out, message)
		}
		return out
	}
	content := func() []byte {
		t.Helper()
		b, err := os.ReadFile(image)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	run(0, "clean", "--repair", "vol")
	if _, err := os.Stat(undo); err == nil {
		t.Error("an undo file although nothing was repaired")
	}
	sound := content()
	file, err := os.OpenFile(image, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	damage := func(offset int64) {
		t.Helper()
		if _, err := file.WriteAt([]byte("damage"), offset); err != nil {
			t.Fatal(err)
		}
	}
	for _, slot := range []int{0, 1, 3} {
		damage(format.SuperblockAddr(slot).OffsetBytes() + 100)
	}
	broken := content()
	run(fsckDefects, "superblock-few", "vol")

	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	run(fsckOperational, "in use", "--repair", "vol")
	if err := unix.Flock(int(file.Fd()), unix.LOCK_UN); err != nil {
		t.Fatal(err)
	}
	run(fsckOperational, "no undo file, so nothing is repaired", "--repair", "--undo", "/nosuch/undo", "vol")
	run(fsckUsage, "reading only", "--repair", "--force", "vol")
	run(fsckUsage, "goes with --repair", "--undo", "x", "vol")
	run(fsckUsage, "neither", "--undo-apply", "x", "--json", "vol")
	run(fsckOperational, "undo file: ", "--undo-apply", undo, "vol")
	if !bytes.Equal(content(), broken) {
		t.Fatal("a refused repair has written")
	}

	out := run(fsckCorrected, "was repaired", "--repair", "--json", "vol")
	var report struct {
		Clean    bool
		Findings []any
		Repaired []struct{ Code, Repair string }
		UndoFile string
	}
	if err := json.Unmarshal([]byte(out), &report); err != nil || !report.Clean || len(report.Findings) != 0 ||
		len(report.Repaired) != 4 || report.Repaired[0].Repair == "" || report.UndoFile != undo {
		t.Errorf("report is %s (%v)", out, err)
	}
	if at := format.SuperblockAddr(2).OffsetBytes(); !bytes.Equal(content()[at:at+4096], sound[at:at+4096]) {
		t.Error("the good slot was written")
	}
	run(0, "clean", "--repair", "vol")
	run(0, "as it was", "--undo-apply", undo, image)
	if !bytes.Equal(content(), broken) {
		t.Error("the undo has not restored the image")
	}
	run(fsckOperational, "exists already", "--repair", "vol")
	run(fsckCorrected, "was repaired", "--repair", "--undo", undo+"2", image)
	run(fsckOperational, "no undo file", "--undo-apply", image, "vol")

	damage(16 * 4096) // a bitmap
	damage(17 * 4096)
	damage(100)
	run(fsckDefects, "[bitmap-corrupt]", "--repair", "--undo", undo+"3", "vol")
	if _, err := os.Stat(undo + "3"); err == nil {
		t.Error("an undo file although nothing was repaired")
	}
	if _, err := volume(t, "rm", "vol"); err != nil {
		t.Error(err)
	}
}

// TestFsckRepairShared keeps repairs off what clones share.
func TestFsckRepairShared(t *testing.T) {
	useRegistry(t)
	for _, args := range [][]string{{"create", "vol", "--size", "32M"}, {"snapshot", "vol@one"}} {
		if _, err := volume(t, args...); err != nil {
			t.Fatal(err)
		}
	}
	snapshot, err := findTarget("vol@one", false)
	if err != nil {
		t.Fatal(err)
	}
	for _, argument := range []string{"vol", "vol@one", snapshot.image.Path} {
		if _, err := call(t, &fsck{}, "--repair", argument); err == nil || !strings.Contains(err.Error(), "volume flatten") {
			t.Errorf("repair of %s: %v", argument, err)
		}
	}
	other := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(snapshot.image.Path, other); err != nil {
		t.Fatal(err)
	}
	if err := gofer.Repair(other, nil); err == nil {
		t.Error("a symbolic link is followed")
	}
}
