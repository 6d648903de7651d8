package blobfstest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"

	"runsc-fs/blobfs"
	"runsc-fs/nvme"
)

// Options are the parameters of a Runner.
type Options struct {
	Seed  uint64
	Mount blobfs.MountOptions
	// MaxFileBytes bounds the size of files, so that the model stays small.
	MaxFileBytes int64
	// HostDir, if not empty, is an empty directory in which the same is done by
	// the machine's kernel, to compare errnos and contents.
	HostDir string
	// Trace, if not nil, gets one line per operation.
	Trace io.Writer
}

// Runner carries out random operations on a file system and on the model.
type Runner struct {
	opts   Options
	dev    nvme.BlockDevice
	fs     *blobfs.FS
	model  *Model
	rng    *rand.Rand
	ops    int
	step   string
	open   []*Node // without a name, kept by their handle
	tmp    map[*Node]bool
	counts map[string]int

	host     *host // nil without HostDir
	mirrored int

	// mapsMu plays the lock of an address space: it is held from Fault until
	// the mapping has its reference, while a mapping is used, and by the
	// invalidator, which the file system may call from a goroutine of its own.
	mapsMu sync.Mutex
	maps   []*mapping
}

// mapping is a page of a file that we hold as an application's mapping would.
type mapping struct {
	node     *Node
	page     int64
	mem      []byte
	arenaOff int64
	writable bool
}

// NewRunner mounts the empty file system on dev.
func NewRunner(dev nvme.BlockDevice, opts Options) (*Runner, error) {
	if opts.MaxFileBytes == 0 {
		opts.MaxFileBytes = 1 << 20
	}
	r := &Runner{
		opts: opts, dev: dev, model: NewModel(), rng: rand.New(rand.NewPCG(opts.Seed, 1)),
		tmp: map[*Node]bool{}, counts: map[string]int{},
	}
	if opts.HostDir != "" {
		var err error
		if r.host, err = newHost(opts.HostDir, r.model.Root); err != nil {
			return nil, err
		}
	}
	return r, r.Mount()
}

// Mirrored is the number of operations that were compared with the host's.
func (r *Runner) Mirrored() int { return r.mirrored }

// CloseHost gives up the host's files.
func (r *Runner) CloseHost() {
	if r.host != nil {
		r.host.close()
	}
}

// Mount mounts again after Close.
func (r *Runner) Mount() (err error) {
	if r.fs, err = blobfs.Mount(r.dev, r.opts.Mount); err != nil {
		return err
	}
	r.model.Root.handle = r.fs.Root()
	r.model.Root.number = r.model.Root.handle.Ino()
	return nil
}

// FS is the mounted file system.
func (r *Runner) FS() *blobfs.FS { return r.fs }

// Counts says how often each operation was carried out.
func (r *Runner) Counts() map[string]int { return r.counts }

// Close drops everything and unmounts.
func (r *Runner) Close() error {
	r.dropAll()
	return r.fs.Close()
}

// dropAll gives up all mappings and references.
func (r *Runner) dropAll() {
	r.mapsMu.Lock()
	for _, m := range r.maps {
		r.fs.Pages().DecRef(m.arenaOff, int64(len(m.mem)))
	}
	r.maps = nil
	r.mapsMu.Unlock()
	for _, n := range r.model.nodes() {
		r.forget(n)
	}
	for _, n := range r.open {
		r.forget(n)
	}
	r.open = nil
	clear(r.tmp)
}

func (r *Runner) forget(n *Node) {
	if n.handle != nil {
		n.handle.SetInvalidator(nil)
		n.handle.DecRef()
		n.handle = nil
	}
	if r.host != nil {
		r.host.forget(n)
	}
}

// Run carries out n operations. The error says in which one something differed.
func (r *Runner) Run(n int) error {
	for range n {
		r.ops++
		if err := r.one(); err != nil {
			return fmt.Errorf("seed %d, operation %d, %s: %w", r.opts.Seed, r.ops, r.step, err)
		}
	}
	return nil
}

type operation struct {
	name   string
	weight int
	do     func(r *Runner) error
}

var operations = []operation{
	{"create", 8, (*Runner).opCreate}, {"mkdir", 4, (*Runner).opMkdir}, {"symlink", 2, (*Runner).opSymlink},
	{"mknod", 1, (*Runner).opMknod}, {"tmpfile", 1, (*Runner).opTmpfile}, {"link", 3, (*Runner).opLink},
	{"unlink", 5, (*Runner).opUnlink}, {"rmdir", 2, (*Runner).opRmdir}, {"rename", 8, (*Runner).opRename},
	{"write", 20, (*Runner).opWrite}, {"append", 4, (*Runner).opAppend}, {"read", 20, (*Runner).opRead},
	{"truncate", 6, (*Runner).opTruncate}, {"fallocate", 6, (*Runner).opFallocate}, {"seek", 4, (*Runner).opSeek},
	{"map", 8, (*Runner).opMap}, {"mapped", 14, (*Runner).opMapped}, {"setattr", 3, (*Runner).opSetAttr},
	{"setxattr", 4, (*Runner).opSetXattr}, {"getxattr", 3, (*Runner).opGetXattr}, {"fsync", 4, (*Runner).opFsync},
	{"sync", 1, (*Runner).opSync}, {"readdir", 2, (*Runner).opReadDir}, {"drop", 6, (*Runner).opDrop},
	{"shift", 6, (*Runner).opShift},
	{"clone", 8, (*Runner).opClone}, {"dedupe", 4, (*Runner).opDedupe}, {"copy", 4, (*Runner).opCopy},
	{"stat", 4, (*Runner).opStat}, {"lookup", 3, (*Runner).opLookup},
}

func (r *Runner) one() error {
	total := 0
	for _, o := range operations {
		total += o.weight
	}
	k := r.rng.IntN(total)
	for _, o := range operations {
		if k -= o.weight; k >= 0 {
			continue
		}
		r.step = o.name
		r.counts[o.name]++
		err := o.do(r)
		if r.opts.Trace != nil {
			fmt.Fprintf(r.opts.Trace, "%d %s\n", r.ops, r.step)
		}
		return err
	}
	return nil
}

// describe says what the operation does, for messages.
func (r *Runner) describe(text string, args ...any) { r.step = fmt.Sprintf(text, args...) }

// same compares the outcomes of an operation.
func same(got, want error) error {
	switch {
	case got == nil && want == nil:
		return nil
	case want == nil:
		return fmt.Errorf("failed: %w", got)
	case !errors.Is(got, want):
		return fmt.Errorf("gave %v, not %v", got, want)
	}
	return nil
}

// real returns the inode of a node, which keeps the reference.
func (r *Runner) real(n *Node) (*blobfs.Inode, error) {
	if n.handle != nil {
		return n.handle, nil
	}
	for at := range n.names {
		dir, err := r.real(at.dir)
		if err != nil {
			return nil, err
		}
		i, err := dir.Lookup(at.name)
		if err != nil {
			return nil, fmt.Errorf("looking up %q: %w", at.name, err)
		}
		return i, r.adopt(n, i)
	}
	return nil, errors.New("test bug: node has no name and no handle")
}

// adopt makes i, with a reference, the inode of n.
func (r *Runner) adopt(n *Node, i *blobfs.Inode) error {
	n.handle = i
	if n.number == 0 {
		n.number = i.Ino()
	}
	if n.number != i.Ino() {
		return fmt.Errorf("inode number changed from %d to %d", n.number, i.Ino())
	}
	i.SetInvalidator(func(off, length int64) { r.unmap(n, off, length) })
	return nil
}

// unmap is the invalidator: it drops our mappings of a range.
func (r *Runner) unmap(n *Node, off, length int64) {
	r.mapsMu.Lock()
	defer r.mapsMu.Unlock()
	r.maps = slices.DeleteFunc(r.maps, func(m *mapping) bool {
		start := m.page * blobfs.BlockSizeBytes
		if m.node != n || start+int64(len(m.mem)) <= off || start >= off+length {
			return false
		}
		r.fs.Pages().DecRef(m.arenaOff, int64(len(m.mem)))
		return true
	})
}

func (r *Runner) pick(ok func(n *Node) bool) *Node {
	list := append(r.model.nodes(), r.open...)
	list = slices.DeleteFunc(list, func(n *Node) bool { return !ok(n) })
	if len(list) == 0 {
		return nil
	}
	return list[r.rng.IntN(len(list))]
}

func (r *Runner) pickDir() *Node  { return r.pick((*Node).isDir) }
func (r *Runner) pickFile() *Node { return r.pick((*Node).isFile) }

func (r *Runner) pickName() string {
	switch r.rng.IntN(40) {
	case 0:
		return string(bytes.Repeat([]byte{'x'}, 255))
	case 1:
		return string(bytes.Repeat([]byte{'y'}, 256))
	case 2:
		return "\xff\x01 odd"
	}
	return fmt.Sprintf("n%d", r.rng.IntN(12))
}

// pickExisting returns a name that is more likely than not in dir.
func (r *Runner) pickExisting(dir *Node) string {
	if len(dir.Children) > 0 && r.rng.IntN(5) > 0 {
		names := make([]string, 0, len(dir.Children))
		for s := range dir.Children {
			names = append(names, s)
		}
		slices.Sort(names)
		return names[r.rng.IntN(len(names))]
	}
	return r.pickName()
}

func (r *Runner) bytes(n int) []byte {
	b := make([]byte, n)
	for k := range b {
		b[k] = byte(r.rng.Uint32())
	}
	return b
}

// span returns an offset and a length of at least min, more often than not at
// the edges of blocks, so that they end below limit.
func (r *Runner) span(limit int64) (off, n int64) {
	off, n = r.rng.Int64N(limit), 1+r.rng.Int64N(limit/4)
	if r.rng.IntN(3) == 0 {
		n = 1 + r.rng.Int64N(5000)
	}
	switch r.rng.IntN(4) {
	case 0:
		off &^= blobfs.BlockSizeBytes - 1
	case 1:
		off &^= blobfs.BlockSizeBytes - 1
		n = (n + blobfs.BlockSizeBytes - 1) &^ (blobfs.BlockSizeBytes - 1)
	}
	return off, n
}

// sink and source are the application's memory; they sometimes take or give
// data in more than one piece.
type sink struct{ b []byte }

func (s *sink) CopyOut(b []byte) (int, error) {
	s.b = append(s.b, b...)
	return len(b), nil
}

type source struct{ b []byte }

func (s *source) CopyIn(b []byte) (int, error) {
	n := copy(b, s.b)
	s.b = s.b[n:]
	return n, nil
}
