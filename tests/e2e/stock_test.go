package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"runsc-fs/tests/lab"
)

// eachSetup runs a test without volumes, as stock runsc would, and with one.
func eachSetup(t *testing.T, test func(t *testing.T, mounts []specs.Mount)) {
	t.Run("no volume", func(t *testing.T) {
		plainRuntime(t)
		test(t, nil)
	})
	t.Run("volume", func(t *testing.T) {
		test(t, []specs.Mount{storage(t, "/data", "--size=128M")})
	})
}

// TestCommands goes through what a container's life consists of.
func TestCommands(t *testing.T) {
	eachSetup(t, func(t *testing.T, mounts []specs.Mount) {
		r := plainRuntime(t)
		ctx := testContext(t, 3*time.Minute)
		c := start(t, bundle("trap 'echo got TERM; sleep 3; exit 7' TERM; echo up; while :; do sleep 0.1; done", mounts...))

		state, err := c.State(ctx)
		must(t, err)
		if state.Status != specs.StateRunning || state.ID != c.ID || state.Bundle != c.Bundle || state.Pid == 0 {
			t.Errorf("state says %+v", state)
		}

		res, err := c.Exec(ctx, "sh", "-c", "echo out; echo err >&2; exit 3")
		if res.Code != 3 || res.Stdout != "out\n" || res.Stderr != "err\n" {
			t.Errorf("exec gave status %d, %q, %q (%v)", res.Code, res.Stdout, res.Stderr, err)
		}
		cmd := c.ExecCmd("cat")
		cmd.Stdin = strings.NewReader("through the pipe")
		if res, err := lab.Run(ctx, cmd); err != nil || res.Stdout != "through the pipe" {
			t.Errorf("exec cat gave %q (%v)", res.Stdout, err)
		}
		if out := execIn(t, c, "id -u; pwd"); out != "0\n/" {
			t.Errorf("exec runs as %q", out)
		}

		res, err = r.Command(ctx, "ps", "--format=table", c.ID)
		must(t, err)
		if !strings.Contains(res.Stdout, "sh") || !strings.Contains(res.Stdout, "PID") {
			t.Errorf("ps says %q", res.Stdout)
		}
		res, err = r.Command(ctx, "list")
		must(t, err)
		if !strings.Contains(res.Stdout, c.ID) {
			t.Errorf("list lacks the container: %q", res.Stdout)
		}

		res, err = r.Command(ctx, "events", "--stats", c.ID)
		must(t, err)
		var event struct {
			Type string
			ID   string
			Data struct {
				CPU    struct{ Usage struct{ Total uint64 } }
				Memory struct{ Usage struct{ Usage uint64 } }
				Pids   struct{ Current uint64 }
			}
		}
		must(t, json.Unmarshal([]byte(res.Stdout), &event))
		if event.Type != "stats" || event.ID != c.ID || event.Data.Pids.Current == 0 || event.Data.Memory.Usage.Usage == 0 {
			t.Errorf("events says %s", res.Stdout)
		}

		for _, step := range []struct {
			command string
			status  specs.ContainerState
		}{{"pause", "paused"}, {"resume", specs.StateRunning}} {
			_, err := r.Command(ctx, step.command, c.ID)
			must(t, err)
			state, err := c.State(ctx)
			must(t, err)
			if state.Status != step.status {
				t.Errorf("after %s the state is %q", step.command, state.Status)
			}
		}

		// runsc knows the exit status only while the sandbox is there, which
		// ends with its last container: the sleep lets wait begin before that.
		// The status is there for those who wait when the sandbox ends; hence the
		// pause between signal and end in the container.
		waiting, err := lab.Start(ctx, r.Cmd("wait", c.ID))
		must(t, err)
		must(t, c.Signal(ctx, "TERM"))
		res, err = waiting.Wait()
		must(t, err)
		var exit struct{ ExitStatus int }
		must(t, json.Unmarshal([]byte(res.Stdout), &exit))
		if exit.ExitStatus != 7 || !strings.Contains(c.Output(), "got TERM") {
			t.Errorf("wait says %q, the container %q", res.Stdout, c.Output())
		}
		state, err = c.State(ctx)
		must(t, err)
		if state.Status != specs.StateStopped {
			t.Errorf("after its end the state is %q", state.Status)
		}
	})
}

// TestCreateThenStart uses the two steps that container managers use.
func TestCreateThenStart(t *testing.T) {
	eachSetup(t, func(t *testing.T, mounts []specs.Mount) {
		r := plainRuntime(t)
		ctx := testContext(t, 3*time.Minute)
		id, dir, err := r.Bundle(bundle("sleep 600", mounts...).OCI())
		must(t, err)
		t.Cleanup(func() {
			if _, err := r.Command(ctx, "delete", "--force", id); err != nil {
				t.Error(err)
			}
		})
		out, err := os.Create(dir + "/output")
		must(t, err)
		defer out.Close()
		create := r.Cmd("create", "--bundle="+dir, id)
		create.Stdout, create.Stderr = out, out
		_, err = lab.Run(ctx, create)
		must(t, err)
		for _, want := range []specs.ContainerState{specs.StateCreated, specs.StateRunning} {
			res, err := r.Command(ctx, "state", id)
			must(t, err)
			var state specs.State
			must(t, json.Unmarshal([]byte(res.Stdout), &state))
			if state.Status != want {
				t.Fatalf("state is %q, want %q", state.Status, want)
			}
			if want == specs.StateCreated {
				_, err = r.Command(ctx, "start", id)
				must(t, err)
			}
		}
		// Without --force a running container stays.
		if _, err := r.Command(ctx, "delete", id); err == nil {
			t.Error("delete removed a running container")
		}
		_, err = r.Command(ctx, "kill", id, "KILL")
		must(t, err)
	})
}

// TestCgroup puts a container into a cgroup with a limit.
func TestCgroup(t *testing.T) {
	eachSetup(t, func(t *testing.T, mounts []specs.Mount) {
		r := plainRuntime(t)
		b := bundle("sleep 600", mounts...)
		b.CgroupsPath = r.Cell.Cgroup() + "/" + uniqueName(t, "limited")
		b.MemoryBytes = 700 << 20
		c := start(t, b)
		pid, err := lab.SandboxPID(c.ID)
		must(t, err)
		group := "/sys/fs/cgroup/memory" + b.CgroupsPath
		limitFile := group + "/memory.limit_in_bytes"
		if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
			group = "/sys/fs/cgroup" + b.CgroupsPath
			limitFile = group + "/memory.max"
		}
		limit, err := os.ReadFile(limitFile)
		must(t, err)
		if got := strings.TrimSpace(string(limit)); got != strconv.FormatInt(b.MemoryBytes, 10) {
			t.Errorf("the memory limit is %s, want %d", got, b.MemoryBytes)
		}
		procs, err := os.ReadFile(group + "/cgroup.procs")
		must(t, err)
		if !strings.Contains("\n"+string(procs), fmt.Sprintf("\n%d\n", pid)) {
			t.Errorf("sandbox %d is not in the cgroup: %q", pid, procs)
		}
	})
}

// TestNetwork reaches a server in a container from outside, and the outside from it.
func TestNetwork(t *testing.T) {
	eachSetup(t, func(t *testing.T, mounts []specs.Mount) {
		r := plainRuntime(t)
		ctx := testContext(t, 2*time.Minute)
		netns, address, err := r.Network(ctx)
		must(t, err)
		b := bundle(`perl -MIO::Socket::INET -e '
			$l = IO::Socket::INET->new(Listen => 5, LocalPort => 8080, ReuseAddr => 1) or die "listen: $!";
			while ($c = $l->accept) { $line = <$c>; print $c "hello $line"; close $c }'`, mounts...)
		b.NetNS = netns
		c := start(t, b)
		var got string
		must(t, lab.WaitFor(ctx, "the server in the container", 20*time.Second, func() (bool, error) {
			conn, err := r.Cell.Dial(ctx, "tcp", address+":8080")
			if err != nil {
				return false, nil
			}
			defer conn.Close()
			must(t, conn.SetDeadline(time.Now().Add(10*time.Second)))
			fmt.Fprintln(conn, "from outside")
			b, err := io.ReadAll(conn)
			got = string(b)
			return true, err
		}))
		if got != "hello from outside\n" {
			t.Errorf("the server said %q", got)
		}
		if out := execIn(t, c, "ip -br addr show eth0"); !strings.Contains(out, address+"/24") {
			t.Errorf("the container's address is %q, want %s", out, address)
		}
	})
}

// TestTwoContainersOneSandbox starts a pod of two containers.
func TestTwoContainersOneSandbox(t *testing.T) {
	eachSetup(t, func(t *testing.T, mounts []specs.Mount) {
		first := bundle("sleep 600", mounts...)
		first.Annotations = map[string]string{"io.kubernetes.cri.container-type": "sandbox"}
		pod := start(t, first)
		second := bundle("sleep 600", mounts...)
		second.Annotations = map[string]string{
			"io.kubernetes.cri.container-type": "container",
			"io.kubernetes.cri.sandbox-id":     pod.ID,
		}
		member := start(t, second)
		podState, err := pod.State(testContext(t, time.Minute))
		must(t, err)
		state, err := member.State(testContext(t, time.Minute))
		must(t, err)
		if state.Pid != podState.Pid {
			t.Errorf("the second container runs in process %d, the first in %d: not one sandbox", state.Pid, podState.Pid)
		}
		if len(mounts) > 0 {
			execIn(t, pod, "echo shared > /data/from-first")
			if got := execIn(t, member, "cat /data/from-first; mv /data/from-first /data/from-second"); got != "shared" {
				t.Errorf("the second container reads %q", got)
			}
			if got := execIn(t, pod, "ls -A /data"); !strings.Contains(got, "from-second") {
				t.Errorf("the first container sees %q", got)
			}
		}
		// The end of one leaves the other alone.
		must(t, member.Signal(testContext(t, time.Minute), "KILL"))
		must(t, member.WaitStopped(testContext(t, time.Minute), 30*time.Second))
		if got := execIn(t, pod, "echo alive"); got != "alive" {
			t.Errorf("the first container says %q", got)
		}
	})
}
