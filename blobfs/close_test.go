package blobfs

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func TestGate(t *testing.T) {
	var g gate
	outer, err := g.enter()
	if err != nil {
		t.Fatal(err)
	}
	if !g.close() || g.close() {
		t.Error("the gate does not shut exactly once")
	}
	if _, err := g.enter(); err != ErrClosed {
		t.Errorf("entering a shut gate: %v", err)
	}
	if g.drain(time.Millisecond) {
		t.Error("the gate is idle with a call inside")
	}
	outer.leave()
	if !g.drain(time.Minute) {
		t.Error("the gate is not idle after the last call")
	}
}

// slowSource gives its data only when it is told to.
type slowSource struct {
	bytesSource
	begun, goOn chan struct{}
}

func (s *slowSource) CopyIn(b []byte) (int, error) {
	close(s.begun)
	<-s.goOn
	return s.bytesSource.CopyIn(b)
}

// TestCloseWaits closes while a write is copying its data.
func TestCloseWaits(t *testing.T) {
	e := newEnv(t, 32<<20)
	root := e.fs.Root()
	f := e.create(root, "f", ModeRegular|0o644)
	data := pattern(1, BlockSizeBytes)
	src := &slowSource{bytesSource{data}, make(chan struct{}), make(chan struct{})}
	wrote := make(chan error)
	go func() {
		_, err := f.WriteAt(src, 0, BlockSizeBytes, 0)
		wrote <- err
	}()
	<-src.begun
	closed := make(chan error)
	go func() { closed <- e.fs.Close() }()
	for !e.fs.gate.shut.Load() {
		time.Sleep(time.Millisecond)
	}
	if _, err := f.ReadAt(&memSink{}, 0, 1, 0); err != ErrClosed {
		t.Errorf("a read while closing: %v", err)
	}
	select {
	case <-closed:
		t.Error("closed before the write had ended")
	default:
	}
	close(src.goOn)
	e.must(<-wrote)
	e.must(<-closed)
	e.mount()
	root = e.fs.Root()
	defer root.DecRef()
	f = e.lookup(root, "f")
	defer f.DecRef()
	e.expect(f, 0, data, 0)
}

// TestClosedCalls makes every call on a closed file system.
func TestClosedCalls(t *testing.T) {
	e := newEnv(t, 32<<20)
	root := e.fs.Root()
	f := e.create(root, "f", ModeRegular|0o644)
	l, err := root.Create("l", NewInode{Mode: ModeSymlink | 0o777, Target: "f"})
	e.must(err)
	e.write(f, 0, pattern(1, 3*BlockSizeBytes), 0)
	e.must(f.SetXattr("user.x", []byte("y"), 0))
	e.must(e.fs.Close())
	fs := e.fs
	defer e.mount()
	sink, src := &memSink{}, &fillSource{}
	for name, call := range map[string]func() error{
		"Lookup":         func() error { _, err := root.Lookup("f"); return err },
		"Create":         func() error { _, err := root.Create("g", NewInode{Mode: ModeRegular}); return err },
		"CreateUnlinked": func() error { _, err := root.CreateUnlinked(NewInode{Mode: ModeRegular}); return err },
		"Readlink":       func() error { _, err := l.Readlink(); return err },
		"Link":           func() error { return root.Link("h", f) },
		"Unlink":         func() error { return root.Unlink("f", nil) },
		"Rmdir":          func() error { return root.Rmdir("f", nil) },
		"ReadDir":        func() error { return root.ReadDir(0, func(Dirent) bool { return true }) },
		"Rename":         func() error { return fs.Rename(root, "f", root, "g", 0) },
		"GetXattr":       func() error { _, err := f.GetXattr("user.x"); return err },
		"ListXattr":      func() error { _, err := f.ListXattr(); return err },
		"SetXattr":       func() error { return f.SetXattr("user.x", nil, 0) },
		"RemoveXattr":    func() error { return f.RemoveXattr("user.x") },
		"SetAttr":        func() error { return f.SetAttr(AttrMtimeNow, &Attr{}) },
		"Truncate":       func() error { return f.Truncate(0) },
		"Fallocate":      func() error { return f.Fallocate(0, 0, 1<<20) },
		"SeekData":       func() error { _, err := f.SeekData(0); return err },
		"SeekHole":       func() error { _, err := f.SeekHole(0); return err },
		"Fsync":          func() error { return f.Fsync(nil, false) },
		"Sync":           func() error { return fs.Sync(nil) },
		"ReadAt":         func() error { _, err := f.ReadAt(sink, 0, 4096, 0); return err },
		"ReadAt direct":  func() error { _, err := f.ReadAt(sink, 0, 4096, IODirect); return err },
		"WriteAt":        func() error { _, err := f.WriteAt(src, 0, 4096, 0); return err },
		"WriteAt direct": func() error { _, err := f.WriteAt(src, 0, 4096, IODirect); return err },
		"Append":         func() error { _, _, err := f.Append(src, 1, 0); return err },
		"Fault":          func() error { _, err := f.Fault(0, 4096, false); return err },
		"Inode":          func() error { _, err := fs.Inode(f.Ino(), f.Generation()); return err },
		"Close":          fs.Close,
	} {
		if err := call(); err != ErrClosed {
			t.Errorf("%s: %v", name, err)
		}
	}
	// What has no error does no harm.
	f.TouchAtime()
	f.IncRef()
	f.DecRef()
	f.DecRef()
	f.Attr()
	fs.StatFS()
	fs.ReadOnly()
}

// TestReferencedPagesOutliveClose closes with a reference to a mapped page: its
// memory must stay until that goes, and only that.
func TestReferencedPagesOutliveClose(t *testing.T) {
	e := newEnv(t, 32<<20)
	e.must(e.fs.Close())
	free := e.dev.Arena().FreePages()
	e.mount()
	root := e.fs.Root()
	f := e.create(root, "f", ModeRegular|0o644)
	data := pattern(4, 4<<20)
	e.write(f, 0, data, 0)
	run, err := f.Fault(0, BlockSizeBytes, true)
	e.must(err)
	pages := e.fs.Pages()
	pages.IncRef(run.ArenaOffset, run.Length)
	e.must(e.fs.Close())
	left := e.dev.Arena().FreePages()
	if left >= free || left < free-slabPages {
		t.Errorf("after closing %d of %d pages are free", left, free)
	}
	e.mount() // takes memory of the arena
	mem := e.dev.Arena().Bytes()[run.ArenaOffset : run.ArenaOffset+run.Length]
	root = e.fs.Root()
	g := e.create(root, "g", ModeRegular|0o644)
	e.write(g, 0, pattern(7, 6<<20), 0)
	if !bytes.Equal(mem, data[:BlockSizeBytes]) {
		t.Error("a referenced page was used for something else")
	}
	g.DecRef()
	root.DecRef()
	pages.DecRef(run.ArenaOffset, run.Length)
	e.must(e.fs.Close())
	if left := e.dev.Arena().FreePages(); left != free {
		t.Errorf("after the last reference %d of %d pages are free", left, free)
	}
	e.mount()
}

// closeLoad is a set of threads that do everything at once.
type closeLoad struct {
	e     *env
	fs    *FS
	files []*Inode
	calls atomic.Int64

	mapMu sync.Mutex // stands for an address space
	maps  map[int64]int64
}

func (l *closeLoad) invalidate(f *Inode, off, length int64) {
	if f != l.files[0] {
		return
	}
	l.mapMu.Lock()
	defer l.mapMu.Unlock()
	for at, arenaOff := range l.maps {
		if at >= off && at-off < length {
			l.fs.Pages().DecRef(arenaOff, BlockSizeBytes)
			delete(l.maps, at)
		}
	}
}

func (l *closeLoad) fault(off int64, write bool) error {
	l.mapMu.Lock()
	defer l.mapMu.Unlock()
	run, err := l.files[0].Fault(off, BlockSizeBytes, write)
	if err != nil {
		return err
	}
	at := off &^ (BlockSizeBytes - 1)
	if _, ok := l.maps[at]; !ok {
		l.fs.Pages().IncRef(run.ArenaOffset, BlockSizeBytes)
		l.maps[at] = run.ArenaOffset
	}
	if write {
		l.e.dev.Arena().Bytes()[run.ArenaOffset] |= 1 // as it is already
	}
	return nil
}

// one makes one call.
func (l *closeLoad) one(rng *rand.Rand, root *Inode, thread int) error {
	const size = 1 << 20
	n := rng.IntN(len(l.files))
	f := l.files[n]
	off := int64(rng.IntN(size/BlockSizeBytes)) * BlockSizeBytes
	flags := IOFlags(rng.IntN(2)) * IODirect
	switch rng.IntN(12) {
	case 0, 1, 2:
		_, err := f.ReadAt(&nullSink{}, off, 3*BlockSizeBytes, flags)
		return err
	case 3, 4:
		_, err := f.WriteAt(&bytesSource{pattern(byte(n), size)[off : off+BlockSizeBytes]}, off, BlockSizeBytes, flags)
		return err
	case 5:
		err := f.Fsync(nil, rng.IntN(2) == 0)
		return err
	case 6, 7, 8:
		return l.fault(off, rng.IntN(2) == 0)
	case 9:
		name := fmt.Sprintf("t%d", thread)
		g, err := root.Create(name, NewInode{Mode: ModeRegular | 0o600})
		if errors.Is(err, ErrExist) {
			return root.Unlink(name, nil) // left by the round before
		}
		if err != nil {
			return err
		}
		_, err = g.WriteAt(&fillSource{}, 0, 100000, 0)
		if err == nil {
			err = root.Unlink(name, g)
		} else {
			_ = root.Unlink(name, g)
		}
		g.DecRef()
		return err
	case 10:
		return root.ReadDir(0, func(Dirent) bool { return true })
	default:
		return l.fs.Sync(nil)
	}
}

// TestCloseUnderLoad closes while threads read, write, map, sync, make and
// remove. Each call either succeeds or says that the file system is closed; all
// memory comes back, and all data is there afterwards.
func TestCloseUnderLoad(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	e := newEnv(t, 64<<20)
	e.must(e.fs.Close())
	free := e.dev.Arena().FreePages()
	for round := range uint64(12) {
		opts := e.testOptions()
		opts.CacheBytes, opts.CommitInterval = 1<<20, time.Millisecond
		opts.Now = nil
		fs, err := Mount(e.dev, opts)
		e.must(err)
		e.fs = fs
		l := &closeLoad{e: e, fs: fs, maps: map[int64]int64{}}
		root := fs.Root()
		for n := range 4 {
			name := fmt.Sprintf("f%d", n)
			f, err := root.Lookup(name)
			if errors.Is(err, ErrNotExist) {
				f = e.create(root, name, ModeRegular|0o644)
				e.write(f, 0, pattern(byte(n), 1<<20), 0)
			} else {
				e.must(err)
				e.expect(f, 0, pattern(byte(n), 1<<20), 0)
			}
			l.files = append(l.files, f)
			f.SetInvalidator(func(off, length int64) { l.invalidate(f, off, length) })
		}
		var wg sync.WaitGroup
		for n := range 6 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				rng := rand.New(rand.NewPCG(seed, round<<8|uint64(n)))
				for {
					err := l.one(rng, root, n)
					l.calls.Add(1)
					if errors.Is(err, ErrClosed) {
						return
					}
					if err != nil {
						t.Errorf("round %d: %v", round, err)
						return
					}
				}
			}()
		}
		for want := int64(50 + 40*round); l.calls.Load() < want && !t.Failed(); {
			time.Sleep(100 * time.Microsecond)
		}
		e.must(fs.Close())
		wg.Wait()
		if left := e.dev.Arena().FreePages(); left != free {
			t.Fatalf("round %d: %d of %d pages are free, %d mapped", round, left, free, len(l.maps))
		}
		for _, f := range l.files {
			f.DecRef()
		}
		root.DecRef()
		e.must(checkVolume(e.dev))
	}
	e.mount()
}
