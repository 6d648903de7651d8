package gofer

import (
	"bytes"
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"runsc-fs/nvme/layers"
	"runsc-fs/nvme/soft"
)

// CreateLayer makes a layer file at path, above the files in parents, of which
// the base comes first and which nobody writes to any more. The file is durable,
// but for its name. Nothing is at path if it fails.
func CreateLayer(path string, parents []string, sizeBytes int64) (err error) {
	below, err := openParents(parents)
	if err != nil {
		return err
	}
	defer closeAll(below)
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err = errors.Join(err, file.Close()); err != nil {
			os.Remove(path)
		}
	}()
	if err := layers.Create(file, below, sizeBytes); err != nil {
		return imageError(ErrImage, path, "cannot be made: %v", err)
	}
	return nil
}

// flattenChunkBytes is how much Flatten copies at a time.
const flattenChunkBytes = 1 << 20

// Flatten makes a plain image at path with what the layer at top reads as above
// its parents. The file is durable, but for its name. Nothing is at path if it
// fails.
func Flatten(path, top string, parents []string) (err error) {
	from, err := openImage(top, readOnly, remediesOfPath(top))
	if err != nil {
		return err
	}
	defer from.Close()
	if err := lockImage(from, top); err != nil {
		return err
	}
	below, err := openParents(parents)
	if err != nil {
		return err
	}
	defer closeAll(below)
	medium, err := openMedium(append(below, from), top, true)
	if err != nil {
		return err
	}
	defer medium.Close()
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err = errors.Join(err, file.Close()); err != nil {
			os.Remove(path)
		}
	}()
	if err := copyMedium(file, medium); err != nil {
		return imageError(ErrImage, path, "cannot be made: %v", err)
	}
	return nil
}

// copyMedium copies all of a medium to an empty file, durably, and leaves holes
// where it holds zeroes.
func copyMedium(to *os.File, medium soft.Backing) error {
	sizeBytes := medium.Properties().SizeBytes
	if err := to.Truncate(sizeBytes); err != nil {
		return err
	}
	buf := make([]byte, flattenChunkBytes)
	zeroes := make([]byte, layers.BlockBytes)
	for off := int64(0); off < sizeBytes; off += int64(len(buf)) {
		buf = buf[:min(int64(len(buf)), sizeBytes-off)]
		if err := medium.ReadV([][]byte{buf}, off); err != nil {
			return err
		}
		for at := 0; at < len(buf); at += len(zeroes) {
			block := buf[at:min(at+len(zeroes), len(buf))]
			if bytes.Equal(block, zeroes[:len(block)]) {
				continue
			}
			if _, err := to.WriteAt(block, off+int64(at)); err != nil {
				return err
			}
		}
	}
	return to.Sync()
}

// lostParent is what to do about a snapshot whose file is gone.
const lostParent = "put a copy of it back, with its times: volumes lie above it"

// openParents opens files that are only read, and keeps those off them that
// would write.
func openParents(paths []string) (_ []*os.File, err error) {
	var files []*os.File
	defer func() {
		if err != nil {
			closeAll(files)
		}
	}()
	for _, path := range paths {
		file, err := openImage(path, readOnly, remedies{missing: lostParent, unfit: lostParent})
		if err != nil {
			return nil, err
		}
		files = append(files, file)
		if err := shareImage(file, path); err != nil {
			return nil, err
		}
	}
	return files, nil
}

// shareImage takes a shared lock: whoever writes to an image has it for himself.
func shareImage(file *os.File, path string) error {
	for {
		switch err := unix.Flock(int(file.Fd()), unix.LOCK_SH|unix.LOCK_NB); err {
		case nil:
			return nil
		case unix.EINTR:
		case unix.EWOULDBLOCK:
			return imageError(ErrInUse, path, "is in use by another process")
		default:
			return imageError(ErrImage, path, "cannot be locked: %v", err)
		}
	}
}

// openMedium serves the files of an image volume, base first, through
// descriptors of its own.
func openMedium(files []*os.File, path string, readOnly bool) (soft.Backing, error) {
	own, err := dupAll(files)
	if err != nil {
		return nil, err
	}
	medium, err := layers.Open(own, readOnly)
	if err != nil {
		closeAll(own)
		return nil, imageError(ErrImage, path, "cannot be used: %v", err)
	}
	return medium, nil
}

// refuseLayer keeps what works on whole images off layers.
func refuseLayer(file *os.File, path string) error {
	if layers.IsLayer(file) {
		return imageError(ErrImage, path, "is a layer of a volume and no image by itself; name the volume")
	}
	return nil
}

// mediumReader reads a medium as if it were a file.
type mediumReader struct{ medium soft.Backing }

// ReadAt implements io.ReaderAt.
func (r mediumReader) ReadAt(b []byte, off int64) (int, error) {
	if err := r.medium.ReadV([][]byte{b}, off); err != nil {
		return 0, err
	}
	return len(b), nil
}

func dupAll(files []*os.File) ([]*os.File, error) {
	own := make([]*os.File, 0, len(files))
	for _, file := range files {
		fd, err := unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			closeAll(own)
			return nil, err
		}
		own = append(own, os.NewFile(uintptr(fd), file.Name()))
	}
	return own, nil
}

func closeAll(files []*os.File) {
	for _, file := range files {
		file.Close()
	}
}
