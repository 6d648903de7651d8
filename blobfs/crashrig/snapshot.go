package crashrig

import (
	"fmt"
	"strings"

	"runsc-fs/blobfs"
)

// snapshot is what a file system holds below one directory.
type snapshot struct {
	text  string // as nameState.text
	files map[string]*realFile

	blocks int // of the whole file system
}

type realFile struct {
	data  []byte
	mode  uint32
	mtime int64
}

// takeSnapshot reads everything below a directory.
func takeSnapshot(root *blobfs.Inode) (*snapshot, error) {
	s := &snapshot{files: map[string]*realFile{}}
	var b strings.Builder
	first := map[uint64]string{}
	err := s.walk(&b, first, "", root)
	s.text = b.String()
	return s, err
}

func (s *snapshot) walk(b *strings.Builder, first map[uint64]string, path string, i *blobfs.Inode) error {
	a := i.Attr()
	typ := a.Mode & blobfs.ModeTypeMask
	if path != "" {
		if first[a.Ino] == "" {
			first[a.Ino] = path
		}
		target := ""
		if typ == blobfs.ModeSymlink {
			var err error
			if target, err = i.Readlink(); err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
		}
		xattrs, err := readXattrs(i)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		describe(b, path, typ, int(a.Nlink), first[a.Ino], target, xattrs)
	}
	switch typ {
	case blobfs.ModeRegular:
		sink := &sink{}
		n, err := i.ReadAt(sink, 0, blobfs.MaxFileSizeBytes, blobfs.IONoAtime)
		if err != nil || n != a.Size || n != int64(len(sink.b)) {
			return fmt.Errorf("%s: read %d bytes of %d: %w", path, n, a.Size, err)
		}
		s.files[path] = &realFile{data: sink.b, mode: a.Mode &^ blobfs.ModeTypeMask, mtime: a.Mtime}
	case blobfs.ModeDir:
		return s.walkDir(b, first, path, i)
	}
	return nil
}

func (s *snapshot) walkDir(b *strings.Builder, first map[uint64]string, path string, dir *blobfs.Inode) error {
	names := map[string]bool{}
	err := dir.ReadDir(0, func(d blobfs.Dirent) bool {
		names[d.Name] = true
		return true
	})
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	for _, name := range sorted(names) {
		i, err := dir.Lookup(name)
		if err != nil {
			return fmt.Errorf("%s/%s is listed: %w", path, name, err)
		}
		err = s.walk(b, first, path+"/"+name, i)
		i.DecRef()
		if err != nil {
			return err
		}
	}
	return nil
}

func readXattrs(i *blobfs.Inode) (map[string]string, error) {
	names, err := i.ListXattr()
	if err != nil || len(names) == 0 {
		return nil, err
	}
	all := map[string]string{}
	for _, name := range names {
		v, err := i.GetXattr(name)
		if err != nil {
			return nil, err
		}
		all[name] = string(v)
	}
	return all, nil
}

type sink struct{ b []byte }

func (s *sink) CopyOut(b []byte) (int, error) {
	s.b = append(s.b, b...)
	return len(b), nil
}
