// Package blobfs is a file system on one block device, for use inside a
// process: inodes, directories, extents, extended attributes and a page cache,
// on top of the transactional store in blobfs/store. It knows nothing of who
// calls it, and of the device only nvme.BlockDevice.
//
// # How the parts work together
//
// Everything that is not file data is an item of the store's tree; its layout
// is in blobfs/format. A change of the namespace is one transaction, so a
// crash shows all of it or nothing. Attributes that change all the time (size,
// times) are kept in memory and logged with the next transaction that touches
// the inode, or by fsync and the periodic commit.
//
// File data goes through the page cache (PageCache), whose frames lie in the
// device's arena: devices read and write them directly, and applications map
// them. Writing reserves a block for each page that lies in a hole, so that a
// full volume shows at once; write-back (writeback.go) allocates, writes, and
// only then logs the extents that make the blocks part of the file. The size
// that is logged never exceeds what has been written (Inode.diskSize), so
// nothing that was not the file's is ever seen after a crash. Extents that are
// allocated but not written read as zeroes.
//
// What lies behind the end of a file in its last block is zero in the cache and
// anything on disk: reading clears it, and growing the file writes the zeroes
// before the new size is logged (Inode.extendTo). Hence truncation writes no
// data.
//
// Extents of several places, in one file or many, may hold the same blocks
// (remap.go). Such an extent is marked, and nothing is written to its blocks:
// write-back and direct writes put new ones in their place (cow.go). How many
// owners a block has is counted in items of the tree (refcount.go).
//
// An inode without a name lives until its last reference goes. An orphan item
// makes the next mount free it if a crash comes first (orphan.go).
//
// Every call that needs the volume goes through a gate (gate.go) that Close
// shuts: it ends before Close goes on, or fails with ErrClosed.
//
// # Locks
//
// In the order in which they may be taken:
//
//	Inode.ioMu      writes, truncation, allocation of one file; held while the
//	                caller's memory is copied from, so Fault never takes it;
//	                shared by direct writes that allocate nothing
//	Inode.revokeMu  mappings are being taken back
//	  invalidator   (the caller's locks; nothing below may be held)
//	Inode.cacheMu   for those who read blocks into the cache, or for direct
//	                writes to blocks that are not in it
//	Inode.wbMu      write-back of one file, and everything that changes extents
//	Inode.fillMu    shared: reading blocks of the file, Fault; exclusive: blocks
//	                are about to leave the file
//	FS.txMu         one transaction, and its effects in memory
//	  store         (its own locks)
//	inodeShard.mu
//	Inode.treeMu    the pages of one file: tree, dirty marks, reservations
//	Inode.mu        attributes
//	extMap.mu, FS.dirtyMu, FS.errMu, PageCache.mu
//
// PageCache.clockMu comes before treeMu. A page that is locked (pageLocked) is
// waited for with ioMu at most; who locks pages holds fillMu shared until they
// are unlocked. Allocating a frame may write back any file, so it needs what
// comes from wbMu on to be free. Two locks of one class are never held
// together, but for ioMu, wbMu and fillMu of two files that come to share blocks
// (inodePair): class by class, that of the lower inode number first.
// Transactions cover several inodes under txMu.
//
// While Sink.CopyOut and Source.CopyIn run, a read holds nothing but a pin on
// the page, and a write only that and ioMu: both may end up in Fault for the
// very page. Whoever calls Fault may hold what the invalidator needs; so
// evicting a page that Fault has handed out is left to the flusher, which holds
// nothing.
package blobfs
