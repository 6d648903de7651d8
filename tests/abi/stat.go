package main

import (
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// statx asks for the status of a path.
func (t *T) statx(name string, flags, mask int) unix.Statx_t {
	var st unix.Statx_t
	t.ok(unix.Statx(unix.AT_FDCWD, t.p(name), flags, mask, &st))
	return st
}

var statChecks = []check{
	{"stat/fields", func(t *T) {
		t.file("file", strings.Repeat("x", 10000))
		t.ok(unix.Chmod(t.p("file"), 0o640))
		t.ok(unix.Chown(t.p("file"), 12, 34))
		var st unix.Stat_t
		t.ok(unix.Stat(t.p("file"), &st))
		t.octal("mode", st.Mode, unix.S_IFREG|0o640)
		eq(t, "uid", st.Uid, 12)
		eq(t, "gid", st.Gid, 34)
		eq(t, "size", st.Size, 10000)
		eq(t, "links", uint64(st.Nlink), 1)
		eq(t, "rdev", st.Rdev, 0)
		t.that(st.Blksize >= 512 && st.Blksize&(st.Blksize-1) == 0, "st_blksize is %d", st.Blksize)
		t.that(st.Ino != 0, "the inode number is 0")
	}},
	{"stat/blocks", func(t *T) {
		fd := t.create("file", "")
		eq(t, "blocks of an empty file", t.fstat(fd).blocks, 0)
		t.pwrite(fd, strings.Repeat("x", 1<<20), 0)
		t.ok(unix.Fsync(fd))
		blocks := t.fstat(fd).blocks
		t.that(blocks >= 2048 && blocks < 2200, "1 MiB has %d blocks of 512 bytes", blocks)
		t.ok(unix.Ftruncate(fd, 1<<30))
		t.that(t.fstat(fd).blocks < 2200, "1 MiB and a hole have %d blocks", t.fstat(fd).blocks)
		t.ok(unix.Ftruncate(fd, 0))
		eq(t, "blocks after truncation", t.fstat(fd).blocks, 0)
	}},
	{"stat/blocks-before-write-back", func(t *T) {
		// Tools such as du and tar ask right after a write.
		fd := t.create("file", "")
		t.pwrite(fd, strings.Repeat("x", 1<<20), 0)
		t.that(t.fstat(fd).blocks >= 2048, "1 MiB just written has %d blocks", t.fstat(fd).blocks)
	}},
	{"stat/inode-numbers-differ", func(t *T) {
		seen := map[uint64]bool{t.stat("").ino: true}
		t.mkdir("dir")
		t.file("a", "")
		t.file("b", "")
		t.symlink("a", "link")
		t.fifo("fifo")
		for _, name := range []string{"dir", "a", "b", "link", "fifo"} {
			st := t.stat(name)
			t.that(!seen[st.ino], "inode number %d is there twice", st.ino)
			seen[st.ino] = true
			eq(t, "device", st.dev, t.stat("").dev)
		}
	}},
	{"stat/by-descriptor", func(t *T) {
		fd := t.create("file", "content")
		eq(t, "status", t.fstat(fd), t.stat("file"))
		var st unix.Stat_t
		t.ok(unix.Fstatat(fd, "", &st, unix.AT_EMPTY_PATH))
		eq(t, "status", statusOf(&st), t.stat("file"))
		t.ok(unix.Fstatat(t.open("", unix.O_RDONLY), "file", &st, unix.AT_SYMLINK_NOFOLLOW))
		eq(t, "status", statusOf(&st), t.stat("file"))
		t.fails(unix.Fstat(9999, &st), unix.EBADF)
		t.fails(unix.Fstatat(unix.AT_FDCWD, t.p("file"), &st, unix.AT_REMOVEDIR), unix.EINVAL)
	}},
	{"stat/bad-address", func(t *T) {
		fd := t.create("file", "")
		t.fails(errOf(syscall(unix.SYS_FSTAT, uintptr(fd), badAddress)), unix.EFAULT)
	}},
	{"stat/needs-no-permission-on-file", func(t *T) {
		t.file("file", "")
		t.chmod("file", 0)
		t.as(alice, func() { t.ok(unix.Stat(t.p("file"), new(unix.Stat_t))) })
	}},
	{"stat/directory-has-a-size", func(t *T) {
		t.mkdir("dir")
		t.file("dir/file", "")
		t.that(t.stat("dir").size > 0, "a directory with a file in it has size 0")
	}},
	{"statx/basic", func(t *T) {
		t.file("file", "content")
		st, want := t.statx("file", 0, unix.STATX_BASIC_STATS), t.stat("file")
		eq(t, "basic fields told", st.Mask&unix.STATX_BASIC_STATS, unix.STATX_BASIC_STATS)
		eq(t, "inode", st.Ino, want.ino)
		eq(t, "size", st.Size, uint64(want.size))
		eq(t, "links", st.Nlink, want.nlink)
		t.octal("mode", uint32(st.Mode), want.mode)
		eq(t, "mtime", st.Mtime.Sec*1e9+int64(st.Mtime.Nsec), want.mtime)
		eq(t, "device", unix.Mkdev(st.Dev_major, st.Dev_minor), want.dev)
	}},
	{"statx/btime", func(t *T) {
		before := time.Now().Add(-time.Second).UnixNano()
		t.file("file", "")
		t.ok(t.utimens("file", unix.Timespec{Sec: 1}, unix.Timespec{Sec: 1}, 0))
		st := t.statx("file", 0, unix.STATX_BTIME)
		t.that(st.Mask&unix.STATX_BTIME != 0, "no birth time")
		birth := st.Btime.Sec*1e9 + int64(st.Btime.Nsec)
		t.that(birth > before && birth <= time.Now().UnixNano(), "birth time %d is not now", birth)
		tick()
		t.file("file", "more")
		st = t.statx("file", 0, unix.STATX_BTIME)
		eq(t, "birth time after a write", st.Btime.Sec*1e9+int64(st.Btime.Nsec), birth)
	}},
	{"statx/mount-id", func(t *T) {
		t.file("file", "")
		st := t.statx("file", 0, unix.STATX_BASIC_STATS|unix.STATX_MNT_ID)
		t.that(st.Mask&unix.STATX_MNT_ID != 0 && st.Mnt_id != 0, "no mount id")
		eq(t, "mount id of the directory", t.statx("", 0, unix.STATX_MNT_ID).Mnt_id, st.Mnt_id)
	}},
	{"statx/direct-io-alignment", func(t *T) {
		t.file("file", "")
		st := t.statx("file", 0, unix.STATX_DIOALIGN)
		t.that(st.Mask&unix.STATX_DIOALIGN != 0, "no alignment of direct I/O")
		for _, align := range []uint32{st.Dio_mem_align, st.Dio_offset_align} {
			t.that(align > 0 && align <= 4096 && align&(align-1) == 0, "alignments are %d and %d", st.Dio_mem_align, st.Dio_offset_align)
		}
	}},
	{"statx/attributes-told", func(t *T) {
		t.file("file", "")
		st := t.statx("file", 0, unix.STATX_BASIC_STATS)
		const want = unix.STATX_ATTR_IMMUTABLE | unix.STATX_ATTR_APPEND | unix.STATX_ATTR_NODUMP
		eq(t, "attributes known", st.Attributes_mask&want, want)
		eq(t, "attributes", st.Attributes&want, 0)
	}},
	{"statx/mount-root-attribute", func(t *T) {
		t.file("file", "")
		var st unix.Statx_t
		t.ok(unix.Statx(unix.AT_FDCWD, t.at.dir, 0, unix.STATX_BASIC_STATS, &st))
		t.that(st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, "the root of the mount lacks STATX_ATTR_MOUNT_ROOT")
		t.that(t.statx("file", 0, unix.STATX_BASIC_STATS).Attributes&unix.STATX_ATTR_MOUNT_ROOT == 0, "a file has STATX_ATTR_MOUNT_ROOT")
	}},
	{"statx/flags", func(t *T) {
		fd := t.create("file", "content")
		t.symlink("file", "link")
		t.octal("type without following", uint32(t.statx("link", unix.AT_SYMLINK_NOFOLLOW, unix.STATX_TYPE).Mode)&unix.S_IFMT, unix.S_IFLNK)
		t.statx("file", unix.AT_STATX_FORCE_SYNC, unix.STATX_SIZE)
		t.statx("file", unix.AT_STATX_DONT_SYNC, unix.STATX_SIZE)
		var st unix.Statx_t
		t.ok(unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_SIZE, &st))
		eq(t, "size", st.Size, 7)
		t.fails(unix.Statx(unix.AT_FDCWD, t.p("file"), unix.AT_STATX_FORCE_SYNC|unix.AT_STATX_DONT_SYNC, 0, &st), unix.EINVAL)
		t.fails(unix.Statx(unix.AT_FDCWD, t.p("file"), unix.AT_REMOVEDIR, 0, &st), unix.EINVAL)
		t.fails(unix.Statx(unix.AT_FDCWD, t.p("file"), 0, unix.STATX__RESERVED, &st), unix.EINVAL)
		t.fails(unix.Statx(fd, "", 0, 0, &st), unix.ENOENT)
	}},
}

func (t *T) statfs() unix.Statfs_t {
	var st unix.Statfs_t
	t.ok(unix.Statfs(t.dir, &st))
	return st
}

var statfsChecks = []check{
	{"statfs/fields", func(t *T) {
		st := t.statfs()
		t.that(st.Bsize >= 512 && st.Frsize >= 512, "block sizes are %d and %d", st.Bsize, st.Frsize)
		t.that(st.Blocks >= st.Bfree && st.Bfree >= st.Bavail && st.Bavail > 0, "blocks are %d, %d, %d", st.Blocks, st.Bfree, st.Bavail)
		t.that(st.Files >= st.Ffree && st.Ffree > 0, "files are %d, %d", st.Files, st.Ffree)
		eq(t, "longest name", st.Namelen, 255)
		t.that(st.Type != 0, "f_type is 0")
	}},
	{"statfs/by-descriptor", func(t *T) {
		fd := t.create("file", "")
		var st unix.Statfs_t
		t.ok(unix.Fstatfs(fd, &st))
		want := t.statfs()
		eq(t, "type", st.Type, want.Type)
		eq(t, "fsid", st.Fsid, want.Fsid)
		eq(t, "blocks", st.Blocks, want.Blocks)
		t.fails(unix.Fstatfs(9999, &st), unix.EBADF)
	}},
	{"statfs/space-follows-files", func(t *T) {
		before := t.statfs()
		fd := t.create("file", "")
		t.pwrite(fd, strings.Repeat("x", 8<<20), 0)
		t.ok(unix.Fsync(fd))
		full := t.statfs()
		blocks := uint64(8<<20) / uint64(full.Bsize)
		t.that(before.Bfree-full.Bfree >= blocks, "free blocks went from %d to %d with %d written", before.Bfree, full.Bfree, blocks)
		t.ok(unix.Ftruncate(fd, 0))
		t.ok(unix.Fsync(fd))
		back := until(func() bool { return t.statfs().Bfree >= full.Bfree+blocks })
		t.that(back, "free blocks went from %d to %d with %d freed", full.Bfree, t.statfs().Bfree, blocks)
	}},
	{"statfs/space-written-counts-at-once", func(t *T) {
		before := t.statfs()
		fd := t.create("file", "")
		t.pwrite(fd, strings.Repeat("x", 8<<20), 0)
		blocks := uint64(8<<20) / uint64(before.Bsize)
		t.that(before.Bavail-t.statfs().Bavail >= blocks, "available blocks went from %d to %d with %d written", before.Bavail, t.statfs().Bavail, blocks)
	}},
	{"statfs/open-removed-file-keeps-its-space", func(t *T) {
		fd := t.create("file", "")
		t.pwrite(fd, strings.Repeat("x", 8<<20), 0)
		t.ok(unix.Fsync(fd))
		full := t.statfs()
		t.ok(unix.Unlink(t.p("file")))
		t.that(t.statfs().Bfree < full.Bfree+1024, "space of a removed file came back while it was open")
		t.ok(unix.Close(fd))
		back := until(func() bool { return t.statfs().Bfree >= full.Bfree+uint64(7<<20)/uint64(full.Bsize) })
		t.that(back, "space of a removed file has not come back")
	}},
	{"statfs/flags-of-the-mount", func(t *T) {
		const readOnly, valid = 1, 0x20
		st := t.statfs()
		t.that(st.Flags&readOnly == 0, "f_flags %#x say read-only", st.Flags)
		t.that(st.Flags&valid != 0, "f_flags %#x lack ST_VALID", st.Flags)
	}},
}
