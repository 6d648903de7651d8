package main

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// cellBytes is the size of a cell, the unit of data that tells where it
// belongs: to which file, at which offset, and with which step it was written.
const cellBytes = 64

const cellMagic = 0xce11ce11

// 0 magic u32 | 4 crc32 of the rest u32 | 8 file u64 | 16 offset u64 | 24 step u64 | 32 filler
func fillCells(b []byte, file uint64, off int64, step int64) {
	for ; len(b) >= cellBytes; b, off = b[cellBytes:], off+cellBytes {
		c := b[:cellBytes]
		binary.LittleEndian.PutUint32(c, cellMagic)
		binary.LittleEndian.PutUint64(c[8:], file)
		binary.LittleEndian.PutUint64(c[16:], uint64(off))
		binary.LittleEndian.PutUint64(c[24:], uint64(step))
		for k := 32; k < cellBytes; k++ {
			c[k] = byte(step) ^ byte(k)
		}
		binary.LittleEndian.PutUint32(c[4:], crc32.ChecksumIEEE(c[8:]))
	}
}

// cells returns cells for the whole of n bytes.
func cells(n int, file uint64, off int64, step int64) []byte {
	b := make([]byte, n)
	fillCells(b, file, off, step)
	return b
}

// cellRange is what checkCells has found.
type cellRange struct {
	min, max int64 // steps; 0, 0 if there was no cell
	zeroes   int   // cells that are zero
	torn     int   // cells of which a part is older, or zero; see checkTorn
}

// checkCells makes sure that everything in b is cells of this file at these
// offsets, or zero; b begins at a multiple of cellBytes, and what is behind the
// last whole cell is not looked at.
func checkCells(b []byte, file uint64, off int64) (cellRange, error) {
	r, err := checkTorn(b, file, off)
	if err == nil && r.torn > 0 {
		err = fmt.Errorf("%d cells from offset %d on are torn", r.torn, off)
	}
	return r, err
}

// checkTorn is checkCells for places that were being written when the crash came:
// a page may be on its way to the disk while it is changed.
func checkTorn(b []byte, file uint64, off int64) (r cellRange, err error) {
	var zero [cellBytes]byte
	for ; len(b) >= cellBytes; b, off = b[cellBytes:], off+cellBytes {
		c := b[:cellBytes]
		if string(c) == string(zero[:]) {
			r.zeroes++
			continue
		}
		if isTorn(c, file, off) {
			r.torn++
			continue
		}
		if binary.LittleEndian.Uint32(c) != cellMagic || binary.LittleEndian.Uint32(c[4:]) != crc32.ChecksumIEEE(c[8:]) {
			return r, fmt.Errorf("offset %d has no cell: %x", off, c)
		}
		gotFile, gotOff := binary.LittleEndian.Uint64(c[8:]), int64(binary.LittleEndian.Uint64(c[16:]))
		step := int64(binary.LittleEndian.Uint64(c[24:]))
		if gotFile != file || gotOff != off {
			return r, fmt.Errorf("offset %d of file %x has the cell of offset %d of file %x, step %d", off, file, gotOff, gotFile, step)
		}
		if r.max == 0 {
			r.min, r.max = step, step
		}
		r.min, r.max = min(r.min, step), max(r.max, step)
	}
	return r, nil
}

// isTorn reports whether the checksum of c is wrong but each word of it comes from
// some cell of this place, or is zero.
func isTorn(c []byte, file uint64, off int64) bool {
	if binary.LittleEndian.Uint32(c[4:]) == crc32.ChecksumIEEE(c[8:]) {
		return false
	}
	magic, gotFile, gotOff := binary.LittleEndian.Uint32(c), binary.LittleEndian.Uint64(c[8:]), binary.LittleEndian.Uint64(c[16:])
	if magic != 0 && magic != cellMagic || gotFile != 0 && gotFile != file || gotOff != 0 && gotOff != uint64(off) {
		return false
	}
	for k := 32; k < cellBytes; k += 8 {
		if binary.LittleEndian.Uint64(c[k:]) == 0 {
			continue
		}
		for j := k; j < k+8; j++ {
			if c[j]^byte(j) != c[k]^byte(k) {
				return false
			}
		}
	}
	return true
}

// mix is a good hash of its arguments, for choices that must come out the same
// in every run.
func mix(parts ...uint64) uint64 {
	h := uint64(0x9e3779b97f4a7c15)
	for _, p := range parts {
		h ^= p
		h *= 0xbf58476d1ce4e5b9
		h ^= h >> 29
		h *= 0x94d049bb133111eb
		h ^= h >> 32
	}
	return h
}
