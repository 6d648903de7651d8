package blobfs

import "sync"

// group is one of the two sides of a groupLock.
type group int

const (
	// filling puts pages of blocks that are on disk into the cache.
	filling group = iota
	// overwriting changes blocks on disk that are not in the cache.
	overwriting
)

// groupLock keeps two groups apart whose members do not mind each other. The
// zero value is ready. It must not be taken twice by one caller.
type groupLock struct {
	mu      sync.Mutex
	cond    *sync.Cond
	inside  [2]int
	waiting [2]int
}

// enter waits until nobody of the other group is inside, and reports whether
// the caller is the only one of its own. Who comes while the other group waits
// waits behind it.
func (l *groupLock) enter(g group) (alone bool) {
	other := 1 - g
	l.mu.Lock()
	for l.inside[other] > 0 || l.waiting[other] > 0 && l.inside[g] > 0 {
		if l.cond == nil {
			l.cond = sync.NewCond(&l.mu)
		}
		l.waiting[g]++
		l.cond.Wait()
		l.waiting[g]--
	}
	l.inside[g]++
	alone = l.inside[g] == 1
	l.mu.Unlock()
	return alone
}

func (l *groupLock) leave(g group) {
	l.mu.Lock()
	if l.inside[g]--; l.inside[g] == 0 && l.cond != nil {
		l.cond.Broadcast()
	}
	l.mu.Unlock()
}
