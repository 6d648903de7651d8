package blobfs

import (
	"math/rand/v2"
	"testing"
	"time"
)

// TestPageTree compares the tree of pages with a map.
func TestPageTree(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 5))
	var tree pageTree
	type state struct {
		p     *page
		dirty bool
	}
	model := map[uint64]*state{}
	pick := func() uint64 { return rng.Uint64N(1<<(6*(1+rng.Uint64N(5)))) >> rng.Uint64N(8) }
	first := func(from uint64, dirty bool) *page {
		var best *page
		for index, s := range model {
			if index >= from && (!dirty || s.dirty) && (best == nil || index < best.index) {
				best = s.p
			}
		}
		return best
	}
	for n := range 4000 {
		index := pick()
		s := model[index]
		switch op := rng.IntN(6); {
		case op < 2 && s == nil && len(model) < 300:
			p := &page{index: index}
			tree.insert(index, p)
			model[index] = &state{p: p}
		case op == 2 && s != nil:
			tree.remove(index)
			delete(model, index)
		case op == 3 && s != nil:
			tree.mark(index)
			s.dirty = true
		case op == 4 && s != nil:
			tree.unmark(index)
			s.dirty = false
		case op == 5 && len(model) > 0: // something that exists
			p := tree.next(index)
			if p == nil {
				p = tree.next(0)
			}
			if rng.IntN(2) == 0 {
				tree.remove(p.index)
				delete(model, p.index)
			} else {
				tree.mark(p.index)
				model[p.index].dirty = true
			}
		}
		var want *page
		if s := model[index]; s != nil {
			want = s.p
		}
		if got := tree.get(index); got != want {
			t.Fatalf("operation %d: page %d is %v, not %v", n, index, got, want)
		}
		if got := tree.next(index); got != first(index, false) {
			t.Fatalf("operation %d: next of %d is %v, not %v", n, index, got, first(index, false))
		}
		if got := tree.nextDirty(index); got != first(index, true) {
			t.Fatalf("operation %d: next dirty of %d is %v, not %v", n, index, got, first(index, true))
		}
	}
	for index := range model {
		tree.remove(index)
	}
	if tree.root.Load() != nil {
		t.Error("the empty tree has a root")
	}
}
