package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// full fills the volume with one file and with many, tries every operation on
// it, and makes sure that removing always works and gives everything back.
func full(dir string) {
	var before, after unix.Statfs_t
	must(unix.Statfs(dir, &before))
	for round := range 4 {
		d := filepath.Join(dir, fmt.Sprintf("round%d", round))
		must(os.Mkdir(d, 0o755))
		keep := filepath.Join(d, "keep")
		must(os.WriteFile(keep, cells(64<<10, fileID(keep), 0, 1), 0o644))
		sparse := filepath.Join(d, "sparse")
		must(os.WriteFile(sparse, nil, 0o644))
		must(os.Truncate(sparse, 8<<20))
		switch round {
		case 0, 1:
			fillBig(filepath.Join(d, "big"), round == 1)
		case 2:
			fillSmall(d, 100)
		case 3:
			fillSmall(d, 9000)
		}
		onFull(d, keep, sparse)
		must(os.RemoveAll(d))
	}
	fd, err := unix.Open(dir, unix.O_RDONLY, 0)
	must(err)
	must(unix.Syncfs(fd))
	must(unix.Statfs(dir, &after))
	if lost := int64(before.Bfree) - int64(after.Bfree); lost > 64 {
		wrong("%d blocks did not come back", lost)
	}
}

func noSpace(err error) bool { return errors.Is(err, unix.ENOSPC) }

func fillBig(path string, direct bool) {
	flags := os.O_WRONLY | os.O_CREATE
	if direct {
		flags |= unix.O_DIRECT
	}
	f, err := os.OpenFile(path, flags, 0o644)
	must(err)
	defer f.Close()
	b, err := unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANONYMOUS|unix.MAP_PRIVATE)
	must(err)
	defer unix.Munmap(b)
	for size := len(b); size >= 4096; {
		if _, err := f.Write(b[:size]); noSpace(err) {
			size /= 2
		} else if err != nil {
			wrong("filling: %v", err)
			return
		}
	}
	if err := f.Sync(); err != nil {
		wrong("fsync on a full volume: %v", err)
	}
}

func fillSmall(dir string, size int) {
	for n := 0; ; n++ {
		path := filepath.Join(dir, fmt.Sprintf("small%d", n))
		err := os.WriteFile(path, bytes.Repeat([]byte("x"), size), 0o644)
		if noSpace(err) {
			return
		}
		if err != nil {
			wrong("filling with small files: %v", err)
			return
		}
	}
}

// onFull does on a full volume what can be done and what cannot.
func onFull(d, keep, sparse string) {
	allowed := func(what string, err error) {
		if err != nil && !noSpace(err) {
			wrong("%s on a full volume: %v", what, err)
		}
	}
	works := func(what string, err error) {
		if err != nil {
			wrong("%s on a full volume: %v", what, err)
		}
	}
	for n := range 50 {
		p := filepath.Join(d, fmt.Sprintf("%d%s", n, strings.Repeat("n", 200)))
		allowed("create", os.WriteFile(p, []byte("x"), 0o644))
		allowed("mkdir", os.Mkdir(p+"d", 0o755))
		allowed("symlink", os.Symlink(strings.Repeat("y", 4000), p+"s"))
		allowed("link", os.Link(keep, p+"l"))
		allowed("setxattr", unix.Setxattr(keep, fmt.Sprintf("user.%d", n), make([]byte, 4000), 0))
		if err := os.Rename(p+"l", p+"r"); !errors.Is(err, os.ErrNotExist) {
			allowed("rename", err)
		}
		allowed("mknod", unix.Mknod(p+"f", unix.S_IFIFO|0o644, 0))
		allowed("chmod", os.Chmod(keep, os.FileMode(0o600+n%8)))
	}
	f, err := os.OpenFile(keep, os.O_RDWR, 0)
	works("open", err)
	if err != nil {
		return
	}
	defer f.Close()
	_, err = f.WriteAt(cells(64<<10, fileID(keep), 0, 2), 0)
	works("overwriting", err)
	works("fsync", f.Sync())
	allowed("fallocate", unix.Fallocate(int(f.Fd()), 0, 0, 32<<20))
	works("truncate", os.Truncate(sparse, 9<<20))
	mapHoles(sparse)
	works("punch", unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 4096, 4096))
	_, err = f.WriteAt(cells(4096, fileID(keep), 4096, 2), 4096)
	allowed("filling a hole", err)
	b, err := os.ReadFile(keep)
	works("read", err)
	if r, err := checkCells(b, fileID(keep), 0); err != nil || r.max != 2 || r.zeroes > 64 {
		wrong("%s on a full volume: %+v %v", keep, r, err)
	}
	dir, err := os.Open(d)
	must(err)
	works("fsync of the directory", dir.Sync())
	works("syncfs", unix.Syncfs(int(dir.Fd())))
	dir.Close()
}

// mapHoles stores through a mapping into holes for which there are no blocks: SIGBUS.
func mapHoles(path string) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	must(err)
	defer f.Close()
	m, err := unix.Mmap(int(f.Fd()), 0, 8<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	must(err)
	defer unix.Munmap(m)
	var wg sync.WaitGroup
	for k := range 4 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			debug.SetPanicOnFault(true)
			defer func() {
				if r := recover(); r != nil {
					if err, ok := r.(error); !ok || !isFault(err) {
						panic(r)
					}
				}
			}()
			for off := k * 4096; off < len(m); off += 4 * 4096 {
				m[off] = 1
			}
		}()
	}
	wg.Wait()
	if err := unix.Msync(m, unix.MS_SYNC); err != nil {
		wrong("msync on a full volume: %v", err)
	}
}
