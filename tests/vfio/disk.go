package vfio

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"

	"runsc-fs/tests/lab"
)

// makeDisk writes an ext4 image with the contents of a directory and little room beside.
func makeDisk(ctx context.Context, image, dir string) error {
	var sizeBytes int64
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if info.Mode().IsRegular() {
			sizeBytes += info.Size()
		}
		sizeBytes += 4096 // its inode and the end of its last block
		return nil
	})
	if err != nil {
		return err
	}
	sizeMiB := sizeBytes>>20 + sizeBytes>>24 + 8
	_, err = lab.Run(ctx, lab.Cmd{Argv: []string{
		"mke2fs", "-q", "-F", "-t", "ext4", "-O", "^has_journal", "-E", "root_owner=0:0", "-m", "0", "-d", dir, image, fmt.Sprintf("%dM", sizeMiB),
	}})
	return err
}

// makeProgramDisk writes the disk with a Spec's programs and scripts.
func (s *Spec) makeProgramDisk(ctx context.Context, dir, marker string) (string, error) {
	tree := filepath.Join(dir, "disk")
	defer os.RemoveAll(tree)
	bin := filepath.Join(tree, "bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return "", err
	}
	for name, program := range s.Programs {
		b, err := os.ReadFile(program)
		if err != nil {
			return "", err
		}
		if err := os.WriteFile(filepath.Join(bin, name), b, 0o755); err != nil {
			return "", err
		}
	}
	files := map[string][]byte{"script": []byte(s.Script), "lib.sh": []byte(scriptLibrary), "marker": []byte(marker)}
	maps.Copy(files, s.Files)
	for name, data := range files {
		path := filepath.Join(tree, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return "", err
		}
		if err := os.WriteFile(path, data, 0o644); err != nil {
			return "", err
		}
	}
	image := filepath.Join(dir, "disk.img")
	return image, makeDisk(ctx, image, tree)
}

// Prepare downloads and makes beforehand what all guests share.
func Prepare(ctx context.Context, logf lab.Logf) error {
	_, errKernel := StockKernel(ctx, logf)
	_, errBusybox := lab.UnpackPackages(ctx, logf, "busybox", busyboxPackage)
	_, errBase := baseDisk(ctx, logf)
	return errors.Join(errKernel, errBusybox, errBase)
}

// baseDisk returns the image of the tests' root file system, which is made once.
func baseDisk(ctx context.Context, logf lab.Logf) (string, error) {
	rootfs, err := lab.RootFS(ctx, logf, lab.BaseRootFS)
	if err != nil {
		return "", err
	}
	image := rootfs + ".ext4"
	if _, err := os.Stat(image); err == nil {
		return image, nil
	}
	logf("making a disk of %s", filepath.Base(rootfs))
	part, err := os.CreateTemp(filepath.Dir(image), "disk-*.part")
	if err != nil {
		return "", err
	}
	defer os.Remove(part.Name())
	if err := errors.Join(part.Close(), makeDisk(ctx, part.Name(), rootfs)); err != nil {
		return "", err
	}
	return image, os.Rename(part.Name(), image)
}
