package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
)

// A worker changes files in a directory of its own. Each step is durable when
// step returns, and is then acknowledged to the world outside.
type worker interface {
	// verify looks at what a crash has left, of which step acked and all before it
	// were acknowledged (0: none), and returns the number of the last step that
	// need not be done again. One of which only a part is there is none: it would
	// count as acknowledged when the next one is.
	verify(dir string, acked int64) (last int64, err error)
	// step does step n, which follows those that verify found or came before.
	step(dir string, n int64) error
}

// workers by the name of their directories. The number of each in cells is the
// hash of its name.
func workers() map[string]worker {
	return map[string]worker{
		"append":     &appender{},
		"append2":    &appender{},
		"dsync":      &slots{mode: "dsync"},
		"fdatasync":  &slots{mode: "fdatasync"},
		"direct":     &slots{mode: "direct"},
		"msync":      &slots{mode: "msync"},
		"rwf":        &slots{mode: "rwf"},
		"syncfs":     &slots{mode: "syncfs"},
		"renameover": &renamer{syncFile: true},
		"renameonly": &renamer{},
		"tree":       &tree{},
		"links":      &links{},
		"model":      &modelled{},
		"model2":     &modelled{},
		"tmpfile":    &tmpfiles{},
		"loose":      &loose{},
		"loose2":     &loose{},
		"hog":        &hog{},
	}
}

// synced verifies the directories of all workers against the acknowledged
// steps, given as NAME=STEP, and then lets them work until the end.
func synced(dir string, args []string) {
	acked := map[string]int64{}
	for _, a := range args {
		name, value, ok := strings.Cut(a, "=")
		n, err := strconv.ParseInt(value, 10, 64)
		if !ok || err != nil {
			fatal("bad argument %q", a)
		}
		acked[name] = n
	}
	lasts := map[string]int64{}
	all := workers()
	for name, w := range all {
		d := filepath.Join(dir, name)
		if _, err := os.Stat(d); err != nil {
			if acked[name] > 0 {
				wrong("%s: LOST the whole directory: %v", name, err)
			}
			must(os.MkdirAll(d, 0o755))
		}
		last, err := w.verify(d, acked[name])
		if err != nil {
			wrong("%s: after step %d was acknowledged: %v", name, acked[name], err)
		}
		lasts[name] = max(last, acked[name])
	}
	if wrongs.Load() > 0 {
		return
	}
	syncDir(dir)
	fmt.Println("verified")
	if os.Getenv("TORTURE_VERIFY_ONLY") != "" {
		return
	}
	var wg sync.WaitGroup
	for name, w := range all {
		wg.Add(1)
		go func() {
			defer wg.Done()
			d := filepath.Join(dir, name)
			for n := lasts[name] + 1; ; n++ {
				if err := w.step(d, n); err != nil {
					wrong("%s: step %d: %v", name, n, err)
					return
				}
				// One system call a line: lines of several threads do not mix.
				os.Stdout.WriteString("a " + name + " " + strconv.FormatInt(n, 10) + "\n")
			}
		}()
	}
	wg.Wait()
}

// fileID is the number of a file in its cells.
func fileID(path string) uint64 {
	h := uint64(0)
	for _, c := range []byte(filepath.Base(filepath.Dir(path)) + "/" + filepath.Base(path)) {
		h = mix(h, uint64(c))
	}
	return h
}

func syncDir(dir string) {
	f, err := os.Open(dir)
	must(err)
	defer f.Close()
	must(f.Sync())
}

// syncDirs is for code that returns errors.
func syncDirs(dirs ...string) error {
	for _, dir := range dirs {
		f, err := os.Open(dir)
		if err != nil {
			return err
		}
		err = f.Sync()
		f.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// writeSynced makes or replaces the content of a file and syncs it.
func writeSynced(path string, flags int, b []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|flags, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Write(b); err != nil {
		return err
	}
	return f.Sync()
}
