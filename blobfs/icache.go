package blobfs

import (
	"errors"
	"sync"

	"runsc-fs/blobfs/format"
	"runsc-fs/blobfs/store"
)

const inodeShards = 16

// inodeCache finds inodes by number: those that somebody references, and a
// bounded number of idle ones.
type inodeCache struct {
	shards [inodeShards]inodeShard
}

type inodeShard struct {
	mu sync.Mutex
	m  map[uint64]*Inode
	// evictions counts inodes that left the cache. An item read from the
	// store may be outdated if the count changed since before the reading.
	evictions uint64
	// Idle inodes, least recently used first, as a ring through head.
	head  Inode
	nIdle int
	limit int
}

func (c *inodeCache) init(maxIdle int) {
	for n := range c.shards {
		s := &c.shards[n]
		s.m = make(map[uint64]*Inode)
		s.head.prev, s.head.next = &s.head, &s.head
		s.limit = max(maxIdle/inodeShards, 1)
	}
}

func (c *inodeCache) shard(ino uint64) *inodeShard { return &c.shards[ino%inodeShards] }

func (s *inodeShard) unlinkLocked(i *Inode) {
	i.prev.next, i.next.prev = i.next, i.prev
	i.prev, i.next = nil, nil
	i.idle = false
	s.nIdle--
}

func (s *inodeShard) pushIdleLocked(i *Inode) {
	last := s.head.prev
	i.prev, i.next = last, &s.head
	last.next, s.head.prev = i, i
	i.idle = true
	s.nIdle++
}

// grabLocked takes a reference to a cached inode.
func (s *inodeShard) grabLocked(i *Inode) {
	i.refs.Add(1)
	if i.idle {
		s.unlinkLocked(i)
	}
}

// lookup returns the cached inode with a new reference, or nil, and the
// shard's count of evictions. A dying inode gives ErrStale.
func (c *inodeCache) lookup(ino uint64) (*Inode, uint64, error) {
	s := c.shard(ino)
	s.mu.Lock()
	defer s.mu.Unlock()
	i := s.m[ino]
	if i == nil {
		return nil, s.evictions, nil
	}
	if i.dying {
		return nil, 0, ErrStale
	}
	s.grabLocked(i)
	return i, 0, nil
}

// insert adds an inode that was read from the store when the shard's count was
// evictions, and returns the cached object with a new reference. It returns
// nil when what was read may be outdated.
func (c *inodeCache) insert(fresh *Inode, evictions uint64) *Inode {
	s := c.shard(fresh.ino)
	s.mu.Lock()
	defer s.mu.Unlock()
	if i := s.m[fresh.ino]; i != nil {
		if i.dying {
			return nil
		}
		s.grabLocked(i)
		return i
	}
	if s.evictions != evictions {
		return nil
	}
	fresh.refs.Store(1)
	s.m[fresh.ino] = fresh
	return fresh
}

// add puts a new inode, with a reference, into the cache. It reports false if
// there is one of that number.
func (c *inodeCache) add(i *Inode) bool {
	s := c.shard(i.ino)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.m[i.ino] != nil {
		return false
	}
	i.refs.Store(1)
	s.m[i.ino] = i
	return true
}

// forget removes an inode that does not exist in the store.
func (c *inodeCache) forget(i *Inode) {
	s := c.shard(i.ino)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.m[i.ino] == i {
		delete(s.m, i.ino)
		s.evictions++
	}
	if i.idle {
		s.unlinkLocked(i)
	}
}

// all calls fn for every cached inode, with a reference held.
func (c *inodeCache) all(fn func(i *Inode)) {
	for n := range c.shards {
		s := &c.shards[n]
		s.mu.Lock()
		list := make([]*Inode, 0, len(s.m))
		for _, i := range s.m {
			if !i.dying {
				s.grabLocked(i)
				list = append(list, i)
			}
		}
		s.mu.Unlock()
		for _, i := range list {
			fn(i)
			i.decRef()
		}
	}
}

// IncRef adds a reference. The caller must hold one.
func (i *Inode) IncRef() { i.refs.Add(1) }

// tryIncRef adds a reference to an inode that is still in the cache. It is for
// those who found the inode through one of its pages.
func (i *Inode) tryIncRef() bool {
	s := i.fs.inodes.shard(i.ino)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.m[i.ino] != i || i.dying {
		return false
	}
	s.grabLocked(i)
	return true
}

// DecRef gives up a reference. The last one of an inode without a name frees
// the inode and its blocks, which can take transactions and I/O: no lock of
// the file system may be held. Once the file system is closed nothing is freed
// any more; the next mount does it.
func (i *Inode) DecRef() {
	if i.refs.Add(-1) > 0 {
		return
	}
	if g, err := i.fs.gate.enter(); err == nil {
		i.unreferenced()
		g.leave()
	}
}

// decRef is DecRef for those inside already.
func (i *Inode) decRef() {
	if i.refs.Add(-1) == 0 {
		i.unreferenced()
	}
}

// unreferenced keeps an inode whose last reference went, or frees it if it has
// no name.
func (i *Inode) unreferenced() {
	fs := i.fs
	// Only an inode that cannot be reached by name can end here with no
	// links, so nobody adds one meanwhile.
	reclaim := !i.hasLinks() && !fs.ReadOnly()
	if i.settle(reclaim) {
		fs.reclaim(i)
	}
}

// putBack is DecRef for those who must not start a transaction: freeing an
// inode without a name is left to the flusher.
func (i *Inode) putBack() {
	if i.refs.Add(-1) > 0 {
		return
	}
	if !i.hasLinks() {
		i.fs.markDirty(i)
	}
	i.settle(false)
}

// tryDie marks an inode dying to which the caller has the only reference, so
// that nobody else gets one.
func (i *Inode) tryDie() bool {
	s := i.fs.inodes.shard(i.ino)
	s.mu.Lock()
	defer s.mu.Unlock()
	if i.refs.Load() != 1 || i.dying || s.m[i.ino] != i {
		return false
	}
	i.dying = true
	return true
}

// revive undoes tryDie.
func (i *Inode) revive() {
	s := i.fs.inodes.shard(i.ino)
	s.mu.Lock()
	i.dying = false
	s.mu.Unlock()
}

// settle moves an unreferenced inode to the idle list or, if reclaim is set,
// marks it dying and reports true: then the caller must reclaim it.
func (i *Inode) settle(reclaim bool) bool {
	s := i.fs.inodes.shard(i.ino)
	s.mu.Lock()
	if i.refs.Load() > 0 || i.idle || i.dying || s.m[i.ino] != i {
		s.mu.Unlock()
		return false
	}
	if reclaim {
		i.dying = true
		s.mu.Unlock()
		return true
	}
	s.pushIdleLocked(i)
	victims := s.evictLocked()
	s.mu.Unlock()
	i.ext.shed()
	for _, v := range victims {
		v.dropAllPages()
	}
	return false
}

// evictLocked takes clean inodes beyond the limit out of the cache, a few at a
// time, and returns them so that their pages can be dropped without the lock.
func (s *inodeShard) evictLocked() []*Inode {
	var victims []*Inode
	for tries := 4; s.nIdle > s.limit && tries > 0; tries-- {
		i := s.head.next
		s.unlinkLocked(i)
		if i.busy() {
			s.pushIdleLocked(i)
			continue
		}
		delete(s.m, i.ino)
		s.evictions++
		victims = append(victims, i)
	}
	return victims
}

// busy reports whether memory knows of the inode what the store does not.
func (i *Inode) busy() bool {
	if i.onDirty.Load() || i.mustFlush() {
		return true
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.wbErr.pending()
}

// errNoInode says that the store has no inode item of that number.
var errNoInode = errors.New("no inode")

// inodeThrough returns an inode by number with a new reference, reading it
// through r if need be. A number without an item gives errNoInode.
func (fs *FS) inodeThrough(r *store.Reader, ino uint64) (*Inode, error) {
	for {
		i, evictions, err := fs.inodes.lookup(ino)
		if i != nil || err != nil {
			return i, err
		}
		var buf [format.InodeBytes]byte
		b, ok, err := r.Get(format.Key{Object: ino, Kind: format.KindInode}, buf[:0])
		if err != nil {
			return nil, err
		}
		if !ok {
			return nil, errNoInode
		}
		item, err := format.DecodeInode(b)
		if err != nil {
			return nil, corruptf("inode %d: %v", ino, err)
		}
		if i = fs.inodes.insert(newInode(fs, ino, &item), evictions); i != nil {
			return i, nil
		}
		if !r.InTx() {
			// What r sees may be outdated for good: it must be asked anew.
			return nil, errRetry
		}
	}
}

// Inode returns an inode by number and generation, with a reference. An inode
// that is gone or has no name left gives ErrStale.
func (fs *FS) Inode(ino uint64, generation uint32) (*Inode, error) {
	g, err := fs.gate.enter()
	if err != nil {
		return nil, err
	}
	defer g.leave()
	if ino == 0 {
		return nil, ErrStale
	}
	i, err := fs.viewInode(func(*store.Reader) (uint64, error) { return ino, nil })
	if err == errNoInode {
		return nil, ErrStale
	}
	if err != nil {
		return nil, err
	}
	if i.gen != generation || !i.hasLinks() {
		i.decRef()
		return nil, ErrStale
	}
	return i, nil
}
