package main

import (
	"math"
	"strings"

	"golang.org/x/sys/unix"
)

// cloneRange makes n bytes at dstOff of a file the same as those at srcOff of
// another; n 0 means up to its end.
func cloneRange(dst, src int, srcOff, n, dstOff uint64) error {
	return unix.IoctlFileCloneRange(dst, &unix.FileCloneRange{Src_fd: int64(src), Src_offset: srcOff, Src_length: n, Dest_offset: dstOff})
}

// dedupe asks for n bytes at off of both files to be shared, and returns how
// many were, and the status.
func (t *T) dedupe(src, dst int, off, n uint64) (done uint64, status int32) {
	r := unix.FileDedupeRange{Src_offset: off, Src_length: n, Info: []unix.FileDedupeRangeInfo{{Dest_fd: int64(dst), Dest_offset: off}}}
	t.ok(unix.IoctlFileDedupeRange(src, &r))
	return r.Info[0].Bytes_deduped, r.Info[0].Status
}

const statusDiffers = unix.FILE_DEDUPE_RANGE_DIFFERS

func reflinkChecks() []check {
	all := blocksOf(20) + "tail"
	return []check{
		{"clone/whole-file", func(t *T) {
			from, to := t.create("from", all), t.create("to", "")
			t.ok(unix.IoctlFileClone(to, from))
			t.eqText("content", t.content("to"), all)
			eq(t, "size", t.fstat(to).size, int64(len(all)))
			t.ok(unix.Fsync(to))
			eq(t, "blocks", t.fstat(to).blocks, 21*8)
			eq(t, "offsets", t.offset(from)+t.offset(to), 0)
		}},
		{"clone/of-an-empty-file", func(t *T) {
			to := t.create("to", "content")
			t.ok(unix.IoctlFileClone(to, t.create("from", "")))
			t.eqText("content", t.content("to"), "content")
		}},
		{"clone/never-shrinks", func(t *T) {
			from, to := t.create("from", blocksOf(2)), t.create("to", strings.Repeat("x", 4*4096))
			t.ok(unix.IoctlFileClone(to, from))
			t.eqText("content", t.all(to), blocksOf(2)+strings.Repeat("x", 2*4096))
		}},
		{"clone/ranges", func(t *T) {
			from, to := t.create("from", all), t.create("to", strings.Repeat("x", 10*4096))
			t.ok(cloneRange(to, from, 4096, 2*4096, 5*4096))
			want := strings.Repeat("x", 5*4096) + all[4096:3*4096] + strings.Repeat("x", 3*4096)
			t.eqText("content", t.all(to), want)
			t.ok(cloneRange(to, from, 20*4096, 0, 12*4096)) // grows, over a hole
			t.eqText("content", t.all(to), want+zeroes(2*4096)+"tail")
			t.ok(cloneRange(from, from, 0, 3*4096, 10*4096))
			t.eqText("content within a file", t.all(from), all[:10*4096]+all[:3*4096]+all[13*4096:])
		}},
		{"clone/files-stay-apart", func(t *T) {
			from, to := t.create("from", all), t.create("to", "")
			t.ok(unix.IoctlFileClone(to, from))
			t.pwrite(from, "source", 4000)
			t.pwrite(to, "target", 9000)
			t.ok(unix.Ftruncate(to, 15*4096+7))
			t.ok(unix.Fallocate(from, punchHole, 16*4096, 4096))
			fromWant := all[:4000] + "source" + all[4006:16*4096] + zeroes(4096) + all[17*4096:]
			toWant := all[:9000] + "target" + all[9006:15*4096+7]
			for range 2 {
				t.eqText("source", t.all(from), fromWant)
				t.eqText("target", t.all(to), toWant)
				t.ok(unix.Fsync(from))
				t.ok(unix.Fsync(to))
			}
			t.ok(unix.Unlink(t.p("from")))
			t.eqText("target", t.all(to), toWant)
		}},
		{"clone/holes", func(t *T) {
			from, to := t.create("from", ""), t.create("to", strings.Repeat("x", 8*4096))
			t.ok(unix.Fallocate(from, 0, 0, 2*4096))
			t.ok(unix.Ftruncate(from, 8*4096))
			t.pwrite(from, "data", 6*4096)
			t.ok(unix.IoctlFileClone(to, from))
			t.eqText("content", t.all(to), zeroes(6*4096)+"data"+zeroes(2*4096-4))
		}},
		{"clone/nothing-behind-the-end", func(t *T) {
			from, to := t.create("from", strings.Repeat("x", 8192)), t.create("to", "")
			t.ok(unix.Fsync(from))
			t.ok(unix.Ftruncate(from, 5000))
			t.ok(unix.IoctlFileClone(to, from))
			t.ok(unix.Ftruncate(to, 8192))
			t.eqText("content", t.all(to), strings.Repeat("x", 5000)+zeroes(3192))
		}},
		{"clone/mapped-files", func(t *T) {
			from, to := t.create("from", all), t.create("to", strings.Repeat("x", 4*4096))
			src, dst := t.mmap(from, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED), t.mmap(to, 2*4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
			copy(src, "stored")
			copy(dst[4096:], "overwritten")
			t.ok(cloneRange(to, from, 0, 4*4096, 0))
			t.eqText("mapping of the target", string(dst), "stored"+all[6:2*4096])
			copy(src, "later")
			t.eqText("target", t.all(to), "stored"+all[6:4*4096])
			copy(dst, "other")
			t.ok(unix.Msync(dst, unix.MS_SYNC))
			t.eqText("source", t.all(from), "laterd"+all[6:])
			t.eqText("target", t.all(to), "otherd"+all[6:4*4096])
		}},
		{"clone/alignment", func(t *T) {
			from, to := t.create("from", all), t.create("to", strings.Repeat("x", 4*4096))
			t.fails(cloneRange(to, from, 100, 4096, 0), unix.EINVAL)
			t.fails(cloneRange(to, from, 0, 4096, 100), unix.EINVAL)
			t.fails(cloneRange(to, from, 0, 100, 0), unix.EINVAL)
			t.fails(cloneRange(to, from, 20*4096, 4, 4096), unix.EINVAL) // ends within a block of the target
			t.ok(cloneRange(to, from, 20*4096, 4, 4*4096))
			t.eqText("content", t.all(to), strings.Repeat("x", 4*4096)+"tail")
		}},
		{"clone/beyond-the-end", func(t *T) {
			from, to := t.create("from", all), t.create("to", "")
			t.fails(cloneRange(to, from, 20*4096, 4096, 0), unix.EINVAL)
			t.fails(cloneRange(to, from, 24*4096, 4096, 0), unix.EINVAL)
			t.fails(cloneRange(to, from, 24*4096, 0, 0), unix.EINVAL)
			t.fails(cloneRange(to, from, 0, math.MaxUint64, 0), unix.EINVAL)
			t.fails(cloneRange(to, from, 0, 4096, math.MaxInt64&^4095), unix.EINVAL, unix.EFBIG)
			eq(t, "size", t.fstat(to).size, 0)
		}},
		{"clone/overlap", func(t *T) {
			fd := t.create("file", blocksOf(8))
			t.fails(cloneRange(fd, fd, 0, 2*4096, 4096), unix.EINVAL)
			t.fails(cloneRange(fd, fd, 4096, 2*4096, 0), unix.EINVAL)
			t.fails(unix.IoctlFileClone(fd, fd), unix.EINVAL)
			t.eqText("content", t.all(fd), blocksOf(8))
		}},
		{"clone/descriptors", func(t *T) {
			from, to := t.create("from", all), t.create("to", "")
			t.mkdir("dir")
			dir := t.open("dir", unix.O_RDONLY)
			t.fails(unix.IoctlFileClone(to, -1), unix.EBADF)
			t.fails(unix.IoctlFileClone(-1, from), unix.EBADF)
			t.fails(unix.IoctlFileClone(to, t.open("from", unix.O_WRONLY)), unix.EBADF)
			t.fails(unix.IoctlFileClone(to, t.open("from", unix.O_PATH)), unix.EBADF)
			t.fails(unix.IoctlFileClone(t.open("to", unix.O_RDONLY), from), unix.EBADF)
			t.fails(unix.IoctlFileClone(t.open("to", unix.O_WRONLY|unix.O_APPEND), from), unix.EBADF)
			t.fails(unix.IoctlFileClone(to, dir), unix.EISDIR)
			t.fails(unix.IoctlFileClone(dir, from), unix.EISDIR)
			t.fails(unix.IoctlFileClone(to, t.pipe().r), unix.EXDEV)
			_, err := syscall(unix.SYS_IOCTL, uintptr(to), unix.FICLONERANGE, 1)
			t.fails(err, unix.EFAULT)
		}},
		{"clone/size-limit", func(t *T) {
			from, to := t.create("from", blocksOf(8)), t.create("to", "")
			t.limited(4*4096, func() {
				t.fails(cloneRange(to, from, 0, 4096, 4*4096), unix.EFBIG)
				t.fails(cloneRange(to, from, 0, 2*4096, 3*4096), unix.EINVAL)
				t.ok(cloneRange(to, from, 0, 4096, 3*4096))
			})
		}},
		{"clone/times", func(t *T) {
			from, to := t.create("from", all), t.create("to", "")
			past := []unix.Timespec{{Sec: 1000}, {Sec: 1000}}
			t.ok(unix.UtimesNanoAt(unix.AT_FDCWD, t.p("to"), past, 0))
			t.ok(unix.UtimesNanoAt(unix.AT_FDCWD, t.p("from"), past, 0))
			t.ok(unix.IoctlFileClone(to, from))
			t.that(t.stat("to").mtime > 1000*1e9, "mtime of the target is %d", t.stat("to").mtime)
			eq(t, "mtime of the source", t.stat("from").mtime, int64(1000*1e9))
		}},
		{"clone/clears-set-id", func(t *T) {
			t.file("from", all)
			t.file("to", "")
			t.own("to", alice)
			t.chmod("from", 0o644)
			t.chmod("to", 0o4777)
			t.as(alice, func() {
				t.ok(unix.IoctlFileClone(t.open("to", unix.O_WRONLY), t.open("from", unix.O_RDONLY)))
			})
			t.octal("mode", t.stat("to").mode&0o7777, 0o777)
		}},
		{"clone/is-noticed", func(t *T) {
			from, to := t.create("from", all), t.create("to", "")
			in := t.inotify()
			must[int](t)(unix.InotifyAddWatch(in, t.p("to"), unix.IN_MODIFY))
			t.ok(unix.IoctlFileClone(to, from))
			eq(t, "events", len(t.events(in)), 1)
		}},
		{"dedupe/same", func(t *T) {
			from, to := t.create("from", all), t.create("to", all)
			done, status := t.dedupe(from, to, 0, uint64(len(all)))
			eq(t, "status", status, 0)
			eq(t, "bytes", done, uint64(len(all)))
			t.eqText("content", t.all(to), all)
			t.pwrite(from, "x", 0)
			t.eqText("content", t.all(to), all)
		}},
		{"dedupe/differs", func(t *T) {
			from, to := t.create("from", all), t.create("to", all[:50000]+"X"+all[50001:])
			done, status := t.dedupe(from, to, 0, uint64(len(all)))
			eq(t, "status", status, statusDiffers)
			eq(t, "bytes", done, 0)
			t.eqText("content", t.all(to), all[:50000]+"X"+all[50001:])
		}},
		{"dedupe/many-targets", func(t *T) {
			from, same, other := t.create("from", all), t.create("same", all), t.create("other", strings.Repeat("x", 8192))
			r := unix.FileDedupeRange{Src_length: 8192, Info: []unix.FileDedupeRangeInfo{
				{Dest_fd: int64(same)}, {Dest_fd: int64(other)}, {Dest_fd: -1}, {Dest_fd: int64(same), Dest_offset: 100},
			}}
			t.ok(unix.IoctlFileDedupeRange(from, &r))
			for n, want := range []int32{0, statusDiffers, -int32(unix.EBADF), -int32(unix.EINVAL)} {
				eq(t, "status", r.Info[n].Status, want)
			}
			eq(t, "bytes", r.Info[0].Bytes_deduped, 8192)
		}},
		{"dedupe/errors", func(t *T) {
			from, to := t.create("from", all), t.create("to", all)
			t.mkdir("dir")
			dir := t.open("dir", unix.O_RDONLY)
			_, status := t.dedupe(from, dir, 0, 4096)
			eq(t, "status of a directory", status, -int32(unix.EISDIR))
			_, status = t.dedupe(from, from, 0, 4096)
			eq(t, "status of an overlap", status, -int32(unix.EINVAL))
			t.ok(unix.Ftruncate(to, 4096))
			_, status = t.dedupe(from, to, 0, 8192)
			eq(t, "status beyond the end of the target", status, -int32(unix.EINVAL))
			info := []unix.FileDedupeRangeInfo{{Dest_fd: int64(to)}}
			t.fails(unix.IoctlFileDedupeRange(from, &unix.FileDedupeRange{Src_length: 1 << 20, Info: info}), unix.EINVAL)
			t.fails(unix.IoctlFileDedupeRange(t.open("from", unix.O_WRONLY), &unix.FileDedupeRange{Src_length: 4096, Info: info}), unix.EINVAL)
			t.fails(unix.IoctlFileDedupeRange(from, &unix.FileDedupeRange{Src_length: 4096, Reserved1: 1, Info: info}), unix.EINVAL)
			t.fails(unix.IoctlFileDedupeRange(dir, &unix.FileDedupeRange{Src_length: 4096, Info: info}), unix.EISDIR)
			t.fails(unix.IoctlFileDedupeRange(from, &unix.FileDedupeRange{Src_length: 4096, Info: make([]unix.FileDedupeRangeInfo, 200)}), unix.ENOMEM)
			_, err := syscall(unix.SYS_IOCTL, uintptr(from), unix.FIDEDUPERANGE, 1)
			t.fails(err, unix.EFAULT)
		}},
		{"dedupe/who-may", func(t *T) {
			t.file("from", all)
			t.file("to", all)
			t.chmod("from", 0o644)
			t.chmod("to", 0o644)
			dedupe := func() int32 {
				_, status := t.dedupe(t.open("from", unix.O_RDONLY), t.open("to", unix.O_RDONLY), 0, 4096)
				return status
			}
			t.as(alice, func() { eq(t, "status for a reader", dedupe(), -int32(unix.EPERM)) })
			t.own("to", alice)
			t.as(alice, func() { eq(t, "status for the owner", dedupe(), 0) })
			eq(t, "status for root", dedupe(), 0)
		}},
		{"fallocate/unshare", func(t *T) {
			from, to := t.create("from", all), t.create("to", "")
			t.ok(unix.IoctlFileClone(to, from))
			t.ok(unix.Fallocate(to, unix.FALLOC_FL_UNSHARE_RANGE, 0, int64(len(all))))
			t.eqText("content", t.all(to), all)
			t.pwrite(to, "x", 0)
			t.eqText("source", t.all(from), all)
			t.fails(unix.Fallocate(to, unix.FALLOC_FL_UNSHARE_RANGE|zeroRange, 0, 4096), unix.EOPNOTSUPP, unix.EINVAL)
		}},
		{"copy-file-range/shared", func(t *T) {
			from, to := t.create("from", all), t.create("to", strings.Repeat("x", 30*4096))
			in, out := int64(4096), int64(8192)
			for in < 21*4096 {
				n := must[int](t)(unix.CopyFileRange(from, &in, to, &out, 1<<40, 0))
				if n == 0 {
					break
				}
			}
			eq(t, "source offset", in, int64(len(all)))
			t.eqText("content", t.all(to), strings.Repeat("x", 8192)+all[4096:]+strings.Repeat("x", 30*4096-len(all)-4096))
			t.pwrite(from, "later", 4096)
			t.eqText("content", t.pread(to, 5, 8192), all[4096:4101])
		}},
	}
}
