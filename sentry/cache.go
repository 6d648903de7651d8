package sentry

import (
	"sync"
	"sync/atomic"

	"gvisor.dev/gvisor/pkg/context"
)

const (
	// evictBatch is how many entries one pass over the dentry cache examines:
	// the bound on the time that renameMu is held for it.
	evictBatch = 256
	// evictSlack is by how much the cache outgrows its limit before a pass, so
	// that passes are rare.
	evictSlack = 64
)

// dentryCache keeps the dentries of one file system in bounds. It is a clock:
// a walk only marks what it meets, and a pass gives marked entries a second
// round.
type dentryCache struct {
	limit int64        // immutable
	count atomic.Int64 // entries in the ring; read without mu to see whether a pass is due

	mu   sync.Mutex
	hand *dentry // next entry to examine; nil in an empty ring
}

// cacheEntry is the part of a dentry that belongs to the cache.
type cacheEntry struct {
	used       atomic.Bool
	prev, next *dentry // guarded by dentryCache.mu; nil outside the ring
}

// touch marks the entry as recently used.
func (e *cacheEntry) touch() {
	if !e.used.Load() {
		e.used.Store(true)
	}
}

// add puts d behind the hand, where it is examined last.
func (c *dentryCache) add(d *dentry) {
	c.mu.Lock()
	if c.hand == nil {
		d.prev, d.next = d, d
		c.hand = d
	} else {
		d.prev, d.next = c.hand.prev, c.hand
		d.prev.next, d.next.prev = d, d
	}
	c.mu.Unlock()
	c.count.Add(1)
}

// remove takes d out; it does nothing if d is not in.
func (c *dentryCache) remove(d *dentry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if d.next == nil {
		return
	}
	if d.next == d {
		c.hand = nil
	} else {
		d.prev.next, d.next.prev = d.next, d.prev
		if c.hand == d {
			c.hand = d.next
		}
	}
	d.prev, d.next = nil, nil
	c.count.Add(-1)
}

// examine returns up to n entries from the hand on that have not been used
// since they were last examined.
func (c *dentryCache) examine(n int, out []*dentry) []*dentry {
	c.mu.Lock()
	defer c.mu.Unlock()
	for ; n > 0 && c.hand != nil; n-- {
		d := c.hand
		c.hand = d.next
		if d.used.Load() {
			d.used.Store(false)
			continue
		}
		out = append(out, d)
	}
	return out
}

// overfull says that a pass is due.
func (c *dentryCache) overfull() bool {
	return c.count.Load() > c.limit+evictSlack
}

// shrink evicts what has not been used lately until the cache is within its
// limit, or a batch has been examined.
//
// Preconditions: no locks are held.
func (fs *filesystem) shrink(ctx context.Context) {
	var room [evictBatch]*dentry
	evicted := room[:0]
	fs.renameMu.Lock()
	for _, d := range fs.cache.examine(evictBatch, room[:0]) {
		if fs.cache.count.Load() <= fs.cache.limit {
			break
		}
		if fs.evictLocked(d) {
			evicted = append(evicted, d)
		}
	}
	fs.renameMu.Unlock()
	for _, d := range evicted {
		if d.inode != nil {
			fs.putInode(ctx, d.inode)
		}
	}
}

// evictLocked takes d out of the tree if nothing needs it there, and says
// whether it did. The caller drops d's inode.
//
// Preconditions: renameMu is held for writing.
func (fs *filesystem) evictLocked(d *dentry) bool {
	parent := d.parent.Load()
	if parent == nil || (d.inode != nil && d.inode.pinned()) {
		return false
	}
	if !d.refs.CompareAndSwap(1, 0) {
		return false
	}
	// Nobody can name the dentry now except by a path, which renameMu stops.
	parent.dir.childrenMu.Lock()
	delete(parent.dir.children, d.name)
	parent.dir.childrenMu.Unlock()
	fs.cache.remove(d)
	parent.refs.Add(-1) // the tree's reference on the parent remains
	return true
}
