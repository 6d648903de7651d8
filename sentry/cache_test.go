package sentry

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
)

// TestCacheBound looks at many more names than the cache holds, existing and
// not.
func TestCacheBound(t *testing.T) {
	const limit = 64
	e := newEnvWith(t, Config{DentryCacheEntries: limit}, 128<<20)
	for d := range 10 {
		e.mkdir(fmt.Sprintf("d%d", d))
		for n := range 100 {
			e.create(fmt.Sprintf("d%d/f%d", d, n), "")
		}
	}
	held := e.mustOpen("d3/f33", linux.O_RDWR)
	e.write(held, "held")
	for round := range 3 {
		for d := range 10 {
			for n := range 100 {
				if !e.exists(fmt.Sprintf("d%d/f%d", d, n)) {
					t.Fatalf("round %d: d%d/f%d is gone", round, d, n)
				}
				if e.exists(fmt.Sprintf("d%d/missing%d", d, n)) {
					t.Fatalf("round %d: d%d/missing%d is there", round, d, n)
				}
			}
		}
	}
	if got := e.fs().cache.count.Load(); got > limit+evictSlack+evictBatch {
		t.Errorf("the cache holds %d entries, its limit is %d", got, limit)
	}
	if got := e.content("d3/f33"); got != "held" {
		t.Errorf("an open file reads %q through its name", got)
	}
	e.checkTree(map[string]int64{"": 2, "/d3/f33": 1})
	fs := e.fs()
	fs.inodesMu.Lock()
	inodes := int64(len(fs.inodes))
	fs.inodesMu.Unlock()
	if inodes > fs.cache.count.Load()+1 {
		t.Errorf("%d inodes for %d dentries", inodes, fs.cache.count.Load())
	}
}

// TestNegativeEntries checks that names known not to exist come into being.
func TestNegativeEntries(t *testing.T) {
	e := newEnv(t)
	e.mkdir("d")
	for _, make := range []struct {
		name string
		fn   func(path string) error
	}{
		{"create", func(p string) error { e.create(p, ""); return nil }},
		{"mkdir", func(p string) error { e.mkdir(p); return nil }},
		{"symlink", func(p string) error { e.symlink("x", p); return nil }},
		{"link", func(p string) error { e.create("src", ""); return e.link(e.ctx, "src", p) }},
		{"rename", func(p string) error { e.create("src2", ""); return e.rename(e.ctx, "src2", p, 0) }},
		{"mknod", func(p string) error {
			return e.vfs.MknodAt(e.ctx, e.ctx.creds, e.pop(p), &vfs.MknodOptions{Mode: linux.S_IFIFO | 0600})
		}},
	} {
		path := "d/" + make.name
		if e.exists(path) {
			t.Fatalf("%s exists", path)
		}
		wantErrno(t, make.name, make.fn(path), nil)
		if !e.exists(path) {
			t.Errorf("after %s the name is still unknown", make.name)
		}
	}
	e.checkTree(map[string]int64{"": 2})
}

// TestConcurrentNames lets several goroutines change one small tree at random
// with a cache that is always full, and checks that what remains is
// consistent: with the volume, and with itself.
func TestConcurrentNames(t *testing.T) {
	e := newEnvWith(t, Config{DentryCacheEntries: 8}, 128<<20)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	dirs := []string{"a", "b", "a/c", "b/d"}
	for _, d := range dirs {
		e.mkdir(d)
	}
	allowed := []error{
		linuxerr.ENOENT, linuxerr.EEXIST, linuxerr.ENOTDIR, linuxerr.EISDIR, linuxerr.ENOTEMPTY, linuxerr.EINVAL, linuxerr.EBUSY,
	}
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			rng := rand.New(rand.NewPCG(seed, uint64(g)))
			path := func() string { return fmt.Sprintf("%s/%d", dirs[rng.IntN(len(dirs))], rng.IntN(12)) }
			for range 1500 {
				var err error
				switch rng.IntN(8) {
				case 0, 1:
					var fd *vfs.FileDescription
					if fd, err = e.open(e.ctx, path(), linux.O_CREAT|linux.O_RDWR, 0644); err == nil {
						fd.DecRef(e.ctx)
					}
				case 2:
					err = e.unlink(e.ctx, path())
				case 3:
					err = e.rename(e.ctx, path(), path(), uint32(rng.IntN(3)))
				case 4:
					err = e.vfs.MkdirAt(e.ctx, e.ctx.creds, e.pop(path()), &vfs.MkdirOptions{Mode: 0755})
				case 5:
					err = e.rmdir(e.ctx, path())
				case 6:
					err = e.link(e.ctx, path(), path())
				default:
					_, err = e.vfs.StatAt(e.ctx, e.ctx.creds, e.pop(path()+"/x"), &vfs.StatOptions{})
				}
				known := err == nil || linuxerr.Equals(linuxerr.EPERM, err) // link of a directory
				for _, a := range allowed {
					known = known || err == a
				}
				if !known {
					t.Errorf("unexpected error: %v", err)
					return
				}
			}
		}()
	}
	wg.Wait()
	e.checkTree(map[string]int64{"": 2})
	for _, d := range append(dirs, "/") {
		for _, name := range e.list(d) {
			if !e.exists(d + "/" + name) {
				t.Errorf("%s/%s is listed but not found", d, name)
			}
		}
	}
}
