package gofer

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"runsc-fs/blobfs"
)

// populatingXattr marks the root of a file system while the first files are
// copied into it. It is durable before the first of them and removed after the
// last, so a volume that has it holds nothing but the remains of a copy that
// was cut short.
const populatingXattr = "trusted.blobfs.populating"

// Populate gives a volume that has never been used the owner, mode, times and
// content of a directory on the host. A copy that was interrupted, by a crash
// of the host, too, is started again from nothing. A volume that has files
// already keeps them and nothing is copied: they are the user's.
//
// The volume is durable when Populate returns. It must not be in use.
func Populate(v *Volume, from string) error {
	if err := populate(v, from); err != nil {
		if errors.Is(err, blobfs.ErrNoSpace) {
			return fmt.Errorf("volume %q: its %d bytes do not hold what the container image has at the mount point (copy in %s); make a larger volume", v.Name, v.SizeBytes, from)
		}
		return fmt.Errorf("volume %q: copying %s into it: %w", v.Name, from, err)
	}
	return nil
}

func populate(v *Volume, from string) error {
	if v.ReadOnly {
		return errors.New("the image cannot be written")
	}
	source, err := os.OpenFile(from, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer source.Close()
	fresh, err := populateOnce(v, source)
	if err == nil && !fresh {
		// What is there is half of a copy: begin with an empty file system.
		if err := v.format(); err != nil {
			return err
		}
		_, err = populateOnce(v, source)
	}
	return err
}

// format makes an empty file system with the name of the volume as its label.
func (v *Volume) format() error {
	o, err := v.openOffline()
	if err != nil {
		return err
	}
	return errors.Join(o.mkfs(v.Name), o.close())
}

// populateOnce returns fresh == false, and changes nothing, if the volume has
// the remains of an interrupted copy.
func populateOnce(v *Volume, source *os.File) (fresh bool, err error) {
	o, err := v.openOffline()
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, o.close()) }()
	fs, err := blobfs.Mount(o.device, blobfs.MountOptions{NoAtime: true, CommitInterval: -1})
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, fs.Close()) }()
	root := fs.Root()
	defer root.DecRef()

	switch _, err := root.GetXattr(populatingXattr); {
	case err == nil:
		return false, nil
	case !errors.Is(err, blobfs.ErrNoXattr):
		return false, err
	}
	used := false
	if err := root.ReadDir(0, func(blobfs.Dirent) bool { used = true; return false }); err != nil {
		return false, err
	}
	if used {
		return true, nil
	}

	if err := root.SetXattr(populatingXattr, []byte{1}, 0); err != nil {
		return false, err
	}
	if err := fs.Sync(nil); err != nil {
		return false, err
	}
	c := copier{links: map[hostInode]*blobfs.Inode{}}
	defer c.dropLinks()
	if err := c.copyTop(source, root); err != nil {
		return false, err
	}
	if err := fs.Sync(nil); err != nil {
		return false, err
	}
	if err := root.RemoveXattr(populatingXattr); err != nil {
		return false, err
	}
	return true, fs.Sync(nil)
}

// hostInode identifies a file on the host.
type hostInode struct{ device, inode uint64 }

// copier copies one tree of the host.
type copier struct {
	// device is the host file system of the tree. What is mounted below it is
	// not copied.
	device uint64
	// links has the copies of files with several names.
	links map[hostInode]*blobfs.Inode
}

func (c *copier) dropLinks() {
	for _, inode := range c.links {
		inode.DecRef()
	}
}

func (c *copier) copyTop(source *os.File, root *blobfs.Inode) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(source.Fd()), &st); err != nil {
		return err
	}
	c.device = st.Dev
	if err := c.copyEntries(source, root); err != nil {
		return err
	}
	xattrs, err := readXattrs(fmt.Sprintf("/proc/self/fd/%d/.", source.Fd()))
	if err != nil {
		return err
	}
	for _, x := range xattrs {
		if err := root.SetXattr(x.Name, x.Value, 0); err != nil {
			return fmt.Errorf("attribute %s: %w", x.Name, err)
		}
	}
	attr := blobfs.Attr{Mode: st.Mode & blobfs.ModePermission, UID: st.Uid, GID: st.Gid, Atime: nanos(st.Atim), Mtime: nanos(st.Mtim)}
	return root.SetAttr(blobfs.AttrMode|blobfs.AttrUID|blobfs.AttrGID|blobfs.AttrAtime|blobfs.AttrMtime, &attr)
}

// copyEntries copies what is in the directory dir. Errors name the path below
// the top.
func (c *copier) copyEntries(dir *os.File, to *blobfs.Inode) error {
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := c.copyEntry(dir, name, to); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func (c *copier) copyEntry(dir *os.File, name string, to *blobfs.Inode) error {
	var st unix.Stat_t
	if err := unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	isDir := st.Mode&unix.S_IFMT == unix.S_IFDIR
	id := hostInode{st.Dev, st.Ino}
	if first := c.links[id]; first != nil {
		return to.Link(name, first)
	}
	// /proc/self/fd keeps the path short and relative to the open directory.
	xattrs, err := readXattrs(fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), name))
	if err != nil {
		return err
	}
	inode, err := c.create(dir, name, &st, xattrs, to)
	if err != nil {
		return err
	}
	if !isDir && st.Nlink > 1 {
		c.links[id] = inode
	} else {
		defer inode.DecRef()
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		if st.Dev == c.device {
			if err := c.copyDir(dir, name, inode); err != nil {
				return err
			}
		}
	case unix.S_IFREG:
		if err := copyData(dir, name, inode); err != nil {
			return err
		}
	}
	attr := blobfs.Attr{Atime: nanos(st.Atim), Mtime: nanos(st.Mtim)}
	return inode.SetAttr(blobfs.AttrAtime|blobfs.AttrMtime, &attr)
}

func (c *copier) create(dir *os.File, name string, st *unix.Stat_t, xattrs []blobfs.Xattr, to *blobfs.Inode) (*blobfs.Inode, error) {
	n := blobfs.NewInode{Mode: st.Mode, UID: st.Uid, GID: st.Gid, Xattrs: xattrs}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		target := make([]byte, blobfs.MaxSymlinkBytes+1)
		size, err := unix.Readlinkat(int(dir.Fd()), name, target)
		if err != nil {
			return nil, err
		}
		n.Target = string(target[:size])
	case unix.S_IFCHR, unix.S_IFBLK:
		n.Rdev = st.Rdev
	}
	return to.Create(name, n)
}

func (c *copier) copyDir(parent *os.File, name string, to *blobfs.Inode) error {
	dir, err := openAt(parent, name, unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer dir.Close()
	return c.copyEntries(dir, to)
}

func openAt(dir *os.File, name string, flags int) (*os.File, error) {
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC|flags, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// copyData copies the content of a file and leaves its holes out.
func copyData(dir *os.File, name string, to *blobfs.Inode) error {
	file, err := openAt(dir, name, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	size := info.Size()
	for off := int64(0); off < size; {
		start, err := unix.Seek(int(file.Fd()), off, unix.SEEK_DATA)
		if err == unix.ENXIO { // only a hole is left
			break
		}
		if err != nil {
			return err
		}
		end, err := unix.Seek(int(file.Fd()), start, unix.SEEK_HOLE)
		if err != nil {
			return err
		}
		end = min(end, size)
		source := &fileSource{file: file, off: start}
		for start < end {
			n, err := to.WriteAt(source, start, min(end-start, copyChunkBytes), 0)
			if err != nil {
				return err
			}
			if n == 0 {
				return io.ErrUnexpectedEOF // the file has become shorter
			}
			start += n
		}
		off = end
	}
	return to.Truncate(size)
}

const copyChunkBytes = 4 << 20

// fileSource gives the bytes of a host file in order.
type fileSource struct {
	file *os.File
	off  int64
}

// CopyIn implements blobfs.Source.
func (s *fileSource) CopyIn(b []byte) (int, error) {
	n, err := s.file.ReadAt(b, s.off)
	s.off += int64(n)
	if err == io.EOF && n > 0 {
		err = nil
	}
	return n, err
}

// readXattrs returns the attributes of the file at path, which is not followed
// if it is a symbolic link. Attributes that belong to the host and not to the
// file are left out.
func readXattrs(path string) ([]blobfs.Xattr, error) {
	size, err := unix.Llistxattr(path, nil)
	if err == unix.ENOTSUP || err == nil && size == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("listing attributes: %w", err)
	}
	list := make([]byte, size)
	if size, err = unix.Llistxattr(path, list); err != nil {
		return nil, fmt.Errorf("listing attributes: %w", err)
	}
	var xattrs []blobfs.Xattr
	for name := range strings.SplitSeq(strings.TrimSuffix(string(list[:size]), "\x00"), "\x00") {
		if name == "" || name == "security.selinux" || strings.HasPrefix(name, "trusted.overlay.") || name == populatingXattr {
			continue
		}
		value, err := readXattr(path, name)
		if err != nil {
			return nil, fmt.Errorf("attribute %s: %w", name, err)
		}
		xattrs = append(xattrs, blobfs.Xattr{Name: name, Value: value})
	}
	return xattrs, nil
}

func readXattr(path, name string) ([]byte, error) {
	value := make([]byte, blobfs.MaxXattrValueBytes)
	n, err := unix.Lgetxattr(path, name, value)
	if err != nil {
		return nil, err
	}
	return value[:n:n], nil
}

func nanos(t unix.Timespec) int64 { return t.Nano() }
