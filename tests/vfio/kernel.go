package vfio

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"runsc-fs/tests/lab"
)

// stockPackage is Debian's kernel for virtual machines: small, and NVMe and ext4 are built in.
const stockPackage = "linux-image-cloud-amd64"

// busyboxPackage has everything that the guest's scripts use.
const busyboxPackage = "busybox-static"

// Kernel is an unpacked kernel.
type Kernel struct {
	image   string            // for QEMU's -kernel
	modules map[string]string // file by name of the module
	builtin map[string]bool   // modules that need no loading
}

// StockKernel returns Debian's kernel. It has VFIO groups, and neither iommufd nor the
// mode without an IOMMU.
func StockKernel(ctx context.Context, logf lab.Logf) (*Kernel, error) {
	dir, err := lab.UnpackPackages(ctx, logf, "kernel", stockPackage)
	if err != nil {
		return nil, err
	}
	return openKernel(dir)
}

// openKernel finds the kernel and its modules in an unpacked package.
func openKernel(dir string) (*Kernel, error) {
	k := &Kernel{modules: map[string]string{}, builtin: map[string]bool{}}
	images, err := filepath.Glob(filepath.Join(dir, "boot", "vmlinuz-*"))
	if err != nil {
		return nil, err
	}
	if len(images) != 1 {
		return nil, fmt.Errorf("%s has %d kernels, not one", dir, len(images))
	}
	k.image = images[0]
	release := strings.TrimPrefix(filepath.Base(k.image), "vmlinuz-")
	tree := filepath.Join(dir, "lib", "modules", release)
	list, err := os.ReadFile(filepath.Join(tree, "modules.builtin"))
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(list)) {
		k.builtin[moduleName(line)] = true
	}
	err = filepath.WalkDir(filepath.Join(tree, "kernel"), func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // everything is built in
		}
		if err == nil && strings.Contains(d.Name(), ".ko") {
			k.modules[moduleName(path)] = path
		}
		return err
	})
	return k, err
}

// moduleName is the name of the module in a file, as its dependents write it.
func moduleName(file string) string {
	name, _, _ := strings.Cut(filepath.Base(strings.TrimSpace(file)), ".ko")
	return strings.ReplaceAll(name, "-", "_")
}

// module is a module that is ready to be loaded.
type module struct {
	name string
	data []byte
}

// load gives the wanted modules and those that they depend on, dependencies first.
func (k *Kernel) load(wanted []string) ([]module, error) {
	var order []module
	seen := map[string]bool{}
	var visit func(name string) error
	visit = func(name string) error {
		name = moduleName(name)
		if seen[name] || k.builtin[name] {
			return nil
		}
		seen[name] = true
		file, ok := k.modules[name]
		if !ok {
			return fmt.Errorf("the guest's kernel %s has no module %s", filepath.Base(k.image), name)
		}
		data, err := readModule(file)
		if err != nil {
			return fmt.Errorf("module %s: %w", name, err)
		}
		depends, err := dependencies(data)
		if err != nil {
			return fmt.Errorf("module %s: %w", name, err)
		}
		for _, d := range depends {
			if err := visit(d); err != nil {
				return fmt.Errorf("module %s: %w", name, err)
			}
		}
		order = append(order, module{name, data})
		return nil
	}
	for _, name := range wanted {
		if err := visit(name); err != nil {
			return nil, err
		}
	}
	return order, nil
}

// readModule reads a module, which may be compressed.
func readModule(file string) ([]byte, error) {
	if filepath.Ext(file) != ".xz" {
		return os.ReadFile(file)
	}
	data, err := exec.Command("xz", "-dc", file).Output()
	if err != nil {
		return nil, fmt.Errorf("unpacking %s: %w", file, err)
	}
	return data, nil
}

// dependencies reads the names of the modules that must be loaded before one.
func dependencies(data []byte) ([]string, error) {
	file, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	section := file.Section(".modinfo")
	if section == nil {
		return nil, errors.New("no section .modinfo")
	}
	info, err := section.Data()
	if err != nil {
		return nil, err
	}
	for field := range bytes.SplitSeq(info, []byte{0}) {
		if list, ok := strings.CutPrefix(string(field), "depends="); ok && list != "" {
			return strings.Split(list, ","), nil
		}
	}
	return nil, nil
}
