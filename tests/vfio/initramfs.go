package vfio

import (
	"bytes"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// archive is a cpio archive in the format "newc", which the kernel unpacks into its
// first root file system. Each entry is
//
//	"070701" 13 numbers of 8 hexadecimal digits | name NUL | padding to 4 | data | padding to 4
type archive struct {
	buf   bytes.Buffer
	inode int
}

// add appends an entry.
func (a *archive) add(name string, mode uint32, data []byte) {
	a.inode++
	links := 1
	header := []int{a.inode, int(mode), 0, 0, links, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0}
	a.buf.WriteString("070701")
	for _, v := range header {
		fmt.Fprintf(&a.buf, "%08X", v)
	}
	a.buf.WriteString(name)
	a.buf.WriteByte(0)
	a.pad()
	a.buf.Write(data)
	a.pad()
}

func (a *archive) pad() {
	for a.buf.Len()%4 != 0 {
		a.buf.WriteByte(0)
	}
}

func (a *archive) dir(name string)               { a.add(name, unix.S_IFDIR|0o755, nil) }
func (a *archive) program(name string, b []byte) { a.add(name, unix.S_IFREG|0o755, b) }

// writeInitramfs writes the archive that a guest boots from: busybox, modules and the
// scripts that start the Spec's own.
func writeInitramfs(path, busybox string, modules []module) error {
	shell, err := os.ReadFile(busybox)
	if err != nil {
		return err
	}
	var a archive
	for _, d := range []string{"bin", "dev", "proc", "sys", "modules", "root"} {
		a.dir(d)
	}
	a.program("bin/busybox", shell)
	a.program("init", []byte(initScript))
	a.program("second", []byte(secondScript))
	var order bytes.Buffer
	for _, m := range modules {
		a.program("modules/"+m.name, m.data)
		fmt.Fprintln(&order, m.name)
	}
	a.program("modules/order", order.Bytes())
	a.add("TRAILER!!!", 0, nil)
	return os.WriteFile(path, a.buf.Bytes(), 0o600)
}
