package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// filled is a directory on the small file system.
type filled struct {
	t   *T
	dir string
}

// small makes a directory on the small file system, which is removed in the end.
func (t *T) small() *filled {
	dir := filepath.Join(t.at.small, filepath.Base(t.dir))
	t.ok(os.Mkdir(dir, 0o755))
	t.cleanup(func() { os.RemoveAll(dir) })
	// Space of the check before may still be on its way back.
	until(func() bool { return free(t.at.small) > 12<<20 })
	return &filled{t, dir}
}

// free is the space that may still be used, in bytes.
func free(path string) uint64 {
	var st unix.Statfs_t
	if unix.Statfs(path, &st) != nil {
		return 0
	}
	return st.Bavail * uint64(st.Bsize)
}

func (f *filled) open(name string, flags int) int {
	return f.t.closing(must[int](f.t)(unix.Open(f.dir+"/"+name, flags|unix.O_CLOEXEC, 0o644)))
}

// fill writes a file until the space is used up and gives its size.
func (f *filled) fill(name string) (fd int, size int64) {
	fd = f.open(name, unix.O_RDWR|unix.O_CREAT)
	chunk := []byte(strings.Repeat("fill", 16<<10))
	for {
		n, err := unix.Pwrite(fd, chunk, size)
		if err != nil {
			f.t.fails(err, unix.ENOSPC)
			if len(chunk) == 4096 {
				return fd, size
			}
			chunk = chunk[:4096] // the last crumbs
			continue
		}
		size += int64(n)
		f.t.that(size < 1<<30, "1 GiB did not fill the file system")
	}
}

var spaceChecks = []check{
	{"space/write-until-full", func(t *T) {
		f := t.small()
		fd, size := f.fill("file")
		eq(t, "size", t.fstat(fd).size, size)
		t.that(size > 4<<20, "only %d bytes were written", size)
		t.fails(errOf(unix.Pwrite(fd, []byte(strings.Repeat("x", 1<<20)), size)), unix.ENOSPC)
		t.ok(unix.Fsync(fd))
		t.eqText("content at the end", t.pread(fd, 8, size-8), "fillfill")
	}},
	{"space/full-can-be-read-changed-and-emptied", func(t *T) {
		f := t.small()
		fd, size := f.fill("file")
		t.ok(unix.Fsync(fd))
		t.pwrite(fd, "overwritten", 4096)
		t.ok(unix.Fsync(fd))
		t.eqText("content", t.pread(fd, 11, 4096), "overwritten")
		t.ok(unix.Rename(f.dir+"/file", f.dir+"/moved"))
		t.ok(unix.Ftruncate(fd, size/2))
		t.ok(unix.Unlink(f.dir + "/moved"))
	}},
	{"space/comes-back", func(t *T) {
		f := t.small()
		fd, first := f.fill("file")
		for range 3 {
			t.ok(unix.Unlink(f.dir + "/file"))
			t.ok(unix.Ftruncate(fd, 0))
			t.that(until(func() bool { return int64(free(f.dir)) > first*9/10 }), "%d bytes are free, %d were", free(f.dir), first)
			var size int64
			fd, size = f.fill("file")
			t.that(size > first*9/10, "%d bytes could be written, before it were %d", size, first)
		}
	}},
	{"space/allocation-is-all-or-nothing-for-later-writes", func(t *T) {
		// fallocate(2): later writes into the range do not fail for lack of space.
		f := t.small()
		reserved := f.open("reserved", unix.O_RDWR|unix.O_CREAT)
		t.ok(unix.Fallocate(reserved, 0, 0, 1<<20))
		f.fill("file")
		for off := int64(0); off < 1<<20; off += 64 << 10 {
			t.pwrite(reserved, strings.Repeat("x", 64<<10), off)
		}
		t.ok(unix.Fsync(reserved))
		t.eqText("content at the end", t.pread(reserved, 4, 1<<20-4), "xxxx")
	}},
	{"space/too-large-an-allocation", func(t *T) {
		f := t.small()
		fd := f.open("file", unix.O_RDWR|unix.O_CREAT)
		before := free(f.dir)
		t.fails(unix.Fallocate(fd, 0, 0, 1<<30), unix.ENOSPC)
		t.ok(unix.Ftruncate(fd, 0)) // some file systems keep what they found
		back := until(func() bool { return free(f.dir)+(1<<20) > before })
		t.that(back, "%d bytes are free, before it were %d", free(f.dir), before)
	}},
	{"space/store-into-a-hole", func(t *T) {
		// A store that finds no space is a SIGBUS.
		f := t.small()
		hole := f.open("hole", unix.O_RDWR|unix.O_CREAT)
		t.ok(unix.Ftruncate(hole, 16<<20))
		f.fill("file")
		m := t.mmap(hole, 16<<20, readWrite, unix.MAP_SHARED)
		hit := faults(func() {
			for off := 0; off < len(m); off += 4096 {
				store(m, off, 1)
			}
		})
		t.that(hit, "16 MiB of stores fit on a full file system")
	}},
	{"space/direct-write", func(t *T) {
		f := t.small()
		f.fill("file")
		fd := f.open("direct", unix.O_RDWR|unix.O_CREAT|unix.O_DIRECT)
		_, err := unix.Pwrite(fd, aligned(1<<20), 0)
		for off := int64(0); err == nil && off < 64<<20; off += 4096 {
			_, err = unix.Pwrite(fd, aligned(4096), t.fstat(fd).size)
		}
		t.fails(err, unix.ENOSPC)
	}},
	{"space/directories-until-full", func(t *T) {
		f := t.small()
		f.fill("file")
		made := 0
		var err error
		for ; err == nil && made < 1_000_000; made++ {
			err = unix.Mkdir(fmt.Sprintf("%s/dir-%d", f.dir, made), 0o755)
		}
		t.fails(err, unix.ENOSPC)
		for n := range made - 1 {
			t.ok(unix.Rmdir(fmt.Sprintf("%s/dir-%d", f.dir, n)))
		}
	}},
}
