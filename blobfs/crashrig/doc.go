// Package crashrig runs programs of file operations on a recording disk and
// checks what power cuts at any point of them may leave.
//
// A Program is text, one Op a line (op.go): generated exhaustively (sequence.go),
// at random (random.go), or recorded from a real application (in testdata). A
// History (history.go) is one run of it: the disk's events, and a model
// (model.go) that remembers every state of the names and every version of each
// file, and from which event on each was promised to be durable. Explore
// (explore.go) builds the images that a power cut could leave, has the
// independent checker look at each, mounts it, takes a snapshot (snapshot.go)
// and compares it with the model (oracle.go).
//
// What must be there is docs/durability.md, as code:
//
//   - Names, links, attributes of directories and extended attributes are those
//     after some operation: not before the last one whose durability was promised.
//   - Each byte of a file is of some version of the file, not older than the
//     last that was promised; sizes, too. A byte behind the end of all versions
//     that could be there is never seen, so neither is another file's data.
//   - A file that took the place of another is complete.
//
// Locks: none; a History belongs to one goroutine, except that several may carry
// out programs on one file system, each below a directory of its own.
package crashrig
