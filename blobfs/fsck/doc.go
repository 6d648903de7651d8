// Package fsck checks a blobfs volume without changing it, shows its
// structures, and repairs slots of its superblock (repair.go, undo.go). It shares the disk format with the file system and nothing else:
// replay of the log, iteration of the tree and all rules are written a second
// time here, so that a bug of the store cannot hide its own traces.
//
// What is checked is the volume as a mount would find it: the published tree
// with the log replayed in memory. The passes, in order:
//
//  1. superblock slots (super.go)
//  2. the published tree, node by node (tree.go)
//  3. the log: the chain of records, and its operations as an overlay over the
//     tree (log.go, state.go)
//  4. items: inodes and what belongs to each of them (items.go, xattr.go …)
//  5. directory entries against inodes, link counts, reachability (links.go)
//  6. blocks: each block in use has one owner, and the bitmaps agree (space.go)
//  7. the owners and path names that findings refer to (owners.go, paths.go)
//
// The volume should not change meanwhile; if it does, the checker finds damage
// that is not there, and nothing worse.
//
// # Bounds
//
// Nothing that a volume holds makes the checker panic, loop or take more
// memory than this:
//
//   - 16 bytes for each inode and 24 more for each directory; an inode takes
//     at least 133 bytes of the volume;
//   - 40 bytes for each operation in the log and the values it puts, where the
//     log has at most 64 MiB;
//   - 4 KiB for each group of 126 MiB that has blocks in use, and as much for
//     each group that the log touches, of 4 TiB at a time: the volume is
//     read once more for each further 4 TiB with blocks in use;
//   - Options.MaxFindings findings, and less than 1 MiB for everything else.
//
// A node of the tree is valid only within the range of keys that its parent
// gives it, and ranges of neighbours are disjoint. So no node with a key can be
// reached twice, and each pass reads at most the nodes of the volume once.
//
// A Report is not safe for concurrent use; Check and Dump may run concurrently
// on one device. There are no locks.
package fsck
