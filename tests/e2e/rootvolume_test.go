package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"runsc-fs/tests/lab"
)

// rootBundle is a container whose root file system is written to a volume.
func rootBundle(script, volume string) lab.BundleSpec {
	b := bundle(script)
	b.Writable = true
	b.Annotations = map[string]string{"dev.runsc-fs.root-volume": volume}
	return b
}

// TestRootVolume changes the root file system in all ways that an overlay has a
// notion for, kills the sandbox after a sync, and finds the changes again, and
// the image as it was.
func TestRootVolume(t *testing.T) {
	v := newVolume(t, "--size=256M")
	c := start(t, rootBundle("sleep 600", v))
	execIn(t, c, `set -e
stat -c '%a %u' / > /root-was
echo new > /new
echo line >> /etc/passwd
rm /etc/hostname || : # in the image or not
rm /etc/shells
mkdir -p /opt/a/b
rm -r /etc/apt
mkdir /etc/apt
echo only > /etc/apt/only
mv /etc/cron.daily /etc/cron.moved
mknod /null c 1 3
mkfifo /fifo
ln -s new /link
ln /new /hard
python3 -c 'import os; os.setxattr("/new", "user.colour", b"red")'
chown 1234:5678 /opt/a
chmod 2750 /opt
sync`)
	// One file by its own fsync, which nothing else makes durable.
	execIn(t, c, `dd if=/dev/urandom of=/usr/share/synced bs=4k count=10 conv=fsync 2>/dev/null; sha256sum < /usr/share/synced > /tmp/sum; dd if=/tmp/sum of=/usr/share/sum conv=fsync 2>/dev/null`)
	must(t, c.KillSandbox(testContext(t, time.Minute)))
	must(t, c.Delete(testContext(t, time.Minute)))

	out := run(t, rootBundle(`[ "$(stat -c '%a %u' /)" = "$(cat /root-was)" ] && echo root as it was
cat /new; tail -1 /etc/passwd
ls /etc/shells /etc/cron.daily 2>&1 | grep -c 'No such file'
ls /etc/apt; ls /etc/cron.moved | head -1 | wc -l
ls -l /null | awk '{print $5 $6}'; stat -c %t,%T /null; stat -c %F /fifo; readlink /link; stat -c %h /hard
python3 -c 'import os; print(os.getxattr("/new", "user.colour").decode())'
stat -c '%u:%g %a' /opt/a /opt
[ "$(sha256sum < /usr/share/synced)" = "$(cat /usr/share/sum)" ] && echo synced
df --output=fstype / | tail -1`, v))
	const want = `root as it was
new
line
2
only
1
1,3
1,3
fifo
new
2
red
1234:5678 755
0:0 2750
synced
overlay
`
	if out != want {
		t.Errorf("the next container prints\n%s\nwant\n%s", out, want)
	}
	// The layer as it lies on the volume, and the image, which has nothing of it.
	out = run(t, bundle(`stat -c '%F %t,%T' /layer/etc/shells; ls /new /layer/new 2>&1 | sed 's/.*cannot access //'`, lab.VolumeMount(v, "/layer")))
	if want := "character special file 0,0\n'/new': No such file or directory\n/layer/new\n"; out != want {
		t.Errorf("below it lies\n%s\nwant\n%s", out, want)
	}
}

// TestRootVolumeSynced kills the sandbox while names and content of the root file
// system change, each synced before it is reported.
func TestRootVolumeSynced(t *testing.T) {
	v := newVolume(t, "--size=256M")
	c := start(t, rootBundle(`python3 -c '
import os
n = 0
while True:
    name = "/srv/f%d" % n
    fd = os.open(name + ".tmp", os.O_CREAT | os.O_WRONLY)
    os.write(fd, b"%d\n" % n)
    os.fsync(fd)
    os.rename(name + ".tmp", name)
    d = os.open("/srv", os.O_RDONLY)
    os.fsync(d)
    os.close(fd)
    os.close(d)
    print(n, flush=True)
    n += 1
'`, v))
	must(t, lab.WaitFor(testContext(t, time.Minute), "files of the container", time.Minute, func() (bool, error) { return strings.Count(c.Output(), "\n") > 200, nil }))
	must(t, c.KillSandbox(testContext(t, time.Minute)))
	reported := strings.Count(c.Output(), "\n")
	must(t, c.Delete(testContext(t, time.Minute)))
	out := run(t, rootBundle(`n=0; while [ "$(cat /srv/f$n 2>/dev/null)" = $n ]; do n=$((n+1)); done; echo $n`, v))
	var found int
	if _, err := fmt.Sscan(out, &found); err != nil || found < reported {
		t.Errorf("%d files were reported as synced, found %q", reported, out)
	}
}

// TestRootVolumeErrors has the mistakes that can be made.
func TestRootVolumeErrors(t *testing.T) {
	v := newVolume(t, "--size=64M")
	for _, c := range []struct {
		what  string
		b     lab.BundleSpec
		words []string
	}{
		{"unknown", rootBundle("true", "nosuch"), []string{`volume "nosuch" does not exist`, "volume create nosuch"}},
		{"twice", func() lab.BundleSpec {
			b := rootBundle("true", v)
			b.Mounts = append(b.Mounts, lab.VolumeMount(v, "/data"))
			return b
		}(), []string{v, "is the root volume of the container", "use another one"}},
		{"read-only", bundle("true", lab.VolumeMount(v, "/", "ro")), []string{v, "cannot be read-only", "root.readonly"}},
	} {
		t.Run(c.what, func(t *testing.T) {
			res, err := plainRuntime(t).Run(testContext(t, time.Minute), c.b, time.Minute)
			wantError(t, res, err, c.words...)
		})
	}
	if out := run(t, func() lab.BundleSpec {
		b := rootBundle("touch /x 2>&1 | grep -c 'Read-only file system'", v)
		b.Writable = false
		return b
	}()); out != "1\n" {
		t.Errorf("a read-only root file system: %q", out)
	}
}

// TestOverlayOnVolume mounts an overlay in a container, with its upper layer on a
// volume, and has it hide, replace and keep what lies below.
func TestOverlayOnVolume(t *testing.T) {
	v := newVolume(t, "--size=64M")
	const mount = `mkdir -p /data/upper /data/work /tmp/lower/dir /tmp/lower/gone /tmp/m
echo low > /tmp/lower/file; echo low > /tmp/lower/dir/file; echo low > /tmp/lower/kept
mount -t overlay overlay -o lowerdir=/tmp/lower,upperdir=/data/upper,workdir=/data/work /tmp/m || exit
`
	b := bundle(mount+`cd /tmp/m; echo high > file; rm -r dir gone; mkdir dir; touch dir/new; mv kept moved; sync; cat file moved; ls . dir`, lab.VolumeMount(v, "/data"))
	b.Capabilities = []string{"CAP_SYS_ADMIN"}
	const want = "high\nlow\n.:\ndir\nfile\nmoved\n\ndir:\nnew\n"
	if out := run(t, b); out != want {
		t.Errorf("the overlay has\n%s\nwant\n%s", out, want)
	}
	b.Args[len(b.Args)-1] = mount + `cd /tmp/m; cat file moved; ls . dir`
	if out := run(t, b); out != want {
		t.Errorf("mounted again it has\n%s\nwant\n%s", out, want)
	}
}
