package lab

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// RootFSSpec describes a Debian root file system. Two equal specs share one
// cached directory; any change builds a new one.
type RootFSSpec struct {
	Name     string   // short name for the cache directory
	Packages []string // Debian packages besides the minimal base
	Setup    string   // shell script run in the finished root by chroot
}

// BaseRootFS has what the tests and the demo run: PostgreSQL, fio, SQLite.
//
// The image's data directory belongs to the postgres user, mode 0700, and has a
// file in it, so that taking over what the image has at the mount point can be seen.
var BaseRootFS = RootFSSpec{
	Name:     "base",
	Packages: []string{"postgresql", "fio", "sqlite3", "procps", "iproute2"},
	Setup: `set -e
rm -rf /var/lib/postgresql/15 /etc/postgresql/15 /var/log/postgresql/*
install -d -o postgres -g postgres -m 0700 /var/lib/postgresql/data
ln -sf /usr/lib/postgresql/*/bin/* /usr/local/bin/
cat > /usr/local/bin/pg-serve <<'EOF'
#!/bin/sh
# Initialises PGDATA when it is empty and serves it.
set -e
: "${PGDATA:=/var/lib/postgresql/data}"
if [ ! -s "$PGDATA/PG_VERSION" ]; then
	initdb --pgdata="$PGDATA" --username=postgres --auth=trust --no-locale --encoding=UTF8
	echo "host all all all trust" >> "$PGDATA/pg_hba.conf"
fi
exec postgres -D "$PGDATA" -c listen_addresses='*' -c unix_socket_directories=/tmp "$@"
EOF
chmod 0755 /usr/local/bin/pg-serve
install -d -o games -g staff -m 2751 /image-data
printf 'from the image\n' > /image-data/greeting
chown 1234:5678 /image-data/greeting
chmod 0640 /image-data/greeting
mkdir /image-data/sub
ln -s greeting /image-data/link
rm -rf /var/cache/apt/* /var/lib/apt/lists/* /usr/share/doc/* /usr/share/man/* /usr/share/locale/*
`,
}

// ToolsRootFS has programs that use more of a file system than others do: access
// control lists, flags, extents, copies with everything.
var ToolsRootFS = RootFSSpec{
	Name:     "tools",
	Packages: []string{"acl", "attr", "rsync", "e2fsprogs", "util-linux", "quota"},
	Setup:    `rm -rf /var/cache/apt/* /var/lib/apt/lists/* /usr/share/doc/* /usr/share/man/* /usr/share/locale/*`,
}

// rootFSRecipe changes when RootFS builds differently from equal specs.
const rootFSRecipe = "1"

func (s RootFSSpec) key(suite string) string {
	h := sha256.New()
	fmt.Fprintf(h, "%s\n%s\n%s\n%s\n%s", rootFSRecipe, suite, runtime.GOARCH, strings.Join(s.Packages, ","), s.Setup)
	return hex.EncodeToString(h.Sum(nil))[:16]
}

// RootFS returns the directory of the root file system that spec describes,
// building it when the cache does not have it: about a minute. Nobody may change
// what is in the directory.
func RootFS(ctx context.Context, logf Logf, spec RootFSSpec) (string, error) {
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	suite := debianSuite()
	dir := filepath.Join(cache, "rootfs-"+spec.Name+"-"+spec.key(suite))
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if err := EnsureTools(ctx, logf, ToolDebootstrap); err != nil {
		return "", err
	}
	err = withCacheLock(ctx, logf, func(string) error {
		if _, err := os.Stat(dir); err == nil {
			return nil
		}
		return buildRootFS(ctx, logf, spec, suite, dir)
	})
	return dir, err
}

// buildRootFS must be called with the cache locked.
func buildRootFS(ctx context.Context, logf Logf, spec RootFSSpec, suite, dir string) error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("debootstrap needs root")
	}
	old, _ := filepath.Glob(filepath.Join(filepath.Dir(dir), "rootfs-"+spec.Name+"-*"))
	for _, d := range old {
		logf("removing the outdated root file system %s", filepath.Base(d))
		if err := os.RemoveAll(d); err != nil {
			return err
		}
	}
	logf("debootstrap: Debian %s with %s (about a minute)", suite, strings.Join(spec.Packages, ", "))
	part := dir + ".part"
	_, err := RunShown(ctx, logf, "debootstrap", Cmd{
		Argv:    []string{"debootstrap", "--variant=minbase", "--include=" + strings.Join(spec.Packages, ","), suite, part},
		Timeout: 12 * time.Minute,
	})
	if err != nil {
		log, _ := os.ReadFile(filepath.Join(part, "debootstrap", "debootstrap.log"))
		os.RemoveAll(part)
		return fmt.Errorf("debootstrap failed; is a Debian mirror reachable? %w\n%s", err, tail(string(log), 1000))
	}
	_, err = Run(ctx, Cmd{Argv: []string{"chroot", part, "sh", "-c", spec.Setup}, Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}})
	if err != nil {
		os.RemoveAll(part)
		return fmt.Errorf("cannot set up the root file system: %w", err)
	}
	return os.Rename(part, dir)
}

// debianSuite is the release that this machine runs if it is Debian's, so that
// programs and kernel interfaces fit each other, and otherwise a known good one.
func debianSuite() string {
	const fallback = "bookworm"
	f, err := os.Open("/etc/os-release")
	if err != nil {
		return fallback
	}
	defer f.Close()
	values := map[string]string{}
	for s := bufio.NewScanner(f); s.Scan(); {
		if k, v, ok := strings.Cut(s.Text(), "="); ok {
			values[k] = strings.Trim(v, `"`)
		}
	}
	if values["ID"] == "debian" && values["VERSION_CODENAME"] != "" {
		return values["VERSION_CODENAME"]
	}
	return fallback
}
