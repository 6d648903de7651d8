package e2e

import (
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"runsc-fs/tests/lab"
)

// tools is a container with programs that use more of a file system than others
// do. It ends at the first command that fails.
func tools(t *testing.T, script string, mounts ...specs.Mount) lab.BundleSpec {
	t.Helper()
	lab.Need(t)
	rootfs, err := lab.RootFS(testContext(t, 20*time.Minute), progress, lab.ToolsRootFS)
	must(t, err)
	return lab.BundleSpec{RootFS: rootfs, Args: []string{"sh", "-e", "-c", script}, Mounts: mounts}
}

// TestAccessControlLists has the usual programs set, show, copy and obey lists.
func TestAccessControlLists(t *testing.T) {
	v := lab.VolumeMount(newVolume(t, "--size=64M"), "/data")
	out := run(t, tools(t, `
		cd /data
		umask 077
		mkdir tree
		setfacl -m u:games:rwx,g:mail:rx,d:u:games:rw tree
		echo secret > tree/file
		setfacl -m u:games:r tree/file
		setfattr -n user.note -v text tree/file
		getfacl -Rc tree
		setpriv --reuid=games --clear-groups cat tree/file
		if setpriv --reuid=bin --clear-groups cat tree/file 2>/dev/null; then echo "bin reads"; fi
		if setpriv --reuid=games --clear-groups sh -c 'echo more >> tree/file' 2>/dev/null; then echo "games writes"; fi
		getfacl -R tree > lists
		cp -a tree tree.cp
		rsync -aHAX tree/ tree.rsync/
		mkdir tree.tar
		tar --acls --xattrs -cf - -C tree . | tar --acls --xattrs -xpf - -C tree.tar
		for copy in cp rsync tar; do
			getfacl -R tree.$copy | sed s/tree.$copy/tree/ | diff lists -
			getfattr --only-values -n user.note tree.$copy/file
			echo
		done
		ls -ld tree/file | cut -c1-11
		chmod g-r tree/file
		getfacl -c tree/file | grep mask
		setfacl -b tree/file
		ls -ld tree/file | cut -c1-10
		setfacl --restore=lists
		getfacl -R tree | diff lists -
	`, v))
	for _, want := range []string{
		"user:games:rwx\ngroup::---\ngroup:mail:r-x\nmask::rwx\nother::---\n", "default:user:games:rw-",
		"secret\ntext\ntext\ntext\n-rw-r-----+\nmask::---\n-rw-------\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("the container lacks %q", want)
		}
	}
	if strings.Contains(out, "bin reads") || strings.Contains(out, "games writes") || t.Failed() {
		t.Errorf("the container says:\n%s", out)
	}
	// What is on the volume is there for the next container.
	out = run(t, tools(t, "cd /data; getfacl -R tree | diff lists - && echo same", v))
	if out != "same\n" {
		t.Errorf("lists have changed on the way to the next container:\n%s", out)
	}
}

// TestFileFlags has chattr set what the file system has to enforce.
func TestFileFlags(t *testing.T) {
	v := lab.VolumeMount(newVolume(t, "--size=64M"), "/data")
	b := tools(t, `
		cd /data
		echo content > file
		mkdir dir
		chattr +i file
		chattr -p 7 +aP dir
		lsattr -d file dir
		lsattr -pd dir
		touch dir/new
		lsattr -p dir/new | cut -c1-7
		for change in 'echo more >> file' 'rm -f file' 'mv file moved' 'chmod 600 file' 'rm dir/new' 'ln file dir/file'; do
			if sh -c "$change" 2>/dev/null; then echo "$change works"; fi
		done
		chattr -i file
		chattr -a dir
		rm file dir/new
	`, v)
	b.Capabilities = []string{"CAP_LINUX_IMMUTABLE"}
	out := run(t, b)
	want := "----i----------------- file\n-----a-----------------P"
	if !strings.HasPrefix(out, want[:5]) || strings.Contains(out, "works") || !strings.Contains(out, "    7 ") {
		t.Errorf("the container says:\n%s", out)
	}
	b = tools(t, "cd /data; echo content > file; if chattr +i file; then echo works; fi 2>/dev/null", v)
	if out := run(t, b); out != "" {
		t.Errorf("without CAP_LINUX_IMMUTABLE the container says: %s", out)
	}
}

// TestFileMap has filefrag show where a file lies.
func TestFileMap(t *testing.T) {
	v := lab.VolumeMount(newVolume(t, "--size=64M"), "/data")
	out := run(t, tools(t, `
		cd /data
		dd if=/dev/urandom of=file bs=1M count=1 status=none
		truncate -s 4M file
		fallocate -o 2M -l 1M file
		filefrag -sve file
	`, v))
	for _, want := range []string{"blocks of 4096 bytes", "0..     255", "512..     767", "last,unwritten", ": 1 extent found"} {
		if !strings.Contains(out, want) {
			t.Errorf("filefrag does not show %q:\n%s", want, out)
		}
	}
}

// TestTrimGivesSpaceBack has fstrim in the container make the image on the host
// smaller.
func TestTrimGivesSpaceBack(t *testing.T) {
	name := newVolume(t, "--size=256M")
	allocated := func() int64 {
		var st unix.Stat_t
		must(t, unix.Stat(inspect(t, name).Image, &st))
		return st.Blocks * 512
	}
	b := tools(t, `
		cd /data
		dd if=/dev/urandom of=keep bs=1M count=20 status=none
		dd if=/dev/urandom of=file bs=1M count=100 status=none
		sha256sum keep > /data/sum
		sync
		rm file
		fstrim -v /data
		sha256sum -c sum
	`, lab.VolumeMount(name, "/data"))
	b.Capabilities = []string{"CAP_SYS_ADMIN"}
	out := run(t, b)
	if got := allocated(); got > 80<<20 || got < 20<<20 {
		t.Errorf("after fstrim the image takes %d bytes of the host's disk:\n%s", got, out)
	}
}
