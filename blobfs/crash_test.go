package blobfs

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"runsc-fs/nvme"
	"runsc-fs/nvme/crashdev"
)

var (
	crashSeed   = flag.Uint64("crash.seed", 0, "seed of the crash test; 0: from the clock")
	crashStates = flag.Int("crash.states", 250, "power cuts that the crash test looks at")
)

// crashRun is a workload on a recording disk, and what must be there after a
// power cut at any point of it.
type crashRun struct {
	*env
	disk *crashdev.Disk
	rng  *rand.Rand

	logs     [3]crashLog
	replaced [3]crashReplaced
	blocks   crashBlocks
	names    []crashNames // after each operation on names
	nameOps  int
}

// at is a number that holds from a point of the disk's history on.
type at struct {
	point int
	value int
}

// lastAt returns the value that holds at a point.
func lastAt(list []at, point int) int {
	value := 0
	for _, a := range list {
		if a.point <= point {
			value = a.value
		}
	}
	return value
}

// crashLog is a file that only grows.
type crashLog struct {
	f      *Inode
	data   []byte
	synced []at // sizes
}

// crashReplaced is a name whose file is replaced by rename.
type crashReplaced struct {
	version int
	synced  []at // versions
}

// crashBlocks is a file written in all ways, in stamped blocks.
type crashBlocks struct {
	f       *Inode
	version [64]int   // last one written
	synced  [64][]at  // versions that a sync has made durable; -1: may be gone
	latest  [64][]int // versions ever written
}

// crashNames is the content of the directory of names after an operation.
type crashNames struct {
	state  string
	synced []at // always the same value: the operation was durable from there on
}

func versionData(version int) []byte {
	return bytes.Repeat([]byte{byte(version), byte(version >> 8), 0xa5, 1}, 1000+version%7*517)
}

func (c *crashRun) setup() {
	// Blocks that hold something recognisable before they are used again.
	root := c.fs.Root()
	defer root.DecRef()
	junk := c.create(root, "junk", ModeRegular)
	c.write(junk, 0, bytes.Repeat([]byte{0xee}, 12<<20), 0)
	c.must(junk.Fsync(nil, false))
	c.must(root.Unlink("junk", nil))
	junk.DecRef()
	for k := range c.logs {
		c.logs[k].f = c.create(root, fmt.Sprintf("log%d", k), ModeRegular)
	}
	c.blocks.f = c.create(root, "blocks", ModeRegular)
	c.create(root, "names", ModeDir|0o755).DecRef()
	c.names = []crashNames{{state: ""}}
	c.must(c.fs.Sync(nil))
	c.must(c.fs.store.Checkpoint()) // junk is reusable now
	c.disk.Restart()
}

func (c *crashRun) run(steps int) {
	for range steps {
		switch c.rng.IntN(10) {
		case 0, 1, 2:
			c.appendLog()
		case 3:
			c.replace()
		case 4, 5, 6:
			c.changeBlocks()
		case 7, 8:
			c.changeNames()
		case 9:
			if c.rng.IntN(4) == 0 {
				c.fs.periodicCommit()
			} else {
				c.must(c.fs.Sync(nil))
				c.syncedAll()
			}
		}
	}
}

// syncedNames notes that every change of the directory of names is durable.
func (c *crashRun) syncedNames() {
	n := &c.names[len(c.names)-1]
	n.synced = append(n.synced, at{c.disk.Points(), 1})
}

// syncedReplaced notes that every replacement, in the root, is durable.
func (c *crashRun) syncedReplaced() {
	for k := range c.replaced {
		r := &c.replaced[k]
		r.synced = append(r.synced, at{c.disk.Points(), r.version})
	}
}

func (c *crashRun) syncedAll() {
	c.syncedNames()
	c.syncedReplaced()
	for k := range c.logs {
		c.syncedLog(&c.logs[k])
	}
	c.syncedBlocks()
}

func (c *crashRun) syncedLog(l *crashLog) {
	l.synced = append(l.synced, at{c.disk.Points(), len(l.data)})
}

func (c *crashRun) syncedBlocks() {
	for k := range c.blocks.version {
		c.blocks.synced[k] = append(c.blocks.synced[k], at{c.disk.Points(), c.blocks.version[k]})
	}
}

func (c *crashRun) appendLog() {
	l := &c.logs[c.rng.IntN(len(c.logs))]
	record := make([]byte, 1+c.rng.IntN(6000))
	for k := range record {
		record[k] = byte(c.rng.Uint32()) | 1
	}
	flags := []IOFlags{0, 0, 0, IODSync, IOSync}[c.rng.IntN(5)]
	off, n, err := l.f.Append(&bytesSource{record}, int64(len(record)), flags)
	c.must(err)
	if off != int64(len(l.data)) || n != int64(len(record)) {
		c.t.Fatalf("appended %d at %d", n, off)
	}
	l.data = append(l.data, record...)
	switch {
	case flags != 0:
		c.syncedLog(l)
	case c.rng.IntN(4) == 0:
		c.must(l.f.Fsync(nil, c.rng.IntN(2) == 0))
		c.syncedLog(l)
	}
}

func (c *crashRun) replace() {
	k := c.rng.IntN(len(c.replaced))
	r := &c.replaced[k]
	root := c.fs.Root()
	defer root.DecRef()
	tmp := c.create(root, "tmp", ModeRegular)
	defer tmp.DecRef()
	c.write(tmp, 0, versionData(r.version+1), 0)
	c.must(c.fs.Rename(root, "tmp", root, fmt.Sprintf("r%d", k), 0))
	r.version++
	if c.rng.IntN(3) == 0 {
		c.must(root.Fsync(nil, false))
		c.syncedReplaced()
	}
}

func (c *crashRun) changeBlocks() {
	b := &c.blocks
	k := c.rng.IntN(len(b.version))
	off := int64(k) * BlockSizeBytes
	lose := func(from, to int) {
		for j := from; j < to; j++ {
			b.version[j] = 0
			b.synced[j] = append(b.synced[j], at{c.disk.Points(), 0})
		}
	}
	switch c.rng.IntN(10) {
	case 0, 1, 2, 3, 4:
		version := len(b.latest[k]) + 1
		buf := make([]byte, BlockSizeBytes)
		stampBlock(buf, 77, uint64(k), uint64(version))
		flags := []IOFlags{0, 0, IODirect, IODirect, IODirect | IODSync, IODirect | IOSync}[c.rng.IntN(6)]
		c.write(b.f, off, buf, flags)
		b.version[k] = version
		b.latest[k] = append(b.latest[k], version)
		if flags&(IODSync|IOSync) != 0 {
			b.synced[k] = append(b.synced[k], at{c.disk.Points(), version})
		}
	case 5:
		lose(k, len(b.version))
		c.must(b.f.Truncate(off + c.rng.Int64N(BlockSizeBytes)))
	case 6:
		end := min(k+1+c.rng.IntN(8), len(b.version))
		lose(k, end)
		mode := []FallocateMode{FallocPunchHole | FallocKeepSize, FallocZeroRange}[c.rng.IntN(2)]
		c.must(b.f.Fallocate(mode, off, int64(end-k)*BlockSizeBytes))
	case 7:
		c.must(b.f.Fallocate([]FallocateMode{0, FallocKeepSize}[c.rng.IntN(2)], off, 8*BlockSizeBytes))
	default:
		c.must(b.f.Fsync(nil, c.rng.IntN(2) == 0))
		c.syncedBlocks()
		if c.rng.IntN(2) == 0 {
			b.f.dropAllPages() // so that direct writes need not mind the cache
		}
	}
}

func (c *crashRun) changeNames() {
	root := c.fs.Root()
	defer root.DecRef()
	dir := c.lookup(root, "names")
	defer dir.DecRef()
	a, b := fmt.Sprintf("a%d", c.rng.IntN(5)), fmt.Sprintf("a%d", c.rng.IntN(5))
	c.nameOps++
	var err error
	var made *Inode
	switch c.rng.IntN(6) {
	case 0, 1:
		// The mode tells which making of the name this is.
		made, err = dir.Create(a, NewInode{Mode: ModeRegular | uint32(c.nameOps)%0o1000})
	case 2:
		made, err = dir.Create(a, NewInode{Mode: ModeDir | uint32(c.nameOps)%0o1000})
	case 3:
		if err = dir.Unlink(a, nil); errors.Is(err, ErrIsDir) {
			err = dir.Rmdir(a, nil)
		}
	case 4:
		err = c.fs.Rename(dir, a, dir, b, []RenameFlags{0, RenameExchange}[c.rng.IntN(2)])
	case 5:
		if made, err = dir.Lookup(a); err == nil {
			err = dir.Link(b, made)
		}
	}
	if made != nil {
		made.DecRef()
	}
	if err == nil {
		c.names = append(c.names, crashNames{state: namesState(c.env, dir)})
	}
	if c.rng.IntN(5) == 0 {
		c.must(dir.Fsync(nil, false))
		c.syncedNames()
	}
}

func namesState(e *env, dir *Inode) string {
	var list []string
	e.must(dir.ReadDir(0, func(d Dirent) bool {
		i := e.lookup(dir, d.Name)
		a := i.Attr()
		list = append(list, fmt.Sprintf("%s:%#o:%d", d.Name, a.Mode, a.Nlink))
		i.DecRef()
		return true
	}))
	slices.Sort(list)
	return strings.Join(list, " ")
}

// check mounts what a power cut has left and compares it with what must be there.
func (c *crashRun) check(crash crashdev.Crash, img *crashdev.Disk, arena *nvme.Arena) error {
	e := &env{t: c.t, dev: img.Device(arena), now: 1 << 61}
	opts := e.testOptions()
	opts.CacheBytes = 2 << 20
	opts.Logf = func(text string, args ...any) { c.t.Errorf("%v: %s", crash, fmt.Sprintf(text, args...)) }
	if err := checkVolume(e.dev); err != nil {
		return fmt.Errorf("before mounting: %w", err)
	}
	fs, err := Mount(e.dev, opts)
	if err != nil {
		return fmt.Errorf("mounting: %w", err)
	}
	e.fs = fs
	root := fs.Root()
	for k := range c.logs {
		if err := c.checkLog(e, root, k, crash.Point); err != nil {
			return err
		}
	}
	for k := range c.replaced {
		if err := c.checkReplaced(e, root, k, crash.Point); err != nil {
			return err
		}
	}
	if err := c.checkBlocks(e, root, crash.Point); err != nil {
		return err
	}
	if err := c.checkNames(e, root, crash.Point); err != nil {
		return err
	}
	if err := fs.store.Verify(); err != nil {
		return err
	}
	root.DecRef()
	if err := fs.Close(); err != nil {
		return err
	}
	if err := checkVolume(e.dev); err != nil {
		return fmt.Errorf("after mounting: %w", err)
	}
	return nil
}

func (c *crashRun) checkLog(e *env, root *Inode, k, point int) error {
	l := &c.logs[k]
	f, err := root.Lookup(fmt.Sprintf("log%d", k))
	if err != nil {
		return fmt.Errorf("log %d: %w", k, err)
	}
	defer f.DecRef()
	got := e.read(f, 0, 1<<40, 0)
	if len(got) < lastAt(l.synced, point) || len(got) > len(l.data) || !bytes.Equal(got, l.data[:len(got)]) {
		diff := 0
		for diff < len(got) && diff < len(l.data) && got[diff] == l.data[diff] {
			diff++
		}
		return fmt.Errorf("log %d: %d bytes, %d were synced, right up to byte %d", k, len(got), lastAt(l.synced, point), diff)
	}
	return nil
}

func (c *crashRun) checkReplaced(e *env, root *Inode, k, point int) error {
	r := &c.replaced[k]
	least := lastAt(r.synced, point)
	f, err := root.Lookup(fmt.Sprintf("r%d", k))
	if errors.Is(err, ErrNotExist) && least == 0 {
		return nil
	}
	if err != nil {
		return fmt.Errorf("replaced file %d, at least version %d: %w", k, least, err)
	}
	defer f.DecRef()
	got := e.read(f, 0, 1<<40, 0)
	for v := max(least, 1); v <= r.version; v++ {
		if bytes.Equal(got, versionData(v)) {
			return nil
		}
		if v == 1 && len(got) == 0 {
			// The first version took a name that nothing had.
			return nil
		}
	}
	return fmt.Errorf("replaced file %d: %d bytes, no version from %d to %d", k, len(got), least, r.version)
}

func (c *crashRun) checkBlocks(e *env, root *Inode, point int) error {
	f, err := root.Lookup("blocks")
	if err != nil {
		return err
	}
	defer f.DecRef()
	got := e.read(f, 0, 1<<40, 0)
	for k := range c.blocks.version {
		least := lastAt(c.blocks.synced[k], point)
		// What was done after that point may already be there.
		for _, s := range c.blocks.synced[k] {
			if s.point > point {
				least = min(least, s.value)
			}
		}
		if c.blocks.version[k] == 0 {
			least = 0
		}
		first := k * BlockSizeBytes
		if len(got) <= first {
			if least > 0 {
				return fmt.Errorf("block %d is missing, version %d was synced", k, least)
			}
			continue
		}
		b := got[first:min(first+BlockSizeBytes, len(got))]
		if err := checkStamp(b[:len(b)&^31], 77, uint64(k)); err != nil {
			return err
		}
		for j := 0; j+32 <= len(b); j += 32 {
			if v := int(binary.LittleEndian.Uint64(b[j+16:])); v < least {
				return fmt.Errorf("block %d, byte %d: version %d, but %d was synced", k, j, v, least)
			}
		}
	}
	return nil
}

func (c *crashRun) checkNames(e *env, root *Inode, point int) error {
	dir, err := root.Lookup("names")
	if err != nil {
		return err
	}
	defer dir.DecRef()
	got := namesState(e, dir)
	least := 0
	for k := range c.names {
		if lastAt(c.names[k].synced, point) != 0 {
			least = k
		}
	}
	for k := least; k < len(c.names); k++ {
		if c.names[k].state == got {
			return nil
		}
	}
	return fmt.Errorf("names are %q, which they were never since operation %d: %q", got, least, c.names[least].state)
}

// TestPowerCuts cuts the power at random points of a workload, with random
// parts of the unflushed writes lost, torn and reordered.
func TestPowerCuts(t *testing.T) {
	seed := *crashSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("-crash.seed %d", seed)
	c := newCrashRun(t, seed, false)
	c.run(250)
	if err := c.cuts(seed, *crashStates); err != nil {
		t.Fatal(err)
	}
}

// TestPowerCutsCanary makes sure that the test above notices a lost flush.
func TestPowerCutsCanary(t *testing.T) {
	for seed := range uint64(20) {
		c := newCrashRun(t, seed, true)
		c.run(60)
		if err := c.cuts(seed, 40); err != nil {
			t.Logf("noticed: %v", err)
			return
		}
	}
	t.Error("a disk that ignores flushes went unnoticed")
}

func newCrashRun(t *testing.T, seed uint64, lying bool) *crashRun {
	disk, err := crashdev.New(crashdev.Options{SizeBytes: 48 << 20, IgnoreFlush: lying})
	if err != nil {
		t.Fatal(err)
	}
	arena, err := nvme.NewArena(nvme.ArenaOptions{SizeBytes: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { arena.Close() })
	c := &crashRun{
		env:  &env{t: t, dev: disk.Device(arena), now: 1 << 60},
		disk: disk, rng: rand.New(rand.NewPCG(seed, 2)),
	}
	c.must(Mkfs(c.dev, MkfsOptions{}))
	c.mount()
	t.Cleanup(func() { c.fs.Close() })
	c.setup()
	return c
}

// cuts checks n images.
func (c *crashRun) cuts(seed uint64, n int) error {
	arena, err := nvme.NewArena(nvme.ArenaOptions{SizeBytes: 32 << 20})
	c.must(err)
	defer arena.Close()
	for crash, img := range c.disk.Samples(seed, n) {
		if err := c.check(crash, img, arena); err != nil {
			return fmt.Errorf("%v of %d: %w", crash, c.disk.Points(), err)
		}
	}
	return nil
}
