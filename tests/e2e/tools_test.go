package e2e

import (
	"strings"
	"testing"
	"time"

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
