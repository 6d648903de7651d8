package blobfs

import (
	"bytes"
	"testing"

	"runsc-fs/blobfs/store"
)

func inoFinder(ino uint64) func(*store.Reader) (uint64, error) {
	return func(*store.Reader) (uint64, error) { return ino, nil }
}

// faultingMemory is application memory that is a mapping of a file: touching
// it faults.
type faultingMemory struct {
	e     *env
	f     *Inode
	off   int64
	write bool
	runs  []PageRun
}

func (m *faultingMemory) page() []byte {
	m.e.t.Helper()
	run, err := m.f.Fault(m.off, BlockSizeBytes, m.write)
	m.e.must(err)
	m.runs = append(m.runs, run)
	return m.e.dev.Arena().Bytes()[run.ArenaOffset : run.ArenaOffset+BlockSizeBytes]
}

func (m *faultingMemory) CopyIn(b []byte) (int, error) { return copy(b, m.page()), nil }

func (m *faultingMemory) CopyOut(b []byte) (int, error) { return copy(m.page(), b), nil }

// TestCopyFromOwnMapping writes a file from a mapping of the very page, and
// reads it into one, with the page cached and not.
func TestCopyFromOwnMapping(t *testing.T) {
	e := newEnv(t, 64<<20)
	root := e.fs.Root()
	defer root.DecRef()
	f := e.create(root, "f", ModeRegular|0o644)
	defer f.DecRef()
	data := pattern(3, 3*BlockSizeBytes)
	for _, cached := range []bool{true, false} {
		for _, flags := range []IOFlags{0, IODirect} {
			e.write(f, 0, data, 0)
			if !cached {
				e.must(f.Fsync(nil, false))
				f.dropAllPages()
			}
			for _, dst := range []int64{0, BlockSizeBytes} {
				n, err := f.WriteAt(&faultingMemory{e: e, f: f, off: BlockSizeBytes}, dst, BlockSizeBytes, flags)
				if n != BlockSizeBytes || err != nil {
					t.Fatalf("cached %v, flags %d: wrote %d, %v", cached, flags, n, err)
				}
				e.expect(f, dst, data[BlockSizeBytes:2*BlockSizeBytes], 0)
			}
			n, err := f.ReadAt(&faultingMemory{e: e, f: f, off: 2 * BlockSizeBytes, write: true}, 0, BlockSizeBytes, flags)
			if n != BlockSizeBytes || err != nil {
				t.Fatalf("cached %v, flags %d: read %d, %v", cached, flags, n, err)
			}
			e.expect(f, 2*BlockSizeBytes, data[BlockSizeBytes:2*BlockSizeBytes], 0)
		}
	}
}

// TestMappedPageOutlivesTruncate keeps a reference to a page across truncation:
// its memory must not be given to anybody else before the reference goes.
func TestMappedPageOutlivesTruncate(t *testing.T) {
	e := newEnv(t, 64<<20)
	root := e.fs.Root()
	defer root.DecRef()
	f := e.create(root, "f", ModeRegular|0o644)
	defer f.DecRef()
	data := pattern(5, BlockSizeBytes)
	e.write(f, 0, data, 0)
	run, err := f.Fault(0, BlockSizeBytes, false)
	e.must(err)
	e.fs.Pages().IncRef(run.ArenaOffset, run.Length)
	called := false
	f.SetInvalidator(func(off, length int64) { called = off == 0 && length >= BlockSizeBytes })
	e.must(f.Truncate(0))
	if !called {
		t.Error("truncation did not call the invalidator")
	}
	g := e.create(root, "g", ModeRegular|0o644)
	defer g.DecRef()
	e.write(g, 0, pattern(9, 6<<20), 0) // as much as the cache holds, nearly
	mem := e.dev.Arena().Bytes()[run.ArenaOffset : run.ArenaOffset+BlockSizeBytes]
	if !bytes.Equal(mem, data) {
		t.Error("the memory of a referenced page was used for something else")
	}
	e.fs.Pages().DecRef(run.ArenaOffset, run.Length)
	if _, err := f.Fault(0, BlockSizeBytes, false); err == nil {
		t.Error("fault beyond the end of the file succeeded")
	}
}

// TestStoreThroughMapping checks that what a mapping has stored is durable after
// each fsync, without another fault.
func TestStoreThroughMapping(t *testing.T) {
	e := newEnv(t, 64<<20)
	root := e.fs.Root()
	f := e.create(root, "f", ModeRegular|0o644)
	e.must(f.Truncate(10000))
	before := f.Attr()
	run, err := f.Fault(4096, BlockSizeBytes, true)
	e.must(err)
	if after := f.Attr(); after.Mtime == before.Mtime || after.Blocks != before.Blocks+8 {
		t.Errorf("after a write fault in a hole: mtime %d, blocks %d; before: %d, %d", after.Mtime, after.Blocks, before.Mtime, before.Blocks)
	}
	mem := e.dev.Arena().Bytes()[run.ArenaOffset : run.ArenaOffset+run.Length]
	e.fs.Pages().IncRef(run.ArenaOffset, run.Length)
	for round := range byte(3) {
		copy(mem, pattern(round, BlockSizeBytes))
		e.must(f.Fsync(nil, true))
		m, err := f.mapBlock(1, 1)
		e.must(err)
		if m.state != blockWritten {
			t.Fatalf("round %d: block is in state %d", round, m.state)
		}
		b := getBatch()
		e.must(e.fs.frames(b, 1))
		b.add(1, m.addr.OffsetBytes(), e.fs.cache.frameData(b.pages[0]))
		e.must(e.fs.readData(b))
		if !bytes.Equal(b.pages[0].data(), pattern(round, BlockSizeBytes)) {
			t.Fatalf("round %d: device does not hold what was stored", round)
		}
		e.fs.releaseFrames(b)
		b.put()
	}
	// Taking the mapping back makes the page clean after one more write-back.
	f.SetInvalidator(func(off, length int64) {
		e.fs.Pages().DecRef(run.ArenaOffset, run.Length)
	})
	e.fs.periodicCommit()
	if n := f.nDirty.Load(); n != 0 {
		t.Errorf("%d pages are dirty after the mapping was taken back", n)
	}
	f.SetInvalidator(nil)
	f.DecRef()
	root.DecRef()
}

// TestStoreDuringWriteBack stores through a mapping after write-back has read
// the page, and takes the mapping back before write-back is over.
func TestStoreDuringWriteBack(t *testing.T) {
	e := newEnv(t, 64<<20)
	root := e.fs.Root()
	defer root.DecRef()
	f := e.create(root, "f", ModeRegular|0o644)
	defer f.DecRef()
	e.must(f.Truncate(BlockSizeBytes))
	run, err := f.Fault(0, BlockSizeBytes, true)
	e.must(err)
	f.wbMu.Lock()
	b := getBatch()
	f.collect(b, 0, 1)
	done, err := f.writeBatch(b, BlockSizeBytes)
	e.must(err)
	copy(e.dev.Arena().Bytes()[run.ArenaOffset:], "late")
	f.revoke()
	f.release(b, done)
	b.put()
	f.wbMu.Unlock()
	e.must(f.Fsync(nil, true))
	f.dropAllPages()
	e.expect(f, 0, []byte("late"), 0)
}

// TestMappedPagesAreReclaimed maps more than the cache can spare.
func TestMappedPagesAreReclaimed(t *testing.T) {
	e := newEnv(t, 64<<20)
	root := e.fs.Root()
	defer root.DecRef()
	f := e.create(root, "f", ModeRegular|0o644)
	defer f.DecRef()
	const pages = 4096 // twice the cache
	e.must(f.Truncate(pages * BlockSizeBytes))
	type held struct{ run PageRun }
	mapped := make(chan map[int64]held, 1)
	mapped <- map[int64]held{}
	f.SetInvalidator(func(off, length int64) {
		m := <-mapped
		for at, h := range m {
			if at >= off && at < off+length {
				e.fs.Pages().DecRef(h.run.ArenaOffset, BlockSizeBytes)
				delete(m, at)
			}
		}
		mapped <- m
	})
	for n := range int64(pages) {
		m := <-mapped // the lock under which an address space faults
		run, err := f.Fault(n*BlockSizeBytes, BlockSizeBytes, n%2 == 0)
		if err != nil {
			mapped <- m
			t.Fatalf("fault %d: %v", n, err)
		}
		e.fs.Pages().IncRef(run.ArenaOffset, BlockSizeBytes)
		m[n*BlockSizeBytes] = held{run}
		copy(e.dev.Arena().Bytes()[run.ArenaOffset:run.ArenaOffset+8], []byte{byte(n), byte(n >> 8), 1, 2, 3, 4, 5, 6})
		if n%2 != 0 {
			clear(e.dev.Arena().Bytes()[run.ArenaOffset : run.ArenaOffset+8])
		}
		mapped <- m
	}
	for n := int64(0); n < pages; n += 2 {
		e.expect(f, n*BlockSizeBytes, []byte{byte(n), byte(n >> 8), 1, 2, 3, 4, 5, 6}, 0)
	}
	f.invalidate(0, MaxFileSizeBytes)
	f.SetInvalidator(nil)
}
