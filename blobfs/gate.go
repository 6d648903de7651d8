package blobfs

import (
	"sync/atomic"
	"time"
	"unsafe"
)

const (
	gateShardBits = 6
	// closePatience bounds the wait of Close for calls inside.
	closePatience = 30 * time.Second
)

// gate counts the calls inside a file system, so that closing can wait for
// them. Callers never wait: before the gate shuts they come in, after that they
// are refused. The count is spread over cache lines, so that threads that do
// nothing but read do not fight for one.
type gate struct {
	shut   atomic.Bool
	shards [1 << gateShardBits]gateShard
}

type gateShard struct {
	inside atomic.Int64
	_      [56]byte
}

// enter lets a call in, or fails with ErrClosed. Calls may nest: the inner one
// may be refused while the outer one is inside.
func (g *gate) enter() (*gateShard, error) {
	// The address of a local variable keeps a goroutine on one shard, and most
	// others off it: their stacks are elsewhere.
	var local byte
	const stackShift, golden = 11, 0x9e3779b97f4a7c15 // 2 KiB is the smallest stack
	hash := uint64(uintptr(unsafe.Pointer(&local))>>stackShift) * golden
	s := &g.shards[hash>>(64-gateShardBits)]
	s.inside.Add(1)
	if g.shut.Load() {
		s.inside.Add(-1)
		return nil, ErrClosed
	}
	return s, nil
}

// leave ends the call that enter let in through s.
func (s *gateShard) leave() { s.inside.Add(-1) }

// close shuts the gate; it reports false if it was shut already.
func (g *gate) close() bool { return g.shut.CompareAndSwap(false, true) }

// drain waits until no call is inside, and reports false if that takes too
// long. The gate must be shut.
func (g *gate) drain(patience time.Duration) bool {
	const shortest, longest = 20 * time.Microsecond, 10 * time.Millisecond
	deadline := time.Now().Add(patience)
	pause := shortest
	for n := range g.shards {
		// A count that has been zero once stands for refused calls from then on.
		for g.shards[n].inside.Load() != 0 {
			if time.Now().After(deadline) {
				return false
			}
			time.Sleep(pause)
			pause = min(2*pause, longest)
		}
	}
	return true
}
