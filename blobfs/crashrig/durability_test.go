package crashrig

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"runsc-fs/nvme/crashdev"
)

// promise is a row of docs/durability.md: a program, and what is there after a
// power cut that follows its end.
type promise struct {
	name    string
	program string
	// surely is what is there whatever the cut has taken.
	surely []fact
	// perhaps is what need not be there: at least one image lacks it.
	perhaps []fact
	// never is in no image.
	never []fact
}

// fact is something about a tree.
type fact struct {
	text  string
	holds func(h *History, s *snapshot) bool
}

// written says that a file has what an operation of the program, counted from
// 0, wrote at an offset.
func written(path string, op int, off, n int64) fact {
	return fact{fmt.Sprintf("%s has the %d bytes at %d that operation %d wrote", path, n, off, op), func(h *History, s *snapshot) bool {
		op := len(h.steps) - h.programLen() + op
		o := Op{Len: n}
		f := s.files[path]
		return f != nil && int64(len(f.data)) >= off+n && bytes.Equal(f.data[off:off+n], o.payload(op, off))
	}}
}

// zeroes says that a range of a file reads as zeroes.
func zeroes(path string, off, n int64) fact {
	return fact{fmt.Sprintf("%s has %d zeroes at %d", path, n, off), func(h *History, s *snapshot) bool {
		f := s.files[path]
		return f != nil && int64(len(f.data)) >= off+n && len(bytes.Trim(f.data[off:off+n], "\x00")) == 0
	}}
}

func size(path string, n int) fact {
	return fact{fmt.Sprintf("%s has %d bytes", path, n), func(h *History, s *snapshot) bool {
		return s.files[path] != nil && len(s.files[path].data) == n
	}}
}

// listed says that a name is there, with text in its description.
func listed(path, text string) fact {
	return fact{fmt.Sprintf("%s is there, %q", path, text), func(h *History, s *snapshot) bool {
		for line := range strings.SplitSeq(s.text, "\n") {
			if name, rest, _ := strings.Cut(line, " "); name == path && strings.Contains(rest, text) {
				return true
			}
		}
		return false
	}}
}

func gone(path string) fact {
	f := listed(path, "")
	return fact{path + " is gone", func(h *History, s *snapshot) bool { return !f.holds(h, s) }}
}

// programLen is the number of operations after the setup.
func (h *History) programLen() int { return len(h.steps) - setupLen }

// setupLen is the number of operations of the setup, with the sync at its end.
var setupLen = func() int {
	p, err := Parse(SequenceSetup)
	if err != nil {
		panic(err)
	}
	return len(p) + 1
}()

var promises = []promise{
	{name: "write", program: "append @foo 5000", perhaps: []fact{written("/foo", 0, 8292, 5000)}, surely: []fact{written("/foo", 4-setupLen, 0, 8292)}, never: []fact{zeroes("/foo", 8292, 1)}},
	{name: "O_SYNC", program: "append @foo 5000 sync", surely: []fact{written("/foo", 0, 8292, 5000), size("/foo", 13292)}},
	{name: "O_DSYNC", program: "append @foo 5000; write @foo 0 100 dsync", surely: []fact{written("/foo", 1, 0, 100)}},
	{name: "O_DSYNC-append", program: "append @foo 5000 dsync", surely: []fact{written("/foo", 0, 8292, 5000)}},
	{name: "O_DIRECT", program: "write @foo 0 4096 direct", perhaps: []fact{written("/foo", 0, 0, 4096)}, surely: []fact{size("/foo", 8292)}},
	{name: "O_DIRECT-O_DSYNC", program: "write @foo 0 4096 direct,dsync", surely: []fact{written("/foo", 0, 0, 4096)}},
	{name: "fsync", program: "creat /new; append /new 9000; chmod /new 256; fsync /new", surely: []fact{listed("/new", ""), written("/new", 1, 0, 9000),
		{"/new has mode 0400", func(_ *History, s *snapshot) bool { return s.files["/new"] != nil && s.files["/new"].mode == 0o400 }}}},
	{name: "fdatasync", program: "creat /A/new; append /A/new 9000; fdatasync /A/new", surely: []fact{listed("/A/new", ""), written("/A/new", 1, 0, 9000), size("/A/new", 9000)}},
	{name: "sync", program: "creat /new; append /new 9000; append @bar 10; mkdir /B/d; sync", surely: []fact{written("/new", 1, 0, 9000), written("/A/bar", 2, 4196, 10), listed("/B/d", "")}},
	{name: "msync", program: "store @foo 100 5000; msync @foo", surely: []fact{written("/foo", 0, 100, 5000)}},
	{name: "store", program: "store @foo 100 5000", perhaps: []fact{written("/foo", 0, 100, 5000)}, surely: []fact{size("/foo", 8292)}},
	{name: "rename", program: "rename /foo /A/moved", perhaps: []fact{listed("/A/moved", "")}, surely: []fact{
		{"the file has one of its names", func(h *History, s *snapshot) bool { return (s.files["/foo"] == nil) != (s.files["/A/moved"] == nil) }}}},
	{name: "rename-fsync", program: "rename /foo /A/moved; fsync @foo", surely: []fact{listed("/A/moved", ""), gone("/foo")}},
	{name: "rename-over", program: "creat /t; append /t 9000; rename /t /foo; creat /u; fsync /u", surely: []fact{written("/foo", 1, 0, 9000), gone("/t")}},
	{name: "rename-over-unsynced", program: "creat /t; append /t 9000; rename /t /foo", perhaps: []fact{size("/foo", 9000)}, surely: []fact{
		{"/foo is the complete old or the complete new file", func(h *History, s *snapshot) bool {
			return written("/foo", 1, 0, 9000).holds(h, s) || (written("/foo", 4-setupLen, 0, 8292).holds(h, s) && size("/foo", 8292).holds(h, s))
		}}}},
	{name: "link", program: "link @foo /A/ln; fsync /A", surely: []fact{listed("/A/ln", " 2 ")}},
	{name: "unlink", program: "unlink /A/bar; fsync /A", surely: []fact{gone("/A/bar")}},
	{name: "unlink-unsynced", program: "unlink /A/bar", perhaps: []fact{gone("/A/bar")}},
	{name: "mkdir", program: "mkdir /A/D; creat /A/D/f; fsync /A/D/f", surely: []fact{listed("/A/D", ""), listed("/A/D/f", "")}},
	{name: "O_TMPFILE", program: "append @tmp 5000; fsync @tmp; link @tmp /A/named", perhaps: []fact{listed("/A/named", "")}, never: []fact{size("/A/named", 0)}},
	{name: "O_TMPFILE-fsync", program: "append @tmp 5000; link @tmp /A/named; fsync @tmp", surely: []fact{written("/A/named", 0, 0, 5000), size("/A/named", 5000)}},
	{name: "fallocate", program: "falloc @foo 8192 20000; fsync @foo", surely: []fact{size("/foo", 28192), zeroes("/foo", 8292, 19900)}},
	{name: "fallocate-unsynced", program: "falloc @foo 8192 20000", perhaps: []fact{size("/foo", 28192)}, surely: []fact{written("/foo", 4-setupLen, 0, 8292)}},
	{name: "punch-hole", program: "punch @foo 0 4096; fdatasync @foo", surely: []fact{zeroes("/foo", 0, 4096), size("/foo", 8292)}},
	{name: "truncate", program: "truncate @foo 3000; fsync @foo", surely: []fact{size("/foo", 3000)}},
	{name: "directory", program: "creat /A/new; rename /A/bar /A/other; symlink /A/sl x; fsync /A", surely: []fact{listed("/A/new", ""), listed("/A/other", ""), gone("/A/bar"), listed("/A/sl", "-> x")}},
	{name: "setxattr", program: "setxattr @foo user.y 50; fsync @foo", surely: []fact{listed("/foo", "user.y=")}},
	{name: "order", program: "creat /A/1; mkdir /B/2; creat /3; fsync /3", surely: []fact{listed("/A/1", ""), listed("/B/2", "")}},
}

// TestDurability checks the rows of docs/durability.md, which name it.
func TestDurability(t *testing.T) {
	var stats Stats
	w := newWorker(t, Options{Setup: SequenceSetup, SpareBytes: SequenceSpare}, &stats)
	for _, p := range promises {
		t.Run(p.name, func(t *testing.T) { w.checkPromise(t, &p) })
	}
}

func (w *worker) checkPromise(t *testing.T, p *promise) {
	program, err := Parse(p.program)
	if err != nil {
		t.Fatal(err)
	}
	h, disk, err := w.rig.Run(program)
	if err != nil {
		t.Fatal(err)
	}
	if len(program) != h.programLen() {
		t.Fatalf("%d operations, not %d", h.programLen(), len(program))
	}
	lacked := make([]bool, len(p.perhaps))
	end := h.steps[len(h.steps)-1].End
	for seed := range uint64(60) {
		crash := crashdev.Crash{Point: end, Seed: seed}
		if seed > 20 {
			crash.Seed *= 1_000_003
		}
		r := w.recover(disk.Image(crash), crash, []*History{h})
		if r.err == nil {
			r.err = h.compare(end, r.snapshots[0])
		}
		if r.err != nil {
			t.Fatalf("%v: %v", crash, r.err)
		}
		s := r.snapshots[0]
		for _, f := range p.surely {
			if !f.holds(h, s) {
				t.Errorf("%v: not so: %s", crash, f.text)
			}
		}
		for _, f := range p.never {
			if f.holds(h, s) {
				t.Errorf("%v: %s", crash, f.text)
			}
		}
		for k, f := range p.perhaps {
			lacked[k] = lacked[k] || !f.holds(h, s)
		}
	}
	for k, f := range p.perhaps {
		if !lacked[k] {
			t.Errorf("always so, which the document does not promise: %s", f.text)
		}
	}
}

// TestDurabilityIsDocumented checks that the document's rows name tests that
// there are, and leave out none.
func TestDurabilityIsDocumented(t *testing.T) {
	text, err := os.ReadFile("../../docs/durability.md")
	if err != nil {
		t.Fatal(err)
	}
	named := map[string]bool{}
	for _, m := range regexp.MustCompile("`TestDurability/([A-Za-z_-]+)`").FindAllSubmatch(text, -1) {
		named[string(m[1])] = true
	}
	for _, p := range promises {
		if !named[p.name] {
			errorIf(t, errors.New("no row names TestDurability/"+p.name))
		}
		delete(named, p.name)
	}
	for name := range named {
		t.Errorf("there is no TestDurability/%s", name)
	}
}
