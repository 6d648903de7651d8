package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// extreme is about numbers: depth, length, size and count.
func extreme(dir string) {
	deepTree(dir)
	symlinkLoops(dir)
	longNames(dir)
	openUnlinked(dir)
	farOffsets(dir)
	oddDirect(dir)
	manyVectors(dir)
	execWhileWriting(dir)
	wideDirectory(dir)
}

// deepTree makes directories inside each other, moves the tree and removes it.
func deepTree(dir string) {
	const depth = 10000
	top := filepath.Join(dir, "deep")
	must(os.Mkdir(top, 0o755))
	fd, err := unix.Open(top, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	must(err)
	for n := range depth {
		if err := unix.Mkdirat(fd, "x", 0o755); err != nil {
			wrong("mkdir at depth %d: %v", n, err)
			break
		}
		next, err := unix.Openat(fd, "x", unix.O_RDONLY|unix.O_DIRECTORY, 0)
		if err != nil {
			wrong("open at depth %d: %v", n, err)
			break
		}
		unix.Close(fd)
		fd = next
	}
	must(unix.Fsync(fd))
	// The way up, and the path, which is longer than a path can be.
	up, err := unix.Openat(fd, strings.Repeat("../", 1300)+"x", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		wrong("1300 times ..: %v", err)
	} else {
		unix.Close(up)
	}
	os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	must(unix.Fchdir(fd))
	unix.Getcwd(make([]byte, 4096))
	must(os.Chdir("/"))
	// A directory must not be moved into itself, however deep.
	if err := unix.Renameat(unix.AT_FDCWD, top, fd, "y"); !errors.Is(err, unix.EINVAL) {
		wrong("moving a directory into its own depths: %v", err)
	}
	unix.Close(fd)
	must(os.Rename(top, top+"er"))
	if out, err := exec.Command("rm", "-rf", top+"er").CombinedOutput(); err != nil {
		wrong("rm -rf of a deep tree: %v %s", err, out)
	}
}

func symlinkLoops(dir string) {
	a, b := filepath.Join(dir, "loopa"), filepath.Join(dir, "loopb")
	must(os.Symlink("loopb", a))
	must(os.Symlink("loopa", b))
	for _, p := range []string{a, b, a + "/x", strings.Repeat(a+"/../", 20)} {
		if _, err := os.Stat(p); !errors.Is(err, unix.ELOOP) {
			wrong("a loop gives %v", err)
		}
	}
	for n := range 45 {
		must(os.Symlink(fmt.Sprintf("chain%d", n+1), filepath.Join(dir, fmt.Sprintf("chain%d", n))))
	}
	must(os.WriteFile(filepath.Join(dir, "chain45"), nil, 0o644))
	if _, err := os.Stat(filepath.Join(dir, "chain0")); !errors.Is(err, unix.ELOOP) {
		wrong("a chain of 45 links gives %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "chain10")); err != nil {
		wrong("a chain of 35 links gives %v", err)
	}
}

func longNames(dir string) {
	name := strings.Repeat("\xff", 255)
	must(os.WriteFile(filepath.Join(dir, name), []byte("long"), 0o644))
	if err := os.WriteFile(filepath.Join(dir, name+"x"), nil, 0o644); !errors.Is(err, unix.ENAMETOOLONG) {
		wrong("a name of 256 bytes gives %v", err)
	}
	for _, odd := range []string{"\n", "a\x01b", "%s%n", " ", "~", "-rf", "\\", "日本"} {
		p := filepath.Join(dir, odd)
		must(os.WriteFile(p, []byte(odd), 0o644))
		if b, err := os.ReadFile(p); err != nil || string(b) != odd {
			wrong("name %q: %q, %v", odd, b, err)
		}
	}
	target := strings.Repeat("t/", 2047)
	must(os.Symlink(target, filepath.Join(dir, "longlink")))
	if got, err := os.Readlink(filepath.Join(dir, "longlink")); err != nil || got != target {
		wrong("a long link: %d bytes, %v", len(got), err)
	}
}

// openUnlinked keeps thousands of files open that have no name.
func openUnlinked(dir string) {
	var files []*os.File
	for n := range 900 {
		p := filepath.Join(dir, "gone")
		f, err := os.OpenFile(p, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		must(err)
		must(os.Remove(p))
		_, err = f.Write(cells(4096+cellBytes*(n%10), uint64(n), 0, 1))
		must(err)
		files = append(files, f)
	}
	for n, f := range files {
		b := make([]byte, 10000)
		m, _ := f.ReadAt(b, 0)
		if r, err := checkCells(b[:m], uint64(n), 0); err != nil || r.max != 1 {
			wrong("file %d without a name: %v", n, err)
		}
		f.Close()
	}
}

// farOffsets writes where files may be at their end, and further.
func farOffsets(dir string) {
	f, err := os.Create(filepath.Join(dir, "far"))
	must(err)
	defer f.Close()
	for _, off := range []int64{1<<40 - 5, 1<<44 - 4096, 1<<44 - 1, 1 << 44, 1<<62 + 3, 1<<63 - 4097, 1<<63 - 1} {
		n, err := f.WriteAt([]byte("0123456789"), off)
		if err == nil {
			b := make([]byte, 10)
			if _, err := f.ReadAt(b, off); err != nil || string(b) != "0123456789" {
				wrong("offset %d reads %q, %v", off, b, err)
			}
		} else if !errors.Is(err, unix.EFBIG) && !errors.Is(err, unix.EINVAL) && n == 0 {
			wrong("writing at %d gives %v", off, err)
		}
		for _, mode := range []uint32{0, 1, 3, 16, 8, 32} {
			unix.Fallocate(int(f.Fd()), mode, off, 1<<20)
			unix.Fallocate(int(f.Fd()), mode, 4096, off)
		}
		unix.Ftruncate(int(f.Fd()), off)
		unix.Seek(int(f.Fd()), off, 3)
		unix.Seek(int(f.Fd()), off-1, 4)
		if m, err := unix.Mmap(int(f.Fd()), off&^4095, 1<<20, unix.PROT_READ, unix.MAP_SHARED); err == nil {
			guard(func() { _ = string(m[:1]) })
			unix.Munmap(m)
		}
	}
	for _, n := range []int64{0, -1, -1 << 63} {
		unix.Fallocate(int(f.Fd()), 0, n, n)
		unix.Ftruncate(int(f.Fd()), n)
		unix.Pwrite(int(f.Fd()), []byte("x"), n)
	}
	must(f.Truncate(0))
	must(f.Sync())
}

func guard(f func()) {
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

// oddDirect does direct I/O with buffers, offsets and lengths of all kinds, also
// with a mapping of the same file as the buffer.
func oddDirect(dir string) {
	path := filepath.Join(dir, "direct")
	must(os.WriteFile(path, cells(256<<10, 7, 0, 1), 0o644))
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_DIRECT, 0)
	must(err)
	defer unix.Close(fd)
	m, err := unix.Mmap(fd, 0, 256<<10, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	must(err)
	defer unix.Munmap(m)
	for _, size := range []int{1, 511, 512, 513, 4095, 4096, 8192, 65536, 256 << 10} {
		for _, off := range []int64{0, 1, 511, 512, 3584, 4096, 255 << 10, 256 << 10, 1 << 20} {
			for _, skip := range []int{0, 1, 4, 512, 4095} {
				b := m[min(skip, len(m)-size):][:size]
				unix.Pread(fd, b, off)
				unix.Pwrite(fd, b, off)
			}
		}
	}
	// The same bytes onto themselves change nothing.
	must(os.WriteFile(path, cells(256<<10, 7, 0, 2), 0o644))
	for off := 0; off < 256<<10; off += 32 << 10 {
		if n, err := unix.Pwrite(fd, m[off:off+32<<10], int64(off)); err != nil || n != 32<<10 {
			wrong("writing a file's mapping to itself: %d, %v", n, err)
		}
		if n, err := unix.Pread(fd, m[off:off+32<<10], int64(off)); err != nil || n != 32<<10 {
			wrong("reading a file into its own mapping: %d, %v", n, err)
		}
	}
	b, err := os.ReadFile(path)
	must(err)
	if r, err := checkCells(b, 7, 0); err != nil || r.min != 2 || r.zeroes > 0 {
		wrong("direct I/O onto itself: %+v, %v", r, err)
	}
}

// manyVectors gives the most and the longest vectors there can be.
func manyVectors(dir string) {
	f, err := os.Create(filepath.Join(dir, "vectors"))
	must(err)
	defer f.Close()
	buf := make([]byte, 1<<20)
	vecs := make([]unix.Iovec, 1024)
	for k := range vecs {
		vecs[k] = unix.Iovec{Base: &buf[0], Len: uint64(k % 7)}
	}
	call := func(nr uintptr, n int) unix.Errno {
		_, _, errno := unix.Syscall6(nr, f.Fd(), uintptr(unsafe.Pointer(&vecs[0])), uintptr(n), 0, 0, 0)
		return errno
	}
	if errno := call(unix.SYS_PWRITEV, 1024); errno != 0 {
		wrong("1024 vectors: %v", errno)
	}
	if errno := call(unix.SYS_PWRITEV, 1025); errno != unix.EINVAL {
		wrong("1025 vectors: %v", errno)
	}
	for k := range vecs {
		vecs[k].Len = 1<<31 - 1 // more than there is memory
	}
	call(unix.SYS_PREADV, 1024)
	call(unix.SYS_PWRITEV, 3)
	vecs[0].Len = 1 << 63
	call(unix.SYS_PWRITEV, 3)
	vecs[0] = unix.Iovec{Base: (*byte)(unsafe.Pointer(f)), Len: 1 << 40}
	call(unix.SYS_PWRITEV, 1)
	must(f.Truncate(0))
}

// execWhileWriting runs a program from the volume while it is open for writing,
// replaced and truncated.
func execWhileWriting(dir string) {
	self, err := os.ReadFile("/bin/true")
	must(err)
	path := filepath.Join(dir, "program")
	var wg sync.WaitGroup
	stop := make(chan struct{})
	wg.Add(1)
	go func() {
		defer wg.Done()
		for {
			select {
			case <-stop:
				return
			default:
			}
			os.WriteFile(path, self, 0o755)
			os.Chmod(path, 0o755)
			os.WriteFile(path+"2", self, 0o755)
			os.Rename(path+"2", path)
			os.Truncate(path, int64(len(self)/2))
		}
	}()
	for range 40 {
		exec.Command(path).Run() // any end will do
	}
	close(stop)
	wg.Wait()
	must(os.Remove(path))
	must(os.WriteFile(path, self, 0o755))
	if err := exec.Command(path).Run(); err != nil {
		wrong("the program does not run afterwards: %v", err)
	}
}

// wideDirectory has tens of thousands of entries, listed while they go.
func wideDirectory(dir string) {
	const width = 30000
	d := filepath.Join(dir, "wide")
	must(os.Mkdir(d, 0o755))
	for n := range width {
		must(os.WriteFile(filepath.Join(d, fmt.Sprintf("entry%d", n)), nil, 0o644))
	}
	list, err := os.ReadDir(d)
	must(err)
	if len(list) != width {
		wrong("%d entries listed of %d", len(list), width)
	}
	f, err := os.Open(d)
	must(err)
	defer f.Close()
	seen := map[string]bool{}
	for {
		names, err := f.Readdirnames(100)
		if len(names) == 0 || err != nil {
			break
		}
		for _, name := range names {
			if seen[name] {
				wrong("%s is listed twice", name)
			}
			seen[name] = true
			must(os.Remove(filepath.Join(d, name)))
		}
	}
	if len(seen) != width {
		wrong("%d of %d entries seen while they were removed", len(seen), width)
	}
	must(os.Remove(d))
}
