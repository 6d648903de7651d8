package registry

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// flock calls flock(2) and repeats it when a signal interrupts it.
func flock(file *os.File, how int) error {
	for {
		if err := unix.Flock(int(file.Fd()), how); err != unix.EINTR {
			return err
		}
	}
}

// retryUntil calls try until it returns something else than EWOULDBLOCK or the deadline passes.
func retryUntil(deadline time.Time, try func() error) error {
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		err := try()
		if err != unix.EWOULDBLOCK || time.Now().After(deadline) {
			return err
		}
		time.Sleep(pause)
	}
}

// lock makes the root directory if need be and takes the registry for changing it. The result unlocks it.
func (r *Registry) lock() (unlock func(), err error) {
	if err := os.MkdirAll(r.volumesPath(), 0o700); err != nil {
		return nil, r.rootError(err)
	}
	path := filepath.Join(r.opts.Root, "registry.lock")
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, r.rootError(err)
	}
	err = retryUntil(time.Now().Add(r.opts.LockTimeout), func() error {
		return flock(file, unix.LOCK_EX|unix.LOCK_NB)
	})
	if err != nil {
		file.Close()
		if err == unix.EWOULDBLOCK {
			return nil, failf(ErrBusy, "another process has been changing the volumes in %s for %v; try again when it is done", r.opts.Root, r.opts.LockTimeout)
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return func() { file.Close() }, nil
}

// rootError says that the registry's directory cannot be used, and what to do.
func (r *Registry) rootError(err error) error {
	remedy := "choose another directory with --volume-root or " + RootEnv
	switch {
	case errors.Is(err, fs.ErrPermission):
		remedy = "run this as root, or " + remedy
	case isFull(err):
		remedy = "free some space, or " + remedy
	}
	return failf(err, "volume root %s cannot be used: %v; %s", r.opts.Root, reason(err), remedy)
}

// clearLeftoversLocked removes what a crash left of volumes and layers in transit. The registry must be locked:
// then nobody else is moving one.
func (r *Registry) clearLeftoversLocked() error {
	leftovers, err := filepath.Glob(filepath.Join(r.volumesPath(), tempPrefix+"*"))
	if err != nil {
		return err
	}
	for _, path := range leftovers {
		if err := os.RemoveAll(path); err != nil {
			return fmt.Errorf("clear %s, left by a crash: %w", path, err)
		}
	}
	volumes, _ := r.List() // what cannot be read stays as it is
	for _, v := range volumes {
		if err := v.clearLocked(); err != nil {
			return err
		}
	}
	return r.settleLocked()
}

// writeFileAtomic replaces path by data durably: a crash leaves the old or the new content.
func writeFileAtomic(path string, data []byte, mode fs.FileMode) (err error) {
	file, err := os.CreateTemp(filepath.Dir(path), ".tmp-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.Remove(file.Name())
		}
	}()
	_, err = file.Write(data)
	err = errors.Join(err, file.Chmod(mode), file.Sync(), file.Close())
	if err != nil {
		return err
	}
	if err := os.Rename(file.Name(), path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

func syncDir(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

func syncFile(path string) error {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return errors.Join(file.Sync(), file.Close())
}

// makeSparse creates a file of the given size that takes no space yet. It must not exist.
func makeSparse(path string, sizeBytes int64) error {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	err = file.Truncate(sizeBytes)
	if errors.Is(err, unix.EFBIG) {
		err = failf(ErrInvalidSize, "the file system of %s allows no file of %s; use a smaller size", filepath.Dir(path), FormatSize(sizeBytes))
	}
	if err := errors.Join(err, file.Close()); err != nil {
		os.Remove(path)
		return err
	}
	return nil
}
