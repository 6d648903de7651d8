package volumestats

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"runsc-fs/nvme/trace"
)

// Op is a kind of call.
type Op uint8

// The kinds of calls that are counted.
const (
	Read Op = iota
	Write
	Sync
	Ops // how many there are
)

var opNames = [Ops]string{"read", "write", "sync"}

// String is the name of the kind in tables and metrics.
func (op Op) String() string { return opNames[op] }

// Bounds of histograms, in nanoseconds, and their precision in decimal digits.
const (
	shortestNs = 1
	longestNs  = int64(time.Minute)
	precision  = 2
)

// newHistogram makes a histogram of durations.
func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(shortestNs, longestNs, precision)
}

// record adds a duration to a histogram; what is out of its bounds counts as the bound.
func record(h *hdrhistogram.Histogram, d time.Duration) {
	_ = h.RecordValue(min(max(int64(d), shortestNs), longestNs)) // it fails for values out of bounds only
}

const (
	// stripeCount is how often each counter is there.
	stripeCount = 16
	// timedEvery is one in how many reads and writes is timed; a power of two.
	timedEvery = 16
	// maxUsers bounds the containers that a volume counts apart. Others share
	// one entry.
	maxUsers = 64
)

// OtherContainers stands for the containers beyond those that are counted apart.
const OtherContainers = "(others)"

// stripe has the counters of some goroutines.
type stripe struct {
	ops, errors [Ops]atomic.Uint64
	bytes       [Ops]atomic.Uint64 // none of Sync
	_           [56]byte           // fills two cache lines
}

// latency is how long the timed calls of one kind took.
type latency struct {
	mu sync.Mutex
	h  *hdrhistogram.Histogram // nil: none yet
	// The same for metrics.
	buckets [latencyBuckets]uint64
	sumNs   uint64
}

// Volume has the counters of a volume.
type Volume struct {
	name, kind string // immutable

	// mu serialises changes of users; the map itself is never changed.
	mu    sync.Mutex
	users atomic.Pointer[map[string]*User]
}

// User has the counters of what one container does with one volume.
type User struct {
	volume    *Volume
	container string
	stripes   [stripeCount]stripe
	latency   [Ops]latency
}

// NewVolume makes counters for a volume; kind is shown only.
func NewVolume(name, kind string) *Volume {
	v := &Volume{name: name, kind: kind}
	v.users.Store(&map[string]*User{})
	return v
}

// User returns the counters of a container.
func (v *Volume) User(container string) *User {
	if u := (*v.users.Load())[container]; u != nil {
		return u
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	old := *v.users.Load()
	if len(old) >= maxUsers && old[container] == nil {
		container = OtherContainers
	}
	if u := old[container]; u != nil {
		return u
	}
	u := &User{volume: v, container: container}
	users := make(map[string]*User, len(old)+1)
	for name, other := range old {
		users[name] = other
	}
	users[container] = u
	v.users.Store(&users)
	return u
}

// Call is one call that is being counted.
type Call struct {
	user  *User
	s     *stripe
	op    Op
	timed bool
	began time.Time
}

// Begin counts a call, whose outcome End takes.
func (u *User) Begin(op Op) Call {
	s := &u.stripes[trace.Stripe(stripeCount)]
	c := Call{user: u, s: s, op: op}
	if n := s.ops[op].Add(1); op == Sync || n%timedEvery == 1 {
		c.timed, c.began = true, time.Now()
	}
	return c
}

// End ends a call that has moved n bytes.
func (c *Call) End(n int64, failed bool) {
	if n > 0 {
		c.s.bytes[c.op].Add(uint64(n))
	}
	if failed {
		c.s.errors[c.op].Add(1)
	}
	if c.timed {
		c.user.time(c.op, time.Since(c.began))
	}
}

// Batch is several reads and writes that are carried out together.
type Batch struct {
	user *User
	s    *stripe
	// Whether and when it began, if it is timed.
	timed bool
	began time.Time
	took  time.Duration
}

// BeginBatch begins a batch of n reads and writes, each of which is to be counted with
// Count when all are done. Requests of a batch take as long as the batch.
func (u *User) BeginBatch(n int) Batch {
	b := Batch{user: u, s: &u.stripes[trace.Stripe(stripeCount)]}
	if b.timed = n > 0; b.timed {
		b.began = time.Now()
	}
	return b
}

// Count counts one call of the batch, which has moved n bytes.
func (b *Batch) Count(op Op, n int64, failed bool) {
	if b.timed && b.took == 0 {
		b.took = time.Since(b.began)
	}
	c := Call{user: b.user, s: b.s, op: op}
	timed := b.s.ops[op].Add(1)%timedEvery == 1
	c.End(n, failed)
	if timed && b.timed {
		b.user.time(op, b.took)
	}
}

// time records how long a call took.
func (u *User) time(op Op, d time.Duration) {
	l := &u.latency[op]
	l.mu.Lock()
	if l.h == nil {
		l.h = newHistogram()
	}
	record(l.h, d)
	l.buckets[bucketOf(d)]++
	l.sumNs += uint64(max(d, 0))
	l.mu.Unlock()
}

// sum adds up one counter over the stripes.
func (u *User) sum(counter func(s *stripe) *atomic.Uint64) (n uint64) {
	for k := range u.stripes {
		n += counter(&u.stripes[k]).Load()
	}
	return n
}

func (u *User) ops(op Op) uint64 {
	return u.sum(func(s *stripe) *atomic.Uint64 { return &s.ops[op] })
}

func (u *User) bytes(op Op) uint64 {
	return u.sum(func(s *stripe) *atomic.Uint64 { return &s.bytes[op] })
}

func (u *User) errors(op Op) uint64 {
	return u.sum(func(s *stripe) *atomic.Uint64 { return &s.errors[op] })
}
