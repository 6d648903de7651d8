package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime/debug"
	"sort"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	stormThreads = 12
	stormFiles   = 7
	stormBytes   = 3 << 20 // files grow to about this size
	// hangLimit is how long one operation may take on a busy machine.
	hangLimit = 90 * time.Second
)

// storm has threads do all kinds of operations on the same few files. Nothing is
// expected of single results, since others interfere; but every call must come
// back, and afterwards all ways to read a file must agree.
func storm(dir string, seconds int, seed uint64) {
	must(os.MkdirAll(filepath.Join(dir, "d"), 0o755))
	deadline := time.Now().Add(time.Duration(seconds) * time.Second)
	var wg sync.WaitGroup
	var beats [stormThreads]beat
	for k := range stormThreads {
		wg.Add(1)
		go func() {
			defer wg.Done()
			t := &thread{rnd: rand.New(rand.NewPCG(seed, uint64(k))), dir: dir, beat: &beats[k]}
			for time.Now().Before(deadline) {
				t.round()
			}
			beats[k].what.Store("ended")
			t.unmapAll()
		}()
	}
	finished := make(chan struct{})
	go watch(beats[:], finished)
	wg.Wait()
	close(finished)
	total := int64(0)
	for k := range beats {
		total += beats[k].count.Load()
	}
	fmt.Printf("%d operations\n", total)
	agree(dir)
}

// beat shows what a thread does.
type beat struct {
	count atomic.Int64
	what  atomic.Value // string
}

func watch(beats []beat, finished chan struct{}) {
	var last [stormThreads]int64
	since := [stormThreads]time.Time{}
	for k := range since {
		since[k] = time.Now()
	}
	for {
		select {
		case <-finished:
			return
		case <-time.After(time.Second):
		}
		for k := range beats {
			what, _ := beats[k].what.Load().(string)
			if n := beats[k].count.Load(); n != last[k] || what == "ended" {
				last[k], since[k] = n, time.Now()
			} else if time.Since(since[k]) > hangLimit {
				fmt.Printf("WRONG thread %d hangs in %s\n", k, what)
				os.Exit(1)
			}
		}
	}
}

type thread struct {
	rnd  *rand.Rand
	dir  string
	beat *beat
	maps [][]byte
	name string
}

func (t *thread) n(limit int) int { return t.rnd.IntN(limit) }

func (t *thread) path() string {
	if t.n(4) == 0 {
		return filepath.Join(t.dir, "d", fmt.Sprintf("s%d", t.n(stormFiles)))
	}
	return filepath.Join(t.dir, fmt.Sprintf("s%d", t.n(stormFiles)))
}

func (t *thread) offset() int64 {
	off := int64(t.n(stormBytes))
	switch t.n(4) {
	case 0:
		return off
	case 1:
		return off &^ 511
	}
	return off &^ 4095
}

func (t *thread) length() int {
	switch t.n(5) {
	case 0:
		return t.n(100) + 1
	case 1:
		return t.n(300 << 10)
	}
	return (t.n(16) + 1) * 4096
}

// memory is a buffer: ordinary memory, or a mapping of some file.
func (t *thread) memory(n int) []byte {
	if len(t.maps) > 0 && t.n(2) == 0 {
		m := t.maps[t.n(len(t.maps))]
		if n < len(m) {
			from := t.n(len(m) - n)
			if t.n(2) == 0 {
				from &^= 4095
			}
			return m[from : from+n]
		}
		return m
	}
	b := make([]byte, n+4096)
	skip := int(-uintptr(unsafe.Pointer(&b[0])) & 4095)
	if t.n(8) == 0 {
		skip = t.n(4096)
	}
	for k := skip; k < skip+n; k += 97 {
		b[k] = byte(t.n(256))
	}
	return b[skip : skip+n]
}

// round opens a file and does a few operations.
func (t *thread) round() {
	flags := unix.O_RDWR | unix.O_CREAT
	if t.n(4) == 0 {
		flags |= unix.O_DIRECT
	}
	if t.n(16) == 0 {
		flags |= unix.O_DSYNC
	}
	if t.n(400) == 0 {
		flags |= unix.O_TRUNC
	}
	if t.n(30) == 0 {
		flags |= unix.O_APPEND
	}
	t.beat.what.Store("open")
	fd, err := unix.Open(t.path(), flags, 0o755)
	if err != nil {
		t.beat.count.Add(1)
		return
	}
	defer unix.Close(fd)
	for range 1 + t.n(12) {
		op := stormOps[t.n(len(stormOps))]
		t.beat.what.Store(op.name)
		t.guarded(func() { op.do(t, fd) })
		t.beat.count.Add(1)
	}
}

// guarded survives touching a mapping behind the end of its file.
func (t *thread) guarded(f func()) {
	debug.SetPanicOnFault(true)
	defer func() {
		if r := recover(); r != nil {
			if err, ok := r.(error); !ok || !isFault(err) {
				panic(r)
			}
		}
	}()
	f()
}

func isFault(err error) bool {
	var fault interface{ Addr() uintptr }
	return errors.As(err, &fault)
}

func (t *thread) unmapAll() {
	for _, m := range t.maps {
		unix.Munmap(m)
	}
	t.maps = nil
}

func (t *thread) iovecs() [][]byte {
	v := make([][]byte, 1+t.n(1024))
	for k := range v {
		v[k] = t.memory(1 + t.n(600))
	}
	return v
}

// rarely is for what would leave no file alone for long enough to grow.
func rarely(do func(t *thread, fd int)) func(t *thread, fd int) {
	return func(t *thread, fd int) {
		if t.n(25) == 0 {
			do(t, fd)
		}
	}
}

// stormOps are chosen with equal weight; those that matter more are there twice.
var stormOps = []struct {
	name string
	do   func(t *thread, fd int)
}{
	{"pwrite", func(t *thread, fd int) { unix.Pwrite(fd, t.memory(t.length()), t.offset()) }},
	{"pwrite", func(t *thread, fd int) { unix.Pwrite(fd, t.memory(t.length()), t.offset()) }},
	{"pread", func(t *thread, fd int) { unix.Pread(fd, t.memory(t.length()), t.offset()) }},
	{"pread", func(t *thread, fd int) { unix.Pread(fd, t.memory(t.length()), t.offset()) }},
	{"pwritev", func(t *thread, fd int) { unix.Pwritev(fd, t.iovecs(), t.offset()) }},
	{"preadv", func(t *thread, fd int) { unix.Preadv(fd, t.iovecs(), t.offset()) }},
	{"write", func(t *thread, fd int) { unix.Seek(fd, t.offset(), 0); unix.Write(fd, t.memory(t.length())) }},
	{"mmap shared", (*thread).mapShared},
	{"mmap shared", (*thread).mapShared},
	{"mmap private", func(t *thread, fd int) {
		m, err := unix.Mmap(fd, t.offset()&^4095, t.length(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
		if err != nil {
			return
		}
		defer unix.Munmap(m)
		for range 20 {
			m[t.n(len(m))]++
		}
	}},
	{"touch", (*thread).touch},
	{"touch", (*thread).touch},
	{"copy maps", func(t *thread, fd int) { copy(t.memory(t.length()), t.memory(t.length())) }},
	{"msync", func(t *thread, fd int) {
		if len(t.maps) > 0 {
			unix.Msync(t.maps[t.n(len(t.maps))], []int{unix.MS_SYNC, unix.MS_ASYNC, unix.MS_INVALIDATE | unix.MS_SYNC}[t.n(3)])
		}
	}},
	{"madvise", func(t *thread, fd int) {
		if len(t.maps) > 0 {
			unix.Madvise(t.maps[t.n(len(t.maps))], []int{unix.MADV_DONTNEED, unix.MADV_WILLNEED, unix.MADV_REMOVE}[t.n(3)])
		}
	}},
	{"mprotect", func(t *thread, fd int) {
		if len(t.maps) > 0 {
			m := t.maps[t.n(len(t.maps))]
			unix.Mprotect(m, unix.PROT_READ)
			unix.Mprotect(m, unix.PROT_READ|unix.PROT_WRITE)
		}
	}},
	{"munmap", func(t *thread, fd int) {
		if n := len(t.maps); n > 0 {
			k := t.n(n)
			unix.Munmap(t.maps[k])
			t.maps[k] = t.maps[n-1]
			t.maps = t.maps[:n-1]
		}
	}},
	{"ftruncate", rarely(func(t *thread, fd int) { unix.Ftruncate(fd, t.offset()) })},
	{"ftruncate to the end", func(t *thread, fd int) { unix.Ftruncate(fd, stormBytes-int64(t.n(20000))) }},
	{"fallocate", func(t *thread, fd int) {
		modes := []uint32{0, unix.FALLOC_FL_KEEP_SIZE, unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE, unix.FALLOC_FL_ZERO_RANGE,
			unix.FALLOC_FL_ZERO_RANGE | unix.FALLOC_FL_KEEP_SIZE, unix.FALLOC_FL_COLLAPSE_RANGE, unix.FALLOC_FL_INSERT_RANGE, unix.FALLOC_FL_UNSHARE_RANGE}
		unix.Fallocate(fd, modes[t.n(len(modes))], t.offset(), int64(t.length()))
	}},
	{"punch", func(t *thread, fd int) {
		unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, t.offset(), int64(t.length()))
	}},
	{"fsync", func(t *thread, fd int) { unix.Fsync(fd) }},
	{"fdatasync", func(t *thread, fd int) { unix.Fdatasync(fd) }},
	{"syncfs", func(t *thread, fd int) {
		if t.n(10) == 0 {
			unix.Syncfs(fd)
		}
	}},
	{"sync_file_range", func(t *thread, fd int) { unix.SyncFileRange(fd, t.offset(), int64(t.length()), 7) }},
	{"fadvise", func(t *thread, fd int) { unix.Fadvise(fd, t.offset(), int64(t.length()), t.n(6)) }},
	{"rename", rarely(func(t *thread, fd int) { unix.Rename(t.path(), t.path()) })},
	{"exchange", rarely(func(t *thread, fd int) {
		unix.Renameat2(unix.AT_FDCWD, t.path(), unix.AT_FDCWD, t.path(), []uint{unix.RENAME_EXCHANGE, unix.RENAME_NOREPLACE, unix.RENAME_WHITEOUT}[t.n(3)])
	})},
	{"unlink", rarely(func(t *thread, fd int) { unix.Unlink(t.path()) })},
	{"link", func(t *thread, fd int) { unix.Link(t.path(), t.path()) }},
	{"symlink", func(t *thread, fd int) {
		if t.n(8) == 0 {
			unix.Symlink(t.path(), t.path())
		}
	}},
	{"truncate", rarely(func(t *thread, fd int) { unix.Truncate(t.path(), t.offset()) })},
	{"rename dir", func(t *thread, fd int) {
		os.Rename(filepath.Join(t.dir, "d"), filepath.Join(t.dir, "e"))
		os.Rename(filepath.Join(t.dir, "e"), filepath.Join(t.dir, "d"))
		os.Mkdir(filepath.Join(t.dir, "d"), 0o755)
	}},
	{"readdir", func(t *thread, fd int) { os.ReadDir(t.dir) }},
	{"stat", func(t *thread, fd int) { var st unix.Stat_t; unix.Fstat(fd, &st); unix.Stat(t.path(), &st) }},
	{"chmod", func(t *thread, fd int) { unix.Fchmod(fd, 0o755); unix.Fchown(fd, t.n(3), t.n(3)) }},
	{"xattr", func(t *thread, fd int) {
		name := fmt.Sprintf("user.x%d", t.n(4))
		if t.n(2) == 0 {
			unix.Fsetxattr(fd, name, make([]byte, t.n(3000)), 0)
		} else {
			unix.Fremovexattr(fd, name)
		}
	}},
	{"seek", func(t *thread, fd int) { unix.Seek(fd, t.offset(), 3); unix.Seek(fd, t.offset(), 4) }},
	{"copy_file_range", (*thread).copyRange},
	{"sendfile", func(t *thread, fd int) {
		out, err := unix.Open(t.path(), unix.O_WRONLY, 0)
		if err != nil {
			return
		}
		defer unix.Close(out)
		off := t.offset()
		unix.Sendfile(out, fd, &off, t.length())
	}},
	{"flock", func(t *thread, fd int) { unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) }},
	{"tmpfile", func(t *thread, fd int) {
		tmp, err := unix.Open(t.dir, unix.O_TMPFILE|unix.O_RDWR, 0o600)
		if err != nil {
			return
		}
		defer unix.Close(tmp)
		unix.Pwrite(tmp, t.memory(t.length()), t.offset())
		if t.n(2) == 0 {
			unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", tmp), unix.AT_FDCWD, t.path(), unix.AT_SYMLINK_FOLLOW)
		}
	}},
}

func (t *thread) mapShared(fd int) {
	if len(t.maps) > 20 {
		return
	}
	prot := unix.PROT_READ | unix.PROT_WRITE
	if t.n(6) == 0 {
		prot |= unix.PROT_EXEC
	}
	flags := unix.MAP_SHARED
	if t.n(6) == 0 {
		flags |= unix.MAP_POPULATE
	}
	if m, err := unix.Mmap(fd, t.offset()&^4095, t.length(), prot, flags); err == nil {
		t.maps = append(t.maps, m)
	}
}

func (t *thread) touch(int) {
	if len(t.maps) == 0 {
		return
	}
	m := t.maps[t.n(len(t.maps))]
	for range 30 {
		t.guarded(func() {
			if k := t.n(len(m)); t.n(2) == 0 {
				m[k]++
			} else {
				t.name = string(m[k : k+1])
			}
		})
	}
}

func (t *thread) copyRange(fd int) {
	from, err := unix.Open(t.path(), unix.O_RDONLY, 0)
	if err != nil {
		return
	}
	defer unix.Close(from)
	a, b := t.offset(), t.offset()
	unix.CopyFileRange(from, &a, fd, &b, t.length(), 0)
}

// agree reads all files in every way and wants the same each time.
func agree(dir string) {
	for _, path := range walk(dir) {
		st, err := os.Lstat(path)
		if err != nil || !st.Mode().IsRegular() {
			continue
		}
		plain := hashFile(path, false)
		if direct := hashFile(path, true); direct != plain {
			wrong("%s: read %s, direct %s", path, plain, direct)
		}
		if mapped := hashMapped(path, st.Size()); mapped != plain {
			wrong("%s: read %s, mapped %s", path, plain, mapped)
		}
	}
}

func walk(dir string) (paths []string) {
	must(filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		paths = append(paths, path)
		return err
	}))
	sort.Strings(paths)
	return paths
}

func hashFile(path string, direct bool) string {
	flags := os.O_RDONLY
	if direct {
		flags |= unix.O_DIRECT
	}
	f, err := os.OpenFile(path, flags, 0)
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	b, err := unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANONYMOUS|unix.MAP_PRIVATE)
	must(err)
	defer unix.Munmap(b)
	h := sha256.New()
	for {
		n, err := f.Read(b)
		h.Write(b[:n])
		if err == io.EOF || err == nil && n == 0 {
			return fmt.Sprintf("%x", h.Sum(nil)[:8])
		}
		if err != nil {
			return err.Error()
		}
	}
}

func hashMapped(path string, size int64) string {
	h := sha256.New()
	if size > 0 {
		f, err := os.Open(path)
		if err != nil {
			return err.Error()
		}
		defer f.Close()
		m, err := unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ, unix.MAP_SHARED)
		if err != nil {
			return err.Error()
		}
		defer unix.Munmap(m)
		h.Write(m)
	}
	return fmt.Sprintf("%x", h.Sum(nil)[:8])
}

// hashTree prints every file with what it is.
func hashTree(dir string) {
	for _, path := range walk(dir) {
		st, err := os.Lstat(path)
		if err != nil {
			wrong("%s: %v", path, err)
			continue
		}
		line := fmt.Sprintf("%s %v %d", path, st.Mode(), st.ModTime().UnixNano())
		if st.Mode().IsRegular() {
			line += fmt.Sprintf(" %d %s", st.Size(), hashFile(path, false))
		}
		fmt.Println(line)
	}
}
