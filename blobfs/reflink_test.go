package blobfs

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"runsc-fs/blobfs/format"
	"runsc-fs/blobfs/store"
)

// usedBlocks is the number of blocks that hold data of files. It makes all
// frees durable first.
func (e *env) usedBlocks() uint64 {
	e.t.Helper()
	e.must(e.fs.Sync(nil))
	st := e.fs.store.StatFS()
	return st.TotalBlocks - st.FreeBlocks - st.NodeBlocks
}

// sound makes everything durable and has the checker look at it.
func (e *env) sound() {
	e.t.Helper()
	e.must(e.fs.Sync(nil))
	e.must(e.fs.store.Verify())
	e.must(checkVolume(e.dev))
}

// owners returns the number of owners of the block at a file offset; 0 for a hole.
func (e *env) owners(i *Inode, off int64) (n uint64) {
	e.t.Helper()
	m, err := i.mapBlock(uint64(off)/BlockSizeBytes, 1)
	e.must(err)
	if m.state == blockHole {
		return 0
	}
	e.must(e.fs.store.View(func(r *store.Reader) error {
		return e.fs.eachOwnedRun(r, format.Run{Start: m.addr, Blocks: 1}, func(o ownedRun) bool { n = o.owners; return true })
	}))
	return n
}

func (e *env) clone(src, dst *Inode) {
	e.t.Helper()
	e.must(dst.CloneRange(src, 0, 0, 0))
}

// newPair makes a file of n blocks and a little more, and an empty one.
func newPair(t *testing.T, blocks int) (e *env, src, dst *Inode, data []byte) {
	e = newEnv(t, 64<<20)
	root := e.fs.Root()
	src, dst = e.create(root, "src", ModeRegular|0o644), e.create(root, "dst", ModeRegular|0o644)
	root.DecRef()
	data = pattern(3, blocks*BlockSizeBytes+1234)
	e.write(src, 0, data, 0)
	t.Cleanup(func() { src.DecRef(); dst.DecRef() })
	return e, src, dst, data
}

// TestClone checks that a clone takes no space, and that neither file sees what
// is written to the other, in whatever way.
func TestClone(t *testing.T) {
	e, src, dst, data := newPair(t, 20)
	before := e.usedBlocks()
	e.clone(src, dst)
	e.expect(dst, 0, data, 0)
	e.expect(dst, 0, data[:8192], IODirect)
	if got := e.usedBlocks(); got != before {
		t.Errorf("%d blocks in use, %d before", got, before)
	}
	if a, b := src.Attr(), dst.Attr(); a.Blocks != 21*8 || b.Blocks != 21*8 || b.Size != int64(len(data)) {
		t.Errorf("source %+v, clone %+v", a, b)
	}
	if n := e.owners(src, 0); n != 2 {
		t.Errorf("%d owners", n)
	}
	e.sound()

	other := bytes.Clone(data)
	change := func(off int64, n int, flags IOFlags) {
		t.Helper()
		b := pattern(byte(off>>12)+100, n)
		copy(other[off:], b)
		e.write(dst, off, b, flags)
		e.expect(src, 0, data, 0)
		e.expect(dst, 0, other, 0)
	}
	change(100, 50, 0)
	change(3*BlockSizeBytes, 2*BlockSizeBytes, 0)
	change(6*BlockSizeBytes, BlockSizeBytes, IODirect)
	change(8*BlockSizeBytes+512, 512, IODirect)
	change(10*BlockSizeBytes, BlockSizeBytes, IODirect|IODSync)
	change(12*BlockSizeBytes+7, 9000, IOSync)
	e.sound()
	run, err := dst.Fault(17*BlockSizeBytes, BlockSizeBytes, true)
	e.must(err)
	other[17*BlockSizeBytes+5] = 0x77
	e.dev.Arena().Bytes()[run.ArenaOffset+5] = 0x77
	e.must(dst.Fsync(nil, false))
	for range 2 {
		src.dropAllPages()
		dst.dropPages(0, endOfBlocks, true)
		e.expect(src, 0, data, 0)
		e.expect(dst, 0, other, 0)
		e.expect(src, 0, data[:20*BlockSizeBytes], IODirect)
		e.expect(dst, 0, other[:20*BlockSizeBytes], IODirect)
	}
	if got := e.usedBlocks(); got != before+10 {
		t.Errorf("%d blocks in use after 10 were written, %d before", got, before)
	}
	e.sound()
}

// TestCloneOfClone counts owners up and down again, in all orders.
func TestCloneOfClone(t *testing.T) {
	for seed := range uint64(4) {
		rng := rand.New(rand.NewPCG(seed, 5))
		e, src, dst, data := newPair(t, 30)
		root := e.fs.Root()
		defer root.DecRef()
		before := e.usedBlocks()
		e.clone(src, dst)
		names := []string{"src", "dst"}
		for k := range 6 {
			name := fmt.Sprintf("clone%d", k)
			f := e.create(root, name, ModeRegular)
			from := e.lookup(root, names[rng.IntN(len(names))])
			e.clone(from, f)
			from.DecRef()
			f.DecRef()
			names = append(names, name)
		}
		if n := e.owners(src, 0); n != 8 {
			t.Errorf("%d owners", n)
		}
		if got := e.usedBlocks(); got != before {
			t.Errorf("%d blocks in use, %d before", got, before)
		}
		rng.Shuffle(len(names), func(a, b int) { names[a], names[b] = names[b], names[a] })
		for k, name := range names {
			f := e.lookup(root, name)
			e.expect(f, 0, data, 0)
			// What some of them give up is kept by the others.
			switch rng.IntN(3) {
			case 0:
				e.must(f.Truncate(rng.Int64N(int64(len(data)))))
			case 1:
				e.must(f.Fallocate(FallocPunchHole|FallocKeepSize, 5*BlockSizeBytes, 7*BlockSizeBytes))
			}
			e.sound()
			f.DecRef()
			e.must(root.Unlink(name, nil))
			if k < len(names)-1 {
				last := e.lookup(root, names[len(names)-1])
				e.expect(last, 0, data, 0)
				last.DecRef()
			}
		}
		src.DecRef()
		dst.DecRef()
		e.sound()
		if got := e.usedBlocks(); got != before-31 {
			t.Errorf("%d blocks in use after all are gone, %d before with 31 of the file", got, before)
		}
		src.IncRef() // for the cleanup
		dst.IncRef()
	}
}

// TestCloneRules checks what is refused, and that it changes nothing.
func TestCloneRules(t *testing.T) {
	e, src, dst, data := newPair(t, 4)
	root := e.fs.Root()
	defer root.DecRef()
	e.write(dst, 0, pattern(9, 3*BlockSizeBytes+100), 0)
	before := dst.Attr()
	const block = BlockSizeBytes
	for name, c := range map[string]struct {
		from              *Inode
		srcOff, dstOff, n int64
		want              error
	}{
		"source offset":          {src, 100, 0, block, ErrInvalid},
		"target offset":          {src, 0, 100, block, ErrInvalid},
		"length":                 {src, 0, 0, 100, ErrInvalid},
		"beyond the source":      {src, 4 * block, 0, 2 * block, ErrInvalid},
		"behind the source":      {src, 5 * block, 0, block, ErrInvalid},
		"behind it, to the end":  {src, 5 * block, 0, 0, ErrInvalid},
		"tail inside the target": {src, 4 * block, block, 1234, ErrInvalid},
		"overlap":                {dst, 0, block, 2 * block, ErrInvalid},
		"negative":               {src, -block, 0, block, ErrInvalid},
		"too far":                {src, 0, MaxFileSizeBytes, block, ErrFileTooBig},
		"directory":              {root, 0, 0, block, ErrIsDir},
	} {
		if err := dst.CloneRange(c.from, c.srcOff, c.dstOff, c.n); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, not %v", name, err, c.want)
		}
	}
	e.want(root.CloneRange(src, 0, 0, block), ErrIsDir)
	if after := dst.Attr(); after != before {
		t.Errorf("attributes changed from %+v to %+v", before, after)
	}
	e.must(dst.CloneRange(src, 0, 0, 0)) // the whole source replaces all of the shorter target
	e.expect(dst, 0, append(bytes.Clone(data), 0)[:len(data)], 0)
	e.must(dst.CloneRange(src, 4*block, 9*block, 1234)) // grows
	e.expect(dst, 4*block+1234, make([]byte, 5*block-1234), 0)
	e.expect(dst, 9*block, data[4*block:], 0)
	if dst.Size() != 9*block+1234 {
		t.Errorf("size is %d", dst.Size())
	}
	e.sound()
	if e.fs.store.HasFeatures(format.IncompatReflink) != true {
		t.Error("the volume does not say that it has shared blocks")
	}
}

// TestFeatureComesWithSharing checks that a volume without shared blocks can be
// used by programs that do not know of them.
func TestFeatureComesWithSharing(t *testing.T) {
	e, src, dst, _ := newPair(t, 4)
	features := func() (list [format.SuperblockSlots]uint64) {
		b := getBatch()
		defer b.put()
		e.must(e.fs.frames(b, 1))
		defer e.fs.releaseFrames(b)
		for slot := range list {
			b.resetIO()
			b.add(1, format.SuperblockAddr(slot).OffsetBytes(), e.fs.cache.frameData(b.pages[0]))
			e.must(e.dev.Do(b.reqs))
			s, err := format.DecodeSuperblock(b.pages[0].data(), slot, e.fs.store.VolumeBlocks())
			e.must(err)
			list[slot] = s.Incompat
		}
		return list
	}
	e.want(dst.CloneRange(src, 1, 0, 0), ErrInvalid)
	_, err := dst.DedupeRange(src, 0, 0, BlockSizeBytes)
	e.want(err, ErrInvalid)
	e.must(e.fs.store.Checkpoint())
	if got := features(); got != [4]uint64{} {
		t.Errorf("features %#x before anything is shared", got)
	}
	e.clone(src, dst)
	if got := features(); got != [4]uint64{1, 1, 1, 1} {
		t.Errorf("features %#x after blocks were shared", got)
	}
}

// TestCloneOfHoles checks that holes and unwritten blocks become holes, and
// what is dirty there data.
func TestCloneOfHoles(t *testing.T) {
	e, src, dst, _ := newPair(t, 0)
	e.must(src.Truncate(0))
	e.must(src.Fallocate(0, 0, 20*BlockSizeBytes))
	e.must(src.Truncate(40 * BlockSizeBytes))
	e.write(src, 5*BlockSizeBytes+10, pattern(1, 100), 0)
	e.write(src, 30*BlockSizeBytes, pattern(2, 100), 0)
	e.write(dst, 0, pattern(5, 50*BlockSizeBytes), 0)
	e.clone(src, dst)
	want := make([]byte, 40*BlockSizeBytes)
	copy(want[5*BlockSizeBytes+10:], pattern(1, 100))
	copy(want[30*BlockSizeBytes:], pattern(2, 100))
	e.expect(dst, 0, append(want, pattern(5, 50*BlockSizeBytes)[40*BlockSizeBytes:]...), 0)
	if a := dst.Attr(); a.Blocks != (2+10)*8 {
		t.Errorf("%d blocks", a.Blocks/8)
	}
	e.sound()
	e.remount()
}

// TestTailOfClone checks that nothing behind the end of one file shows up when
// the other, or the file itself, grows.
func TestTailOfClone(t *testing.T) {
	e, src, dst, data := newPair(t, 1)
	e.must(src.Fsync(nil, false))
	e.must(src.Truncate(5000)) // leaves what was behind on disk
	e.clone(src, dst)
	want := append(bytes.Clone(data[:5000]), make([]byte, 5000)...)
	e.must(dst.Truncate(10000))
	e.expect(dst, 0, want, 0)
	e.write(src, 9999, []byte{0}, 0)
	e.expect(src, 0, want, 0)
	e.must(e.fs.Sync(nil))
	src.dropAllPages()
	dst.dropAllPages()
	e.expect(src, 0, want[:8192], IODirect)
	e.expect(dst, 0, want[:8192], IODirect)
	e.expect(dst, 0, want, 0)
	e.sound()
}

// TestLastOwner checks that the last owner of blocks writes in place again, but
// not before a crash can no longer bring the other owner back.
func TestLastOwner(t *testing.T) {
	e, src, dst, data := newPair(t, 8)
	root := e.fs.Root()
	defer root.DecRef()
	e.clone(src, dst)
	e.must(e.fs.Sync(nil))
	place := func(off int64) format.Addr {
		m, err := src.mapBlock(uint64(off)/BlockSizeBytes, 1)
		e.must(err)
		return m.addr
	}
	first, second := place(0), place(BlockSizeBytes)
	e.must(dst.Truncate(0))
	e.write(src, 0, pattern(50, BlockSizeBytes), IODirect)
	if place(0) == first {
		t.Error("written in place although the other owner may come back")
	}
	e.must(e.fs.Sync(nil))
	e.write(src, BlockSizeBytes, pattern(51, BlockSizeBytes), IODirect)
	e.write(src, 2*BlockSizeBytes+1, []byte("x"), 0)
	e.must(e.fs.Sync(nil))
	if place(BlockSizeBytes) != second || place(2*BlockSizeBytes) != second+1 {
		t.Errorf("the only owner has moved from %v to %v and %v", second, place(BlockSizeBytes), place(2*BlockSizeBytes))
	}
	copy(data, pattern(50, BlockSizeBytes))
	copy(data[BlockSizeBytes:], pattern(51, BlockSizeBytes))
	data[2*BlockSizeBytes+1] = 'x'
	e.expect(src, 0, data, 0)
	e.sound()
}

// TestUnshare checks that FallocUnshare gives a file blocks of its own.
func TestUnshare(t *testing.T) {
	e, src, dst, data := newPair(t, 300)
	e.clone(src, dst)
	before := e.usedBlocks()
	e.must(dst.Fallocate(FallocUnshare|FallocKeepSize, 2*BlockSizeBytes, 200*BlockSizeBytes))
	e.must(dst.Fsync(nil, false))
	for block, want := range map[int64]uint64{0: 2, 1: 2, 2: 1, 100: 1, 201: 1, 202: 2, 300: 2} {
		if got := e.owners(dst, block*BlockSizeBytes); got != want {
			t.Errorf("block %d has %d owners, not %d", block, got, want)
		}
	}
	if got := e.usedBlocks(); got != before+200 {
		t.Errorf("%d blocks in use, %d before", got, before)
	}
	e.want(dst.Fallocate(FallocUnshare|FallocPunchHole|FallocKeepSize, 0, 4096), ErrNotSupported)
	e.must(dst.Fallocate(FallocUnshare, 0, 400*BlockSizeBytes)) // also allocates
	if a := dst.Attr(); a.Size != 400*BlockSizeBytes || a.Blocks != 400*8 {
		t.Errorf("size %d, %d blocks", a.Size, a.Blocks/8)
	}
	e.expect(src, 0, data, 0)
	e.expect(dst, 0, data, 0)
	e.sound()
}

// TestDedupe checks that equal ranges come to share blocks, and others do not.
func TestDedupe(t *testing.T) {
	e, src, dst, data := newPair(t, 20)
	e.write(dst, 0, data, 0)
	before := e.usedBlocks()
	dstBefore := dst.Attr()
	n, err := dst.DedupeRange(src, 0, 0, int64(len(data)))
	e.must(err)
	if n != int64(len(data)) || e.usedBlocks() != before-21 || e.owners(dst, 20*BlockSizeBytes) != 2 {
		t.Errorf("deduped %d bytes, %d blocks in use, %d before", n, e.usedBlocks(), before)
	}
	if a := dst.Attr(); a != dstBefore {
		t.Errorf("attributes changed from %+v to %+v", dstBefore, a)
	}
	n, err = dst.DedupeRange(src, 0, 0, 100)
	if n != 0 || err != nil {
		t.Errorf("part of a block: %d, %v", n, err)
	}
	n, err = dst.DedupeRange(src, BlockSizeBytes, BlockSizeBytes, BlockSizeBytes+5)
	if n != BlockSizeBytes || err != nil {
		t.Errorf("a block and a part: %d, %v", n, err)
	}
	e.write(dst, 7*BlockSizeBytes+9, []byte{0}, 0)
	n, err = dst.DedupeRange(src, 0, 0, int64(len(data)))
	e.want(err, ErrDiffers)
	if n != 0 {
		t.Errorf("deduped %d bytes of different ranges", n)
	}
	_, err = dst.DedupeRange(src, 0, 0, int64(len(data))+1)
	e.want(err, ErrInvalid)
	_, err = dst.DedupeRange(dst, 0, BlockSizeBytes, 2*BlockSizeBytes)
	e.want(err, ErrInvalid)
	data[7*BlockSizeBytes+9] = 0
	e.expect(dst, 0, data, 0)
	e.sound()
}

// TestDedupeOfMapped stores through a mapping that comes back whenever it is
// taken away: what it stores must not be lost to a comparison made before.
func TestDedupeOfMapped(t *testing.T) {
	e, src, dst, data := newPair(t, 2)
	e.write(dst, 0, data, 0)
	var refault func()
	stores := byte(0)
	dst.SetInvalidator(func(off, length int64) { refault() })
	var run PageRun
	refault = func() {
		if run.Length > 0 {
			e.fs.Pages().DecRef(run.ArenaOffset, run.Length)
		}
		var err error
		run, err = dst.Fault(0, BlockSizeBytes, true)
		e.must(err)
		e.fs.Pages().IncRef(run.ArenaOffset, run.Length)
		stores++
		e.dev.Arena().Bytes()[run.ArenaOffset] = stores
	}
	refault()
	_, err := dst.DedupeRange(src, 0, 0, 2*BlockSizeBytes)
	e.want(err, ErrDiffers)
	if stores < dedupeAttempts {
		t.Errorf("the mapping was taken back %d times", stores)
	}
	if got := e.read(dst, 0, 1, 0); got[0] != stores {
		t.Errorf("byte is %d, %d was stored last", got[0], stores)
	}
	refault = func() {}
	dst.SetInvalidator(nil)
	e.fs.Pages().DecRef(run.ArenaOffset, run.Length)
	e.sound()
}

// TestCloneOfMapped clones a file that stays mapped for writing, over one that
// is mapped, too.
func TestCloneOfMapped(t *testing.T) {
	e, src, dst, data := newPair(t, 4)
	e.write(dst, 0, pattern(77, 4*BlockSizeBytes), 0)
	mem := e.dev.Arena().Bytes()
	from, err := src.Fault(0, 2*BlockSizeBytes, true)
	e.must(err)
	e.fs.Pages().IncRef(from.ArenaOffset, from.Length)
	to, err := dst.Fault(BlockSizeBytes, BlockSizeBytes, true)
	e.must(err)
	e.fs.Pages().IncRef(to.ArenaOffset, to.Length)
	taken := false
	dst.SetInvalidator(func(off, length int64) {
		if off <= BlockSizeBytes && off+length >= 2*BlockSizeBytes && !taken {
			taken = true
			e.fs.Pages().DecRef(to.ArenaOffset, to.Length)
		}
	})
	mem[from.ArenaOffset] = 201
	data[0] = 201
	e.clone(src, dst)
	if !taken {
		t.Error("the mapping of what was replaced is still there")
	}
	e.expect(dst, 0, data, 0)
	// What is stored now is the source's alone.
	mem[from.ArenaOffset] = 202
	e.must(e.fs.Sync(nil))
	e.expect(dst, 0, data, 0)
	dst.dropAllPages()
	e.expect(dst, 0, data, 0)
	data[0] = 202
	e.expect(src, 0, data, 0)
	src.SetInvalidator(func(off, length int64) {})
	e.fs.Pages().DecRef(from.ArenaOffset, from.Length)
	e.sound()
}

// TestCloneOnFullVolume checks that stores to shared blocks find no space before
// they are made, or later not at all, and that removing clones always works.
func TestCloneOnFullVolume(t *testing.T) {
	e, src, dst, data := newPair(t, 500)
	e.clone(src, dst)
	root := e.fs.Root()
	defer root.DecRef()
	fill := e.create(root, "fill", ModeRegular)
	defer fill.DecRef()
	var err error
	for off := int64(0); err == nil; off += 1 << 20 {
		_, err = fill.WriteAt(&fillSource{}, off, 1<<20, 0)
	}
	e.want(err, ErrNoSpace)
	e.must(e.fs.Sync(nil))
	written := int64(0)
	for err = nil; err == nil && written < 500; written++ {
		_, err = dst.WriteAt(&bytesSource{pattern(8, BlockSizeBytes)}, (written*7%500)*BlockSizeBytes, BlockSizeBytes, 0)
	}
	e.want(err, ErrNoSpace)
	e.must(e.fs.Sync(nil)) // what was taken has room
	e.expect(src, 0, data, 0)
	for _, name := range []string{"dst", "src"} {
		e.must(root.Unlink(name, nil))
	}
	e.sound()
}

// TestMappedSourceOnFullVolume clones a file that is mapped for writing when there
// is no room left for what will be stored there: the stores come first.
func TestMappedSourceOnFullVolume(t *testing.T) {
	e, src, dst, data := newPair(t, 300)
	e.must(e.fs.Sync(nil))
	root := e.fs.Root()
	defer root.DecRef()
	mem := e.dev.Arena().Bytes()
	for off := int64(0); off < 300*BlockSizeBytes; off += BlockSizeBytes {
		run, err := src.Fault(off, BlockSizeBytes, true)
		e.must(err)
		mem[run.ArenaOffset] = 1
		data[off] = 1
	}
	fill := e.create(root, "fill", ModeRegular)
	defer fill.DecRef()
	e.fill(fill, 64<<10, IODirect)
	e.want(dst.CloneRange(src, 0, 0, 300*BlockSizeBytes), ErrNoSpace)
	for index := range uint64(300) {
		mem[src.pages.get(index).off] = 2
		data[index*BlockSizeBytes] = 2
	}
	e.must(src.Fsync(nil, false))
	e.expect(src, 0, data, 0)
	e.sound()
}

// TestSharedPagesAreNotMapped checks that a page whose block has come to be
// shared is not mapped for writing before it has a block for what is stored.
func TestSharedPagesAreNotMapped(t *testing.T) {
	e, src, dst, _ := newPair(t, 4)
	e.clone(src, dst)
	p, err := src.pageAt(1, 1)
	e.must(err)
	defer e.fs.cache.unpin(p)
	if run, ok := src.handOut(p, BlockSizeBytes, true); ok {
		t.Errorf("handed out %+v", run)
	}
	if _, ok := src.handOut(p, BlockSizeBytes, false); !ok {
		t.Error("not handed out for reading")
	}
}

// TestFragmentedOwners removes a file whose blocks have different numbers of
// owners everywhere, in steps that a full volume can take.
func TestFragmentedOwners(t *testing.T) {
	e, src, dst, data := newPair(t, 1200)
	root := e.fs.Root()
	defer root.DecRef()
	before := e.usedBlocks()
	third := e.create(root, "third", ModeRegular)
	for block := int64(0); block < 1200; block += 2 {
		e.must(dst.CloneRange(src, block*BlockSizeBytes, block*BlockSizeBytes, BlockSizeBytes))
		if block%6 == 0 {
			e.must(third.CloneRange(src, block*BlockSizeBytes, (1200-block)*BlockSizeBytes, BlockSizeBytes))
		}
	}
	e.sound()
	all := e.create(root, "all", ModeRegular)
	e.clone(src, all)
	e.expect(all, 0, data, 0)
	e.sound()
	for _, name := range []string{"src", "third", "all", "dst"} {
		e.must(root.Unlink(name, nil))
		if name == "src" {
			src.DecRef()
		} else if name == "dst" {
			dst.DecRef()
		}
		if name == "third" {
			third.DecRef()
		}
		if name == "all" {
			all.DecRef()
		}
		e.sound()
	}
	if got := e.usedBlocks(); got != before-1201 {
		t.Errorf("%d blocks in use, %d before with 1201 of the file", got, before)
	}
	src.IncRef()
	dst.IncRef()
}

// TestCopyRange checks that whole blocks are shared and all else is copied.
func TestCopyRange(t *testing.T) {
	e, src, dst, data := newPair(t, 20)
	before := e.usedBlocks()
	n, err := dst.CopyRange(src, 0, 0, 1<<30)
	e.must(err)
	if n != int64(len(data)) || e.owners(dst, 0) != 2 || e.usedBlocks() != before {
		t.Errorf("copied %d bytes, block 0 has %d owners", n, e.owners(dst, 0))
	}
	n, err = dst.CopyRange(src, 5, 3*BlockSizeBytes, 10000)
	e.must(err)
	if n != 10000 {
		t.Errorf("copied %d bytes", n)
	}
	want := bytes.Clone(data)
	copy(want[3*BlockSizeBytes:], data[5:10005])
	n, err = dst.CopyRange(src, 0, BlockSizeBytes, BlockSizeBytes+100)
	e.must(err)
	if n != BlockSizeBytes {
		t.Errorf("copied %d bytes of a block and a part", n)
	}
	copy(want[BlockSizeBytes:], data[:BlockSizeBytes])
	n, err = dst.CopyRange(src, 0, 2*BlockSizeBytes, 100)
	e.must(err)
	if n != 100 {
		t.Errorf("copied %d bytes of a part", n)
	}
	copy(want[2*BlockSizeBytes:], data[:100])
	e.expect(dst, 0, want, 0)
	e.expect(src, 0, data, 0)
	n, err = dst.CopyRange(src, int64(len(data)), 0, 10)
	if n != 0 || err != nil {
		t.Errorf("behind the end: %d, %v", n, err)
	}
	_, err = src.CopyRange(src, 0, 100, 200)
	e.want(err, ErrInvalid)
	n, err = src.CopyRange(src, 0, 200, 200)
	e.must(err)
	copy(data[200:], data[:200])
	if n != 200 {
		t.Errorf("copied %d bytes within a file", n)
	}
	e.expect(src, 0, data, 0)
	e.sound()
}

// TestWrongOwnerCounts frees blocks of images whose counts are wrong in ways
// that show: that is an error, and the other owners keep what they have.
func TestWrongOwnerCounts(t *testing.T) {
	type change = func(tx *store.Tx, src, dst *Inode, at format.Addr) error
	put := func(tx *store.Tx, at format.Addr, blocks uint32, owners uint64) error {
		return tx.Put(format.RefcountKey(at), format.RefcountItem{Blocks: blocks, Owners: owners}.Append(nil))
	}
	for name, damage := range map[string]change{
		"an extent does not know of others": func(tx *store.Tx, src, dst *Inode, at format.Addr) error {
			return tx.Put(extentKey(dst.ino, 0), format.ExtentItem{Start: at, Blocks: 9}.Append(nil))
		},
		"counted twice": func(tx *store.Tx, src, dst *Inode, at format.Addr) error { return put(tx, at+4, 2, 3) },
		"one owner":     func(tx *store.Tx, src, dst *Inode, at format.Addr) error { return put(tx, at, 9, 1) },
		"outside the volume": func(tx *store.Tx, src, dst *Inode, at format.Addr) error {
			return put(tx, at, 1<<20, 2)
		},
		"too short": func(tx *store.Tx, src, dst *Inode, at format.Addr) error {
			return tx.Put(format.RefcountKey(at), make([]byte, 7))
		},
		"more owners than can be": func(tx *store.Tx, src, dst *Inode, at format.Addr) error { return put(tx, at, 9, 1<<63) },
	} {
		e, src, dst, data := newPair(t, 8)
		e.clone(src, dst)
		m, err := src.mapBlock(0, 1)
		e.must(err)
		_, err = e.fs.store.Update(func(tx *store.Tx) error { return damage(tx, src, dst, m.addr) })
		e.must(err)
		src.ext.reset()
		dst.ext.reset()
		if err := dst.Truncate(0); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: truncation gave %v", name, err)
		}
		if err := dst.CloneRange(src, 0, 0, 0); err == nil && name != "an extent does not know of others" {
			t.Errorf("%s: could be cloned", name)
		}
		e.expect(src, 0, data, 0)
		src.dropAllPages()
		e.expect(src, 0, data, 0)
		if ro := e.fs.ReadOnly(); ro {
			t.Errorf("%s: the volume can no longer be written to", name)
		}
	}
}
