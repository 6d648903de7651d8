package main

import (
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// Requests of ioctl(2) that package unix has no names for.
const (
	ioctlFIGETBSZ   = 0x2
	ioctlFIEMAP     = 0xc020660b
	ioctlFITRIM     = 0xc0185879
	ioctlFSGETXATTR = 0x801c581f
	ioctlFSSETXATTR = 0x401c5820
	ioctlGETVERSION = 0x80087601
	ioctlGETFSLABEL = 0x81009431
	ioctlFICLONE    = 0x40049409
)

// Inode flags, see ioctl_iflags(2).
const (
	flagImmutable = 0x10
	flagAppend    = 0x20
	flagNoDump    = 0x40
	flagNoAtime   = 0x80
	flagsAsked    = flagImmutable | flagAppend | flagNoDump | flagNoAtime
)

func ioctl[V any](fd int, request uintptr, arg *V) error {
	_, err := syscall(unix.SYS_IOCTL, uintptr(fd), request, pointer(arg))
	return err
}

func (t *T) flags(fd int) int32 {
	var flags [2]int32 // the kernel takes an int, the number of the request says long
	t.ok(ioctl(fd, unix.FS_IOC_GETFLAGS, &flags))
	return flags[0]
}

func setFlags(fd int, flags int32) error {
	return ioctl(fd, unix.FS_IOC_SETFLAGS, &[2]int32{flags})
}

// flagged makes a file with an inode flag, which is taken away when the check ends.
func (t *T) flagged(flag int32) (fd int) {
	t.file("file", "content")
	fd = t.open("file", unix.O_RDONLY)
	old := t.flags(fd)
	t.ok(setFlags(fd, old|flag))
	t.cleanup(func() { setFlags(fd, old) })
	return fd
}

var ioctlChecks = []check{
	{"ioctl/unknown", func(t *T) {
		var arg [64]byte
		t.fails(ioctl(t.create("file", ""), 0x12345678, &arg), unix.ENOTTY)
		t.fails(ioctl(t.open("", unix.O_RDONLY), 0x12345678, &arg), unix.ENOTTY)
		t.fails(ioctl(t.open("file", unix.O_RDONLY), unix.TCGETS, &arg), unix.ENOTTY)
	}},
	{"ioctl/fionread", func(t *T) {
		fd := t.create("file", "0123456789")
		must[int64](t)(unix.Seek(fd, 3, unix.SEEK_SET))
		eq(t, "bytes to read", must[int](t)(unix.IoctlGetInt(fd, unix.TIOCINQ)), 7)
	}},
	{"ioctl/figetbsz", func(t *T) {
		var size int32
		t.ok(ioctl(t.create("file", ""), ioctlFIGETBSZ, &size))
		eq(t, "block size", int64(size), int64(t.statfs().Bsize))
	}},
	{"ioctl/flags-of-a-new-file", func(t *T) {
		eq(t, "flags", t.flags(t.create("file", ""))&flagsAsked, 0)
		t.mkdir("dir")
		eq(t, "flags", t.flags(t.open("dir", unix.O_RDONLY))&flagsAsked, 0)
	}},
	{"ioctl/set-flags", func(t *T) {
		fd := t.flagged(flagNoDump | flagNoAtime)
		eq(t, "flags", t.flags(fd)&flagsAsked, flagNoDump|flagNoAtime)
		t.that(t.statx("file", 0, unix.STATX_BASIC_STATS).Attributes&unix.STATX_ATTR_NODUMP != 0, "statx does not tell of nodump")
		before := t.fstat(fd)
		tick()
		t.ok(setFlags(fd, t.flags(fd)&^flagNoDump))
		eq(t, "flags", t.flags(fd)&flagsAsked, flagNoAtime)
		t.that(t.fstat(fd).ctime > before.ctime, "ctime has not moved")
	}},
	{"ioctl/immutable", func(t *T) {
		writer := t.create("other", "")
		fd := t.flagged(flagImmutable)
		t.fails(opens(t.p("file"), unix.O_WRONLY), unix.EPERM)
		t.fails(unix.Truncate(t.p("file"), 0), unix.EPERM)
		t.fails(unix.Unlink(t.p("file")), unix.EPERM)
		t.fails(t.rename("file", "moved"), unix.EPERM)
		t.fails(t.rename("other", "file"), unix.EPERM)
		t.fails(unix.Link(t.p("file"), t.p("second")), unix.EPERM)
		t.fails(unix.Chmod(t.p("file"), 0o600), unix.EPERM)
		t.fails(unix.Chown(t.p("file"), 1, 1), unix.EPERM)
		t.fails(t.setXattr("file", "user.a", "v"), unix.EPERM)
		t.eqText("content", t.content("file"), "content")
		t.that(t.statx("file", 0, unix.STATX_BASIC_STATS).Attributes&unix.STATX_ATTR_IMMUTABLE != 0, "statx does not tell of it")
		t.ok(setFlags(fd, 0))
		t.ok(unix.Unlink(t.p("file")))
		t.ok(unix.Fsync(writer))
	}},
	{"ioctl/append-only", func(t *T) {
		t.flagged(flagAppend)
		t.fails(opens(t.p("file"), unix.O_WRONLY), unix.EPERM)
		t.fails(opens(t.p("file"), unix.O_WRONLY|unix.O_APPEND|unix.O_TRUNC), unix.EPERM)
		t.fails(unix.Truncate(t.p("file"), 0), unix.EPERM)
		t.fails(unix.Unlink(t.p("file")), unix.EPERM)
		t.write(t.open("file", unix.O_WRONLY|unix.O_APPEND), " grows")
		t.eqText("content", t.content("file"), "content grows")
	}},
	{"ioctl/set-flags-is-for-owners", func(t *T) {
		t.file("file", "")
		t.file("own", "")
		t.own("own", alice)
		t.as(alice, func() {
			t.fails(setFlags(t.open("file", unix.O_RDONLY), flagNoDump), unix.EACCES, unix.EPERM)
			own := t.open("own", unix.O_RDONLY)
			t.ok(setFlags(own, t.flags(own)|flagNoDump))
			t.fails(setFlags(own, t.flags(own)|flagImmutable), unix.EPERM)
		})
	}},
	{"ioctl/fsgetxattr", func(t *T) {
		var attr [28]byte
		t.ok(ioctl(t.create("file", ""), ioctlFSGETXATTR, &attr))
	}},
	{"ioctl/fssetxattr", func(t *T) {
		const fsxNoDump = 0x80
		fd := t.create("file", "")
		attr := [7]uint32{fsxNoDump}
		t.ok(ioctl(fd, ioctlFSSETXATTR, &attr))
		eq(t, "flags", t.flags(fd)&flagsAsked, flagNoDump)
		t.ok(ioctl(fd, ioctlFSGETXATTR, &attr))
		eq(t, "fsx_xflags", attr[0]&^(1<<31), fsxNoDump)
	}},
	{"ioctl/flags-are-inherited", func(t *T) {
		t.mkdir("dir")
		fd := t.open("dir", unix.O_RDONLY)
		t.ok(setFlags(fd, t.flags(fd)|flagNoDump|flagNoAtime|flagAppend))
		t.cleanup(func() { setFlags(fd, 0) })
		t.mkdir("dir/sub")
		eq(t, "flags of the file", t.flags(t.create("dir/file", ""))&flagsAsked, flagNoDump|flagNoAtime)
		eq(t, "flags of the directory", t.flags(t.open("dir/sub", unix.O_RDONLY))&flagsAsked, flagNoDump|flagNoAtime)
	}},
	{"ioctl/immutable-while-open", func(t *T) {
		t.file("file", "content")
		fd := t.open("file", unix.O_RDWR)
		mapped := must[[]byte](t)(unix.Mmap(fd, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED))
		t.cleanup(func() { unix.Munmap(mapped) })
		mapped[0] = 'C'
		t.ok(setFlags(fd, t.flags(fd)|flagImmutable))
		t.cleanup(func() { setFlags(fd, 0) })
		t.fails(errOf(unix.Pwrite(fd, []byte("x"), 0)), unix.EPERM)
		t.fails(unix.Ftruncate(fd, 0), unix.EPERM)
		t.fails(unix.Fallocate(fd, 0, 0, 8192), unix.EPERM)
		t.fails(unix.Fchmod(fd, 0o600), unix.EPERM)
		t.fails(unix.Fsetxattr(fd, "user.a", []byte("v"), 0), unix.EPERM)
		// A read into the page is a write that fails rather than kills.
		t.fails(errOf(unix.Pread(t.create("other", "other"), mapped[:5], 0)), unix.EFAULT)
		t.eqText("content", t.pread(fd, 100, 0), "Content")
	}},
	{"ioctl/immutable-directory", func(t *T) {
		t.mkdir("dir")
		t.file("dir/file", "")
		t.file("other", "")
		fd := t.open("dir", unix.O_RDONLY)
		t.ok(setFlags(fd, t.flags(fd)|flagImmutable))
		t.cleanup(func() { setFlags(fd, 0) })
		t.fails(opens(t.p("dir/new"), unix.O_CREAT|unix.O_WRONLY), unix.EPERM)
		t.fails(unix.Mkdir(t.p("dir/new"), 0o755), unix.EPERM)
		t.fails(unix.Unlink(t.p("dir/file")), unix.EPERM)
		t.fails(t.rename("other", "dir/other"), unix.EPERM)
		t.fails(t.rename("dir/file", "file"), unix.EPERM)
		t.fails(unix.Link(t.p("other"), t.p("dir/other")), unix.EPERM)
		t.fails(t.rename("dir", "moved"), unix.EPERM)
		t.fails(unix.Access(t.p("dir"), unix.W_OK), unix.EPERM)
		t.ok(opens(t.p("dir/file"), unix.O_WRONLY)) // its content is another matter
	}},
	{"ioctl/append-only-directory", func(t *T) {
		t.mkdir("dir")
		t.file("dir/file", "")
		fd := t.open("dir", unix.O_RDONLY)
		t.ok(setFlags(fd, t.flags(fd)|flagAppend))
		t.cleanup(func() { setFlags(fd, 0) })
		t.ok(opens(t.p("dir/new"), unix.O_CREAT|unix.O_WRONLY))
		t.fails(unix.Unlink(t.p("dir/file")), unix.EPERM)
		t.fails(t.rename("dir/file", "file"), unix.EPERM)
	}},
	{"ioctl/append-only-in-detail", func(t *T) {
		fd := t.flagged(flagAppend)
		appending := t.open("file", unix.O_RDWR|unix.O_APPEND)
		t.fails(errOf(unix.FcntlInt(uintptr(appending), unix.F_SETFL, 0)), unix.EPERM)
		t.fails(errOf(unix.Mmap(appending, 0, 4096, unix.PROT_READ, unix.MAP_SHARED)), unix.EACCES)
		t.fails(unix.Fallocate(appending, unix.FALLOC_FL_KEEP_SIZE|unix.FALLOC_FL_PUNCH_HOLE, 0, 4096), unix.EPERM)
		t.fails(unix.Chmod(t.p("file"), 0o600), unix.EPERM)
		t.fails(unix.Link(t.p("file"), t.p("second")), unix.EPERM)
		t.fails(t.setXattr("file", "user.a", "v"), unix.EPERM)
		t.ok(unix.UtimesNanoAt(unix.AT_FDCWD, t.p("file"), nil, 0)) // now is as good as a write
		t.fails(unix.UtimesNanoAt(unix.AT_FDCWD, t.p("file"), []unix.Timespec{{Sec: 5}, {Sec: 6}}, 0), unix.EPERM)
		eq(t, "flags", t.flags(fd)&flagsAsked, flagAppend)
	}},
	{"ioctl/fibmap", func(t *T) {
		t.file("file", "content")
		t.chmod("file", 0o644)
		t.as(alice, func() {
			block := int32(0)
			t.fails(ioctl(t.open("file", unix.O_RDONLY), 1, &block), unix.EPERM)
		})
	}},
	{"ioctl/getversion", func(t *T) {
		var version [2]int32
		t.ok(ioctl(t.create("file", ""), ioctlGETVERSION, &version))
	}},
	{"ioctl/getfslabel", func(t *T) {
		var label [256]byte
		t.ok(ioctl(t.open("", unix.O_RDONLY), ioctlGETFSLABEL, &label))
	}},
	{"ioctl/clone-without-shared-blocks", func(t *T) {
		// ioctl_ficlonerange(2): EOPNOTSUPP where the file system cannot; success where it can.
		from, to := t.create("from", blocksOf(2)), t.create("to", "")
		_, err := syscall(unix.SYS_IOCTL, uintptr(to), ioctlFICLONE, uintptr(from))
		if err == nil {
			t.eqText("content", t.content("to"), blocksOf(2))
		} else {
			t.fails(err, unix.EOPNOTSUPP)
		}
	}},
	{"ioctl/fitrim", func(t *T) {
		r := [3]uint64{0, 1 << 40, 0}
		t.ok(ioctl(t.open("", unix.O_RDONLY), ioctlFITRIM, &r))
		t.as(alice, func() { t.fails(ioctl(t.open("", unix.O_RDONLY), ioctlFITRIM, &r), unix.EPERM) })
	}},
	{"ioctl/fitrim-errors", func(t *T) {
		fd := t.open("", unix.O_RDONLY)
		t.fails(ioctl(fd, ioctlFITRIM, &[3]uint64{1 << 60, 1 << 20, 0}), unix.EINVAL)
		t.fails(ioctl(fd, ioctlFITRIM, &[3]uint64{0, 512, 0}), unix.EINVAL)
		none := [3]uint64{0, 1 << 20, 1 << 25} // no run of so many in so few
		t.ok(ioctl(fd, ioctlFITRIM, &none))
		eq(t, "bytes", none[1], 0)
	}},
	{"fiemap/counts", func(t *T) {
		fd := t.create("file", "")
		for n := range int64(5) {
			t.pwrite(fd, "x", n*3*4096)
		}
		t.ok(unix.Fsync(fd))
		m := t.fiemapOf(fd, 0, ^uint64(0), 0, 0)
		eq(t, "extents counted", m.mapped, 5)
		m = t.fiemapOf(fd, 0, ^uint64(0), 0, 2)
		eq(t, "extents where there is room for two", m.mapped, 2)
		const last = 1
		eq(t, "flag of the second", m.extents[1].flags&last, 0)
		m = t.fiemapOf(fd, 3*4096, 4096, 0, 32)
		eq(t, "extents in one block", m.mapped, 1)
		eq(t, "its place", m.extents[0].logical, uint64(3*4096))
	}},
	{"fiemap/behind-the-end", func(t *T) {
		fd := t.create("file", "x")
		t.ok(unix.Fallocate(fd, unix.FALLOC_FL_KEEP_SIZE, 0, 4*4096))
		t.ok(unix.Fsync(fd))
		m := t.fiemap(fd, 0)
		total := uint64(0)
		for _, e := range m.extents[:m.mapped] {
			total += e.length
		}
		eq(t, "bytes mapped", total, uint64(4*4096))
	}},
	{"fiemap/errors", func(t *T) {
		fd := t.create("file", "x")
		m := &fiemap{length: ^uint64(0), flags: 0x1000, room: 32}
		t.fails(ioctl(fd, ioctlFIEMAP, m), unix.EBADR)
		eq(t, "flags that are not known", m.flags, 0x1000)
		t.fails(ioctl(fd, ioctlFIEMAP, &fiemap{}), unix.EINVAL)
		t.fails(ioctl(fd, ioctlFIEMAP, &fiemap{start: 1 << 62, length: 1}), unix.EFBIG)
		t.fails(ioctl(fd, ioctlFIEMAP, &fiemap{length: 1, room: 1 << 30}), unix.EINVAL)
	}},
	{"fiemap/extents", func(t *T) {
		fd := t.create("file", "")
		t.pwrite(fd, strings.Repeat("x", 64<<10), 0)
		t.pwrite(fd, strings.Repeat("y", 64<<10), 1<<20)
		t.ok(unix.Fsync(fd))
		m := t.fiemap(fd, 0)
		t.that(m.mapped >= 2, "%d extents", m.mapped)
		total := uint64(0)
		for _, e := range m.extents[:m.mapped] {
			total += e.length
			t.that(e.physical != 0, "an extent has no address")
		}
		eq(t, "bytes mapped", total, 128<<10)
		const last = 1
		eq(t, "flag of the last extent", m.extents[m.mapped-1].flags&last, last)
	}},
	{"fiemap/sync-first", func(t *T) {
		const syncFirst, unknown, delayed = 1, 0x2, 0x4
		fd := t.create("file", strings.Repeat("x", 64<<10))
		m := t.fiemap(fd, syncFirst)
		t.that(m.mapped >= 1, "no extents")
		eq(t, "flags of extents without an address", m.extents[0].flags&(unknown|delayed), 0)
	}},
	{"fiemap/unwritten", func(t *T) {
		const unwritten = 0x800
		fd := t.create("file", "")
		t.ok(unix.Fallocate(fd, 0, 0, 1<<20))
		m := t.fiemap(fd, 0)
		t.that(m.mapped >= 1 && m.extents[0].flags&unwritten != 0, "preallocated space is not unwritten")
	}},
}

// fiemap is what FS_IOC_FIEMAP takes and gives, with room for 32 extents.
type fiemap struct {
	start, length                   uint64
	flags, mapped, room, reserved32 uint32
	extents                         [32]struct {
		logical, physical, length uint64
		reserved64                [2]uint64
		flags                     uint32
		reserved32                [3]uint32
	}
}

func (t *T) fiemap(fd int, flags uint32) *fiemap { return t.fiemapOf(fd, 0, ^uint64(0), flags, 32) }

func (t *T) fiemapOf(fd int, start, length uint64, flags, room uint32) *fiemap {
	m := &fiemap{start: start, length: length, flags: flags, room: room}
	t.ok(ioctl(fd, ioctlFIEMAP, m))
	runtime.KeepAlive(m)
	return m
}
