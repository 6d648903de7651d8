package lab

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// unpackRecipe changes when UnpackPackages unpacks differently.
const unpackRecipe = "1"

const kernelPrefix = "linux-image-"

// UnpackPackages returns a directory of the cache with the files of Debian packages,
// which are downloaded but not installed. A kernel package that has no files of its
// own but stands for the current version, such as linux-image-amd64, is replaced by
// the one it depends on. Nobody may change what is in the directory.
func UnpackPackages(ctx context.Context, logf Logf, name string, packages ...string) (string, error) {
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	hash := sha256.Sum256([]byte(strings.Join(append([]string{unpackRecipe, debianSuite(), runtime.GOARCH}, packages...), "\n")))
	dir := filepath.Join(cache, "packages-"+name+"-"+hex.EncodeToString(hash[:])[:16])
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	err = withCacheLock(ctx, logf, func(string) error {
		if _, err := os.Stat(dir); err == nil {
			return nil
		}
		return unpackPackages(ctx, logf, dir, packages)
	})
	return dir, err
}

// unpackPackages must be called with the cache locked.
func unpackPackages(ctx context.Context, logf Logf, dir string, packages []string) error {
	part := dir + ".part"
	if err := os.RemoveAll(part); err != nil {
		return err
	}
	defer os.RemoveAll(part)
	files := filepath.Join(part, "files")
	if err := os.MkdirAll(files, 0o755); err != nil {
		return err
	}
	names, err := currentPackages(ctx, packages)
	if err != nil {
		logf("apt-get update")
		if err := apt(ctx, logf, "update", "-q"); err != nil {
			return fmt.Errorf("apt-get update failed; is a package mirror reachable? %w", err)
		}
		if names, err = currentPackages(ctx, packages); err != nil {
			return err
		}
	}
	logf("downloading %s", strings.Join(names, " "))
	_, err = Run(ctx, Cmd{Argv: append([]string{"apt-get", "download", "-q"}, names...), Dir: part, Timeout: 10 * time.Minute})
	if err != nil {
		return fmt.Errorf("cannot download packages; is a package mirror reachable? %w", err)
	}
	archives, err := filepath.Glob(filepath.Join(part, "*.deb"))
	if err != nil {
		return err
	}
	if len(archives) != len(names) {
		return fmt.Errorf("apt-get downloaded %d packages of %d: %v", len(archives), len(names), archives)
	}
	for _, archive := range archives {
		if _, err := Run(ctx, Cmd{Argv: []string{"dpkg-deb", "-x", archive, files}}); err != nil {
			return err
		}
	}
	return os.Rename(files, dir)
}

// currentPackages replaces kernel packages that only stand for the current version.
func currentPackages(ctx context.Context, packages []string) ([]string, error) {
	var names []string
	for _, p := range packages {
		r, err := Run(ctx, Cmd{Argv: []string{"apt-cache", "depends", "--important", p}})
		if err != nil {
			return nil, fmt.Errorf("apt does not know the package %s: %w", p, err)
		}
		current := p
		for line := range strings.Lines(r.Stdout) {
			_, dependency, _ := strings.Cut(line, "Depends: ")
			if strings.HasPrefix(p, kernelPrefix) && strings.HasPrefix(dependency, kernelPrefix) {
				current = strings.TrimSpace(dependency)
			}
		}
		names = append(names, current)
	}
	return names, nil
}
