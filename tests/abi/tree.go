package main

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// treeChecks have many threads work on the same few names or places at a time and
// look at what is left.
var treeChecks = []check{
	{"stress/names", func(t *T) { t.namesTorn(8, 3, 4, 2*time.Second) }},
	{"stress/names-in-one-directory", func(t *T) { t.namesTorn(9, 0, 6, 2*time.Second) }},
	{"stress/one-file-many-writers", func(t *T) { t.manyWriters(10, 2*time.Second) }},
	{"stress/truncate-and-fault", func(t *T) { t.truncateUnderFaults(11, 2*time.Second) }},
}

// namesTorn runs threads that make, link, rename and remove files and directories
// among few names, depth directories deep, and checks the tree that remains.
func (t *T) namesTorn(seed uint64, depth, names int, length time.Duration) {
	deadline := time.Now().Add(length)
	var wg sync.WaitGroup
	problems := make(chan string, 4)
	for thread := range 4 {
		rng := rand.New(rand.NewPCG(seed, uint64(thread)))
		wg.Go(func() {
			for time.Now().Before(deadline) {
				if err := t.tearNames(rng, depth, names); err != nil {
					problems <- fmt.Sprintf("seed %d: %v", seed, err)
					return
				}
			}
		})
	}
	wg.Wait()
	select {
	case text := <-problems:
		t.failf("%s", text)
	default:
	}
	t.checkTree()
}

// mayHappen are the errors that operations get when others change names under them.
var mayHappen = []error{
	unix.ENOENT, unix.EEXIST, unix.ENOTDIR, unix.EISDIR, unix.ENOTEMPTY, unix.EINVAL, unix.EPERM, unix.ELOOP,
}

// tearNames does one random operation.
func (t *T) tearNames(rng *rand.Rand, depth, names int) error {
	path := func() string {
		p := t.dir
		for range rng.IntN(depth + 1) {
			p += fmt.Sprintf("/d%d", rng.IntN(names))
		}
		return p + fmt.Sprintf("/%c%d", "df"[rng.IntN(2)], rng.IntN(names))
	}
	a, b := path(), path()
	var what string
	var err error
	switch op := rng.IntN(13); op {
	case 0, 1:
		what, err = "mkdir", unix.Mkdir(a, 0o755)
	case 2, 3:
		var fd int
		what = "create"
		if fd, err = unix.Open(a, unix.O_CREAT|unix.O_RDWR|unix.O_CLOEXEC, 0o644); err == nil {
			_, err = unix.Write(fd, []byte(a))
			if e := unix.Ftruncate(fd, int64(rng.IntN(5000))); err == nil {
				err = e
			}
			unix.Close(fd)
		}
	case 4:
		what, err = "unlink", unix.Unlink(a)
	case 5:
		what, err = "rmdir", unix.Rmdir(a)
	case 6, 7:
		what, err = "rename", unix.Rename(a, b)
	case 8:
		what, err = "exchange", unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
	case 9:
		what, err = "link", unix.Link(a, b)
	case 10:
		what, err = "symlink", unix.Symlink(b, a)
	case 11:
		what, err = "list", listsWell(a)
	case 12:
		what, err = "stat", unix.Stat(a, new(unix.Stat_t))
	}
	for _, e := range mayHappen {
		if errors.Is(err, e) {
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("%s %s %s: %w", what, strings.TrimPrefix(a, t.dir), strings.TrimPrefix(b, t.dir), err)
	}
	return nil
}

// listsWell lists a directory and wants each name at most once.
func listsWell(path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	seen := map[string]bool{}
	buf := make([]byte, 200)
	for {
		n, err := unix.Getdents(fd, buf)
		if n <= 0 {
			return err
		}
		for _, e := range parseEntries(buf[:n]) {
			// A name that goes and comes back may be listed again, elsewhere.
			if seen[e.name] && strings.HasPrefix(e.name, ".") {
				return fmt.Errorf("%q is listed twice", e.name)
			}
			seen[e.name] = true
		}
	}
}

// checkTree wants link counts, listings and lookups in the check's directory to agree.
func (t *T) checkTree() {
	links := map[uint64]uint32{}
	stats := map[uint64]status{}
	var walk func(dir string, parent uint64)
	walk = func(dir string, parent uint64) {
		subdirs := uint32(0)
		seen := map[string]bool{}
		self := t.stat(dir)
		for _, e := range t.entries(dir) {
			t.that(!seen[e.name], "%q is twice in %q", e.name, dir)
			seen[e.name] = true
			switch e.name {
			case ".":
				eq(t, "inode of . in "+dir, e.ino, self.ino)
				continue
			case "..":
				eq(t, "inode of .. in "+dir, e.ino, parent)
				continue
			}
			path := dir + "/" + e.name
			st := t.stat(path)
			eq(t, "inode of "+path, st.ino, e.ino)
			eq(t, "type of "+path, uint32(e.kind), st.kind()>>12)
			if st.kind() == unix.S_IFDIR {
				_, twice := stats[st.ino]
				t.that(!twice, "directory %s has two names", path)
				subdirs++
				walk(path, self.ino)
			}
			links[st.ino]++
			stats[st.ino] = st
		}
		eq(t, "links of directory "+dir, self.nlink, 2+subdirs)
	}
	var parent unix.Stat_t
	t.ok(unix.Stat(t.dir+"/..", &parent))
	walk("", parent.Ino)
	for ino, st := range stats {
		if st.kind() != unix.S_IFDIR {
			eq(t, fmt.Sprintf("links of inode %d", ino), st.nlink, links[ino])
		}
	}
}

// manyWriters has threads write records of their own to one file by all ways there
// are, while others sync and make it longer, and wants each to find its own.
func (t *T) manyWriters(seed uint64, length time.Duration) {
	const threads, record, records = 4, 4096, 64
	fd := t.create("file", "")
	t.ok(unix.Ftruncate(fd, threads*record*records))
	m := t.mmap(fd, threads*record*records, readWrite, unix.MAP_SHARED)
	direct := t.open("file", unix.O_RDWR|unix.O_DIRECT)
	deadline := time.Now().Add(length)
	problems := make(chan string, threads+1)
	var wg sync.WaitGroup
	for thread := range threads {
		rng := rand.New(rand.NewPCG(seed, uint64(thread)))
		wg.Go(func() {
			problems <- caught(func() {
				last := make([]byte, records)
				buf := aligned(record)
				for time.Now().Before(deadline) {
					n := rng.IntN(records)
					off := (n*threads + thread) * record
					b := byte(1 + rng.IntN(255))
					fill := bytes.Repeat([]byte{b}, record)
					switch rng.IntN(3) {
					case 0:
						t.pwrite(fd, string(fill), int64(off))
					case 1:
						copy(m[off:], fill)
					case 2:
						copy(buf, fill)
						eq(t, "bytes written", must[int](t)(unix.Pwrite(direct, buf, int64(off))), record)
					}
					last[n] = b
					n = rng.IntN(records)
					off = (n*threads + thread) * record
					want := bytes.Repeat([]byte{last[n]}, record)
					switch rng.IntN(3) {
					case 0:
						t.that(t.pread(fd, record, int64(off)) == string(want), "seed %d: read of record at %d", seed, off)
					case 1:
						t.that(bytes.Equal(m[off:off+record], want), "seed %d: mapping of record at %d", seed, off)
					case 2:
						eq(t, "bytes read", must[int](t)(unix.Pread(direct, buf, int64(off))), record)
						t.that(bytes.Equal(buf, want), "seed %d: direct read of record at %d", seed, off)
					}
				}
			})
		})
	}
	wg.Go(func() {
		problems <- caught(func() {
			for size := int64(threads * record * records); time.Now().Before(deadline); size += 5000 {
				t.ok(unix.Fsync(fd))
				t.ok(unix.Ftruncate(fd, size))
				t.ok(unix.Fdatasync(fd))
				t.ok(unix.Fadvise(fd, 0, 0, unix.FADV_DONTNEED))
			}
		})
	})
	wg.Wait()
	close(problems)
	for text := range problems {
		t.that(text == "", "%s", text)
	}
}

// truncateUnderFaults has threads load and store through a mapping of a file whose
// size changes all the time. They get data, zeroes or signals, and nothing else.
func (t *T) truncateUnderFaults(seed uint64, length time.Duration) {
	const pages = 32
	fd := t.create("file", "")
	m := t.mmap(fd, pages*4096, readWrite, unix.MAP_SHARED)
	deadline := time.Now().Add(length)
	problems := make(chan string, 4)
	var wg sync.WaitGroup
	for thread := range 3 {
		rng := rand.New(rand.NewPCG(seed, uint64(thread)))
		wg.Go(func() {
			problems <- caught(func() {
				for time.Now().Before(deadline) {
					at := rng.IntN(len(m))
					faults(func() {
						b := load(m, at)
						t.that(b == 0 || b == 'x', "seed %d: byte %d is %#x", seed, at, b)
						if thread == 0 {
							store(m, at, 'x')
						}
					})
				}
			})
		})
	}
	wg.Go(func() {
		problems <- caught(func() {
			rng := rand.New(rand.NewPCG(seed, 99))
			for time.Now().Before(deadline) {
				t.ok(unix.Ftruncate(fd, int64(rng.IntN(pages*4096))))
				if rng.IntN(4) == 0 {
					t.ok(unix.Fallocate(fd, punchHole, int64(rng.IntN(pages*4096)), 8192))
				}
			}
		})
	})
	wg.Wait()
	close(problems)
	for text := range problems {
		t.that(text == "", "%s", text)
	}
	t.ok(unix.Ftruncate(fd, 0))
	eq(t, "blocks of the empty file", t.fstat(fd).blocks, 0)
	t.ok(os.Remove(t.p("file")))
}
