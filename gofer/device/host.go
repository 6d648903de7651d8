package device

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"runsc-fs/nvme/pcie"
)

// Errors of this package, to be recognised with errors.Is. Their texts are one
// line with the device and a remedy.
var (
	ErrNoDevice  = errors.New("no such NVMe device")
	ErrInUse     = errors.New("device is in use")
	ErrNotEmpty  = errors.New("device holds data")
	ErrUnusable  = errors.New("device cannot be used")
	ErrAlready   = errors.New("nothing to do")
	errNotInTree = errors.New("not there")
)

// classError is a one-line error that belongs to a class.
type classError struct {
	class error
	text  string
}

func (e *classError) Error() string { return e.text }
func (e *classError) Unwrap() error { return e.class }

func failf(class error, addr pcie.Address, text string, args ...any) error {
	return &classError{class, fmt.Sprintf("device %s %s", addr, fmt.Sprintf(text, args...))}
}

// Host is the machine whose devices are meant. The zero value is this one.
type Host struct {
	// Root is put before the paths of /sys, /proc, /dev and /run. Default "/".
	Root string

	// Tests have a kernel of their own.
	write  func(path, text string) error
	module func(name string) error
}

func (h *Host) path(elem ...string) string {
	root := h.Root
	if root == "" {
		root = "/"
	}
	return filepath.Join(append([]string{root}, elem...)...)
}

// Paths of sysfs.
const (
	devicesPath = "sys/bus/pci/devices"
	driversPath = "sys/bus/pci/drivers"
	probePath   = "sys/bus/pci/drivers_probe"
	blockPath   = "sys/block"
)

// Names of drivers.
const (
	driverVFIO = "vfio-pci"
	driverNVMe = "nvme"
)

// attribute reads a file of sysfs; "" if there is none.
func (h *Host) attribute(elem ...string) string {
	text, err := os.ReadFile(h.path(elem...))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// set writes a file of sysfs, which is not made if it is not there.
func (h *Host) set(text string, elem ...string) error {
	path := h.path(elem...)
	if h.write != nil {
		return h.write(path, text)
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// linkBase is the last part of what a link leads to; "" if there is no link.
func (h *Host) linkBase(elem ...string) string {
	target, err := os.Readlink(h.path(elem...))
	if err != nil {
		return ""
	}
	return filepath.Base(target)
}

// names lists a directory; nil if there is none.
func (h *Host) names(elem ...string) []string {
	entries, _ := os.ReadDir(h.path(elem...))
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// loadModule loads a module of the kernel.
func (h *Host) loadModule(name string) error {
	if h.module != nil {
		return h.module(name)
	}
	if h.path() != "/" {
		return errNotInTree
	}
	if out, err := exec.Command("modprobe", name).CombinedOutput(); err != nil {
		return fmt.Errorf("modprobe %s: %w: %s", name, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// busy tells whether an error says that somebody else has the thing open.
func busy(err error) bool { return errors.Is(err, unix.EBUSY) }
