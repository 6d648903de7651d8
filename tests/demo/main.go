// Command demo shows the product on an empty machine: PostgreSQL in a container
// whose data lies on a blobfs volume, under Docker. It installs missing Debian
// packages, builds the program, starts a private dockerd that ends with it, and
// leaves only its cached root file system behind. Run it with make demo.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"runsc-fs/tests/lab"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintf(os.Stderr, "\nThe demo failed after %.1f s: %v\n", time.Since(begin).Seconds(), err)
		os.Exit(1)
	}
	step("The demo took %.1f s in all.", time.Since(begin).Seconds())
}

// begin is when the demo began: each step shows the seconds since.
var begin = time.Now()

func step(format string, args ...any) {
	fmt.Printf("[%5.1f s] %s\n", time.Since(begin).Seconds(), fmt.Sprintf(format, args...))
}

// shellWords joins arguments as one would type them.
func shellWords(args []string) string {
	words := make([]string, len(args))
	for i, a := range args {
		if words[i] = a; strings.ContainsAny(a, " *()[]\"") {
			words[i] = "'" + a + "'"
		}
	}
	return strings.Join(words, " ")
}

// show prints what a command printed, set off from the steps.
func show(out string) {
	for line := range strings.Lines(strings.TrimSpace(out)) {
		fmt.Printf("          | %s\n", strings.TrimRight(line, "\n"))
	}
}

func run(ctx context.Context) error {
	if os.Geteuid() != 0 {
		return errors.New("it needs root, for dockerd and namespaces; try: sudo make demo")
	}
	root, err := lab.TreeRoot()
	if err != nil {
		return err
	}
	step("looking for docker.io, debootstrap and others")
	if err := lab.EnsureTools(ctx, step, lab.ToolDockerd, lab.ToolDebootstrap, lab.ToolIP, lab.ToolIptables, lab.ToolNsenter); err != nil {
		return err
	}
	// The compiler wants processors, debootstrap the network and the disk.
	built := make(chan error, 1)
	go func() {
		step("building bin/runsc-fs (some minutes the first time)")
		_, err := lab.RunShown(ctx, step, "make build", lab.Cmd{
			Argv: []string{"make", "--no-print-directory", "build"}, Dir: root, Timeout: 20 * time.Minute,
			Env: []string{"GOFLAGS=" + strings.TrimSpace(os.Getenv("GOFLAGS")+" -v")}, // names the packages as they are compiled
		})
		if err == nil {
			step("built bin/runsc-fs")
		}
		built <- err
	}()
	step("making a root file system with PostgreSQL")
	rootfs, err := lab.RootFS(ctx, step, lab.BaseRootFS)
	if buildErr := <-built; err == nil {
		err = buildErr
	}
	if err != nil {
		return err
	}
	binary, err := lab.Binary()
	if err != nil {
		return err
	}
	dir, err := lab.NewDir("demo")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	step("starting a private dockerd in namespaces of its own")
	d, err := lab.StartDockerd(ctx, lab.DockerdSpec{Dir: dir, Logf: step})
	if err != nil {
		return err
	}
	defer func() {
		step("cleaning up")
		d.Stop()
	}()
	err = tour(ctx, d, binary, rootfs, dir)
	if err != nil && ctx.Err() == nil {
		fmt.Fprintf(os.Stderr, "\nThe end of dockerd's log:\n%s\n", d.LogTail(2000))
	}
	return err
}

// tour is what a user would type.
func tour(ctx context.Context, d *lab.Dockerd, binary, rootfs, dir string) error {
	step("$ runsc-fs install")
	installed, err := d.Cell.Run(ctx, lab.Cmd{Argv: []string{
		binary, "--volume-root=" + filepath.Join(dir, "volumes"), "install", "--config=" + d.ConfigFile(), "--docker-socket=" + d.Socket(),
	}})
	if err != nil {
		return err
	}
	show(installed.Stdout)
	step("importing the root file system as the image postgres")
	if err := d.Import(ctx, rootfs, "postgres", "ENV PGDATA=/var/lib/postgresql/data", "USER postgres", `CMD ["pg-serve"]`); err != nil {
		return err
	}

	const db = "pg"
	docker := func(args ...string) (string, error) {
		step("$ docker %s", shellWords(args))
		out, err := d.Docker(ctx, args...)
		if err == nil {
			show(out)
		}
		return out, err
	}
	ready := func() error {
		return lab.WaitFor(ctx, "PostgreSQL to answer", time.Minute, func() (bool, error) {
			_, err := d.Docker(ctx, "exec", db, "pg_isready", "--quiet", "--host=/tmp")
			return err == nil, nil
		})
	}
	psql := func(query string) (string, error) {
		return docker("exec", db, "psql", "--host=/tmp", "--no-align", "--tuples-only", "--command="+query)
	}
	const count = "SELECT count(*) FROM pgbench_history"

	for _, args := range [][]string{
		{"volume", "create", "--driver=blobfs", "--opt=size=2G", "pgdata"},
		{"run", "--detach", "--name=" + db, "--runtime=blobfs", "--stop-signal=SIGINT", "--volume=pgdata:/var/lib/postgresql/data", "postgres"},
	} {
		if _, err := docker(args...); err != nil {
			return err
		}
	}
	if err := ready(); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"exec", db, "grep", "blobfs", "/proc/mounts"},
		{"exec", db, "pgbench", "--host=/tmp", "--initialize", "--quiet", "--scale=5"},
		{"exec", db, "pgbench", "--host=/tmp", "--client=4", "--time=10"},
	} {
		if _, err := docker(args...); err != nil {
			return err
		}
	}
	before, err := psql(count)
	if err != nil {
		return err
	}
	if _, err := docker("restart", db); err != nil {
		return err
	}
	if err := ready(); err != nil {
		return err
	}
	after, err := psql(count)
	if err != nil {
		return err
	}
	if before != after || before == "0" {
		return fmt.Errorf("%s transactions before the restart, %s after it", before, after)
	}
	step("the restart kept all %s transactions", after)

	id, err := d.Docker(ctx, "inspect", "--format={{.Id}}", db)
	if err != nil {
		return err
	}
	step("killing the sandbox with SIGKILL, as a crash would, and starting the container again")
	if err := lab.KillSandbox(ctx, id); err != nil {
		return err
	}
	err = lab.WaitFor(ctx, "Docker to notice", 30*time.Second, func() (bool, error) {
		out, err := d.Docker(ctx, "inspect", "--format={{.State.Running}}", db)
		return out == "false", err
	})
	if err != nil {
		return err
	}
	if _, err := docker("start", db); err != nil {
		return err
	}
	if err := ready(); err != nil {
		return err
	}
	crashed, err := psql(count)
	if err != nil {
		return err
	}
	if crashed != after {
		return fmt.Errorf("%s transactions before the crash, %s after it", after, crashed)
	}
	step("the crash lost none of the %s transactions", crashed)
	return nil
}
