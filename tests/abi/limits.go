package main

import (
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// maxLinks is how many names ext4 allows one file.
const maxLinks = 65000

var limitChecks = []check{
	{"limits/links-of-a-file", func(t *T) {
		// link(2), EMLINK.
		t.file("file", "content")
		dir := t.open("", unix.O_RDONLY)
		for n := 1; n < maxLinks; n++ {
			if err := unix.Linkat(dir, "file", dir, fmt.Sprintf("l%d", n), 0); err != nil {
				t.failf("link %d: got %s, want success", n, errName(err))
			}
		}
		eq(t, "links", t.stat("file").nlink, maxLinks)
		t.fails(unix.Link(t.p("file"), t.p("one-more")), unix.EMLINK)
		t.ok(unix.Unlink(t.p("l77")))
		t.ok(unix.Link(t.p("file"), t.p("one-more")))
		t.eqText("content", t.content("one-more"), "content")
	}},
	{"limits/100000-files-in-a-directory", func(t *T) {
		const files = 100_000
		dir := t.open("", unix.O_RDONLY)
		for n := range files {
			fd, err := unix.Openat(dir, fmt.Sprintf("file-%d", n), unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_CLOEXEC, 0o644)
			t.ok(err)
			unix.Close(fd)
		}
		names := t.names("")
		eq(t, "names listed", len(names), files)
		eq(t, "names listed once", len(slices.Compact(names)), files)
		for n := 0; n < files; n += 997 {
			t.that(t.stat(fmt.Sprintf("file-%d", n)).mode&unix.S_IFMT == unix.S_IFREG, "file-%d is no file", n)
		}
		t.fails(unix.Rmdir(t.dir), unix.ENOTEMPTY)
		for n := range files {
			t.ok(unix.Unlinkat(dir, fmt.Sprintf("file-%d", n), 0))
		}
		eq(t, "names left", len(t.names("")), 0)
	}},
	{"limits/long-names-in-a-directory", func(t *T) {
		var want []string
		for n := range 2000 {
			name := fmt.Sprintf("%05d", n) + strings.Repeat("x", 250)
			t.file(name, "")
			want = append(want, name)
		}
		t.that(slices.Equal(t.names(""), want), "the listing differs")
	}},
	{"limits/open-files", func(t *T) {
		var fds []int
		for n := range 500 {
			fds = append(fds, t.create(fmt.Sprintf("file-%d", n), fmt.Sprint(n)))
		}
		for n, fd := range fds {
			t.eqText("content", t.all(fd), fmt.Sprint(n))
		}
	}},
	{"limits/1000-directories-in-a-directory", func(t *T) {
		for n := range 1000 {
			t.mkdir(fmt.Sprintf("dir-%d", n))
		}
		eq(t, "links", t.stat("").nlink, 1002)
		for n := range 1000 {
			t.ok(unix.Rmdir(t.p(fmt.Sprintf("dir-%d", n))))
		}
		eq(t, "links", t.stat("").nlink, 2)
	}},
	{"limits/10000-extents", func(t *T) {
		// Every other block, and then the blocks between.
		fd := t.create("file", "")
		for n := range 10_000 {
			t.pwrite(fd, fmt.Sprintf("%08d", n), int64(n)*8192)
		}
		t.ok(unix.Fsync(fd))
		for n := range 10_000 {
			t.pwrite(fd, fmt.Sprintf("%08d", n), int64(n)*8192+4096)
		}
		t.ok(unix.Fsync(fd))
		for n := 0; n < 10_000; n += 7 {
			t.eqText("content", t.pread(fd, 4104, int64(n)*8192), fmt.Sprintf("%08d", n)+zeroes(4088)+fmt.Sprintf("%08d", n))
		}
	}},
}
