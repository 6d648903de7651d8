package e2e

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"runsc-fs/tests/lab"
)

// The tests here run tests/torture in containers. More rounds and seconds than
// the defaults find more.
var (
	tortureRounds  = flag.Int("torture.rounds", 5, "how often the sandbox is killed")
	tortureSeconds = flag.Int("torture.seconds", 12, "how long a storm lasts")
	tortureSeed    = flag.Uint64("torture.seed", 0, "seed of the torture tests; 0: from the clock")
)

// tortureProgram builds the program and gives the mount that brings it into a
// container.
func tortureProgram(t *testing.T) specs.Mount {
	t.Helper()
	plainRuntime(t)
	root, err := lab.TreeRoot()
	must(t, err)
	path := filepath.Join(shared.dir, "torture")
	if _, err := os.Stat(path); err != nil {
		_, err := lab.Run(testContext(t, 5*time.Minute), lab.Cmd{
			Argv: []string{"go", "build", "-o", path, "./tests/torture"}, Dir: root, Env: []string{"CGO_ENABLED=0"},
		})
		must(t, err)
	}
	return lab.BindMount(path, "/dev/torture", "ro")
}

// torture is a container that runs the program.
func torture(program specs.Mount, volume string, args ...string) lab.BundleSpec {
	return lab.BundleSpec{
		RootFS: shared.rootfs,
		Args:   append([]string{"/dev/torture"}, args...),
		Mounts: []specs.Mount{program, lab.VolumeMount(volume, "/data")},
	}
}

func tortureRand(t *testing.T) (uint64, *rand.Rand) {
	seed := *tortureSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano()) % 1e6
	}
	t.Logf("-torture.seed %d", seed)
	return seed, rand.New(rand.NewPCG(seed, 1))
}

// acks collects what the program in the container says.
type acks struct {
	mu    sync.Mutex
	rest  []byte
	steps map[string]int64
	said  []string // lines that acknowledge nothing
	count int
}

func (a *acks) Write(b []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.rest = append(a.rest, b...)
	for {
		line, rest, ok := bytes.Cut(a.rest, []byte("\n"))
		if !ok {
			return len(b), nil
		}
		a.rest = rest
		f := strings.Fields(string(line))
		if len(f) == 3 && f[0] == "a" {
			if n, err := strconv.ParseInt(f[2], 10, 64); err == nil {
				a.steps[f[1]] = max(a.steps[f[1]], n)
				a.count++
				continue
			}
		}
		a.said = append(a.said, string(line))
	}
}

// take returns what was said since the last call.
func (a *acks) take() (said []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	said, a.said = a.said, nil
	return said
}

func (a *acks) args() (args []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(a.steps)) {
		args = append(args, fmt.Sprintf("%s=%d", name, a.steps[name]))
	}
	return args
}

// TestSyncedSurvivesKill has many threads change files durably, in many ways, and
// say after each step that it is done. The sandbox is killed again and again; all
// that was said to be done must be there, and nothing that is not the files' own.
func TestSyncedSurvivesKill(t *testing.T) { syncedSurvivesKill(t, "--size=96M", 0) }

// TestSyncedSurvivesKillUnderPressure is the same in a small sandbox, with more
// mapped for writing than its page cache holds.
func TestSyncedSurvivesKillUnderPressure(t *testing.T) {
	syncedSurvivesKill(t, "--size=512M", 512<<20)
}

func syncedSurvivesKill(t *testing.T, size string, memoryBytes int64) {
	program := tortureProgram(t)
	r := plainRuntime(t)
	v := newVolume(t, size)
	_, rng := tortureRand(t)
	a := &acks{steps: map[string]int64{}}
	for round := range *tortureRounds {
		args := append([]string{"synced", "/data"}, a.args()...)
		b := torture(program, v, args...)
		b.MemoryBytes = memoryBytes
		id, dir, err := r.Bundle(b.OCI())
		must(t, err)
		cmd := r.Cmd("run", "--bundle="+dir, id)
		cmd.Stdout, cmd.Stderr = a, a
		p, err := lab.Start(testContext(t, 3*time.Minute), cmd)
		must(t, err)
		var said []string
		err = lab.WaitFor(testContext(t, time.Minute), "the files to be verified", time.Minute, func() (bool, error) {
			said = append(said, a.take()...)
			return len(said) > 0, nil
		})
		if err == nil && said[0] == "verified" {
			time.Sleep(time.Duration(rng.IntN(4000)) * time.Millisecond)
		}
		if killErr := lab.KillSandbox(testContext(t, time.Minute), id); killErr != nil && err == nil && len(said) == 1 && said[0] == "verified" {
			t.Errorf("round %d: %v", round, killErr)
		}
		p.Wait()
		r.Command(context.Background(), "delete", "--force", id)
		checkImage(t, inspect(t, v).Image)
		said = append(said, a.take()...)
		if err != nil || len(said) != 1 || said[0] != "verified" {
			t.Fatalf("round %d, after %d acknowledged steps: %v\n%s", round, a.count, err, strings.Join(said, "\n"))
		}
	}
	// Once more, to look at what the last round has left.
	b := torture(program, v, append([]string{"synced", "/data"}, a.args()...)...)
	b.Env = []string{"TORTURE_VERIFY_ONLY=1"}
	if out := run(t, b); !strings.Contains(out, "verified") {
		t.Errorf("at the end: %s", out)
	}
	t.Logf("%d acknowledged steps", a.count)
}

// TestStorm has threads do everything at once to the same few files. No call may
// hang, all ways to read must agree, and what was synced must be the same after
// the next start.
func TestStorm(t *testing.T) {
	program := tortureProgram(t)
	v := newVolume(t, "--size=64M")
	seed, _ := tortureRand(t)
	out := run(t, torture(program, v, "storm", "/data", strconv.Itoa(*tortureSeconds), strconv.FormatUint(seed, 10)))
	if !strings.Contains(out, "done") {
		t.Fatalf("the storm ended with %s", out)
	}
	before := run(t, torture(program, v, "hash", "/data"))
	if after := run(t, torture(program, v, "hash", "/data")); after != before {
		t.Errorf("files changed over a restart:\n%s\n%s", before, after)
	}
}

// TestStormKilled kills the sandbox in the middle of a storm; the volume must be
// sound afterwards.
func TestStormKilled(t *testing.T) {
	program := tortureProgram(t)
	r := plainRuntime(t)
	v := newVolume(t, "--size=24M") // small enough to be full now and then
	seed, rng := tortureRand(t)
	for round := range *tortureRounds {
		c, err := r.Start(testContext(t, time.Minute), torture(program, v, "storm", "/data", "120", strconv.FormatUint(seed+uint64(round), 10)))
		must(t, err)
		time.Sleep(time.Second + time.Duration(rng.IntN(3000))*time.Millisecond)
		if err := c.KillSandbox(testContext(t, time.Minute)); err != nil {
			t.Fatalf("the sandbox did not live to be killed: %v\n%s", err, c.Output())
		}
		must(t, c.Delete(testContext(t, time.Minute)))
		checkImage(t, inspect(t, v).Image)
		if strings.Contains(c.Output(), "WRONG") || t.Failed() {
			t.Fatalf("round %d: %s", round, c.Output())
		}
	}
	run(t, bundle("cat /data/s* /data/d/* > /dev/null 2>&1; rm -rf /data/* && ls -A /data", lab.VolumeMount(v, "/data")))
}

// TestTortureFull tries all operations on a full volume.
func TestTortureFull(t *testing.T) {
	program := tortureProgram(t)
	if out := run(t, torture(program, newVolume(t, "--size=48M"), "full", "/data")); !strings.Contains(out, "done") {
		t.Error(out)
	}
}

// TestTortureExtreme goes to the limits of depth, length, size and number.
func TestTortureExtreme(t *testing.T) {
	program := tortureProgram(t)
	if out := run(t, torture(program, newVolume(t, "--size=512M"), "extreme", "/data")); !strings.Contains(out, "done") {
		t.Error(out)
	}
}

// TestTortureMany makes many files in a sandbox with little memory, which must not be
// killed for what it remembers of them.
func TestTortureMany(t *testing.T) {
	program := tortureProgram(t)
	b := torture(program, newVolume(t, "--size=512M"), "many", "/data")
	b.MemoryBytes = 160 << 20
	if out := run(t, b); !strings.Contains(out, "done") {
		t.Error(out)
	}
}

// TestTortureCoherent has mappings, reads, writes and changes of size meet.
func TestTortureCoherent(t *testing.T) {
	program := tortureProgram(t)
	if out := run(t, torture(program, newVolume(t, "--size=64M"), "coherent", "/data")); !strings.Contains(out, "done") {
		t.Error(out)
	}
}

// TestCheckpointRefused asks for what cannot be done to a container with a volume; it
// must go on as if nothing had happened.
func TestCheckpointRefused(t *testing.T) {
	v := newVolume(t, "--size=32M")
	c := start(t, bundle("echo before > /data/file; sleep 600", lab.VolumeMount(v, "/data")))
	res, err := command(t, "checkpoint", "--image-path="+t.TempDir(), c.ID)
	wantError(t, res, err, v, "cannot be saved")
	if got := execIn(t, c, "cat /data/file; echo after > /data/file; cat /data/file"); got != "before\nafter" {
		t.Errorf("after the attempt to save it, the container says %q", got)
	}
}

// TestTorturePressure maps more than the page cache of a small sandbox holds, in
// two processes.
func TestTorturePressure(t *testing.T) {
	program := tortureProgram(t)
	b := torture(program, newVolume(t, "--size=512M"), "pressure", "/data")
	b.MemoryBytes = 512 << 20
	if out := run(t, b); !strings.Contains(out, "done") {
		t.Error(out)
	}
}
