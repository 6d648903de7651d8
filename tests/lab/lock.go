package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// lockTimeout allows another program to build a root file system meanwhile.
const lockTimeout = 15 * time.Minute

// withCacheLock runs fn while no other program installs packages or builds root
// file systems through this package.
func withCacheLock(ctx context.Context, logf Logf, fn func(cache string) error) error {
	cache, err := CacheDir()
	if err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(cache, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return err
	}
	defer f.Close() // frees the lock
	told := false
	err = WaitFor(ctx, "the lock "+f.Name(), lockTimeout, func() (bool, error) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if errors.Is(err, unix.EWOULDBLOCK) {
			if !told {
				told = true
				logf("waiting for another program that prepares the machine")
			}
			return false, nil
		}
		return err == nil, err
	})
	if err != nil {
		return fmt.Errorf("cannot lock the cache: %w", err)
	}
	return fn(cache)
}
