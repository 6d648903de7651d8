package blobfs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// stampBlock fills a block so that it tells where it belongs.
func stampBlock(b []byte, ino, block, version uint64) {
	for k := 0; k < len(b); k += 32 {
		binary.LittleEndian.PutUint64(b[k:], ino)
		binary.LittleEndian.PutUint64(b[k+8:], block)
		binary.LittleEndian.PutUint64(b[k+16:], version)
		binary.LittleEndian.PutUint64(b[k+24:], uint64(k))
	}
}

// checkStamp accepts zeroes and whatever stampBlock has made for the place. A
// zero byte is a hole, a write that is just going on, or the end of the file at
// some time: a truncation may cut through a number.
func checkStamp(b []byte, ino, block uint64) error {
	var want [32]byte
	for k := 0; k+32 <= len(b); k += 32 {
		stampBlock(want[:], ino, block, 0)
		binary.LittleEndian.PutUint64(want[24:], uint64(k))
		for j, w := range want {
			if version := j >= 16 && j < 24; !version && b[k+j] != 0 && b[k+j] != w {
				return fmt.Errorf("inode %d, block %d, byte %d is %#02x, not %#02x: stamp %x", ino, block, k+j, b[k+j], w, b[k:k+32])
			}
		}
	}
	return nil
}

// stampSink checks what is read, piece by piece.
type stampSink struct {
	ino uint64
	off int64
	err error
}

func (s *stampSink) CopyOut(b []byte) (int, error) {
	for at := 0; at < len(b); {
		n := min(len(b)-at, BlockSizeBytes-int(s.off%BlockSizeBytes))
		c := append([]byte(nil), b[at:at+n]...)
		if err := checkStamp(c, s.ino, uint64(s.off)/BlockSizeBytes); err != nil {
			s.err = err
			return 0, err
		}
		at += n
		s.off += int64(n)
	}
	return len(b), nil
}

// TestNoForeignData lets many threads read, write, truncate, punch, remove and
// make files on a small volume with a small cache. Blocks change hands all the
// time; nobody may ever see data of another file or place.
func TestNoForeignData(t *testing.T) {
	e := newEnv(t, 24<<20)
	e.must(e.fs.Close())
	opts := e.testOptions()
	opts.CacheBytes, opts.MaxIdleInodes, opts.CommitInterval = 512<<10, 16, 3*time.Millisecond
	var clock atomic.Int64
	opts.Now = func() int64 { return clock.Add(1000) }
	opts.Logf = func(string, ...any) {}
	fs, err := Mount(e.dev, opts)
	e.must(err)
	e.fs = fs
	root := fs.Root()
	defer root.DecRef()

	const threads, files, blocks = 6, 8, 200
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	var wg sync.WaitGroup
	var versions atomic.Uint64
	for n := range threads {
		wg.Add(1)
		go func() {
			defer wg.Done()
			rng := rand.New(rand.NewPCG(seed, uint64(n)))
			buf := make([]byte, 8*BlockSizeBytes)
			for range 600 {
				name := fmt.Sprintf("f%d", rng.IntN(files))
				f, err := root.Lookup(name)
				if errors.Is(err, ErrNotExist) {
					f, err = root.Create(name, NewInode{Mode: ModeRegular | 0o644})
				}
				if errors.Is(err, ErrExist) || errors.Is(err, ErrNoSpace) {
					continue
				}
				if err != nil {
					t.Errorf("%s: %v", name, err)
					return
				}
				first, count := rng.Int64N(blocks), 1+rng.Int64N(8)
				off, length := first*BlockSizeBytes, count*BlockSizeBytes
				flags := IOFlags(0)
				if rng.IntN(3) == 0 {
					flags = IODirect
				}
				switch rng.IntN(12) {
				case 0, 1, 2, 3:
					for k := range count {
						stampBlock(buf[k*BlockSizeBytes:(k+1)*BlockSizeBytes], f.Ino(), uint64(first+k), versions.Add(1))
					}
					_, err = f.WriteAt(&bytesSource{buf[:length]}, off, length, flags)
				case 4, 5, 6:
					s := &stampSink{ino: f.Ino(), off: off}
					if _, err = f.ReadAt(s, off, length, flags); s.err != nil {
						t.Error(s.err)
					}
				case 7:
					err = f.Truncate(rng.Int64N(blocks * BlockSizeBytes))
				case 8:
					mode := []FallocateMode{0, FallocPunchHole | FallocKeepSize, FallocZeroRange, FallocKeepSize}[rng.IntN(4)]
					err = f.Fallocate(mode, off, length)
				case 9:
					if err = root.Unlink(name, f); errors.Is(err, ErrNotExist) || errors.Is(err, ErrStale) {
						err = nil
					}
				case 10:
					err = f.Fsync(nil, rng.IntN(2) == 0)
				case 11:
					var run PageRun
					if run, err = f.Fault(off, BlockSizeBytes, false); errors.Is(err, ErrBeyondEOF) {
						err = nil
					} else if err == nil && run.Length < BlockSizeBytes {
						err = fmt.Errorf("fault of %+v", run)
					}
				}
				if err != nil && !errors.Is(err, ErrNoSpace) {
					t.Errorf("%s: %v", name, err)
				}
				f.DecRef()
			}
		}()
	}
	wg.Wait()
	e.must(fs.Sync(nil))
	e.must(fs.store.Verify())
	root2 := fs.Root()
	defer root2.DecRef()
	e.must(root2.ReadDir(0, func(d Dirent) bool {
		f := e.lookup(root2, d.Name)
		defer f.DecRef()
		s := &stampSink{ino: f.Ino()}
		_, err := f.ReadAt(s, 0, int64(blocksOf(f.Size()))*BlockSizeBytes, IODirect)
		e.must(err)
		return true
	}))
}

// TestConcurrentNames lets many threads change one tree of names and then
// checks that links, entries and emptiness agree.
func TestConcurrentNames(t *testing.T) {
	e := newEnv(t, 64<<20)
	e.must(e.fs.Close())
	opts := e.testOptions()
	opts.MaxIdleInodes, opts.CommitInterval = 16, 2*time.Millisecond
	var clock atomic.Int64
	opts.Now = func() int64 { return clock.Add(1000) }
	fs, err := Mount(e.dev, opts)
	e.must(err)
	e.fs = fs
	root := fs.Root()
	defer root.DecRef()
	const dirs = 4
	for n := range dirs {
		e.create(root, fmt.Sprintf("d%d", n), ModeDir|0o755).DecRef()
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	allowed := []error{nil, ErrExist, ErrNotExist, ErrIsDir, ErrNotDir, ErrNotEmpty, ErrLoop, ErrStale}
	var wg sync.WaitGroup
	for n := range 6 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			rng := rand.New(rand.NewPCG(seed, uint64(n)))
			for range 500 {
				from, err := root.Lookup(fmt.Sprintf("d%d", rng.IntN(dirs)))
				if err != nil {
					t.Error(err)
					return
				}
				to, err := root.Lookup(fmt.Sprintf("d%d", rng.IntN(dirs)))
				if err != nil {
					t.Error(err)
					return
				}
				a, b := fmt.Sprintf("n%d", rng.IntN(6)), fmt.Sprintf("n%d", rng.IntN(6))
				var made *Inode
				switch rng.IntN(8) {
				case 0, 1:
					made, err = from.Create(a, NewInode{Mode: ModeRegular})
				case 2:
					made, err = from.Create(a, NewInode{Mode: ModeDir})
				case 3:
					err = from.Unlink(a, nil)
				case 4:
					err = from.Rmdir(a, nil)
				case 5:
					err = fs.Rename(from, a, to, b, []RenameFlags{0, RenameNoReplace, RenameExchange}[rng.IntN(3)])
				case 6:
					if made, err = from.Lookup(a); err == nil {
						if err = to.Link(b, made); errors.Is(err, ErrNotPermitted) {
							err = nil
						}
					}
				case 7:
					err = from.ReadDir(0, func(Dirent) bool { return true })
				}
				if made != nil {
					made.DecRef()
				}
				from.DecRef()
				to.DecRef()
				ok := false
				for _, want := range allowed {
					ok = ok || errors.Is(err, want)
				}
				if !ok {
					t.Error(err)
				}
			}
		}()
	}
	wg.Wait()
	links := map[uint64]uint32{}
	var walk func(dir *Inode)
	walk = func(dir *Inode) {
		sub := uint32(2)
		var list []Dirent
		e.must(dir.ReadDir(0, func(d Dirent) bool { list = append(list, d); return true }))
		for _, d := range list {
			i := e.lookup(dir, d.Name)
			if i.typ == ModeDir {
				sub++
				walk(i)
			} else {
				links[d.Ino]++
			}
			i.DecRef()
		}
		if a := dir.Attr(); a.Nlink != sub {
			t.Errorf("directory %d has %d links, not %d", dir.ino, a.Nlink, sub)
		}
	}
	walk(root)
	for ino, want := range links {
		i, err := fs.viewInode(inoFinder(ino))
		e.must(err)
		if a := i.Attr(); a.Nlink != want {
			t.Errorf("inode %d has %d links, not %d", ino, a.Nlink, want)
		}
		i.DecRef()
	}
	e.must(fs.store.Verify())
}
