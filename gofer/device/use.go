package device

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// checkUnused refuses a controller that the host uses. The texts come from what /proc
// and sysfs show; what they do not show, such as mounts of other namespaces, the kernel
// tells by not giving the device out.
func (h *Host) checkUnused(i *Info) error {
	for _, ns := range i.Namespaces {
		if use := h.useOf(ns.Block); use != "" {
			return failf(ErrInUse, i.Address, "is in use: %s; stop that first, no force helps", use)
		}
		f, err := os.OpenFile(h.path("dev", ns.Block), os.O_RDONLY|unix.O_EXCL|unix.O_CLOEXEC, 0)
		switch {
		case busy(err):
			return failf(ErrInUse, i.Address, "is in use: something has /dev/%s or a partition of it for itself, perhaps mounted in a container; stop that first, no force helps", ns.Block)
		case err != nil:
			return failf(ErrUnusable, i.Address, "cannot be looked at: %v; run this as root", err)
		}
		f.Close()
	}
	return nil
}

// useOf says what uses a block device, its partitions, or what is made of them; "" if
// nothing does.
func (h *Host) useOf(block string) string {
	for _, b := range h.withPartitions(block) {
		if use := h.useOfOne(b, 0); use != "" {
			return use
		}
	}
	return ""
}

// withPartitions is a block device and its partitions.
func (h *Host) withPartitions(block string) []string {
	list := []string{block}
	for _, name := range h.names(blockPath, block) {
		if _, err := os.Stat(h.path(blockPath, block, name, "partition")); err == nil {
			list = append(list, name)
		}
	}
	return list
}

// maxHolders bounds how deep devices are stacked on each other.
const maxHolders = 16

func (h *Host) useOfOne(block string, depth int) string {
	number := h.attribute("sys/class/block", block, "dev")
	for _, table := range []string{"proc/self/mountinfo", "proc/1/mountinfo"} {
		if where := h.mountOf(table, number, "/dev/"+block); where != "" {
			return fmt.Sprintf("/dev/%s is mounted on %s", block, where)
		}
	}
	for _, line := range h.lines("proc/swaps") {
		if f := strings.Fields(line); len(f) > 0 && f[0] == "/dev/"+block {
			return fmt.Sprintf("/dev/%s is swap", block)
		}
	}
	for _, holder := range h.names("sys/class/block", block, "holders") {
		if depth < maxHolders {
			if use := h.useOfOne(holder, depth+1); use != "" {
				return fmt.Sprintf("/dev/%s is part of %s", block, use)
			}
		}
		return fmt.Sprintf("/dev/%s is part of /dev/%s", block, holder)
	}
	return ""
}

// mountOf finds the mount of a block device by its number or its name: some file
// systems have numbers of their own.
func (h *Host) mountOf(table, number, source string) string {
	for _, line := range h.lines(table) {
		// 36 35 98:0 /root /mount/point options … - type source options
		f := strings.Fields(line)
		if len(f) < 10 {
			continue
		}
		for i, word := range f {
			if word != "-" || i+2 >= len(f) {
				continue
			}
			if f[2] == number || f[i+2] == source {
				return unescape(f[4])
			}
			break
		}
	}
	return ""
}

// unescape undoes the octal escapes of mountinfo.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, " ", `\134`, `\`).Replace(s)
}

func (h *Host) lines(path string) []string {
	text, err := os.ReadFile(h.path(path))
	if err != nil {
		return nil
	}
	var lines []string
	for s := bufio.NewScanner(bytes.NewReader(text)); s.Scan(); {
		lines = append(lines, s.Text())
	}
	return lines
}

// checkEmpty refuses a controller with a partition table or a file system that is
// known, other than blobfs.
func (h *Host) checkEmpty(i *Info) error {
	for _, ns := range i.Namespaces {
		f, err := os.Open(h.path("dev", ns.Block))
		if err != nil {
			return failf(ErrUnusable, i.Address, "cannot be looked at: %v", err)
		}
		found, err := Signature(f, ns.SizeBytes)
		f.Close()
		if err != nil {
			return failf(ErrUnusable, i.Address, "cannot be read: %v", err)
		}
		if found != "" && found != SignatureBlobfs {
			return failf(ErrNotEmpty, i.Address, "has %s on /dev/%s; 'runsc-fs device bind --force %s' takes it from the host nevertheless", found, ns.Block, i.Address)
		}
	}
	return nil
}
