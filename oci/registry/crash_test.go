package registry

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// Names of the environment by which a test runs one operation in a process of its
// own, which is killed before a given change of files.
const (
	crashRootEnv = "RUNSC_FS_TEST_CRASH_ROOT"
	crashOpEnv   = "RUNSC_FS_TEST_CRASH_OP"
	crashStepEnv = "RUNSC_FS_TEST_CRASH_STEP"
)

func TestMain(m *testing.M) {
	if root := os.Getenv(crashRootEnv); root != "" {
		crashHere(root, os.Getenv(crashOpEnv), os.Getenv(crashStepEnv))
	}
	os.Exit(m.Run())
}

// crashOps are the operations that change layered volumes. Each begins with what
// prepareCrash makes.
var crashOps = map[string]func(r *Registry) error{
	"first snapshot": func(r *Registry) error { _, err := r.TakeSnapshot("plain", "a"); return err },
	"snapshot":       func(r *Registry) error { _, err := r.TakeSnapshot("v", "c"); return err },
	"rollback":       func(r *Registry) error { _, err := r.Rollback("v", "a"); return err },
	"clone":          func(r *Registry) error { _, err := r.Create(CreateSpec{Name: "n", Clone: "v@a"}); return err },
	"flatten":        func(r *Registry) error { _, err := r.Flatten("v"); return err },
	"resize":         func(r *Registry) error { _, err := r.Resize("plain", 2*MinSizeBytes); return err },
	"rm snapshot":    func(r *Registry) error { return r.RemoveSnapshot("side", "s2") },
	"rm volume":      func(r *Registry) error { _, err := r.Remove("clone"); return err },
}

func prepareCrash(t *testing.T, r *Registry) {
	t.Helper()
	create(t, r, CreateSpec{Name: "plain", SizeBytes: MinSizeBytes})
	create(t, r, CreateSpec{Name: "v", SizeBytes: MinSizeBytes})
	for _, tag := range []string{"a", "b"} {
		_, err := r.TakeSnapshot("v", tag)
		must(t, err)
	}
	create(t, r, CreateSpec{Name: "clone", Clone: "v@b"})
	create(t, r, CreateSpec{Name: "side", Clone: "v@a"})
	_, err := r.TakeSnapshot("side", "s")
	must(t, err)
	_, err = r.TakeSnapshot("side", "s2") // on a branch of its own, which goes with it
	must(t, err)
	_, err = r.Rollback("side", "s")
	must(t, err)
}

// crashHere carries an operation out and kills the process before the step. It
// exits with 0 if the operation was done before.
func crashHere(root, op, step string) {
	last, err := strconv.Atoi(step)
	if err != nil {
		panic(err)
	}
	opts := Options{Root: root, Format: testFormat, Probe: testProbe}
	withLayers(&opts)
	r, err := Open(opts)
	if err != nil {
		panic(err)
	}
	steps := 0
	r.onStep = func() {
		if steps++; steps == last {
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}
	if err := crashOps[op](r); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(0)
}

// TestCrashAtEachStep kills each operation before each change that it makes, and
// wants the state before or the state after it, whole, without leftovers once the
// next command has run; the same operation then succeeds.
func TestCrashAtEachStep(t *testing.T) {
	for op, do := range crashOps {
		t.Run(op, func(t *testing.T) {
			done := open(t, withLayers)
			prepareCrash(t, done)
			old, err := checkRegistry(done)
			must(t, err)
			must(t, do(done))
			changed, err := checkRegistry(done)
			must(t, err)
			seen := map[bool]int{} // by whether the operation had taken effect
			step := 1
			for ; ; step++ {
				r := open(t, withLayers)
				prepareCrash(t, r)
				if !crashAt(t, r, op, step) {
					break
				}
				// Any command clears up: one that changes something else.
				other := open(t, func(o *Options) { withLayers(o); o.Root = r.Root() })
				create(t, other, CreateSpec{Name: "zz", SizeBytes: MinSizeBytes})
				_, err := other.Remove("zz")
				must(t, err)
				state, err := checkRegistry(other)
				if err != nil {
					t.Fatalf("killed before step %d: %v", step, err)
				}
				isOld := slices.Equal(state, old)
				if !isOld && !slices.Equal(state, changed) {
					t.Fatalf("killed before step %d there is %q; want %q or %q", step, state, old, changed)
				}
				seen[!isOld]++
				for _, path := range tree(t, r.Root()) {
					if strings.Contains(filepath.Base(path), tempPrefix) || strings.HasSuffix(path, unsettledSuffix) {
						t.Errorf("killed before step %d, %s is left", step, path)
					}
				}
				if !isOld {
					continue
				}
				if err := do(other); err != nil {
					t.Fatalf("killed before step %d, again: %v", step, err)
				}
				if state, err := checkRegistry(other); err != nil || !slices.Equal(state, changed) {
					t.Fatalf("killed before step %d, done again there is %q, %v", step, state, err)
				}
			}
			if seen[false] < 2 || seen[true] < 1 {
				t.Errorf("of %d steps %d leave the old state and %d the new one: the test does not see both", step-1, seen[false], seen[true])
			}
		})
	}
}

// crashAt runs an operation in another process, which dies before a step. It
// returns false if there is no such step.
func crashAt(t *testing.T, r *Registry, op string, step int) bool {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), crashRootEnv+"="+r.Root(), crashOpEnv+"="+op, crashStepEnv+"="+strconv.Itoa(step))
	out, err := cmd.CombinedOutput()
	if err == nil {
		return false
	}
	status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if !ok || !status.Signaled() || status.Signal() != syscall.SIGKILL {
		t.Fatalf("step %d: %v: %s", step, err, out)
	}
	return true
}
