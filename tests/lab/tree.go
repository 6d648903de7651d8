package lab

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
)

// BinaryEnv names another runtime binary than bin/runsc-fs to test.
const BinaryEnv = "RUNSC_FS_BINARY"

// TreeRoot is the top directory of the source tree that the caller runs in: the
// nearest one upwards that has a go.mod.
func TreeRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for d := dir; ; d = filepath.Dir(d) {
		if _, err := os.Stat(filepath.Join(d, "go.mod")); err == nil {
			return d, nil
		}
		if d == filepath.Dir(d) {
			return "", fmt.Errorf("no go.mod in %s or above it: run this inside the source tree", dir)
		}
	}
}

// Binary is the runtime under test.
func Binary() (string, error) {
	path := os.Getenv(BinaryEnv)
	if path == "" {
		root, err := TreeRoot()
		if err != nil {
			return "", err
		}
		path = filepath.Join(root, "bin", "runsc-fs")
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("%s does not exist: run make build first", path)
	} else if err != nil {
		return "", err
	}
	return path, nil
}

// CacheEnv names another cache directory.
const CacheEnv = "RUNSC_FS_TEST_CACHE"

// CacheDir is the directory, outside the tree, for root file systems and for
// the files of running labs. It is created, and must be on a disk file system:
// overlayfs on it carries the containers.
func CacheDir() (string, error) {
	dir := os.Getenv(CacheEnv)
	if dir == "" && os.Geteuid() == 0 {
		dir = "/var/cache/runsc-fs-tests"
	}
	if dir == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return "", err
		}
		dir = filepath.Join(user, "runsc-fs-tests")
	}
	return dir, os.MkdirAll(dir, 0o755)
}

// NewDir makes a fresh directory for one lab below the cache directory, and removes
// those of the same prefix whose makers have ended: a failed run's logs stay until
// the next run.
func NewDir(prefix string) (string, error) {
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	old, _ := filepath.Glob(filepath.Join(cache, prefix+"-*"))
	for _, dir := range old {
		maker, err := os.ReadFile(filepath.Join(dir, "maker"))
		if err == nil {
			_, err = os.Stat("/proc/" + string(maker))
		}
		if errors.Is(err, os.ErrNotExist) {
			os.RemoveAll(dir)
		}
	}
	dir, err := os.MkdirTemp(cache, prefix+"-")
	if err != nil {
		return "", err
	}
	return dir, os.WriteFile(filepath.Join(dir, "maker"), []byte(strconv.Itoa(os.Getpid())), 0o644)
}
