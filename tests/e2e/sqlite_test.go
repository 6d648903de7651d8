package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"runsc-fs/tests/lab"
)

// sqliteInit makes the database in write-ahead mode.
const sqliteInit = `sqlite3 /data/db 'PRAGMA journal_mode=WAL; CREATE TABLE t (writer INT, n INT, filler TEXT, PRIMARY KEY (writer, n));'
`

// sqliteWriter is a shell function that commits rows, each in a transaction of its
// own, and says so after each commit: writer ID COUNT.
const sqliteWriter = `writer() {
	(
		echo '.timeout 60000'
		echo '.bail on'
		echo 'PRAGMA synchronous=FULL;'
		n=0
		while [ $n -lt $2 ]; do
			echo "INSERT INTO t VALUES ($1, $n, hex(randomblob(100)));"
			echo "SELECT 'acked $1 $n';"
			n=$((n+1))
		done
	) | stdbuf -oL sqlite3 /data/db
}
`

// sqliteCheck prints "ok" and all rows.
const sqliteCheck = `sqlite3 /data/db 'PRAGMA integrity_check; SELECT writer, n FROM t ORDER BY 1, 2;'`

// TestSQLiteWriters has four processes write to one database in WAL mode, whose
// index is a shared mapping of a file.
func TestSQLiteWriters(t *testing.T) {
	m := storage(t, "/data", "--size=256M")
	out := run(t, bundle("set -e\n"+sqliteInit+sqliteWriter+`
for w in 1 2 3 4; do writer $w 250 > /tmp/$w & done
wait
cat /tmp/1 /tmp/2 /tmp/3 /tmp/4 | grep -c acked
sqlite3 /data/db 'PRAGMA integrity_check; SELECT count(*) FROM t;'
`, m))
	if got, want := strings.Fields(out), []string{"wal", "1000", "ok", "1000"}; !slices.Equal(got, want) {
		t.Fatalf("four writers left %q, want %q", got, want)
	}
}

// TestSQLiteCrash kills the sandbox under four writers, several times, and expects
// every row there whose commit was acknowledged.
func TestSQLiteCrash(t *testing.T) {
	r := plainRuntime(t)
	m := storage(t, "/data", "--size=256M")
	run(t, bundle("chmod 755 /data\n"+sqliteInit, m))
	acked := map[string]bool{}
	for round := range 3 {
		script := sqliteWriter + fmt.Sprintf("for w in 1 2 3 4; do writer %d$w 1000000 & done; wait", round+1)
		c, err := r.Start(testContext(t, time.Minute), bundle(script, m))
		must(t, err)
		must(t, lab.WaitFor(testContext(t, time.Minute), "commits", 50*time.Second, func() (bool, error) {
			return strings.Count(c.Output(), "acked") > 300, nil
		}))
		must(t, c.KillSandbox(testContext(t, time.Minute)))
		checkMount(t, m)
		for line := range strings.Lines(c.Output()) {
			if f := strings.Fields(line); len(f) == 3 && f[0] == "acked" && strings.HasSuffix(line, "\n") {
				acked[f[1]+"|"+f[2]] = true
			}
		}
		must(t, c.Delete(testContext(t, time.Minute)))
		lines := strings.Split(run(t, bundle(sqliteCheck, m)), "\n")
		if lines[0] != "ok" {
			t.Fatalf("crash %d: integrity_check says %q", round+1, lines[0])
		}
		there := map[string]bool{}
		for _, l := range lines[1:] {
			there[l] = true
		}
		var lost []string
		for row := range acked {
			if !there[row] {
				lost = append(lost, row)
			}
		}
		if len(lost) > 0 {
			t.Fatalf("crash %d: %d of %d acknowledged rows are lost, for example %v", round+1, len(lost), len(acked), lost[:min(5, len(lost))])
		}
		t.Logf("crash %d: %d rows acknowledged so far, %d there", round+1, len(acked), len(lines)-2)
	}
}
