package main

import (
	"context"
	"encoding/json"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/subcommands"
	"golang.org/x/sys/unix"

	"runsc-fs/gofer"
)

// TestFsckStatus checks what a script sees: exit status and report.
func TestFsckStatus(t *testing.T) {
	const size = 32 << 20
	image := filepath.Join(t.TempDir(), "image")
	file, err := os.OpenFile(image, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := file.Truncate(size); err != nil {
		t.Fatal(err)
	}
	want := func(status int, args ...string) string {
		t.Helper()
		out, err := call(t, &fsck{}, args...)
		got := 0
		if err != nil {
			got = exitStatus(err)
		}
		if got != status {
			t.Errorf("fsck %q: status %d, not %d: %v", args, got, status, err)
		}
		return out
	}
	want(fsckOperational, image)
	if err := gofer.Format(image, size, "name"); err != nil {
		t.Fatal(err)
	}
	want(0, image)
	want(fsckUsage, image, image)
	want(fsckOperational, image+"x")
	want(fsckOperational, "--force", image+"x")

	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	want(fsckOperational, image)
	if _, err := call(t, &fsck{}, image); err == nil || !strings.Contains(err.Error(), "--force") {
		t.Errorf("no remedy in %v", err)
	}
	want(0, "--force", image)
	if err := unix.Flock(int(file.Fd()), unix.LOCK_UN); err != nil {
		t.Fatal(err)
	}

	for _, slot := range []int64{16, 17} { // of the first bitmap
		if _, err := file.WriteAt([]byte("damage"), slot*4096+500); err != nil {
			t.Fatal(err)
		}
	}
	var report struct {
		Findings []struct{ Severity, Code, Object string }
	}
	out := want(fsckDefects, "--json", image)
	if err := json.Unmarshal([]byte(out), &report); err != nil || len(report.Findings) != 1 || report.Findings[0].Code != "bitmap-corrupt" {
		t.Errorf("report is %s (%v)", out, err)
	}

	// The status leaves through the one that runsc keeps for containers.
	c := command{&fsck{}}
	f := flag.NewFlagSet("fsck", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	c.SetFlags(f)
	if err := f.Parse([]string{"no/such/image", "--json"}); err != nil {
		t.Fatal(err)
	}
	var ws unix.WaitStatus
	if got := c.Execute(context.Background(), f, nil, &ws); got != subcommands.ExitSuccess || ws.ExitStatus() != fsckOperational {
		t.Errorf("Execute returns %d, exit status %d", got, ws.ExitStatus())
	}
}
