package main

import (
	"math"

	"golang.org/x/sys/unix"
)

var syncChecks = []check{
	{"fsync/anything-on-the-volume", func(t *T) {
		t.mkdir("dir")
		fd := t.create("file", "content")
		t.ok(unix.Fsync(fd))
		t.ok(unix.Fdatasync(fd))
		t.ok(unix.Fsync(t.open("file", unix.O_RDONLY)))
		t.ok(unix.Fsync(t.open("dir", unix.O_RDONLY)))
		t.ok(unix.Fdatasync(t.open("dir", unix.O_RDONLY)))
	}},
	{"fsync/errors", func(t *T) {
		t.fails(unix.Fsync(t.pipe().w), unix.EINVAL)
		t.fails(unix.Fdatasync(t.pipe().w), unix.EINVAL)
		t.fails(unix.Fsync(9999), unix.EBADF)
		t.fails(unix.Fdatasync(9999), unix.EBADF)
	}},
	{"fsync/removed-file", func(t *T) {
		fd := t.create("file", "content")
		t.ok(unix.Unlink(t.p("file")))
		t.ok(unix.Fsync(fd))
		t.eqText("content", t.all(fd), "content")
	}},
	{"o-sync/writes", func(t *T) {
		for _, flag := range []int{unix.O_SYNC, unix.O_DSYNC} {
			fd := t.open("file", unix.O_RDWR|unix.O_CREAT|unix.O_TRUNC|flag)
			t.write(fd, "content")
			t.eqText("content", t.all(fd), "content")
		}
	}},
	{"sync-file-range/flags", func(t *T) {
		fd := t.create("file", blocksOf(8))
		const all = unix.SYNC_FILE_RANGE_WAIT_BEFORE | unix.SYNC_FILE_RANGE_WRITE | unix.SYNC_FILE_RANGE_WAIT_AFTER
		for _, flags := range []int{0, unix.SYNC_FILE_RANGE_WRITE, unix.SYNC_FILE_RANGE_WAIT_BEFORE, all} {
			t.ok(unix.SyncFileRange(fd, 4096, 8192, flags))
			t.ok(unix.SyncFileRange(fd, 4096, 0, flags))
		}
	}},
	{"sync-file-range/errors", func(t *T) {
		fd := t.create("file", blocksOf(8))
		t.fails(unix.SyncFileRange(fd, 0, 4096, 0x100), unix.EINVAL)
		t.fails(unix.SyncFileRange(fd, -1, 4096, unix.SYNC_FILE_RANGE_WRITE), unix.EINVAL)
		t.fails(unix.SyncFileRange(fd, 0, -1, unix.SYNC_FILE_RANGE_WRITE), unix.EINVAL)
		t.fails(unix.SyncFileRange(t.pipe().w, 0, 4096, unix.SYNC_FILE_RANGE_WRITE), unix.ESPIPE)
		t.fails(unix.SyncFileRange(9999, 0, 4096, unix.SYNC_FILE_RANGE_WRITE), unix.EBADF)
	}},
	{"syncfs/any-descriptor", func(t *T) {
		t.ok(unix.Syncfs(t.create("file", "content")))
		t.ok(unix.Syncfs(t.open("", unix.O_RDONLY)))
		t.fails(unix.Syncfs(9999), unix.EBADF)
	}},
	{"sync/ends", func(t *T) {
		t.create("file", "content")
		unix.Sync()
		t.eqText("content", t.content("file"), "content")
	}},
	{"fadvise/advice", func(t *T) {
		fd := t.create("file", blocksOf(8))
		for _, advice := range []int{
			unix.FADV_NORMAL, unix.FADV_RANDOM, unix.FADV_SEQUENTIAL, unix.FADV_WILLNEED, unix.FADV_NOREUSE, unix.FADV_DONTNEED,
		} {
			t.ok(unix.Fadvise(fd, 0, 0, advice))
			t.ok(unix.Fadvise(fd, 4096, 10000, advice))
		}
		t.eqText("content", t.all(fd), blocksOf(8))
	}},
	{"fadvise/errors", func(t *T) {
		fd := t.create("file", "content")
		t.fails(unix.Fadvise(fd, 0, 0, 77), unix.EINVAL)
		t.fails(unix.Fadvise(fd, 0, -1, unix.FADV_NORMAL), unix.EINVAL)
		t.fails(unix.Fadvise(t.pipe().r, 0, 0, unix.FADV_NORMAL), unix.ESPIPE)
		t.fails(unix.Fadvise(9999, 0, 0, unix.FADV_NORMAL), unix.EBADF)
	}},
	{"readahead/files", func(t *T) {
		fd := t.create("file", blocksOf(8))
		t.ok(errOf(syscall(unix.SYS_READAHEAD, uintptr(fd), 0, 8*4096)))
		t.ok(errOf(syscall(unix.SYS_READAHEAD, uintptr(fd), math.MaxInt32, 4096)))
		t.fails(errOf(syscall(unix.SYS_READAHEAD, uintptr(t.open("file", unix.O_WRONLY)), 0, 4096)), unix.EBADF)
		t.fails(errOf(syscall(unix.SYS_READAHEAD, uintptr(t.pipe().r), 0, 4096)), unix.EINVAL)
	}},
}
