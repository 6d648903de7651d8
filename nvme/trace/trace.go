// Package trace says where the time of a call goes: it is split into stages, from the
// system call down to the device, by the code that each stage begins in.
//
// Whoever carries a call out begins a Span on its goroutine. The layers below mark
// their stages with Enter and Leave, and know neither the span nor its beginner:
//
//	was := trace.Enter(trace.Device)
//	...
//	trace.Leave(was)
//
// A span belongs to its goroutine and counts what that does or waits for: stages
// follow each other, each moment belongs to the innermost one, and their sum
// is the duration of the call. Work that the call leaves to other goroutines shows as
// the stage that waits for it.
//
// While no span exists anywhere, a mark costs one load and one branch that the
// processor predicts. While some exist, other goroutines pay for a comparison more.
// No clock is read but for spans.
//
// The package takes no locks and allocates nothing.
package trace

import (
	"sync/atomic"
	"time"
)

// Stage is a part of the way of a call.
type Stage uint8

// The stages, from the top down. None is no stage: that of code outside spans.
const (
	None   Stage = iota
	VFS          // system call and virtual file system: descriptors, permissions, events
	FS           // the file system: checks, waiting for locks of the file, maps of its extents
	Cache        // finding, taking and inserting pages and frames
	Alloc        // reserving and allocating blocks
	Log          // metadata transactions, log records, waiting for a commit of others
	Queue        // building commands, waiting for a queue pair or a slot in it
	Device       // from the doorbell to the completion
	Copy         // between the cache or frames and the memory of the application

	// Stages is one more than the last stage.
	Stages
)

var stageNames = [Stages]string{"none", "vfs", "fs", "cache", "alloc", "log", "queue", "device", "copy"}

// String is the name of the stage in tables.
func (s Stage) String() string {
	if s >= Stages {
		return "unknown"
	}
	return stageNames[s]
}

// slotCount bounds the spans at one time. More are not begun: what they
// would have measured is a sample in any case.
const slotCount = 64

// Span is a call that is being traced.
type Span struct {
	owner atomic.Uintptr // goroutine; 0: free
	// The owner only:
	stage Stage
	last  time.Duration // when the stage began or went on
	times [Stages]time.Duration
	_     [40]byte // no two spans share a cache line
}

var (
	_      [64]byte
	active atomic.Int32 // spans that exist
	_      [60]byte

	slots [slotCount]Span
	// epoch is what durations are taken from.
	epoch = time.Now()
)

// now is the monotonic clock.
func now() time.Duration { return time.Since(epoch) }

// slotOf spreads goroutines over the slots.
func slotOf(g uintptr) *Span {
	const golden = 0x9e3779b97f4a7c15
	return &slots[uint64(g)*golden>>58]
}

// Stripe is a number below n, a power of two of at most 64, that tells most goroutines
// that run at the same time apart: counters that all increment are kept once for
// each.
func Stripe(n int) int {
	const golden = 0x9e3779b97f4a7c15
	return int(uint64(goroutine()) * golden >> 58 & uint64(n-1))
}

// Begin begins a span in the given stage. It returns nil when the goroutine has one,
// or there is no room for one.
func Begin(s Stage) *Span {
	g := goroutine()
	if g == 0 {
		return nil
	}
	span := slotOf(g)
	if !span.owner.CompareAndSwap(0, g) {
		return nil
	}
	active.Add(1)
	span.times = [Stages]time.Duration{}
	span.stage, span.last = s, now()
	return span
}

// End ends the span and returns what each stage has taken. The span must not be used
// any more.
func (span *Span) End() [Stages]time.Duration {
	span.mark(None)
	times := span.times
	active.Add(-1)
	span.owner.Store(0)
	return times
}

// mark ends the stage and begins another.
func (span *Span) mark(s Stage) {
	t := now()
	span.times[span.stage] += t - span.last
	span.stage, span.last = s, t
}

// Enter begins a stage of the goroutine's span and returns the one that it
// interrupts, for Leave. Without a span it does nothing and returns None.
func Enter(s Stage) Stage {
	if active.Load() == 0 {
		return None
	}
	return enter(s)
}

func enter(s Stage) Stage {
	g := goroutine()
	span := slotOf(g)
	if g == 0 || span.owner.Load() != g {
		return None
	}
	was := span.stage
	span.mark(s)
	return was
}

// Leave goes back to the stage that Enter has returned.
func Leave(was Stage) {
	if was != None {
		enter(was)
	}
}
