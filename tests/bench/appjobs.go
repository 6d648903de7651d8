package main

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
)

// appJobs are databases.
func appJobs() []job {
	return []job{
		pgbench(1, true),
		pgbench(8, true),
		timed("SQLite, $COMMITS durable commits", true, `rm -f /data/commits.db*
			sqlite3 /data/commits.db "CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT)"
			perl -e "print qq{PRAGMA synchronous=FULL;\n}; print qq{INSERT INTO t (v) VALUES (\x27value \$_\x27);\n} for 1..$COMMITS" >/tmp/commits.sql`,
			"sqlite3 /data/commits.db </tmp/commits.sql", ""),
		timed("SQLite WAL, $COMMITS durable commits", false, `rm -f /data/wal.db*
			sqlite3 /data/wal.db "PRAGMA journal_mode=WAL; CREATE TABLE t (id INTEGER PRIMARY KEY, v TEXT)" >/dev/null
			perl -e "print qq{PRAGMA synchronous=FULL;\n}; print qq{INSERT INTO t (v) VALUES (\x27value \$_\x27);\n} for 1..$COMMITS" >/tmp/commits.sql`,
			"sqlite3 /data/wal.db </tmp/commits.sql", ""),
	}
}

// pgInit makes the database of the pgbench jobs.
func pgInit(ctx context.Context, x *box) error {
	_, err := x.sh(ctx, fmt.Sprintf(`install -d -o postgres -m 0700 /data/pg
		as="runuser -u postgres --"
		$as initdb -D /data/pg --auth=trust --no-locale --encoding=UTF8 >/dev/null
		$as pg_ctl -D /data/pg -w -l /data/pg/log -o "-k /tmp -h ''" start >/dev/null
		$as pgbench -h /tmp -i -q -s %d postgres >/dev/null 2>&1
		$as pg_ctl -D /data/pg -w stop >/dev/null`, x.b.scale.pgScale))
	return err
}

var tps = regexp.MustCompile(`tps = ([0-9.]+) \(without`)

// pgbench is PostgreSQL's TPC-B-like benchmark with a number of clients.
func pgbench(clients int, quick bool) job {
	return job{name: fmt.Sprintf("pgbench TPC-B, %d clients", clients), unit: "TPS", dir: higher, quick: quick, needs: pgInit, needsName: "pg",
		run: func(ctx context.Context, x *box) (float64, error) {
			out, err := x.sh(ctx, fmt.Sprintf(`as="runuser -u postgres --"
				$as pg_ctl -D /data/pg -w -l /data/pg/log -o "-k /tmp -h ''" start >/dev/null
				$as psql -q -h /tmp postgres -c checkpoint
				$as pgbench -h /tmp -c %d -j 2 -T %d postgres 2>&1 || { $as pg_ctl -D /data/pg -w stop >/dev/null; exit 1; }
				$as pg_ctl -D /data/pg -w stop >/dev/null`, clients, x.b.scale.pgSeconds))
			if err != nil {
				return 0, err
			}
			m := tps.FindStringSubmatch(out)
			if m == nil {
				return 0, fmt.Errorf("pgbench gives no rate: %q", out)
			}
			return strconv.ParseFloat(m[1], 64)
		}}
}
