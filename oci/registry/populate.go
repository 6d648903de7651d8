package registry

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// populatedNote stands in the mountpoint of a volume that has taken over its first content. Docker then
// finds the directory not empty and copies nothing into it any more, and whoever looks at the volume
// without the blobfs runtime learns why the data is not there.
const populatedNote = `The data of volume %[1]s is not in this directory.
It lies in the volume itself and is seen by containers that run with the blobfs runtime:
    docker run --runtime=blobfs -v %[1]s:/path ...
A container with another runtime sees this file instead, and what it writes here stays out of the volume.
`

const populatedNoteName = "README.blobfs"

// MarkPopulated records that the volume holds, durably, what PopulateFrom named. The mountpoint becomes
// a directory that says so; what lay in it is kept on the host beside it, as copied-in, until the volume is
// removed. It does nothing for a volume that is marked already, and for a memory volume, which is empty
// again in every sandbox. The caller holds the volume (Acquire).
func (r *Registry) MarkPopulated(name string) error {
	unlock, err := r.lock()
	if err != nil {
		return err
	}
	defer unlock()
	volume, err := r.Get(name)
	if err != nil {
		return err
	}
	if volume.Kind() == KindMemory || volume.spec.Populated {
		return nil
	}
	if err := volume.markPopulatedLocked(); err != nil {
		return fmt.Errorf("volume %q: %w", name, err)
	}
	return nil
}

// markPopulatedLocked goes through three states, each of which the next call recognises after a crash:
// the note is being made beside the mountpoint; the two are exchanged; what was the mountpoint has its
// lasting name. The mark comes last.
func (v *Volume) markPopulatedLocked() error {
	aside := filepath.Join(v.dir, tempPrefix+mountpointDir)
	exchanged, err := exists(filepath.Join(v.Mountpoint(), populatedNoteName))
	if err != nil {
		return err
	}
	if !exchanged {
		if err := v.exchangeMountpoint(aside); err != nil {
			return err
		}
	}
	if err := os.Rename(aside, filepath.Join(v.dir, copiedInDir)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	spec := v.spec
	spec.Populated = true
	return writeSpec(v.dir, &spec) // syncs the directory that the renames changed, too
}

func (v *Volume) exchangeMountpoint(aside string) error {
	if err := os.RemoveAll(aside); err != nil {
		return err
	}
	if err := os.Mkdir(aside, 0o755); err != nil {
		return err
	}
	if err := os.Chmod(aside, 0o755); err != nil { // whatever the umask is
		return err
	}
	note := fmt.Sprintf(populatedNote, v.Name())
	if err := writeFileAtomic(filepath.Join(aside, populatedNoteName), []byte(note), 0o644); err != nil {
		return err
	}
	if err := unix.Renameat2(unix.AT_FDCWD, aside, unix.AT_FDCWD, v.Mountpoint(), unix.RENAME_EXCHANGE); err != nil {
		return fmt.Errorf("exchange %s: %w", v.Mountpoint(), err)
	}
	return nil
}

func exists(path string) (bool, error) {
	_, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// Strays lists what lies in the mountpoint of a populated volume although nothing of it is in the
// volume: a container with another runtime wrote it there. At most a few names, for a warning.
func (v *Volume) Strays() ([]string, error) {
	if !v.spec.Populated {
		return nil, nil
	}
	dir, err := os.Open(v.Mountpoint())
	if err != nil {
		return nil, fmt.Errorf("volume %q: %w", v.Name(), err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(8)
	if err != nil && err != io.EOF {
		return nil, fmt.Errorf("volume %q: %w", v.Name(), err)
	}
	var strays []string
	for _, name := range names {
		if name != populatedNoteName && !strings.HasPrefix(name, tempPrefix) {
			strays = append(strays, name)
		}
	}
	return strays, nil
}
