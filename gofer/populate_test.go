package gofer

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"runsc-fs/blobfs"
)

// hostTree makes a directory with one of everything that can be made here.
func hostTree(t *testing.T) string {
	t.Helper()
	top := filepath.Join(t.TempDir(), "top")
	at := func(name string) string { return filepath.Join(top, name) }
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.Mkdir(top, 0o700))
	must(os.MkdirAll(at("dir/below"), 0o755))
	must(os.WriteFile(at("dir/file"), bytes.Repeat([]byte("0123456789abcdef"), 700), 0o640))
	must(os.WriteFile(at("empty"), nil, 0o600))
	must(os.Symlink("dir/file", at("symlink")))
	must(os.Symlink(strings.Repeat("long/", 700), at("long symlink")))
	must(os.Link(at("dir/file"), at("hard link")))
	must(unix.Mkfifo(at("fifo"), 0o622))
	sparse, err := os.Create(at("sparse"))
	must(err)
	_, err = sparse.WriteAt([]byte("far away"), 5<<20)
	must(err)
	must(sparse.Truncate(9<<20 + 1))
	must(sparse.Close())
	must(os.WriteFile(at("setuid"), []byte("#!"), 0o755))
	if os.Geteuid() == 0 {
		must(unix.Mknod(at("device"), unix.S_IFCHR|0o660, int(unix.Mkdev(7, 300))))
		must(os.Chown(at("dir"), 70, 71))
		must(os.Lchown(at("symlink"), 72, 73))
		must(os.Chown(top, 999, 998))
	}
	must(os.Chmod(at("setuid"), 0o755|os.ModeSetuid|os.ModeSticky))
	must(os.Chmod(top, 0o750|os.ModeSetgid))
	if err := unix.Setxattr(at("dir"), "user.color", []byte("green"), 0); err != nil && err != unix.ENOTSUP {
		t.Fatal(err)
	}
	then := time.Date(2001, 2, 3, 4, 5, 6, 789, time.UTC)
	must(os.Chtimes(at("dir/file"), then, then.Add(time.Hour)))
	must(os.Chtimes(at("dir"), then, then))
	return top
}

// describeHost prints a tree as describe does for a file system.
func describeHost(t *testing.T, top string) string {
	t.Helper()
	var lines []string
	names := map[hostInode]string{}
	err := filepath.WalkDir(top, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		rel, err := filepath.Rel(top, path)
		if err != nil {
			return err
		}
		line := attrLine(rel, blobfs.Attr{Mode: st.Mode, UID: st.Uid, GID: st.Gid, Rdev: st.Rdev, Size: st.Size, Mtime: st.Mtim.Nano()})
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			line += " " + digest(text)
			id := hostInode{st.Dev, st.Ino}
			if first := names[id]; first != "" && st.Nlink > 1 {
				line += " = " + first
			}
			names[id] = rel
		case unix.S_IFLNK:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			line += " -> " + target
		}
		xattrs, err := readXattrs(path)
		if err != nil {
			return err
		}
		lines = append(lines, line+xattrText(xattrs))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	sort.Strings(lines)
	return strings.Join(lines, "\n")
}

func attrLine(name string, a blobfs.Attr) string {
	size := a.Size
	if a.Mode&unix.S_IFMT == unix.S_IFDIR {
		size = 0
	}
	return fmt.Sprintf("%s mode=%o owner=%d:%d rdev=%#x size=%d mtime=%d", name, a.Mode, a.UID, a.GID, a.Rdev, size, a.Mtime)
}

func xattrText(xattrs []blobfs.Xattr) string {
	var text string
	for _, x := range xattrs {
		text += fmt.Sprintf(" %s=%q", x.Name, x.Value)
	}
	return text
}

func digest(text []byte) string {
	sum := uint64(14695981039346656037)
	for _, b := range text {
		sum = (sum ^ uint64(b)) * 1099511628211
	}
	return fmt.Sprintf("%d bytes %016x", len(text), sum)
}

// describe prints the tree in a volume, which must not be mounted.
func describe(t *testing.T, v *Volume) string {
	t.Helper()
	var lines []string
	withVolume(t, v, func(fs *blobfs.FS) error {
		names := map[uint64]string{}
		root := fs.Root()
		defer root.DecRef()
		var err error
		lines, err = describeDir(".", root, names, lines)
		return err
	})
	sort.Strings(lines)
	return strings.Join(lines, "\n")
}

func withVolume(t *testing.T, v *Volume, do func(fs *blobfs.FS) error) {
	t.Helper()
	o, err := v.openOffline()
	if err != nil {
		t.Fatal(err)
	}
	fs, err := blobfs.Mount(o.device, blobfs.MountOptions{NoAtime: true})
	if err != nil {
		t.Fatal(errors.Join(err, o.close()))
	}
	if err := errors.Join(do(fs), fs.Close(), o.close()); err != nil {
		t.Fatal(err)
	}
}

type memorySink struct{ bytes.Buffer }

func (s *memorySink) CopyOut(b []byte) (int, error) { return s.Write(b) }

func describeDir(path string, dir *blobfs.Inode, names map[uint64]string, lines []string) ([]string, error) {
	text, err := allXattrs(dir)
	if err != nil {
		return nil, err
	}
	lines = append(lines, attrLine(path, dir.Attr())+text)
	var entries []string
	if err := dir.ReadDir(0, func(d blobfs.Dirent) bool { entries = append(entries, d.Name); return true }); err != nil {
		return nil, err
	}
	sort.Strings(entries)
	for _, name := range entries {
		child, err := dir.Lookup(name)
		if err != nil {
			return nil, err
		}
		lines, err = describeChild(filepath.Join(path, name), child, names, lines)
		child.DecRef()
		if err != nil {
			return nil, err
		}
	}
	return lines, nil
}

func describeChild(path string, inode *blobfs.Inode, names map[uint64]string, lines []string) ([]string, error) {
	a := inode.Attr()
	line := attrLine(path, a)
	switch a.Mode & blobfs.ModeTypeMask {
	case blobfs.ModeDir:
		return describeDir(path, inode, names, lines)
	case blobfs.ModeRegular:
		var sink memorySink
		if _, err := inode.ReadAt(&sink, 0, a.Size, 0); err != nil {
			return nil, err
		}
		line += " " + digest(sink.Bytes())
		if first := names[a.Ino]; first != "" && a.Nlink > 1 {
			line += " = " + first
		}
		names[a.Ino] = path
	case blobfs.ModeSymlink:
		target, err := inode.Readlink()
		if err != nil {
			return nil, err
		}
		line += " -> " + target
	}
	text, err := allXattrs(inode)
	return append(lines, line+text), err
}

func allXattrs(inode *blobfs.Inode) (string, error) {
	names, err := inode.ListXattr()
	if err != nil {
		return "", err
	}
	var xattrs []blobfs.Xattr
	for _, name := range names {
		value, err := inode.GetXattr(name)
		if err != nil {
			return "", err
		}
		xattrs = append(xattrs, blobfs.Xattr{Name: name, Value: value})
	}
	return xattrText(xattrs), nil
}

func openTestVolume(t *testing.T, spec VolumeSpec) *Volume {
	t.Helper()
	v, err := OpenVolume(spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(v.Close)
	return v
}

func compare(t *testing.T, have, want string) {
	t.Helper()
	if have == want {
		return
	}
	haveLines, wantLines := strings.Split(have, "\n"), strings.Split(want, "\n")
	for i := range max(len(haveLines), len(wantLines)) {
		var h, w string
		if i < len(haveLines) {
			h = haveLines[i]
		}
		if i < len(wantLines) {
			w = wantLines[i]
		}
		if h != w {
			t.Errorf("line %d of %d\nhave %.200s\nwant %.200s", i, len(wantLines), h, w)
		}
	}
}

func TestPopulate(t *testing.T) {
	top := hostTree(t)
	want := describeHost(t, top)
	for _, spec := range []VolumeSpec{
		imageSpec(newImage(t, testSizeBytes)),
		{Name: "m", Kind: KindMemory, SizeBytes: testSizeBytes},
	} {
		t.Run(string(spec.Kind), func(t *testing.T) {
			v := openTestVolume(t, spec)
			if err := Populate(v, top); err != nil {
				t.Fatal(err)
			}
			compare(t, describe(t, v), want)
		})
	}
}

func TestPopulateKeepsWhatIsThere(t *testing.T) {
	v := openTestVolume(t, imageSpec(newImage(t, testSizeBytes)))
	withVolume(t, v, func(fs *blobfs.FS) error {
		root := fs.Root()
		defer root.DecRef()
		inode, err := root.Create("mine", blobfs.NewInode{Mode: blobfs.ModeRegular | 0o600})
		if err == nil {
			inode.DecRef()
		}
		return err
	})
	before := describe(t, v)
	if err := Populate(v, hostTree(t)); err != nil {
		t.Fatal(err)
	}
	compare(t, describe(t, v), before)
}

// TestPopulateBeginsAgain leaves a volume as a crash in the middle of a copy
// does: with the mark and some of the files.
func TestPopulateBeginsAgain(t *testing.T) {
	v := openTestVolume(t, imageSpec(newImage(t, testSizeBytes)))
	withVolume(t, v, func(fs *blobfs.FS) error {
		root := fs.Root()
		defer root.DecRef()
		if err := root.SetXattr(populatingXattr, []byte{1}, 0); err != nil {
			return err
		}
		inode, err := root.Create("dir", blobfs.NewInode{Mode: blobfs.ModeRegular | 0o600})
		if err == nil {
			inode.DecRef()
		}
		return err
	})
	top := hostTree(t)
	if err := Populate(v, top); err != nil {
		t.Fatal(err)
	}
	compare(t, describe(t, v), describeHost(t, top))
}

func TestPopulateFullVolume(t *testing.T) {
	top := t.TempDir()
	if err := os.WriteFile(filepath.Join(top, "big"), make([]byte, 2*testSizeBytes), 0o600); err != nil {
		t.Fatal(err)
	}
	v := openTestVolume(t, imageSpec(newImage(t, testSizeBytes)))
	err := Populate(v, top)
	if err == nil || !strings.Contains(err.Error(), "make a larger volume") {
		t.Fatalf("error %v, want one about the size", err)
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("the error has several lines: %v", err)
	}
	// A smaller tree fits then, whatever the first attempt has left.
	if err := os.Truncate(filepath.Join(top, "big"), 5000); err != nil {
		t.Fatal(err)
	}
	if err := Populate(v, top); err != nil {
		t.Fatal(err)
	}
	compare(t, describe(t, v), describeHost(t, top))
}
