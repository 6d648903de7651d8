package blobfs

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// sharingThreads is what the threads of TestManyThreadsShare have in common.
// Files of one family share blocks, always of the same place in the file; so
// a block tells family and place, and nobody may ever see another.
type sharingThreads struct {
	*env
	seed     uint64
	versions atomic.Uint64
	mapLocks sync.Map // of inode numbers: the locks of their mappings
}

const (
	threadFamilies = 3
	threadFiles    = 9
	threadBlocks   = 120
)

// mapLock plays the lock of an address space that maps the file: it is held
// while a page is faulted and stored to, and by the invalidator.
func (s *sharingThreads) mapLock(f *Inode) *sync.Mutex {
	mu, known := s.mapLocks.LoadOrStore(f.Ino(), new(sync.Mutex))
	if !known {
		f.SetInvalidator(func(off, length int64) {
			mu.(*sync.Mutex).Lock()
			mu.(*sync.Mutex).Unlock() //nolint:staticcheck // nothing stays mapped
		})
	}
	return mu.(*sync.Mutex)
}

func (s *sharingThreads) open(root *Inode, n int) (*Inode, error) {
	name := fmt.Sprintf("f%d", n)
	f, err := root.Lookup(name)
	if errors.Is(err, ErrNotExist) {
		f, err = root.Create(name, NewInode{Mode: ModeRegular | 0o644})
	}
	return f, err
}

// store writes to a page through a mapping.
func (s *sharingThreads) store(f *Inode, off int64, family uint64) error {
	mu := s.mapLock(f)
	mu.Lock()
	defer mu.Unlock()
	run, err := f.Fault(off, BlockSizeBytes, true)
	if err != nil {
		return err
	}
	stampBlock(s.dev.Arena().Bytes()[run.ArenaOffset:run.ArenaOffset+BlockSizeBytes], family, uint64(off)/BlockSizeBytes, s.versions.Add(1))
	return nil
}

func (s *sharingThreads) step(root *Inode, rng *rand.Rand, buf []byte) error {
	n := rng.IntN(threadFiles)
	family := uint64(n % threadFamilies)
	f, err := s.open(root, n)
	if err != nil {
		return err
	}
	defer f.DecRef()
	g, err := s.open(root, int(family)+threadFamilies*rng.IntN(threadFiles/threadFamilies))
	if err != nil {
		return err
	}
	defer g.DecRef()
	first, count := rng.Int64N(threadBlocks), 1+rng.Int64N(8)
	off, length := first*BlockSizeBytes, count*BlockSizeBytes
	flags := IOFlags(0)
	if rng.IntN(3) == 0 {
		flags = IODirect
	}
	switch rng.IntN(14) {
	case 0, 1, 2:
		for k := range count {
			stampBlock(buf[k*BlockSizeBytes:(k+1)*BlockSizeBytes], family, uint64(first+k), s.versions.Add(1))
		}
		_, err = f.WriteAt(&bytesSource{buf[:length]}, off, length, flags)
	case 3, 4:
		sink := &stampSink{ino: family, off: off}
		if _, err = f.ReadAt(sink, off, length, flags); sink.err != nil {
			return sink.err
		}
	case 5:
		err = f.Truncate(rng.Int64N(threadBlocks * BlockSizeBytes))
	case 6:
		mode := []FallocateMode{0, FallocPunchHole | FallocKeepSize, FallocZeroRange, FallocUnshare | FallocKeepSize}[rng.IntN(4)]
		err = f.Fallocate(mode, off, length)
	case 7:
		if err = root.Unlink(fmt.Sprintf("f%d", n), f); errors.Is(err, ErrNotExist) || errors.Is(err, ErrStale) {
			err = nil
		}
	case 8:
		err = f.Fsync(nil, rng.IntN(2) == 0)
	case 9:
		err = s.store(f, off, family)
	case 10, 11:
		err = f.CloneRange(g, off, off, length)
	case 12:
		_, err = f.DedupeRange(g, off, off, length)
	case 13:
		_, err = f.CopyRange(g, off, off, length)
	}
	return err
}

// TestManyThreadsShare lets many threads clone, compare, copy, write, store to and
// remove files on a small volume with a small cache.
func TestManyThreadsShare(t *testing.T) {
	e := newEnv(t, 16<<20)
	e.must(e.fs.Close())
	opts := e.testOptions()
	opts.CacheBytes, opts.MaxIdleInodes, opts.CommitInterval = 1<<20, 16, 3*time.Millisecond
	opts.Logf = func(string, ...any) {}
	fs, err := Mount(e.dev, opts)
	e.must(err)
	e.fs = fs
	root := fs.Root()
	s := &sharingThreads{env: e, seed: uint64(time.Now().UnixNano())}
	t.Logf("seed %d", s.seed)
	var wg sync.WaitGroup
	for n := range 6 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			rng := rand.New(rand.NewPCG(s.seed, uint64(n)))
			buf := make([]byte, 8*BlockSizeBytes)
			for range 600 {
				err := s.step(root, rng, buf)
				switch {
				case err == nil, errors.Is(err, ErrNoSpace), errors.Is(err, ErrExist), errors.Is(err, ErrNotExist),
					errors.Is(err, ErrInvalid), errors.Is(err, ErrDiffers), errors.Is(err, ErrBeyondEOF):
				default:
					t.Error(err)
					return
				}
			}
		}()
	}
	wg.Wait()
	e.sound()
	for n := range threadFiles {
		f, err := root.Lookup(fmt.Sprintf("f%d", n))
		if errors.Is(err, ErrNotExist) {
			continue
		}
		e.must(err)
		sink := &stampSink{ino: uint64(n % threadFamilies)}
		_, err = f.ReadAt(sink, 0, int64(blocksOf(f.Size()))*BlockSizeBytes, IODirect)
		e.must(err)
		f.DecRef()
	}
	root.DecRef()
}
