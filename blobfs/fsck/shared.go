package fsck

import (
	"cmp"
	"fmt"
	"slices"

	"runsc-fs/blobfs/format"
)

// A block may be held by several extents if all of them say so; how many they
// are stands in a refcount item. The checker counts them again.

// refcountWalk checks refcount items as they come in the order of their keys.
type refcountWalk struct {
	end format.Addr // behind the last one
}

func (w *refcountWalk) item(c *checker, it *items) {
	name := "item " + it.key.String()
	r, err := format.DecodeRefcountItem(it.key, it.value, c.sb.VolumeBlocks)
	if err != nil {
		c.found(Error, CodeRefcountItem, name, "%s", reason(err))
		return
	}
	c.checkSharing(name)
	run := format.Run{Start: format.Addr(it.key.Offset), Blocks: uint64(r.Blocks)}
	if text := c.checkDataRun(run); text != "" {
		c.found(Error, CodeRefcountItem, name, "counts owners of what cannot be file data: %s", text)
	}
	if run.Start < w.end {
		c.found(Error, CodeRefcountItem, name, "counts owners of blocks that the item before it counts, too")
	}
	w.end = max(w.end, run.End())
}

// checkSharing reports, once, that the superblock does not say that blocks are
// shared, as something of the given name shows.
func (c *checker) checkSharing(name string) {
	if c.sb.Incompat&format.IncompatReflink == 0 && !c.unannounced {
		c.unannounced = true
		c.found(Error, CodeSharedFeature, name, "shares blocks, but the superblock does not say that the volume has shared blocks: older programs would destroy data")
	}
}

// holdExtent notes the blocks of an extent outside the fixed structures.
func (c *checker) holdExtent(e *format.ExtentItem) {
	if e.Shared() {
		c.win.share(c, e.Run())
	} else {
		c.win.own(c, e.Run())
	}
}

// share notes that r has an owner that knows there may be others.
func (w *window) share(c *checker, r format.Run) {
	w.noteOthers(c, r)
	w.eachGroup(r, func(g uint64, i, n int) {
		start := format.GroupStart(g) + format.Addr(i)
		w.edges = append(w.edges, edge{at: start, owners: 1}, edge{at: start + format.Addr(n), owners: -1})
	})
}

// edge is a place where the number of owners changes: the one that there is,
// or the one that is recorded.
type edge struct {
	at       format.Addr
	owners   int64
	recorded int64
}

// checkShared compares the shared blocks of the window with the refcount items
// and marks them as owned.
func (c *checker) checkShared() {
	c.readRefcounts()
	edges := c.win.edges
	slices.SortFunc(edges, func(a, b edge) int { return cmp.Compare(a.at, b.at) })
	low, high := format.RefcountKey(0), format.RefcountKey(^format.Addr(0))
	unsure := c.damaged(low, high)
	var owners, recorded int64
	var last sharedRun
	for i := 0; i < len(edges); {
		at := edges[i].at
		for ; i < len(edges) && edges[i].at == at; i++ {
			owners += edges[i].owners
			recorded += edges[i].recorded
		}
		if i == len(edges) {
			break
		}
		next := sharedRun{format.Run{Start: at, Blocks: uint64(edges[i].at - at)}, owners, recorded}
		if last.Blocks > 0 && last.End() == at && last.owners == owners && last.recorded == recorded {
			last.Blocks += next.Blocks
			continue
		}
		c.checkSharedRun(last, unsure)
		last = next
	}
	c.checkSharedRun(last, unsure)
	c.win.edges = c.win.edges[:0]
}

// sharedRun is a run of blocks with one number of owners.
type sharedRun struct {
	format.Run
	owners   int64
	recorded int64 // 0: no item
}

func (c *checker) checkSharedRun(r sharedRun, unsure bool) {
	if r.owners > 0 {
		c.rep.Counters.DataBlocks += r.Blocks
		c.win.own(c, r.Run)
	}
	if r.owners > 1 {
		c.rep.Counters.SharedBlocks += r.Blocks
	}
	switch have := max(r.recorded, 1); {
	case r.owners > have && !unsure:
		c.foundBlocks(Error, CodeRefcountWrong, r.Run, fmt.Sprintf("have %d owners, but %d are recorded: they will be freed while they are in use", r.owners, have))
	case r.recorded > r.owners && len(c.damage) == 0:
		c.foundBlocks(Warning, CodeRefcountWrong, r.Run, fmt.Sprintf("have %d owners that share them, but %d are recorded: they will never be freed", r.owners, r.recorded))
	}
}

// readRefcounts adds what refcount items say of the blocks of the window.
func (c *checker) readRefcounts() {
	first := format.GroupStart(c.win.first)
	it := c.newItems()
	// An item that begins before the window may reach into it.
	it.seek(format.RefcountKey(first - min(first, format.MaxRefcountBlocks)))
	for it.next() && it.key.Object == 0 && it.key.Kind == format.KindRefcount && it.key.Offset < uint64(format.GroupStart(c.win.end)) {
		r, err := format.DecodeRefcountItem(it.key, it.value, c.sb.VolumeBlocks)
		if err != nil {
			continue // reported by refcountWalk
		}
		c.win.eachGroup(format.Run{Start: format.Addr(it.key.Offset), Blocks: uint64(r.Blocks)}, func(g uint64, i, n int) {
			start := format.GroupStart(g) + format.Addr(i)
			c.win.edges = append(c.win.edges, edge{at: start, recorded: int64(r.Owners)}, edge{at: start + format.Addr(n), recorded: -int64(r.Owners)})
		})
	}
}
