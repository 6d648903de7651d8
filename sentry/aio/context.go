package aio

import (
	"errors"
	"sync"

	"gvisor.dev/gvisor/pkg/atomicbitops"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/hostarch"
	"gvisor.dev/gvisor/pkg/sentry/fsimpl/eventfd"
	"gvisor.dev/gvisor/pkg/sentry/kernel"
	"gvisor.dev/gvisor/pkg/sentry/memmap"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/waiter"
)

// errSave is what a checkpoint of a sandbox with contexts fails with.
var errSave = errors.New("aio: contexts of asynchronous I/O cannot be saved")

// The limits of /proc/sys/fs: how many events all contexts may be made for, and
// how many they are.
var (
	MaxNr = atomicbitops.FromInt32(0x10000)
	Nr    atomicbitops.Int32
)

// maxEvents bounds the slots of a ring, as on Linux.
const maxEvents = 0x10000000 / eventBytes

// Context is what io_setup makes.
type Context struct {
	ring   *ring               // immutable; one reference, until idle is closed
	events int32               // immutable; its share of Nr
	space  memmap.MappingSpace // immutable; the address space that made it
	queue  waiter.Queue        // of those who wait in io_getevents

	// addr is the name, 0 before there is one; lost says that the ring was
	// unmapped before that. table.mu guards them.
	addr hostarch.Addr
	lost bool

	mu     sync.Mutex
	tail   uint32             // next slot of the ring
	flying uint32             // requests that have no event yet
	dead   bool               // takes no more requests
	polls  map[*poll]struct{} // pending
	idle   chan struct{}      // closed when dead and nothing is flying
}

// contexts are those of the sandbox.
var contexts = table{byKey: map[key]*Context{}}

// key names a context: applications know it by the address of its ring.
type key struct {
	space memmap.MappingSpace
	addr  hostarch.Addr
}

type table struct {
	mu    sync.RWMutex
	byKey map[key]*Context
}

// find returns the context of t's address space at addr.
func (tb *table) find(t *kernel.Task, addr hostarch.Addr) *Context {
	tb.mu.RLock()
	defer tb.mu.RUnlock()
	return tb.byKey[key{t.MemoryManager(), addr}]
}

// take is find that takes the context out.
func (tb *table) take(t *kernel.Task, addr hostarch.Addr) *Context {
	tb.mu.Lock()
	defer tb.mu.Unlock()
	k := key{t.MemoryManager(), addr}
	c := tb.byKey[k]
	delete(tb.byKey, k)
	return c
}

// add gives a context its name. The caller has just mapped the ring, and may
// have lost it to another thread since.
func (tb *table) add(c *Context, addr hostarch.Addr) {
	tb.mu.Lock()
	lost := c.lost
	if !lost {
		c.addr = addr
		tb.byKey[key{c.space, addr}] = c
	}
	tb.mu.Unlock()
	if lost {
		c.kill()
	}
}

// unmapped ends the context whose ring has left the address space that made it.
func (tb *table) unmapped(c *Context, ms memmap.MappingSpace, addr hostarch.Addr) {
	tb.mu.Lock()
	if ms == c.space && c.addr == 0 {
		c.lost = true
	}
	found := ms == c.space && c.addr == addr && tb.byKey[key{ms, addr}] == c
	if found {
		delete(tb.byKey, key{ms, addr})
	}
	tb.mu.Unlock()
	if found {
		c.kill()
	}
}

// moved gives a context a new name.
func (tb *table) moved(c *Context, ms memmap.MappingSpace, from, to hostarch.Addr) bool {
	tb.mu.Lock()
	defer tb.mu.Unlock()
	if ms != c.space || tb.byKey[key{ms, from}] != c {
		return false
	}
	delete(tb.byKey, key{ms, from})
	tb.byKey[key{ms, to}] = c
	c.addr = to
	return true
}

// reserve makes room for the event of one more request.
func (c *Context) reserve() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dead {
		return linuxerr.EINVAL
	}
	used := (c.tail + c.ring.nr - c.ring.head()) % c.ring.nr
	if used+c.flying >= c.ring.nr-1 {
		return linuxerr.EAGAIN
	}
	c.flying++
	return nil
}

// release gives back the room of a request that will have no event.
func (c *Context) release() {
	c.mu.Lock()
	c.landedLocked(1)
	c.mu.Unlock()
}

// landedLocked ends n requests. The last one of a dead context lets the ring go.
func (c *Context) landedLocked(n uint32) {
	c.flying -= n
	if c.dead && c.flying == 0 {
		close(c.idle)
		c.ring.DecRef(nil)
	}
}

// complete posts the events of requests that were flying, and wakes those who
// wait for them.
func (c *Context) complete(events []event) {
	c.mu.Lock()
	for k := range events {
		// Room has been reserved, but the application can take it away by
		// writing to the head: then it loses events.
		events[k].put(c.ring.slot(c.tail))
		c.tail = (c.tail + 1) % c.ring.nr
	}
	c.ring.word(offTail).Store(c.tail)
	c.landedLocked(uint32(len(events)))
	c.mu.Unlock()
	c.queue.Notify(waiter.EventIn)
}

// reap removes an event from the ring into b, if there is one. Applications may
// reap at the same time, and see to that themselves.
func (c *Context) reap(b []byte) (found bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dead {
		return false, linuxerr.EINVAL
	}
	head := c.ring.head()
	if head == c.tail {
		return false, nil
	}
	copy(b, c.ring.slot(head))
	c.ring.word(offHead).Store((head + 1) % c.ring.nr)
	return true, nil
}

// unreap undoes the last reap.
func (c *Context) unreap() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.dead {
		c.ring.word(offHead).Store((c.ring.head() + c.ring.nr - 1) % c.ring.nr)
	}
}

// kill makes a context that has left the table take no more requests, and
// cancels those that are pending. It does not wait: see idle.
func (c *Context) kill() {
	c.mu.Lock()
	c.dead = true
	pending := c.polls
	c.polls = nil
	c.landedLocked(0)
	c.mu.Unlock()
	Nr.Add(-c.events)
	c.queue.Notify(waiter.EventIn)
	if len(pending) > 0 {
		// The caller may hold locks of the address space, which files may need
		// when they lose their last reference.
		go func() {
			for p := range pending {
				p.letGo()
				c.release()
			}
		}()
	}
}

// signal adds one to the eventfd of a request that has ended.
func signal(file *vfs.FileDescription) {
	// A counter at its limit stays there, as on Linux.
	_ = file.Impl().(*eventfd.EventFileDescription).Signal(1)
}
