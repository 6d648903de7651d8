package fsck

import (
	"cmp"
	"fmt"
	"slices"
	"sort"

	"runsc-fs/blobfs/format"
)

// ownerQuery asks who owns the blocks that a finding is about.
type ownerQuery struct {
	run     format.Run
	finding int
	owners  int
}

// maxOwners is how many owners a finding names.
const maxOwners = 4

// nameOwners adds the owners to the findings about blocks.
func (c *checker) nameOwners() {
	if len(c.queries) == 0 {
		return
	}
	slices.SortFunc(c.queries, func(a, b ownerQuery) int { return cmp.Compare(a.run.Start, b.run.Start) })
	c.eachNode(func(a format.Addr) {
		c.nameOwner(format.Run{Start: a, Blocks: 1}, 0, func() string { return "metadata" })
	})
	c.eachExtent(func(k format.Key, e *format.ExtentItem) {
		c.nameOwner(e.Run(), k.Object, func() string {
			return fmt.Sprintf("inode %d (file blocks %d to %d)", k.Object, k.Offset, k.Offset+uint64(e.Blocks)-1)
		})
	})
}

// nameOwner adds an owner to the findings about its blocks.
func (c *checker) nameOwner(owned format.Run, ino uint64, name func() string) {
	// No run of a query is longer than a group.
	low := owned.Start - min(owned.Start, format.GroupBlocks)
	i := sort.Search(len(c.queries), func(i int) bool { return c.queries[i].run.Start >= low })
	for ; i < len(c.queries) && c.queries[i].run.Start < owned.End(); i++ {
		q := &c.queries[i]
		if q.run.End() <= owned.Start {
			continue
		}
		q.owners++
		f := &c.rep.Findings[q.finding]
		switch {
		case q.owners == 1:
			f.Message += "; used by " + name()
		case q.owners <= maxOwners:
			f.Message += ", " + name()
		case q.owners == maxOwners+1:
			f.Message += " and others"
		}
		if f.Ino == 0 {
			f.Ino = ino
		}
	}
}
