package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// pressureBytes is more than the cache of a small sandbox holds.
const pressureBytes = 192 << 20

// pressure maps more than the cache holds, in two processes, writes all of it
// through the mappings, and reads it back in other ways.
func pressure(dir string) {
	if os.Getenv("TORTURE_CHILD") != "" {
		pressWrite(dir, 1)
		return
	}
	path := filepath.Join(dir, "big")
	f, err := os.Create(path)
	must(err)
	must(f.Truncate(pressureBytes))
	child := exec.Command("/proc/self/exe", "pressure", dir)
	child.Env = append(os.Environ(), "TORTURE_CHILD=1")
	child.Stdout, child.Stderr = os.Stdout, os.Stderr
	must(child.Start())
	pressWrite(dir, 0)
	if err := child.Wait(); err != nil {
		wrong("the second process: %v", err)
	}
	must(f.Sync())
	b := make([]byte, 1<<20)
	for off := int64(0); off < pressureBytes; off += int64(len(b)) {
		_, err := f.ReadAt(b, off)
		must(err)
		for at := int64(0); at < int64(len(b)); at += 4096 {
			if r, err := checkCells(b[at:at+2*cellBytes], 9, off+at); err != nil || r.zeroes > 0 || r.min != 1 {
				wrong("offset %d: %+v, %v", off+at, r, err)
			}
		}
	}
	f.Close()
	fmt.Println("pressed")
}

// pressWrite stores one cell in each page: process 0 the first, 1 the second.
func pressWrite(dir string, which int64) {
	f, err := os.OpenFile(filepath.Join(dir, "big"), os.O_RDWR, 0)
	must(err)
	defer f.Close()
	m, err := unix.Mmap(int(f.Fd()), 0, pressureBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	must(err)
	var wg sync.WaitGroup
	const threads = 4
	for k := range int64(threads) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for page := k; page < pressureBytes/4096; page += threads {
				off := page*4096 + which*cellBytes
				fillCells(m[off:off+cellBytes], 9, off, 1)
			}
		}()
	}
	wg.Wait()
	must(unix.Munmap(m))
}
