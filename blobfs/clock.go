package blobfs

import "sync/atomic"

// clock gives file times, as Linux's kernel does since 6.13 (multigrain
// timestamps): changes of one grain get one time, so that a file that is written
// and synced again and again has new times to log only once in a grain; but who
// has looked at the times of a file sees its next change by them. It is safe for
// concurrent use.
type clock struct {
	now     func() int64 // nanoseconds since the Unix epoch
	grainNs int64        // 0: as fine as now is
	// floor is the latest exact time that was given out: later changes must not
	// look older than that one.
	floor atomic.Int64
}

// coarse is the time at which the grain began, or the latest exact one in it.
func (c *clock) coarse() int64 {
	t := c.now()
	if c.grainNs == 0 {
		return t
	}
	t -= t % c.grainNs
	// One that is further ahead is from before the clock was set back.
	if f := c.floor.Load(); f > t && f < t+c.grainNs {
		return f
	}
	return t
}

// exact is the time now.
func (c *clock) exact() int64 {
	t := c.now()
	for f := c.floor.Load(); f < t || f >= t+c.grainNs; f = c.floor.Load() {
		if c.floor.CompareAndSwap(f, t) {
			break
		}
	}
	return t
}

// stampLocked is the time of a change of the inode now, for its ctime, and its
// mtime if that changes. coarse is what the file system's clock said a moment
// ago. Needs i.mu.
func (i *Inode) stampLocked(coarse int64) int64 {
	if i.timesSeen && coarse <= i.ctime.Load() {
		coarse = i.fs.clock.exact()
	}
	i.timesSeen = false
	return coarse
}
