package crashrig

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"runsc-fs/nvme/crashdev"
)

var (
	flagStates   = flag.Int64("crash.states", 1000, "distinct crash states that sequences explore; others explore a quarter, or an eighth")
	flagSeed     = flag.Uint64("crash.seed", 1, "seed of all that is chosen by chance")
	flagProgram  = flag.String("crash.program", "", "TestReplay: operations of a sequence")
	flagRandom   = flag.Uint64("crash.random", 0, "TestReplay: seed of a random program")
	flagTrace    = flag.String("crash.trace", "", "TestReplay: name of a recorded trace")
	flagFile     = flag.String("crash.file", "", "TestReplay: file with a saved history")
	flagPoint    = flag.Int("crash.point", 0, "TestReplay: point of the power cut")
	flagImage    = flag.Uint64("crash.image", 0, "TestReplay: seed of the image")
	flagSabotage = flag.String("crash.sabotage", "", "TestReplay: command to leave out, such as flush:0")
)

// randomSteps is the length of random programs.
const randomSteps = 300

// randomOptions have a cache so big that the background flusher never wakes,
// so that a run can be repeated.
func randomOptions(t *testing.T) Options {
	return Options{Setup: RandomSetup, SpareBytes: RandomSpare, CacheBytes: 16 << 20, Sabotage: replaySabotage(t)}
}

// worker is what one goroutine needs to run and explore programs.
type worker struct {
	rig *Rig
	*Explorer
}

func newWorker(t testing.TB, opts Options, stats *Stats) *worker {
	t.Helper()
	r, err := NewRig(opts)
	if err != nil {
		t.Fatal(err)
	}
	x, err := NewExplorer(stats)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { errorIf(t, errors.Join(x.Close(), r.Close())) })
	return &worker{r, x}
}

func errorIf(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
}

// explore runs a program and looks at its power cuts.
func (w *worker) explore(p Program, seed uint64) error {
	h, disk, err := w.rig.Run(p)
	if err != nil {
		return err
	}
	return w.Explore(disk, seed, h)
}

// replay is the command that looks again at what has failed.
func replay(what string, err error) string {
	command := "go test ./blobfs/crashrig -count=1 -run TestReplay -" + what
	var c *Crashed
	if errors.As(err, &c) {
		command += fmt.Sprintf(" -crash.point=%d -crash.image=%d", c.Crash.Point, c.Crash.Seed)
	}
	return command
}

// TestSequences explores all sequences of up to three operations, in the order
// of a seed, until the wanted number of crash states is reached; when all have
// had their turn, again with syncs in other places.
func TestSequences(t *testing.T) {
	var stats Stats
	var next atomic.Int64
	total := Sequences()
	var group sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		w := newWorker(t, Options{Setup: SequenceSetup, SpareBytes: SequenceSpare}, &stats)
		w.Random = 6
		group.Go(func() {
			for stats.Distinct.Load() < *flagStates && !t.Failed() {
				k := int(next.Add(1) - 1)
				// 7919 is a prime that does not divide the number of sequences.
				n, round := int((uint64(k)*7919+*flagSeed)%uint64(total)), k/total+int(*flagSeed)
				p := Sequence(n, round)
				if err := w.explore(p, *flagSeed+uint64(n)); err != nil {
					t.Errorf("%v\n%s", err, replay(fmt.Sprintf("crash.program='%v'", p), err))
				}
			}
		})
	}
	group.Wait()
	t.Logf("%v; %d of %d sequences, seed %d", &stats, min(next.Load(), int64(total)), total, *flagSeed)
}

// TestRandomPrograms explores long random programs.
func TestRandomPrograms(t *testing.T) {
	var stats Stats
	var next atomic.Int64
	var group sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		w := newWorker(t, randomOptions(t), &stats)
		group.Go(func() {
			for stats.Distinct.Load() < *flagStates/4 && !t.Failed() {
				seed := *flagSeed*1_000_003 + uint64(next.Add(1))
				h, disk, err := w.rig.Run(Random(seed, randomSteps))
				if err == nil {
					err = w.Sample(disk, seed, 200, h)
				}
				if err != nil {
					t.Errorf("%v\n%s", err, replay(fmt.Sprintf("crash.random=%d", seed), err))
				}
			}
		})
	}
	group.Wait()
	t.Logf("%v; seed %d", &stats, *flagSeed)
}

// TestWritersTogether explores random programs that run side by side, with the
// flusher at work. Their order is never the same twice, so a failure is saved.
func TestWritersTogether(t *testing.T) {
	var stats Stats
	w := newWorker(t, Options{SizeBytes: 16 << 20, SpareBytes: RandomSpare, CacheBytes: 2 << 20, Setup: RandomSetup}, &stats)
	for n := uint64(0); stats.Distinct.Load() < *flagStates/4 && !t.Failed(); n++ {
		var programs []Program
		for k := range uint64(4) {
			programs = append(programs, Random((*flagSeed+n)*1000+k, randomSteps/2))
		}
		hs, disk, err := w.rig.RunTogether(programs)
		if err == nil {
			err = w.Sample(disk, n, 200, hs...)
		}
		if err != nil {
			path := filepath.Join(os.TempDir(), fmt.Sprintf("crash-history-%d-%d", os.Getpid(), n))
			errorIf(t, SaveHistories(path, disk, hs...))
			t.Errorf("%v\n%s", err, replay("crash.file="+path, err))
		}
	}
	t.Logf("%v; seed %d", &stats, *flagSeed)
}

// replaySabotage is what the flags say about it.
func replaySabotage(t *testing.T) *Sabotage {
	if *flagSabotage == "" {
		return nil
	}
	s, err := ParseSabotage(*flagSabotage)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestReplay looks at one image again. Without flags it replays one of a
// program that is right.
func TestReplay(t *testing.T) {
	var stats Stats
	var disk *crashdev.Disk
	var hs []*History
	var x *Explorer
	switch {
	case *flagFile != "":
		w := newWorker(t, Options{}, &stats)
		x = w.Explorer
		var err error
		if disk, hs, err = LoadHistories(*flagFile); err != nil {
			t.Fatal(err)
		}
	case *flagTrace != "":
		w, p := traceWorker(t, *flagTrace, &stats)
		x = w.Explorer
		disk, hs = mustRun(t, w, p)
	case *flagRandom != 0:
		w := newWorker(t, randomOptions(t), &stats)
		x = w.Explorer
		disk, hs = mustRun(t, w, Random(*flagRandom, randomSteps))
	default:
		text := *flagProgram
		if text == "" {
			text = "append @foo 10; fsync @foo"
		}
		p, err := Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		w := newWorker(t, Options{Setup: SequenceSetup, SpareBytes: SequenceSpare, Sabotage: replaySabotage(t)}, &stats)
		x = w.Explorer
		disk, hs = mustRun(t, w, p)
	}
	for k, e := range disk.Events() {
		t.Logf("event %d: %v", k, e)
	}
	errorIf(t, x.One(disk, crashdev.Crash{Point: *flagPoint, Seed: *flagImage}, hs...))
}

func mustRun(t *testing.T, w *worker, p Program) (*crashdev.Disk, []*History) {
	t.Helper()
	h, disk, err := w.rig.Run(p)
	if err != nil {
		t.Fatal(err)
	}
	return disk, []*History{h}
}
