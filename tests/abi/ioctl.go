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

func (t *T) fiemap(fd int, flags uint32) *fiemap {
	m := &fiemap{length: ^uint64(0), flags: flags, room: 32}
	t.ok(ioctl(fd, ioctlFIEMAP, m))
	runtime.KeepAlive(m)
	return m
}
