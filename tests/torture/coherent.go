package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"
)

// coherent checks what programs may rely on when mappings, reads, writes and
// changes of size meet, step by step.
func coherent(dir string) {
	if os.Getenv("TORTURE_CHILD") != "" {
		appendRecords(dir, os.Getenv("TORTURE_CHILD")[0])
		return
	}
	beyondEnd(dir)
	privateMappings(dir)
	appends(dir)
	inheritedMapping(dir)
	shrinkUnderMapping(dir)
}

// beyondEnd stores behind the end of a file in its last page, through a mapping.
// However the file grows over that place, zeroes must be there.
func beyondEnd(dir string) {
	direct, err := unix.Mmap(-1, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANONYMOUS|unix.MAP_PRIVATE)
	must(err)
	grow := map[string]func(fd int) error{
		"truncate":  func(fd int) error { return unix.Ftruncate(fd, 20000) },
		"fallocate": func(fd int) error { return unix.Fallocate(fd, 0, 0, 20000) },
		"write":     func(fd int) error { _, err := unix.Pwrite(fd, []byte("end"), 20000); return err },
		"near write": func(fd int) error {
			_, err := unix.Pwrite(fd, []byte("end"), 4000)
			return err
		},
		"direct write": func(fd int) error {
			d, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_RDWR|unix.O_DIRECT, 0)
			if err != nil {
				return err
			}
			defer unix.Close(d)
			_, err = unix.Pwrite(d, direct, 16384)
			return err
		},
		"append": func(fd int) error {
			a, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", fd), unix.O_WRONLY|unix.O_APPEND, 0)
			if err != nil {
				return err
			}
			defer unix.Close(a)
			_, err = unix.Write(a, make([]byte, 5000))
			return err
		},
	}
	for name, f := range grow {
		for _, synced := range []bool{false, true} {
			for _, allocated := range []bool{false, true} {
				path := filepath.Join(dir, "beyond")
				os.Remove(path)
				fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT, 0o644)
				must(err)
				if allocated {
					_, err = unix.Pwrite(fd, bytes.Repeat([]byte("a"), 3000), 0)
				} else {
					err = unix.Ftruncate(fd, 3000)
				}
				must(err)
				m, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
				must(err)
				for k := 3000; k < 4096; k++ {
					m[k] = 'X'
				}
				if synced {
					must(unix.Msync(m, unix.MS_SYNC))
					must(unix.Fsync(fd))
				}
				if err := f(fd); err != nil {
					wrong("growing by %s: %v", name, err)
				}
				b := make([]byte, 20000)
				n, err := unix.Pread(fd, b, 0)
				must(err)
				if k := bytes.IndexByte(b[3000:n], 'X'); k >= 0 {
					wrong("growing by %s (synced %v, allocated %v) shows what was stored %d behind the end", name, synced, allocated, k)
				}
				must(unix.Munmap(m))
				unix.Close(fd)
			}
		}
	}
}

// privateMappings keeps what was stored to private pages out of the file, and the
// file out of them. (Whether other pages still follow the file is open.)
func privateMappings(dir string) {
	path := filepath.Join(dir, "private")
	must(os.WriteFile(path, bytes.Repeat([]byte("1"), 8192), 0o644))
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	must(err)
	defer f.Close()
	m, err := unix.Mmap(int(f.Fd()), 0, 8192, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
	must(err)
	defer unix.Munmap(m)
	if m[0] != '1' {
		wrong("a private mapping shows %q", m[:1])
	}
	m[10] = 'p'
	_, err = f.WriteAt(bytes.Repeat([]byte("2"), 8192), 0)
	must(err)
	if m[10] != 'p' || m[0] != '1' {
		wrong("a private page changed with the file: %q", m[:11])
	}
	b, err := os.ReadFile(path)
	must(err)
	if bytes.IndexByte(b, 'p') >= 0 {
		wrong("a private store is in the file")
	}
}

const (
	appendProcesses = 3
	appendThreads   = 3
	appendCount     = 200
)

// appends has several processes append to one file: each record must be there
// once, in one piece.
func appends(dir string) {
	var children []*exec.Cmd
	for k := range appendProcesses {
		c := exec.Command("/proc/self/exe", "coherent", dir)
		c.Env = append(os.Environ(), "TORTURE_CHILD="+string(rune('A'+k)))
		c.Stdout = os.Stdout
		must(c.Start())
		children = append(children, c)
	}
	for _, c := range children {
		if err := c.Wait(); err != nil {
			wrong("appending: %v", err)
		}
	}
	b, err := os.ReadFile(filepath.Join(dir, "appended"))
	must(err)
	counts := map[byte]int{}
	for len(b) > 0 {
		n := bytes.IndexByte(b, '\n')
		if n < 0 || len(bytes.Trim(b[:n], string(b[:1]))) != 0 {
			wrong("appended records are mixed: %.60q", b)
			return
		}
		counts[b[0]]++
		b = b[n+1:]
	}
	for k := range appendProcesses {
		if got := counts[byte('A'+k)]; got != appendThreads*appendCount {
			wrong("%d of %d appended records are there", got, appendThreads*appendCount)
		}
	}
}

func appendRecords(dir string, name byte) {
	var wg sync.WaitGroup
	for k := range appendThreads {
		wg.Add(1)
		go func() {
			defer wg.Done()
			f, err := os.OpenFile(filepath.Join(dir, "appended"), os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
			must(err)
			defer f.Close()
			for n := range appendCount {
				rec := append(bytes.Repeat([]byte{name}, 1+int(mix(uint64(n), uint64(k))%9000)), '\n')
				if m, err := f.Write(rec); err != nil || m != len(rec) {
					wrong("append: %d, %v", m, err)
				}
			}
		}()
	}
	wg.Wait()
}

// inheritedMapping hands a file to another process, which changes it by write
// while we look at our mapping.
func inheritedMapping(dir string) {
	path := filepath.Join(dir, "shared")
	must(os.WriteFile(path, make([]byte, 64<<10), 0o644))
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	must(err)
	defer f.Close()
	m, err := unix.Mmap(int(f.Fd()), 0, 64<<10, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	must(err)
	defer unix.Munmap(m)
	for k := range 16 {
		m[k*4096] = byte(k)
	}
	c := exec.Command("sh", "-c", "tr '\\000-\\017' 'A-P' <&3 | dd of="+path+" conv=notrunc bs=64k iflag=fullblock 2>/dev/null")
	c.ExtraFiles = []*os.File{f}
	if out, err := c.CombinedOutput(); err != nil {
		wrong("the other process: %v %s", err, out)
	}
	for k := range 16 {
		if m[k*4096] != 'A'+byte(k) {
			wrong("page %d of a mapping shows %q after another process wrote", k, m[k*4096])
		}
	}
}

// shrinkUnderMapping makes a file shorter and longer under a mapping: what was
// behind the end is gone for good, and touching it while it is gone is a fault.
func shrinkUnderMapping(dir string) {
	path := filepath.Join(dir, "shrink")
	must(os.WriteFile(path, bytes.Repeat([]byte("s"), 32768), 0o644))
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	must(err)
	defer f.Close()
	m, err := unix.Mmap(int(f.Fd()), 0, 32768, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	must(err)
	defer unix.Munmap(m)
	for k := range 8 {
		m[k*4096]++
	}
	must(f.Truncate(5000))
	faulted := true
	guard(func() { m[8192] = 1; faulted = false })
	if faulted == false {
		wrong("no fault behind the end of a file")
	}
	if m[4999] != 's' || m[5000] != 0 {
		wrong("the last page after a truncation: %q", m[4999:5001])
	}
	must(f.Truncate(32768))
	for k := 5000; k < 32768; k++ {
		if m[k] != 0 {
			wrong("byte %d came back after a truncation: %q", k, m[k])
			break
		}
	}
	must(unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 4096))
	if m[0] != 0 || m[4096] != 't' {
		wrong("after punching: %q %q", m[0], m[4096])
	}
}
