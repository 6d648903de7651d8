package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// renamer replaces a file by renaming a new one over it, the way that editors
// and databases do. Without syncFile it leaves it to the file system that the new
// content is there when the new name is.
type renamer struct{ syncFile bool }

func (r *renamer) size(n int64) int { return cellBytes * int(1+mix(uint64(n), 4)%600) }

func (r *renamer) verify(dir string, acked int64) (int64, error) {
	path := filepath.Join(dir, "current")
	b, err := os.ReadFile(path)
	if err != nil {
		if acked > 0 {
			return 0, err
		}
		return 0, nil
	}
	c, err := checkCells(b, fileID(path), 0)
	if err != nil {
		return 0, err
	}
	if c.min != c.max || c.zeroes > 0 || len(b) != r.size(c.min) {
		return 0, fmt.Errorf("%s: LOST: %d bytes are not one version: %+v", path, len(b), c)
	}
	if c.min < acked {
		return 0, fmt.Errorf("%s: LOST: version %d", path, c.min)
	}
	return c.max, nil
}

func (r *renamer) step(dir string, n int64) error {
	tmp, path := filepath.Join(dir, "new"), filepath.Join(dir, "current")
	b := cells(r.size(n), fileID(path), 0, n)
	var err error
	if r.syncFile {
		err = writeSynced(tmp, os.O_TRUNC, b)
	} else {
		err = os.WriteFile(tmp, b, 0o644)
	}
	if err != nil {
		return err
	}
	if err := os.Rename(tmp, path); err != nil {
		return err
	}
	return syncDirs(dir)
}

// tree makes directories with a few files each, and removes old ones.
type tree struct{}

const (
	treeKeep   = 60
	treePerDir = 7
)

func (*tree) path(dir string, n int64) string {
	return filepath.Join(dir, fmt.Sprintf("sub%d", n/treePerDir), "deep", fmt.Sprintf("f%d", n))
}

func (t *tree) verify(dir string, acked int64) (int64, error) {
	found := map[int64]bool{}
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if s, ok := strings.CutPrefix(d.Name(), "f"); ok {
			n, err := strconv.ParseInt(s, 10, 64)
			if err != nil || path != t.path(dir, n) {
				return fmt.Errorf("strange file %s", path)
			}
			found[n] = true
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	for n := max(acked-treeKeep+1, 1); n <= acked; n++ {
		path := t.path(dir, n)
		if !found[n] {
			// The step after the acknowledged one removes the oldest.
			if n == acked-treeKeep+1 {
				continue
			}
			return 0, fmt.Errorf("LOST %s", path)
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return 0, err
		}
		if r, err := checkCells(b, fileID(path), 0); err != nil || r.min != n || r.max != n || r.zeroes > 0 || len(b) != cellBytes*int(1+n%100) {
			return 0, fmt.Errorf("LOST content of %s: %d bytes, %+v, %v", path, len(b), r, err)
		}
	}
	for n := range found {
		if n <= acked-treeKeep {
			return 0, fmt.Errorf("removed file %s is back", t.path(dir, n))
		}
	}
	return acked, nil // a step that was begun is done again
}

func (t *tree) step(dir string, n int64) error {
	path := t.path(dir, n)
	deep := filepath.Dir(path)
	if err := os.MkdirAll(deep, 0o755); err != nil {
		return err
	}
	if err := writeSynced(path, os.O_TRUNC, cells(cellBytes*int(1+n%100), fileID(path), 0, n)); err != nil {
		return err
	}
	if err := syncDirs(deep, filepath.Dir(deep), dir); err != nil {
		return err
	}
	if n <= treeKeep {
		return nil
	}
	old := t.path(dir, n-treeKeep)
	if err := os.Remove(old); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	deep = filepath.Dir(old)
	if err := syncDirs(deep); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if (n-treeKeep)%treePerDir == treePerDir-1 {
		for _, d := range []string{deep, filepath.Dir(deep)} {
			if err := os.Remove(d); err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
		}
		return syncDirs(dir)
	}
	return nil
}

// links moves one file on from name to name: by link and unlink, and between two
// directories by rename, with a symbolic link and an extended attribute that
// follow.
type links struct{}

func (*links) names(dir string) (names []string, err error) {
	for _, d := range []string{"a", "b"} {
		list, err := os.ReadDir(filepath.Join(dir, d))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
		for _, e := range list {
			names = append(names, d+"/"+e.Name())
		}
	}
	sort.Strings(names)
	return names, nil
}

func (*links) name(n int64) string { return fmt.Sprintf("%c/n%d", 'a'+n/2%2, n) }

func (l *links) verify(dir string, acked int64) (int64, error) {
	names, err := l.names(dir)
	if err != nil {
		return 0, err
	}
	files := 0
	for _, name := range names {
		n, err := strconv.ParseInt(name[3:], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("strange name %s", name)
		}
		if n < acked || n > acked+1 {
			return 0, fmt.Errorf("LOST: name %s", name)
		}
		if name[2] == 'n' {
			files++
			b, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil || string(b) != "the file" {
				return 0, fmt.Errorf("%s has %q, %v", name, b, err)
			}
			var st unix.Stat_t
			if err := unix.Stat(filepath.Join(dir, name), &st); err != nil || st.Nlink > 2 {
				return 0, fmt.Errorf("%s has %d links, %v", name, st.Nlink, err)
			}
			x := make([]byte, 20)
			m, err := unix.Getxattr(filepath.Join(dir, name), "user.step", x)
			if err != nil {
				return 0, fmt.Errorf("%s: %w", name, err)
			}
			if v, _ := strconv.ParseInt(string(x[:m]), 10, 64); v < acked || v > acked+1 {
				return 0, fmt.Errorf("LOST: %s has the attribute %q", name, x[:m])
			}
		}
	}
	if acked > 0 {
		if files == 0 {
			return 0, fmt.Errorf("LOST the file: %v", names)
		}
		target, err := os.Readlink(filepath.Join(dir, "link"))
		if err != nil {
			return 0, err
		}
		if target != l.name(acked) && target != l.name(acked+1) {
			return 0, fmt.Errorf("LOST: the link leads to %s", target)
		}
	}
	return acked, nil // a step that was begun is done again
}

func (l *links) step(dir string, n int64) error {
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	for _, d := range []string{a, b} {
		if err := os.Mkdir(d, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	names, err := l.names(dir)
	if err != nil {
		return err
	}
	to := filepath.Join(dir, l.name(n))
	switch {
	case len(names) == 0:
		err = writeSynced(to, 0, []byte("the file"))
	case len(names) == 1 && n%2 == 0:
		err = os.Rename(filepath.Join(dir, names[0]), to)
	default:
		if err = os.Link(filepath.Join(dir, names[0]), to); errors.Is(err, os.ErrExist) {
			err = nil
		}
		for _, name := range names {
			if err == nil && name != l.name(n) {
				err = os.Remove(filepath.Join(dir, name))
			}
		}
	}
	if err != nil {
		return err
	}
	if err := unix.Setxattr(to, "user.step", []byte(strconv.FormatInt(n, 10)), 0); err != nil {
		return err
	}
	os.Remove(filepath.Join(dir, "newlink"))
	if err := os.Symlink(l.name(n), filepath.Join(dir, "newlink")); err != nil {
		return err
	}
	if err := os.Rename(filepath.Join(dir, "newlink"), filepath.Join(dir, "link")); err != nil {
		return err
	}
	return syncDirs(to, a, b, dir)
}

// tmpfiles makes files without a name and links them when they are complete.
type tmpfiles struct{}

func (*tmpfiles) verify(dir string, acked int64) (int64, error) {
	last := acked
	names, err := filepath.Glob(filepath.Join(dir, "t*"))
	if err != nil {
		return 0, err
	}
	found := map[int64]bool{}
	for _, path := range names {
		n, err := strconv.ParseInt(filepath.Base(path)[1:], 10, 64)
		if err != nil {
			return 0, err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return 0, err
		}
		if r, err := checkCells(b, fileID(path), 0); err != nil || len(b) != 5000/cellBytes*cellBytes*int(1+n%5) || r.zeroes > 0 || r.min != n {
			return 0, fmt.Errorf("LOST content of %s: %d bytes, %+v, %v", path, len(b), r, err)
		}
		found[n] = true
		last = max(last, n)
	}
	for n := max(acked-8, 1); n <= acked; n++ {
		if !found[n] {
			return 0, fmt.Errorf("LOST file t%d", n)
		}
	}
	return last, nil
}

func (*tmpfiles) step(dir string, n int64) error {
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), "")
	defer f.Close()
	path := filepath.Join(dir, fmt.Sprintf("t%d", n))
	if _, err := f.Write(cells(5000/cellBytes*cellBytes*int(1+n%5), fileID(path), 0, n)); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", fd), unix.AT_FDCWD, path, unix.AT_SYMLINK_FOLLOW); err != nil && !errors.Is(err, unix.EEXIST) {
		return err
	}
	os.Remove(filepath.Join(dir, fmt.Sprintf("t%d", n-10)))
	return syncDirs(dir)
}
