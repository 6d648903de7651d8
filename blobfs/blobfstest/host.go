package blobfstest

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"runsc-fs/blobfs"
)

// errnos is what errors of blobfs mean at the system call.
var errnos = []struct {
	err   error
	errno unix.Errno
}{
	{blobfs.ErrNotExist, unix.ENOENT}, {blobfs.ErrExist, unix.EEXIST}, {blobfs.ErrNotDir, unix.ENOTDIR}, {blobfs.ErrIsDir, unix.EISDIR},
	{blobfs.ErrNotEmpty, unix.ENOTEMPTY}, {blobfs.ErrNameTooLong, unix.ENAMETOOLONG}, {blobfs.ErrLoop, unix.EINVAL},
	{blobfs.ErrNotPermitted, unix.EPERM}, {blobfs.ErrNoXattr, unix.ENODATA}, {blobfs.ErrXattrTooBig, unix.E2BIG},
	{blobfs.ErrInvalid, unix.EINVAL}, {blobfs.ErrFileTooBig, unix.EFBIG}, {blobfs.ErrNoData, unix.ENXIO},
}

func errnoOf(err error) unix.Errno {
	for _, e := range errnos {
		if errors.Is(err, e.err) {
			return e.errno
		}
	}
	return unix.EIO
}

// host carries the same operations out on a directory of the machine's kernel,
// below which nodes are known by descriptors, so that removed ones can be used.
type host struct {
	fds map[*Node]int
}

func newHost(dir string, root *Node) (*host, error) {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	return &host{fds: map[*Node]int{root: fd}}, nil
}

func (h *host) close() {
	for _, fd := range h.fds {
		unix.Close(fd)
	}
	clear(h.fds)
}

func (h *host) forget(n *Node) {
	if fd, ok := h.fds[n]; ok && n.removed() {
		unix.Close(fd)
		delete(h.fds, n)
	}
}

// path is one of the node itself, whatever became of its name.
func (h *host) path(n *Node) string { return fmt.Sprintf("/proc/self/fd/%d", h.fds[n]) }

// open makes a descriptor that reads and writes.
func (h *host) with(n *Node, fn func(fd int) error) error {
	fd, err := unix.Open(h.path(n), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return fn(fd)
}

// adopt learns the descriptor of a node that was made.
func (h *host) adopt(dir *Node, name string, n *Node) error {
	fd, err := unix.Openat(h.fds[dir], name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	h.fds[n] = fd
	return err
}

func (h *host) create(dir *Node, name string, n *Node) error {
	at, perm := h.fds[dir], n.Mode&0o777
	var err error
	switch n.typ() {
	case blobfs.ModeRegular:
		var fd int
		if fd, err = unix.Openat(at, name, unix.O_CREAT|unix.O_EXCL|unix.O_RDWR|unix.O_CLOEXEC, perm); err == nil {
			unix.Close(fd)
		}
	case blobfs.ModeDir:
		err = unix.Mkdirat(at, name, perm)
	case blobfs.ModeSymlink:
		err = unix.Symlinkat(n.Target, at, name)
	default: // devices need rights, and have the errors of all others
		err = unix.Mknodat(at, name, unix.S_IFIFO|perm, 0)
	}
	if err != nil {
		return err
	}
	return h.adopt(dir, name, n)
}

func (h *host) tmpfile(dir, n *Node) error {
	at := h.path(dir)
	fd, err := unix.Open(at, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, n.Mode&0o777)
	if err == nil {
		h.fds[n] = fd
	}
	return err
}

func (h *host) link(dir *Node, name string, n *Node) error {
	return unix.Linkat(unix.AT_FDCWD, h.path(n), h.fds[dir], name, unix.AT_SYMLINK_FOLLOW)
}

func (h *host) remove(dir *Node, name string, rmdir bool) error {
	flags := 0
	if rmdir {
		flags = unix.AT_REMOVEDIR
	}
	return unix.Unlinkat(h.fds[dir], name, flags)
}

func (h *host) rename(oldDir *Node, oldName string, newDir *Node, newName string, flags blobfs.RenameFlags) error {
	return unix.Renameat2(h.fds[oldDir], oldName, h.fds[newDir], newName, uint(flags))
}

func (h *host) write(n *Node, off int64, b []byte) error {
	return h.with(n, func(fd int) error {
		_, err := unix.Pwrite(fd, b, off)
		return err
	})
}

func (h *host) truncate(n *Node, size int64) error { return unix.Truncate(h.path(n), size) }

func (h *host) fallocate(n *Node, mode blobfs.FallocateMode, off, count int64) error {
	mode &^= blobfs.FallocUnshare // nothing is shared there
	return h.with(n, func(fd int) error {
		if mode&blobfs.FallocZeroRange == 0 {
			return unix.Fallocate(fd, uint32(mode), off, count)
		}
		// tmpfs has no such mode: what it means, in two steps.
		if err := unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, count); err != nil {
			return err
		}
		return unix.Fallocate(fd, uint32(mode&blobfs.FallocKeepSize), off, count)
	})
}

// xattr sets or removes an attribute. Values are short here unless they are too
// long for all: tmpfs has less room for them.
func (h *host) xattr(n *Node, name string, value []byte, flags blobfs.XattrFlags, remove bool) error {
	if remove {
		return unix.Removexattr(h.path(n), name)
	}
	if len(value) <= blobfs.MaxXattrValueBytes {
		value = value[:min(len(value), 50)]
	}
	return unix.Setxattr(h.path(n), name, value, int(flags))
}

// mirror carries an operation out on the host, too, and compares its errno with
// what blobfs said.
func (r *Runner) mirror(got error, do func(h *host) error) error {
	if r.host == nil {
		return nil
	}
	r.mirrored++
	err := do(r.host)
	var errno unix.Errno
	if err != nil && !errors.As(err, &errno) {
		return fmt.Errorf("on the host: %w", err)
	}
	switch {
	case got == nil && err == nil:
		return nil
	case got == nil:
		return fmt.Errorf("succeeded, and on the host gave %w", err)
	case err == nil:
		return fmt.Errorf("gave %v, and succeeded on the host", got)
	case errnoOf(got) != errno:
		return fmt.Errorf("gave %v (%w), and on the host %w", got, errnoOf(got), errno)
	}
	return nil
}

// compareHost compares a node's size, links and content with the host's.
func (r *Runner) compareHost(n *Node) error {
	if r.host == nil {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(r.host.fds[n], &st); err != nil {
		return fmt.Errorf("on the host: %w", err)
	}
	if !n.isDir() && uint64(st.Nlink) != uint64(n.Nlink) {
		return fmt.Errorf("on the host it has %d links, in the model %d", st.Nlink, n.Nlink)
	}
	if !n.isFile() {
		return nil
	}
	if st.Size != int64(len(n.Data)) {
		return fmt.Errorf("on the host it has %d bytes, in the model %d", st.Size, len(n.Data))
	}
	return r.host.with(n, func(fd int) error {
		b := make([]byte, len(n.Data))
		if _, err := unix.Pread(fd, b, 0); err != nil {
			return err
		}
		if err := sameBytes(0, b, n.Data); err != nil {
			return fmt.Errorf("on the host, %w", err)
		}
		return nil
	})
}

// mirrorXattr is mirror for attributes of files and directories: others have
// none on the host.
func (r *Runner) mirrorXattr(n *Node, got error, name string, value []byte, flags blobfs.XattrFlags, remove bool) error {
	if !n.isFile() && !n.isDir() {
		return nil
	}
	return r.mirror(got, func(h *host) error { return h.xattr(n, name, value, flags, remove) })
}
