package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sys/unix"
)

// entry is one entry that getdents64(2) lists.
type entry struct {
	name string
	ino  uint64
	off  int64 // where the listing goes on
	kind byte  // DT_*
}

// parseEntries takes a buffer of getdents64 apart.
func parseEntries(buf []byte) []entry {
	var list []entry
	for len(buf) > 0 {
		size := binary.NativeEndian.Uint16(buf[16:])
		name := buf[19:size]
		list = append(list, entry{
			name: string(name[:bytes.IndexByte(name, 0)]),
			ino:  binary.NativeEndian.Uint64(buf),
			off:  int64(binary.NativeEndian.Uint64(buf[8:])),
			kind: buf[18],
		})
		buf = buf[size:]
	}
	return list
}

// next lists up to as many entries as fit in size bytes.
func (t *T) next(fd, size int) []entry {
	buf := make([]byte, size)
	return parseEntries(buf[:must[int](t)(unix.Getdents(fd, buf))])
}

// rest lists what is left, with buffers of size bytes.
func (t *T) rest(fd, size int) []entry {
	var all []entry
	for {
		more := t.next(fd, size)
		if len(more) == 0 {
			return all
		}
		all = append(all, more...)
	}
}

// entries lists a directory.
func (t *T) entries(name string) []entry {
	fd, err := unix.Open(t.p(name), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	t.ok(err)
	defer unix.Close(fd)
	return t.rest(fd, 32<<10)
}

// namesOf gives the sorted names of entries without the dots.
func namesOf(list []entry) []string {
	var names []string
	for _, e := range list {
		if e.name != "." && e.name != ".." {
			names = append(names, e.name)
		}
	}
	slices.Sort(names)
	return names
}

// names lists the names in a directory.
func (t *T) names(name string) []string { return namesOf(t.entries(name)) }

// fill makes n empty files and gives their sorted names.
func (t *T) fill(dir string, n int) []string {
	var names []string
	for i := range n {
		name := fmt.Sprintf("file-%06d", i)
		t.file(dir+"/"+name, "")
		names = append(names, name)
	}
	return names
}

var direntChecks = []check{
	{"getdents/empty-directory", func(t *T) {
		t.mkdir("dir")
		list := t.entries("dir")
		eq(t, "entries", len(list), 2)
		for _, e := range list {
			t.that(e.name == "." || e.name == "..", "there is an entry %q", e.name)
			eq(t, "type of "+e.name, e.kind, unix.DT_DIR)
			eq(t, "inode of "+e.name, e.ino, t.stat("dir/"+e.name).ino)
		}
	}},
	{"getdents/types-and-inodes", func(t *T) {
		t.file("file", "")
		t.mkdir("dir")
		t.symlink("none", "link")
		t.fifo("fifo")
		t.ok(unix.Mknod(t.p("socket"), unix.S_IFSOCK|0o644, 0))
		t.ok(unix.Mknod(t.p("char"), unix.S_IFCHR|0o644, 259))
		t.ok(unix.Mknod(t.p("block"), unix.S_IFBLK|0o644, 259))
		want := map[string]byte{
			"file": unix.DT_REG, "dir": unix.DT_DIR, "link": unix.DT_LNK, "fifo": unix.DT_FIFO,
			"socket": unix.DT_SOCK, "char": unix.DT_CHR, "block": unix.DT_BLK, ".": unix.DT_DIR, "..": unix.DT_DIR,
		}
		for _, e := range t.entries("") {
			eq(t, "type of "+e.name, e.kind, want[e.name])
			eq(t, "inode of "+e.name, e.ino, t.stat(e.name).ino)
			delete(want, e.name)
		}
		eq(t, "entries that are missing", len(want), 0)
	}},
	{"getdents/every-name-once", func(t *T) {
		want := t.fill("", 1500)
		for _, size := range []int{64, 300, 4096, 1 << 20} {
			fd := t.open("", unix.O_RDONLY)
			t.that(slices.Equal(namesOf(t.rest(fd, size)), want), "the listing in pieces of %d bytes differs", size)
		}
	}},
	{"getdents/buffer-too-small", func(t *T) {
		fd := t.open("", unix.O_RDONLY)
		t.fails(errOf(unix.Getdents(fd, make([]byte, 10))), unix.EINVAL)
		eq(t, "entries afterwards", len(t.rest(fd, 4096)), 2)
	}},
	{"getdents/end-stays", func(t *T) {
		fd := t.open("", unix.O_RDONLY)
		t.rest(fd, 4096)
		eq(t, "entries behind the end", len(t.next(fd, 4096)), 0)
	}},
	{"getdents/rewind-sees-changes", func(t *T) {
		fd := t.open("", unix.O_RDONLY)
		eq(t, "entries", len(t.rest(fd, 4096)), 2)
		t.file("file", "")
		must[int64](t)(unix.Seek(fd, 0, unix.SEEK_SET))
		eq(t, "entries after a rewind", len(t.rest(fd, 4096)), 3)
	}},
	{"getdents/seek-to-each-entry", func(t *T) {
		t.fill("", 200)
		fd := t.open("", unix.O_RDONLY)
		all := t.rest(fd, 32<<10)
		for i := len(all) - 1; i >= 0; i -= 7 {
			must[int64](t)(unix.Seek(fd, all[i].off, unix.SEEK_SET))
			rest := t.rest(fd, 32<<10)
			eq(t, "entries that follow", len(rest), len(all)-i-1)
			if len(rest) > 0 {
				eq(t, "the next entry", rest[0].name, all[i+1].name)
			}
		}
	}},
	{"getdents/offset-is-that-of-the-last-entry", func(t *T) {
		t.fill("", 50)
		fd := t.open("", unix.O_RDONLY)
		some := t.next(fd, 600)
		eq(t, "offset", t.offset(fd), some[len(some)-1].off)
	}},
	{"getdents/seek-stays-good-when-entries-go", func(t *T) {
		t.fill("", 300)
		fd := t.open("", unix.O_RDONLY)
		all := t.rest(fd, 32<<10)
		middle := len(all) / 2
		for _, e := range all[:middle+1] {
			if e.name != "." && e.name != ".." {
				t.ok(unix.Unlink(t.p(e.name)))
			}
		}
		must[int64](t)(unix.Seek(fd, all[middle].off, unix.SEEK_SET))
		t.that(slices.Equal(namesOf(t.rest(fd, 4096)), namesOf(all[middle+1:])), "the listing from the middle differs")
	}},
	{"getdents/removing-what-was-listed", func(t *T) {
		// As rm -r does.
		t.fill("", 1500)
		fd := t.open("", unix.O_RDONLY)
		removed := 0
		for {
			some := t.next(fd, 1000)
			if len(some) == 0 {
				break
			}
			for _, name := range namesOf(some) {
				t.ok(unix.Unlink(t.p(name)))
				removed++
			}
		}
		eq(t, "files removed", removed, 1500)
	}},
	{"getdents/stable-under-changes", func(t *T) {
		// readdir(3): an entry that is there throughout is listed exactly once.
		want := t.fill("", 800)
		stop := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				name := t.p(fmt.Sprintf("other-%d", n%97))
				if opens(name, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY) != nil {
					unix.Unlink(name)
				}
			}
		})
		defer wg.Wait()
		defer close(stop)
		for range 20 {
			fd := t.open("", unix.O_RDONLY)
			var got []string
			for _, name := range namesOf(t.rest(fd, 700)) {
				if name[0] == 'f' {
					got = append(got, name)
				}
			}
			t.that(slices.Equal(got, want), "%d of %d names are listed", len(got), len(want))
			unix.Close(fd)
		}
	}},
	{"getdents/no-directory", func(t *T) {
		t.fails(errOf(unix.Getdents(t.create("file", ""), make([]byte, 1000))), unix.ENOTDIR)
		t.fails(errOf(unix.Getdents(9999, make([]byte, 1000))), unix.EBADF)
	}},
	{"getdents/bad-address", func(t *T) {
		fd := t.open("", unix.O_RDONLY)
		t.fails(errOf(syscall(unix.SYS_GETDENTS64, uintptr(fd), badAddress, 4096)), unix.EFAULT)
	}},
	{"getdents/permission-counts-at-open-only", func(t *T) {
		t.mkdir("dir")
		t.own("dir", alice)
		t.as(alice, func() {
			fd := t.open("dir", unix.O_RDONLY)
			t.ok(unix.Fchmod(fd, 0))
			eq(t, "entries", len(t.rest(fd, 4096)), 2)
		})
	}},
}
