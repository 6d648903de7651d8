package dockercfg

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// attributes returns mode and owner of the file at path, and those of a new configuration file if there is none.
func attributes(path string) (mode fs.FileMode, uid, gid int, err error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return 0o644, os.Geteuid(), os.Getegid(), nil
	}
	if err != nil {
		return 0, 0, 0, err
	}
	owner := info.Sys().(*syscall.Stat_t)
	return info.Mode().Perm(), int(owner.Uid), int(owner.Gid), nil
}

// sameProgram tells whether two paths name installations of one program.
func sameProgram(a, b string) bool { return filepath.Base(a) == filepath.Base(b) }
