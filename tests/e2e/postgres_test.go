package e2e

import (
	"context"
	"database/sql"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lib/pq"

	"runsc-fs/tests/lab"
)

// server is a PostgreSQL server in a sandbox.
type server interface {
	// exec runs a command in the container as the postgres user.
	exec(args ...string) lab.Cmd
	// crash kills the sandbox and starts the container again.
	crash(t *testing.T)
	// restart stops the server in an orderly way and starts it again.
	restart(t *testing.T)
	// dial connects to the server from outside the container.
	dial(ctx context.Context) (net.Conn, error)
}

// dialer makes lib/pq use a server's own network.
type dialer struct {
	s server

	mu    sync.Mutex
	conns []net.Conn
}

// Dial is DialTimeout with a limit of its own.
func (d *dialer) Dial(network, address string) (net.Conn, error) {
	return d.DialTimeout(network, address, 10*time.Second)
}

// DialTimeout connects to the server, whatever the address says.
func (d *dialer) DialTimeout(_, _ string, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	conn, err := d.s.dial(ctx)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.conns = append(d.conns, conn)
	return conn, nil
}

// hangUp closes all connections: a sandbox that was killed says nothing to its peers.
func (d *dialer) hangUp() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range d.conns {
		c.Close()
	}
}

// connect opens a pool of connections from outside the container.
func connect(t *testing.T, s server) *sql.DB {
	t.Helper()
	return connectBy(t, &dialer{s: s})
}

func connectBy(t *testing.T, d *dialer) *sql.DB {
	t.Helper()
	connector, err := pq.NewConnector("host=127.0.0.1 user=postgres dbname=postgres sslmode=disable connect_timeout=10")
	must(t, err)
	connector.Dialer(d)
	return sql.OpenDB(connector)
}

// waitReady waits until the server answers a query.
func waitReady(t *testing.T, s server) {
	t.Helper()
	db := connect(t, s)
	defer db.Close()
	must(t, lab.WaitFor(testContext(t, 3*time.Minute), "PostgreSQL to answer", 2*time.Minute, func() (bool, error) {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		return db.PingContext(ctx) == nil, nil
	}))
}

// pgRun runs a command in the server's container, which must succeed.
func pgRun(t *testing.T, s server, args ...string) string {
	t.Helper()
	begin := time.Now()
	defer func() { t.Logf("%s took %.1f s", args[0], time.Since(begin).Seconds()) }()
	res, err := lab.Run(testContext(t, 6*time.Minute), s.exec(args...))
	must(t, err)
	return res.Stdout + res.Stderr
}

// ackedCommits has the rows whose commit was acknowledged to a client outside the
// sandbox.
type ackedCommits struct {
	mu   sync.Mutex
	rows []int64
}

func (a *ackedCommits) count() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.rows)
}

// commitUntilError inserts rows, each in a transaction of its own, from several
// connections until each of them fails.
func (a *ackedCommits) commitUntilError(db *sql.DB, writers int, first int64) *sync.WaitGroup {
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for n := first; ; n++ {
				row := n*int64(writers) + int64(w)
				ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
				_, err := db.ExecContext(ctx, "INSERT INTO acked VALUES ($1, repeat('x', 200))", row)
				cancel()
				if err != nil {
					return
				}
				a.mu.Lock()
				a.rows = append(a.rows, row)
				a.mu.Unlock()
			}
		})
	}
	return &wg
}

// check fails the test if an acknowledged row is not there.
func (a *ackedCommits) check(t *testing.T, db *sql.DB) {
	t.Helper()
	rows, err := db.QueryContext(testContext(t, 2*time.Minute), "SELECT id FROM acked ORDER BY id")
	must(t, err)
	defer rows.Close()
	var have []int64
	for rows.Next() {
		var id int64
		must(t, rows.Scan(&id))
		have = append(have, id)
	}
	must(t, rows.Err())
	a.mu.Lock()
	defer a.mu.Unlock()
	var lost []int64
	for _, id := range a.rows {
		if _, ok := slices.BinarySearch(have, id); !ok {
			lost = append(lost, id)
		}
	}
	if len(lost) > 0 {
		t.Fatalf("%d of %d acknowledged commits are lost, the first ones: %v", len(lost), len(a.rows), lost[:min(10, len(lost))])
	}
	t.Logf("all %d acknowledged commits are there, of %d rows", len(a.rows), len(have))
}

// checkBooks fails the test unless the sums that each pgbench transaction keeps
// equal are equal.
func checkBooks(t *testing.T, db *sql.DB) {
	t.Helper()
	var accounts, tellers, branches, history int64
	err := db.QueryRowContext(testContext(t, 2*time.Minute), `SELECT
		(SELECT sum(abalance) FROM pgbench_accounts), (SELECT sum(tbalance) FROM pgbench_tellers),
		(SELECT sum(bbalance) FROM pgbench_branches), (SELECT coalesce(sum(delta), 0) FROM pgbench_history)`).
		Scan(&accounts, &tellers, &branches, &history)
	must(t, err)
	if accounts != tellers || accounts != branches || accounts != history {
		t.Fatalf("pgbench's books do not balance: accounts %d, tellers %d, branches %d, history %d", accounts, tellers, branches, history)
	}
}

// checkServer runs all checks of what a server must still have.
func checkServer(t *testing.T, s server, acked *ackedCommits) {
	t.Helper()
	db := connect(t, s)
	defer db.Close()
	acked.check(t, db)
	checkBooks(t, db)
	pgRun(t, s, "pg_amcheck", "--host=/tmp", "--username=postgres", "--all", "--install-missing", "--heapallindexed", "--parent-check")
}

// crashWorkload is the core of the PostgreSQL tests: load, run, kill the sandbox in
// the middle, recover, and lose nothing. total is how long pgbench runs in all.
func crashWorkload(t *testing.T, s server, scale int, total time.Duration) {
	waitReady(t, s)
	pgRun(t, s, "pgbench", "--host=/tmp", "--username=postgres", "-i", "-q", "-s", fmt.Sprint(scale), "postgres")
	client := &dialer{s: s}
	db := connectBy(t, client)
	_, err := db.Exec("CREATE TABLE acked (id bigint PRIMARY KEY, filler text)")
	must(t, err)

	acked := &ackedCommits{}
	bench := s.exec("pgbench", "--host=/tmp", "--username=postgres", "-n", "-c", "4", "-T", fmt.Sprint(int(total.Seconds())), "postgres")
	bench.Timeout = total + 2*time.Minute
	running, err := lab.Start(testContext(t, total+3*time.Minute), bench)
	must(t, err)
	writers := acked.commitUntilError(db, 2, 0)
	select {
	case <-running.Done():
		res, err := running.Wait()
		t.Fatalf("pgbench ended before the crash: %v: %s%s", err, res.Stdout, res.Stderr)
	case <-time.After(total / 2):
	}
	s.crash(t)
	client.hangUp()
	writers.Wait()
	db.Close()
	running.Kill()
	if acked.count() == 0 {
		t.Fatal("no commit was acknowledged before the crash: the test shows nothing")
	}

	waitReady(t, s)
	checkServer(t, s, acked)

	// It goes on working, and an orderly restart keeps all too.
	out := pgRun(t, s, "pgbench", "--host=/tmp", "--username=postgres", "-n", "-c", "4", "-T", fmt.Sprint(int((total / 2).Seconds())), "postgres")
	t.Logf("pgbench after the crash:\n%s", strings.TrimSpace(out))
	s.restart(t)
	waitReady(t, s)
	checkServer(t, s, acked)
}

// dockerServer runs PostgreSQL with docker run.
type dockerServer struct {
	d    *lab.Dockerd
	name string
}

const pgPort = "15432"

func (s dockerServer) exec(args ...string) lab.Cmd {
	return s.d.Cmd(append([]string{"exec", "--user=postgres", s.name}, args...)...)
}

func (s dockerServer) crash(t *testing.T) {
	t.Helper()
	must(t, lab.KillSandbox(testContext(t, time.Minute), dockerID(t, s.name)))
	must(t, lab.WaitFor(testContext(t, time.Minute), "Docker to notice the crash", 30*time.Second, func() (bool, error) {
		out, err := s.d.Docker(context.Background(), "inspect", "--format={{.State.Running}}", s.name)
		return out == "false", err
	}))
	dockerOK(t, "start", s.name)
}

func (s dockerServer) restart(t *testing.T) {
	t.Helper()
	dockerOK(t, "restart", "--time=60", s.name)
}

func (s dockerServer) dial(ctx context.Context) (net.Conn, error) {
	return s.d.Dial(ctx, "tcp", "127.0.0.1:"+pgPort)
}

// TestPostgresUnderDocker is how people meet the product: a Docker volume with
// PostgreSQL's data, whose server dies in the middle of its work.
func TestPostgresUnderDocker(t *testing.T) {
	d := docker(t)
	volume := dockerVolume(t, "size=4G")
	name := dockerStart(t, "--user=postgres", "--stop-signal=SIGINT", "--publish="+pgPort+":5432",
		"--volume="+volume+":/var/lib/postgresql/data", image, "pg-serve")
	crashWorkload(t, dockerServer{d, name}, 10, 60*time.Second)
}

// plainServer runs PostgreSQL with the runtime alone.
type plainServer struct {
	r       *lab.Runtime
	bundle  lab.BundleSpec
	address string
	c       *lab.Container
}

func (s *plainServer) exec(args ...string) lab.Cmd {
	user := fmt.Sprintf("--user=%d:%d", s.bundle.UID, s.bundle.GID)
	return s.r.Cmd(append([]string{"exec", user, s.c.ID}, args...)...)
}

func (s *plainServer) start(t *testing.T) {
	t.Helper()
	netns, address, err := s.r.Network(testContext(t, time.Minute))
	must(t, err)
	s.bundle.NetNS, s.address = netns, address
	c, err := s.r.Start(testContext(t, time.Minute), s.bundle)
	must(t, err)
	s.c = c
}

func (s *plainServer) crash(t *testing.T) {
	t.Helper()
	must(t, s.c.KillSandbox(testContext(t, time.Minute)))
	must(t, s.c.Delete(testContext(t, time.Minute)))
	s.start(t)
}

func (s *plainServer) restart(t *testing.T) {
	t.Helper()
	must(t, s.c.Signal(testContext(t, time.Minute), "INT"))
	must(t, s.c.WaitStopped(testContext(t, 2*time.Minute), time.Minute))
	must(t, s.c.Delete(testContext(t, time.Minute)))
	s.start(t)
}

func (s *plainServer) dial(ctx context.Context) (net.Conn, error) {
	return s.r.Cell.Dial(ctx, "tcp", s.address+":5432")
}

// TestPostgresWithoutDocker runs the same through plain OCI bundles.
func TestPostgresWithoutDocker(t *testing.T) {
	r := plainRuntime(t)
	b := bundle("exec pg-serve", storage(t, "/data", "--size=2G"))
	b.UID, b.GID = postgresUser(t)
	b.Env = []string{"PGDATA=/data/pg"}
	// The root of a new volume belongs to root.
	run(t, bundle(fmt.Sprintf("mkdir -m 700 /data/pg && chown %d:%d /data/pg", b.UID, b.GID), b.Mounts...))
	s := &plainServer{r: r, bundle: b}
	s.start(t)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("output of the server:\n%s", s.c.Output())
		}
		if err := s.c.Delete(context.Background()); err != nil {
			t.Errorf("cannot delete the container: %v", err)
		}
	})
	crashWorkload(t, s, 10, 60*time.Second)
}

// postgresUser gives the ids of the postgres user in the root file system.
func postgresUser(t *testing.T) (uid, gid uint32) {
	t.Helper()
	out := run(t, bundle("id -u postgres; id -g postgres"))
	_, err := fmt.Sscan(out, &uid, &gid)
	must(t, err)
	return uid, gid
}
