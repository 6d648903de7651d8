package crashrig

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"runsc-fs/nvme/crashdev"
)

// TestPrintedCommand carries out the command that a failure prints, and
// expects the same failure.
func TestPrintedCommand(t *testing.T) {
	s, err := ParseSabotage("flush:1")
	if err != nil {
		t.Fatal(err)
	}
	p, err := Parse(canaryProgram)
	if err != nil {
		t.Fatal(err)
	}
	var stats Stats
	w := newWorker(t, Options{Setup: SequenceSetup, SpareBytes: SequenceSpare, Sabotage: s}, &stats)
	failure := w.explore(p, 1)
	var c *Crashed
	if !errors.As(failure, &c) {
		t.Fatalf("nothing to replay: %v", failure)
	}
	command := replay(fmt.Sprintf("crash.program='%v'", p), failure)
	run := func(command string) (string, error) {
		cmd := exec.Command("sh", "-c", command)
		cmd.Dir = "../.."
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	out, err := run(command + " -crash.sabotage=flush:1")
	if first, _, _ := strings.Cut(failure.Error(), "\n"); err == nil || !strings.Contains(out, first) {
		t.Errorf("%s: %v\n%s\nwant: %v", command, err, out, failure)
	}
	// The file system as it is has no such failure.
	if out, err := run(command); err != nil {
		t.Errorf("%s: %v\n%s", command, err, out)
	}
}

// TestSavedHistory checks that a saved history fails, and does not, where the
// one that was saved does.
func TestSavedHistory(t *testing.T) {
	var stats Stats
	w := newWorker(t, Options{Setup: RandomSetup, SpareBytes: RandomSpare}, &stats)
	hs, disk, err := w.rig.RunTogether([]Program{Random(1, 60), Random(2, 60)})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "history")
	if err := SaveHistories(path, disk, hs...); err != nil {
		t.Fatal(err)
	}
	disk2, hs2, err := LoadHistories(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Sample(disk2, 1, 20, hs2...); err != nil {
		t.Error(err)
	}
	// A disk without its latest promise is wrong with both.
	whole := disk.Points()
	wrong := crashdev.Crash{Point: 0, Seed: 0}
	for _, h := range append(hs, hs2...) {
		for k := range h.marks {
			h.marks[k].point = 0
		}
	}
	a, b := w.One(disk, wrong, hs...), w.One(disk2, wrong, hs2...)
	if a == nil || b == nil || a.Error() != b.Error() {
		t.Errorf("%d points: %v\nsaved: %v", whole, a, b)
	}
}

// TestParse checks that programs read back as they were written, and that bad
// ones are refused.
func TestParse(t *testing.T) {
	p := Random(5, 500)
	p = append(p, Op{Kind: "write", Path: "/f", Off: 1, Len: 5, Data: []byte("abc"), Flags: Direct | Sync}, Op{Kind: "ack", Len: 7})
	again, err := Parse(p.String())
	if err != nil {
		t.Fatal(err)
	}
	if again.String() != p.String() || len(again) != len(p) {
		t.Errorf("%v\nreads back as\n%v", p, again)
	}
	for _, bad := range []string{"creat", "creat /a /b", "jump /a", "write /a x 1", "write /a 0 1 fast", "write /a 0 1 =!", "write /a 0 1 =YWJj"} {
		if p, err := Parse(bad); err == nil {
			t.Errorf("%q is read as %v", bad, p)
		}
	}
}
