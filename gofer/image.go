package gofer

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"runsc-fs/blobfs/format"
	"runsc-fs/nvme"
)

// classError is a one-line error that belongs to a class.
type classError struct {
	class error
	text  string
}

func (e *classError) Error() string { return e.text }
func (e *classError) Unwrap() error { return e.class }

func imageError(class error, path, text string, args ...any) error {
	return &classError{class: class, text: "image " + path + " " + fmt.Sprintf(text, args...)}
}

// remedies say what to do about an image that cannot be opened: it depends on
// who named it, a volume or the user.
type remedies struct{ missing, unfit string }

func remediesOfVolume(name string) remedies {
	text := fmt.Sprintf("put a copy of it back, or give the volume up with 'runsc-fs volume rm %s'", name)
	return remedies{missing: text, unfit: text}
}

func remediesOfPath(path string) remedies {
	return remedies{
		missing: fmt.Sprintf("correct the path, or make an image there with 'runsc-fs mkfs %s --size 10G'", path),
		unfit:   "name an image file that 'runsc-fs mkfs' or 'runsc-fs volume create' has made",
	}
}

// access says what an image is opened for.
type access int

const (
	readWrite access = iota
	readOnly
)

// openImage opens a regular file.
func openImage(path string, mode access, todo remedies) (*os.File, error) {
	// O_NONBLOCK keeps a FIFO from blocking; it means nothing to a file.
	flags := unix.O_CLOEXEC | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_RDWR
	if mode == readOnly {
		flags = flags&^unix.O_RDWR | unix.O_RDONLY
	}
	// A device is looked at before it is opened, which alone may set it in motion.
	if info, err := os.Lstat(path); err == nil && !info.Mode().IsRegular() {
		return nil, imageError(ErrImage, path, "is %s, not a regular file; %s", kindOf(info.Mode()), todo.unfit)
	}
	fd, err := unix.Open(path, flags, 0)
	switch err {
	case nil:
	case unix.ENOENT, unix.ENOTDIR:
		return nil, imageError(ErrImage, path, "is missing; %s", todo.missing)
	case unix.EROFS:
		return nil, imageError(errors.Join(ErrImage, err), path, "cannot be written: its file system is read-only; mount the volume with the option 'ro', or make the file system writable")
	case unix.EACCES, unix.EPERM:
		return nil, imageError(ErrImage, path, "cannot be opened: %v; run this as root, and look at the file's mode and attributes", err)
	case unix.ETXTBSY:
		return nil, imageError(ErrImage, path, "is a program that runs; %s", todo.unfit)
	default:
		return nil, imageError(ErrImage, path, "cannot be opened: %v; %s", err, todo.unfit)
	}
	file := os.NewFile(uintptr(fd), path)
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() { // it was replaced since the first look
		err = imageError(ErrImage, path, "is %s, not a regular file; %s", kindOf(info.Mode()), todo.unfit)
	}
	if err == nil {
		err = unix.SetNonblock(fd, false)
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// kindOf names what is no regular file.
func kindOf(mode fs.FileMode) string {
	switch {
	case mode.IsDir():
		return "a directory"
	case mode&fs.ModeSymlink != 0:
		return "a symbolic link"
	case mode&fs.ModeCharDevice != 0:
		return "a character device"
	case mode&fs.ModeDevice != 0:
		return "a block device"
	}
	return "a pipe or socket"
}

// lockRetry is how long a taker of an image's lock tries again: the kernel
// needs a moment to take a sandbox apart that was killed.
const lockRetry = 2 * time.Second

// lockImage takes the exclusive lock of an open image.
func lockImage(file *os.File, path string) error {
	deadline := time.Now().Add(lockRetry)
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		switch err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
		case err == nil:
			return nil
		case err == unix.EINTR:
			continue
		case err != unix.EWOULDBLOCK:
			return imageError(ErrImage, path, "cannot be locked: %v; keep it on a file system with locks", err)
		case time.Now().After(deadline):
			return imageError(ErrInUse, path, "is in use by another process")
		}
		time.Sleep(pause)
	}
}

// Probe tells whether the file at path is an image that can be mounted. It
// does not change it.
func Probe(path string) error {
	file, err := openImage(path, readOnly, remediesOfPath(path))
	if err != nil {
		return err
	}
	defer file.Close()
	if err := refuseLayer(file, path); err != nil {
		return err
	}
	info, err := file.Stat()
	if err != nil {
		return imageError(ErrImage, path, "%v", err)
	}
	return probe(file, path, info.Size())
}

// probe reads the superblocks, which tells a blobfs of this version from
// anything else. The structures below them are checked as they are used.
func probe(file io.ReaderAt, path string, sizeBytes int64) error {
	if sizeBytes < format.MinBlocks*format.BlockSizeBytes {
		return tooSmall(path)
	}
	var slots [format.SuperblockSlots][]byte
	for i := range slots {
		block := make([]byte, format.BlockSizeBytes)
		if _, err := file.ReadAt(block, format.SuperblockAddr(i).OffsetBytes()); err == nil {
			slots[i] = block
		}
	}
	_, _, err := format.BestSuperblock(slots, uint64(sizeBytes)/format.BlockSizeBytes)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, format.ErrNotBlobfs):
		return imageError(errors.Join(ErrImage, format.ErrNotBlobfs), path,
			"holds no blobfs; 'runsc-fs mkfs --force %s' makes one and destroys what is there", path)
	case errors.Is(err, format.ErrVersion), errors.Is(err, format.ErrFeature):
		return tooNew(path, err)
	}
	return imageError(ErrImage, path, "cannot be mounted: %v; 'runsc-fs fsck %s' shows more", err, path)
}

func tooSmall(path string) error {
	return imageError(ErrImage, path, "is too small to hold a blobfs; %s", remediesOfPath(path).unfit)
}

func tooNew(path string, err error) error {
	return imageError(errors.Join(ErrImage, err), path, "cannot be used: %v; use a newer runsc-fs", err)
}

// isFull tells whether the host had no room for what was written to an image.
func isFull(err error) bool {
	return errors.Is(err, nvme.ErrNoSpace) || errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
}
