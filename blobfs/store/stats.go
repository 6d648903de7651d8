package store

import "sync/atomic"

type counters struct {
	updates, logRecords, logBytes, flushes       atomic.Uint64
	checkpoints, checkpointNodes, nodeReads      atomic.Uint64
	sweeps, leaked, replayedRecords, replayedTxs atomic.Uint64
}

// Stats are counters since the store was opened. They cost next to nothing to
// keep and are read without stopping anything, so they need not add up.
type Stats struct {
	Updates         uint64 // transactions completed
	LogRecords      uint64 // log records written
	LogBytes        uint64 // bytes of them
	Flushes         uint64 // Flush commands
	Checkpoints     uint64 // checkpoints published
	CheckpointNodes uint64 // nodes they wrote
	NodeReads       uint64 // node cache misses
	ResidentNodes   int64  // nodes in memory now
	LoadedBitmaps   int    // bitmaps in memory now
	Sweeps          uint64 // times the node cache was cut back
	LeakedBlocks    uint64 // blocks not freed because their bitmap is unusable
	ReplayedRecords uint64 // log records replayed when opening
	ReplayedTxs     uint64 // transactions in them
}

// Stats returns the counters.
func (s *Store) Stats() Stats {
	c := &s.stats
	s.alloc.mu.Lock()
	loaded := s.alloc.loaded
	s.alloc.mu.Unlock()
	return Stats{
		LoadedBitmaps: loaded,
		Updates:       c.updates.Load(), LogRecords: c.logRecords.Load(), LogBytes: c.logBytes.Load(), Flushes: c.flushes.Load(),
		Checkpoints: c.checkpoints.Load(), CheckpointNodes: c.checkpointNodes.Load(), NodeReads: c.nodeReads.Load(),
		ResidentNodes: s.resident.Load(), Sweeps: c.sweeps.Load(), LeakedBlocks: c.leaked.Load(),
		ReplayedRecords: c.replayedRecords.Load(), ReplayedTxs: c.replayedTxs.Load(),
	}
}

// Stat describes the space of the volume, in blocks of 4 KiB.
type Stat struct {
	TotalBlocks    uint64 // size of the volume
	FreeBlocks     uint64 // not in use, or about to be free
	AvailBlocks    uint64 // of these, what data can still get
	ReservedBlocks uint64 // promised by Reserve and not yet allocated
	NodeBlocks     uint64 // nodes of the tree
	LogBlocks      uint64 // size of the log
}

// StatFS returns the state of the volume's space.
func (s *Store) StatFS() Stat {
	s.mu.RLock()
	nodes := s.nodes
	s.mu.RUnlock()
	a := s.alloc
	a.mu.Lock()
	defer a.mu.Unlock()
	free := a.avail + int64(len(a.pool)) + a.pendingLocked()
	withheld := s.withheldBlocks()
	free = max(free-withheld, 0)
	avail := max(free-a.promiseBlocks(a.reserved)-3*a.floor, 0)
	return Stat{
		TotalBlocks:    s.VolumeBlocks() - uint64(withheld),
		FreeBlocks:     uint64(max(free-a.reserved, 0)),
		AvailBlocks:    uint64(avail * itemShare / (itemShare + 1)),
		ReservedBlocks: uint64(a.reserved),
		NodeBlocks:     uint64(nodes),
		LogBlocks:      uint64(s.sb.LogBlocks),
	}
}
