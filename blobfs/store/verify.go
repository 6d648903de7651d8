package store

import (
	"errors"
	"fmt"

	"runsc-fs/blobfs/format"
)

// Verify reads the whole tree and checks that every node is sound, that the
// number of nodes is right, that exactly the blocks of nodes, fixed structures
// and extents are in use, each once or as often as counted, and that the allocator's counts agree
// with its bitmaps. It stops all changes meanwhile, and takes a bit of memory
// for each block of the volume, more for shared ones: it is for tests.
func (s *Store) Verify() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := verifier{s: s, owned: make(map[uint64]*bitmap), owners: make(map[format.Addr]uint64)}
	if err := v.node(s.root, wholeTree, nil); err != nil {
		return err
	}
	if v.nodes != s.nodes {
		return fmt.Errorf("tree has %d nodes, the store counts %d", v.nodes, s.nodes)
	}
	if v.dirty != s.dirty {
		return fmt.Errorf("tree has %d dirty nodes, the store counts %d", v.dirty, s.dirty)
	}
	for g := range s.alloc.groups {
		for _, r := range s.sb.FixedRuns(uint64(g)) {
			if err := v.own(r, "fixed"); err != nil {
				return err
			}
		}
	}
	for block, n := range v.owners {
		if n > 0 {
			return fmt.Errorf("block %v has %d owners fewer than counted", block, n)
		}
	}
	return v.allocator()
}

type verifier struct {
	s     *Store
	owned map[uint64]*bitmap
	// owners holds, for blocks with a refcount item, how many owners are still
	// to be found. These items come before all extents.
	owners map[format.Addr]uint64
	nodes  int64
	dirty  int
	last   format.Key
	any    bool
}

// extent notes the owner of an extent's blocks.
func (v *verifier) extent(e format.ExtentItem, what string) error {
	if !e.Shared() {
		return v.own(e.Run(), what)
	}
	for block := e.Start; block < e.Run().End(); block++ {
		left, counted := v.owners[block]
		if counted && left == 0 {
			return fmt.Errorf("%s: block %v has more owners than counted", what, block)
		}
		g, i := format.GroupOf(block)
		if b := v.owned[g]; counted && b != nil && !allBits(b, i, 1, false) {
			v.owners[block] = left - 1
			continue
		}
		if err := v.own(format.Run{Start: block, Blocks: 1}, what); err != nil {
			return err
		}
		if counted {
			v.owners[block] = left - 1
		}
	}
	return nil
}

func (v *verifier) refcount(k format.Key, value []byte) error {
	r, err := format.DecodeRefcountItem(k, value, v.s.VolumeBlocks())
	for b := range format.Addr(r.Blocks) {
		block := format.Addr(k.Offset) + b
		if v.owners[block] > 0 {
			return fmt.Errorf("the owners of block %v are counted twice", block)
		}
		v.owners[block] = r.Owners
	}
	return err
}

// own notes that a run has an owner.
func (v *verifier) own(r format.Run, what string) error {
	return eachGroup(r, func(g uint64, i, n int) error {
		b := v.owned[g]
		if b == nil {
			b = new(bitmap)
			v.owned[g] = b
		}
		if !allBits(b, i, n, false) {
			return fmt.Errorf("%s %v: has two owners", what, r)
		}
		setBits(b, i, n, true)
		return nil
	})
}

func (v *verifier) node(n *node, sp span, parent *node) error {
	s := v.s
	v.nodes++
	if n.gen == s.gen {
		v.dirty++
		if parent != nil && parent.gen != s.gen {
			return fmt.Errorf("node %v is dirty and the node above it is not", n.addr)
		}
	}
	data := *n.data
	data.SetIdentity(s.sb.UUID, n.addr, n.gen)
	format.Seal(data[:])
	if err := data.Validate(s.sb.UUID, n.ptr(), n.data.Level(), sp.low, sp.high); err != nil {
		return err
	}
	if err := v.own(format.Run{Start: n.addr, Blocks: 1}, "node"); err != nil {
		return err
	}
	if n.kids == nil {
		return v.leaf(n)
	}
	for i := range n.data.Count() {
		sub := childSpan(n, i, sp)
		kid := n.kids[i].Load()
		if kid == nil {
			// Read it, but do not keep it: the tree may be large.
			var err error
			if kid, err = s.loadNode(n.data.Child(i), n.data.Level()-1, sub); err != nil {
				return err
			}
		} else if kid.ptr() != n.data.Child(i) {
			return fmt.Errorf("node %v entry %d: leads to %v, in memory is %v", n.addr, i, n.data.Child(i), kid.ptr())
		}
		if err := v.node(kid, sub, n); err != nil {
			return err
		}
	}
	return nil
}

func (v *verifier) leaf(n *node) error {
	if n.data.Count() == 0 && n != v.s.root {
		return fmt.Errorf("leaf %v is empty", n.addr)
	}
	for i := range n.data.Count() {
		k := n.data.Key(i)
		if v.any && !v.last.Less(k) {
			return fmt.Errorf("leaf %v: %v after %v", n.addr, k, v.last)
		}
		v.last, v.any = k, true
		if k.Object == 0 && k.Kind == format.KindRefcount {
			if err := v.refcount(k, n.data.Value(i)); err != nil {
				return err
			}
		}
		if k.Kind != format.KindExtent {
			continue
		}
		e, err := format.DecodeExtentItem(k, n.data.Value(i), v.s.VolumeBlocks())
		if err != nil {
			return err
		}
		if err := v.extent(e, "extent "+k.String()); err != nil {
			return err
		}
	}
	return nil
}

// allocator compares bitmaps and counts with what was found.
func (v *verifier) allocator() error {
	a := v.s.alloc
	a.mu.Lock()
	defer a.mu.Unlock()
	var avail, held int64
	empty := new(bitmap)
	for g := range a.groups {
		b, err := a.loadLocked(uint64(g))
		if err != nil {
			return err
		}
		want := v.owned[uint64(g)]
		if want == nil {
			want = empty
		}
		for w := range want {
			if b.used[w] != want[w] {
				return fmt.Errorf("group %d word %d: in use by bitmap %#x, by owners %#x", g, w, b.used[w], want[w])
			}
			if b.used[w]&b.held[w] != 0 {
				return fmt.Errorf("group %d word %d: blocks both in use and held", g, w)
			}
		}
		size := format.GroupSize(uint64(g), v.s.VolumeBlocks())
		h := countBits(&b.held, 0, size)
		free := size - countBits(&b.used, 0, size) - h
		if int(a.groups[g].held) != h || int(a.groups[g].avail) != free {
			return fmt.Errorf("group %d: counts %d held %d allocatable, has %d and %d", g, a.groups[g].held, a.groups[g].avail, h, free)
		}
		avail += int64(free)
		held += int64(h)
	}
	if avail != a.avail {
		return fmt.Errorf("allocator counts %d allocatable blocks, has %d", a.avail, avail)
	}
	// What is held beyond the pool and pending frees is provisional.
	if held-int64(len(a.pool))-a.pendingLocked() < 0 {
		return errors.New("fewer blocks are held than the pool and pending frees account for")
	}
	return nil
}
