package crashrig

import (
	"errors"
	"fmt"
	"testing"
)

// canaryProgram has a data flush, an overwrite's flush, log records of data and
// of names, and the checkpoint at the end.
const canaryProgram = "append @foo 5000; fsync @foo; write @foo 0 4096; fdatasync @foo; creat /A/new; fsync /A; append @foo 10 sync"

// TestCanaries leaves out, one after another, each flush, each FUA bit and each
// log record of a program. The rig has to notice each of them.
func TestCanaries(t *testing.T) {
	p, err := Parse(canaryProgram)
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"flush", "fua", "log"} {
		for n := 0; ; n++ {
			s, err := ParseSabotage(fmt.Sprintf("%s:%d", kind, n))
			if err != nil {
				t.Fatal(err)
			}
			var stats Stats
			w := newWorker(t, Options{Setup: SequenceSetup, SpareBytes: SequenceSpare, Sabotage: s}, &stats)
			w.Random = 10
			err = w.explore(p, 1)
			if n >= s.Counted() {
				if n < 2 {
					t.Errorf("the program has %d commands of kind %s", n, kind)
				}
				if err != nil {
					t.Errorf("without sabotage: %v", err)
				}
				break
			}
			var c *Crashed
			if !errors.As(err, &c) {
				t.Errorf("%v went unnoticed: %v", s, err)
				continue
			}
			t.Logf("%v: %.200v", s, err)
		}
	}
}
