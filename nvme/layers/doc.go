// Package layers stacks image files to one medium of the software controller:
// frozen layers that many stacks share, and a writable layer on top that holds
// what was written since. A clone of a volume is a new, empty layer.
//
// The lowest layer, the base, is a plain image. Every other one is a layer file:
//
//	0          header, one sector, written when the file is made and never again
//	4096       map, one bit per block of 4 KiB, in sectors of 512 bytes
//	dataOffset data, each block at its own place as in a plain image; holes where
//	           the layer has no block
//
// The size of a stack is that of its top: the length of its file without what
// precedes the data. Blocks that no layer has, because it was made when the
// volume was smaller, read as zeroes.
//
// # What a crash leaves
//
// A block counts as present in the top layer when its bit is set in the map on
// the medium. Bits are set by Flush alone, after a first sync has made the data
// durable, and a second sync makes the bits durable: so whatever a crash loses
// or tears, a block is either wholly the parent's or is written like a block of
// a plain image. A Flush after writes to blocks that were present already needs
// one sync only. A map sector is as small as what power loss never tears; it
// carries a checksum and its own number, and what a damaged one describes cannot
// be read or written, while all else can.
//
// The data of a block that is not in the map may be anything a crash left there.
// It is never read: a block becomes present by being written as a whole, zeroed,
// or copied from the parent and then changed in part.
//
// # Cost
//
// Open merges all maps to a table with one byte per block, 256 MiB of address
// space per TiB, of which only those pages are in memory that describe blocks
// above the base (16 MiB of volume each). So a read costs one look into the table
// whatever the depth.
//
// # Concurrency
//
// Lock order: flushMu, claimMu. flushMu is held during a Flush; claimMu while
// blocks become present and while a Flush collects which did. Reads, and writes
// to blocks that are present, take neither: presence is never taken back.
package layers
