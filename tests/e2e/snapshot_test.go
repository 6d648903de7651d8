package e2e

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"runsc-fs/tests/lab"
)

// volumeOK runs a volume command, which must succeed.
func volumeOK(t *testing.T, args ...string) string {
	t.Helper()
	res, err := volumeCmd(t, args...)
	must(t, err)
	return res.Stdout
}

// newClone makes a volume of a snapshot. When the test ends it must be free of
// defects, and is removed.
func newClone(t *testing.T, snapshot string) string {
	t.Helper()
	name := uniqueName(t, "clone")
	volumeOK(t, "clone", snapshot, name)
	t.Cleanup(func() {
		if res, err := command(t, "fsck", name); err != nil {
			t.Errorf("fsck of %s: %v\n%s", name, err, res.Stdout)
		}
		volumeOK(t, "rm", name)
	})
	return name
}

// newSnapshot takes a snapshot, which is removed when the test ends.
func newSnapshot(t *testing.T, volume, tag string) string {
	t.Helper()
	name := volume + "@" + tag
	volumeOK(t, "snapshot", name)
	t.Cleanup(func() { volumeOK(t, "rm", name) })
	return name
}

// TestSnapshots follows a volume through snapshots, clones, rollback and
// flattening, with a file that says where it is.
func TestSnapshots(t *testing.T) {
	v := newUncheckedVolume(t, "--size=64M")
	at := func(name string) specs.Mount { return lab.VolumeMount(name, "/data") }
	run(t, bundle("echo one > /data/state; dd if=/dev/urandom of=/data/big bs=1M count=8 2>/dev/null; md5sum < /data/big > /data/sum", at(v)))
	snapshot := newSnapshot(t, v, "one")
	run(t, bundle("echo two > /data/state; rm /data/big", at(v)))
	second := v + "@two"
	volumeOK(t, "snapshot", second)
	clone := newClone(t, snapshot)

	// Clones and their origin are used at the same time, and do not see each other.
	c := start(t, bundle("cat /data/state; echo three > /data/state; sync; sleep 600", at(clone)))
	if got := run(t, bundle("cat /data/state; echo four > /data/state", at(v))); got != "two\n" {
		t.Errorf("the volume reads %q", got)
	}
	if got := execIn(t, c, "cat /data/state; md5sum < /data/big | diff - /data/sum && echo same"); got != "three\nsame" {
		t.Errorf("the clone reads %q", got)
	}
	res, err := volumeCmd(t, "snapshot", clone+"@used")
	wantError(t, res, err, fmt.Sprintf("volume %q is in use by container %s; stop that first", clone, c.ID))
	res, err = volumeCmd(t, "rollback", clone+"@used")
	wantError(t, res, err, c.ID)
	res, err = volumeCmd(t, "rm", snapshot)
	wantError(t, res, err, fmt.Sprintf("snapshot %q is the base of volume %q", snapshot, clone))
	res, err = volumeCmd(t, "rm", v)
	wantError(t, res, err, "has snapshots", snapshot, second)
	if res, err := command(t, "fsck", snapshot); err != nil {
		t.Errorf("fsck of a snapshot whose clone is in use: %v\n%s", err, res.Stdout)
	}

	// A sandbox that was killed leaves a clone that mounts again.
	must(t, c.KillSandbox(testContext(t, time.Minute)))
	if got := run(t, bundle("cat /data/state; ls /data", at(clone))); got != "three\nbig\nstate\nsum\n" {
		t.Errorf("after the death of its sandbox the clone reads %q", got)
	}

	// Back, and back again.
	volumeOK(t, "rollback", snapshot)
	if got := run(t, bundle("cat /data/state; md5sum < /data/big | diff - /data/sum && echo same", at(v))); got != "one\nsame\n" {
		t.Errorf("rolled back, the volume reads %q", got)
	}
	volumeOK(t, "rollback", second)
	if got := run(t, bundle("cat /data/state; ls /data", at(v))); got != "two\nstate\nsum\n" {
		t.Errorf("rolled back to the second snapshot, the volume reads %q", got)
	}
	volumeOK(t, "flatten", v)
	volumeOK(t, "rm", second)
	if got := run(t, bundle("cat /data/state; ls /data", at(v))); got != "two\nstate\nsum\n" {
		t.Errorf("flat, the volume reads %q", got)
	}
	if res, err := command(t, "fsck", v); err != nil {
		t.Errorf("fsck of the flat volume: %v\n%s", err, res.Stdout)
	}
	ls := volumeOK(t, "ls")
	for _, want := range []string{snapshot, "snapshot", "clones: " + clone} {
		if !strings.Contains(ls, want) {
			t.Errorf("ls lacks %q:\n%s", want, ls)
		}
	}
}

// TestChangedBase: a volume whose frozen base was changed from outside is refused.
func TestChangedBase(t *testing.T) {
	v := newUncheckedVolume(t, "--size=64M")
	mount := lab.VolumeMount(v, "/data")
	run(t, bundle("echo base > /data/file", mount))
	base := inspect(t, v).Image
	kept := base + ".test"
	must(t, os.Link(base, kept))
	t.Cleanup(func() { os.Remove(kept) })
	newSnapshot(t, v, "a")
	info, err := os.Stat(kept)
	must(t, err)
	f, err := os.OpenFile(kept, os.O_WRONLY, 0)
	must(t, err)
	_, err = f.WriteAt([]byte{1}, info.Size()-1)
	must(t, err)
	must(t, f.Close())
	res, err := plainRuntime(t).Run(testContext(t, time.Minute), bundle("cat /data/file", mount), time.Minute)
	wantError(t, res, err, fmt.Sprintf("volume %q", v), "was changed at", "touch -d @")
}

// TestPostgresClones prepares a database once and lets five servers work on clones
// of it at the same time, each in a sandbox of its own.
func TestPostgresClones(t *testing.T) {
	const trials = 5
	r := plainRuntime(t)
	v := newUncheckedVolume(t, "--size=2G")
	uid, gid := postgresUser(t)
	server := func(volume string) *plainServer {
		b := bundle("exec pg-serve", lab.VolumeMount(volume, "/data"))
		b.UID, b.GID = uid, gid
		b.Env = []string{"PGDATA=/data/pg"}
		s := &plainServer{r: r, bundle: b}
		s.start(t)
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("output of the server on %s:\n%s", volume, s.c.Output())
			}
			if err := s.c.Delete(context.Background()); err != nil {
				t.Errorf("cannot delete the container: %v", err)
			}
		})
		waitReady(t, s)
		return s
	}
	stop := func(s *plainServer) {
		must(t, s.c.Signal(testContext(t, time.Minute), "INT"))
		must(t, s.c.WaitStopped(testContext(t, 2*time.Minute), time.Minute))
	}
	run(t, bundle(fmt.Sprintf("mkdir -m 700 /data/pg && chown %d:%d /data/pg", uid, gid), lab.VolumeMount(v, "/data")))
	s := server(v)
	pgRun(t, s, "pgbench", "--host=/tmp", "--username=postgres", "-i", "-q", "-s", "2", "postgres")
	stop(s)
	snapshot := newSnapshot(t, v, "prepared")
	base := inspect(t, v).Layers[0].Path
	before := hashFile(t, base)

	var servers []*plainServer
	for i := range trials {
		begin := time.Now()
		clone := newClone(t, snapshot)
		t.Logf("clone %d took %v, its layer has %d bytes", i, time.Since(begin).Round(time.Millisecond), inspect(t, clone).UsedBytes)
		servers = append(servers, server(clone))
	}
	var group sync.WaitGroup
	for i, s := range servers {
		group.Go(func() {
			// Each trial has another number of transactions, which the books tell.
			res, err := lab.Run(testContext(t, 6*time.Minute), s.exec("pgbench", "--host=/tmp", "--username=postgres", "-n", "-c", "2", "-t", fmt.Sprint(20+10*i), "postgres"))
			if err != nil {
				t.Errorf("trial %d: %v\n%s", i, err, res.Stderr)
			}
		})
	}
	group.Wait()
	for i, s := range servers {
		if i%2 == 0 {
			s.crash(t)
			waitReady(t, s)
		}
		db := connect(t, s)
		checkBooks(t, db)
		var transactions int
		must(t, db.QueryRow("SELECT count(*) FROM pgbench_history").Scan(&transactions))
		if want := 2 * (20 + 10*i); transactions != want {
			t.Errorf("trial %d has %d transactions, want its own %d", i, transactions, want)
		}
		db.Close()
		stop(s)
	}
	if hashFile(t, base) != before {
		t.Error("the work of the clones has changed their base")
	}

	// The prepared volume itself works on, and goes back.
	count := func() (n int) {
		s := server(v)
		db := connect(t, s)
		defer db.Close()
		must(t, db.QueryRow("SELECT count(*) FROM pgbench_history").Scan(&n))
		pgRun(t, s, "pgbench", "--host=/tmp", "--username=postgres", "-n", "-t", "10", "postgres")
		stop(s)
		return n
	}
	if n := count(); n != 0 {
		t.Errorf("the prepared volume has %d transactions of others", n)
	}
	volumeOK(t, "rollback", snapshot)
	if n := count(); n != 0 {
		t.Errorf("after the rollback there are %d transactions", n)
	}
}

// TestDockerClone makes a clone by Docker's own command.
func TestDockerClone(t *testing.T) {
	v := dockerVolume(t, "size=64M")
	dockerRun(t, "echo prepared > /image-data/state", "--volume="+v+":/image-data")
	snapshot := v + "@prepared"
	volumes := func(args ...string) {
		t.Helper()
		_, err := command(t, append([]string{"--volume-root=" + dockerVolumeRoot(), "volume"}, args...)...)
		must(t, err)
	}
	volumes("snapshot", snapshot)
	t.Cleanup(func() { volumes("rm", snapshot) })
	clone := dockerVolume(t, "clone="+snapshot)
	if got := dockerRun(t, "cat /image-data/state; echo trial > /image-data/state; ls /image-data", "--volume="+clone+":/image-data"); !strings.HasPrefix(got, "prepared\n") || !strings.Contains(got, "greeting") {
		t.Errorf("the clone has %q", got)
	}
	if got := dockerRun(t, "cat /image-data/state", "--volume="+v+":/image-data"); got != "prepared" {
		t.Errorf("the volume has %q", got)
	}
	if said := dockerFails(t, "volume", "rm", v); !strings.Contains(said, "has snapshots") {
		t.Errorf("removing a volume with snapshots says %s", said)
	}
	if said := dockerFails(t, "volume", "create", "--driver=blobfs", "--opt=clone="+v+"@none", uniqueName(t, "bad")); !strings.Contains(said, v+"@none") {
		t.Errorf("a clone of no snapshot says %s", said)
	}
}
