package sentry

import (
	"bytes"
	goContext "context"
	"io"
	"sync/atomic"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/context"
	"gvisor.dev/gvisor/pkg/fspath"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/limits"
	"gvisor.dev/gvisor/pkg/sentry/uniqueid"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/usermem"
)

// testContext is what a task's context offers to a file system.
type testContext struct {
	context.Context
	env   *env
	creds *auth.Credentials
}

var lastUniqueID atomic.Uint64

// Value implements context.Context.
func (c *testContext) Value(key any) any {
	switch key {
	case auth.CtxCredentials:
		return c.creds
	case limits.CtxLimits:
		return c.env.limits
	case vfs.CtxMountNamespace:
		if c.env.mntns == nil {
			return nil
		}
		c.env.mntns.IncRef()
		return c.env.mntns
	case vfs.CtxRoot:
		root := c.env.root
		root.IncRef()
		return root
	case uniqueid.CtxGlobalUniqueID:
		return lastUniqueID.Add(1)
	case uniqueid.CtxInotifyCookie:
		return uint32(lastUniqueID.Add(1))
	}
	return c.Context.Value(key)
}

// env is a virtual file system whose root is a volume in memory.
type env struct {
	t      testing.TB
	vfs    *vfs.VirtualFilesystem
	mntns  *vfs.MountNamespace
	root   vfs.VirtualDentry
	limits *limits.LimitSet
	ctx    *testContext // of root
}

const testVolume = "vol"

// newRegistry replaces the registry of the process for the time of a test.
func newRegistry(t testing.TB, cfg Config) {
	t.Helper()
	volumes = &registry{}
	if cfg.ArenaBytes == 0 {
		cfg.ArenaBytes = 32 << 20
	}
	cfg.Logf = func(format string, args ...any) { t.Logf(format, args...) }
	if err := Setup(cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := goContext.WithTimeout(goContext.Background(), 30*time.Second)
		defer cancel()
		if err := Shutdown(ctx); err != nil {
			t.Errorf("Shutdown: %v", err)
		}
	})
}

func newEnv(t testing.TB) *env { return newEnvWith(t, Config{}, 64<<20) }

func newEnvWith(t testing.TB, cfg Config, volumeBytes int64) *env {
	t.Helper()
	newRegistry(t, cfg)
	if err := AddVolume(VolumeSpec{Name: testVolume, Kind: KindMemory, SizeBytes: volumeBytes}); err != nil {
		t.Fatal(err)
	}
	return mountEnv(t)
}

// mountEnv mounts the test volume as the root of a new virtual file system.
func mountEnv(t testing.TB) *env {
	t.Helper()
	e := &env{t: t, vfs: &vfs.VirtualFilesystem{}, limits: limits.NewLimitSet()}
	e.ctx = e.as(rootCreds())
	if err := e.vfs.Init(e.ctx); err != nil {
		t.Fatal(err)
	}
	if err := Register(e.vfs); err != nil {
		t.Fatal(err)
	}
	mntns, err := e.vfs.NewMountNamespace(e.ctx, e.ctx.creds, testVolume, FilesystemName, &vfs.MountOptions{
		GetFilesystemOptions: vfs.GetFilesystemOptions{InternalMount: true},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	e.mntns = mntns
	e.root = mntns.Root(e.ctx)
	t.Cleanup(e.unmount)
	return e
}

func (e *env) unmount() {
	if e.mntns == nil {
		return
	}
	e.root.DecRef(e.ctx)
	ns := e.mntns
	e.mntns = nil
	ns.DecRef(e.ctx)
}

func (e *env) fs() *filesystem { return e.root.Mount().Filesystem().Impl().(*filesystem) }

func rootCreds() *auth.Credentials {
	return auth.NewRootCredentials(auth.NewRootUserNamespace())
}

// as returns a context with other credentials.
func (e *env) as(creds *auth.Credentials) *testContext {
	return &testContext{Context: context.Background(), env: e, creds: creds}
}

// user returns a context of an ordinary user.
func (e *env) user(uid uint32, groups ...uint32) *testContext {
	kgids := make([]auth.KGID, len(groups))
	for n, g := range groups {
		kgids[n] = auth.KGID(g)
	}
	ns := e.ctx.creds.UserNamespace
	return e.as(auth.NewUserCredentials(auth.KUID(uid), auth.KGID(uid), kgids, nil, ns))
}

func (e *env) pop(path string) *vfs.PathOperation {
	return &vfs.PathOperation{Root: e.root, Start: e.root, Path: fspath.Parse(path)}
}

func (e *env) follow(path string) *vfs.PathOperation {
	pop := e.pop(path)
	pop.FollowFinalSymlink = true
	return pop
}

func (e *env) open(ctx *testContext, path string, flags uint32, mode linux.FileMode) (*vfs.FileDescription, error) {
	return e.vfs.OpenAt(ctx, ctx.creds, e.follow(path), &vfs.OpenOptions{Flags: flags, Mode: mode})
}

// mustOpen opens path as root and closes it at the end of the test.
func (e *env) mustOpen(path string, flags uint32) *vfs.FileDescription {
	e.t.Helper()
	fd, err := e.open(e.ctx, path, flags, 0644)
	if err != nil {
		e.t.Fatalf("open %s with %#o: %v", path, flags, err)
	}
	e.t.Cleanup(func() { fd.DecRef(e.ctx) })
	return fd
}

// create makes a regular file with the given content.
func (e *env) create(path, content string) {
	e.t.Helper()
	fd, err := e.open(e.ctx, path, linux.O_CREAT|linux.O_EXCL|linux.O_WRONLY, 0644)
	if err != nil {
		e.t.Fatalf("create %s: %v", path, err)
	}
	defer fd.DecRef(e.ctx)
	if content != "" {
		e.write(fd, content)
	}
}

func (e *env) write(fd *vfs.FileDescription, content string) {
	e.t.Helper()
	n, err := fd.Write(e.ctx, usermem.BytesIOSequence([]byte(content)), vfs.WriteOptions{})
	if err != nil || n != int64(len(content)) {
		e.t.Fatalf("write of %d bytes: %d, %v", len(content), n, err)
	}
}

func (e *env) pread(fd *vfs.FileDescription, off int64, size int) string {
	e.t.Helper()
	buf := make([]byte, size)
	n, err := fd.PRead(e.ctx, usermem.BytesIOSequence(buf), off, vfs.ReadOptions{})
	if err != nil && err != io.EOF {
		e.t.Fatalf("pread at %d: %v", off, err)
	}
	return string(buf[:n])
}

func (e *env) content(path string) string {
	e.t.Helper()
	fd, err := e.open(e.ctx, path, linux.O_RDONLY, 0)
	if err != nil {
		e.t.Fatalf("open %s: %v", path, err)
	}
	defer fd.DecRef(e.ctx)
	var out bytes.Buffer
	for {
		s := e.pread(fd, int64(out.Len()), 64<<10)
		if s == "" {
			return out.String()
		}
		out.WriteString(s)
	}
}

func (e *env) mkdir(path string) {
	e.t.Helper()
	if err := e.vfs.MkdirAt(e.ctx, e.ctx.creds, e.pop(path), &vfs.MkdirOptions{Mode: 0755}); err != nil {
		e.t.Fatalf("mkdir %s: %v", path, err)
	}
}

func (e *env) symlink(target, path string) {
	e.t.Helper()
	if err := e.vfs.SymlinkAt(e.ctx, e.ctx.creds, e.pop(path), target); err != nil {
		e.t.Fatalf("symlink %s: %v", path, err)
	}
}

func (e *env) stat(path string) linux.Statx {
	e.t.Helper()
	st, err := e.vfs.StatAt(e.ctx, e.ctx.creds, e.pop(path), &vfs.StatOptions{Mask: linux.STATX_ALL})
	if err != nil {
		e.t.Fatalf("stat %s: %v", path, err)
	}
	return st
}

func (e *env) chmod(path string, mode uint16) {
	e.t.Helper()
	if err := e.setStat(e.ctx, path, linux.Statx{Mask: linux.STATX_MODE, Mode: mode}); err != nil {
		e.t.Fatalf("chmod %s: %v", path, err)
	}
}

func (e *env) chown(path string, uid, gid uint32) {
	e.t.Helper()
	if err := e.setStat(e.ctx, path, linux.Statx{Mask: linux.STATX_UID | linux.STATX_GID, UID: uid, GID: gid}); err != nil {
		e.t.Fatalf("chown %s: %v", path, err)
	}
}

func (e *env) setStat(ctx *testContext, path string, st linux.Statx) error {
	clear := st.Mask&(linux.STATX_UID|linux.STATX_GID|linux.STATX_SIZE) != 0
	return e.vfs.SetStatAt(ctx, ctx.creds, e.pop(path), &vfs.SetStatOptions{Stat: st, ClearPrivs: clear, NeedWritePerm: st.Mask&linux.STATX_SIZE != 0})
}

func (e *env) rename(ctx *testContext, from, to string, flags uint32) error {
	return e.vfs.RenameAt(ctx, ctx.creds, e.pop(from), e.pop(to), &vfs.RenameOptions{Flags: flags})
}

func (e *env) unlink(ctx *testContext, path string) error {
	return e.vfs.UnlinkAt(ctx, ctx.creds, e.pop(path))
}

func (e *env) rmdir(ctx *testContext, path string) error {
	return e.vfs.RmdirAt(ctx, ctx.creds, e.pop(path))
}

func (e *env) link(ctx *testContext, from, to string) error {
	return e.vfs.LinkAt(ctx, ctx.creds, e.pop(from), e.pop(to))
}

// list returns the names in a directory in the order of the listing.
func (e *env) list(path string) []string {
	e.t.Helper()
	fd := e.mustOpen(path, linux.O_RDONLY|linux.O_DIRECTORY)
	var names []string
	err := fd.IterDirents(e.ctx, vfs.IterDirentsCallbackFunc(func(d vfs.Dirent) error {
		names = append(names, d.Name)
		return nil
	}))
	if err != nil {
		e.t.Fatalf("listing %s: %v", path, err)
	}
	return names
}

// exists says whether path names a file.
func (e *env) exists(path string) bool {
	_, err := e.vfs.StatAt(e.ctx, e.ctx.creds, e.pop(path), &vfs.StatOptions{})
	return err == nil
}

// checkTree verifies the references of the whole tree: every dentry has those
// of its children, one of the tree, and what the caller says it holds.
func (e *env) checkTree(held map[string]int64) {
	e.t.Helper()
	fs := e.fs()
	fs.renameMu.Lock()
	defer fs.renameMu.Unlock()
	entries := int64(0)
	var visit func(d *dentry, path string)
	visit = func(d *dentry, path string) {
		want := int64(1) + held[path]
		if d.dir != nil {
			want += int64(len(d.dir.children))
			for name, child := range d.dir.children {
				entries++
				if child.name != name || child.parent.Load() != d {
					e.t.Errorf("%s/%s: dentry says %q", path, name, child.name)
				}
				visit(child, path+"/"+name)
			}
		}
		if got := d.refs.Load(); got != want {
			e.t.Errorf("dentry %q has %d references, not %d", path, got, want)
		}
	}
	visit(fs.root, "")
	if got := fs.cache.count.Load(); got != entries {
		e.t.Errorf("the cache counts %d entries, the tree has %d", got, entries)
	}
}
