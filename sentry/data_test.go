package sentry

import (
	"bytes"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/sentry/arch"
	"gvisor.dev/gvisor/pkg/sentry/limits"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/usermem"

	"runsc-fs/blobfs"
)

func (e *env) pwrite(fd *vfs.FileDescription, off int64, content string, flags uint32) (int64, error) {
	return fd.PWrite(e.ctx, usermem.BytesIOSequence([]byte(content)), off, vfs.WriteOptions{Flags: flags})
}

func TestReadWrite(t *testing.T) {
	e := newEnv(t)
	fd := e.mustOpen("f", linux.O_CREAT|linux.O_RDWR)
	e.write(fd, "hello ")
	e.write(fd, "world")
	if got := e.pread(fd, 0, 100); got != "hello world" {
		t.Errorf("read %q", got)
	}
	buf := make([]byte, 10)
	if n, err := fd.Read(e.ctx, usermem.BytesIOSequence(buf), vfs.ReadOptions{}); n != 0 || err != io.EOF {
		t.Errorf("read at the end: %d, %v", n, err)
	}
	if off, err := fd.Seek(e.ctx, -5, linux.SEEK_END); off != 6 || err != nil {
		t.Errorf("seek: %d, %v", off, err)
	}
	if n, err := fd.Read(e.ctx, usermem.BytesIOSequence(buf[:3]), vfs.ReadOptions{}); n != 3 || err != nil || string(buf[:3]) != "wor" {
		t.Errorf("read: %d, %v, %q", n, err, buf[:3])
	}
	if n, err := e.pwrite(fd, 20, "!", 0); n != 1 || err != nil {
		t.Errorf("write beyond the end: %d, %v", n, err)
	}
	if got := e.pread(fd, 0, 100); got != "hello world"+strings.Repeat("\x00", 9)+"!" {
		t.Errorf("read %q", got)
	}
	if off, err := fd.Seek(e.ctx, 0, linux.SEEK_CUR); off != 9 || err != nil {
		t.Errorf("positioned writes moved the offset to %d, %v", off, err)
	}
	_, err := fd.PRead(e.ctx, usermem.BytesIOSequence(buf), -1, vfs.ReadOptions{})
	wantErrno(t, "read at a negative offset", err, linuxerr.EINVAL)
	_, err = fd.PRead(e.ctx, usermem.BytesIOSequence(buf), 0, vfs.ReadOptions{Flags: 0x1000})
	wantErrno(t, "read with an unknown flag", err, linuxerr.EOPNOTSUPP)
	ro := e.mustOpen("f", linux.O_RDONLY)
	_, err = e.pwrite(ro, 0, "x", 0)
	wantErrno(t, "write to a read-only description", err, linuxerr.EBADF)
	trunc := e.mustOpen("f", linux.O_RDWR|linux.O_TRUNC)
	if st, _ := trunc.Stat(e.ctx, vfs.StatOptions{}); st.Size != 0 {
		t.Errorf("O_TRUNC left %d bytes", st.Size)
	}
}

func TestAppend(t *testing.T) {
	e := newEnv(t)
	a := e.mustOpen("log", linux.O_CREAT|linux.O_WRONLY|linux.O_APPEND)
	b := e.mustOpen("log", linux.O_RDWR)
	e.write(a, "one ")
	if _, err := e.pwrite(b, 4, "two ", 0); err != nil {
		t.Fatal(err)
	}
	e.write(a, "three ")
	if off, err := a.Seek(e.ctx, 0, linux.SEEK_CUR); off != 14 || err != nil {
		t.Errorf("the offset is %d after appending, %v", off, err)
	}
	if n, err := e.pwrite(a, 0, "four ", 0); n != 5 || err != nil {
		t.Errorf("pwrite to an appending description: %d, %v", n, err)
	}
	if n, err := e.pwrite(a, 0, "ONE", rwfNoAppend); n != 3 || err != nil {
		t.Errorf("RWF_NOAPPEND: %d, %v", n, err)
	}
	if n, err := e.pwrite(b, 0, "five", rwfAppend); n != 4 || err != nil {
		t.Errorf("RWF_APPEND: %d, %v", n, err)
	}
	if got, want := e.content("log"), "ONE two three four five"; got != want {
		t.Errorf("read %q, not %q", got, want)
	}
}

func TestSyncedWrites(t *testing.T) {
	e := newEnv(t)
	for _, c := range []struct{ open, write uint32 }{
		{linux.O_DSYNC, 0}, {linux.O_SYNC | linux.O_DSYNC, 0}, {0, linux.RWF_DSYNC}, {0, linux.RWF_SYNC}, {linux.O_DIRECT, linux.RWF_DSYNC},
	} {
		fd := e.mustOpen("f", linux.O_CREAT|linux.O_RDWR|c.open)
		page := strings.Repeat("s", 4096)
		if n, err := e.pwrite(fd, 0, page, c.write); n != 4096 || err != nil {
			t.Errorf("flags %#o, %#x: %d, %v", c.open, c.write, n, err)
		}
		if got := e.pread(fd, 0, 4096); got != page {
			t.Errorf("flags %#o, %#x: read back something else", c.open, c.write)
		}
		wantErrno(t, "fsync", fd.Sync(e.ctx), nil)
	}
	dir := e.mustOpen("/", linux.O_RDONLY|linux.O_DIRECTORY)
	wantErrno(t, "fsync of a directory", dir.Sync(e.ctx), nil)
	wantErrno(t, "syncfs", dir.SyncFS(e.ctx), nil)
	wantErrno(t, "sync", e.vfs.SyncAllFilesystems(e.ctx), nil)
}

func TestDirectIO(t *testing.T) {
	e := newEnv(t)
	fd := e.mustOpen("f", linux.O_CREAT|linux.O_RDWR|linux.O_DIRECT)
	want := bytes.Repeat([]byte("direct!!"), 4096)
	if n, err := e.pwrite(fd, 4096, string(want), 0); n != int64(len(want)) || err != nil {
		t.Fatalf("write: %d, %v", n, err)
	}
	buffered := e.mustOpen("f", linux.O_RDWR)
	if got := e.pread(buffered, 4096, len(want)); got != string(want) {
		t.Error("a buffered read does not see a direct write")
	}
	if _, err := e.pwrite(buffered, 4096, "BUFFERED", 0); err != nil {
		t.Fatal(err)
	}
	if got := e.pread(fd, 4096, 4096); got[:8] != "BUFFERED" {
		t.Error("a direct read does not see a buffered write")
	}
	_, err := e.pwrite(fd, 1, strings.Repeat("x", 4096), 0)
	wantErrno(t, "unaligned direct write", err, linuxerr.EINVAL)
	_, err = fd.PRead(e.ctx, usermem.BytesIOSequence(make([]byte, 100)), 0, vfs.ReadOptions{})
	wantErrno(t, "unaligned direct read", err, linuxerr.EINVAL)
	// Who reads to the end asks once more there, wherever that is.
	if err := fd.SetStat(e.ctx, vfs.SetStatOptions{Stat: linux.Statx{Mask: linux.STATX_SIZE, Size: 4196}}); err != nil {
		t.Fatal(err)
	}
	if got := e.pread(fd, 4096, 4096); len(got) != 100 {
		t.Errorf("a direct read over the end gives %d bytes", len(got))
	}
	_, err = fd.PRead(e.ctx, usermem.BytesIOSequence(make([]byte, 4096)), 4196, vfs.ReadOptions{})
	if err != io.EOF {
		t.Errorf("a direct read at an unaligned end: %v", err)
	}
}

func TestSeekDataAndHoles(t *testing.T) {
	e := newEnv(t)
	fd := e.mustOpen("f", linux.O_CREAT|linux.O_RDWR)
	if _, err := e.pwrite(fd, 1<<20, "data", 0); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		off    int64
		whence int32
		want   int64
	}{
		{0, linux.SEEK_DATA, 1 << 20},
		{0, linux.SEEK_HOLE, 0},
		{1 << 20, linux.SEEK_HOLE, 1<<20 + 4},
		{1<<20 + 2, linux.SEEK_DATA, 1<<20 + 2},
	} {
		if got, err := fd.Seek(e.ctx, c.off, c.whence); got != c.want || err != nil {
			t.Errorf("seek(%d, %d) = %d, %v; want %d", c.off, c.whence, got, err, c.want)
		}
	}
	for _, whence := range []int32{linux.SEEK_DATA, linux.SEEK_HOLE} {
		_, err := fd.Seek(e.ctx, 1<<20+4, whence)
		wantErrno(t, "seek from the end", err, linuxerr.ENXIO)
		_, err = fd.Seek(e.ctx, -1, whence)
		wantErrno(t, "seek from a negative offset", err, linuxerr.ENXIO)
	}
	_, err := fd.Seek(e.ctx, -1, linux.SEEK_SET)
	wantErrno(t, "seek to a negative offset", err, linuxerr.EINVAL)
	_, err = fd.Seek(e.ctx, 1<<62, linux.SEEK_SET)
	wantErrno(t, "seek beyond the largest file", err, linuxerr.EINVAL)
	_, err = fd.Seek(e.ctx, 0, 17)
	wantErrno(t, "seek with an unknown whence", err, linuxerr.EINVAL)
}

func TestAllocate(t *testing.T) {
	e := newEnv(t)
	fd := e.mustOpen("f", linux.O_CREAT|linux.O_RDWR)
	wantErrno(t, "allocate", fd.Allocate(e.ctx, 0, 0, 10000), nil)
	st, _ := fd.Stat(e.ctx, vfs.StatOptions{})
	if st.Size != 10000 || st.Blocks < 20 {
		t.Errorf("size %d, %d blocks", st.Size, st.Blocks)
	}
	wantErrno(t, "allocate beyond the end", fd.Allocate(e.ctx, uint64(blobfs.FallocKeepSize), 20000, 10000), nil)
	if st, _ := fd.Stat(e.ctx, vfs.StatOptions{}); st.Size != 10000 {
		t.Errorf("size %d", st.Size)
	}
	if _, err := e.pwrite(fd, 0, strings.Repeat("x", 10000), 0); err != nil {
		t.Fatal(err)
	}
	wantErrno(t, "punch", fd.Allocate(e.ctx, uint64(blobfs.FallocKeepSize|blobfs.FallocPunchHole), 4096, 4096), nil)
	want := strings.Repeat("x", 4096) + strings.Repeat("\x00", 4096) + strings.Repeat("x", 10000-8192)
	if got := e.pread(fd, 0, 10000); got != want {
		t.Error("the hole is not where it should be")
	}
	wantErrno(t, "unknown mode", fd.Allocate(e.ctx, 0x80, 0, 4096), linuxerr.EOPNOTSUPP)
	wantErrno(t, "beyond the largest file", fd.Allocate(e.ctx, 0, 1<<62, 4096), linuxerr.EFBIG)
	wantErrno(t, "more than there is", fd.Allocate(e.ctx, 0, 0, 1<<30), linuxerr.ENOSPC)
}

func TestFullVolume(t *testing.T) {
	e := newEnvWith(t, Config{}, 16<<20)
	fd := e.mustOpen("f", linux.O_CREAT|linux.O_RDWR)
	chunk := strings.Repeat("z", 256<<10)
	total := int64(0)
	for {
		n, err := e.pwrite(fd, total, chunk, 0)
		total += n
		if err != nil {
			wantErrno(t, "write to a full volume", err, linuxerr.ENOSPC)
			break
		}
		if total > 16<<20 {
			t.Fatal("more was written than fits")
		}
	}
	wantErrno(t, "fsync on a full volume", fd.Sync(e.ctx), nil)
	if got := e.pread(fd, total-10, 10); got != "zzzzzzzzzz" {
		t.Errorf("the last bytes read %q", got)
	}
	wantErrno(t, "unlink on a full volume", e.unlink(e.ctx, "f"), nil)
	st, err := e.vfs.StatFSAt(e.ctx, e.ctx.creds, e.pop("/"))
	if err != nil || st.Type != filesystemMagic || st.NameLength != 255 || st.BlockSize != 4096 || st.Blocks == 0 || st.BlocksAvailable > st.BlocksFree {
		t.Errorf("statfs: %+v, %v", st, err)
	}
}

func TestFileSizeLimit(t *testing.T) {
	e := newEnv(t)
	fd := e.mustOpen("f", linux.O_CREAT|linux.O_RDWR)
	e.limits.SetUnchecked(limits.FileSize, limits.Limit{Cur: 10, Max: 10})
	if n, err := e.pwrite(fd, 5, "0123456789", 0); n != 5 || err != nil {
		t.Errorf("write across the limit: %d, %v", n, err)
	}
	if _, err := e.pwrite(fd, 10, "x", 0); err != linuxerr.ErrExceedsFileSizeLimit {
		t.Errorf("write beyond the limit: %v", err)
	}
	e.limits.SetUnchecked(limits.FileSize, limits.Limit{Cur: limits.Infinity, Max: limits.Infinity})
	_, err := e.pwrite(fd, blobfs.MaxFileSizeBytes, "x", 0)
	wantErrno(t, "write beyond the largest file", err, linuxerr.EFBIG)
}

func TestReadableBytes(t *testing.T) {
	e := newEnv(t)
	e.create("f", "0123456789")
	fd := e.mustOpen("f", linux.O_RDONLY)
	if _, err := fd.Seek(e.ctx, 3, linux.SEEK_SET); err != nil {
		t.Fatal(err)
	}
	uio := &usermem.BytesIO{Bytes: make([]byte, 8)}
	args := arch.SyscallArguments{1: {Value: linux.FIONREAD}, 2: {Value: 4}}
	if _, err := fd.Ioctl(e.ctx, uio, 0, args); err != nil || uio.Bytes[4] != 7 {
		t.Errorf("FIONREAD: %v, %v", uio.Bytes, err)
	}
	args[1].Value = linux.TCGETS
	_, err := fd.Ioctl(e.ctx, uio, 0, args)
	wantErrno(t, "TCGETS", err, linuxerr.ENOTTY)
}

// TestAgainstModel compares random reads, writes and truncations with a plain
// byte slice.
func TestAgainstModel(t *testing.T) {
	e := newEnv(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	fds := []*vfs.FileDescription{
		e.mustOpen("f", linux.O_CREAT|linux.O_RDWR),
		e.mustOpen("f", linux.O_RDWR),
	}
	var model []byte
	const most = 300 << 10
	for step := range 2000 {
		fd := fds[rng.IntN(len(fds))]
		off, size := rng.IntN(most), 1+rng.IntN(20<<10)
		switch op := rng.IntN(10); {
		case op < 4:
			data := make([]byte, size)
			for n := range data {
				data[n] = byte(rng.Uint32())
			}
			if n, err := e.pwrite(fd, int64(off), string(data), 0); n != int64(size) || err != nil {
				t.Fatalf("step %d: write %d at %d: %d, %v", step, size, off, n, err)
			}
			if grow := off + size - len(model); grow > 0 {
				model = append(model, make([]byte, grow)...)
			}
			copy(model[off:], data)
		case op < 8:
			want := ""
			if off < len(model) {
				want = string(model[off:min(off+size, len(model))])
			}
			if got := e.pread(fd, int64(off), size); got != want {
				t.Fatalf("step %d: read %d at %d differs (%d and %d bytes)", step, size, off, len(got), len(want))
			}
		case op == 8:
			if err := e.setStat(e.ctx, "f", linux.Statx{Mask: linux.STATX_SIZE, Size: uint64(off)}); err != nil {
				t.Fatalf("step %d: truncate to %d: %v", step, off, err)
			}
			if off <= len(model) {
				model = model[:off]
			} else {
				model = append(model, make([]byte, off-len(model))...)
			}
			// What append may reuse must read as zeroes after growing again.
			clear(model[len(model):cap(model)])
		default:
			if err := fd.Sync(e.ctx); err != nil {
				t.Fatalf("step %d: fsync: %v", step, err)
			}
		}
	}
	if got := e.content("f"); got != string(model) {
		t.Error("the file differs from the model in the end")
	}
}
