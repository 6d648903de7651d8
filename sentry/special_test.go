package sentry

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"

	"gvisor.dev/gvisor/pkg/abi/linux"
	gverrors "gvisor.dev/gvisor/pkg/errors"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/lock"
	"gvisor.dev/gvisor/pkg/sentry/socket/unix/transport"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/usermem"

	"runsc-fs/blobfs"
)

func TestErrnoTable(t *testing.T) {
	for _, c := range []struct {
		err  error
		want *gverrors.Error
	}{
		{blobfs.ErrNotExist, linuxerr.ENOENT},
		{fmt.Errorf("deep: %w", fmt.Errorf("down: %w", blobfs.ErrNoSpace)), linuxerr.ENOSPC},
		{fmt.Errorf("block 7: %w", blobfs.ErrCorrupt), linuxerr.EUCLEAN},
		{blobfs.ErrXattrNameTooLong, linuxerr.ERANGE},
		{linuxerr.EFAULT, linuxerr.EFAULT},
		{fmt.Errorf("copying: %w", linuxerr.EFAULT), linuxerr.EFAULT},
		{errors.New("anything else"), linuxerr.EIO},
	} {
		if got := errno(c.err); got != error(c.want) {
			t.Errorf("%v becomes %v, not %v", c.err, got, c.want)
		}
	}
	if err := errno(nil); err != nil {
		t.Errorf("success becomes %v", err)
	}
}

func TestFIFO(t *testing.T) {
	e := newEnv(t)
	if err := e.vfs.MknodAt(e.ctx, e.ctx.creds, e.pop("p"), &vfs.MknodOptions{Mode: linux.S_IFIFO | 0600}); err != nil {
		t.Fatal(err)
	}
	_, err := e.open(e.ctx, "p", linux.O_WRONLY|linux.O_NONBLOCK, 0)
	wantErrno(t, "writer without a reader", err, linuxerr.ENXIO)
	r := e.mustOpen("p", linux.O_RDONLY|linux.O_NONBLOCK)
	w := e.mustOpen("p", linux.O_WRONLY|linux.O_NONBLOCK)
	e.write(w, "through the pipe")
	buf := make([]byte, 32)
	n, err := r.Read(e.ctx, usermem.BytesIOSequence(buf), vfs.ReadOptions{})
	if err != nil || string(buf[:n]) != "through the pipe" {
		t.Errorf("read %q, %v", buf[:n], err)
	}
	st, err := r.Stat(e.ctx, vfs.StatOptions{})
	if err != nil || st.Mode != linux.S_IFIFO|0600 {
		t.Errorf("mode %#o, %v", st.Mode, err)
	}
}

func TestDeviceFiles(t *testing.T) {
	e := newEnv(t)
	opts := &vfs.MknodOptions{Mode: linux.S_IFCHR | 0666, DevMajor: 4000, DevMinor: 70000}
	if err := e.vfs.MknodAt(e.ctx, e.ctx.creds, e.pop("dev"), opts); err != nil {
		t.Fatal(err)
	}
	if st := e.stat("dev"); st.Mode != linux.S_IFCHR|0666 || st.RdevMajor != 4000 || st.RdevMinor != 70000 {
		t.Errorf("mode %#o, device %d:%d", st.Mode, st.RdevMajor, st.RdevMinor)
	}
	_, err := e.open(e.ctx, "dev", linux.O_RDWR, 0)
	wantErrno(t, "open of a device that is not there", err, linuxerr.ENXIO)
	opts.DevMajor = 5000
	wantErrno(t, "device number out of range", e.vfs.MknodAt(e.ctx, e.ctx.creds, e.pop("dev2"), opts), linuxerr.EINVAL)
}

// endpoint is a transport.BoundEndpoint that is only there.
type endpoint struct{ transport.BoundEndpoint }

func TestSockets(t *testing.T) {
	e := newEnvWith(t, Config{DentryCacheEntries: 16}, 64<<20)
	ep := &endpoint{}
	if err := e.vfs.MknodAt(e.ctx, e.ctx.creds, e.pop("sock"), &vfs.MknodOptions{Mode: linux.S_IFSOCK | 0666, Endpoint: ep}); err != nil {
		t.Fatal(err)
	}
	// However full the cache, a bound socket stays bound.
	for n := range 400 {
		e.create(fmt.Sprint(n), "")
	}
	bound := func(path string) error {
		got, err := e.vfs.BoundEndpointAt(e.ctx, e.ctx.creds, e.pop(path), &vfs.BoundEndpointOptions{})
		if err == nil && got != transport.BoundEndpoint(ep) {
			t.Error("another endpoint came back")
		}
		return err
	}
	wantErrno(t, "connect", bound("sock"), nil)
	wantErrno(t, "connect to a file", bound("1"), linuxerr.ECONNREFUSED)
	_, err := e.open(e.ctx, "sock", linux.O_RDWR, 0)
	wantErrno(t, "open", err, linuxerr.ENXIO)
	wantErrno(t, "unlink", e.unlink(e.ctx, "sock"), nil)
	wantErrno(t, "connect after unlink", bound("sock"), linuxerr.ENOENT)
}

func TestLocks(t *testing.T) {
	e := newEnv(t)
	a := e.mustOpen("f", linux.O_CREAT|linux.O_RDWR)
	b := e.mustOpen("f", linux.O_RDWR)
	wantErrno(t, "flock", a.LockBSD(e.ctx, 1, lock.WriteLock, false), nil)
	if err := b.LockBSD(e.ctx, 1, lock.ReadLock, false); err != linuxerr.ErrWouldBlock {
		t.Errorf("conflicting flock: %v", err)
	}
	wantErrno(t, "unlock", a.UnlockBSD(e.ctx), nil)
	wantErrno(t, "flock after unlock", b.LockBSD(e.ctx, 1, lock.ReadLock, false), nil)
	r := lock.LockRange{Start: 0, End: 10}
	wantErrno(t, "range lock", a.LockPOSIX(e.ctx, "first", 1, lock.WriteLock, r, false), nil)
	if err := b.LockPOSIX(e.ctx, "second", 2, lock.WriteLock, r, false); err != linuxerr.ErrWouldBlock {
		t.Errorf("conflicting range lock: %v", err)
	}
	fl, err := b.TestPOSIX(e.ctx, "second", lock.WriteLock, r)
	if err != nil || fl.Type != linux.F_WRLCK || fl.PID != 1 {
		t.Errorf("F_GETLK: %+v, %v", fl, err)
	}
	wantErrno(t, "range unlock", a.UnlockPOSIX(e.ctx, "first", r), nil)
	wantErrno(t, "range lock after unlock", b.LockPOSIX(e.ctx, "second", 2, lock.WriteLock, r, false), nil)
}

// events reads all events of an inotify instance as text.
func (e *env) events(fd *vfs.FileDescription) []string {
	e.t.Helper()
	var out []string
	buf := make([]byte, 64<<10)
	n, err := fd.Read(e.ctx, usermem.BytesIOSequence(buf), vfs.ReadOptions{})
	if err != nil && err != linuxerr.ErrWouldBlock {
		e.t.Fatal(err)
	}
	for b := buf[:n]; len(b) >= 16; {
		mask, size := binary.LittleEndian.Uint32(b[4:]), binary.LittleEndian.Uint32(b[12:])
		name := strings.TrimRight(string(b[16:16+size]), "\x00")
		out = append(out, fmt.Sprintf("%#x %s", mask, name))
		b = b[16+size:]
	}
	return out
}

func TestInotify(t *testing.T) {
	e := newEnvWith(t, Config{DentryCacheEntries: 16}, 64<<20)
	e.mkdir("d")
	e.create("d/f", "")
	ino, err := vfs.NewInotifyFD(e.ctx, e.vfs, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer ino.DecRef(e.ctx)
	watch := func(path string) {
		vd, err := e.vfs.GetDentryAt(e.ctx, e.ctx.creds, e.pop(path), &vfs.GetDentryOptions{})
		if err != nil {
			t.Fatal(err)
		}
		ino.Impl().(*vfs.Inotify).AddWatch(vd.Dentry(), linux.IN_ALL_EVENTS)
		vd.DecRef(e.ctx)
	}
	watch("d")
	watch("d/f")
	// A watched file stays watched, however full the cache.
	for n := range 400 {
		e.create(fmt.Sprint(n), "")
	}
	has := func(what string, want ...string) {
		t.Helper()
		got := e.events(ino)
		for _, w := range want {
			found := false
			for _, g := range got {
				found = found || g == w
			}
			if !found {
				t.Errorf("%s: event %q is missing in %q", what, w, got)
			}
		}
	}
	fd := e.mustOpen("d/f", linux.O_RDWR)
	e.write(fd, "x")
	has("write", fmt.Sprintf("%#x f", linux.IN_OPEN), fmt.Sprintf("%#x f", linux.IN_MODIFY), fmt.Sprintf("%#x ", linux.IN_MODIFY))
	e.create("d/g", "")
	has("create", fmt.Sprintf("%#x g", linux.IN_CREATE))
	e.mkdir("d/sub")
	has("mkdir", fmt.Sprintf("%#x sub", uint32(linux.IN_CREATE|linux.IN_ISDIR)))
	e.chmod("d/f", 0600)
	has("chmod", fmt.Sprintf("%#x f", linux.IN_ATTRIB), fmt.Sprintf("%#x ", linux.IN_ATTRIB))
	wantErrno(t, "rename", e.rename(e.ctx, "d/f", "d/h", 0), nil)
	has("rename", fmt.Sprintf("%#x f", linux.IN_MOVED_FROM), fmt.Sprintf("%#x h", linux.IN_MOVED_TO), fmt.Sprintf("%#x ", linux.IN_MOVE_SELF))
	wantErrno(t, "rmdir", e.rmdir(e.ctx, "d/sub"), nil)
	has("rmdir", fmt.Sprintf("%#x sub", uint32(linux.IN_DELETE|linux.IN_ISDIR)))
	wantErrno(t, "unlink", e.unlink(e.ctx, "d/h"), nil)
	has("unlink", fmt.Sprintf("%#x h", linux.IN_DELETE), fmt.Sprintf("%#x ", linux.IN_ATTRIB))
	e.create("d/last", "")
	wantErrno(t, "unlink", e.unlink(e.ctx, "d/last"), nil)
	e.events(ino)
	e.create("d/w", "")
	watch("d/w")
	e.events(ino)
	wantErrno(t, "unlink", e.unlink(e.ctx, "d/w"), nil)
	has("removal of a watched file", fmt.Sprintf("%#x ", linux.IN_DELETE_SELF), fmt.Sprintf("%#x ", linux.IN_IGNORED))
	e.create("d/old", "")
	watch("d/old")
	e.create("d/new", "")
	e.events(ino)
	wantErrno(t, "rename", e.rename(e.ctx, "d/new", "d/old", 0), nil)
	has("replacement of a watched file", fmt.Sprintf("%#x ", linux.IN_ATTRIB), fmt.Sprintf("%#x ", linux.IN_DELETE_SELF))
}
