package blobfs

import (
	"bytes"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"runsc-fs/nvme"
	"runsc-fs/nvme/crashdev"
)

// countingDevice counts what is asked of a device.
type countingDevice struct {
	nvme.BlockDevice
	writes, fua, flushes int
}

func (d *countingDevice) Do(reqs []nvme.Request) error {
	for k := range reqs {
		switch r := &reqs[k]; {
		case r.Op == nvme.OpFlush:
			d.flushes++
		case r.Op == nvme.OpWrite && r.FUA:
			d.fua++
		case r.Op == nvme.OpWrite:
			d.writes++
		}
	}
	return d.BlockDevice.Do(reqs)
}

// newCountingEnv is newEnv on a device with a volatile cache.
func newCountingEnv(t *testing.T) (*env, *countingDevice) {
	disk, err := crashdev.New(crashdev.Options{SizeBytes: 32 << 20})
	if err != nil {
		t.Fatal(err)
	}
	arena, err := nvme.NewArena(nvme.ArenaOptions{SizeBytes: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { arena.Close() })
	d := &countingDevice{BlockDevice: disk.Device(arena)}
	e := &env{t: t, dev: d, now: 1 << 60}
	e.must(Mkfs(e.dev, MkfsOptions{}))
	e.mount()
	t.Cleanup(func() { e.fs.Close() })
	return e, d
}

// TestDeviceCommandsOfSyncs pins what a durable write costs.
func TestDeviceCommandsOfSyncs(t *testing.T) {
	e, d := newCountingEnv(t)
	root := e.fs.Root()
	defer root.DecRef()
	f, other := e.create(root, "f", ModeRegular|0o644), e.create(root, "other", ModeRegular|0o644)
	defer f.DecRef()
	defer other.DecRef()
	e.write(f, 0, pattern(1, 64<<10), 0)
	e.must(e.fs.Sync(nil))
	f.dropAllPages()
	block := pattern(2, BlockSizeBytes)
	for _, c := range []struct {
		what                 string
		do                   func()
		writes, fua, flushes int
	}{
		{"direct overwrite, O_DSYNC", func() { e.write(f, 4096, block, IODirect|IODSync) }, 0, 1, 0},
		{"the same with unflushed data of another file", func() {
			e.write(other, 0, block, 0)
			e.must(other.writeBackAll())
			d.writes = 0
			e.write(f, 4096, block, IODirect|IODSync)
		}, 0, 1, 0}, // which the call does not wait for
		{"direct overwrite, O_SYNC", func() { e.write(f, 8192, block, IODirect|IOSync) }, 0, 1 + 1, 0},
		{"direct overwrite and fsync", func() {
			e.write(f, 4096, block, IODirect)
			e.must(f.Fsync(nil, true))
		}, 1, 0, 1},
		{"buffered overwrite, O_DSYNC", func() { e.write(f, 12288, block, IODSync) }, 1, 0, 1},
		{"append and fdatasync", func() {
			e.write(f, f.Size(), block, 0)
			e.must(f.Fsync(nil, true))
		}, 1, 1, 1},
		{"buffered overwrite and fsync", func() { // data and times
			e.write(f, 4096, block, 0)
			e.must(f.Fsync(nil, false))
		}, 2, 0, 1},
		{"nothing and fsync", func() { e.must(f.Fsync(nil, true)) }, 0, 0, 0},
	} {
		if err := e.fs.Sync(nil); err != nil {
			t.Fatal(err)
		}
		d.writes, d.fua, d.flushes = 0, 0, 0
		c.do()
		if d.writes != c.writes || d.fua != c.fua || d.flushes != c.flushes {
			t.Errorf("%s: %d writes, %d durable ones, %d flushes; expected %d, %d, %d", c.what, d.writes, d.fua, d.flushes, c.writes, c.fua, c.flushes)
		}
	}
}

// meetingSource waits in the middle of a write until another write is there, too.
type meetingSource struct {
	bytesSource
	met *sync.WaitGroup
}

func (s *meetingSource) CopyIn(b []byte) (int, error) {
	s.met.Done()
	s.met.Wait()
	return s.bytesSource.CopyIn(b)
}

// TestOverwritesGoOnTogether makes two direct writes of one file meet.
func TestOverwritesGoOnTogether(t *testing.T) {
	e := newEnv(t, 32<<20)
	root := e.fs.Root()
	defer root.DecRef()
	f := e.create(root, "f", ModeRegular|0o644)
	defer f.DecRef()
	e.write(f, 0, pattern(1, 4*BlockSizeBytes), 0)
	e.must(f.Fsync(nil, false))
	var met, done sync.WaitGroup
	met.Add(2)
	data := pattern(2, 2*BlockSizeBytes)
	for n := range int64(2) {
		done.Add(1)
		go func() {
			defer done.Done()
			src := &meetingSource{bytesSource{data[n*BlockSizeBytes:]}, &met}
			if m, err := f.WriteAt(src, n*BlockSizeBytes, BlockSizeBytes, IODirect); m != BlockSizeBytes || err != nil {
				t.Errorf("wrote %d, %v", m, err)
			}
		}()
	}
	done.Wait()
	e.expect(f, 0, data, 0)
	e.expect(f, 0, data, IODirect)
}

// TestOverwritesAgreeWithCache overwrites the same blocks directly from several
// threads while others read and map them, and blocks come and go in the cache.
// In the end the cache and the device must hold the same.
func TestOverwritesAgreeWithCache(t *testing.T) {
	const blocks = 8
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	e := newEnv(t, 32<<20)
	root := e.fs.Root()
	defer root.DecRef()
	f := e.create(root, "f", ModeRegular|0o644)
	defer f.DecRef()
	buf := make([]byte, blocks*BlockSizeBytes)
	for k := range uint64(blocks) {
		stampBlock(buf[k*BlockSizeBytes:][:BlockSizeBytes], f.Ino(), k, 1)
	}
	e.write(f, 0, buf, 0)
	e.must(f.Fsync(nil, false))
	var version atomic.Uint64
	for round := range 40 {
		var wg sync.WaitGroup
		for n := range 5 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				rng := rand.New(rand.NewPCG(seed, uint64(round<<8|n)))
				buf := make([]byte, blocks*BlockSizeBytes)
				for range 20 {
					first := rng.IntN(blocks)
					count := 1 + rng.IntN(blocks-first)
					off, length := int64(first)*BlockSizeBytes, int64(count)*BlockSizeBytes
					switch {
					case n < 3:
						for k := range count {
							stampBlock(buf[k*BlockSizeBytes:][:BlockSizeBytes], f.Ino(), uint64(first+k), version.Add(1))
						}
						e.write(f, off, buf[:length], IODirect)
					case rng.IntN(4) == 0:
						if _, err := f.Fault(off, length, false); err != nil {
							t.Error(err)
						}
						f.revoke()
					case rng.IntN(2) == 0:
						e.fs.cache.evict(blocks)
					default:
						s := &stampSink{ino: f.Ino(), off: off}
						if _, err := f.ReadAt(s, off, length, 0); err != nil {
							t.Error(err)
						}
					}
				}
			}()
		}
		wg.Wait()
		cached := e.read(f, 0, blocks*BlockSizeBytes, 0)
		f.revoke()
		e.must(f.Fsync(nil, false))
		f.dropAllPages()
		if onDisk := e.read(f, 0, blocks*BlockSizeBytes, 0); !bytes.Equal(cached, onDisk) {
			t.Fatalf("round %d: the cache and the device differ", round)
		}
	}
}

// TestReadDuringOverwrite reads a block into the cache while it is being
// overwritten on the device.
func TestReadDuringOverwrite(t *testing.T) {
	e, d := newFaultyEnv(t)
	root := e.fs.Root()
	defer root.DecRef()
	f := e.create(root, "f", ModeRegular|0o644)
	defer f.DecRef()
	e.write(f, 0, pattern(1, BlockSizeBytes), 0)
	e.must(f.Fsync(nil, false))
	f.dropAllPages()
	begun, goOn, read := make(chan struct{}), make(chan struct{}), make(chan struct{})
	d.set(func(r *nvme.Request) error {
		if r.Op == nvme.OpWrite {
			close(begun)
			<-goOn
		}
		return nil
	})
	wrote := make(chan error)
	go func() {
		_, err := f.WriteAt(&bytesSource{pattern(2, BlockSizeBytes)}, 0, BlockSizeBytes, IODirect)
		wrote <- err
	}()
	<-begun
	go func() {
		e.read(f, 0, BlockSizeBytes, 0)
		close(read)
	}()
	select {
	case <-read:
		t.Error("a block was read into the cache while it was being overwritten")
	case <-time.After(10 * time.Millisecond):
	}
	close(goOn)
	e.must(<-wrote)
	<-read
	d.set(nil)
	e.expect(f, 0, pattern(2, BlockSizeBytes), 0)
}

// TestGroupLock lets both groups of a lock count their members.
func TestGroupLock(t *testing.T) {
	var l groupLock
	if !l.enter(filling) || l.enter(filling) {
		t.Error("the lock does not know who is alone")
	}
	l.leave(filling)
	l.leave(filling)
	var inside [2]atomic.Int32
	var wg sync.WaitGroup
	for n := range 6 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			g := group(n % 2)
			for range 2000 {
				l.enter(g)
				inside[g].Add(1)
				if other := inside[1-g].Load(); other != 0 {
					t.Errorf("%d of the other group are inside", other)
				}
				inside[g].Add(-1)
				l.leave(g)
			}
		}()
	}
	wg.Wait()
}
