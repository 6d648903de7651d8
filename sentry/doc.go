// Package sentry is where the two worlds meet: it makes blobfs a file system
// type of gVisor's sentry, and keeps the volumes of one sandbox.
//
// A volume comes as an open image, or as an amount of memory, and is served by
// a software NVMe controller in this process. Its file system is opened by the
// first mount and closed by the last unmount. All mounts of a volume share one
// filesystem, with one tree of dentries, so that they agree.
//
// Dentries are loaded on demand and kept, names known not to exist included,
// in a bounded cache. A dentry in the tree has a reference of the tree; it
// leaves by eviction, or because its file is removed or replaced. Path walks
// take no references: they hold renameMu for reading, and whoever drops the
// reference of the tree first holds renameMu for writing, if only for a moment.
//
// Pages of mapped files are those of the volume's page cache, which lies in
// the DMA arena: reads, writes, mappings and the device share them.
//
// Lock order, where *** are locks of gVisor and of blobfs:
//
//	volume.mu
//	regularFD.offMu, directoryFD.mu
//	  filesystem.renameMu
//	    directory.opMu
//	      *** vfs.VirtualFilesystem.mountMu, vfs.Dentry.mu
//	        directory.opMu of the directory being removed
//	          inode.attrMu
//	            inode.specialMu
//	              *** blobfs: inode I/O lock (held while user memory is copied)
//	                *** mm.MemoryManager.metadataMu, mappingMu
//	                  inode.mapsMu
//	                    *** mm.MemoryManager.activeMu
//	                      *** blobfs: locks of Fault, Attr and PageCache
//	  directory.childrenMu, dentryCache.mu, filesystem.inodesMu,
//	  filesystem.ancestryMu, fileDescription.errorsMu, filesystem.syncMu, registry.mu
//
// The locks in the last two lines are leaves: nothing else of this package is taken
// under them, and of blobfs only Attr, IncRef and DecRef of an inode that stays
// referenced. ancestryMu is taken before vfs.Watches' locks by nobody: watches
// are notified without it.
//
// opMu of two directories is taken only parent before child. Renames take
// none: they hold renameMu for writing. Translate is called with activeMu held, so the
// volume must not wait for an invalidation there; invalidations come from
// blobfs without the locks that Fault takes.
package sentry
