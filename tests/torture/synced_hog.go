package main

import (
	"fmt"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// hog stores to random pages of a mapping that is larger than the cache of a
// small sandbox, so that all other workers' pages are evicted all the time, and
// makes its stores durable in one of two ways.
type hog struct {
	fd      int
	mapping []byte
}

const (
	hogPages = 24000 // 94 MiB
	hogStep  = 500   // pages a step
)

func hogPage(n int64, k int) int64 { return int64(mix(uint64(n), 10, uint64(k)) % hogPages) }

// open maps the file; a volume on which there is no room for it goes without.
func (h *hog) open(dir string) error {
	if h.mapping != nil {
		return nil
	}
	path := filepath.Join(dir, "hog")
	var st unix.Stat_t
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return err
	}
	if err := unix.Stat(path, &st); err != nil && fs.Bavail < 3*hogPages {
		return nil
	}
	var err error
	if h.fd, err = unix.Open(path, unix.O_RDWR|unix.O_CREAT, 0o644); err != nil {
		return err
	}
	if err := unix.Ftruncate(h.fd, hogPages*4096); err != nil {
		return err
	}
	h.mapping, err = unix.Mmap(h.fd, 0, hogPages*4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	return err
}

func (h *hog) verify(dir string, acked int64) (int64, error) {
	if err := h.open(dir); err != nil || h.mapping == nil {
		return acked, err
	}
	want := make([]int64, hogPages)
	begun := map[int64]bool{}
	for k := range hogStep {
		begun[hogPage(acked+1, k)] = true
	}
	for n := int64(1); n <= acked; n++ {
		for k := range hogStep {
			want[hogPage(n, k)] = n
		}
	}
	for page, w := range want {
		off := int64(page) * 4096
		check := checkCells
		if begun[int64(page)] {
			check = checkTorn
		}
		r, err := check(h.mapping[off:off+4096], 11, off)
		if err != nil {
			return 0, fmt.Errorf("page %d: %w", page, err)
		}
		if r.max < w && r.torn == 0 {
			return 0, fmt.Errorf("LOST: page %d was stored in step %d, and has %+v", page, w, r)
		}
	}
	return acked, nil // a step that was begun is done again
}

func (h *hog) step(dir string, n int64) error {
	if h.mapping == nil {
		time.Sleep(time.Second) // not nanosleep(2), which the runtime's signals interrupt
		return nil
	}
	for k := range hogStep {
		// Always the same cell of a page, so that the newest step is what counts.
		off := hogPage(n, k)*4096 + int64(mix(uint64(hogPage(n, k)))%64)*cellBytes
		fillCells(h.mapping[off:off+cellBytes], 11, off, n)
	}
	if n%2 == 0 {
		return unix.Fdatasync(h.fd)
	}
	return unix.Msync(h.mapping, unix.MS_SYNC)
}
